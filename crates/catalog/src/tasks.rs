//! Scans, verifications and deletions: what agents are asked, and what they found.

use crate::sql::{Optional, Row, Transaction};
use longhaul_model::{DatasetId, Fault, FaultCode, FileId, Lfn, StorageId, TaskId, Timestamp, Verification};

use crate::codec::{Columns, key, maybe_json, number, to_json};
use crate::datasets::add_left_out;
use crate::deletion::{preview, refuse};
use crate::ledger::Ledger;
use crate::pair::Presence;
use crate::registration::Registrar;
use crate::relays;
use crate::replicas::{lose, suspect};
use crate::report::Report;
use crate::{
    Catalog, CatalogError, How, LeftOutRow, NewFile, NewTask, PAGE_ROWS_MAX, ReplicaChange, ReportedCheck,
    ReportedFile, TaskKind, TaskProblemRow, TaskRow,
};

/// Problems kept of one task.
pub const TASK_PROBLEMS_MAX: usize = 100;

const TASK: &str = "SELECT k.id, k.kind, k.dataset, d.name, k.storage, t.name, k.path, k.algorithms, \
    k.force, k.done,
    k.files_total, k.bytes_total, k.files_done, k.bytes_done, k.files_bad, k.problems, k.fault, k.created, \
    k.finished
    FROM tasks k JOIN datasets d ON d.id = k.dataset JOIN storages t ON t.id = k.storage";

/// What adding a task did.
#[derive(Clone, Debug)]
pub struct TaskAdded {
    pub task: TaskRow,
    /// False if it existed.
    pub made: bool,
    /// Replicas that are no sources any more, since they are being deleted.
    pub replicas: ReplicaChange,
}

impl Catalog {
    /// A deletion is refused with `LastReplica` or `Conflict` as its preview says, looked at again here. A
    /// second open task of the same kind for the same dataset, storage and path is not made: the open one is
    /// returned.
    pub fn add_task(&self, new: &NewTask, now: Timestamp) -> Result<TaskAdded, CatalogError> {
        self.write(|tx| {
            crate::sites::require_storage(tx, new.storage)?;
            crate::datasets::require_dataset(tx, new.dataset)?;
            if let Some(task) = open_one(tx, new)? {
                return Ok(TaskAdded { task, made: false, replicas: ReplicaChange::default() });
            }
            if let TaskKind::Delete { force } = new.kind {
                refuse(&preview(tx, new.dataset, new.storage)?, force)?;
            }
            insert(tx, new, now)?;
            let mut replicas = ReplicaChange::default();
            match new.kind {
                // A scan counts what it leaves out anew.
                TaskKind::Scan { .. } => {
                    tx.prepare_cached("DELETE FROM left_out WHERE dataset = ?1 AND storage = ?2")?
                        .order((key!(new.dataset), key!(new.storage)))?;
                }
                TaskKind::Delete { .. } => replicas = mark_deleting(tx, new, now)?,
                TaskKind::Verify | TaskKind::Clear => {}
            }
            Ok(TaskAdded { task: require(tx, new.id)?, made: true, replicas })
        })
    }

