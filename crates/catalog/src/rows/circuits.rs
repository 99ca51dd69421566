//! Circuits of the agents' links. Details are documents of those who keep them.

use longhaul_model::{AgentId, CircuitOrderId, StorageName, Timestamp};

/// A link as its agent told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitLinkRow {
    pub agent: AgentId,
    pub source: StorageName,
    pub reported: Timestamp,
    pub details: String,
}

/// One circuit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitRow {
    /// As the provider knows it.
    pub id: String,
    pub agent: AgentId,
    pub source: StorageName,
    pub requested: Timestamp,
    pub ended: Option<Timestamp>,
    pub details: String,
}

/// What a person wants of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitOrderRow {
    pub id: CircuitOrderId,
    pub agent: AgentId,
    pub source: StorageName,
    pub at: Timestamp,
    pub who: String,
    /// Nothing more comes of it.
    pub over: bool,
    pub details: String,
}
