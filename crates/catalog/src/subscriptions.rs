//! Subscriptions: standing wishes for data at a storage, their demands (what they still lack), and their
//! progress.

use std::collections::BTreeSet;

use crate::sql::{Optional, Row, Transaction};
use longhaul_model::{
    ActivityName, BlockId, CommunityName, DatasetId, Fault, FaultCode, StorageId, SubscriptionId,
    SubscriptionState, Timestamp, units,
};

use crate::attempts::{end_idle_hops, end_transfers_to};
use crate::custody::{self, CancelConsent, ConsentEffect};
use crate::database::SCAN_TIME_MAX;
use crate::datasets::page_limit;
use crate::rows::codec::{Columns, key, to_json, verification_counts};
use crate::{
    CancelledTransfer, Catalog, CatalogError, DemandRow, NewSubscription, SourceTotals, SpacePolicy,
    SubscriptionFilter, SubscriptionPatch, SubscriptionProgress, SubscriptionResult, SubscriptionRow, Terms,
    TermsPatch,
};

/// The columns that [`subscription_row`] reads.
const SELECT_SUBSCRIPTION: &str =
    "SELECT s.id, s.dataset, d.name, d.community, s.block, b.name, s.target, t.name, \
    s.state,
    s.priority, s.verification, s.created, s.completed, s.community, s.activity, s.strategy, s.deadline,
    s.custodial, s.consent FROM subscriptions s JOIN datasets d ON d.id = s.dataset
    JOIN storages t ON t.id = s.target LEFT JOIN blocks b ON b.id = s.block";

/// The columns that [`demand_row`] reads.
const SELECT_DEMAND: &str =
    "SELECT d.subscription, b.dataset, d.block, d.target, s.priority, s.verification, \
    n.community,
    s.created, b.files - coalesce(r.files - r.suspect_files, 0), b.bytes - coalesce(r.bytes - \
    r.suspect_bytes, 0),
    s.community, s.activity, coalesce(s.strategy, t.strategy), s.deadline
    FROM demands d JOIN subscriptions s ON s.id = d.subscription JOIN blocks b ON b.id = d.block
    JOIN storages t ON t.id = d.target JOIN datasets n ON n.id = b.dataset LEFT JOIN block_replicas r ON \
    r.block = d.block AND r.storage = d.target";

/// The highest priority; 1 is the lowest.
const PRIORITY_MAX: u8 = 9;

impl Catalog {
    /// Adds a subscription. If the same data is subscribed at the same storage already, that subscription is
    /// returned unchanged. Refused with `Conflict` while the data is being deleted there, and with
    /// `NoSpaceForRequest` if the storage has no room for it and its policy is to refuse.
    pub fn add_subscription(
        &self,
        new: &NewSubscription,
        now: Timestamp,
    ) -> Result<SubscriptionResult, CatalogError> {
        check_priority(new.priority)?;
        self.write(|tx| {
            crate::sites::require_storage(tx, new.target)?;
            check_dataset_part(tx, new)?;
            crate::test_data::check_target(tx, new.dataset, new.target)?;
            let block = new.block.map_or(0, |block| key!(block));
            if let Some(known) = find_same_subscription(tx, new, block)? {
                let subscription = require(tx, known)?;
                let demands = demands_of_subscription(tx, known)?;
                return Ok(SubscriptionResult {
                    subscription,
                    changed: false,
                    demands,
                    demands_gone: Vec::new(),
                    cancelled: Vec::new(),
                });
            }
            refuse_while_deleting(tx, new)?;
            tx.execute_deferred(
                "INSERT INTO subscriptions (id, dataset, block, target, state, priority, verification, \
                    created,
                   community, activity, strategy, deadline, custodial)
                 VALUES (?1, ?2, ?3, ?4, 'active', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                (
                    key!(new.id),
                    key!(new.dataset),
                    block,
                    key!(new.target),
                    new.priority,
                    new.verification.word(),
                    now.0,
                    new.terms.community.as_ref().map(CommunityName::as_str),
                    new.terms.activity.as_ref().map(ActivityName::as_str),
                    new.terms.strategy.as_deref(),
                    new.terms.deadline.map(|at| at.0),
                    new.custodial,
                ),
            )?;
            mark_arrivals(tx, new.id, SubscriptionMoment::Created)?;
            raise_demands(tx, new.id, now)?;
            refuse_beyond_space(tx, new.target)?;
            Ok(SubscriptionResult {
                subscription: require(tx, new.id)?,
                changed: true,
                demands: demands_of_subscription(tx, new.id)?,
                demands_gone: Vec::new(),
                cancelled: Vec::new(),
            })
        })
    }

