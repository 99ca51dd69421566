//! Live transfers: leases (Gray, Cheriton, 1989) are made durable, revoked, and ended.

use std::collections::BTreeMap;

use crate::sql::{Optional, Params, Transaction};
use longhaul_model::fault::retry_delay;
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_model::{
    AgentId, AttemptId, BlockId, DatasetId, Fault, FaultCode, StorageId, Timestamp, TransferId, TransferState,
};

use crate::block_replica::Presence;
use crate::database::SCAN_TIME_MAX;
use crate::history::{AttemptEnd, record_end};
use crate::ledger::Ledger;
use crate::relays::is_clearing;
use crate::repairs::{is_damaged, is_worn};
use crate::rows::codec::{Columns, key, to_json};
use crate::rows::live::LiveTransfer;
use crate::test_data::may_copy;
use crate::{
    CancelledTransfer, Catalog, CatalogError, LeaseRefusal, LeaseResult, LiveTransferRow, NewAttempt,
};

impl Catalog {
    /// Makes leases durable, at most [`BATCH_ITEMS_MAX`]; returns one result each, in order. Only those with
    /// [`LeaseResult::Leased`] may leave the process.
    pub fn begin_attempts(
        &self,
        attempts: &[NewAttempt],
        now: Timestamp,
    ) -> Result<Vec<LeaseResult>, CatalogError> {
        if attempts.len() > BATCH_ITEMS_MAX {
            let detail = format!("{} leases at once, the limit is {BATCH_ITEMS_MAX}", attempts.len());
            return Err(CatalogError::refused(FaultCode::TooLarge, detail));
        }
        self.write(|tx| {
            let mut ledger = Ledger::new(tx, now);
            let mut wanted = BTreeMap::new();
            attempts.iter().map(|attempt| begin(&mut ledger, &mut wanted, attempt)).collect()
        })
    }

    /// Releases the agent's leases except those in `held`. The released transfers wait again and are
    /// returned.
    pub fn release_leases_except(
        &self,
        agent: AgentId,
        held: &[AttemptId],
        now: Timestamp,
    ) -> Result<Vec<LiveTransferRow>, CatalogError> {
        let held: std::collections::BTreeSet<AttemptId> = held.iter().copied().collect();
        let fault = Fault::new(FaultCode::Interrupted, "the agent does not hold this lease any more");
        self.write(|tx| {
            let mut select =
                tx.prepare_cached("SELECT attempt FROM live WHERE agent = ?1 AND leased = 1 ORDER BY id")?;
            let leased: Vec<AttemptId> =
                select.query_map([key!(agent)], |row| row.id(0))?.collect::<Result<_, _>>()?;
            let lost = leased.into_iter().filter(|attempt| !held.contains(attempt));
            requeue_attempts(tx, lost, &fault, now)
        })
    }

    /// Ends leases that were revoked before they began, or expired: their transfers wait again and are
    /// returned. Skips attempts that are not live.
    pub fn revoke_leases(
        &self,
        attempts: &[AttemptId],
        fault: &Fault,
        now: Timestamp,
    ) -> Result<Vec<LiveTransferRow>, CatalogError> {
        self.write(|tx| requeue_attempts(tx, attempts.iter().copied(), fault, now))
    }

    /// Everything that a scheduler adopts after a restart.
    pub fn live_transfers(&self) -> Result<Vec<LiveTransferRow>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let mut select = tx.prepare_cached(&format!("{} ORDER BY l.id", LiveTransferRow::SELECT))?;
            let rows = select.query_map((), LiveTransferRow::read)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Ends live transfers as cancelled or, with a fault other than `Cancelled`, as failed. Skips those not
    /// live.
    pub fn cancel_transfers(
        &self,
        transfers: &[TransferId],
        fault: &Fault,
        now: Timestamp,
    ) -> Result<Vec<CancelledTransfer>, CatalogError> {
        self.write(|tx| {
            let mut ended = Vec::new();
            for &transfer in transfers {
                if let Some(live) = find_live(tx, "l.id = ?1", key!(transfer))? {
                    ended.push(end_transfer(tx, &live, fault, now)?);
                }
            }
            Ok(ended)
        })
    }
}

