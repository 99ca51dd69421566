//! One block at one storage: a row with a base and exceptions, so that a complete block needs no row per
//! file.
//!
//! Files up to the base are present, good and verified alike, unless a row of `replicas` says otherwise.
//! Files beyond the base are present only by such a row.

use crate::sql::{Optional, Transaction};
use longhaul_model::{BlockId, DatasetId, FileId, StorageId, Timestamp, Verification};

use crate::rows::codec::{Columns, key, verification_number};
use crate::{CatalogError, VerificationState};

/// State of a good replica.
pub(crate) const GOOD: i64 = 0;
/// State of a suspect replica.
pub(crate) const SUSPECT: i64 = 1;
/// State of a replica that is absent although the base of its block covers it.
pub(crate) const GONE: i64 = 2;

/// A block at a storage, with its counters before and after the present transaction's changes.
#[derive(Clone, Copy)]
pub(crate) struct BlockReplica {
    pub(crate) dataset: DatasetId,
    pub(crate) is_stored: bool,
    pub(crate) base_file: i64,
    pub(crate) base_how: VerificationState,
    pub(crate) counts: Counts,
    pub(crate) exceptions: i64,
    pub(crate) deleting: i64,
    /// As in the row; that of a new row is the time at which it is written.
    pub(crate) verified: i64,
    pub(crate) counts_before: Counts,
    pub(crate) deleting_before: i64,
    /// Report the demands at the storage, even if none begins or ends.
    pub(crate) announce_demands: bool,
    /// A replica changed in a way that views of the block must show.
    pub(crate) changed: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) files: i64,
    pub(crate) bytes: i64,
    pub(crate) suspect_files: i64,
    pub(crate) suspect_bytes: i64,
    pub(crate) how: [i64; 4],
}

/// Whether a storage has a file, and how the replica was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Absent,
    Good(VerificationState),
    Suspect(VerificationState),
}

impl Counts {
    pub(crate) fn add(&mut self, presence: Presence, size: i64, sign: i64) {
        let how = match presence {
            Presence::Absent => return,
            Presence::Good(how) => how,
            Presence::Suspect(how) => {
                self.suspect_files += sign;
                self.suspect_bytes += sign * size;
                how
            }
        };
        self.files += sign;
        self.bytes += sign * size;
        self.how[verification_number(how) as usize] += sign;
    }

    pub(crate) fn good_files(&self) -> i64 {
        self.files - self.suspect_files
    }

    pub(crate) fn values(&self) -> [i64; 8] {
        let [a, b, c, d] = self.how;
        [self.files, self.bytes, self.suspect_files, self.suspect_bytes, a, b, c, d]
    }

    pub(crate) fn difference(&self, other: &Counts) -> [i64; 8] {
        let (ours, theirs) = (self.values(), other.values());
        std::array::from_fn(|at| ours[at] - theirs[at])
    }
}

impl BlockReplica {
    pub(crate) fn implied(&self, file: FileId) -> Presence {
        if key!(file) <= self.base_file { Presence::Good(self.base_how) } else { Presence::Absent }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.counts != self.counts_before || self.deleting != self.deleting_before || self.changed
    }

    pub(crate) fn empty(dataset: DatasetId) -> Self {
        BlockReplica {
            dataset,
            is_stored: false,
            base_file: 0,
            base_how: VerificationState::Registered,
            counts: Counts::default(),
            exceptions: 0,
            deleting: 0,
            verified: 0,
            counts_before: Counts::default(),
            deleting_before: 0,
            announce_demands: false,
            changed: false,
        }
    }
}

pub(crate) fn load_block_replica(
    tx: &Transaction<'_>,
    block: BlockId,
    storage: StorageId,
) -> Result<Option<BlockReplica>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT files, bytes, suspect_files, suspect_bytes, registered, wire, end_to_end, readback,
         dataset, base_file, base_how, exceptions, deleting, verified FROM block_replicas
         WHERE block = ?1 AND storage = ?2",
    )?;
    let replica = select.query_row((key!(block), key!(storage)), |row| {
        let counts = Counts {
            files: row.get(0)?,
            bytes: row.get(1)?,
            suspect_files: row.get(2)?,
            suspect_bytes: row.get(3)?,
            how: [row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?],
        };
        Ok(BlockReplica {
            is_stored: true,
            base_file: row.get(9)?,
            base_how: row.verification(10)?,
            counts,
            exceptions: row.get(11)?,
            deleting: row.get(12)?,
            verified: row.get(13)?,
            counts_before: counts,
            deleting_before: row.get(12)?,
            ..BlockReplica::empty(row.id(8)?)
        })
    });
    Ok(replica.optional()?)
}

pub(crate) fn find_exception(
    tx: &Transaction<'_>,
    block: BlockId,
    storage: StorageId,
    file: FileId,
) -> Result<Option<Presence>, CatalogError> {
    let mut select =
        tx.prepare_cached("SELECT state, how FROM replicas WHERE block = ?1 AND storage = ?2 AND file = ?3")?;
    let presence = select.query_row((key!(block), key!(storage), key!(file)), |row| {
        presence_from_row(row.get(0)?, row.verification(1)?, 0)
    });
    Ok(presence.optional()?)
}

/// Reads a row of `replicas`; `column` is that of the state, for the error.
pub(crate) fn presence_from_row(
    state: i64,
    how: VerificationState,
    column: usize,
) -> crate::sql::Result<Presence> {
    match state {
        GOOD => Ok(Presence::Good(how)),
        SUSPECT => Ok(Presence::Suspect(how)),
        GONE => Ok(Presence::Absent),
        other => Err(crate::sql::damaged(column, other)),
    }
}

