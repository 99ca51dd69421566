//! What agents report of their tasks: files that a scan found, files checked or deleted, a task's end.

use longhaul_model::{AgentId, Blame, DigestOrigin, Fault, FaultCode, Lfn, StorageId, TaskId, Verification};

use super::ReportApplier;
use super::admission::{admit, fits, site_of, task_subject};
use crate::accusations;
use crate::block_replica::Presence;
use crate::consequences;
use crate::datasets::add_left_out;
use crate::registration::{Evidence, FileRegistrar};
use crate::relays;
use crate::replicas::{lose_replica, suspect_replica};
use crate::rows::codec::{key, number, to_json};
use crate::tasks::{find, finish, require};
use crate::{
    Admission, Catalog, CatalogError, Claim, FileRow, LeftOutRow, NewFile, ReportedCheck, ReportedFile,
    TaskKind, TaskRow, VerificationState,
};

impl Catalog {
    /// What would become of an agent's claim about a task now.
    pub fn task_admission(
        &self,
        claim: Claim,
        agent: AgentId,
        task: TaskId,
    ) -> Result<Admission, CatalogError> {
        self.read(|tx| {
            let Some(row) = find(tx, task)? else { return Ok(Admission::Late) };
            Ok(admit(claim, (agent, site_of(tx, agent)?), task_subject(tx, &row)?))
        })
    }
}

