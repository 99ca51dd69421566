//! Datasets, blocks and files: lists and look-ups, what scans left out, and totals of the catalog.

use crate::sql::{Optional, Row, Transaction};
use longhaul_model::{
    BlockId, BlockName, CommunityName, DatasetId, DatasetName, FileId, Lfn, StorageId, TaskId, Timestamp,
};

use crate::rows::codec::{Columns, key, to_json};
use crate::{
    BlockRow, Catalog, CatalogError, DatasetRow, ExpectedFileRow, FileRow, FileScope, LeftOutCount,
    LeftOutRow, LinkTotals, PAGE_ROWS_MAX, TaskFiles, Totals,
};

/// Examples kept of each reason why a scan left something out.
const LEFT_OUT_EXAMPLES_MAX: usize = 20;

/// The columns that [`dataset_row`] reads.
const SELECT_DATASET: &str = "SELECT id, name, community, open, files, bytes, blocks, created FROM datasets";
/// The columns that [`block_row`] reads.
const SELECT_BLOCK: &str = "SELECT id, dataset, name, open, files, bytes, created FROM blocks";
/// The columns that [`file_row`] reads.
const SELECT_FILE: &str =
    "SELECT f.id, f.block, b.dataset, f.lfn, f.size, f.digests FROM files f JOIN blocks b ON b.id = f.block";

/// Statements that delete a dataset, in this order: earlier ones look up rows that later ones delete.
const DELETE_DATASET: [&str; 15] = [
    "DELETE FROM choices WHERE attempt IN (SELECT attempt FROM history WHERE dataset = ?1)",
    "DELETE FROM history WHERE dataset = ?1",
    "DELETE FROM demands WHERE block IN (SELECT id FROM blocks WHERE dataset = ?1)",
    "DELETE FROM arrival_marks WHERE subscription IN (SELECT id FROM subscriptions WHERE dataset = ?1)",
    "DELETE FROM subscriptions WHERE dataset = ?1",
    "DELETE FROM replicas WHERE block IN (SELECT id FROM blocks WHERE dataset = ?1)",
    "DELETE FROM block_replicas WHERE dataset = ?1",
    "DELETE FROM dataset_replicas WHERE dataset = ?1",
    "DELETE FROM tasks WHERE dataset = ?1",
    "DELETE FROM left_out WHERE dataset = ?1",
    "DELETE FROM accusations WHERE dataset = ?1",
    "DELETE FROM repairs WHERE dataset = ?1",
    "DELETE FROM files WHERE block IN (SELECT id FROM blocks WHERE dataset = ?1)",
    "DELETE FROM blocks WHERE dataset = ?1",
    "DELETE FROM datasets WHERE id = ?1",
];

/// Why a dataset cannot be deleted yet: a query for one example, and how the message goes on. The next step
/// is behind the semicolon.
const DELETION_BLOCKERS: [(&str, &str); 4] = [
    (
        "SELECT s.name FROM dataset_replicas r JOIN storages s ON s.id = r.storage
         WHERE r.dataset = ?1 AND r.files + r.suspect_files > 0 LIMIT 1",
        "holds files of it; delete them there first: longhaul replica delete DATASET STORAGE",
    ),
    (
        "SELECT t.name FROM subscriptions s JOIN storages t ON t.id = s.target
         WHERE s.dataset = ?1 AND s.state <> 'cancelled' LIMIT 1",
        "is subscribed to it; cancel that first: longhaul subscription cancel SUBSCRIPTION",
    ),
    (
        "SELECT s.name FROM tasks t JOIN storages s ON s.id = t.storage WHERE t.dataset = ?1 AND t.done = 0 \
            LIMIT 1",
        "is at work on it; wait until it is done: longhaul task list",
    ),
    (
        "SELECT s.name FROM live l JOIN storages s ON s.id = l.target WHERE l.dataset = ?1 LIMIT 1",
        "still receives a file of it; wait until it has ended: longhaul transfer list",
    ),
];

fn check_deletable(tx: &Transaction<'_>, id: DatasetId) -> Result<(), CatalogError> {
    let name: Option<String> =
        tx.query_row("SELECT name FROM datasets WHERE id = ?1", [key!(id)], |row| row.get(0)).optional()?;
    let name = name.ok_or_else(|| CatalogError::not_found("dataset with number", id))?;
    for (question, why) in DELETION_BLOCKERS {
        let example: Option<String> = tx.query_row(question, [key!(id)], |row| row.get(0)).optional()?;
        if let Some(example) = example {
            let why = why.replace("DATASET STORAGE", &format!("{name} {example}"));
            return Err(CatalogError::conflict(format!("{example} {why}")));
        }
    }
    Ok(())
}

