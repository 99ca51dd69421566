//! Files of jobs that come from tape or go there.

use std::collections::BTreeMap;

use longhaul_model::{JobId, Timestamp};

use super::jobs::{JobFileRow, JobRow};

/// A file that no bulk has yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagingFile {
    pub file: u64,
    /// The end point of its source.
    pub endpoint: u64,
    pub vo: String,
    /// As whom it is asked for: a token's hash, or a delegation.
    pub requester: String,
    /// It is copied nowhere, but to stay on disk.
    pub pin_only: bool,
}

/// Where a file of a bulk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapeFileState {
    Requested,
    /// And pinned there.
    OnDisk,
    /// It has not come, and need not come any more.
    Abandoned,
    /// It was there, and its copy has ended.
    Consumed,
}

/// A bulk that is to be looked at.
#[derive(Clone, Debug)]
pub struct TapeRequestRow {
    pub id: u64,
    /// None until the tape system has taken it.
    pub base: Option<String>,
    pub request: Option<String>,
    pub made: Timestamp,
    pub tries: u32,
    pub files: Vec<(TapeFileState, JobFileRow)>,
    pub jobs: BTreeMap<JobId, JobRow>,
}

/// What happened to files that come from tape or go there. What does not fit the state of a file leaves it.
#[derive(Clone, Debug)]
pub enum TapeStep {
    /// These are to be asked for together.
    Request {
        endpoint: u64,
        vo: String,
        files: Vec<u64>,
    },
    /// The tape system has taken the bulk.
    Accepted {
        request: u64,
        base: String,
        id: String,
        next: Timestamp,
    },
    /// It is to be looked at then, and a question failed or did not.
    Polled {
        request: u64,
        next: Option<Timestamp>,
        failed: bool,
    },
    /// They are on disk, and their copies may begin; a file that is copied nowhere is done.
    OnDisk {
        request: u64,
        files: Vec<u64>,
    },
    /// They do not come, for these reasons.
    NotStaged {
        files: Vec<(u64, String)>,
    },
    /// They are to be asked for again, by another bulk.
    Restage {
        request: u64,
        files: Vec<u64>,
    },
    /// The tape system holds nothing of them any more on our behalf.
    Released {
        request: u64,
        files: Vec<u64>,
    },
    /// They are on tape.
    Archived {
        files: Vec<u64>,
    },
    NotArchived {
        files: Vec<(u64, String)>,
    },
    /// They are not on tape yet.
    ArchivePending {
        files: Vec<u64>,
        next: Timestamp,
    },
}