    /// Open tasks, oldest first.
    pub fn tasks_for(&self, storage: StorageId) -> Result<Vec<TaskRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!(
                "{TASK} WHERE k.storage = ?1 AND k.done = 0 ORDER BY k.id LIMIT ?2"
            ))?;
            let rows = select.query_map((key!(storage), PAGE_ROWS_MAX as i64), task_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn task(&self, id: TaskId) -> Result<Option<TaskRow>, CatalogError> {
        self.read(|tx| find(tx, id))
    }

    /// Newest first, at most a page.
    pub fn tasks(&self, dataset: DatasetId) -> Result<Vec<TaskRow>, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached(&format!("{TASK} WHERE k.dataset = ?1 ORDER BY k.id DESC LIMIT ?2"))?;
            let rows = select.query_map((key!(dataset), PAGE_ROWS_MAX as i64), task_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Ends a task before it is done. What its agent reports of it later still counts as far as replicas
    /// were lost or found bad.
    pub fn cancel_task(
        &self,
        id: TaskId,
        fault: &Fault,
        now: Timestamp,
    ) -> Result<(TaskRow, ReplicaChange), CatalogError> {
        self.write(|tx| {
            let task = require(tx, id)?;
            let mut ledger = Ledger::new(tx, now);
            finish(&mut ledger, &task, Some(fault))?;
            ledger.flush()?;
            let mut change = ReplicaChange::default();
            change.take(ledger.effects);
            Ok((require(tx, id)?, change))
        })
    }
}

impl Report<'_> {
    pub(crate) fn scanned(
        &mut self,
        id: TaskId,
        found: &[ReportedFile],
        left_out: &[LeftOutRow],
    ) -> Result<(), CatalogError> {
        let Some(mut task) = self.task(id)? else { return Ok(()) };
        if task.done || !matches!(task.kind, TaskKind::Scan { .. }) {
            tracing::warn!(task = %id, "files of a scan that is over or was none: ignored");
            return Ok(());
        }
        let mut registrar = Registrar::new(&self.ledger, task.dataset, Some(task.storage))?.scanned();
        for file in found {
            let ReportedFile { lfn, size, digests } = file.clone();
            let new = NewFile { lfn, size, digests, block: None, line: 0 };
            match registrar.add(&mut self.ledger, &new)? {
                Ok(()) => {
                    task.files_done += 1;
                    task.bytes_done = task.bytes_done.saturating_add(file.size);
                }
                Err(fault) => task.problem(&file.lfn, fault),
            }
        }
        registrar.finish(&self.ledger)?;
        self.applied.replicas.found.append(&mut registrar.found);
        add_left_out(self.tx, task.dataset, task.storage, left_out)?;
        // The next registrar reads the totals from the database.
        self.ledger.flush()?;
        self.store(task)
    }

    pub(crate) fn checked(&mut self, id: TaskId, files: &[ReportedCheck]) -> Result<(), CatalogError> {
        let Some(mut task) = self.task(id)? else { return Ok(()) };
        for check in files {
            let Some(file) = self.file(&check.lfn)?.filter(|file| file.dataset == task.dataset) else {
                tracing::warn!(task = %id, lfn = %check.lfn.shown(), "a file that the task is not about: \
                    ignored");
                continue;
            };
            match (&task.kind, &check.fault) {
                (TaskKind::Delete { .. }, None) => {
                    lose(&mut self.ledger, &file, task.storage, &mut self.applied.replicas)?;
                }
                (TaskKind::Verify, None) => {
                    let good = Presence::Good(How::Verified(Verification::Readback));
                    let was = self.ledger.set(file.block, task.storage, file.id, file.size, good, None)?;
                    if !matches!(was, Presence::Good(_)) {
                        self.applied.replicas.found.push((file.id, file.block, task.storage));
                    }
                }
                // Nobody could read it: it is as good as it was.
                (TaskKind::Verify, Some(fault)) if fault.code == FaultCode::OnTape => {}
                (TaskKind::Verify, Some(fault)) => {
                    suspect(&mut self.ledger, &file, task.storage, fault, &mut self.applied.replicas)?;
                }
                (TaskKind::Clear, None) => relays::forget(self.tx, task.storage, file.id)?,
                (TaskKind::Delete { .. } | TaskKind::Clear, Some(_)) => {}
                (TaskKind::Scan { .. }, _) => continue,
            }
            match &check.fault {
                None => {
                    task.files_done += 1;
                    task.bytes_done = task.bytes_done.saturating_add(file.size);
                }
                Some(fault) => task.problem(&check.lfn, fault.clone()),
            }
            self.ledger.relieve()?;
        }
        self.store(task)
    }

    pub(crate) fn task_done(&mut self, id: TaskId, fault: Option<&Fault>) -> Result<(), CatalogError> {
        let Some(task) = self.task(id)? else { return Ok(()) };
        if !task.done {
            self.ledger.flush()?;
            finish(&mut self.ledger, &task, fault)?;
        }
        self.tell(id)
    }

    fn task(&self, id: TaskId) -> Result<Option<TaskRow>, CatalogError> {
        let task = find(self.tx, id)?;
        if task.is_none() {
            tracing::warn!(task = %id, "a fact of an unknown task: ignored");
        }
        Ok(task)
    }

    fn store(&mut self, task: TaskRow) -> Result<(), CatalogError> {
        let mut update = self.tx.prepare_cached(
            "UPDATE tasks SET files_done = ?2, bytes_done = ?3, files_bad = ?4, problems = ?5 WHERE id = ?1",
        )?;
        let problems: Vec<(&Lfn, &Fault)> =
            task.problems.iter().map(|problem| (&problem.lfn, &problem.fault)).collect();
        update.order((
            key!(task.id),
            number(task.files_done),
            number(task.bytes_done),
            number(task.files_bad),
            to_json(&problems),
        ))?;
        self.tell(task.id)
    }

    /// The last state of a task within a report is the one that is told.
    fn tell(&mut self, id: TaskId) -> Result<(), CatalogError> {
        let task = require(self.tx, id)?;
        self.applied.tasks.retain(|told| told.id != id);
        self.applied.tasks.push(task);
        Ok(())
    }
}