pub(crate) fn find_leased(
    tx: &Transaction<'_>,
    attempt: AttemptId,
) -> Result<Option<LiveTransfer>, CatalogError> {
    find_live(tx, "l.attempt = ?1 AND l.leased = 1", key!(attempt))
}

/// Ends every live transfer of the block to the target.
pub(crate) fn end_transfers_to(
    tx: &Transaction<'_>,
    block: BlockId,
    target: StorageId,
    fault: &Fault,
    now: Timestamp,
) -> Result<Vec<CancelledTransfer>, CatalogError> {
    let condition = "l.target = ?1 AND l.block = ?2 ORDER BY l.file";
    end_transfers_where(tx, condition, (key!(target), key!(block)), fault, now)
}

/// Ends every live transfer to the target.
pub(crate) fn end_transfers_of_target(
    tx: &Transaction<'_>,
    target: StorageId,
    fault: &Fault,
    now: Timestamp,
) -> Result<Vec<CancelledTransfer>, CatalogError> {
    end_transfers_where(tx, "l.target = ?1 ORDER BY l.id", [key!(target)], fault, now)
}

fn end_transfers_where(
    tx: &Transaction<'_>,
    condition: &str,
    keys: impl Params,
    fault: &Fault,
    now: Timestamp,
) -> Result<Vec<CancelledTransfer>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{} {condition}", LiveTransfer::SELECT))?;
    let live = select.query_map(keys, LiveTransfer::read)?.collect::<Result<Vec<_>, _>>()?;
    live.iter().map(|live| end_transfer(tx, live, fault, now)).collect()
}

/// Returns a transfer to waiting after its attempt failed with `fault`. Returns when to try again.
pub(crate) fn return_to_waiting(
    tx: &Transaction<'_>,
    live: &LiveTransfer,
    fault: &Fault,
    now: Timestamp,
) -> Result<Timestamp, CatalogError> {
    // The scheduler computes its own, jittered back-off; this one counts after a restart.
    let not_before = now + retry_delay(fault.retry, live.attempts, 0.5);
    tx.prepare_cached("UPDATE live SET leased = 0, not_before = ?2, changed = ?3, fault = ?4 WHERE id = ?1")?
        .execute_deferred((key!(live.id), not_before.0, now.0, to_json(fault)))?;
    Ok(not_before)
}

/// Ends every live transfer of the block to a relay, unless some target still demands the block.
pub(crate) fn end_idle_hops(
    tx: &Transaction<'_>,
    block: BlockId,
    fault: &Fault,
    now: Timestamp,
) -> Result<Vec<CancelledTransfer>, CatalogError> {
    let mut demanded = tx.prepare_cached("SELECT 1 FROM demands WHERE block = ?1")?;
    if demanded.exists([key!(block)])? {
        return Ok(Vec::new());
    }
    let mut select =
        tx.prepare_cached(&format!("{} l.hop = 1 AND l.block = ?1 ORDER BY l.id", LiveTransfer::SELECT))?;
    let live = select.query_map([key!(block)], LiveTransfer::read)?.collect::<Result<Vec<_>, _>>()?;
    live.iter().map(|live| end_transfer(tx, live, fault, now)).collect()
}

/// How a block is demanded at a target.
#[derive(Clone, Copy, PartialEq)]
enum DemandKind {
    Nowhere,
    AtTarget,
    /// Another target demands it, and this one is a relay that it may pass.
    ThroughRelay,
}

