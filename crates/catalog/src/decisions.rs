//! The access log: who was allowed or refused what. Written in batches. Old entries are deleted for allowed
//! and refused ones separately, so that refusals, which anybody can cause, do not displace what was allowed.

use std::collections::BTreeSet;

use crate::sql::{Row, Transaction, Value};
use longhaul_model::SiteName;

use crate::rows::codec::{Columns, number};
use crate::{Catalog, CatalogError, DecisionFilter, DecisionRow, NewDecision, PAGE_ROWS_MAX};

/// Decisions of the service kept of each outcome; the oldest are deleted.
pub const DECISIONS_MAX: u64 = 50_000;
/// Decisions of one site's doors kept of each outcome; the oldest are deleted.
pub const DOOR_DECISIONS_MAX: u64 = 5_000;

/// The columns that [`decision_row`] reads.
const COLUMNS: &str =
    "id, allowed, since, at, times, who, credential, origin, operation, object, why, site, storage";

impl Catalog {
    /// Records all of these, or none.
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
            insert(tx, decisions)?;
            for allowed in [false, true] {
                tx.execute_deferred(
                    "DELETE FROM decisions WHERE allowed = ?1 AND site IS NULL AND id <=
                     (SELECT id FROM decisions WHERE allowed = ?1 AND site IS NULL
                      ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                    (allowed, number(most)),
                )?;
            }
            Ok(())
        })
    }

    /// Lists decisions, newest first.
    pub fn decisions(&self, filter: &DecisionFilter) -> Result<Vec<DecisionRow>, CatalogError> {
        let limit = filter.limit.min(PAGE_ROWS_MAX + 1);
        self.read(|tx| {
            let Some(sites) = &filter.sites else {
                return select(tx, filter, None, limit);
            };
            // One query per site, each by its index: a filter names few.
            let mut rows = Vec::new();
            for site in sites {
                rows.extend(select(tx, filter, Some(site), limit)?);
            }
            rows.sort_by_key(|row| std::cmp::Reverse(row.id));
            rows.truncate(limit);
            Ok(rows)
        })
    }
}

/// Records decisions of doors. Each site has its own bound, so that none displaces another's entries, or the
/// service's.
pub(crate) fn record_door_decisions(
    tx: &Transaction<'_>,
    decisions: &[NewDecision],
) -> Result<(), CatalogError> {
    insert(tx, decisions)?;
    let sites: BTreeSet<&SiteName> =
        decisions.iter().filter_map(|one| one.at_door.as_ref()).map(|(site, _)| site).collect();
    for (site, allowed) in sites.into_iter().flat_map(|site| [(site, false), (site, true)]) {
        tx.execute_deferred(
            "DELETE FROM decisions WHERE allowed = ?1 AND site = ?2 AND id <=
             (SELECT id FROM decisions WHERE allowed = ?1 AND site = ?2 ORDER BY id DESC LIMIT 1 OFFSET ?3)",
            (allowed, site.as_str(), number(DOOR_DECISIONS_MAX)),
        )?;
    }
    Ok(())
}

fn insert(tx: &Transaction<'_>, decisions: &[NewDecision]) -> Result<(), CatalogError> {
    let mut insert = tx.prepare_cached(
        "INSERT INTO decisions (allowed, since, at, times, who, credential, origin, operation, object, why,
           site, storage)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    for one in decisions {
        insert.execute_deferred((
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
            one.at_door.as_ref().map(|(site, _)| site.as_str()),
            one.at_door.as_ref().map(|(_, storage)| storage.as_str()),
        ))?;
    }
    Ok(())
}

/// Only the conditions that are given stand in the statement: with optional parameters no index would serve.
fn select(
    tx: &Transaction<'_>,
    filter: &DecisionFilter,
    site: Option<&SiteName>,
    limit: usize,
) -> Result<Vec<DecisionRow>, CatalogError> {
    let mut values = vec![Value::from(filter.before.map_or(i64::MAX, number))];
    let mut conditions = vec!["id < ?1".to_owned()];
    let given = [
        ("who", filter.who.clone().map(Value::from)),
        ("allowed", filter.allowed.map(|allowed| Value::from(i64::from(allowed)))),
        ("site", site.map(|site| Value::from(site.to_string()))),
    ];
    for (column, value) in given {
        let Some(value) = value else { continue };
        values.push(value);
        conditions.push(format!("{column} = ?{}", values.len()));
    }
    values.push(Value::from(limit as i64));
    let text = format!(
        "SELECT {COLUMNS} FROM decisions WHERE {} ORDER BY id DESC LIMIT ?{}",
        conditions.join(" AND "),
        values.len()
    );
    let mut statement = tx.prepare_cached(&text)?;
    let rows = statement.query_map(values, decision_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn decision_row(row: &Row<'_>) -> crate::sql::Result<DecisionRow> {
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
            at_door: if row.is_null(11)? { None } else { Some((row.parsed(11)?, row.parsed(12)?)) },
        },
    })
}
