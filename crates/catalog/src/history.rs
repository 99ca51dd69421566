//! Lists of live and finished transfers, and the history of attempts.

use crate::sql::{Optional, Row, Transaction};
use longhaul_model::{Executor, StorageId, Timestamp, TransferId, TransferState};

use crate::database::SCAN_TIME_MAX;
use crate::rows::codec::{Columns, encode_digests, key, maybe_json, number};
use crate::rows::live::LiveTransfer;
use crate::{
    AttemptRow, AttemptTimes, Catalog, CatalogError, FinishedAttempt, PAGE_ROWS_MAX, ReportedOutcome,
    TransferDetail, TransferFilter, TransferPage, TransferRow,
};

/// Rows that one page examines. An index serves one condition of a filter; the others are checked on these
/// rows.
const ROWS_EXAMINED_MAX: usize = 10_000;
/// Transfers that one call of `prune_history` removes: occupies the writer for some 100 ms.
const PRUNED_TRANSFERS_MAX: usize = 5_000;

/// How an attempt ended.
pub(crate) struct AttemptEnd<'a> {
    /// The transfer's final state, if it ended with the attempt.
    pub(crate) state: Option<TransferState>,
    pub(crate) fault: Option<&'a longhaul_model::Fault>,
    pub(crate) outcome: Option<&'a ReportedOutcome>,
    pub(crate) at: Timestamp,
}

impl Catalog {
    /// Lists transfers, newest first: live and finished ones share the order of ids, which is that of
    /// creation.
    pub fn transfers(&self, filter: &TransferFilter) -> Result<TransferPage, CatalogError> {
        let limit = filter.limit.clamp(1, PAGE_ROWS_MAX);
        self.read(|tx| {
            let live = if filter.state.is_none_or(|state| !state.is_terminal()) {
                live_page(tx, filter, limit)?
            } else {
                PagePart::default()
            };
            let done = if filter.state.is_none_or(TransferState::is_terminal) {
                finished_page(tx, filter, limit)?
            } else {
                PagePart::default()
            };
            // Below the id that either part has examined nothing is known yet.
            let horizon = live.next.max(done.next);
            let mut items: Vec<TransferRow> = live.items.into_iter().chain(done.items).collect();
            items.sort_by_key(|item| std::cmp::Reverse(item.id));
            items.retain(|item| horizon.is_none_or(|horizon| item.id >= horizon));
            let cut = items.len() > limit;
            items.truncate(limit);
            let next = if cut { items.last().map(|item| item.id) } else { horizon };
            Ok(TransferPage { items, next })
        })
    }

    pub fn transfer(&self, id: TransferId) -> Result<Option<TransferDetail>, CatalogError> {
        self.read(|tx| {
            let live = tx
                .prepare_cached(&format!("{SELECT_LIVE} WHERE l.id = ?1"))?
                .query_row([key!(id)], live_row)
                .optional()?;
            let finished = match &live {
                Some(_) => None,
                None => tx
                    .prepare_cached(&format!("{SELECT_FINISHED} WHERE h.transfer = ?1 AND h.state > 0"))?
                    .query_row([key!(id)], finished_row)
                    .optional()?,
            };
            let running = live.as_ref().is_some_and(|live| live.state == TransferState::Leased);
            let Some(transfer) = live.or(finished) else { return Ok(None) };
            let mut attempts = finished_attempts(tx, id)?;
            if running {
                attempts.extend(running_attempt(tx, id)?);
            }
            Ok(Some(TransferDetail { transfer, attempts }))
        })
    }