impl TaskRow {
    fn problem(&mut self, lfn: &Lfn, fault: Fault) {
        self.files_bad += 1;
        if self.problems.len() < TASK_PROBLEMS_MAX {
            self.problems.push(TaskProblemRow { lfn: lfn.clone(), fault });
        }
    }
}

impl TaskKind {
    pub fn word(&self) -> &'static str {
        match self {
            TaskKind::Scan { .. } => "scan",
            TaskKind::Verify => "verify",
            TaskKind::Delete { .. } => "delete",
            TaskKind::Clear => "clear",
        }
    }

    fn path(&self) -> &str {
        match self {
            TaskKind::Scan { path, .. } => path,
            TaskKind::Verify | TaskKind::Delete { .. } | TaskKind::Clear => "",
        }
    }
}

/// Blocks that the task of deletion covers are sources no more, and nobody's demand.
fn mark_deleting(tx: &Transaction<'_>, new: &NewTask, now: Timestamp) -> Result<ReplicaChange, CatalogError> {
    let mut ledger = Ledger::new(tx, now);
    let mut change = ReplicaChange::default();
    for block in crate::deletion::blocks_at(tx, new.dataset, new.storage)? {
        ledger.set_deleting(block, new.storage, key!(new.id))?;
        change.blocks_lost.push((block, new.storage));
        ledger.relieve()?;
    }
    ledger.flush()?;
    change.take(ledger.effects);
    Ok(change)
}

/// Marks the task done; what a deletion left behind is a source again.
fn finish(ledger: &mut Ledger<'_>, task: &TaskRow, fault: Option<&Fault>) -> Result<(), CatalogError> {
    ledger
        .tx
        .prepare_cached("UPDATE tasks SET done = 1, fault = ?2, finished = ?3 WHERE id = ?1 AND done = 0")?
        .order((key!(task.id), maybe_json(fault), ledger.now.0))?;
    if task.kind == TaskKind::Clear {
        relays::left_behind(ledger.tx, task.id, ledger.now)?;
    }
    if matches!(task.kind, TaskKind::Delete { .. }) {
        for block in crate::deletion::blocks_at(ledger.tx, task.dataset, task.storage)? {
            if ledger.deleting(block, task.storage)? == key!(task.id) {
                ledger.set_deleting(block, task.storage, 0)?;
            }
            ledger.relieve()?;
        }
    }
    Ok(())
}

fn insert(tx: &Transaction<'_>, new: &NewTask, now: Timestamp) -> Result<(), CatalogError> {
    let (algorithms, force) = match &new.kind {
        TaskKind::Scan { algorithms, .. } => (algorithms.as_slice(), false),
        TaskKind::Verify | TaskKind::Clear => (&[][..], false),
        TaskKind::Delete { force } => (&[][..], *force),
    };
    let last_file = tx.query_row("SELECT coalesce(max(id), 0) FROM files", (), |row| row.get::<i64>(0))?;
    let mut present =
        tx.prepare_cached("SELECT files, bytes FROM dataset_replicas WHERE dataset = ?1 AND storage = ?2")?;
    let (files, bytes) = match new.kind {
        TaskKind::Scan { .. } | TaskKind::Clear => (0, 0),
        TaskKind::Verify | TaskKind::Delete { .. } => present
            .query_row((key!(new.dataset), key!(new.storage)), |row| {
                Ok((row.get::<i64>(0)?, row.get::<i64>(1)?))
            })
            .optional()?
            .unwrap_or_default(),
    };
    tx.order(
        "INSERT INTO tasks (id, kind, dataset, storage, path, algorithms, force, last_file, done, files_total,
         bytes_total, created) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?9, ?10, ?11)",
        (
            key!(new.id),
            new.kind.word(),
            key!(new.dataset),
            key!(new.storage),
            new.kind.path(),
            to_json(&algorithms),
            force,
            last_file,
            files,
            bytes,
            now.0,
        ),
    )?;
    Ok(())
}

