//! A host with two uplinks that opens streams from both of its addresses at once, against the same host with
//! one of them.

use longhaul_testbed::wan::{Lab, PathConfig, Side};

use super::options::Options;
use super::report::{Bound, Figures, OURS, Session};
use super::scene::{Scene, Wish};
use crate::measure::make_files;
use crate::transfers::memory::Memory;

pub(crate) const NAME: &str = "uplinks";
pub(crate) const WHAT: &str = "4 files of 250 MB at 40 ms by `--bind` from one address, and from both: over \
    two uplinks of 400 Mbit/s, and over one of \
     400 beside one of 100";
const FILES: usize = 4;
const FILE_BYTES: usize = 250_000_000;
const RTT_MS: f64 = 40.0;
const MTU: u32 = 9000;
const RATE_MBIT: f64 = 400.0;
const SLOW_MBIT: f64 = 100.0;
/// Two equal uplinks carry at least so many times what one does.
const EQUAL_UPLINKS_GAIN_MIN: f64 = 1.9;
/// Two unequal uplinks carry at least this share of their sum.
const UNEQUAL_UPLINKS_FRACTION_MIN: f64 = 0.95;

pub(crate) fn run(memory: &Memory, options: &Options, session: &mut Session) -> Result<(), String> {
    for (setting, second) in [("400 + 400 Mbit/s", RATE_MBIT), ("400 + 100 Mbit/s", SLOW_MBIT)] {
        let path = |rate| PathConfig::new(RTT_MS).rate_mbit(rate).mtu(MTU);
        let lab = Lab::start(&[path(RATE_MBIT), path(second)])?;
        let scene = Scene::new(&lab, memory)?;
        make_files(&scene.source, FILES, options.scaled(FILE_BYTES));
        let bytes = (FILES * options.scaled(FILE_BYTES)) as u64;
        let address = |path| lab.address(Side::Left, path).to_string();
        let both = format!("{},{}", address(0), address(1));
        let ways = [("the first", address(0)), ("the second", address(1)), (OURS, both)];
        for _ in 0..options.rounds {
            for (name, bind) in &ways {
                let moved = scene.pull(&Wish::flags(format!("--bind {bind}")));
                session.record(NAME, setting, name, moved.map(|moved| Figures::from_command(&moved, bytes)));
            }
        }
        let rate = |name| session.get(NAME, setting, name)?.mb_per_s;
        let (one, other, all) = (rate("the first"), rate("the second"), rate(OURS));
        let of = |whole: Option<f64>| Some(all? / whole?);
        if second < RATE_MBIT {
            let sum = one.zip(other).map(|(one, other)| one + other);
            session.bar(
                NAME,
                "unequal uplinks, share of their sum",
                of(sum),
                Bound::AtLeast(UNEQUAL_UPLINKS_FRACTION_MIN),
            );
        } else {
            session.bar(
                NAME,
                "two equal uplinks, times one",
                of(one),
                Bound::AtLeast(EQUAL_UPLINKS_GAIN_MIN),
            );
        }
    }
    Ok(())
}