    /// Deletes finished transfers created before `older_than`, and the oldest beyond `rows_max`, one bounded
    /// batch a call. Returns how many it deleted; call again until that is 0.
    pub fn prune_history(&self, older_than: Timestamp, rows_max: u64) -> Result<u64, CatalogError> {
        let doomed = self.read_within(SCAN_TIME_MAX, |tx| {
            let rows =
                tx.query_row("SELECT count(*) FROM history WHERE state > 0", (), |row| row.number(0))?;
            let excess = rows.saturating_sub(rows_max);
            let mut select = tx.prepare_cached(
                "SELECT transfer, created FROM history WHERE state > 0 ORDER BY transfer LIMIT ?1",
            )?;
            let oldest = select
                .query_map([PRUNED_TRANSFERS_MAX as i64], |row| Ok((row.id::<TransferId>(0)?, row.time(1)?)))?
                .collect::<Result<Vec<_>, _>>()?;
            let doomed = oldest.into_iter().enumerate();
            let doomed =
                doomed.filter(|(place, (_, created))| (*place as u64) < excess || *created < older_than);
            Ok(doomed.map(|(_, (transfer, _))| transfer).collect::<Vec<_>>())
        })?;
        if doomed.is_empty() {
            return Ok(0);
        }
        self.write(|tx| {
            let mut choices = tx.prepare_cached(
                "DELETE FROM choices WHERE attempt IN (SELECT attempt FROM history WHERE transfer = ?1)",
            )?;
            let mut rows = tx.prepare_cached("DELETE FROM history WHERE transfer = ?1")?;
            for transfer in &doomed {
                choices.execute_deferred([key!(transfer)])?;
                rows.execute_deferred([key!(transfer)])?;
            }
            Ok(doomed.len() as u64)
        })
    }
}

/// Records the end of the present attempt of `live`, or of `live` itself if it was waiting.
pub(crate) fn record_end(
    tx: &Transaction<'_>,
    live: &LiveTransfer,
    ending: &AttemptEnd<'_>,
) -> Result<(), CatalogError> {
    assert!(live.leased || ending.state.is_some(), "a waiting transfer has no attempt that could end");
    let (number_of_row, attempt) = match live.leased {
        true => (live.attempts, key!(live.attempt)),
        false => (live.attempts + 1, 0),
    };
    let outcome = ending.outcome;
    let times = outcome.map(|outcome| outcome.times);
    let success = outcome.filter(|_| ending.fault.is_none());
    let mut insert = tx.prepare_cached(
        "INSERT INTO history (transfer, number, state, attempt, epoch, file, dataset, source, target, agent, \
            created,
           chosen, finished, received, started, first_byte, last_byte, committed, bytes_moved, bytes_resent,
           already_there, verification, digests, fault, executor)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, \
         ?21, ?22,
           ?23, ?24, ?25)",
    )?;
    insert.execute_deferred(crate::sql::params![
        key!(live.id),
        number_of_row,
        state_number(ending.state),
        attempt,
        key!(live.epoch),
        key!(live.file),
        key!(live.dataset),
        key!(live.source),
        key!(live.target),
        key!(live.agent),
        live.created.0,
        live.chosen.0,
        ending.at.0,
        times.map(|times| times.received.0),
        times.and_then(|times| times.started).map(|at| at.0),
        times.and_then(|times| times.first_byte).map(|at| at.0),
        times.and_then(|times| times.last_byte).map(|at| at.0),
        times.and_then(|times| times.committed).map(|at| at.0),
        number(outcome.map_or(0, |outcome| outcome.bytes_moved)),
        number(outcome.map_or(0, |outcome| outcome.bytes_resent)),
        success.is_some_and(|outcome| outcome.already_there),
        success.map(|outcome| outcome.verification.word()),
        success.map(|outcome| encode_digests(&outcome.digests)),
        maybe_json(ending.fault),
        outcome.and_then(|outcome| outcome.executor).map(Executor::word),
    ])?;
    Ok(())
}

/// The columns that [`live_row`] reads.
const SELECT_LIVE: &str =
    "SELECT l.id, l.file, l.dataset, d.name, f.lfn, f.size, l.target, t.name, l.source, \
    s.name, l.leased,
    l.attempts, l.attempt, l.not_before, l.created, l.changed, l.fault FROM live l JOIN files f ON f.id = \
    l.file
    JOIN datasets d ON d.id = l.dataset JOIN storages t ON t.id = l.target JOIN storages s ON s.id = \
    l.source";

/// The columns that [`finished_row`] reads.
const SELECT_FINISHED: &str =
    "SELECT h.transfer, h.file, h.dataset, d.name, f.lfn, f.size, h.target, t.name, h.source, s.name,
    h.state, h.number, h.attempt, h.verification, h.created, h.finished, h.fault FROM history h
    JOIN files f ON f.id = h.file JOIN datasets d ON d.id = h.dataset JOIN storages t ON t.id = h.target
    JOIN storages s ON s.id = h.source";