fn find_demand(tx: &Transaction<'_>, block: BlockId, target: StorageId) -> Result<DemandKind, CatalogError> {
    let mut there = tx.prepare_cached("SELECT 1 FROM demands WHERE block = ?1 AND target = ?2")?;
    if there.exists((key!(block), key!(target)))? {
        return Ok(DemandKind::AtTarget);
    }
    let mut beyond = tx.prepare_cached(
        "SELECT 1 FROM storages WHERE id = ?2 AND relay = 1 AND EXISTS (SELECT 1 FROM demands WHERE block = \
            ?1)",
    )?;
    let beyond = beyond.exists((key!(block), key!(target)))?;
    Ok(if beyond { DemandKind::ThroughRelay } else { DemandKind::Nowhere })
}

fn begin(
    ledger: &mut Ledger<'_>,
    wanted: &mut BTreeMap<(BlockId, StorageId), DemandKind>,
    new: &NewAttempt,
) -> Result<LeaseResult, CatalogError> {
    let tx = ledger.tx;
    let mut select = tx.prepare_cached("SELECT block FROM files WHERE id = ?1")?;
    let Some(block) = select.query_row([key!(new.file)], |row| row.id::<BlockId>(0)).optional()? else {
        return Ok(LeaseResult::Refused(LeaseRefusal::NoSuchFile));
    };
    let wanted = match wanted.get(&(block, new.target)) {
        Some(&known) => known,
        None => {
            let found = find_demand(tx, block, new.target)?;
            wanted.insert((block, new.target), found);
            found
        }
    };
    let presence = ledger.presence(block, new.target, new.file)?;
    if matches!(presence, Presence::Good(_)) {
        return Ok(LeaseResult::Refused(LeaseRefusal::AlreadyThere));
    }
    if wanted == DemandKind::Nowhere {
        return Ok(LeaseResult::Refused(LeaseRefusal::NotWanted));
    }
    if new.source == new.target || !ledger.is_usable_source(block, new.source, new.file)? {
        return Ok(LeaseResult::Refused(LeaseRefusal::SourceGone));
    }
    if !may_copy(tx, new.source, new.target)? {
        return Ok(LeaseResult::Refused(LeaseRefusal::SourceGone));
    }
    let replaces = matches!(presence, Presence::Suspect(_)) && is_damaged(tx, block, new.target, new.file)?;
    if replaces && is_worn(tx, new.file, new.target, ledger.now)? {
        return Ok(LeaseResult::Refused(LeaseRefusal::Worn));
    }
    if is_clearing(tx, new.target, new.file)? {
        return Ok(LeaseResult::Refused(LeaseRefusal::Clearing));
    }
    let dataset = ledger.block(block)?.dataset;
    let place = TransferContext { block, dataset, hop: wanted == DemandKind::ThroughRelay };
    if !insert_live(tx, new, place, ledger.now)? && !renew_live(tx, new, ledger.now)? {
        return Ok(LeaseResult::Refused(renewal_refusal(tx, new)?));
    }
    tx.prepare_cached(
        "INSERT INTO choices (attempt, transfer, choice) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
    )?
    .execute_deferred((key!(new.attempt), key!(new.transfer), new.choice.as_str()))?;
    Ok(if replaces { LeaseResult::LeasedToReplace } else { LeaseResult::Leased })
}

/// What a new transfer belongs to, and whether its target is only a relay on the way.
#[derive(Clone, Copy)]
struct TransferContext {
    block: BlockId,
    dataset: DatasetId,
    hop: bool,
}

fn insert_live(
    tx: &Transaction<'_>,
    new: &NewAttempt,
    place: TransferContext,
    now: Timestamp,
) -> Result<bool, CatalogError> {
    // A finished transfer is never started again.
    let mut insert = tx.prepare_cached(
        "INSERT INTO live (id, file, block, dataset, target, subscription, leased, attempts, attempt, epoch, \
            source,
           agent, start_by, not_before, created, chosen, changed, hop)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, 1, 1, ?7, ?8, ?9, ?10, ?11, ?12, ?12, ?12, ?12, ?13
         WHERE NOT EXISTS (SELECT 1 FROM history WHERE transfer = ?1) ON CONFLICT DO NOTHING",
    )?;
    let inserted = insert.execute((
        key!(new.transfer),
        key!(new.file),
        key!(place.block),
        key!(place.dataset),
        key!(new.target),
        key!(new.subscription),
        key!(new.attempt),
        key!(new.epoch),
        key!(new.source),
        key!(new.agent),
        new.start_by.0,
        now.0,
        place.hop,
    ))?;
    Ok(inserted == 1)
}

