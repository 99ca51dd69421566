//! Answers to questions about the present state.

use longhaul_model::{AttemptId, FileId, StorageId, Timestamp, TransferId};

use crate::shares::Party;

/// When the rest of a subscription will be there, or why nobody can say; and what holds it up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    pub median: Option<Timestamp>,
    /// Nine in ten are earlier.
    pub ninety: Option<Timestamp>,
    pub why_none: Option<String>,
    /// Its deadline is in danger: it goes before all else of its activity meanwhile.
    pub expedited: bool,
    /// What the rate is expected from, after "by".
    pub rests_on: Option<&'static str>,
    /// In words, most important first; at most [`crate::settings::REASONS_MAX`].
    pub held_up_by: Vec<String>,
    /// Files that the estimate leaves out, since they cannot come now.
    pub stuck: Option<StuckFiles>,
}

/// Files that cannot come until somebody acts, or what is away returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckFiles {
    pub files: u64,
    /// In words, with the number of files of each reason.
    pub why: String,
}

impl Outlook {
    /// How likely all of it is there by `deadline`, as seen at `now`; none without an estimate of all. The
    /// logarithm of the time it takes is taken as normal, as `ninety` is.
    pub fn chance_by(&self, deadline: Timestamp, now: Timestamp) -> Option<f64> {
        if self.stuck.is_some() && deadline > now {
            return None;
        }
        let (median, ninety) = (self.median?, self.ninety?);
        let seconds = |until: Timestamp| until.since(now).as_secs_f64().max(1e-3);
        if deadline <= now {
            return Some(0.0);
        }
        let spread = (seconds(ninety) / seconds(median)).ln() / crate::outlook::NORMAL_QUANTILE_90;
        let off = (seconds(deadline) / seconds(median)).ln();
        Some(normal_cdf(off / spread.max(1e-6)))
    }
}

/// The part of a normal distribution below `x`, to 1e-4 or better: the error function by Abramowitz and
/// Stegun, 7.1.26.
fn normal_cdf(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let terms = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let tail = terms.iter().fold(0.0, |sum, term| (sum + term) * t) * (-z * z).exp() / 2.0;
    if x > 0.0 { 1.0 - tail } else { tail }
}

/// One link as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkStatus {
    pub source: StorageId,
    pub target: StorageId,
    pub leased_files: u32,
    pub leased_bytes: u64,
    /// So many large files it may have at once, and why.
    pub concurrency: u32,
    pub concurrency_reason: String,
    /// Measured lately; 0 when nothing is leased.
    pub rate_now: f64,
    /// What we expect of it.
    pub rate_expected: f64,
    pub failure_share: f64,
}

/// The queue of one link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkBacklog {
    pub source: StorageId,
    /// Leased or not.
    pub bytes: u64,
    /// What it is expected to give without a circuit, in bytes a second.
    pub plain_expected: f64,
}

/// What a target lacks of one party at one priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingBytes {
    pub party: Party,
    /// 1 to 9.
    pub priority: u8,
    pub bytes: u64,
}

/// One transfer held in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferStatus {
    pub transfer: TransferId,
    pub file: FileId,
    pub target: StorageId,
    pub size: u64,
    pub attempts: u32,
    pub leased: Option<LeaseStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeaseStatus {
    pub attempt: AttemptId,
    pub source: StorageId,
    pub started: bool,
    pub bytes_done: u64,
}

/// What is in memory, of all or of one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Could be leased as soon as there is room.
    pub queued: u64,
    /// Wait for the time of the next try.
    pub in_backoff: u64,
    /// Have no usable source.
    pub parked: u64,
    pub leased: u64,
    pub started: u64,
    pub queued_bytes: u64,
    /// Bytes of leased files that have not arrived.
    pub leased_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert, proptest};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    #[test]
    fn the_chance_at_the_median_is_even_and_at_ninety_is_ninety() {
        let outlook = Outlook { median: Some(at(1_000)), ninety: Some(at(1_500)), ..Outlook::default() };
        let chance = |seconds| outlook.chance_by(at(seconds), at(0)).unwrap();
        assert!((chance(1_000) - 0.5).abs() < 1e-3 && (chance(1_500) - 0.9).abs() < 1e-3);
        assert!(chance(100) < 0.001 && chance(10_000) > 0.999);
        assert_eq!(outlook.chance_by(at(-5), at(0)), Some(0.0), "what has passed cannot be kept");
        assert_eq!(Outlook::default().chance_by(at(5), at(0)), None);
    }

    proptest! {
        #[test]
        fn a_later_deadline_is_never_less_likely(median in 0..10_000i64, more in 0..10_000i64,
            one in -100..50_000i64, other in -100..50_000i64) {
            let outlook = Outlook { median: Some(at(median)), ninety: Some(at(median + more)),
                ..Outlook::default() };
            let chance = |seconds| outlook.chance_by(at(seconds), at(0)).unwrap();
            let (low, high) = (chance(one.min(other)), chance(one.max(other)));
            prop_assert!((0.0..=1.0).contains(&low) && low <= high + 1e-6);
        }
    }
}