/// Compacts a block that the storage has completely: moves the base to the last file and drops the rows that
/// say no more than it does. Rows remain for suspect files and for those verified otherwise than most.
pub(crate) fn compact(
    tx: &Transaction<'_>,
    block: BlockId,
    storage: StorageId,
    replica: &mut BlockReplica,
    last_file: i64,
) -> Result<(), CatalogError> {
    let most = [0i64, 3, 2, 1].into_iter().max_by_key(|&how| replica.counts.how[how as usize]).unwrap_or(0);
    let base_how = verification_number(replica.base_how);
    let row = (key!(block), key!(storage));
    // Another verification must hold for more than half of the files, or a tie would rewrite the block at
    // every change.
    let replace = most != base_how && replica.counts.how[most as usize] > replica.counts.files / 2;
    if replace && replica.base_file > 0 {
        tx.prepare_cached(
            "INSERT INTO replicas (block, storage, file, how, state)
             SELECT block, ?2, id, ?4, 0 FROM files WHERE block = ?1 AND id <= ?3
             ON CONFLICT DO NOTHING",
        )?
        .execute_deferred((row.0, row.1, replica.base_file, base_how))?;
    }
    if replace || replica.base_file == 0 {
        replica.base_how = match most {
            1 => VerificationState::Verified(Verification::Wire),
            2 => VerificationState::Verified(Verification::EndToEnd),
            3 => VerificationState::Verified(Verification::Readback),
            _ => VerificationState::Registered,
        };
    }
    replica.base_file = last_file;
    tx.prepare_cached("DELETE FROM replicas WHERE block = ?1 AND storage = ?2 AND state = 0 AND how = ?3")?
        .execute_deferred((row.0, row.1, verification_number(replica.base_how)))?;
    replica.exceptions = tx
        .prepare_cached("SELECT count(*) FROM replicas WHERE block = ?1 AND storage = ?2")?
        .query_row(row, |row| row.get(0))?;
    Ok(())
}

pub(crate) fn store_block_replica(
    tx: &Transaction<'_>,
    block: BlockId,
    storage: StorageId,
    replica: &BlockReplica,
    now: Timestamp,
) -> Result<(), CatalogError> {
    let row = (key!(block), key!(storage));
    if replica.counts.files == 0 {
        if replica.exceptions > 0 {
            tx.prepare_cached("DELETE FROM replicas WHERE block = ?1 AND storage = ?2")?
                .execute_deferred(row)?;
        }
        tx.prepare_cached("DELETE FROM block_replicas WHERE block = ?1 AND storage = ?2")?
            .execute_deferred(row)?;
        return Ok(());
    }
    let [files, bytes, suspect_files, suspect_bytes, registered, wire, end_to_end, readback] =
        replica.counts.values();
    let base = (replica.base_file, verification_number(replica.base_how));
    let update = "UPDATE block_replicas SET base_file = ?4, base_how = ?5, files = ?6, bytes = ?7,
        suspect_files = ?8, suspect_bytes = ?9, registered = ?10, wire = ?11, end_to_end = ?12, readback = \
        ?13,
        exceptions = ?14, deleting = ?15, verified = ?16 WHERE block = ?1 AND storage = ?2 AND dataset = ?3";
    let insert = "INSERT INTO block_replicas (block, storage, dataset, base_file, base_how, files, bytes,
        suspect_files, suspect_bytes, registered, wire, end_to_end, readback, exceptions, deleting, verified)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
    let written = tx.prepare_cached(if replica.is_stored { update } else { insert })?.execute((
        row.0,
        row.1,
        key!(replica.dataset),
        base.0,
        base.1,
        files,
        bytes,
        suspect_files,
        suspect_bytes,
        registered,
        wire,
        end_to_end,
        readback,
        replica.exceptions,
        replica.deleting,
        if replica.is_stored { replica.verified } else { now.0 },
    ))?;
    assert!(written == 1, "the row of block {block} at storage {storage} vanished within a transaction");
    Ok(())
}

pub(crate) fn add_to_totals(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
    delta: [i64; 8],
) -> Result<(), CatalogError> {
    if delta == [0; 8] {
        return Ok(());
    }
    let [files, bytes, suspect_files, suspect_bytes, registered, wire, end_to_end, readback] = delta;
    tx.prepare_cached(
        "INSERT INTO dataset_replicas AS r (dataset, storage, files, bytes, suspect_files, suspect_bytes,
           registered, wire, end_to_end, readback)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT (dataset, storage) DO UPDATE SET files = r.files + excluded.files,
           bytes = r.bytes + excluded.bytes, suspect_files = r.suspect_files + excluded.suspect_files,
           suspect_bytes = r.suspect_bytes + excluded.suspect_bytes, registered = r.registered + \
           excluded.registered,
           wire = r.wire + excluded.wire, end_to_end = r.end_to_end + excluded.end_to_end,
           readback = r.readback + excluded.readback",
    )?
    .execute_deferred((
        key!(dataset),
        key!(storage),
        files,
        bytes,
        suspect_files,
        suspect_bytes,
        registered,
        wire,
        end_to_end,
        readback,
    ))?;
    tx.prepare_cached("DELETE FROM dataset_replicas WHERE dataset = ?1 AND storage = ?2 AND files = 0")?
        .execute_deferred((key!(dataset), key!(storage)))?;
    tx.prepare_cached("UPDATE storages SET files = files + ?2, bytes = bytes + ?3 WHERE id = ?1")?
        .execute_deferred((key!(storage), files, bytes))?;
    Ok(())
}
