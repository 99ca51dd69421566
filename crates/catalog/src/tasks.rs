//! Tasks of agents: scans, verifications, deletions and clearings.

use crate::sql::{Optional, Row, Transaction};
use longhaul_model::{DatasetId, DigestOrigin, Fault, FaultCode, FileId, Lfn, StorageId, TaskId, Timestamp};

use crate::accusations;
use crate::consequences;
use crate::deletion::check_deletion;
use crate::ledger::Ledger;
use crate::relays;
use crate::rows::codec::{Columns, key, maybe_json, to_json};
use crate::{
    Catalog, CatalogError, CopyTerms, NewTask, PAGE_ROWS_MAX, ReplicaChange, TaskKind, TaskProblemRow,
    TaskRow,
};

/// Problems recorded of one task; further ones are only counted.
pub const TASK_PROBLEMS_MAX: usize = 100;

/// The columns that [`task_row`] reads.
const SELECT_TASK: &str = "SELECT k.id, k.kind, k.dataset, d.name, k.storage, t.name, k.path, k.algorithms, \
    k.force, k.done,
    k.files_total, k.bytes_total, k.files_done, k.bytes_done, k.files_bad, k.problems, k.fault, k.created, \
    k.finished, k.files_on_tape, k.digests
    FROM tasks k JOIN datasets d ON d.id = k.dataset JOIN storages t ON t.id = k.storage";

/// The result of adding a task.
#[derive(Clone, Debug)]
pub struct TaskResult {
    pub task: TaskRow,
    /// False if an open task of this kind existed.
    pub made: bool,
    /// Replicas that are no sources any more, since they are being deleted.
    pub replicas: ReplicaChange,
}

impl Catalog {
    /// Adds a task. If one of the same kind is open for the same dataset, storage and path, that one is
    /// returned. A deletion is checked again like its preview, and refused with `LastReplica` or `Conflict`.
    pub fn add_task(&self, new: &NewTask, terms: &CopyTerms) -> Result<TaskResult, CatalogError> {
        let now = terms.now;
        self.write(|tx| {
            crate::sites::require_storage(tx, new.storage)?;
            crate::datasets::require_dataset(tx, new.dataset)?;
            if let Some(task) = find_open_task(tx, new)? {
                return Ok(TaskResult { task, made: false, replicas: ReplicaChange::default() });
            }
            if let TaskKind::Delete { force } = new.kind {
                check_deletion(tx, new.dataset, new.storage, force, terms)?;
            }
            insert(tx, new, now)?;
            let mut replicas = ReplicaChange::default();
            match new.kind {
                // A scan counts what it leaves out from zero.
                TaskKind::Scan { .. } => {
                    crate::test_data::check_registration(tx, new.dataset, new.storage)?;
                    tx.prepare_cached("DELETE FROM left_out WHERE dataset = ?1 AND storage = ?2")?
                        .execute_deferred((key!(new.dataset), key!(new.storage)))?;
                }
                TaskKind::Delete { .. } => replicas = mark_deleting(tx, new, now)?,
                TaskKind::Verify | TaskKind::Clear => {}
            }
            Ok(TaskResult { task: require(tx, new.id)?, made: true, replicas })
        })
    }

    /// Open tasks, oldest first.
    pub fn tasks_for(&self, storage: StorageId) -> Result<Vec<TaskRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!(
                "{SELECT_TASK} WHERE k.storage = ?1 AND k.done = 0 ORDER BY k.id LIMIT ?2"
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
            let mut select = tx
                .prepare_cached(&format!("{SELECT_TASK} WHERE k.dataset = ?1 ORDER BY k.id DESC LIMIT ?2"))?;
            let rows = select.query_map((key!(dataset), PAGE_ROWS_MAX as i64), task_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Ends a task before it is done, with the fault `Cancelled`. Later reports of its agent still count as
    /// far as replicas were lost or found bad.
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
            consequences::flush(&mut ledger)?;
            let mut change = ReplicaChange::default();
            change.absorb(ledger.effects);
            Ok((require(tx, id)?, change))
        })
    }
}