fn renew_live(tx: &Transaction<'_>, new: &NewAttempt, now: Timestamp) -> Result<bool, CatalogError> {
    let mut update = tx.prepare_cached(
        "UPDATE live SET leased = 1, attempts = attempts + 1, attempt = ?4, epoch = ?5, source = ?6,
           agent = ?7, start_by = ?8, subscription = ?9, chosen = ?10, changed = ?10
         WHERE id = ?1 AND file = ?2 AND target = ?3 AND leased = 0 AND epoch < ?5
           AND NOT EXISTS (SELECT 1 FROM live other WHERE other.attempt = ?4 AND other.id <> ?1)",
    )?;
    let updated = update.execute((
        key!(new.transfer),
        key!(new.file),
        key!(new.target),
        key!(new.attempt),
        key!(new.epoch),
        key!(new.source),
        key!(new.agent),
        new.start_by.0,
        key!(new.subscription),
        now.0,
    ))?;
    Ok(updated == 1)
}

fn renewal_refusal(tx: &Transaction<'_>, new: &NewAttempt) -> Result<LeaseRefusal, CatalogError> {
    let stale = find_live(tx, "l.id = ?1", key!(new.transfer))?.is_some_and(|live| {
        !live.leased && live.file == new.file && live.target == new.target && live.epoch >= new.epoch
    });
    Ok(if stale { LeaseRefusal::StaleEpoch } else { LeaseRefusal::Live })
}

pub(crate) fn requeue_attempts(
    tx: &Transaction<'_>,
    attempts: impl Iterator<Item = AttemptId>,
    fault: &Fault,
    now: Timestamp,
) -> Result<Vec<LiveTransferRow>, CatalogError> {
    let mut waiting = Vec::new();
    for attempt in attempts {
        let Some(live) = find_leased(tx, attempt)? else { continue };
        record_end(tx, &live, &AttemptEnd { state: None, fault: Some(fault), outcome: None, at: now })?;
        return_to_waiting(tx, &live, fault, now)?;
        let mut select = tx.prepare_cached(&format!("{} WHERE l.id = ?1", LiveTransferRow::SELECT))?;
        waiting.push(select.query_row([key!(live.id)], LiveTransferRow::read)?);
    }
    Ok(waiting)
}

fn end_transfer(
    tx: &Transaction<'_>,
    live: &LiveTransfer,
    fault: &Fault,
    now: Timestamp,
) -> Result<CancelledTransfer, CatalogError> {
    let state =
        if fault.code == FaultCode::Cancelled { TransferState::Cancelled } else { TransferState::Failed };
    record_end(tx, live, &AttemptEnd { state: Some(state), fault: Some(fault), outcome: None, at: now })?;
    delete_live(tx, live.id)?;
    let lease = live.leased.then_some((live.attempt, live.agent));
    Ok(CancelledTransfer {
        transfer: live.id,
        file: live.file,
        block: live.block,
        target: live.target,
        lease,
    })
}

pub(crate) fn delete_live(tx: &Transaction<'_>, id: TransferId) -> Result<(), CatalogError> {
    tx.prepare_cached("DELETE FROM live WHERE id = ?1")?.execute_deferred([key!(id)])?;
    Ok(())
}

fn find_live(
    tx: &Transaction<'_>,
    condition: &str,
    value: i64,
) -> Result<Option<LiveTransfer>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{} {condition}", LiveTransfer::SELECT))?;
    Ok(select.query_row([value], LiveTransfer::read).optional()?)
}
