//! What changed in the network: noticed, located as far as the other links tell, and put into words.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_model::{Timestamp, units};
use serde::{Deserialize, Serialize};

use crate::knowledge::Link;
use crate::observation::PathSelector;
use crate::topology::Locality;

/// Changes remembered.
const CHANGES_MAX: usize = 256;
/// Changes within this time may have one cause.
pub(crate) const COMMON_CAUSE_WINDOW: Duration = Duration::from_secs(2 * 3_600);

/// What a change was noticed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeScope {
    Link(Link),
    Path {
        source: Locality,
        target: Locality,
        #[serde(rename = "way")]
        path: PathSelector,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "of")]
pub enum Shift {
    Rate {
        before: f64,
        after: f64,
    },
    RoundTrip {
        before_us: f64,
        after_us: f64,
    },
    Loss {
        before: f64,
        after: f64,
    },
    Mtu {
        before: u32,
        after: u32,
        black_hole: bool,
    },
    /// It comes and goes; `with_load` is the correlation with the load we make, if that is known.
    Flapping {
        times: u32,
        with_load: Option<f64>,
    },
}

/// Where the cause lies, by what else changed and what did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "at", content = "hop")]
pub enum CauseLocation {
    /// Most of what leaves the source changed too.
    Source,
    /// Most of what goes to the target changed too.
    Target,
    /// Other links of both ends are as they were.
    Link,
    /// A router that is on the paths that changed and on no other.
    Hop(std::net::IpAddr),
    /// Nothing else was measured since.
    Unknown,
}

/// What it took to notice a change: whether a handful of transfers said so, or hours of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    #[default]
    #[serde(rename = "untold")]
    Unspecified,
    /// Of a link, each over some seconds of its transfers.
    Measurements(u32),
    /// Means of five minutes.
    #[serde(rename = "five-minutes")]
    FiveMinuteMeans(u32),
}

/// One way through the network was replaced by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteChange {
    pub at: Timestamp,
    pub before: u64,
    pub after: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Since when it is so, as far as can be told, and when it was noticed.
    pub from: Timestamp,
    pub noticed: Timestamp,
    pub affected: ChangeScope,
    pub shift: Shift,
    pub rerouted: Option<RouteChange>,
    pub location: CauseLocation,
    #[serde(default)]
    pub evidence: Evidence,
}

impl Change {
    /// One line; the names are those of the ends.
    pub fn describe(&self, source: &str, target: &str) -> String {
        let mut text = match self.shift {
            Shift::Rate { before, after } => {
                let (verb, factor) = if after < before {
                    ("fell", before / after.max(1.0))
                } else {
                    ("rose", after / before.max(1.0))
                };
                let (before, after) = (units::rate(before), units::rate(after));
                format!("rate from {source} to {target} {verb} {factor:.1}-fold, from {before} to {after}")
            }
            Shift::RoundTrip { before_us, after_us } => format!(
                "round trip from {source} to {target} went from {:.1} ms to {:.1} ms",
                before_us / 1e3,
                after_us / 1e3
            ),
            Shift::Loss { before, after } => {
                format!("loss from {source} to {target} went from {before:.1e} to {after:.1e}")
            }
            Shift::Mtu { before, after, black_hole } => {
                let what = if black_hole { "; larger packets vanish without a word" } else { "" };
                format!("largest packet from {source} to {target} went from {before} to {after} bytes{what}")
            }
            Shift::Flapping { times, with_load } => {
                let load = match with_load {
                    Some(with_load) if with_load > 0.5 => ", mostly while we load it",
                    Some(_) => ", whatever the load",
                    None => "",
                };
                format!("the path from {source} to {target} came or went {times} times in a few hours{load}")
            }
        };
        match self.evidence {
            Evidence::Unspecified => {}
            Evidence::Measurements(1) => text.push_str(", by 1 measurement"),
            Evidence::Measurements(count) => text.push_str(&format!(", by {count} measurements")),
            Evidence::FiveMinuteMeans(count) => {
                text.push_str(&format!(", by the means of {} minutes", u64::from(count) * 5));
            }
        }
        if let Some(rerouted) = self.rerouted {
            text.push_str(&format!("; its route changed at {}", rerouted.at));
        }
        match self.location {
            CauseLocation::Source => {
                text.push_str(&format!("; the same holds for most of what leaves {source}"))
            }
            CauseLocation::Target => {
                text.push_str(&format!("; the same holds for most of what goes to {target}"))
            }
            CauseLocation::Link => text.push_str("; other links of both are as they were"),
            CauseLocation::Hop(hop) => {
                text.push_str(&format!("; what changed has the router {hop} in common"))
            }
            CauseLocation::Unknown => {}
        }
        text
    }

    /// In one word, for labels.
    pub fn kind(&self) -> &'static str {
        match self.shift {
            Shift::Rate { .. } => "rate",
            Shift::RoundTrip { .. } => "round-trip",
            Shift::Loss { .. } => "loss",
            Shift::Mtu { .. } => "mtu",
            Shift::Flapping { .. } => "flapping",
        }
    }

    /// Whether it is a change for the worse.
    pub fn is_worse(&self) -> bool {
        match self.shift {
            Shift::Rate { before, after } => after < before,
            Shift::RoundTrip { before_us, after_us } => after_us > before_us,
            Shift::Loss { before, after } => after > before,
            Shift::Mtu { before, after, .. } => after < before,
            Shift::Flapping { .. } => true,
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        let fine = |value: f64| value.is_finite() && value >= 0.0;
        match self.shift {
            Shift::Rate { before, after } | Shift::Loss { before, after } => fine(before) && fine(after),
            Shift::RoundTrip { before_us, after_us } => fine(before_us) && fine(after_us),
            Shift::Flapping { with_load, .. } => with_load.is_none_or(f64::is_finite),
            Shift::Mtu { .. } => true,
        }
    }
}

/// The last ones, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangeLog {
    list: VecDeque<Change>,
    /// Of this run, those that are not remembered any more with them.
    #[serde(skip)]
    count_since_start: u64,
}

impl ChangeLog {
    pub(crate) fn push(&mut self, change: Change) {
        if self.list.len() >= CHANGES_MAX {
            self.list.pop_front();
        }
        self.list.push_back(change);
        self.count_since_start += 1;
    }

    pub(crate) fn count_since_start(&self) -> u64 {
        self.count_since_start
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.list.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Change> {
        self.list.iter_mut()
    }

    pub(crate) fn sanitized(mut self) -> Self {
        self.list.retain(Change::is_valid);
        self.list.truncate(CHANGES_MAX);
        self
    }
}
