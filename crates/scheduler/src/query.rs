//! Answers to questions about the present state.

use longhaul_model::{AttemptId, FileId, StorageId, Timestamp, TransferId};

/// When the rest of a subscription will be there, or why nobody can say; and what holds it up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    pub median: Option<Timestamp>,
    /// Nine in ten are earlier.
    pub ninety: Option<Timestamp>,
    pub why_none: Option<String>,
    /// In words, most important first; at most [`crate::settings::REASONS_MAX`].
    pub held_up_by: Vec<String>,
}

/// One link as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkNow {
    pub source: StorageId,
    pub target: StorageId,
    pub leased_files: u32,
    pub leased_bytes: u64,
    /// So many large files it may have at once, and why.
    pub at_once: u32,
    pub at_once_why: String,
    /// Measured lately; 0 when nothing is leased.
    pub rate_now: f64,
    /// What we expect of it.
    pub rate_expected: f64,
    pub failure_share: f64,
}

/// One transfer held in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferNow {
    pub transfer: TransferId,
    pub file: FileId,
    pub target: StorageId,
    pub size: u64,
    pub attempts: u32,
    pub leased: Option<LeasedNow>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeasedNow {
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
    pub resting: u64,
    /// Have no usable source.
    pub parked: u64,
    pub leased: u64,
    pub started: u64,
    pub queued_bytes: u64,
    /// Of leased files, what has not arrived.
    pub leased_bytes: u64,
}
