//! The counters of one transaction: collects what it does to blocks and replicas, writes every counter once
//! at a flush, and names the targets whose demands that may affect.
//!
//! Everything that adds, loses or suspects a replica goes through the ledger, so totals, demands and rows
//! stay consistent.

use std::collections::{BTreeMap, BTreeSet};

use crate::sql::Transaction;
use longhaul_model::{BlockId, DatasetId, Fault, FileId, StorageId, SubscriptionId, Timestamp};

use crate::block_replica::{
    BlockReplica, GONE, GOOD, Presence, SUSPECT, add_to_totals, compact, find_exception, load_block_replica,
    store_block_replica,
};
use crate::rows::codec::{Columns, key, maybe_json, verification_number};
use crate::{BlockTotals, CancelledTransfer, CatalogError, DemandRow, VerificationState};

/// Blocks and block replicas held in memory before a flush. Bounds memory: a manifest may name a block for
/// each of its files.
const LEDGER_ENTRIES_MAX: usize = 4_096;

pub(crate) struct Ledger<'t> {
    pub(crate) tx: &'t Transaction<'t>,
    pub(crate) now: Timestamp,
    blocks: BTreeMap<BlockId, BlockState>,
    replicas: BTreeMap<(BlockId, StorageId), BlockReplica>,
    pub(crate) effects: Effects,
}

/// What a transaction changed, for callers that mirror the state in memory. The last change of each counts,
/// since a transaction may flush several times.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) blocks: BTreeMap<BlockId, BlockTotals>,
    pub(crate) complete: BTreeMap<(BlockId, StorageId), BlockTotals>,
    /// None: the demand ended.
    pub(crate) demands: BTreeMap<(SubscriptionId, BlockId), Option<DemandRow>>,
    pub(crate) subscriptions_complete: BTreeSet<SubscriptionId>,
    pub(crate) cancelled: Vec<CancelledTransfer>,
}

/// A target whose demands of a block a flush may affect.
pub(crate) struct CoverageChange {
    pub(crate) dataset: DatasetId,
    pub(crate) block: BlockId,
    pub(crate) target: StorageId,
    pub(crate) coverage: Coverage,
}

/// What a target holds of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// Every file of the block, and each of them good.
    Whole,
    /// Files are missing or suspect.
    Incomplete,
    /// Files are missing, and a deletion of the rest is under way.
    Deleting,
}

