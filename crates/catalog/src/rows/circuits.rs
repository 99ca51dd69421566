//! Circuits of the agents' links. `details` are documents of the crates that write them.

use longhaul_model::{AgentId, CircuitOrderId, StorageName, Timestamp};

/// A link as its agent reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitLinkRow {
    pub agent: AgentId,
    pub source: StorageName,
    pub reported: Timestamp,
    pub details: String,
}

/// A circuit of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitRow {
    /// The provider's id.
    pub id: String,
    pub agent: AgentId,
    pub source: StorageName,
    pub requested: Timestamp,
    pub ended: Option<Timestamp>,
    pub details: String,
}

/// A person's order for a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitOrderRow {
    pub id: CircuitOrderId,
    pub agent: AgentId,
    pub source: StorageName,
    pub at: Timestamp,
    pub who: String,
    /// It is done, failed or replaced.
    pub over: bool,
    pub details: String,
}