#[derive(Default)]
struct PagePart {
    items: Vec<TransferRow>,
    /// Everything down to this id was examined, and more may follow; none at the end.
    next: Option<TransferId>,
}

fn before(filter: &TransferFilter) -> i64 {
    filter.before.map_or(i64::MAX, |id| key!(id))
}

fn live_page(tx: &Transaction<'_>, filter: &TransferFilter, limit: usize) -> Result<PagePart, CatalogError> {
    let leased = filter.state.map(|state| state == TransferState::Leased);
    let mut select = tx.prepare_cached(&format!(
        "{SELECT_LIVE} WHERE l.id < ?1 AND (l.leased = ?2 OR ?2 IS NULL) AND (l.dataset = ?3 OR ?3 IS NULL)
         AND (l.source = ?4 OR ?4 IS NULL) AND (l.target = ?5 OR ?5 IS NULL) ORDER BY l.id DESC LIMIT ?6"
    ))?;
    let ids = (
        filter.dataset.map(|id| key!(id)),
        filter.source.map(|id| key!(id)),
        filter.target.map(|id| key!(id)),
    );
    let rows = select.query_map((before(filter), leased, ids.0, ids.1, ids.2, limit as i64), live_row)?;
    let items: Vec<TransferRow> = rows.collect::<Result<_, _>>()?;
    let next = items.last().filter(|_| items.len() == limit).map(|item| item.id);
    Ok(PagePart { items, next })
}

/// Reads at most [`ROWS_EXAMINED_MAX`] rows by one index, newest first, and checks the filter's other
/// conditions on them. A rare combination costs many short pages instead of one long query.
fn finished_page(
    tx: &Transaction<'_>,
    filter: &TransferFilter,
    limit: usize,
) -> Result<PagePart, CatalogError> {
    let rare = filter.state.filter(|&state| state != TransferState::Done);
    let (column, value) = match (rare, filter.dataset, filter.source, filter.target) {
        (Some(state), ..) => ("state", state_number(Some(state))),
        (None, Some(dataset), ..) => ("dataset", key!(dataset)),
        (None, None, Some(source), _) => ("source", key!(source)),
        (None, None, None, Some(target)) => ("target", key!(target)),
        // All finished transfers: the table itself is the index.
        (None, None, None, None) => ("1", 1),
    };
    let partial = if rare.is_some() { "state > 1 AND" } else { "state > 0 AND" };
    let mut select = tx.prepare_cached(&format!(
        "SELECT transfer, number, dataset, source, target, state FROM history
         WHERE {partial} {column} = ?1 AND transfer < ?2 ORDER BY transfer DESC LIMIT ?3"
    ))?;
    let mut show =
        tx.prepare_cached(&format!("{SELECT_FINISHED} WHERE h.transfer = ?1 AND h.number = ?2"))?;
    let mut rows = select.query((value, before(filter), ROWS_EXAMINED_MAX as i64))?;
    let (mut part, mut examined, mut last) = (PagePart::default(), 0, None);
    while let Some(row) = rows.next()? {
        let id: TransferId = row.id(0)?;
        (examined, last) = (examined + 1, Some(id));
        let matches = |wanted: Option<StorageId>, column: usize| -> crate::sql::Result<bool> {
            Ok(wanted.is_none_or(|wanted| row.id::<StorageId>(column).is_ok_and(|found| found == wanted)))
        };
        let fits = filter.dataset.is_none_or(|wanted| row.number(2).is_ok_and(|found| found == wanted.0))
            && matches(filter.source, 3)?
            && matches(filter.target, 4)?
            && filter.state.is_none_or(|wanted| {
                row.get::<i64>(5).is_ok_and(|found| found == state_number(Some(wanted)))
            });
        if fits {
            part.items.push(show.query_row((key!(id), row.get::<i64>(1)?), finished_row)?);
            if part.items.len() == limit {
                break;
            }
        }
    }
    part.next = last.filter(|_| part.items.len() == limit || examined == ROWS_EXAMINED_MAX);
    Ok(part)
}

