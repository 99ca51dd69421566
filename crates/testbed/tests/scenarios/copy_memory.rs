//! Promise 7 by whole processes: many transfers at once over a long path, with a set budget. What a process
//! has resident but for its executable, with what the kernel holds for its sockets, stays within the budget
//! and little beside.
//! `LONGHAUL_SOAK_MEMORY_TRANSFERS` sets how many.

use std::fs;

use longhaul_testbed::processes::peak_bytes_beside_files;
use longhaul_testbed::wan::{Lab, PathConfig, Side, SocketMemory};
use longhaul_testbed::{AdHoc, Random, TICK, effort, needs, tree};

const RTT_MS: f64 = 300.0;
const RATE_MBIT: f64 = 800.0;
const MTU: u32 = 9000;
const BUDGET: u64 = 48 << 20;
/// The program's threads and what it knows, as far as the budget leaves no room for it.
const BESIDE: u64 = 500_000;
const FILE_BYTES: u64 = 3_000_000;

#[test]
fn many_transfers_far_away_stay_within_the_budget() {
    if let Err(why) = Lab::available() {
        return needs::not_run("memory over a long path", &why);
    }
    let transfers = effort::memory_transfers();
    let ground = AdHoc::new(Lab::start(&[PathConfig::new(RTT_MS).rate_mbit(RATE_MBIT).mtu(MTU)]).unwrap());
    let mut random = Random::new(3);
    for number in 0..transfers {
        fs::write(ground.source().join(format!("f{number:04}")), tree::content(&mut random, FILE_BYTES))
            .unwrap();
    }
    let expected = tree::survey(&ground.source());
    let budget = BUDGET.to_string();
    let mut server = ground.serve(&["--memory", &budget]);
    let mut copy = ground.copy(&["--memory", &budget, "--parallel-files", &transfers.to_string()]);
    let ends = [(Side::Left, copy.pid()), (Side::Right, server.pid())];
    let mut sockets = ends.map(|(side, _)| SocketMemory::open(&ground.lab, side).unwrap());
    let mut peaks = [0; 2];
    let status = loop {
        for (place, (_, pid)) in ends.into_iter().enumerate() {
            // The peak of what is resident, with what sockets hold at any moment. How much of the executable
            // is resident depends on how well it was optimised.
            let held = sockets[place].bytes().unwrap() + peak_bytes_beside_files(pid);
            peaks[place] = held.max(peaks[place]);
        }
        if let Some(status) = copy.wait(TICK) {
            break status;
        }
    };
    assert!(status.success(), "{}", copy.log.tail());
    tree::assert_same(&expected.files, &ground.target(), "");
    let most = BUDGET + BESIDE;
    println!(
        "{transfers} transfers: client {} MB, server {} MB, at most {} MB",
        peaks[0] / 1_000_000,
        peaks[1] / 1_000_000,
        most / 1_000_000
    );
    assert!(peaks.iter().all(|peak| *peak > 5_000_000), "nothing was measured: {peaks:?}");
    assert!(peaks.iter().all(|peak| *peak <= most), "{peaks:?} of {most} bytes");
    server.kill();
}