impl TaskRow {
    pub(crate) fn add_problem(&mut self, lfn: &Lfn, fault: Fault) {
        self.files_bad = self.files_bad.saturating_add(1);
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

/// Marks the blocks of a deletion: they are no sources any more, and end their demands.
fn mark_deleting(tx: &Transaction<'_>, new: &NewTask, now: Timestamp) -> Result<ReplicaChange, CatalogError> {
    let mut ledger = Ledger::new(tx, now);
    let mut change = ReplicaChange::default();
    for block in crate::deletion::blocks_at(tx, new.dataset, new.storage)? {
        ledger.set_deleting(block, new.storage, key!(new.id))?;
        change.blocks_lost.push((block, new.storage));
        consequences::flush_if_full(&mut ledger)?;
    }
    consequences::flush(&mut ledger)?;
    change.absorb(ledger.effects);
    Ok(change)
}

/// Marks the task done. What a deletion left behind is a source again.
pub(crate) fn finish(
    ledger: &mut Ledger<'_>,
    task: &TaskRow,
    fault: Option<&Fault>,
) -> Result<(), CatalogError> {
    ledger
        .tx
        .prepare_cached("UPDATE tasks SET done = 1, fault = ?2, finished = ?3 WHERE id = ?1 AND done = 0")?
        .execute_deferred((key!(task.id), maybe_json(fault), ledger.now.0))?;
    match task.kind {
        TaskKind::Clear => relays::requeue_after_clear(ledger.tx, task.id, ledger.now)?,
        TaskKind::Verify => accusations::requeue_unsettled(ledger.tx, task.id, ledger.now)?,
        TaskKind::Scan { .. } | TaskKind::Delete { .. } => {}
    }
    if task.kind == TaskKind::Verify && fault.is_none() && has_read_all(task) {
        ledger
            .tx
            .prepare_cached(
                "UPDATE block_replicas SET verified = ?3
                 WHERE dataset = ?1 AND storage = ?2 AND verified < ?3",
            )?
            .execute_deferred((key!(task.dataset), key!(task.storage), task.created.0))?;
    }
    if matches!(task.kind, TaskKind::Delete { .. }) {
        for block in crate::deletion::blocks_at(ledger.tx, task.dataset, task.storage)? {
            if ledger.deleting_task(block, task.storage)? == key!(task.id) {
                ledger.set_deleting(block, task.storage, 0)?;
            }
            consequences::flush_if_full(ledger)?;
        }
    }
    Ok(())
}

/// Whether a verification has read every file: found it good, or found it bad and made it suspect. Release
/// 0.1.0 recorded files on tape among the problems.
fn has_read_all(task: &TaskRow) -> bool {
    let is_unread = |problem: &TaskProblemRow| problem.fault.code == FaultCode::OnTape;
    task.files_on_tape == 0
        && task.files_done.saturating_add(task.files_bad) >= task.files_total
        && task.problems.len() as u64 == task.files_bad
        && !task.problems.iter().any(is_unread)
}

pub(crate) fn insert(tx: &Transaction<'_>, new: &NewTask, now: Timestamp) -> Result<(), CatalogError> {
    let (algorithms, digests, force) = match &new.kind {
        TaskKind::Scan { algorithms, digests, .. } => (algorithms.as_slice(), *digests, false),
        TaskKind::Verify | TaskKind::Clear => (&[][..], DigestOrigin::Computed, false),
        TaskKind::Delete { force } => (&[][..], DigestOrigin::Computed, *force),
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
    tx.execute_deferred(
        "INSERT INTO tasks (id, kind, dataset, storage, path, algorithms, digests, force, last_file, done,
         files_total, bytes_total, created) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, ?10, ?11, ?12)",
        (
            key!(new.id),
            new.kind.word(),
            key!(new.dataset),
            key!(new.storage),
            new.kind.path(),
            to_json(&algorithms),
            digests.word(),
            force,
            last_file,
            files,
            bytes,
            now.0,
        ),
    )?;
    Ok(())
}

/// Adds a task that removes relayed files, which have left the catalog already.
pub(crate) fn add_clear(
    tx: &Transaction<'_>,
    new: &NewTask,
    files: &[FileId],
    now: Timestamp,
) -> Result<TaskRow, CatalogError> {
    insert(tx, new, now)?;
    let mut take = tx.prepare_cached("UPDATE relayed SET task = ?3 WHERE storage = ?1 AND file = ?2")?;
    for &file in files {
        take.execute_deferred((key!(new.storage), key!(file), key!(new.id)))?;
    }
    tx.execute_deferred(
        "UPDATE tasks SET files_total = ?2, bytes_total = (SELECT coalesce(sum(f.size), 0) FROM relayed r
         JOIN files f ON f.id = r.file WHERE r.task = ?1 AND r.task <> 0) WHERE id = ?1",
        (key!(new.id), files.len() as i64),
    )?;
    require(tx, new.id)
}

fn find_open_task(tx: &Transaction<'_>, new: &NewTask) -> Result<Option<TaskRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!(
        "{SELECT_TASK} WHERE k.storage = ?1 AND k.dataset = ?2 AND k.kind = ?3 AND k.path = ?4 AND k.done = 0"
    ))?;
    let wanted = (key!(new.storage), key!(new.dataset), new.kind.word(), new.kind.path());
    Ok(select.query_row(wanted, task_row).optional()?)
}

pub(crate) fn require(tx: &Transaction<'_>, id: TaskId) -> Result<TaskRow, CatalogError> {
    find(tx, id)?.ok_or_else(|| CatalogError::not_found("task", id))
}

pub(crate) fn find(tx: &Transaction<'_>, id: TaskId) -> Result<Option<TaskRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_TASK} WHERE k.id = ?1"))?;
    Ok(select.query_row([key!(id)], task_row).optional()?)
}

/// The last file that the task covers: files registered later are not part of it.
pub(crate) fn last_file(tx: &Transaction<'_>, id: TaskId) -> Result<FileId, CatalogError> {
    let mut select = tx.prepare_cached("SELECT last_file FROM tasks WHERE id = ?1")?;
    let last = select.query_row([key!(id)], |row| row.id(0)).optional()?;
    last.ok_or_else(|| CatalogError::refused(FaultCode::NotFound, format!("there is no task {id}")))
}

fn task_row(row: &Row<'_>) -> crate::sql::Result<TaskRow> {
    let word: String = row.get(1)?;
    let kind = match word.as_str() {
        "scan" => TaskKind::Scan { path: row.get(6)?, algorithms: row.json(7)?, digests: row.parsed(20)? },
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
        files_on_tape: row.number(19)?,
    })
}
