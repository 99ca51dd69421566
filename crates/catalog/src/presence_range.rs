//! What a storage has of a range of a block's files, read with one query.

use std::collections::BTreeMap;

use crate::sql::Transaction;
use longhaul_model::{BlockId, FileId, StorageId};

use crate::block_replica::{Presence, presence_from_row};
use crate::rows::codec::{Columns, key};
use crate::{CatalogError, VerificationState};

#[derive(Clone, Copy)]
pub(crate) struct BlockHolder {
    pub(crate) storage: StorageId,
    pub(crate) base_file: i64,
    pub(crate) base_how: VerificationState,
    pub(crate) files: u64,
    pub(crate) good: u64,
    pub(crate) exceptions: u64,
    pub(crate) deleting: bool,
}

/// A storage's replicas of a range of files.
pub(crate) struct PresenceRange {
    pub(crate) holder: BlockHolder,
    rows: BTreeMap<i64, Presence>,
}

impl PresenceRange {
    pub(crate) fn presence(&self, file: FileId) -> Presence {
        let implied = if key!(file) <= self.holder.base_file {
            Presence::Good(self.holder.base_how)
        } else {
            Presence::Absent
        };
        self.rows.get(&key!(file)).copied().unwrap_or(implied)
    }

    /// Whether a transfer may read the file there: good, and not being deleted.
    pub(crate) fn is_usable_source(&self, file: FileId) -> bool {
        !self.holder.deleting && matches!(self.presence(file), Presence::Good(_))
    }
}

/// The storages that have something of the block, by id.
pub(crate) fn block_holders(tx: &Transaction<'_>, block: BlockId) -> Result<Vec<BlockHolder>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT storage, base_file, base_how, files, files - suspect_files, exceptions, deleting
         FROM block_replicas WHERE block = ?1 ORDER BY storage",
    )?;
    let rows = select.query_map([key!(block)], |row| {
        Ok(BlockHolder {
            storage: row.id(0)?,
            base_file: row.get(1)?,
            base_how: row.verification(2)?,
            files: row.number(3)?,
            good: row.number(4)?,
            exceptions: row.number(5)?,
            deleting: row.number(6)? != 0,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Loads the replicas of the files `first` to `last`, both included.
pub(crate) fn load_presence_range(
    tx: &Transaction<'_>,
    block: BlockId,
    holder: BlockHolder,
    first: FileId,
    last: FileId,
) -> Result<PresenceRange, CatalogError> {
    let mut rows = BTreeMap::new();
    if holder.exceptions > 0 {
        let mut select = tx.prepare_cached(
            "SELECT file, how, state FROM replicas WHERE block = ?1 AND storage = ?2 AND file BETWEEN ?3 AND \
                ?4",
        )?;
        let range = (key!(block), key!(holder.storage), key!(first), key!(last));
        let found = select.query_map(range, |row| {
            Ok((row.get(0)?, presence_from_row(row.get(2)?, row.verification(1)?, 2)?))
        })?;
        rows = found.collect::<Result<_, _>>()?;
    }
    Ok(PresenceRange { holder, rows })
}