impl Effects {
    /// Takes the demands as they are now, and those that ended.
    pub(crate) fn take_demands(&mut self) -> (Vec<DemandRow>, Vec<(SubscriptionId, BlockId)>) {
        let (mut present, mut gone) = (Vec::new(), Vec::new());
        for (key, row) in std::mem::take(&mut self.demands) {
            match row {
                Some(row) => present.push(row),
                None => gone.push(key),
            }
        }
        (present, gone)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct BlockState {
    pub(crate) dataset: DatasetId,
    pub(crate) files: i64,
    pub(crate) bytes: i64,
    pub(crate) last_file: i64,
    pub(crate) open: bool,
    files_before: i64,
    bytes_before: i64,
    open_before: bool,
}

impl BlockState {
    fn has_new_files(&self) -> bool {
        self.files != self.files_before
    }

    pub(crate) fn totals(&self, block: BlockId) -> BlockTotals {
        BlockTotals { block, dataset: self.dataset, files: self.files as u64, bytes: self.bytes as u64 }
    }
}

impl<'t> Ledger<'t> {
    pub(crate) fn new(tx: &'t Transaction<'t>, now: Timestamp) -> Self {
        Ledger { tx, now, blocks: BTreeMap::new(), replicas: BTreeMap::new(), effects: Effects::default() }
    }

    pub(crate) fn block(&mut self, block: BlockId) -> Result<&mut BlockState, CatalogError> {
        if !self.blocks.contains_key(&block) {
            let mut select = self
                .tx
                .prepare_cached("SELECT dataset, files, bytes, last_file, open FROM blocks WHERE id = ?1")?;
            let state = select.query_row([key!(block)], |row| {
                Ok(BlockState {
                    dataset: row.id(0)?,
                    files: row.get(1)?,
                    bytes: row.get(2)?,
                    last_file: row.get(3)?,
                    open: row.get(4)?,
                    files_before: row.get(1)?,
                    bytes_before: row.get(2)?,
                    open_before: row.get(4)?,
                })
            })?;
            self.blocks.insert(block, state);
        }
        match self.blocks.get_mut(&block) {
            Some(state) => Ok(state),
            None => unreachable!("it was inserted above"),
        }
    }

    fn replica(&mut self, block: BlockId, storage: StorageId) -> Result<&mut BlockReplica, CatalogError> {
        if !self.replicas.contains_key(&(block, storage)) {
            let dataset = self.block(block)?.dataset;
            let replica =
                load_block_replica(self.tx, block, storage)?.unwrap_or(BlockReplica::empty(dataset));
            self.replicas.insert((block, storage), replica);
        }
        match self.replicas.get_mut(&(block, storage)) {
            Some(replica) => Ok(replica),
            None => unreachable!("it was inserted above"),
        }
    }

    /// Whether the storage has the file, as seen by this transaction.
    pub(crate) fn presence(
        &mut self,
        block: BlockId,
        storage: StorageId,
        file: FileId,
    ) -> Result<Presence, CatalogError> {
        let replica = *self.replica(block, storage)?;
        if replica.exceptions == 0 {
            return Ok(replica.implied(file));
        }
        Ok(find_exception(self.tx, block, storage, file)?.unwrap_or(replica.implied(file)))
    }

    /// Whether a transfer may read the file there: its replica is good, and no deletion of its block is under
    /// way.
    pub(crate) fn is_usable_source(
        &mut self,
        block: BlockId,
        storage: StorageId,
        file: FileId,
    ) -> Result<bool, CatalogError> {
        let deleting = self.replica(block, storage)?.deleting != 0;
        Ok(!deleting && matches!(self.presence(block, storage, file)?, Presence::Good(_)))
    }

    /// Sets the file's presence at the storage and returns the previous one.
    pub(crate) fn set_presence(
        &mut self,
        block: BlockId,
        storage: StorageId,
        file: FileId,
        size: u64,
        to: Presence,
        fault: Option<&Fault>,
    ) -> Result<Presence, CatalogError> {
        let tx = self.tx;
        let replica = self.replica(block, storage)?;
        let implied = replica.implied(file);
        let row = (key!(block), key!(storage), key!(file));
        // The common case, a first arrival, takes one statement.
        if let (Presence::Absent, Presence::Good(how)) = (implied, to) {
            let mut insert = tx.prepare_cached(
                "INSERT INTO replicas (block, storage, file, how, state) VALUES (?1, ?2, ?3, ?4, 0)
                 ON CONFLICT DO NOTHING",
            )?;
            if insert.execute((row.0, row.1, row.2, verification_number(how)))? == 1 {
                replica.exceptions += 1;
                replica.counts.add(to, size as i64, 1);
                return Ok(Presence::Absent);
            }
        }
        let stored = if replica.exceptions == 0 { None } else { find_exception(tx, block, storage, file)? };
        let was = stored.unwrap_or(implied);
        if to == implied {
            if stored.is_some() {
                let mut delete = tx
                    .prepare_cached("DELETE FROM replicas WHERE block = ?1 AND storage = ?2 AND file = ?3")?;
                delete.execute_deferred(row)?;
                replica.exceptions -= 1;
            }
        } else {
            let (how, state) = match to {
                Presence::Absent => (VerificationState::Registered, GONE),
                Presence::Good(how) => (how, GOOD),
                Presence::Suspect(how) => (how, SUSPECT),
            };
            let mut upsert = tx.prepare_cached(
                "INSERT INTO replicas (block, storage, file, how, state, fault) VALUES (?1, ?2, ?3, ?4, ?5, \
                    ?6)
                 ON CONFLICT (block, storage, file) DO UPDATE
                 SET how = excluded.how, state = excluded.state, fault = excluded.fault",
            )?;
            upsert.execute_deferred((
                row.0,
                row.1,
                row.2,
                verification_number(how),
                state,
                maybe_json(fault),
            ))?;
            replica.exceptions += i64::from(stored.is_none());
        }
        replica.counts.add(was, size as i64, -1);
        replica.counts.add(to, size as i64, 1);
        replica.changed |= was != to;
        replica.announce_demands |= matches!(was, Presence::Good(_)) != matches!(to, Presence::Good(_));
        Ok(was)
    }

    /// Counts a new file of the block. Ids only grow.
    pub(crate) fn add_file(
        &mut self,
        block: BlockId,
        file: FileId,
        size: u64,
    ) -> Result<BlockState, CatalogError> {
        let state = self.block(block)?;
        assert!(key!(file) > state.last_file, "file ids of a block only grow");
        state.files += 1;
        state.bytes += size as i64;
        state.last_file = key!(file);
        Ok(*state)
    }

    /// Registers the file that [`Ledger::add_file`] just added at the storage, verified as `how` says. As
    /// long as the storage has the whole block, all verified alike, this writes no row.
    pub(crate) fn add_registered(
        &mut self,
        block: BlockId,
        storage: StorageId,
        file: FileId,
        size: u64,
        how: VerificationState,
    ) -> Result<(), CatalogError> {
        let files = self.block(block)?.files;
        let replica = self.replica(block, storage)?;
        let whole = replica.counts.files + 1 == files;
        if whole && (replica.base_file == 0 || replica.base_how == how) {
            replica.base_file = key!(file);
            replica.base_how = how;
            replica.counts.add(Presence::Good(how), size as i64, 1);
            return Ok(());
        }
        self.set_presence(block, storage, file, size, Presence::Good(how), None).map(|_| ())
    }

    /// Begins (with a task's id) or ends (0) the deletion of the block at the storage.
    pub(crate) fn set_deleting(
        &mut self,
        block: BlockId,
        storage: StorageId,
        task: i64,
    ) -> Result<(), CatalogError> {
        let replica = self.replica(block, storage)?;
        if replica.counts.files > 0 {
            replica.deleting = task;
        }
        Ok(())
    }

    pub(crate) fn deleting_task(&mut self, block: BlockId, storage: StorageId) -> Result<i64, CatalogError> {
        Ok(self.replica(block, storage)?.deleting)
    }

    /// Whether the ledger holds so much that it is time to flush.
    pub(crate) fn is_full(&self) -> bool {
        self.blocks.len() + self.replicas.len() > LEDGER_ENTRIES_MAX
    }

    /// Writes out every counter. Returns the targets whose demands the change may affect, by block and
    /// target: `consequences` applies what follows for them.
    pub(crate) fn flush(&mut self) -> Result<Vec<CoverageChange>, CatalogError> {
        self.write_blocks()?;
        self.write_replicas()?;
        let mut affected = self.affected_targets()?;
        affected.sort_unstable();
        affected.dedup();
        let changes = affected.into_iter().map(|(block, target)| self.coverage_change(block, target));
        let changes = changes.collect::<Result<Vec<_>, _>>()?;
        self.blocks.clear();
        self.replicas.clear();
        Ok(changes)
    }

    fn write_blocks(&mut self) -> Result<(), CatalogError> {
        let mut update = self.tx.prepare_cached(
            "UPDATE blocks SET files = ?2, bytes = ?3, last_file = ?4, open = ?5 WHERE id = ?1",
        )?;
        let mut datasets: BTreeMap<DatasetId, (i64, i64)> = BTreeMap::new();
        for (&block, state) in &self.blocks {
            if state.has_new_files() || state.open != state.open_before {
                update.execute_deferred((
                    key!(block),
                    state.files,
                    state.bytes,
                    state.last_file,
                    state.open,
                ))?;
                let sum = datasets.entry(state.dataset).or_default();
                sum.0 += state.files - state.files_before;
                sum.1 += state.bytes - state.bytes_before;
                self.effects.blocks.insert(block, state.totals(block));
            }
        }
        let mut update = self
            .tx
            .prepare_cached("UPDATE datasets SET files = files + ?2, bytes = bytes + ?3 WHERE id = ?1")?;
        for (dataset, (files, bytes)) in datasets {
            update.execute_deferred((key!(dataset), files, bytes))?;
        }
        Ok(())
    }

    fn write_replicas(&mut self) -> Result<(), CatalogError> {
        let mut totals: BTreeMap<(DatasetId, StorageId), [i64; 8]> = BTreeMap::new();
        for (&(block, storage), replica) in &mut self.replicas {
            let Some(state) = self.blocks.get(&block) else {
                unreachable!("a block replica is loaded with its block")
            };
            if !replica.is_dirty() {
                continue;
            }
            assert!(
                replica.counts.files <= state.files,
                "a storage has more files of block {block} than the block has"
            );
            if replica.counts.files == state.files && replica.exceptions > 0 {
                compact(self.tx, block, storage, replica, state.last_file)?;
            }
            store_block_replica(self.tx, block, storage, replica, self.now)?;
            let sum = totals.entry((replica.dataset, storage)).or_default();
            for (slot, delta) in sum.iter_mut().zip(replica.counts.difference(&replica.counts_before)) {
                *slot += delta;
            }
            if replica.changed && !state.has_new_files() {
                self.effects.blocks.insert(block, state.totals(block));
            }
        }
        for ((dataset, storage), delta) in totals {
            add_to_totals(self.tx, dataset, storage, delta)?;
        }
        Ok(())
    }

    /// Blocks and targets whose demands may begin or end, or are to be announced again.
    fn affected_targets(&mut self) -> Result<Vec<(BlockId, StorageId)>, CatalogError> {
        let mut affected = Vec::new();
        let mut wanted_at = self.tx.prepare_cached(
            "SELECT target FROM subscriptions WHERE dataset = ?1 AND block IN (0, ?2)
             AND state <> 'cancelled' AND state = 'active'",
        )?;
        for (&block, state) in self.blocks.iter().filter(|(_, state)| state.has_new_files()) {
            for target in wanted_at.query_map((key!(state.dataset), key!(block)), |row| row.id(0))? {
                affected.push((block, target?));
            }
        }
        for (&(block, storage), replica) in &self.replicas {
            let Some(state) = self.blocks.get(&block) else {
                unreachable!("a block replica is loaded with its block")
            };
            let lacks = replica.counts.good_files() < state.files && replica.deleting == 0;
            let lacked =
                replica.counts_before.good_files() < state.files_before && replica.deleting_before == 0;
            if lacks != lacked || (replica.announce_demands && lacks) {
                affected.push((block, storage));
            }
            let whole =
                state.files > 0 && replica.counts.good_files() == state.files && replica.deleting == 0;
            if whole && (lacked || state.has_new_files() || replica.deleting_before != 0) {
                self.effects.complete.insert((block, storage), state.totals(block));
            } else if !whole {
                self.effects.complete.remove(&(block, storage));
            }
        }
        Ok(affected)
    }

    /// How the target stands to the block now.
    fn coverage_change(&mut self, block: BlockId, target: StorageId) -> Result<CoverageChange, CatalogError> {
        let (files, dataset) = self.block(block).map(|state| (state.files, state.dataset))?;
        let replica = self.replica(block, target)?;
        let coverage = if replica.counts.good_files() == files {
            Coverage::Whole
        } else if replica.deleting == 0 {
            Coverage::Incomplete
        } else {
            Coverage::Deleting
        };
        Ok(CoverageChange { dataset, block, target, coverage })
    }
}
