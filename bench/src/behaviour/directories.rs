//! Directories queued one after another for the same pair of hosts: between them the link must not rest.

use longhaul_testbed::wan::{Lab, PathConfig};

use super::options::Options;
use super::report::{Bound, Figures, OURS, Session};
use super::scene::{Scene, Wish, bytes_below};
use crate::measure::make_files;
use crate::transfers::case::payload_mb_per_s;
use crate::transfers::memory::Memory;
use crate::transfers::traffic::{between_first_and_last, longest_gap};

pub(crate) const NAME: &str = "directories";
pub(crate) const WHAT: &str = "50 directories of 8 files, 4 GB in all, queued one after another for the same \
    pair at 100 ms and 1 Gbit/s; capacity is what \
     the path can carry of payload, headers taken off";
const DIRECTORIES: usize = 50;
const FILES: usize = 8;
const FILE_BYTES: usize = 10_000_000;
const RTT_MS: f64 = 100.0;
const RATE_MBIT: f64 = 1000.0;
const MTU: u32 = 9000;
/// A tenth of the link: less is no transfer, but farewells and acknowledgements.
const QUIET: f64 = 0.1;
const SHARE: f64 = 0.98;
const GAP_MS: f64 = 100.0;

pub(crate) fn run(memory: &Memory, options: &Options, session: &mut Session) -> Result<(), String> {
    let lab = Lab::start(&[PathConfig::new(RTT_MS).rate_mbit(RATE_MBIT).mtu(MTU)])?;
    let scene = Scene::new(&lab, memory)?;
    let directories: Vec<String> = (0..DIRECTORIES).map(|number| format!("d{number:02}")).collect();
    for directory in &directories {
        make_files(&scene.source.join(directory), FILES, options.scaled(FILE_BYTES));
    }
    let bytes = bytes_below(&scene.source)?;
    let wish = Wish { directories, ..Wish::default() };
    let capacity = payload_mb_per_s(RATE_MBIT, MTU);
    for _ in 0..options.rounds {
        let moved = scene.pull(&wish).map(|moved| {
            let received = &moved.received_at[0];
            let rate = between_first_and_last(received, bytes);
            let gap = longest_gap(received, QUIET * capacity * 1e6);
            Figures::from_command(&moved, bytes)
                .with("MB/s from first to last byte", rate)
                .with("longest gap ms", gap.map(|gap| gap * 1e3))
        });
        session.record(NAME, "", OURS, moved);
    }
    session.record(NAME, "", "payload capacity", Ok(Figures::rate(capacity)));
    let ours = session.get(NAME, "", OURS).unwrap_or_default();
    let share = ours.get("MB/s from first to last byte").map(|rate| rate / capacity);
    session.bar(NAME, "share of capacity from first to last byte", share, Bound::AtLeast(SHARE));
    session.bar(NAME, "longest gap, ms", ours.get("longest gap ms"), Bound::AtMost(GAP_MS));
    Ok(())
}
