//! Settings: every number that shapes decisions, with its reason. One value per service.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::strategy::Strategy;

/// Sources remembered per transfer: more replicas than this add no speed and cost memory.
pub const SOURCES_MAX: usize = 8;
/// Candidates kept with each choice.
pub const CANDIDATES_MAX: usize = SOURCES_MAX;
/// Reasons listed by an outlook: more than a person reads.
pub const REASONS_MAX: usize = 6;

/// A subscription is due after this many times its own transfer time: so long may it wait behind smaller
/// ones.
pub const DUE_TIME_FACTOR: f64 = 4.0;

/// By whose rules work is ordered, and how much of it is given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rules {
    /// Shares, priorities without starvation, due times; windows of time.
    #[default]
    Ours,
    /// For comparison: strict priorities, then age; slots per link by FTS3's optimizer, 200 per storage.
    Fts3,
}

/// How long what failed rests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backoff {
    /// By the fault's blame and permanence.
    #[default]
    ByBlame,
    /// For comparison: 45 to 90 minutes whatever the cause, as PhEDEx has it.
    Legacy,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How sources are chosen where a demand does not say.
    pub strategy: Strategy,
    pub rules: Rules,
    pub backoff: Backoff,
    /// Transfers of one target exist for this much work at its present rate.
    pub horizon: Duration,
    /// Most files in the horizon of one target.
    pub horizon_files: u32,
    /// Fewest files in the horizon of one target, however slow it is.
    pub horizon_files_min: u32,
    /// A priority that others crowd out still has this many in memory, so that its turn finds work.
    pub reserve_files: u32,
    /// One [`crate::Decision::Expand`] asks for no more than this: the answer is one event.
    pub expand_files: u32,

    /// An agent holds leases for this much work at its measured rate.
    pub lease_window: Duration,
    /// Part of it that is filled even with files that a nearer target is fetching just now: covers the round
    /// trip agent – service – agent with its commits, so that the wire never runs dry.
    pub lease_window_low: Duration,
    /// Bytes leased at least, and before there is a measurement: 100 ms of 1.28 GB/s.
    pub lease_bytes_min: u64,
    /// Files leased at least, and before there is a measurement: 100 ms of 10,000 files/s.
    pub lease_files_min: u32,
    /// Files leased at most, however fast the target is: what an agent journals, and what a restart must
    /// adopt.
    pub lease_files_max: u32,
    /// Files of a link that may be leased whatever their size, so that large ones overlap at their ends; more
    /// where more are found to pay, see `concurrency`.
    pub lease_files_always: u32,
    /// A target with fewer files than this arriving within the window has room for more, whatever their size,
    /// so that large files use all links that have some.
    pub lease_files_coming: u32,
    /// Files that a target may have leased over all links, weighed by the limits of the links; more where
    /// more
    /// are found to pay.
    pub target_files_always: u32,
    /// That many are enough only if they are at least this much work.
    pub target_window: Duration,
    /// Lease recall: leases that wait behind a link that became slow are recalled where another source is
    /// much
    /// sooner. Off by default: a link that gets no more work is measured less, and its change is noticed
    /// later.
    #[serde(rename = "second_thoughts")]
    pub lease_recall: bool,
    /// An attempt not begun after this long must not begin.
    pub lease_length: Duration,

    /// Parties whose sources are busy can catch up later on their shares of this much of the target's time,
    /// and
    /// on little more of a longer wait.
    pub share_claim: Duration,
    /// A subscription is due after the time in which its bytes would arrive at this rate, times
    /// [`DUE_TIME_FACTOR`].
    pub nominal_bytes_per_s: f64,
    /// A subscription is due no later than this after its creation: small ones go before large ones, but age
    /// counts in the end.
    #[serde(rename = "patience_max")]
    pub due_delay_max: Duration,
    /// One part in so many of an activity's bytes goes to lower priorities than the highest that waits.
    pub relief: u32,
    /// Tries after which even a fault that retries at once is retried at the slowest pace only.
    pub tries_until_slow: u32,
    /// Consecutive failures to reach a source after which a link to it is only probed.
    pub unreachable_link: u32,
    /// The same for all links of a source together.
    pub unreachable_source: u32,
    /// Delay until a failed expansion, or one of a block that seemed complete and is not, is repeated.
    #[serde(rename = "expand_again")]
    pub expand_retry_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            strategy: Strategy::Best,
            rules: Rules::Ours,
            backoff: Backoff::ByBlame,
            horizon: Duration::from_secs(600),
            horizon_files: 4_000,
            horizon_files_min: 1_000,
            reserve_files: 100,
            expand_files: 4_000,
            lease_window: Duration::from_secs(3),
            lease_window_low: Duration::from_millis(300),
            lease_bytes_min: 128_000_000,
            lease_files_min: 1_000,
            lease_files_max: 4_000,
            lease_files_always: 2,
            lease_files_coming: 8,
            target_files_always: 6,
            target_window: Duration::from_secs(1),
            lease_recall: false,
            lease_length: Duration::from_secs(600),
            share_claim: Duration::from_secs(60),
            nominal_bytes_per_s: 250e6,
            due_delay_max: Duration::from_secs(24 * 3600),
            relief: 16,
            tries_until_slow: 20,
            unreachable_link: 3,
            unreachable_source: 8,
            expand_retry_delay: Duration::from_secs(30),
        }
    }
}
