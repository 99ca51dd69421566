//! Which agents are refused: the rows, as everything that admits an agent reads them. What a refusal does is
//! in `refusals`.

use longhaul_model::AgentId;

use crate::rows::codec::{Columns, key};
use crate::sql::{Optional, Row, Transaction};
use crate::{CatalogError, RefusedAgentRow};

/// The columns that [`refused_row`] reads.
pub(crate) const SELECT_REFUSED: &str = "SELECT agent, reason, refused, expires FROM refused_agents";

/// Fails if the agent's certificates are refused.
pub(crate) fn ensure_admitted(tx: &Transaction<'_>, id: AgentId) -> Result<(), CatalogError> {
    match find_refusal(tx, id)? {
        Some(refusal) => Err(CatalogError::Refused(refusal.fault())),
        None => Ok(()),
    }
}

pub(crate) fn find_refusal(
    tx: &Transaction<'_>,
    id: AgentId,
) -> Result<Option<RefusedAgentRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_REFUSED} WHERE agent = ?1"))?;
    Ok(select.query_row([key!(id)], refused_row).optional()?)
}

pub(crate) fn refused_row(row: &Row<'_>) -> crate::sql::Result<RefusedAgentRow> {
    Ok(RefusedAgentRow {
        agent: row.id(0)?,
        reason: row.get(1)?,
        refused: row.time(2)?,
        expires: row.time(3)?,
    })
}
