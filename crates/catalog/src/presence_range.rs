//! What a storage has of a range of a block's files, read with one query.

use std::collections::BTreeMap;

use crate::sql::Transaction;
use longhaul_model::{BlockId, FileId, StorageId, StorageKind, Timestamp, Verification};

use crate::block_replica::{Presence, presence_from_row};
use crate::rows::codec::{Columns, key};
use crate::{CatalogError, Copy, CopyTerms, VerificationState};

#[derive(Clone, Copy)]
pub(crate) struct BlockHolder {
    pub(crate) storage: StorageId,
    pub(crate) base_file: i64,
    pub(crate) base_how: VerificationState,
    pub(crate) files: u64,
    pub(crate) good: u64,
    /// Files that nobody verified.
    pub(crate) registered: u64,
    pub(crate) exceptions: u64,
    pub(crate) deleting: bool,
    /// Its replicas were verified then or later, as far as they were. None: not known.
    pub(crate) verified: Option<Timestamp>,
    pub(crate) is_virtual: bool,
}

impl BlockHolder {
    /// A replica of the block there.
    pub(crate) fn copy(&self, how: VerificationState, suspect: bool) -> Copy {
        Copy {
            storage: self.storage,
            is_virtual: self.is_virtual,
            suspect,
            deleting: self.deleting,
            how,
            verified: self.verified,
        }
    }

    /// Whether it has `total` files, each of them a good copy.
    pub(crate) fn has_all_good(&self, total: u64, terms: &CopyTerms) -> bool {
        let best = VerificationState::Verified(Verification::Readback);
        self.good == total && self.registered == 0 && self.copy(best, false).defect(terms).is_none()
    }

    /// Whether the block's replicas there are alike: `total` files, all verified in the same way.
    pub(crate) fn is_uniform(&self, total: u64) -> bool {
        self.files == total && self.exceptions == 0
    }
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

    /// The copy of the file, if there is one.
    pub(crate) fn copy(&self, file: FileId) -> Option<Copy> {
        match self.presence(file) {
            Presence::Absent => None,
            Presence::Good(how) => Some(self.holder.copy(how, false)),
            Presence::Suspect(how) => Some(self.holder.copy(how, true)),
        }
    }

    /// Whether a transfer may read the file there: good, and not being deleted.
    pub(crate) fn is_usable_source(&self, file: FileId) -> bool {
        !self.holder.deleting && matches!(self.presence(file), Presence::Good(_))
    }
}

/// The storages that have something of the block, by id.
pub(crate) fn block_holders(tx: &Transaction<'_>, block: BlockId) -> Result<Vec<BlockHolder>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT r.storage, r.base_file, r.base_how, r.files, r.files - r.suspect_files, r.exceptions,
         r.deleting, r.registered, r.verified, t.kind
         FROM block_replicas r JOIN storages t ON t.id = r.storage WHERE r.block = ?1 ORDER BY r.storage",
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
            registered: row.number(7)?,
            verified: Some(row.time(8)?).filter(|&at| at > Timestamp::ZERO),
            is_virtual: row.parsed::<StorageKind>(9)? == StorageKind::Virtual,
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
