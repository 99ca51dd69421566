//! Job files that are staged from tape or archived to it.

use std::collections::BTreeMap;

use longhaul_model::{JobId, Timestamp};

use super::jobs::{JobFileRow, JobRow};

/// A file that waits for staging and is in no bulk request yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagingFile {
    pub file: u64,
    /// The end point of its source.
    pub endpoint: u64,
    pub vo: String,
    /// The credential that requests it: a token's hash, or a delegation.
    pub requester: String,
    /// It is only staged and pinned, not copied.
    pub pin_only: bool,
}

/// The state of a file in a bulk request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapeFileState {
    Requested,
    /// Staged and pinned.
    OnDisk,
    /// Not staged yet, and no longer wanted.
    Abandoned,
    /// Staged, and its copy has ended.
    Consumed,
}

/// A bulk request that is due for a poll.
#[derive(Clone, Debug)]
pub struct TapeRequestRow {
    pub id: u64,
    /// The tape system's base URL; none until it has accepted the request.
    pub base: Option<String>,
    pub request: Option<String>,
    pub made: Timestamp,
    pub tries: u32,
    pub files: Vec<(TapeFileState, JobFileRow)>,
    pub jobs: BTreeMap<JobId, JobRow>,
}

/// A step of staging or archiving. A step that does not fit a file's state leaves the file alone.
#[derive(Clone, Debug)]
pub enum TapeStep {
    /// Request these files together.
    Request {
        endpoint: u64,
        vo: String,
        files: Vec<u64>,
    },
    /// The tape system has accepted the bulk request.
    Accepted {
        request: u64,
        base: String,
        id: String,
        next: Timestamp,
    },
    /// The bulk request was polled: when to poll next, and whether this poll failed.
    Polled {
        request: u64,
        next: Option<Timestamp>,
        failed: bool,
    },
    /// The files are on disk, and their copies may begin; a file that is only staged is done.
    OnDisk {
        request: u64,
        files: Vec<u64>,
    },
    /// The files were not staged, for these reasons.
    NotStaged {
        files: Vec<(u64, String)>,
    },
    /// Request the files again, in another bulk request.
    Restage {
        request: u64,
        files: Vec<u64>,
    },
    /// The tape system no longer pins the files for us.
    Released {
        request: u64,
        files: Vec<u64>,
    },
    /// The files are on tape.
    Archived {
        files: Vec<u64>,
    },
    NotArchived {
        files: Vec<(u64, String)>,
    },
    /// The files are not on tape yet.
    ArchivePending {
        files: Vec<u64>,
        next: Timestamp,
    },
}
