//! Agents whose certificates are refused, and what that means for what they had.
//!
//! Refused is the agent's id, which is in every certificate of it. A key or serial number would not do: each
//! renewal makes a new key, so whoever stole one may hold certificates of others by now.

use std::time::Duration;

use longhaul_model::{AgentId, AttemptId, Fault, FaultCode, Timestamp};

use crate::attempts::requeue_attempts;
use crate::refused_agents::{SELECT_REFUSED, find_refusal, refused_row};
use crate::rows::codec::{Columns, key};
use crate::sites::find_agent;
use crate::sql::Transaction;
use crate::{AgentConcerns, Catalog, CatalogError, RefusalResult, RefusedAgentRow};

/// No release issues certificates that are valid for longer. The one that the catalog knows may expire sooner
/// than an earlier one of the same agent: certificates lived 90 days in release 0.1.0, and live 30 now.
const CERTIFICATE_VALIDITY_MAX: Duration = Duration::from_secs(90 * 86_400);
/// Leases of the agent, and those of others that read from its storages.
const SELECT_LEASES: &str = "SELECT l.attempt FROM live l JOIN storages t ON t.id = l.source
    WHERE l.leased = 1 AND (l.agent = ?1 OR t.agent = ?1) ORDER BY l.id";

impl Catalog {
    /// Refuses all certificates of the agent from now on. Its leases, and those of others that read from its
    /// storages, end: their transfers wait again. The first reason stays if it was refused before.
    pub fn refuse_agent(
        &self,
        id: AgentId,
        reason: &str,
        now: Timestamp,
    ) -> Result<RefusalResult, CatalogError> {
        self.write(|tx| refuse(tx, id, reason, now))
    }

    pub fn refused_agents(&self) -> Result<Vec<RefusedAgentRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!("{SELECT_REFUSED} ORDER BY agent"))?;
            let rows = select.query_map((), refused_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// What depends on the agent now.
    pub fn agent_concerns(&self, id: AgentId) -> Result<AgentConcerns, CatalogError> {
        self.read(|tx| {
            let count = |sql: &str| -> Result<u64, CatalogError> {
                Ok(tx.prepare_cached(sql)?.query_row([key!(id)], |row| row.number(0))?)
            };
            let mut names = tx.prepare_cached(
                "SELECT name FROM storages WHERE agent = ?1 AND removed IS NULL ORDER BY name",
            )?;
            let storages = names.query_map([key!(id)], |row| row.parsed(0))?.collect::<Result<_, _>>()?;
            let of_storages = |column: &str| {
                format!("SELECT CAST(COALESCE(SUM({column}), 0) AS BIGINT) FROM storages WHERE agent = ?1")
            };
            Ok(AgentConcerns {
                storages,
                files: count(&of_storages("files"))?,
                bytes: count(&of_storages("bytes"))?,
                leases_in: count("SELECT COUNT(*) FROM live WHERE leased = 1 AND agent = ?1")?,
                leases_out: count(
                    "SELECT COUNT(*) FROM live l JOIN storages t ON t.id = l.source
                     WHERE l.leased = 1 AND t.agent = ?1 AND l.agent <> ?1",
                )?,
                tasks: count(
                    "SELECT COUNT(*) FROM tasks k JOIN storages t ON t.id = k.storage
                     WHERE k.done = 0 AND t.agent = ?1",
                )?,
                subscriptions: count(
                    "SELECT COUNT(*) FROM subscriptions s JOIN storages t ON t.id = s.target
                     WHERE s.state = 'active' AND t.agent = ?1",
                )?,
            })
        })
    }
}

/// Refuses the agent, and lets its leases, and those that read from its storages, wait again.
pub(crate) fn refuse(
    tx: &Transaction<'_>,
    id: AgentId,
    reason: &str,
    now: Timestamp,
) -> Result<RefusalResult, CatalogError> {
    let agent = find_agent(tx, id)?.ok_or_else(|| CatalogError::not_found("agent", id))?;
    let expires = agent.certificate_expires.max(now.plus(CERTIFICATE_VALIDITY_MAX));
    tx.execute(
        "INSERT INTO refused_agents (agent, reason, refused, expires) VALUES (?1, ?2, ?3, ?4) \
            ON CONFLICT DO NOTHING",
        (key!(id), reason, now.0, expires.0),
    )?;
    let refusal = find_refusal(tx, id)?.ok_or_else(|| CatalogError::not_found("refusal of", id))?;
    let mut select = tx.prepare_cached(SELECT_LEASES)?;
    let leased: Vec<AttemptId> = select.query_map([key!(id)], |row| row.id(0))?.collect::<Result<_, _>>()?;
    let fault = Fault::new(FaultCode::Interrupted, format!("agent {id} is refused"));
    let released = requeue_attempts(tx, leased.into_iter(), &fault, now)?;
    Ok(RefusalResult { refusal, released })
}
