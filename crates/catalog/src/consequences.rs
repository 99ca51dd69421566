//! Consequences, by incremental view maintenance (Gupta, Mumick, 1995): what follows, in the same
//! transaction, when a storage gains or loses replicas of a block.
//!
//! The [`Ledger`] keeps the counters. When it is flushed, it names the targets whose demands may be affected,
//! and these rules are applied to them, block by block and target by target:
//!
//! 1. A target that lacks good files of a block, and does not delete it, is demanded: each active
//!    subscription of the block or its dataset there gets a demand, and is no longer complete.
//! 2. A target that has the whole block, or deletes it, is not: its demands of the block end.
//! 3. Where demands end, the live transfers of the block to that target end too. If no target demands the
//!    block any more, so do its transfers to relays.
//! 4. At a target that has the whole block, each active subscription without any demand is complete. Checked
//!    last, when all demands are up to date.
//!
//! Other consequences have their own modules: compact rows of complete blocks (`block_replica`), demands of a
//! subscription that was changed itself (`subscriptions`), files at relays that nobody waits for any more
//! (`relay_cleanup`).

use std::collections::BTreeSet;

use crate::sql::Transaction;
use longhaul_model::{Fault, FaultCode, SubscriptionId, Timestamp};

use crate::CatalogError;
use crate::attempts::{end_idle_hops, end_transfers_to};
use crate::ledger::{Coverage, CoverageChange, Effects, Ledger};
use crate::rows::codec::{Columns, key};
use crate::subscriptions::{demands_of_block, mark_completed};

/// Flushes the ledger and applies what follows.
pub(crate) fn flush(ledger: &mut Ledger<'_>) -> Result<(), CatalogError> {
    let changes = ledger.flush()?;
    apply_consequences(ledger.tx, &changes, ledger.now, &mut ledger.effects)
}

/// Does the same if the ledger holds much; bounds its memory while many files are worked on.
pub(crate) fn flush_if_full(ledger: &mut Ledger<'_>) -> Result<(), CatalogError> {
    if ledger.is_full() { flush(ledger) } else { Ok(()) }
}

fn apply_consequences(
    tx: &Transaction<'_>,
    changes: &[CoverageChange],
    now: Timestamp,
    effects: &mut Effects,
) -> Result<(), CatalogError> {
    let mut satisfied = BTreeSet::new();
    for change in changes {
        match change.coverage {
            Coverage::Incomplete => begin_demands(tx, change, effects)?,
            Coverage::Deleting => end_demands(tx, change, now, effects)?,
            Coverage::Whole => {
                end_demands(tx, change, now, effects)?;
                satisfied.extend(open_subscriptions(tx, change)?);
            }
        }
    }
    for subscription in satisfied {
        if mark_completed(tx, subscription, now)? {
            effects.subscriptions_complete.insert(subscription);
        }
    }
    Ok(())
}

/// Rule 1. Demands that exist already are reported again, since what they lack has changed.
fn begin_demands(
    tx: &Transaction<'_>,
    change: &CoverageChange,
    effects: &mut Effects,
) -> Result<(), CatalogError> {
    let &CoverageChange { dataset, block, target, .. } = change;
    let mut insert = tx.prepare_cached(
        "INSERT INTO demands (subscription, block, target)
         SELECT id, ?2, target FROM subscriptions WHERE dataset = ?1 AND block IN (0, ?2) AND target = ?3
         AND state <> 'cancelled' AND state = 'active' ON CONFLICT DO NOTHING",
    )?;
    insert.execute_deferred((key!(dataset), key!(block), key!(target)))?;
    let mut reopen = tx.prepare_cached(
        "UPDATE subscriptions SET completed = NULL WHERE completed IS NOT NULL
         AND id IN (SELECT subscription FROM demands WHERE block = ?1 AND target = ?2)",
    )?;
    reopen.execute_deferred((key!(block), key!(target)))?;
    for row in demands_of_block(tx, block, target)? {
        effects.subscriptions_complete.remove(&row.subscription);
        effects.demands.insert((row.subscription, block), Some(row));
    }
    Ok(())
}

/// Rules 2 and 3.
fn end_demands(
    tx: &Transaction<'_>,
    change: &CoverageChange,
    now: Timestamp,
    effects: &mut Effects,
) -> Result<(), CatalogError> {
    let &CoverageChange { block, target, .. } = change;
    let mut delete =
        tx.prepare_cached("DELETE FROM demands WHERE block = ?1 AND target = ?2 RETURNING subscription")?;
    let ended = delete.query_map((key!(block), key!(target)), |row| row.id(0))?;
    let ended = ended.collect::<Result<Vec<SubscriptionId>, _>>()?;
    if !ended.is_empty() {
        let fault = Fault::new(FaultCode::Cancelled, "the target has the file by now");
        effects.cancelled.extend(end_transfers_to(tx, block, target, &fault, now)?);
        effects.cancelled.extend(end_idle_hops(tx, block, &fault, now)?);
    }
    for subscription in ended {
        effects.demands.insert((subscription, block), None);
    }
    Ok(())
}

/// Rule 4: subscriptions that may be complete now. Includes those that never had a demand here, since the
/// block may have been created at the target.
fn open_subscriptions(
    tx: &Transaction<'_>,
    change: &CoverageChange,
) -> Result<Vec<SubscriptionId>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT id FROM subscriptions WHERE dataset = ?1 AND block IN (0, ?2) AND target = ?3
         AND state <> 'cancelled' AND state = 'active' AND completed IS NULL",
    )?;
    let ids = (key!(change.dataset), key!(change.block), key!(change.target));
    let rows = select.query_map(ids, |row| row.id(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
