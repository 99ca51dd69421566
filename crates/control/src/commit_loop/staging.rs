//! Files from tape for subscriptions: orders to the agents of tape-backed storages, and what they report.

use std::collections::BTreeSet;

use longhaul_api::agent::{StageOrder, StageRelease, StageReport};
use longhaul_api::native::ChangeKind;
use longhaul_catalog::{CatalogError, ReportedOutcome, TransferUpdate};
use longhaul_model::{AgentId, BlockId, FaultCode, FileId, StorageId, StorageKind, TransferState};
use longhaul_scheduler::Event;

use super::CommitLoop;
use crate::brain::Input;
use crate::staging::queue::{Releases, StageBatch, TapeFile};

impl CommitLoop {
    /// Gives the orders that are due, and takes back what hangs.
    pub(super) fn stage_files(&self) {
        let (now, directory) = (self.kernel.now(), self.kernel.directory());
        let mut events = Vec::new();
        for storage in self.control.staging.storages() {
            if !directory.storages.contains_key(&storage) {
                self.control.staging.forget_storage(storage);
                continue;
            }
            let agent = self.control.agents.of_storage(storage);
            let is_connected = agent.is_some_and(|agent| self.control.agents.is_connected(agent, now));
            let new_order = || self.kernel.new_id();
            let news = self.control.staging.step(storage, is_connected, now, new_order);
            events.extend(news.unpinned.into_iter().map(|file| Event::ReplicaLost { file, storage }));
            // A release waits for an agent that is away: it may be back before its pins end.
            if let Some(agent) = agent {
                self.release(agent, storage, news.releases);
                self.order(agent, storage, news.orders);
            }
        }
        if !events.is_empty() {
            self.kernel.notify_scheduler(Input::Events(events));
        }
    }

    /// Demands may end in many ways: whatever the way, tapes are asked for nothing more.
    pub(super) fn drop_unwanted_stages(&self) {
        for storage in self.control.staging.storages() {
            if let Err(error) = self.drop_unwanted(storage) {
                tracing::warn!(%error, "cannot look up what is still wanted from tape");
            }
        }
    }

    fn drop_unwanted(&self, storage: StorageId) -> Result<(), CatalogError> {
        for (block, target) in self.control.staging.demands(storage) {
            if !self.kernel.catalog.is_wanted_at(block, target)? {
                let releases = self.control.staging.demand_gone(storage, block, target);
                if let Some(agent) = self.control.agents.of_storage(storage) {
                    self.release(agent, storage, releases);
                }
            }
        }
        Ok(())
    }

    /// An agent begins a session: it learns which of its orders go on.
    pub(super) fn repeat_stage_orders(&self, agent: AgentId, storages: &[StorageId]) {
        for &storage in storages {
            self.order(agent, storage, self.control.staging.orders(storage));
        }
    }

    /// What agents say of files that were to come from tape.
    pub(super) fn take_staged(&self, agent: AgentId, reports: &[StageReport]) {
        if reports.is_empty() {
            return;
        }
        let (now, directory) = (self.kernel.now(), self.kernel.directory());
        let (mut events, mut demands) = (Vec::new(), BTreeSet::<(BlockId, StorageId)>::new());
        for report in reports {
            let Some(storage) = directory.storage(report.storage.as_str()).map(|row| row.id) else {
                continue;
            };
            if self.control.agents.of_storage(storage) != Some(agent) {
                continue;
            }
            let StageReport { order, lfn, why_not, .. } = report;
            match self.control.staging.note_report(storage, *order, lfn, why_not.as_deref(), now) {
                Ok(Some(staged)) => {
                    events.push(Event::ReplicaAdded { file: staged.file, storage });
                    demands.extend(staged.targets.iter().map(|&target| (staged.block, target)));
                }
                Ok(None) => {
                    if let Some(why) = why_not {
                        tracing::warn!(storage = %report.storage, %lfn, why, "a file does not come from \
                            tape");
                    }
                }
                Err(_) => {
                    let release = Releases::from([(*order, vec![lfn.clone()])]);
                    self.release(agent, storage, release);
                }
            }
        }
        events.extend(demands.iter().map(|&(block, target)| Event::FilesReadable { block, target }));
        self.kernel.notify_scheduler(Input::Events(events));
        self.kernel.changes.touch(ChangeKind::Status, "", now);
    }

    /// What the end of an attempt means for what lies on tape: a file that is at its target need not be kept
    /// on disk for it, and one that was not on disk has to be brought first. Returns what the scheduler is to
    /// learn after the outcome.
    pub(super) fn stage_after(&self, reported: &ReportedOutcome, transfer: &TransferUpdate) -> Option<Event> {
        if transfer.state == TransferState::Done {
            self.release_arrived(transfer.file, transfer.target);
            return None;
        }
        let on_tape = transfer.fault.as_ref().is_some_and(|fault| fault.code == FaultCode::OnTape);
        let directory = self.kernel.directory();
        let source = directory.storages.get(&transfer.source);
        if !on_tape || source.is_none_or(|source| source.kind != StorageKind::Tape) {
            return None;
        }
        let lfn = self.control.live.lfn_of(reported.attempt)?;
        let file = TapeFile { file: transfer.file, block: transfer.block, lfn, size: transfer.size };
        let now = self.kernel.now();
        self.control.staging.note_not_on_disk(transfer.source, file, transfer.target, now);
        Some(Event::ReplicaLost { file: transfer.file, storage: transfer.source })
    }

    fn release_arrived(&self, file: FileId, target: StorageId) {
        for (storage, order, lfn) in self.control.staging.note_arrived(file, target) {
            self.kernel.notify_scheduler(Input::Events(vec![Event::ReplicaLost { file, storage }]));
            if let Some(agent) = self.control.agents.of_storage(storage) {
                self.release(agent, storage, Releases::from([(order, vec![lfn])]));
            }
        }
    }

    fn order(&self, agent: AgentId, storage: StorageId, batches: Vec<StageBatch>) {
        let Some(name) = self.storage_name(storage).filter(|_| !batches.is_empty()) else { return };
        let files: usize = batches.iter().map(|batch| batch.lfns.len()).sum();
        tracing::info!(storage = %name, files, orders = batches.len(), "files are to come from tape");
        let order = |StageBatch { order, lfns }| StageOrder {
            storage: name.clone(),
            order,
            lfns,
            pin_s: self.control.staging.pin_s(),
        };
        self.control.agents.put_stages(agent, batches.into_iter().map(order).collect());
    }

    fn release(&self, agent: AgentId, storage: StorageId, releases: Releases) {
        let Some(name) = self.storage_name(storage).filter(|_| !releases.is_empty()) else { return };
        let release = |(order, lfns)| StageRelease { storage: name.clone(), order, lfns };
        self.control.agents.put_releases(agent, releases.into_iter().map(release).collect());
    }
}
