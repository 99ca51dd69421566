//! One of two equal paths is cut silently in mid-file: `longhaul copy` soon goes on over the other, loses
//! nothing, and has no more sent twice than was under way. `LONGHAUL_SOAK_PATH_MB` sets how much is copied.
//! And a host with two uplinks uses both, if it is told to.

use std::fs;
use std::time::Duration;

use longhaul_testbed::wan::{Change, DATA_BYTES, Direction, Lab, PathConfig, Side, Stall};
use longhaul_testbed::{AdHoc, Process, Random, TICK, effort, needs, tree};

const WITHIN: Duration = Duration::from_secs(600);
const RTT_MS: f64 = 40.0;
const RATE_MBIT: f64 = 50.0;
/// By the emulator's clock, from data to data: whoever gets no processor takes longer than the 3 s that
/// `wire` tests in simulated time.
const STALL_NS_MAX: u64 = 20_000_000_000;
/// The volume in flight (at least an extent for each stream).
const IN_FLIGHT: u64 = 10 << 20;
const OVERHEAD: f64 = 1.06;

#[test]
fn a_path_that_is_cut_silently_costs_a_short_stall() {
    if let Err(why) = Lab::available() {
        return needs::not_run("a path that is cut", &why);
    }
    let size = effort::path_mb() * 1_000_000;
    let path = PathConfig::new(RTT_MS).rate_mbit(RATE_MBIT);
    let ground = AdHoc::new(Lab::start(&[path.clone(), path]).unwrap());
    fs::write(ground.source().join("large"), tree::content(&mut Random::new(9), size)).unwrap();
    let expected = tree::survey(&ground.source());
    let mut server = ground.serve(&[]);
    let mut copy = ground.copy(&[]);
    let of = |path| ground.lab.counters(path, Direction::RightToLeft);
    until(&mut copy, || ground.on_the_wire() > size / 6);
    let cut = usize::from(of(1).bytes_carried > of(0).bytes_carried);
    let other = 1 - cut;
    ground.lab.set(cut, Change::Cut).unwrap();
    // The last byte that came over the path that is cut, or over the other one if that has carried data as
    // well.
    let mut stall = Stall::after(&of(cut), &of(other));
    let goes_on = of(other).bytes_carried + size / 4;
    let status = loop {
        let counters = of(other);
        stall.observe(&counters);
        if counters.bytes_carried > goes_on {
            // What is left need not take its time.
            ground.lab.set(other, Change::RateMbit(None)).unwrap();
        }
        if let Some(status) = copy.wait(TICK) {
            break status;
        }
    };
    assert!(status.success(), "{}", copy.log.tail());
    tree::assert_same(&expected.files, &ground.target(), "");
    let carried = ground.on_the_wire();
    let late_ns = of(other).late_ns_max;
    println!(
        "a stall of {} ms, {} ms of it the emulator's; {carried} bytes carried and {} dropped by the cut for \
            {size}",
        stall.longest_ns() / 1_000_000,
        late_ns / 1_000_000,
        of(cut).bytes_cut
    );
    assert!(stall.longest_ns() <= STALL_NS_MAX + late_ns, "nothing came for {} ns", stall.longest_ns());
    assert!(of(other).bytes_carried > size / 3, "it went another way");
    let most = (size as f64 * OVERHEAD) as u64 + IN_FLIGHT;
    assert!(carried <= most, "{carried} bytes were carried for {size}");
    server.kill();
}

/// What leaves from the second address goes by the second uplink, as docs/howto/several-uplinks.md has it.
fn route_by_source(lab: &Lab, address: &str) {
    let ip = |words: &[&str]| {
        let output = lab.command(Side::Left, "ip").args(words).output().unwrap();
        assert!(output.status.success(), "ip {words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = ip(&["-o", "address", "show", "to", address]);
    let device = shown.split_whitespace().nth(1).unwrap();
    ip(&["route", "add", "default", "dev", device, "table", "101"]);
    ip(&["rule", "add", "from", address, "table", "101"]);
}

/// Streams from an address of this host, with data in both directions; and from two at once.
#[test]
fn streams_from_two_addresses_use_two_uplinks() {
    if let Err(why) = Lab::available() {
        return needs::not_run("two uplinks", &why);
    }
    let path = PathConfig::new(RTT_MS / 2.0);
    for push in [false, true] {
        let lab = Lab::start(&[path.clone(), path.clone()]).unwrap();
        let ours = [0, 1].map(|path| lab.address(Side::Left, path).to_string());
        route_by_source(&lab, &ours[1]);
        let ground = AdHoc::new(lab);
        let ground = if push { ground.pushing() } else { ground };
        let size = 60_000_000;
        fs::write(ground.source().join("large"), tree::content(&mut Random::new(9), size)).unwrap();
        let expected = tree::survey(&ground.source());
        let mut server = ground.serve(&[]);
        let carried = |path| ground.lab.counters(path, ground.direction()).bytes_carried;
        let mut alone = ground.command(&["--bind", &ours[1]]);
        assert!(alone.status().unwrap().success());
        tree::assert_same(&expected.files, &ground.target(), "");
        assert!(carried(0) < DATA_BYTES, "{} bytes went the way that was not wanted", carried(0));
        if push {
            // Which of the streams that are offered it takes, is the server's to say.
            server.kill();
            continue;
        }
        // One way alone would need ten seconds: the other has its part though it comes late.
        for way in [0, 1] {
            ground.lab.set(way, Change::RateMbit(Some(RATE_MBIT))).unwrap();
        }
        let before = [carried(0), carried(1)];
        fs::remove_file(ground.target().join("large")).unwrap();
        let mut both = ground.command(&["--bind", &ours.join(",")]);
        assert!(both.status().unwrap().success());
        tree::assert_same(&expected.files, &ground.target(), "");
        let each = [0, 1].map(|path| carried(path) - before[path]);
        assert!(each.iter().all(|bytes| *bytes > size / 5), "{each:?} of {size}");
        let mut wrong = ground.command(&["--bind", "192.0.2.77"]);
        let said = wrong.output().unwrap();
        assert!(String::from_utf8_lossy(&said.stderr).contains("192.0.2.77"), "{said:?}");
        server.kill();
    }
}

fn until(copy: &mut Process, condition: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(copy.wait(TICK).is_none(), "it ended before: {}", copy.log.tail());
        assert!(begun.elapsed() < WITHIN, "it does not happen: {}", copy.log.tail());
    }
}
