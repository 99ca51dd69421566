//! The scavenger class on a link that it shares: all of it while nobody else is there, and nobody is hurt by
//! it.

use longhaul_testbed::wan::{Lab, PathConfig, Side};

use super::interactive::{Interactive, p95};
use super::options::Options;
use super::report::{Bound, Figures, OURS, Session};
use super::scene::{Scene, Wish, bytes_below};
use crate::measure::make_files;
use crate::peers::longhaul::Data;
use crate::transfers::case::payload_mb_per_s;
use crate::transfers::memory::Memory;
use crate::transfers::run::Failure;
use crate::transfers::traffic::{Received, second_half};

pub(crate) const NAME: &str = "scavenger";
pub(crate) const WHAT: &str = "100 Mbit/s, 40 ms, MTU 1500, a queue of one BDP. A transfer of the scavenger \
    class alone (its second half), then 10 kB requests on an open \
     connection: on the idle path, beside the scavenger, and beside a transfer of the ordinary class";
const RATE_MBIT: f64 = 100.0;
const RTT_MS: f64 = 40.0;
const MTU: u32 = 1500;
const FILES: usize = 8;
/// Alone: 16 s of the link.
const FILE_BYTES: usize = 25_000_000;
/// Beside: more than the requests last, so that the transfer is still there at the end.
const BESIDE_FILE_BYTES: usize = 150_000_000;
const REQUESTS: usize = 200;
const QUICK_REQUESTS: usize = 60;
const FLAG: &str = "--class scavenger";
const BESIDE: &str = "beside scavenger";
const FILLED: f64 = 0.95;
const SLOWER: f64 = 1.3;
/// Requests begin when so many bytes have come: the transfer's start is over.
const UNDER_WAY: u64 = 20_000_000;
const P95: &str = "p95 ms";

pub(crate) fn run(memory: &Memory, options: &Options, session: &mut Session) -> Result<(), String> {
    let capacity = payload_mb_per_s(RATE_MBIT, MTU);
    let requests = if options.quick { QUICK_REQUESTS } else { REQUESTS };
    let ours = format!("{OURS} {FLAG}");
    let classes = [(BESIDE, FLAG), ("beside ordinary", "")];
    for _ in 0..options.rounds {
        let moved = alone(memory, options);
        session.record(NAME, "alone", &ours, moved);
        session.record(NAME, "idle", "10 kB request", asked(&path()?, requests, || Ok(())));
        for (setting, flags) in classes {
            session.record(NAME, setting, "10 kB request", beside(memory, options, flags, requests));
        }
    }
    session.record(NAME, "alone", "payload capacity", Ok(Figures::rate(capacity)));
    let filled = session.get(NAME, "alone", &ours).and_then(|figures| figures.get(SECOND_HALF));
    session.bar(
        NAME,
        "share of capacity alone, second half",
        filled.map(|rate| rate / capacity),
        Bound::AtLeast(FILLED),
    );
    let p95 = |session: &Session, setting: &str| session.get(NAME, setting, "10 kB request")?.get(P95);
    let idle = p95(session, "idle");
    let ratio = p95(session, BESIDE).zip(idle).map(|(beside, idle)| beside / idle);
    session.bar(NAME, "p95 of a 10 kB request beside the scavenger over idle", ratio, Bound::AtMost(SLOWER));
    Ok(())
}

const SECOND_HALF: &str = "MB/s of the second half";

fn path() -> Result<Lab, String> {
    Lab::start(&[PathConfig::new(RTT_MS).rate_mbit(RATE_MBIT).mtu(MTU)])
}

fn alone(memory: &Memory, options: &Options) -> Result<Figures, Failure> {
    let lab = path()?;
    let scene = Scene::new(&lab, memory)?;
    make_files(&scene.source, FILES, options.scaled(FILE_BYTES));
    let bytes = bytes_below(&scene.source)?;
    let moved = scene.pull(&Wish::flags(FLAG))?;
    let rate = second_half(&moved.received_at[0], bytes);
    Ok(Figures::from_command(&moved, bytes).with(SECOND_HALF, rate))
}

/// Requests while a transfer of that class runs, which is ended when they have been answered.
fn beside(memory: &Memory, options: &Options, flags: &str, requests: usize) -> Result<Figures, Failure> {
    let lab = path()?;
    let scene = Scene::new(&lab, memory)?;
    make_files(&scene.source, FILES, options.scaled(BESIDE_FILE_BYTES));
    scene.prepare()?;
    let server = Data::Tls.server(&scene.source, scene.url(), &scene.far);
    let _server = scene.stage.serve(&server, "server.log")?;
    let mut client = scene.stage.prepare(Side::Left, &scene.client(&Wish::flags(flags))?, "client.log")?;
    let mut received = Received::open(&lab, Side::Left)?;
    client.go();
    while received.bytes() < UNDER_WAY.min(options.scaled(BESIDE_FILE_BYTES) as u64) {
        if client.wait(std::time::Duration::from_millis(20)).is_some() {
            return Err(Failure::Failed(format!(
                "the transfer ended before it was under way: {}",
                client.log_end()
            )));
        }
    }
    let before = (received.bytes(), std::time::Instant::now());
    let asked = asked(&lab, requests, || match client.wait(std::time::Duration::ZERO) {
        None => Ok(()),
        Some(status) => {
            Err(format!("the transfer ended before the requests ({status}): {}", client.log_end()))
        }
    })?;
    let seconds = before.1.elapsed().as_secs_f64();
    let carried = (received.bytes() - before.0) as f64 / 1e6 / seconds;
    client.stop();
    Ok(asked.with("MB/s on the path meanwhile", Some(carried)))
}

/// `alive` is asked before each request: figures of a path that has fallen idle would flatter.
fn asked(
    lab: &Lab,
    requests: usize,
    mut alive: impl FnMut() -> Result<(), String>,
) -> Result<Figures, Failure> {
    let mut interactive = Interactive::start(lab)?;
    let mut times = Vec::new();
    for _ in 0..requests {
        alive()?;
        times.push(interactive.round_trip_ms()?);
    }
    let median = crate::measure::median(times.clone());
    Ok(Figures::default().with("median ms", Some(median)).with(P95, p95(times)))
}
