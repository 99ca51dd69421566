//! By which rule a source is chosen. `best` is ours: the earliest expected finish, decided when the transfer
//! starts. The nine others are FTS3's, under its names: the source is chosen when the transfer is queued, and
//! again after a failure or when that source is gone.
//!
//! | name | the source with | and where nothing was measured |
//! | --- | --- | --- |
//! | `orderly` | the first place in the order given | |
//! | `queue`, `auto` | the fewest files of the community waiting on the link | |
//! | `success` | the highest share of attempts that succeeded | counts as 100 % |
//! | `throughput` | the highest goodput of the link | tried first |
//! | `file-throughput` | the highest goodput of a single file | tried first |
//! | `pending-data` | the fewest bytes waiting, of activities with at least the weight of its own | |
//! | `waiting-time` | the least W = pending data / throughput | tried first |
//! | `waiting-time-with-error` | the least W · (1 + share that failed) | tried first |
//! | `duration` | the least W · (1 + share that failed) + size / file-throughput | tried first |
//!
//! Mended against FTS3: link throughput is goodput and not multiplied by the number of transfers once more;
//! sizes and rates are in the same unit; what was never measured is really tried, instead of the first in the
//! list being taken; activities with shares are no error; the rule holds after a failure too. Nothing is
//! cached: the numbers are those of the moment. Ties keep the order given.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    #[default]
    Best,
    Orderly,
    Queue,
    Success,
    Throughput,
    FileThroughput,
    PendingData,
    WaitingTime,
    WaitingTimeWithError,
    Duration,
}

impl Strategy {
    pub const ALL: [Strategy; 10] = [
        Strategy::Best,
        Strategy::Orderly,
        Strategy::Queue,
        Strategy::Success,
        Strategy::Throughput,
        Strategy::FileThroughput,
        Strategy::PendingData,
        Strategy::WaitingTime,
        Strategy::WaitingTimeWithError,
        Strategy::Duration,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Strategy::Best => "best",
            Strategy::Orderly => "orderly",
            Strategy::Queue => "queue",
            Strategy::Success => "success",
            Strategy::Throughput => "throughput",
            Strategy::FileThroughput => "file-throughput",
            Strategy::PendingData => "pending-data",
            Strategy::WaitingTime => "waiting-time",
            Strategy::WaitingTimeWithError => "waiting-time-with-error",
            Strategy::Duration => "duration",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStrategy(String);

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Strategy::ALL.iter().map(|strategy| strategy.name()).collect();
        let given = longhaul_model::units::printable(&self.0);
        write!(f, "`{given}` is no strategy; known are {} and auto (the same as queue)", names.join(", "))
    }
}

impl std::error::Error for UnknownStrategy {}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        if text == "auto" {
            return Ok(Strategy::Queue);
        }
        let known = Strategy::ALL.into_iter().find(|strategy| strategy.name() == text);
        known.ok_or_else(|| UnknownStrategy(text.chars().take(40).collect()))
    }
}

/// What is known of the link from one source, for one transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SourceStats {
    /// Place in the order given.
    pub position: usize,
    pub files_waiting: u32,
    pub bytes_waiting: u64,
    pub failure_share: f64,
    /// Bytes per second; 0 where nothing was measured.
    pub throughput: f64,
    pub file_throughput: f64,
}

/// The lower the better.
pub(crate) fn rank_source(strategy: Strategy, stats: &SourceStats, size: u64) -> f64 {
    let wait = stats.bytes_waiting as f64 / stats.throughput;
    let with_error = wait * (1.0 + stats.failure_share);
    let measured = |value: f64, needs: f64| if needs > 0.0 { value } else { f64::NEG_INFINITY };
    match strategy {
        Strategy::Best | Strategy::Orderly => stats.position as f64,
        Strategy::Queue => f64::from(stats.files_waiting),
        Strategy::Success => stats.failure_share,
        Strategy::Throughput => measured(-stats.throughput, stats.throughput),
        Strategy::FileThroughput => measured(-stats.file_throughput, stats.file_throughput),
        Strategy::PendingData => stats.bytes_waiting as f64,
        Strategy::WaitingTime => measured(wait, stats.throughput),
        Strategy::WaitingTimeWithError => measured(with_error, stats.throughput),
        Strategy::Duration => {
            let all = with_error + size as f64 / stats.file_throughput;
            measured(all, stats.throughput.min(stats.file_throughput))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};

    #[test]
    fn names_are_those_of_fts3_and_an_unknown_one_is_told() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        assert_eq!("auto".parse(), Ok(Strategy::Queue));
        let error = "fastest".parse::<Strategy>().unwrap_err().to_string();
        assert!(error.starts_with("`fastest` is no strategy; known are best, orderly"), "{error}");
    }

    #[test]
    fn formulas() {
        let stats = SourceStats {
            position: 2,
            files_waiting: 7,
            bytes_waiting: 1_000,
            failure_share: 0.5,
            throughput: 100.0,
            file_throughput: 10.0,
        };
        let ranks = Strategy::ALL.map(|strategy| rank_source(strategy, &stats, 50));
        assert_eq!(ranks, [2.0, 2.0, 7.0, 0.5, -100.0, -10.0, 1_000.0, 10.0, 15.0, 20.0]);
        let unmeasured = SourceStats { throughput: 0.0, file_throughput: 0.0, ..stats };
        assert_eq!(rank_source(Strategy::Duration, &unmeasured, 50), f64::NEG_INFINITY);
    }

    proptest! {
        #[test]
        fn every_rank_can_be_compared(files in any::<u32>(), bytes in any::<u64>(), failed in 0.0..=1.0f64,
            rate in 0.0..1e15f64, size in any::<u64>()) {
            let stats = SourceStats { position: 0, files_waiting: files, bytes_waiting: bytes,
                failure_share: failed, throughput: rate, file_throughput: rate / 3.0 };
            for strategy in Strategy::ALL {
                prop_assert!(!rank_source(strategy, &stats, size).is_nan());
            }
        }
    }
}