fn finished_attempts(tx: &Transaction<'_>, id: TransferId) -> Result<Vec<AttemptRow>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT h.attempt, h.epoch, h.source, s.name, h.agent, h.chosen, coalesce(c.choice, ''), h.finished, \
            h.received,
         h.started, h.first_byte, h.last_byte, h.committed, h.bytes_moved, h.bytes_resent, h.fault, \
         h.verification,
         h.digests, h.already_there, h.executor FROM history h JOIN storages s ON s.id = h.source
         LEFT JOIN choices c ON c.attempt = h.attempt WHERE h.transfer = ?1 AND h.attempt > 0 ORDER BY \
         h.number",
    )?;
    let rows = select.query_map([key!(id)], |row| {
        let verified = !row.is_null(16)?;
        let finished = FinishedAttempt {
            at: row.time(7)?,
            times: AttemptTimes {
                received: row.maybe_time(8)?.unwrap_or_default(),
                started: row.maybe_time(9)?,
                first_byte: row.maybe_time(10)?,
                last_byte: row.maybe_time(11)?,
                committed: row.maybe_time(12)?,
            },
            bytes_moved: row.number(13)?,
            bytes_resent: row.number(14)?,
            executor: if row.is_null(19)? { None } else { Some(row.parsed(19)?) },
            fault: row.fault(15)?,
            verification: if verified { Some(row.parsed(16)?) } else { None },
            digests: if verified { row.digests(17)? } else { Default::default() },
            already_there: row.get(18)?,
        };
        Ok(AttemptRow { finished: Some(finished), ..attempt_row(row)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn running_attempt(tx: &Transaction<'_>, id: TransferId) -> Result<Option<AttemptRow>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT l.attempt, l.epoch, l.source, s.name, l.agent, l.chosen, coalesce(c.choice, '')
         FROM live l JOIN storages s ON s.id = l.source LEFT JOIN choices c ON c.attempt = l.attempt WHERE \
         l.id = ?1",
    )?;
    Ok(select.query_row([key!(id)], attempt_row).optional()?)
}

fn attempt_row(row: &Row<'_>) -> crate::sql::Result<AttemptRow> {
    Ok(AttemptRow {
        id: row.id(0)?,
        epoch: row.id(1)?,
        source: row.id(2)?,
        source_name: row.parsed(3)?,
        agent: row.id(4)?,
        chosen: row.time(5)?,
        choice: row.get(6)?,
        finished: None,
    })
}

fn live_row(row: &Row<'_>) -> crate::sql::Result<TransferRow> {
    let leased = row.get(10)?;
    Ok(TransferRow {
        state: if leased { TransferState::Leased } else { TransferState::Waiting },
        attempts: row.get(11)?,
        not_before: if leased { None } else { row.maybe_time(13)? },
        verification: None,
        ..shared_columns(row)?
    })
}

fn finished_row(row: &Row<'_>) -> crate::sql::Result<TransferRow> {
    let shared = shared_columns(row)?;
    let number: u32 = row.get(11)?;
    Ok(TransferRow {
        state: match row.get::<i64>(10)? {
            1 => TransferState::Done,
            2 => TransferState::Failed,
            3 => TransferState::Cancelled,
            other => return Err(crate::sql::damaged(10, other)),
        },
        attempts: if shared.attempt.0 == 0 { number - 1 } else { number },
        verification: if row.is_null(13)? { None } else { Some(row.parsed(13)?) },
        ..shared
    })
}

/// Reads the columns that live and finished rows have in common.
fn shared_columns(row: &Row<'_>) -> crate::sql::Result<TransferRow> {
    Ok(TransferRow {
        id: row.id(0)?,
        file: row.id(1)?,
        dataset: row.id(2)?,
        dataset_name: row.parsed(3)?,
        lfn: row.parsed(4)?,
        size: row.number(5)?,
        target: row.id(6)?,
        target_name: row.parsed(7)?,
        source: row.id(8)?,
        source_name: row.parsed(9)?,
        state: TransferState::Waiting,
        attempts: 0,
        attempt: row.id(12)?,
        not_before: None,
        created: row.time(14)?,
        changed: row.time(15)?,
        fault: row.fault(16)?,
        verification: None,
    })
}

fn state_number(state: Option<TransferState>) -> i64 {
    match state {
        None | Some(TransferState::Waiting | TransferState::Leased) => 0,
        Some(TransferState::Done) => 1,
        Some(TransferState::Failed) => 2,
        Some(TransferState::Cancelled) => 3,
    }
}