impl Catalog {
    /// Returns the dataset of that name, created if there was none, and whether it was created. Refused with
    /// `AlreadyExists` if it belongs to another community.
    pub fn create_dataset(
        &self,
        name: &DatasetName,
        community: &CommunityName,
        now: Timestamp,
    ) -> Result<(DatasetRow, bool), CatalogError> {
        self.write(|tx| {
            let made = tx.execute(
                "INSERT INTO datasets (name, community, open, created) VALUES (?1, ?2, 1, ?3) ON CONFLICT DO \
                    NOTHING",
                (name.as_str(), community.as_str(), now.0),
            )?;
            let row =
                tx.query_row(&format!("{SELECT_DATASET} WHERE name = ?1"), [name.as_str()], dataset_row)?;
            if row.community != *community {
                let detail = format!("dataset {name} belongs to community {}", row.community);
                return Err(CatalogError::refused(longhaul_model::FaultCode::AlreadyExists, detail));
            }
            Ok((row, made == 1))
        })
    }

    pub fn dataset(&self, name: &DatasetName) -> Result<Option<DatasetRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!("{SELECT_DATASET} WHERE name = ?1"))?;
            Ok(select.query_row([name.as_str()], dataset_row).optional()?)
        })
    }

    pub fn dataset_by_id(&self, id: DatasetId) -> Result<Option<DatasetRow>, CatalogError> {
        self.read(|tx| find_dataset(tx, id))
    }

    /// By name, beginning after `after`.
    pub fn datasets(
        &self,
        after: Option<&DatasetName>,
        limit: usize,
    ) -> Result<Vec<DatasetRow>, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached(&format!("{SELECT_DATASET} WHERE name > ?1 ORDER BY name LIMIT ?2"))?;
            let rows =
                select.query_map((after.map_or("", |name| name.as_str()), page_limit(limit)), dataset_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn block(&self, name: &BlockName) -> Result<Option<BlockRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!("{SELECT_BLOCK} WHERE name = ?1"))?;
            Ok(select.query_row([name.as_str()], block_row).optional()?)
        })
    }

    /// In the order they were made, beginning after `after`.
    pub fn blocks(
        &self,
        dataset: DatasetId,
        after: Option<BlockId>,
        limit: usize,
    ) -> Result<Vec<BlockRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!(
                "{SELECT_BLOCK} WHERE dataset = ?1 AND id > ?2 ORDER BY id LIMIT ?3"
            ))?;
            let after = after.map_or(0, |block| key!(block));
            let rows = select.query_map((key!(dataset), after, page_limit(limit)), block_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Block after block, in the order of registration within each; begins after the file `after`.
    pub fn files(
        &self,
        part: FileScope,
        after: Option<FileId>,
        limit: usize,
    ) -> Result<Vec<FileRow>, CatalogError> {
        self.read(|tx| list_files(tx, part, after, limit.clamp(1, PAGE_ROWS_MAX)))
    }

    pub fn file(&self, lfn: &Lfn) -> Result<Option<FileRow>, CatalogError> {
        self.read(|tx| find_file(tx, lfn))
    }

    /// Closes a dataset: no file can be added any more.
    pub fn close_dataset(&self, id: DatasetId) -> Result<(), CatalogError> {
        self.write(|tx| {
            if tx.execute("UPDATE datasets SET open = 0, filling = 0 WHERE id = ?1", [key!(id)])? == 0 {
                return Err(CatalogError::not_found("dataset with number", id));
            }
            tx.execute("UPDATE blocks SET open = 0 WHERE dataset = ?1 AND open = 1", [key!(id)])?;
            Ok(())
        })
    }

    /// Deletes a dataset of which no storage has anything, with its files, ended subscriptions and history.
    /// Totals of links keep what was moved.
    pub fn delete_dataset(&self, id: DatasetId) -> Result<(), CatalogError> {
        self.write(|tx| {
            check_deletable(tx, id)?;
            for statement in DELETE_DATASET {
                tx.execute(statement, [key!(id)])?;
            }
            Ok(())
        })
    }

    /// Counts what a scan left out, by dataset and storage.
    pub fn record_left_out(
        &self,
        dataset: DatasetId,
        storage: StorageId,
        left_out: &[LeftOutRow],
    ) -> Result<(), CatalogError> {
        self.write(|tx| add_left_out(tx, dataset, storage, left_out))
    }

    /// What scans left out of the dataset, by reason, most frequent first.
    pub fn left_out(&self, dataset: DatasetId) -> Result<Vec<LeftOutCount>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT reason, number, examples FROM left_out WHERE dataset = ?1 ORDER BY reason",
            )?;
            let rows = select.query_map([key!(dataset)], |row| {
                let reason: String = row.get(0)?;
                let examples = row.json::<Vec<(String, String)>>(2)?;
                Ok((reason, row.number(1)?, examples))
            })?;
            let mut counts: Vec<LeftOutCount> = Vec::new();
            for row in rows {
                let (reason, count, examples) = row?;
                let examples = examples.into_iter().map(|(path, detail)| LeftOutRow {
                    path,
                    reason: reason.clone(),
                    detail,
                });
                match counts.last_mut().filter(|last| last.reason == reason) {
                    Some(last) => {
                        last.count += count;
                        last.examples.extend(examples);
                        last.examples.truncate(LEFT_OUT_EXAMPLES_MAX);
                    }
                    None => counts.push(LeftOutCount { examples: examples.collect(), reason, count }),
                }
            }
            counts.sort_by_key(|count| std::cmp::Reverse(count.count));
            Ok(counts)
        })
    }

    pub fn totals(&self) -> Result<Totals, CatalogError> {
        self.read(|tx| {
            let (datasets, files, bytes) = tx
                .prepare_cached(
                    "SELECT count(*), coalesce(sum(files), 0), coalesce(sum(bytes), 0) FROM datasets",
                )?
                .query_row((), |row| Ok((row.number(0)?, row.number(1)?, row.number(2)?)))?;
            let (live, transfers_leased) = tx
                .prepare_cached("SELECT count(*), coalesce(sum(leased), 0) FROM live")?
                .query_row((), |row| Ok((row.number(0)?, row.number(1)?)))?;
            let failures = tx
                .prepare_cached("SELECT blame, attempts FROM failures ORDER BY blame")?
                .query_map((), |row| Ok((row.parsed(0)?, row.number(1)?)))?
                .collect::<Result<_, _>>()?;
            let links: Vec<LinkTotals> = tx
                .prepare_cached(
                    "SELECT source, target, files, bytes, attempts_failed FROM links ORDER BY source, target",
                )?
                .query_map((), |row| {
                    Ok(LinkTotals {
                        source: row.id(0)?,
                        target: row.id(1)?,
                        files: row.number(2)?,
                        bytes: row.number(3)?,
                        attempts_failed: row.number(4)?,
                    })
                })?
                .collect::<Result<_, _>>()?;
            Ok(Totals {
                datasets,
                files,
                bytes,
                files_done: links.iter().map(|link| link.files).sum(),
                bytes_done: links.iter().map(|link| link.bytes).sum(),
                transfers_leased,
                transfers_waiting: live - transfers_leased,
                failures,
                links,
            })
        })
    }
}