impl ReportApplier<'_> {
    pub(super) fn scanned(
        &mut self,
        id: TaskId,
        found: &[ReportedFile],
        left_out: &[LeftOutRow],
    ) -> Result<(), CatalogError> {
        let Some((mut task, Admission::Full)) = self.task(Claim::Scanned, id)? else { return Ok(()) };
        let mut registrar = FileRegistrar::new(&self.ledger, task.dataset, Some(task.storage))?;
        for file in found {
            let ReportedFile { lfn, size, digests, origin } = file.clone();
            let evidence = match origin {
                DigestOrigin::Computed => Evidence::Read,
                DigestOrigin::Told => Evidence::Claimed,
            };
            let new = NewFile { lfn, size, digests, block: None, line: 0 };
            match registrar.add(&mut self.ledger, &new, evidence)? {
                Ok(()) => {
                    task.files_done = task.files_done.saturating_add(1);
                    task.bytes_done = task.bytes_done.saturating_add(file.size);
                }
                Err(fault) => {
                    let changed = self.suspect_changed(&new, &fault, task.storage)?;
                    task.add_problem(&file.lfn, changed.unwrap_or(fault));
                }
            }
        }
        registrar.finish(&self.ledger)?;
        self.applied.replicas.found.append(&mut registrar.found);
        add_left_out(self.tx, task.dataset, task.storage, left_out)?;
        // The next registrar reads the totals from the database.
        consequences::flush(&mut self.ledger)?;
        self.store(task)
    }

    /// Makes the replica suspect if the storage holds other content under the name than is registered; says
    /// so in words. `refusal` is why it was not registered.
    fn suspect_changed(
        &mut self,
        found: &NewFile,
        refusal: &Fault,
        storage: StorageId,
    ) -> Result<Option<Fault>, CatalogError> {
        let Some(file) = self.file(&found.lfn)? else { return Ok(None) };
        if file.size == found.size && file.digests.contradiction(&found.digests).is_none() {
            return Ok(None);
        }
        let fault = Fault::new(FaultCode::SourceChanged, refusal.detail.clone()).blaming(Blame::Source);
        suspect_replica(&mut self.ledger, &file, storage, &fault, &mut self.applied.replicas)?;
        Ok(Some(fault))
    }

    pub(super) fn checked(&mut self, id: TaskId, files: &[ReportedCheck]) -> Result<(), CatalogError> {
        let Some((mut task, admission)) = self.task(Claim::Checked, id)? else { return Ok(()) };
        for check in files {
            if admission == Admission::LossesOnly && !is_loss(&task.kind, check) {
                continue;
            }
            let Some(file) = self.file(&check.lfn)?.filter(|file| file.dataset == task.dataset) else {
                tracing::warn!(task = %id, lfn = %check.lfn.shown(), "a file that the task is not about: \
                    ignored");
                continue;
            };
            match (&task.kind, &check.fault) {
                (TaskKind::Delete { .. }, None) => {
                    lose_replica(&mut self.ledger, &file, task.storage, &mut self.applied.replicas)?;
                }
                (TaskKind::Verify, None) => self.verified_good(&task, &file)?,
                // On tape nobody could read it: the replica stays as good as it was, and has no problem.
                (TaskKind::Verify, Some(fault)) if fault.code == FaultCode::OnTape => {
                    task.files_on_tape = task.files_on_tape.saturating_add(1);
                    continue;
                }
                // What says nothing of the bytes leaves the replica as it was: no digest to compare with, or
                // a verification that was broken off.
                (TaskKind::Verify, Some(fault)) if fault.blame != Blame::Source => {}
                (TaskKind::Verify, Some(fault)) => {
                    suspect_replica(
                        &mut self.ledger,
                        &file,
                        task.storage,
                        fault,
                        &mut self.applied.replicas,
                    )?;
                    accusations::forget(self.tx, file.id, task.storage)?;
                }
                (TaskKind::Clear, None) => relays::forget_relayed_file(self.tx, task.storage, file.id)?,
                (TaskKind::Delete { .. } | TaskKind::Clear, Some(_)) => {}
                (TaskKind::Scan { .. }, _) => continue,
            }
            match &check.fault {
                None => {
                    task.files_done = task.files_done.saturating_add(1);
                    task.bytes_done = task.bytes_done.saturating_add(file.size);
                }
                Some(fault) => task.add_problem(&check.lfn, fault.clone()),
            }
            consequences::flush_if_full(&mut self.ledger)?;
        }
        self.store(task)
    }

    /// A verification found the file as it should be. It makes no replica of a file that the storage is not
    /// known to hold, or that it was not asked about.
    fn verified_good(&mut self, task: &TaskRow, file: &FileRow) -> Result<(), CatalogError> {
        let was = self.ledger.presence(file.block, task.storage, file.id)?;
        if was == Presence::Absent || file.digests.is_empty() {
            tracing::warn!(agent = %self.agent, task = %task.id, lfn = %file.lfn.shown(),
                "verified, though there was nothing to compare: ignored");
            return Ok(());
        }
        let good = Presence::Good(VerificationState::Verified(Verification::Readback));
        self.ledger.set_presence(file.block, task.storage, file.id, file.size, good, None)?;
        accusations::refute(self.tx, file.id, task.storage, self.now)?;
        if matches!(was, Presence::Suspect(_)) {
            self.applied.replicas.found.push((file.id, file.block, task.storage));
        }
        Ok(())
    }

    pub(super) fn task_done(&mut self, id: TaskId, fault: Option<&Fault>) -> Result<(), CatalogError> {
        let Some((task, Admission::Full)) = self.task(Claim::TaskDone, id)? else { return Ok(()) };
        consequences::flush(&mut self.ledger)?;
        finish(&mut self.ledger, &task, fault)?;
        self.report_task(id)
    }

    /// The task, if the claim about it is admitted in full or in part.
    fn task(&mut self, claim: Claim, id: TaskId) -> Result<Option<(TaskRow, Admission)>, CatalogError> {
        let task = find(self.tx, id)?;
        let subject = match &task {
            Some(task) => task_subject(self.tx, task)?,
            None => None,
        };
        let admission = self.admission(claim, subject);
        let admitted = matches!(admission, Admission::Full | Admission::LossesOnly);
        let task = task.filter(|task| admitted && fits(claim, &task.kind));
        if task.is_none() {
            tracing::info!(agent = %self.agent, task = %id, claim = claim.word(), ?admission,
                "a fact about a task changes nothing");
        }
        Ok(task.map(|task| (task, admission)))
    }

    fn store(&mut self, task: TaskRow) -> Result<(), CatalogError> {
        let mut update = self.tx.prepare_cached(
            "UPDATE tasks SET files_done = ?2, bytes_done = ?3, files_bad = ?4, problems = ?5,
             files_on_tape = ?6 WHERE id = ?1",
        )?;
        let problems: Vec<(&Lfn, &Fault)> =
            task.problems.iter().map(|problem| (&problem.lfn, &problem.fault)).collect();
        update.execute_deferred((
            key!(task.id),
            number(task.files_done),
            number(task.bytes_done),
            number(task.files_bad),
            to_json(&problems),
            number(task.files_on_tape),
        ))?;
        self.report_task(task.id)
    }

    /// Puts the task's present state into the result; the last one within a report counts.
    fn report_task(&mut self, id: TaskId) -> Result<(), CatalogError> {
        let task = require(self.tx, id)?;
        self.applied.tasks.retain(|told| told.id != id);
        self.applied.tasks.push(task);
        Ok(())
    }
}

/// Whether the agent says that a file is gone from its storage, or bad there.
fn is_loss(kind: &TaskKind, check: &ReportedCheck) -> bool {
    match kind {
        TaskKind::Delete { .. } | TaskKind::Clear => check.fault.is_none(),
        TaskKind::Verify => check.fault.is_some(),
        TaskKind::Scan { .. } => false,
    }
}
