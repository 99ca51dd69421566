//! The words in which questions about links are asked and answered.

use longhaul_model::{Blame, StorageId};
use serde::{Deserialize, Serialize};

/// From one storage to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Link {
    pub source: StorageId,
    pub target: StorageId,
}

/// A belief about a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// As likely less as more.
    pub bytes_per_s: f64,
    /// One in ten is less.
    pub low: f64,
    /// One in ten is more.
    pub high: f64,
    /// Standard deviation of the logarithm.
    pub spread: f64,
    pub basis: Basis,
}

/// What a choice of a source goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSummary {
    pub bytes_per_s: f64,
    pub basis: Basis,
    pub failure_share: f64,
    /// As last measured; 0 if it has no work.
    pub rate_now: f64,
}

/// What an estimate rests on most, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The link itself.
    Measured,
    /// What the circuit that it goes by was booked for.
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
    /// After "by".
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

/// How an attempt ended, as far as the link is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    Arrived,
    /// Source or network are to blame.
    Failed(Blame),
    /// Cancelled, or somebody else is to blame.
    Void,
}
