//! Progress of a copy: updated by the copying threads, read by whatever displays it.

use std::sync::Arc;

use longhaul_model::{Fault, Timestamp, Verification};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::rules::SkipReason;

/// Failed files listed by name; more are only counted.
pub const FAILED_FILES_LISTED_MAX: usize = 100;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Files found so far that are to be copied, and their bytes.
    pub files: u64,
    pub bytes: u64,
    /// The listing is complete, so `files` and `bytes` are final.
    pub listed: bool,
    pub files_done: u64,
    pub bytes_done: u64,
    /// The part of `bytes_done` that an earlier try or command had transferred.
    pub bytes_resumed: u64,
    /// Bytes written of files that are running.
    pub bytes_running: u64,
    /// Payload that crossed the network, or was copied within this host, by this command, including failed
    /// and resent bytes.
    pub bytes_moved: u64,
    /// Already equal at the target, or newer there.
    pub files_skipped: u64,
    pub bytes_skipped: u64,
    pub files_failed: u64,
    pub directories: u64,
    /// Neither file nor directory, or with an invalid name; `excluded` counts what filters excluded.
    pub left_out: u64,
    pub excluded: u64,
    pub retries: u64,
    pub bytes_resent: u64,
    /// Finished files by kind of verification.
    pub verified_wire: u64,
    pub verified_end_to_end: u64,
    pub verified_readback: u64,
    /// Copied within this host without a digest: cloned, or copied by the kernel.
    pub verified_local: u64,
}

impl Totals {
    pub fn verified(&mut self, how: Verification) {
        match how {
            Verification::Wire => self.verified_wire += 1,
            Verification::EndToEnd => self.verified_end_to_end += 1,
            Verification::Readback => self.verified_readback += 1,
        }
    }

    /// The totals of two consecutive copies.
    pub fn plus(&self, other: &Totals) -> Totals {
        Totals {
            files: self.files + other.files,
            bytes: self.bytes + other.bytes,
            listed: other.listed,
            files_done: self.files_done + other.files_done,
            bytes_done: self.bytes_done + other.bytes_done,
            bytes_resumed: self.bytes_resumed + other.bytes_resumed,
            bytes_running: other.bytes_running,
            bytes_moved: self.bytes_moved + other.bytes_moved,
            files_skipped: self.files_skipped + other.files_skipped,
            bytes_skipped: self.bytes_skipped + other.bytes_skipped,
            files_failed: self.files_failed + other.files_failed,
            directories: self.directories + other.directories,
            left_out: self.left_out + other.left_out,
            excluded: self.excluded + other.excluded,
            retries: self.retries + other.retries,
            bytes_resent: self.bytes_resent + other.bytes_resent,
            verified_wire: self.verified_wire + other.verified_wire,
            verified_end_to_end: self.verified_end_to_end + other.verified_end_to_end,
            verified_readback: self.verified_readback + other.verified_readback,
            verified_local: self.verified_local + other.verified_local,
        }
    }
}

/// What happened to one file, for reports and `--dry-run`. Also sent by a server that copies on a client's
/// order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Done {
        verification: Verification,
    },
    Skipped(SkipReason),
    /// What a dry run would do.
    WouldCopy {
        replaces: bool,
    },
    Failed(Fault),
    LeftOut(String),
}

/// A range with wrong bytes, which was fetched again from another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrongRange {
    pub offset: u64,
    pub bytes: u64,
}

/// What one of several servers contributed to a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaShare {
    /// The server's URL without the secret.
    pub replica: String,
    /// Correct bytes from this server.
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<WrongRange>,
    /// Why the server was dropped for this file, or what else is wrong with its copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

impl ReplicaShare {
    pub(crate) fn empty(replica: &str) -> ReplicaShare {
        ReplicaShare { replica: replica.to_owned(), ..ReplicaShare::default() }
    }

    pub(crate) fn new(replica: &str, share: &longhaul_engine::SourceShare) -> ReplicaShare {
        let wrong = share.wrong.iter().map(|&(offset, bytes)| WrongRange { offset, bytes });
        ReplicaShare {
            replica: replica.to_owned(),
            bytes: share.bytes,
            wrong: wrong.collect(),
            fault: share.excluded.clone(),
        }
    }
}