    /// Changes a subscription. Suspending or cancelling it drops its demands and cancels the transfers that
    /// serve no other subscription. A custodial one is cancelled when two have consented; the first consent
    /// is recorded, and nothing else changes. Resuming one withdraws it.
    pub fn change_subscription(
        &self,
        id: SubscriptionId,
        patch: &SubscriptionPatch,
        now: Timestamp,
    ) -> Result<SubscriptionResult, CatalogError> {
        patch.priority.map_or(Ok(()), check_priority)?;
        self.write(|tx| {
            let before = require(tx, id)?;
            let mut state = patch.state.unwrap_or(before.state);
            if state != before.state && !before.state.may_become(state) {
                return Err(CatalogError::conflict(format!("subscription {id} is {}", before.state)));
            }
            let mut consent =
                before.consent.clone().filter(|_| patch.state != Some(SubscriptionState::Active));
            if before.custodial && patch.state == Some(SubscriptionState::Cancelled) {
                (state, consent) = consented(&before, patch)?;
            }
            let priority = patch.priority.unwrap_or(before.priority);
            let terms = before.terms.patched(&patch.terms);
            tx.execute_deferred(
                "UPDATE subscriptions SET state = ?2, priority = ?3, community = ?4, activity = ?5, strategy \
                    = ?6,
                 deadline = ?7, consent = ?8 WHERE id = ?1",
                (
                    key!(id),
                    state.word(),
                    priority,
                    terms.community.as_ref().map(CommunityName::as_str),
                    terms.activity.as_ref().map(ActivityName::as_str),
                    terms.strategy.as_deref(),
                    terms.deadline.map(|at| at.0),
                    consent.as_ref().map(to_json),
                ),
            )?;
            let (mut demands_gone, mut cancelled) = (Vec::new(), Vec::new());
            if state != before.state {
                if state == SubscriptionState::Cancelled {
                    mark_arrivals(tx, id, SubscriptionMoment::Cancelled)?;
                }
                match state {
                    SubscriptionState::Active => raise_demands(tx, id, now)?,
                    SubscriptionState::Suspended | SubscriptionState::Cancelled => {
                        (demands_gone, cancelled) = drop_demands(tx, &before, state, now)?;
                    }
                }
            }
            Ok(SubscriptionResult {
                subscription: require(tx, id)?,
                changed: (state, priority, &terms, &consent)
                    != (before.state, before.priority, &before.terms, &before.consent),
                demands: demands_of_subscription(tx, id)?,
                demands_gone,
                cancelled,
            })
        })
    }

    pub fn subscription(&self, id: SubscriptionId) -> Result<Option<SubscriptionRow>, CatalogError> {
        self.read(|tx| find(tx, id))
    }

