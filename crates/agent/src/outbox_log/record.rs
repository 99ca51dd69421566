//! Lines of the ledger: what each says and how it is written.

use std::io;

use longhaul_api::agent::{AgentSettings, Entry, Fact, LeaseBatch, Task};
use longhaul_model::{AttemptId, Epoch, TaskId};
use serde::{Deserialize, Serialize};

/// One line. External tags, so that an unknown kind is an error with its name.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    /// First line of a compacted ledger: the numbers that no other line repeats.
    Head { received: u64, acknowledged: u64, sequence: u64, clock_offset_us: i64 },
    #[serde(rename = "parcel")]
    ReceivedWork(ReceivedWork),
    /// These attempts have begun: an expired lease no longer stops them.
    Begun(Vec<AttemptId>),
    /// These leases of an earlier parcel have ended. Written by compaction; else facts and parcels say it.
    Ended(Vec<AttemptId>),
    /// Something to tell the service; an outcome ends its lease, the last fact of a task ends the task.
    Fact(Entry),
    /// The service has everything up to this number.
    Acknowledged(u64),
    /// What the site allows: kept, so that what is resumed before the service answers stays within it.
    Settings(AgentSettings),
    /// What to add to this host's clock to get the service's.
    ClockOffsetUs(i64),
}

/// What a reply of the service changes for good.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ReceivedWork {
    pub number: u64,
    #[serde(default)]
    pub batches: Vec<LeaseBatch>,
    #[serde(default)]
    pub tasks: Vec<Task>,
    #[serde(default)]
    pub cancel: Vec<AttemptId>,
    #[serde(default)]
    pub cancel_tasks: Vec<TaskId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<HeldCopy>,
}

/// A copy between storages of others: that it was given, and nothing by which it could be made. After a
/// restart it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldCopy {
    pub attempt: AttemptId,
    pub epoch: Epoch,
}

impl ReceivedWork {
    /// Whether it changes nothing but the number.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
            && self.tasks.is_empty()
            && self.cancel.is_empty()
            && self.cancel_tasks.is_empty()
            && self.copies.is_empty()
    }
}

impl Record {
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(io::Error::other)
    }

    /// A line whose checksum is right but that means nothing was written by another version: refused, never
    /// cut.
    pub(crate) fn decode(payload: &[u8]) -> io::Result<Self> {
        serde_json::from_slice(payload).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a record this version does not understand: {error}"),
            )
        })
    }
}

/// How much of a report's limit a fact takes: the files it tells of.
pub(crate) fn items(fact: &Fact) -> usize {
    match fact {
        Fact::Outcome(_) | Fact::TaskDone { .. } => 1,
        Fact::Scanned { found, left_out, .. } => (found.len() + left_out.len()).max(1),
        Fact::Checked { files, .. } => files.len().max(1),
        Fact::Decided { decisions } => decisions.len().max(1),
    }
}
