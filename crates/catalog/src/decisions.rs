//! The log of decisions: who was allowed or refused what. Written in batches, and forgotten by age: of each outcome by
//! itself, so that refusals, of which whoever likes may cause many, drive out nothing that was allowed.

use crate::sql::Row;

use crate::codec::{Columns, number};
use crate::{Catalog, CatalogError, DecisionFilter, DecisionRow, NewDecision, PAGE_ROWS_MAX};

/// Of each outcome; older ones are forgotten.
pub const DECISIONS_MAX: u64 = 50_000;

const COLUMNS: &str = "id, allowed, since, at, times, who, credential, origin, operation, object, why";

impl Catalog {
    /// All of them, or none.
    pub fn record_decisions(&self, decisions: &[NewDecision]) -> Result<(), CatalogError> {
        self.record_decisions_within(decisions, DECISIONS_MAX)
    }

    pub(crate) fn record_decisions_within(
        &self,
        decisions: &[NewDecision],
        most: u64,
    ) -> Result<(), CatalogError> {
        if decisions.is_empty() {
            return Ok(());
        }
        self.write(|tx| {
            let mut insert = tx.prepare_cached(
                "INSERT INTO decisions (allowed, since, at, times, who, credential, origin, operation, object, why)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?;
            for one in decisions {
                insert.execute((
                    one.allowed,
                    one.since.0,
                    one.at.0,
                    number(one.times),
                    &one.who,
                    &one.credential,
                    &one.origin,
                    &one.operation,
                    &one.object,
                    &one.why,
                ))?;
            }
            for allowed in [false, true] {
                tx.execute(
                    "DELETE FROM decisions WHERE allowed = ?1 AND id <=
                     (SELECT id FROM decisions WHERE allowed = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                    (allowed, number(most)),
                )?;
            }
            Ok(())
        })
    }

    /// Newest first.
    pub fn decisions(&self, filter: &DecisionFilter) -> Result<Vec<DecisionRow>, CatalogError> {
        let limit = filter.limit.min(PAGE_ROWS_MAX + 1) as i64;
        let before = filter.before.map_or(i64::MAX, number);
        self.read(|tx| {
            // The conditions stand in the text: with them as parameters neither index would serve.
            let rows: Result<_, _> = match (filter.allowed, &filter.who) {
                (None, None) => tx
                    .prepare_cached(&format!(
                        "SELECT {COLUMNS} FROM decisions WHERE id < ?1 ORDER BY id DESC LIMIT ?2"
                    ))?
                    .query_map((before, limit), row)?
                    .collect(),
                (Some(allowed), None) => tx
                    .prepare_cached(&format!(
                        "SELECT {COLUMNS} FROM decisions WHERE allowed = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3"
                    ))?
                    .query_map((allowed, before, limit), row)?
                    .collect(),
                (None, Some(who)) => tx
                    .prepare_cached(&format!(
                        "SELECT {COLUMNS} FROM decisions WHERE who = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3"
                    ))?
                    .query_map((who, before, limit), row)?
                    .collect(),
                (Some(allowed), Some(who)) => tx
                    .prepare_cached(&format!(
                        "SELECT {COLUMNS} FROM decisions
                         WHERE who = ?1 AND allowed = ?2 AND id < ?3 ORDER BY id DESC LIMIT ?4"
                    ))?
                    .query_map((who, allowed, before, limit), row)?
                    .collect(),
            };
            Ok(rows?)
        })
    }
}

fn row(row: &Row<'_>) -> crate::sql::Result<DecisionRow> {
    Ok(DecisionRow {
        id: row.number(0)?,
        decision: NewDecision {
            allowed: row.get(1)?,
            since: row.time(2)?,
            at: row.time(3)?,
            times: row.number(4)?,
            who: row.get(5)?,
            credential: row.get(6)?,
            origin: row.get(7)?,
            operation: row.get(8)?,
            object: row.get(9)?,
            why: row.get(10)?,
        },
    })
}