/// What one of several servers contributed to all files.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReplicaTotals {
    pub replica: String,
    pub bytes: u64,
    pub wrong_ranges: u64,
    pub wrong_bytes: u64,
    /// Files with a fault at this server.
    pub files_faulty: u64,
    /// The first of these faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileOutcome {
    /// The source, without secrets.
    pub source: String,
    /// The target, relative to the root of the copy.
    pub target: String,
    pub size: u64,
    pub outcome: Outcome,
    /// Shares of the servers, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaShare>,
}

/// One step of a circuit's life, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CircuitNote {
    pub at: Timestamp,
    pub words: String,
}

/// Notes kept, the first ones: a circuit that comes and goes all day must not fill the memory.
const CIRCUIT_NOTES_MAX: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct CircuitLog {
    notes: Mutex<Vec<CircuitNote>>,
}

impl CircuitLog {
    pub(crate) fn record(&self, words: String) {
        let mut notes = self.notes.lock();
        if notes.len() < CIRCUIT_NOTES_MAX {
            notes.push(CircuitNote { at: clock::now(), words });
        }
    }

    fn last(&self) -> String {
        self.notes.lock().last().map_or(String::new(), |note| note.words.clone())
    }
}

/// Called for each file, from the copying thread.
pub type FileCallback<'a> = &'a mut dyn FnMut(&FileOutcome);

#[derive(Debug, Default)]
pub struct Progress {
    totals: Mutex<Totals>,
    failed: Mutex<Vec<(String, Fault)>>,
    replicas: Mutex<Vec<ReplicaTotals>>,
    /// What was done about a circuit, and when.
    circuit: Arc<CircuitLog>,
    /// What limits the copy, or what it waits for.
    note: Mutex<String>,
}

impl Progress {
    pub fn totals(&self) -> Totals {
        self.totals.lock().clone()
    }

    pub fn change(&self, change: impl FnOnce(&mut Totals)) {
        change(&mut self.totals.lock());
    }

    pub fn fail(&self, path: &str, fault: &Fault) {
        self.change(|totals| totals.files_failed += 1);
        let mut failed = self.failed.lock();
        if failed.len() < FAILED_FILES_LISTED_MAX {
            failed.push((path.to_owned(), fault.clone()));
        }
    }

    pub fn failed(&self) -> Vec<(String, Fault)> {
        self.failed.lock().clone()
    }

    /// Adds what a server contributed to a file.
    pub fn add_share(&self, share: &ReplicaShare) {
        let mut all = self.replicas.lock();
        let known = all.iter().position(|known| known.replica == share.replica);
        let place = known.unwrap_or_else(|| {
            all.push(ReplicaTotals { replica: share.replica.clone(), ..ReplicaTotals::default() });
            all.len() - 1
        });
        let totals = &mut all[place];
        totals.bytes += share.bytes;
        totals.wrong_ranges += share.wrong.len() as u64;
        totals.wrong_bytes += share.wrong.iter().map(|range| range.bytes).sum::<u64>();
        totals.files_faulty += u64::from(share.fault.is_some());
        totals.fault = totals.fault.take().or_else(|| share.fault.clone());
    }

    /// Contributions of the servers, if there were several.
    pub fn replicas(&self) -> Vec<ReplicaTotals> {
        self.replicas.lock().clone()
    }

    /// Replaces the counts by those of another process.
    pub fn set(&self, totals: Totals, failed: Vec<(String, Fault)>) {
        *self.totals.lock() = totals;
        *self.failed.lock() = failed;
    }

    /// Restarts counting after the connection broke: finished files will be found at the target.
    pub fn restart(&self, before: Totals, failed: Vec<(String, Fault)>) {
        let now = self.totals();
        let (retries, bytes_resent, bytes_moved) = (now.retries + 1, now.bytes_resent, now.bytes_moved);
        self.set(Totals { retries, bytes_resent, bytes_moved, ..before }, failed);
    }

    pub fn note(&self) -> String {
        let note = self.note.lock().clone();
        if note.is_empty() { self.circuit.last() } else { note }
    }

    /// The log for the circuit's keeper, which may outlive the copy.
    pub(crate) fn circuit_log(&self) -> Arc<CircuitLog> {
        self.circuit.clone()
    }

    /// Circuit notes in order.
    pub fn circuit_notes(&self) -> Vec<CircuitNote> {
        self.circuit.notes.lock().clone()
    }

    pub fn set_note(&self, note: impl Into<String>) {
        *self.note.lock() = note.into();
    }
}
