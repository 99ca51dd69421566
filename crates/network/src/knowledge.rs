use longhaul_model::{StorageId, Timestamp};
use serde::{Deserialize, Serialize};

/// From one storage to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Link {
    pub source: StorageId,
    pub target: StorageId,
}

/// A belief about a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// As likely less as more.
    pub bytes_per_s: f64,
    /// One in ten is less.
    pub low: f64,
    /// One in ten is more.
    pub high: f64,
    pub basis: Basis,
}

/// What an estimate rests on, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    Measured,
    Endpoints,
    AllLinks,
    Assumed,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Knowledge {}

#[allow(clippy::todo)]
impl Knowledge {
    pub fn rate(&self, link: Link, now: Timestamp) -> Estimate {
        let _ = (link, now);
        todo!()
    }
}
