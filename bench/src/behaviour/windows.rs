//! Streams × files × windows on long paths, after the study of the FTS3 paper: is any setting much better
//! than ours by default?

use longhaul_testbed::wan::{Lab, PathConfig, Side};

use super::options::Options;
use super::report::{Bound, Figures, OURS, Session};
use super::scene::{Scene, Wish, bytes_below};
use crate::measure::make_files;
use crate::transfers::case::payload_mb_per_s;
use crate::transfers::memory::Memory;

pub(crate) const NAME: &str = "windows";
pub(crate) const WHAT: &str = "16 files (160 MB in all) at 200 and 300 ms and 1 Gbit/s, with 1, 2, 4 and 16 \
    streams and 1, 4 and 16 files at once; a socket's buffer \
     limited to 4 or 32 MB, up to which the kernel grows it (autotuned) or which it has from the start \
     (set). Half of a buffer is window";
const FILES: usize = 16;
const FILE_BYTES: usize = 10_000_000;
const RATE_MBIT: f64 = 1000.0;
const MTU: u32 = 9000;
const RTTS: [u32; 2] = [200, 300];
const STREAMS: [u32; 4] = [1, 2, 4, 16];
const FILES_CONCURRENT: [u32; 3] = [1, 4, 16];
const LIMITS_MB: [u64; 2] = [4, 32];
const DEFAULT_RATE_FRACTION_MIN: f64 = 0.95;

#[derive(Clone, Copy)]
struct Window {
    megabytes: u64,
    autotuned: bool,
}

impl Window {
    fn set(self, lab: &Lab) -> Result<(), String> {
        let bytes = self.megabytes << 20;
        Side::BOTH.into_iter().try_for_each(|side| {
            if self.autotuned {
                lab.set_socket_buffers(side, bytes)
            } else {
                lab.fix_socket_buffers(side, bytes)
            }
        })
    }

    fn name(self) -> String {
        format!("{} MB {}", self.megabytes, if self.autotuned { "autotuned" } else { "set" })
    }
}

pub(crate) fn run(memory: &Memory, options: &Options, session: &mut Session) -> Result<(), String> {
    let (rtts, streams, at_once): (&[u32], &[u32], &[u32]) =
        if options.quick { (&[200], &[1, 4, 16], &[1, 16]) } else { (&RTTS, &STREAMS, &FILES_CONCURRENT) };
    for &rtt in rtts {
        for autotuned in [true, false] {
            for megabytes in LIMITS_MB {
                let window = Window { megabytes, autotuned };
                let setting = format!("{rtt} ms, {}", window.name());
                // A laboratory of its own: what was set for one is not what another begins with.
                let lab = Lab::start(&[PathConfig::new(rtt.into()).rate_mbit(RATE_MBIT).mtu(MTU)])?;
                window.set(&lab)?;
                let cells: Vec<String> = streams
                    .iter()
                    .flat_map(|streams| at_once.iter().map(move |files| cell(*streams, *files)))
                    .collect();
                measure(&lab, memory, options, &setting, &cells, session)?;
            }
        }
    }
    Ok(())
}

fn cell(streams: u32, files: u32) -> String {
    format!("--streams {streams} --parallel-files {files}")
}

fn measure(
    lab: &Lab,
    memory: &Memory,
    options: &Options,
    setting: &str,
    cells: &[String],
    session: &mut Session,
) -> Result<(), String> {
    let scene = Scene::new(lab, memory)?;
    make_files(&scene.source, FILES, options.scaled(FILE_BYTES));
    let bytes = bytes_below(&scene.source)?;
    let program = |flags: &str| format!("{OURS} {flags}").trim_end().to_owned();
    for _ in 0..options.rounds {
        for flags in std::iter::once("").chain(cells.iter().map(String::as_str)) {
            let moved = scene.pull(&Wish::flags(flags)).map(|moved| Figures::from_command(&moved, bytes));
            session.record(NAME, setting, &program(flags), moved);
        }
    }
    let capacity = payload_mb_per_s(RATE_MBIT, MTU);
    session.record(NAME, setting, "payload capacity", Ok(Figures::rate(capacity)));
    let rate = |session: &Session, program: &str| session.get(NAME, setting, program)?.mb_per_s;
    let best = cells.iter().filter_map(|flags| Some((flags, rate(session, &program(flags))?)));
    let best = best.max_by(|one, other| one.1.total_cmp(&other.1));
    let ours = rate(session, OURS);
    let what = match best {
        Some((flags, _)) => format!("{setting}: defaults over the best cell ({flags})"),
        None => format!("{setting}: defaults over the best cell"),
    };
    let bound = best.map_or(Bound::Missing, |_| Bound::AtLeast(DEFAULT_RATE_FRACTION_MIN));
    session.bar(NAME, what, ours.zip(best).map(|(ours, (_, best))| ours / best), bound);
    Ok(())
}
