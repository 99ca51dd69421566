//! Records of the outbox log and their encoding.

use std::io;

use longhaul_api::agent::{AgentSettings, Entry, Fact, LeaseBatch, Task};
use longhaul_model::{AttemptId, Epoch, TaskId, json};
use serde::{Deserialize, Serialize};

/// One line of the log. Externally tagged, so that an unknown kind is an error that names it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    /// First line of a compacted log: the numbers that no other line repeats.
    Head { received: u64, acknowledged: u64, sequence: u64, clock_offset_us: i64 },
    #[serde(rename = "parcel")]
    ReceivedWork(ReceivedWork),
    /// These attempts have begun: an expired lease no longer stops them.
    Begun(Vec<AttemptId>),
    /// These received leases have ended. Written by compaction; otherwise facts and cancellations say it.
    Ended(Vec<AttemptId>),
    /// A fact for the service; an outcome ends its lease, the last fact of a task ends the task.
    Fact(Entry),
    /// The service has everything up to this number.
    Acknowledged(u64),
    /// The site's limits: stored so that what is resumed before the service answers stays within them.
    Settings(AgentSettings),
    /// Offset of the service's clock from this host's.
    ClockOffsetUs(i64),
}

/// The durable part of one reply to a request for work.
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

/// A copy between foreign storages: that it is held, and nothing with which it could be repeated. After a
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

    /// A line with a good checksum that cannot be parsed was written by another version: an error, never cut
    /// off.
    pub(crate) fn decode(payload: &[u8]) -> io::Result<Self> {
        json::from_slice(payload).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a record this version does not understand: {error}"),
            )
        })
    }
}

/// How many of a report's items a fact counts for: the files it tells of.
pub(crate) fn items(fact: &Fact) -> usize {
    match fact {
        Fact::Outcome(_) | Fact::TaskDone { .. } => 1,
        Fact::Scanned { found, left_out, .. } => (found.len() + left_out.len()).max(1),
        Fact::Checked { files, .. } => files.len().max(1),
        Fact::Decided { decisions } => decisions.len().max(1),
    }
}
