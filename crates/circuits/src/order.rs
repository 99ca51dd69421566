//! What people want of a link. Said again and again for as long as it holds, so that nothing is lost with a
//! message.

use longhaul_model::{CircuitOrderId, Timestamp};

use crate::RequestKey;

/// Those given later have larger ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub id: CircuitOrderId,
    /// Who, for people.
    pub by: String,
    pub kind: OrderKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// A circuit, whatever the work, and though the link rests. One that is there already serves, unless it
    /// is the one that is to be replaced: then that is used until the new one is, and kept if the new one
    /// cannot be had.
    Circuit { mbit: u64, until: Timestamp, replaces: Option<RequestKey> },
    /// It is given back, and the link rests.
    Release(RequestKey),
}
