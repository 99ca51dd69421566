//! One storage as a target: its journal, queues and threads.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use longhaul_model::hex;
use longhaul_model::{AgentId, Fault, NameRules, StorageName, Timestamp};
use longhaul_storage::{Storage, TempName};
use longhaul_wire::FileKey;
use longhaul_wire::journal::Record;
use parking_lot::Mutex;

use super::group_commit::CommitItem;
use super::job::{AttemptGuard, Job};
use super::journal::JournalFile;
use super::prepare::AcceptedBatch;
use crate::device::Device;
use crate::queue::Queue;

/// Small files waiting for a commit beyond the current group. Backpressure: then writers block.
const COMMIT_QUEUE_FILES_MAX: usize = 3_000;
/// An entry that no attempt has resumed is abandoned after this.
const RESUME_ENTRY_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);

/// One of the disks of a target. The first one stands for the whole of it.
pub(super) struct TargetDisk {
    pub(super) device: Arc<Device>,
    /// Large files to flush or commit. Bounded by the leases.
    pub(super) large_tasks: Queue<super::large_files::LargeFileTask>,
}

/// A storage that files are fetched into.
pub(crate) struct Target {
    pub(super) agent: AgentId,
    pub(super) lane: u16,
    pub(super) storage: Arc<dyn Storage>,
    pub(super) device: Arc<Device>,
    pub(super) rules: NameRules,
    pub(super) journal: JournalFile,
    /// Bounded by the leases.
    pub(super) to_prepare: Queue<AcceptedBatch>,
    pub(super) to_commit: Queue<CommitItem>,
    /// The storage itself, then its pools, if it has any.
    pub(super) disks: Vec<TargetDisk>,
    /// Large files with unflushed bytes, and since when.
    pub(super) unflushed: Mutex<Vec<(Weak<Job>, Duration)>>,
    /// Files whose repair from the chunks of their damaged copy failed: they are fetched whole.
    pub(super) distrusted_copies: Mutex<BTreeSet<FileKey>>,
}

impl Target {
    pub(crate) fn new(
        agent: AgentId,
        lane: u16,
        storage: Arc<dyn Storage>,
        device: Arc<Device>,
        pools: Vec<Arc<Device>>,
        rules: NameRules,
        journal: JournalFile,
    ) -> Target {
        let disk = |device| TargetDisk { device, large_tasks: Queue::new(usize::MAX) };
        Target {
            agent,
            lane,
            storage,
            disks: std::iter::once(device.clone()).chain(pools).map(disk).collect(),
            device,
            rules,
            journal,
            to_prepare: Queue::new(usize::MAX),
            to_commit: Queue::new(COMMIT_QUEUE_FILES_MAX),
            unflushed: Mutex::default(),
            distrusted_copies: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &StorageName {
        self.storage.name()
    }

    /// Whether files have to be written sequentially.
    pub(super) fn is_append_only(&self) -> bool {
        !self.storage.capabilities().random_write
    }

    /// Whether files lie on several disks.
    pub(super) fn has_pools(&self) -> bool {
        self.disks.len() > 1
    }

    /// Decides on which disk files will lie of which the first bytes have come, all on one. Never blocks on a
    /// disk.
    pub(super) fn place(&self, arrived: &[(Arc<Job>, u64)]) {
        if !self.has_pools() {
            return;
        }
        let new: Vec<&Arc<Job>> =
            arrived.iter().map(|(job, _)| job).filter(|job| job.needs_place()).collect();
        if new.is_empty() {
            return;
        }
        let files: Vec<(&TempName, u64)> = new.iter().map(|job| (&job.temp, job.file.size)).collect();
        let Some(placement) = self.storage.place(&files).map(Arc::new) else { return };
        let number = self.disks.iter().skip(1).position(|disk| disk.device.is_numbered(placement.device));
        let disk = number.map_or(0, |number| number + 1);
        new.iter().for_each(|job| job.set_place(disk, placement.clone()));
    }

    pub(crate) fn enqueue(&self, batch: AcceptedBatch) {
        self.to_prepare.push(batch);
    }

    /// On start: removes temporary files without a journal entry, and entries without a temporary file or too
    /// old.
    pub(crate) fn clean_up_leftovers(&self, now: Timestamp) -> Result<(), Fault> {
        if !self.storage.capabilities().writable {
            return Ok(());
        }
        let entries = self.journal.entries();
        let name_of = |key: &FileKey| TempName::from_bytes(key.temporary_name(self.agent.0));
        let present = self.storage.temps()?;
        let mut kept = BTreeSet::new();
        let mut closed = Vec::new();
        for (key, entry) in entries {
            let temp = name_of(&key);
            if now.since(entry.opened.at) < RESUME_ENTRY_TTL && present.contains(&temp) {
                kept.insert(temp);
            } else {
                closed.push(Record::Closed { key });
            }
        }
        // Agents may share a storage: leave the files of others alone.
        let mark = hex::encode(&FileKey::temporary_prefix(self.agent.0));
        let orphan = |temp: &TempName| !kept.contains(temp) && temp.as_str().starts_with(&mark);
        let orphans: Vec<TempName> = present.into_iter().filter(orphan).collect();
        tracing::info!(
            storage = %self.storage.name(), kept = kept.len(), orphans = orphans.len(), "leftovers of \
                earlier \
                attempts left"
        );
        for temp in orphans {
            self.storage.remove_temp(&temp)?;
        }
        self.journal.append(&closed)
    }

    /// Removes a temporary file in the committing thread.
    pub(super) fn schedule_cleanup(&self, temp: TempName, key: FileKey, farewell: AttemptGuard) {
        // Called wherever the last reference is dropped: it must not block, except at the engine's end.
        if let Some(CommitItem::CleanUp { temp, key, guard: farewell }) =
            self.to_commit.push(CommitItem::CleanUp { temp, key, guard: farewell })
        {
            self.remove_temp(&temp, key);
            drop(farewell);
        }
    }

    pub(super) fn remove_temp(&self, temp: &TempName, key: FileKey) {
        if let Err(fault) = self.storage.remove_temp(temp) {
            tracing::warn!(%temp, fault = %fault.chain(), "a temporary file could not be removed");
        }
        if let Err(fault) = self.journal.append(&[Record::Closed { key }]) {
            tracing::warn!(fault = %fault.chain(), "the journal could not be written");
        }
    }

    pub(crate) fn stop(&self) {
        self.to_prepare.close();
        // Remove unneeded files now: nobody would ask for it after the next start.
        for ready in self.to_commit.close() {
            if let CommitItem::CleanUp { temp, key, .. } = ready {
                self.remove_temp(&temp, key);
            }
        }
        self.disks.iter().for_each(|disk| {
            disk.large_tasks.close();
        });
    }
}
