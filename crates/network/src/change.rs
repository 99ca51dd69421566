//! Changes of the network: what shifted, where its cause lies, and a sentence for people.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_model::{Timestamp, units};
use serde::{Deserialize, Serialize};

use crate::knowledge::Link;
use crate::observation::PathSelector;
use crate::topology::Locality;

/// Changes remembered.
const CHANGES_MAX: usize = 256;
/// Changes within this time may have a common cause.
pub(crate) const COMMON_CAUSE_WINDOW: Duration = Duration::from_secs(2 * 3_600);

/// The link or path on which a change was detected.
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
    /// The path comes and goes; `with_load` is the correlation with our own load, if known.
    Flapping {
        times: u32,
        with_load: Option<f64>,
    },
}

/// Where the cause of a change lies, inferred from what else changed and what did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "at", content = "hop")]
pub enum CauseLocation {
    /// Most of what leaves the source changed too.
    Source,
    /// Most of what goes to the target changed too.
    Target,
    /// Other links of both ends are unchanged.
    Link,
    /// A router that all changed paths share and no unchanged path has.
    Hop(std::net::IpAddr),
    /// Nothing else was measured since the change.
    Unknown,
}

/// What it took to detect a change: a handful of measurements, or hours of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    #[default]
    #[serde(rename = "untold")]
    Unspecified,
    /// Measurements of a link, each over some seconds of its transfers.
    Measurements(u32),
    /// Five-minute means of a link.
    #[serde(rename = "five-minutes")]
    FiveMinuteMeans(u32),
}

/// One route through the network was replaced by another; `before` and `after` are digests of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteChange {
    pub at: Timestamp,
    pub before: u64,
    pub after: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Estimated time of the change.
    pub from: Timestamp,
    /// When it was detected.
    pub noticed: Timestamp,
    pub affected: ChangeScope,
    pub shift: Shift,
    pub rerouted: Option<RouteChange>,
    pub location: CauseLocation,
    #[serde(default)]
    pub evidence: Evidence,
}

impl Change {
    /// One sentence; `source` and `target` name the ends.
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
            Evidence::Measurements(count) => {
                let measurements = units::plural(count.into(), "measurement", "measurements");
                text.push_str(&format!(", by {measurements}"));
            }
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

    /// One word, for labels.
    pub fn kind(&self) -> &'static str {
        match self.shift {
            Shift::Rate { .. } => "rate",
            Shift::RoundTrip { .. } => "round-trip",
            Shift::Loss { .. } => "loss",
            Shift::Mtu { .. } => "mtu",
            Shift::Flapping { .. } => "flapping",
        }
    }

    /// Whether it is a degradation.
    pub fn is_worse(&self) -> bool {
        match self.shift {
            Shift::Rate { before, after } => after < before,
            Shift::RoundTrip { before_us, after_us } => after_us > before_us,
            Shift::Loss { before, after } => after > before,
            Shift::Mtu { before, after, black_hole } => black_hole || after < before,
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

/// The most recent changes, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangeLog {
    list: VecDeque<Change>,
    /// All changes since the start of the process, those included that are no longer remembered.
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