/// A task that removes `files`, which are relayed there and in the catalog no more.
pub(crate) fn add_clear(
    tx: &Transaction<'_>,
    new: &NewTask,
    files: &[FileId],
    now: Timestamp,
) -> Result<TaskRow, CatalogError> {
    insert(tx, new, now)?;
    let mut take = tx.prepare_cached("UPDATE relayed SET task = ?3 WHERE storage = ?1 AND file = ?2")?;
    for &file in files {
        take.order((key!(new.storage), key!(file), key!(new.id)))?;
    }
    tx.order(
        "UPDATE tasks SET files_total = ?2, bytes_total = (SELECT coalesce(sum(f.size), 0) FROM relayed r
         JOIN files f ON f.id = r.file WHERE r.task = ?1 AND r.task <> 0) WHERE id = ?1",
        (key!(new.id), files.len() as i64),
    )?;
    require(tx, new.id)
}

fn open_one(tx: &Transaction<'_>, new: &NewTask) -> Result<Option<TaskRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!(
        "{TASK} WHERE k.storage = ?1 AND k.dataset = ?2 AND k.kind = ?3 AND k.path = ?4 AND k.done = 0"
    ))?;
    let wanted = (key!(new.storage), key!(new.dataset), new.kind.word(), new.kind.path());
    Ok(select.query_row(wanted, task_row).optional()?)
}

pub(crate) fn require(tx: &Transaction<'_>, id: TaskId) -> Result<TaskRow, CatalogError> {
    find(tx, id)?.ok_or_else(|| CatalogError::not_found("task", id))
}

fn find(tx: &Transaction<'_>, id: TaskId) -> Result<Option<TaskRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{TASK} WHERE k.id = ?1"))?;
    Ok(select.query_row([key!(id)], task_row).optional()?)
}

/// Files registered after the task was made are not its business.
pub(crate) fn last_file_of(tx: &Transaction<'_>, id: TaskId) -> Result<FileId, CatalogError> {
    let mut select = tx.prepare_cached("SELECT last_file FROM tasks WHERE id = ?1")?;
    let last = select.query_row([key!(id)], |row| row.id(0)).optional()?;
    last.ok_or_else(|| CatalogError::refused(FaultCode::NotFound, format!("there is no task {id}")))
}

fn task_row(row: &Row<'_>) -> crate::sql::Result<TaskRow> {
    let word: String = row.get(1)?;
    let kind = match word.as_str() {
        "scan" => TaskKind::Scan { path: row.get(6)?, algorithms: row.json(7)? },
        "verify" => TaskKind::Verify,
        "delete" => TaskKind::Delete { force: row.get(8)? },
        "clear" => TaskKind::Clear,
        _ => return Err(crate::sql::damaged(1, word)),
    };
    let problems = row.json::<Vec<(Lfn, Fault)>>(15)?;
    Ok(TaskRow {
        id: row.id(0)?,
        kind,
        dataset: row.id(2)?,
        dataset_name: row.parsed(3)?,
        storage: row.id(4)?,
        storage_name: row.parsed(5)?,
        done: row.get(9)?,
        files_total: row.number(10)?,
        bytes_total: row.number(11)?,
        files_done: row.number(12)?,
        bytes_done: row.number(13)?,
        files_bad: row.number(14)?,
        problems: problems.into_iter().map(|(lfn, fault)| TaskProblemRow { lfn, fault }).collect(),
        fault: row.fault(16)?,
        created: row.time(17)?,
        finished: row.maybe_time(18)?,
    })
}
