//! What agents report of their tasks: files that a scan found, files checked or deleted, a task's end.

use longhaul_model::{Fault, FaultCode, Lfn, TaskId, Verification};

use super::ReportApplier;
use crate::block_replica::Presence;
use crate::consequences;
use crate::datasets::add_left_out;
use crate::registration::FileRegistrar;
use crate::relays;
use crate::replicas::{lose_replica, suspect_replica};
use crate::rows::codec::{key, number, to_json};
use crate::tasks::{find, finish, require};
use crate::{
    CatalogError, LeftOutRow, NewFile, ReportedCheck, ReportedFile, TaskKind, TaskRow, VerificationState,
};

impl ReportApplier<'_> {
    pub(super) fn scanned(
        &mut self,
        id: TaskId,
        found: &[ReportedFile],
        left_out: &[LeftOutRow],
    ) -> Result<(), CatalogError> {
        let Some(mut task) = self.task(id)? else { return Ok(()) };
        if task.done || !matches!(task.kind, TaskKind::Scan { .. }) {
            tracing::warn!(task = %id, "ignored files of a task that is no open scan");
            return Ok(());
        }
        let mut registrar = FileRegistrar::new(&self.ledger, task.dataset, Some(task.storage))?.scanned();
        for file in found {
            let ReportedFile { lfn, size, digests } = file.clone();
            let new = NewFile { lfn, size, digests, block: None, line: 0 };
            match registrar.add(&mut self.ledger, &new)? {
                Ok(()) => {
                    task.files_done += 1;
                    task.bytes_done = task.bytes_done.saturating_add(file.size);
                }
                Err(fault) => task.add_problem(&file.lfn, fault),
            }
        }
        registrar.finish(&self.ledger)?;
        self.applied.replicas.found.append(&mut registrar.found);
        add_left_out(self.tx, task.dataset, task.storage, left_out)?;
        // The next registrar reads the totals from the database.
        consequences::flush(&mut self.ledger)?;
        self.store(task)
    }

    pub(super) fn checked(&mut self, id: TaskId, files: &[ReportedCheck]) -> Result<(), CatalogError> {
        let Some(mut task) = self.task(id)? else { return Ok(()) };
        for check in files {
            let Some(file) = self.file(&check.lfn)?.filter(|file| file.dataset == task.dataset) else {
                tracing::warn!(task = %id, lfn = %check.lfn.shown(), "a file that the task is not about: \
                    ignored");
                continue;
            };
            match (&task.kind, &check.fault) {
                (TaskKind::Delete { .. }, None) => {
                    lose_replica(&mut self.ledger, &file, task.storage, &mut self.applied.replicas)?;
                }
                (TaskKind::Verify, None) => {
                    let good = Presence::Good(VerificationState::Verified(Verification::Readback));
                    let was =
                        self.ledger.set_presence(file.block, task.storage, file.id, file.size, good, None)?;
                    if !matches!(was, Presence::Good(_)) {
                        self.applied.replicas.found.push((file.id, file.block, task.storage));
                    }
                }
                // On tape nobody could read it: the replica stays as good as it was.
                (TaskKind::Verify, Some(fault)) if fault.code == FaultCode::OnTape => {}
                (TaskKind::Verify, Some(fault)) => {
                    suspect_replica(
                        &mut self.ledger,
                        &file,
                        task.storage,
                        fault,
                        &mut self.applied.replicas,
                    )?;
                }
                (TaskKind::Clear, None) => relays::forget_relayed_file(self.tx, task.storage, file.id)?,
                (TaskKind::Delete { .. } | TaskKind::Clear, Some(_)) => {}
                (TaskKind::Scan { .. }, _) => continue,
            }
            match &check.fault {
                None => {
                    task.files_done += 1;
                    task.bytes_done = task.bytes_done.saturating_add(file.size);
                }
                Some(fault) => task.add_problem(&check.lfn, fault.clone()),
            }
            consequences::flush_if_full(&mut self.ledger)?;
        }
        self.store(task)
    }

    pub(super) fn task_done(&mut self, id: TaskId, fault: Option<&Fault>) -> Result<(), CatalogError> {
        let Some(task) = self.task(id)? else { return Ok(()) };
        if !task.done {
            consequences::flush(&mut self.ledger)?;
            finish(&mut self.ledger, &task, fault)?;
        }
        self.report_task(id)
    }

    fn task(&self, id: TaskId) -> Result<Option<TaskRow>, CatalogError> {
        let task = find(self.tx, id)?;
        if task.is_none() {
            tracing::warn!(task = %id, "ignored a fact of an unknown task");
        }
        Ok(task)
    }

    fn store(&mut self, task: TaskRow) -> Result<(), CatalogError> {
        let mut update = self.tx.prepare_cached(
            "UPDATE tasks SET files_done = ?2, bytes_done = ?3, files_bad = ?4, problems = ?5 WHERE id = ?1",
        )?;
        let problems: Vec<(&Lfn, &Fault)> =
            task.problems.iter().map(|problem| (&problem.lfn, &problem.fault)).collect();
        update.execute_deferred((
            key!(task.id),
            number(task.files_done),
            number(task.bytes_done),
            number(task.files_bad),
            to_json(&problems),
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