/// The rows that a caller asked for, within a page.
pub(crate) fn page_limit(limit: usize) -> i64 {
    limit.clamp(1, PAGE_ROWS_MAX) as i64
}

/// Lists files without the bound of a page, for callers with a bound of their own.
pub(crate) fn list_files(
    tx: &Transaction<'_>,
    part: FileScope,
    after: Option<FileId>,
    limit: usize,
) -> Result<Vec<FileRow>, CatalogError> {
    match part {
        FileScope::Block(block) => {
            let after = after.map_or(0, |file| key!(file));
            let mut select = tx.prepare_cached(&format!(
                "{SELECT_FILE} WHERE f.block = ?1 AND f.id > ?2 ORDER BY f.id LIMIT ?3"
            ))?;
            let rows = select.query_map((key!(block), after, limit as i64), file_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        }
        FileScope::Dataset(dataset) => {
            let mut files = Vec::new();
            let mut position = position_of(tx, after)?;
            while files.len() < limit {
                let (block, after) = match position {
                    Some((block, file)) => (block, Some(file)),
                    None => (BlockId(0), None),
                };
                if after.is_some() {
                    files.extend(list_files(tx, FileScope::Block(block), after, limit - files.len())?);
                }
                let mut next = tx.prepare_cached(
                    "SELECT id FROM blocks WHERE dataset = ?1 AND id > ?2 AND files > 0 ORDER BY id LIMIT 1",
                )?;
                match next.query_row((key!(dataset), key!(block)), |row| row.id(0)).optional()? {
                    Some(block) if files.len() < limit => position = Some((block, FileId(0))),
                    _ => break,
                }
            }
            Ok(files)
        }
    }
}

/// The block of the file, so that a listing of the dataset goes on there.
fn position_of(
    tx: &Transaction<'_>,
    after: Option<FileId>,
) -> Result<Option<(BlockId, FileId)>, CatalogError> {
    let Some(file) = after else { return Ok(None) };
    let mut select = tx.prepare_cached("SELECT block FROM files WHERE id = ?1")?;
    let block = select.query_row([key!(file)], |row| row.id(0)).optional()?;
    Ok(block.map(|block| (block, file)))
}

pub(crate) fn find_dataset(tx: &Transaction<'_>, id: DatasetId) -> Result<Option<DatasetRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_DATASET} WHERE id = ?1"))?;
    Ok(select.query_row([key!(id)], dataset_row).optional()?)
}

pub(crate) fn require_dataset(tx: &Transaction<'_>, id: DatasetId) -> Result<DatasetRow, CatalogError> {
    find_dataset(tx, id)?.ok_or_else(|| CatalogError::not_found("dataset with number", id))
}

pub(crate) fn find_file(tx: &Transaction<'_>, lfn: &Lfn) -> Result<Option<FileRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_FILE} WHERE f.lfn = ?1"))?;
    Ok(select.query_row([lfn.as_str()], file_row).optional()?)
}

pub(crate) fn file_by_id(tx: &Transaction<'_>, id: FileId) -> Result<Option<FileRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_FILE} WHERE f.id = ?1"))?;
    Ok(select.query_row([key!(id)], file_row).optional()?)
}

pub(crate) fn add_left_out(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
    left_out: &[LeftOutRow],
) -> Result<(), CatalogError> {
    for entry in left_out {
        let row = (key!(dataset), key!(storage), entry.reason.as_str());
        let mut select = tx.prepare_cached(
            "SELECT number, examples FROM left_out WHERE dataset = ?1 AND storage = ?2 AND reason = ?3",
        )?;
        let known = select.query_row(row, |row| Ok((row.get(0)?, row.json(1)?))).optional()?;
        let (number, mut examples): (i64, Vec<(String, String)>) = known.unwrap_or_default();
        if examples.len() < LEFT_OUT_EXAMPLES_MAX {
            examples.push((entry.path.clone(), entry.detail.clone()));
        }
        tx.prepare_cached(
            "INSERT INTO left_out (dataset, storage, reason, number, examples) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (dataset, storage, reason) DO UPDATE
             SET number = excluded.number, examples = excluded.examples",
        )?
        .execute((row.0, row.1, row.2, number.saturating_add(1), to_json(&examples)))?;
    }
    Ok(())
}

fn dataset_row(row: &Row<'_>) -> crate::sql::Result<DatasetRow> {
    Ok(DatasetRow {
        id: row.id(0)?,
        name: row.parsed(1)?,
        community: row.parsed(2)?,
        open: row.get(3)?,
        files: row.number(4)?,
        bytes: row.number(5)?,
        blocks: row.number(6)?,
        created: row.time(7)?,
    })
}

fn block_row(row: &Row<'_>) -> crate::sql::Result<BlockRow> {
    Ok(BlockRow {
        id: row.id(0)?,
        dataset: row.id(1)?,
        name: row.parsed(2)?,
        open: row.get(3)?,
        files: row.number(4)?,
        bytes: row.number(5)?,
        created: row.time(6)?,
    })
}

pub(crate) fn file_row(row: &Row<'_>) -> crate::sql::Result<FileRow> {
    Ok(FileRow {
        id: row.id(0)?,
        block: row.id(1)?,
        dataset: row.id(2)?,
        lfn: row.parsed(3)?,
        size: row.number(4)?,
        digests: row.digests(5)?,
    })
}

/// One page of the files that a task has of its own, instead of all of a dataset at a storage. `query`
/// selects id, LFN, size and digests of the files of task ?1 after file ?2, in their order, at most ?3.
pub(crate) fn selected_task_files(
    tx: &Transaction<'_>,
    query: &str,
    task: TaskId,
    after: Option<FileId>,
    limit: usize,
) -> Result<TaskFiles, CatalogError> {
    let mut select = tx.prepare_cached(query)?;
    let rows = select.query_map((key!(task), after.map_or(0, |file| key!(file)), limit as i64), |row| {
        Ok(ExpectedFileRow {
            file: row.id(0)?,
            lfn: row.parsed(1)?,
            size: row.number(2)?,
            digests: row.digests(3)?,
        })
    })?;
    let files = rows.collect::<Result<Vec<_>, _>>()?;
    let next = files.last().filter(|_| files.len() == limit).map(|file| file.file);
    Ok(TaskFiles { files, next, ..TaskFiles::default() })
}
