//! Types of questions and answers: links, estimates and their basis, ends of attempts.

use longhaul_model::{Blame, StorageId};
use serde::{Deserialize, Serialize};

/// Ordered pair of storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Link {
    pub source: StorageId,
    pub target: StorageId,
}

/// Estimate of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Median.
    pub bytes_per_s: f64,
    /// 10 % quantile.
    pub low: f64,
    /// 90 % quantile.
    pub high: f64,
    /// Standard deviation of log(rate).
    pub spread: f64,
    pub basis: Basis,
}

/// What the selection of a source needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSummary {
    pub bytes_per_s: f64,
    pub basis: Basis,
    pub failure_share: f64,
    /// Last measured goodput; 0 if it has no work.
    pub rate_now: f64,
}

/// What an estimate mainly rests on, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Measurements of the link itself.
    Measured,
    /// The reserved rate of its circuit.
    #[serde(rename = "booked")]
    Reserved,
    /// Tests between its two sites, or other links between them.
    SitePair,
    /// Other links of its source and target.
    Endpoints,
    /// Links between the two regions.
    Regions,
    AllLinks,
    /// Nothing was ever measured.
    Assumed,
}

impl Basis {
    /// Phrase to follow "by".
    pub fn describe(self) -> &'static str {
        match self {
            Basis::Measured => "its own transfers",
            Basis::Reserved => "what its circuit was booked for",
            Basis::SitePair => "tests and transfers between its two sites",
            Basis::Endpoints => "other links of its source and target",
            Basis::Regions => "links between the two regions",
            Basis::AllLinks => "all other links",
            Basis::Assumed => "no measurement at all: an assumption",
        }
    }
}

/// How an attempt ended, as seen by the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    Arrived,
    /// Failed by the fault of the given party.
    Failed(Blame),
    /// Cancelled, or not the link's fault.
    Void,
}