    /// Oldest first.
    pub fn subscriptions(&self, filter: &SubscriptionFilter) -> Result<Vec<SubscriptionRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!(
                "{SELECT_SUBSCRIPTION} WHERE s.id > ?1 AND (s.dataset = ?2 OR ?2 IS NULL) AND (s.target = ?3 \
                    OR ?3 \
                    IS NULL)
                 AND (s.state = ?4 OR ?4 IS NULL) ORDER BY s.id LIMIT ?5"
            ))?;
            let rows = select.query_map(
                (
                    filter.after.map_or(0, |id| key!(id)),
                    filter.dataset.map(|id| key!(id)),
                    filter.target.map(|id| key!(id)),
                    filter.state.map(SubscriptionState::word),
                    page_limit(filter.limit),
                ),
                subscription_row,
            )?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// The number of active and suspended subscriptions: an index holds exactly these.
    pub fn open_subscriptions(&self) -> Result<u64, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached("SELECT count(*) FROM subscriptions WHERE state <> 'cancelled'")?;
            Ok(select.query_row((), |row| row.number(0))?)
        })
    }

    /// Active, incomplete subscriptions with a deadline, the earliest first.
    pub fn subscriptions_with_deadline(&self) -> Result<Vec<SubscriptionRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!(
                "{SELECT_SUBSCRIPTION} WHERE s.deadline IS NOT NULL AND s.state = 'active' AND s.completed \
                    IS NULL
                 ORDER BY s.deadline LIMIT ?1"
            ))?;
            let rows = select.query_map([crate::PAGE_ROWS_MAX as i64], subscription_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn subscription_progress(&self, id: SubscriptionId) -> Result<SubscriptionProgress, CatalogError> {
        self.read(|tx| {
            let subscription = require(tx, id)?;
            let mut progress = SubscriptionProgress::default();
            count_files(tx, &subscription, &mut progress)?;
            count_live(tx, &subscription, &mut progress)?;
            progress.sources = sources(tx, &subscription)?;
            progress.retries = progress.sources.iter().map(|source| source.attempts_failed).sum();
            Ok(progress)
        })
    }

    /// All demands: what active subscriptions lack, per block.
    pub fn demands(&self) -> Result<Vec<DemandRow>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let mut select =
                tx.prepare_cached(&format!("{SELECT_DEMAND} ORDER BY d.subscription, d.block"))?;
            let rows = select.query_map((), demand_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// The blocks of which a subscription lacks something.
    pub fn demanded_blocks(&self, subscription: SubscriptionId) -> Result<BTreeSet<BlockId>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached("SELECT block FROM demands WHERE subscription = ?1")?;
            let rows = select.query_map([key!(subscription)], |row| row.id(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Whether a block is wanted at a storage: a subscription demands it there, or a file of it is on its way
    /// there, perhaps to pass through.
    pub fn is_wanted_at(&self, block: BlockId, target: StorageId) -> Result<bool, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM demands WHERE block = ?1 AND target = ?2)
                 OR EXISTS (SELECT 1 FROM live WHERE target = ?2 AND block = ?1)",
            )?;
            Ok(select.query_row((key!(block), key!(target)), |row| row.get(0))?)
        })
    }

    /// Storages that have something of a demanded block, in the order of blocks.
    pub fn sources_of_demands(&self) -> Result<Vec<(BlockId, StorageId)>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let mut select = tx.prepare_cached(
                "SELECT r.block, r.storage FROM block_replicas r WHERE r.block IN (SELECT block FROM demands)
                 AND r.files > r.suspect_files AND r.deleting = 0 ORDER BY r.block, r.storage",
            )?;
            let rows = select.query_map((), |row| Ok((row.id(0)?, row.id(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

pub(crate) fn demands_of_block(
    tx: &Transaction<'_>,
    block: BlockId,
    target: StorageId,
) -> Result<Vec<DemandRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!(
        "{SELECT_DEMAND} WHERE d.block = ?1 AND d.target = ?2 ORDER BY d.subscription"
    ))?;
    let rows = select.query_map((key!(block), key!(target)), demand_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn demands_of_subscription(
    tx: &Transaction<'_>,
    subscription: SubscriptionId,
) -> Result<Vec<DemandRow>, CatalogError> {
    let mut select =
        tx.prepare_cached(&format!("{SELECT_DEMAND} WHERE d.subscription = ?1 ORDER BY d.block"))?;
    let rows = select.query_map([key!(subscription)], demand_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Records the time of completion if the subscription lacks nothing any more. Returns whether it did.
pub(crate) fn mark_completed(
    tx: &Transaction<'_>,
    subscription: SubscriptionId,
    now: Timestamp,
) -> Result<bool, CatalogError> {
    let mut update = tx.prepare_cached(
        "UPDATE subscriptions SET completed = ?2 WHERE id = ?1 AND completed IS NULL AND state = 'active'
         AND NOT EXISTS (SELECT 1 FROM demands WHERE subscription = ?1)",
    )?;
    Ok(update.execute((key!(subscription), now.0))? == 1)
}

/// Creates the demands of a subscription by one statement over its blocks. One that lacks nothing is complete
/// at once, unless it has no files yet.
fn raise_demands(tx: &Transaction<'_>, id: SubscriptionId, now: Timestamp) -> Result<(), CatalogError> {
    tx.execute_deferred(
        "INSERT INTO demands (subscription, block, target)
         SELECT s.id, b.id, s.target FROM subscriptions s
         JOIN blocks b ON b.dataset = s.dataset AND s.block IN (0, b.id)
         LEFT JOIN block_replicas r ON r.block = b.id AND r.storage = s.target
         WHERE s.id = ?1 AND b.files > coalesce(r.files - r.suspect_files, 0) AND coalesce(r.deleting, 0) = 0
         ON CONFLICT DO NOTHING",
        [key!(id)],
    )?;
    let lacks =
        tx.query_row("SELECT EXISTS (SELECT 1 FROM demands WHERE subscription = ?1)", [key!(id)], |row| {
            row.get(0)
        })?;
    if lacks {
        tx.execute_deferred("UPDATE subscriptions SET completed = NULL WHERE id = ?1", [key!(id)])?;
        return Ok(());
    }
    let subscription = require(tx, id)?;
    let mut progress = SubscriptionProgress::default();
    count_files(tx, &subscription, &mut progress)?;
    // What is empty has nothing to be complete since.
    if progress.complete && progress.files_wanted > 0 {
        mark_completed(tx, id, now)?;
    }
    Ok(())
}

/// Drops the demands of `before`. Transfers charged to it are charged to another subscription with the same
/// demand, or end.
fn drop_demands(
    tx: &Transaction<'_>,
    before: &SubscriptionRow,
    state: SubscriptionState,
    now: Timestamp,
) -> Result<(Vec<BlockId>, Vec<CancelledTransfer>), CatalogError> {
    let (id, target) = (before.id, before.target);
    let mut delete = tx.prepare_cached("DELETE FROM demands WHERE subscription = ?1 RETURNING block")?;
    let blocks: Vec<BlockId> = delete.query_map([key!(id)], |row| row.id(0))?.collect::<Result<_, _>>()?;
    let fault = Fault::new(FaultCode::Cancelled, format!("subscription {id} was {state}"));
    let mut cancelled = Vec::new();
    let mut heir_of =
        tx.prepare_cached("SELECT min(subscription) FROM demands WHERE block = ?1 AND target = ?2")?;
    let mut inherit = tx.prepare_cached(
        "UPDATE live SET subscription = ?4 WHERE target = ?1 AND block = ?2 AND subscription = ?3",
    )?;
    for &block in &blocks {
        match heir_of.query_row((key!(block), key!(target)), |row| row.maybe_number(0))? {
            Some(heir) => {
                inherit.execute_deferred((
                    key!(target),
                    key!(block),
                    key!(id),
                    crate::rows::codec::number(heir),
                ))?;
            }
            None => cancelled.extend(end_transfers_to(tx, block, target, &fault, now)?),
        }
        cancelled.extend(end_idle_hops(tx, block, &fault, now)?);
    }
    Ok((blocks, cancelled))
}

fn check_priority(priority: u8) -> Result<(), CatalogError> {
    if (1..=PRIORITY_MAX).contains(&priority) {
        return Ok(());
    }
    Err(CatalogError::refused(
        FaultCode::BadRequest,
        format!("priority {priority} is not between 1 and {PRIORITY_MAX}"),
    ))
}

fn check_dataset_part(tx: &Transaction<'_>, new: &NewSubscription) -> Result<(), CatalogError> {
    let dataset = crate::datasets::require_dataset(tx, new.dataset)?;
    let Some(block) = new.block else { return Ok(()) };
    let mut select = tx.prepare_cached("SELECT 1 FROM blocks WHERE id = ?1 AND dataset = ?2")?;
    if select.exists((key!(block), key!(new.dataset)))? {
        return Ok(());
    }
    Err(CatalogError::not_found("such block in dataset", dataset.name))
}

fn find_same_subscription(
    tx: &Transaction<'_>,
    new: &NewSubscription,
    block: i64,
) -> Result<Option<SubscriptionId>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT id FROM subscriptions WHERE dataset = ?1 AND target = ?2 AND block = ?3 AND state <> \
            'cancelled'",
    )?;
    Ok(select.query_row((key!(new.dataset), key!(new.target), block), |row| row.id(0)).optional()?)
}

fn refuse_while_deleting(tx: &Transaction<'_>, new: &NewSubscription) -> Result<(), CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT 1 FROM tasks WHERE dataset = ?1 AND storage = ?2 AND kind = 'delete' AND done = 0",
    )?;
    if select.exists((key!(new.dataset), key!(new.target)))? {
        return Err(CatalogError::conflict(
            "the dataset is being deleted at that storage; wait until it is done",
        ));
    }
    Ok(())
}

/// Refuses what was just demanded if the storage is to refuse what it has no room for. A block that several
/// subscriptions demand is promised once. A storage that has not told its size is taken to have room.
fn refuse_beyond_space(tx: &Transaction<'_>, target: StorageId) -> Result<(), CatalogError> {
    let storage = crate::sites::storage_by_id(tx, target)?;
    if storage.space_policy != SpacePolicy::Refuse || storage.total_bytes == 0 {
        return Ok(());
    }
    let promised: u64 = tx
        .prepare_cached(
            "SELECT coalesce(sum(b.bytes - coalesce(r.bytes - r.suspect_bytes, 0)), 0) FROM
               (SELECT DISTINCT d.block AS block FROM subscriptions s JOIN demands d ON d.subscription = s.id
                WHERE s.target = ?1) w
             JOIN blocks b ON b.id = w.block
             LEFT JOIN block_replicas r ON r.block = b.id AND r.storage = ?1",
        )?
        .query_row([key!(target)], |row| row.number(0))?;
    if promised <= storage.free_bytes {
        return Ok(());
    }
    let (free, promised) = (units::bytes(storage.free_bytes), units::bytes(promised));
    let detail = format!("{} has {free} free, and with this {promised} would have to come", storage.name);
    Err(CatalogError::refused(FaultCode::NoSpaceForRequest, detail))
}

/// Whether a scan may still add files to the dataset: until it ends, having none means nothing.
fn is_scanned(tx: &Transaction<'_>, dataset: DatasetId) -> Result<bool, CatalogError> {
    let mut select =
        tx.prepare_cached("SELECT 1 FROM tasks WHERE dataset = ?1 AND kind = 'scan' AND done = 0 LIMIT 1")?;
    Ok(select.exists([key!(dataset)])?)
}

/// Counts wanted and present files: from one row for a block, from the dataset's totals for a dataset.
fn count_files(
    tx: &Transaction<'_>,
    subscription: &SubscriptionRow,
    progress: &mut SubscriptionProgress,
) -> Result<(), CatalogError> {
    const COLUMNS: &str = "p.files, p.bytes, coalesce(r.files - r.suspect_files, 0),
        coalesce(r.bytes - r.suspect_bytes, 0), coalesce(r.registered, 0), coalesce(r.wire, 0),
        coalesce(r.end_to_end, 0), coalesce(r.readback, 0)";
    let (sql, part) = match subscription.block {
        Some(block) => (
            format!(
                "SELECT {COLUMNS} FROM blocks p LEFT JOIN block_replicas r ON r.block = p.id AND r.storage = \
                    ?2 WHERE p.id = ?1"
            ),
            key!(block),
        ),
        None => (
            format!(
                "SELECT {COLUMNS} FROM datasets p LEFT JOIN dataset_replicas r ON r.dataset = p.id AND \
                    r.storage = ?2 WHERE p.id = ?1"
            ),
            key!(subscription.dataset),
        ),
    };
    tx.prepare_cached(&sql)?.query_row((part, key!(subscription.target)), |row| {
        progress.files_wanted = row.number(0)?;
        progress.bytes_wanted = row.number(1)?;
        progress.files_present = row.number(2)?;
        progress.bytes_present = row.number(3)?;
        progress.verified = verification_counts(row, 4)?;
        Ok(())
    })?;
    progress.complete = progress.files_present == progress.files_wanted
        && (progress.files_wanted > 0 || !is_scanned(tx, subscription.dataset)?);
    Ok(())
}

/// Counts live transfers. The horizon bounds them, and an index leads to those of a block at a target.
fn count_live(
    tx: &Transaction<'_>,
    subscription: &SubscriptionRow,
    progress: &mut SubscriptionProgress,
) -> Result<(), CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT l.leased, l.fault FROM demands d JOIN live l ON l.target = d.target AND l.block = d.block
         WHERE d.subscription = ?1",
    )?;
    let mut rows = select.query([key!(subscription.id)])?;
    while let Some(row) = rows.next()? {
        if row.get(0)? {
            progress.files_leased += 1;
            continue;
        }
        progress.files_waiting += 1;
        let hopeless = row.fault(1)?.is_some_and(|fault| fault.retry == longhaul_model::Retry::Never);
        progress.files_failed += u64::from(hopeless);
    }
    Ok(())
}

/// When what has arrived is marked, so that a subscription counts only what comes in between.
#[derive(Clone, Copy)]
enum SubscriptionMoment {
    Created,
    Cancelled,
}

/// Records what has arrived until now for the subscription's data at its target, from whichever subscription
/// it was wanted.
fn mark_arrivals(
    tx: &Transaction<'_>,
    subscription: SubscriptionId,
    moment: SubscriptionMoment,
) -> Result<(), CatalogError> {
    let ended = match moment {
        SubscriptionMoment::Created => 0,
        SubscriptionMoment::Cancelled => 1,
    };
    tx.execute_deferred(
        &format!(
            "INSERT INTO arrival_marks (subscription, ended, source, files, bytes, attempts_failed)
             SELECT s.id, {ended}, a.source, a.files, a.bytes, a.attempts_failed FROM subscriptions s
             JOIN arrivals a ON a.dataset = s.dataset AND a.block = s.block AND a.target = s.target
             WHERE s.id = ?1"
        ),
        [key!(subscription)],
    )?;
    Ok(())
}

/// What arrived and what failed from the subscription's creation until now, or until it was cancelled.
/// A subscription to a dataset and one to a block of it share what comes of that block while both are there.
fn sources(tx: &Transaction<'_>, subscription: &SubscriptionRow) -> Result<Vec<SourceTotals>, CatalogError> {
    let until = match subscription.state {
        SubscriptionState::Cancelled => "arrival_marks a ON a.subscription = s.id AND a.ended = 1",
        SubscriptionState::Active | SubscriptionState::Suspended => {
            "arrivals a ON a.dataset = s.dataset AND a.block = s.block AND a.target = s.target"
        }
    };
    let mut select = tx.prepare_cached(&format!(
        "SELECT a.source, t.name, a.files - coalesce(m.files, 0), a.bytes - coalesce(m.bytes, 0),
           a.attempts_failed - coalesce(m.attempts_failed, 0)
         FROM subscriptions s JOIN {until} JOIN storages t ON t.id = a.source
         LEFT JOIN arrival_marks m ON m.subscription = s.id AND m.ended = 0 AND m.source = a.source
         WHERE s.id = ?1 AND (a.files > coalesce(m.files, 0)
           OR a.attempts_failed > coalesce(m.attempts_failed, 0)) ORDER BY t.name"
    ))?;
    let rows = select.query_map([key!(subscription.id)], |row| {
        Ok(SourceTotals {
            source: row.id(0)?,
            source_name: row.parsed(1)?,
            files: row.number(2)?,
            bytes: row.number(3)?,
            attempts_failed: row.number(4)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn require(tx: &Transaction<'_>, id: SubscriptionId) -> Result<SubscriptionRow, CatalogError> {
    find(tx, id)?.ok_or_else(|| CatalogError::not_found("subscription", id))
}

fn find(tx: &Transaction<'_>, id: SubscriptionId) -> Result<Option<SubscriptionRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_SUBSCRIPTION} WHERE s.id = ?1"))?;
    Ok(select.query_row([key!(id)], subscription_row).optional()?)
}

fn subscription_row(row: &Row<'_>) -> crate::sql::Result<SubscriptionRow> {
    let block = row.number(4)?;
    Ok(SubscriptionRow {
        id: row.id(0)?,
        dataset: row.id(1)?,
        dataset_name: row.parsed(2)?,
        community: row.parsed(3)?,
        block: (block != 0).then_some(BlockId(block)),
        block_name: if block == 0 { None } else { Some(row.parsed(5)?) },
        target: row.id(6)?,
        target_name: row.parsed(7)?,
        state: row.parsed(8)?,
        priority: row.get(9)?,
        verification: row.parsed(10)?,
        created: row.time(11)?,
        completed: row.maybe_time(12)?,
        terms: terms(row, 13)?,
        custodial: row.get(17)?,
        consent: if row.is_null(18)? { None } else { Some(row.json(18)?) },
    })
}

/// The state of a custodial subscription after somebody wants it cancelled, and the consent that stands.
fn consented(
    before: &SubscriptionRow,
    patch: &SubscriptionPatch,
) -> Result<(SubscriptionState, Option<CancelConsent>), CatalogError> {
    let Some(new) = patch.consent.clone() else {
        let detail = format!("subscription {} is custodial: its cancellation needs two people", before.id);
        return Err(CatalogError::conflict(detail));
    };
    Ok(match custody::join(before.consent.as_ref(), new) {
        ConsentEffect::Cancels => (SubscriptionState::Cancelled, before.consent.clone()),
        ConsentEffect::Waits(standing) => (before.state, Some(standing)),
    })
}

/// Reads four columns from `first` on.
fn terms(row: &Row<'_>, first: usize) -> crate::sql::Result<Terms> {
    let named = |at: usize| -> crate::sql::Result<bool> { Ok(!row.is_null(at)?) };
    Ok(Terms {
        community: if named(first)? { Some(row.parsed(first)?) } else { None },
        activity: if named(first + 1)? { Some(row.parsed(first + 1)?) } else { None },
        strategy: row.get(first + 2)?,
        deadline: row.maybe_time(first + 3)?,
    })
}

impl Terms {
    fn patched(&self, patch: &TermsPatch) -> Terms {
        Terms {
            community: patch.community.clone().unwrap_or_else(|| self.community.clone()),
            activity: patch.activity.clone().unwrap_or_else(|| self.activity.clone()),
            strategy: patch.strategy.clone().unwrap_or_else(|| self.strategy.clone()),
            deadline: patch.deadline.unwrap_or(self.deadline),
        }
    }
}

fn demand_row(row: &Row<'_>) -> crate::sql::Result<DemandRow> {
    Ok(DemandRow {
        subscription: row.id(0)?,
        dataset: row.id(1)?,
        block: row.id(2)?,
        target: row.id(3)?,
        priority: row.get(4)?,
        verification: row.parsed(5)?,
        community: row.parsed(6)?,
        created: row.time(7)?,
        files_missing: row.number(8)?,
        bytes_missing: row.number(9)?,
        terms: terms(row, 10)?,
    })
}
