//! Orders of people for a link. They are repeated for as long as they hold, so that no lost message matters.

use longhaul_model::{CircuitOrderId, Timestamp};

use crate::RequestKey;

/// One order; later ones have larger ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub id: CircuitOrderId,
    /// The name of the person who gave it, for display.
    pub by: String,
    pub kind: OrderKind,
}

/// What an order asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// A circuit regardless of work and cool-down. An existing one satisfies it, unless it is the one to be
    /// replaced: that is used until the replacement is, and kept if the replacement cannot be had.
    Circuit { mbit: u64, until: Timestamp, replaces: Option<RequestKey> },
    /// Releases the circuit; the link cools down.
    Release(RequestKey),
}
