//! Circuits of the agents' links: links as agents report them, circuits and their outcome, and people's
//! orders.

use crate::sql::{Params, Row, Transaction};
use longhaul_model::{AgentId, CircuitOrderId, StorageName, Timestamp};

use crate::audit::record_change;
use crate::rows::codec::{Columns, key};
use crate::{Catalog, CatalogError, CircuitLinkRow, CircuitOrderRow, CircuitRow, PAGE_ROWS_MAX};

/// Circuits kept, and orders kept; the oldest ended ones are deleted.
const CIRCUIT_ROWS_MAX: i64 = 10_000;

/// The columns of a circuit.
const SELECT_CIRCUIT: &str = "SELECT id, agent, source, asked, ended, details FROM circuits";
/// The columns of an order.
const SELECT_ORDER: &str = "SELECT id, agent, source, at, who, over, details FROM circuit_orders";

impl Catalog {
    /// Records what an agent reports: its links, and circuits and orders that are new or changed.
    pub fn record_circuits(
        &self,
        links: &[CircuitLinkRow],
        circuits: &[CircuitRow],
        orders: &[CircuitOrderRow],
    ) -> Result<(), CatalogError> {
        self.write(|tx| {
            for link in links {
                tx.prepare_cached(
                    "INSERT INTO circuit_links (agent, source, told, details) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (agent, source) DO UPDATE SET told = excluded.told, details = \
                     excluded.details",
                )?
                .execute_deferred((
                    key!(link.agent),
                    link.source.as_str(),
                    link.reported.0,
                    &link.details,
                ))?;
            }
            for circuit in circuits {
                // A circuit's id belongs to its agent: another agent cannot change it.
                tx.prepare_cached(
                    "INSERT INTO circuits (id, agent, source, asked, ended, details) VALUES (?1, ?2, ?3, ?4, \
                        ?5, ?6)
                     ON CONFLICT (id) DO UPDATE SET ended = excluded.ended, details = excluded.details
                     WHERE circuits.agent = excluded.agent AND circuits.source = excluded.source",
                )?
                .execute_deferred((
                    &circuit.id,
                    key!(circuit.agent),
                    circuit.source.as_str(),
                    circuit.requested.0,
                    circuit.ended.map(|at| at.0),
                    &circuit.details,
                ))?;
            }
            if !circuits.is_empty() {
                tx.execute_deferred(
                    "DELETE FROM circuits WHERE id IN (SELECT id FROM circuits WHERE ended IS NOT NULL
                     ORDER BY asked DESC, id DESC LIMIT 9223372036854775807 OFFSET ?1)",
                    [CIRCUIT_ROWS_MAX],
                )?;
            }
            for order in orders {
                tx.prepare_cached(
                    "UPDATE circuit_orders SET over = ?4, details = ?5 WHERE id = ?1 AND agent = ?2 AND \
                        source = ?3
                     AND over = 0",
                )?
                .execute_deferred((
                    key!(order.id),
                    key!(order.agent),
                    order.source.as_str(),
                    order.over,
                    &order.details,
                ))?;
            }
            Ok(())
        })
    }

    /// Adds a person's order, which replaces earlier ones of the same link, with an audit entry.
    pub fn order_circuit(
        &self,
        order: &CircuitOrderRow,
        replaced: &[CircuitOrderRow],
        what: &str,
    ) -> Result<(), CatalogError> {
        self.write(|tx| {
            for before in replaced {
                tx.execute_deferred(
                    "UPDATE circuit_orders SET over = 1, details = ?2 WHERE id = ?1 AND over = 0",
                    (key!(before.id), &before.details),
                )?;
            }
            tx.execute_deferred(
                "INSERT INTO circuit_orders (id, agent, source, at, who, over, details)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                (
                    key!(order.id),
                    key!(order.agent),
                    order.source.as_str(),
                    order.at.0,
                    &order.who,
                    order.over,
                    &order.details,
                ),
            )?;
            tx.execute_deferred(
                "DELETE FROM circuit_orders WHERE id IN (SELECT id FROM circuit_orders WHERE over = 1
                 ORDER BY id DESC LIMIT 9223372036854775807 OFFSET ?1)",
                [CIRCUIT_ROWS_MAX],
            )?;
            record_change(tx, &order.who, what, order.at)
        })
    }

    /// Every link that an agent has reported.
    pub fn circuit_links(&self) -> Result<Vec<CircuitLinkRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT agent, source, told, details FROM circuit_links ORDER BY agent, source",
            )?;
            let rows = select.query_map((), |row| {
                Ok(CircuitLinkRow {
                    agent: row.id(0)?,
                    source: row.parsed(1)?,
                    reported: row.time(2)?,
                    details: row.get(3)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Deletes links for which an agent no longer has circuits.
    pub fn forget_circuit_links(&self, agent: AgentId, sources: &[StorageName]) -> Result<(), CatalogError> {
        self.write(|tx| {
            for source in sources {
                tx.execute_deferred(
                    "DELETE FROM circuit_links WHERE agent = ?1 AND source = ?2",
                    (key!(agent), source.as_str()),
                )?;
            }
            Ok(())
        })
    }

    pub fn circuit(&self, id: &str) -> Result<Option<CircuitRow>, CatalogError> {
        self.read(|tx| Ok(circuits(tx, &format!("{SELECT_CIRCUIT} WHERE id = ?1"), [id])?.pop()))
    }

    /// Circuits of one link, latest first.
    pub fn circuits_of(
        &self,
        agent: AgentId,
        source: &StorageName,
        limit: usize,
    ) -> Result<Vec<CircuitRow>, CatalogError> {
        let limit = limit.min(PAGE_ROWS_MAX) as i64;
        self.read(|tx| {
            let statement = format!(
                "{SELECT_CIRCUIT} WHERE agent = ?1 AND source = ?2 ORDER BY asked DESC, id DESC LIMIT ?3"
            );
            circuits(tx, &statement, (key!(agent), source.as_str(), limit))
        })
    }

    /// Circuits, latest first, those before the given one.
    pub fn circuits_page(
        &self,
        before: Option<(Timestamp, &str)>,
        limit: usize,
    ) -> Result<Vec<CircuitRow>, CatalogError> {
        let (at, id) = before.unwrap_or((Timestamp(i64::MAX), ""));
        let limit = limit.min(PAGE_ROWS_MAX + 1) as i64;
        self.read(|tx| {
            let statement = format!(
                "{SELECT_CIRCUIT} WHERE (asked, id) < (?1, ?2) ORDER BY asked DESC, id DESC LIMIT ?3"
            );
            circuits(tx, &statement, (at.0, id, limit))
        })
    }

    /// Open orders, by agent, oldest first.
    pub fn open_circuit_orders(&self) -> Result<Vec<CircuitOrderRow>, CatalogError> {
        self.read(|tx| orders(tx, &format!("{SELECT_ORDER} WHERE over = 0 ORDER BY agent, id"), ()))
    }

    pub fn circuit_order(&self, id: CircuitOrderId) -> Result<Option<CircuitOrderRow>, CatalogError> {
        self.read(|tx| Ok(orders(tx, &format!("{SELECT_ORDER} WHERE id = ?1"), [key!(id)])?.pop()))
    }

    /// Orders of one link, latest first.
    pub fn circuit_orders_of(
        &self,
        agent: AgentId,
        source: &StorageName,
        limit: usize,
    ) -> Result<Vec<CircuitOrderRow>, CatalogError> {
        let limit = limit.min(PAGE_ROWS_MAX) as i64;
        self.read(|tx| {
            let statement =
                format!("{SELECT_ORDER} WHERE agent = ?1 AND source = ?2 ORDER BY id DESC LIMIT ?3");
            orders(tx, &statement, (key!(agent), source.as_str(), limit))
        })
    }
}

fn circuits(
    tx: &Transaction<'_>,
    statement: &str,
    parameters: impl Params,
) -> Result<Vec<CircuitRow>, CatalogError> {
    let mut select = tx.prepare_cached(statement)?;
    let rows = select.query_map(parameters, |row: &Row<'_>| {
        Ok(CircuitRow {
            id: row.get(0)?,
            agent: row.id(1)?,
            source: row.parsed(2)?,
            requested: row.time(3)?,
            ended: row.maybe_time(4)?,
            details: row.get(5)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn orders(
    tx: &Transaction<'_>,
    statement: &str,
    parameters: impl Params,
) -> Result<Vec<CircuitOrderRow>, CatalogError> {
    let mut select = tx.prepare_cached(statement)?;
    let rows = select.query_map(parameters, |row: &Row<'_>| {
        Ok(CircuitOrderRow {
            id: row.id(0)?,
            agent: row.id(1)?,
            source: row.parsed(2)?,
            at: row.time(3)?,
            who: row.get(4)?,
            over: row.get(5)?,
            details: row.get(6)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
