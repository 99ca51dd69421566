//! What goes into a [`crate::Lifecycle`] and what comes out.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::{CircuitEndpoints, Note, Order, RequestKey, ReservationLedger};

/// What has happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// What waits on the link, and what it is known to achieve: counts only until something was seen to move,
    /// and is none if nobody knows.
    Work { pending_bytes: u64, bytes_per_s: Option<f64> },
    /// So much was seen to move, in a time in which something was under way throughout.
    Moved { on_circuit: bool, bytes: u64, during: Duration },
    /// Somebody wants a circuit, whatever the work; or does not want it any more.
    SetWanted(bool),
    /// All that people want of this link now. What was said before may be said again, and what is left out is
    /// withdrawn.
    Orders(Vec<Order>),
    /// Whether another place, which sees more links, decides about work: then none is asked for here because
    /// of it.
    SetPlannedCentrally(bool),
    /// The link's owner ends: all is given back, and nothing is asked for any more.
    OwnerEnded,
    /// The provider's answer to a request, or news of what it had granted.
    Answer { key: RequestKey, answer: Answer },
    /// The provider holds nothing under this name any more.
    TornDown(RequestKey),
    /// Whether the circuit's ends answer, as [`Action::Probe`] had asked.
    Probed { key: RequestKey, good: bool },
    /// A transfer has ended, on the circuit or beside it. Failures of disks and permissions say nothing and
    /// are not told.
    Transfer { on_circuit: bool, good: bool },
    /// Transfers that use the circuit now.
    Users(usize),
    /// Nothing uses any more the circuit in whose place another is used.
    PredecessorDrained,
    /// What the provider held under names of ours for this link when it was asked, at the time given.
    Listed { asked: Timestamp, held: Vec<ProviderReservation> },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Granted(Grant),
    /// `less` if there may be less than was asked for.
    Refused {
        less: bool,
        detail: String,
    },
    /// What was granted has ended before its time.
    Lost {
        detail: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub mbit: u64,
    pub ends: CircuitEndpoints,
    pub expires: Option<Timestamp>,
}

/// One of the provider's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderReservation {
    pub key: RequestKey,
    /// It was granted and has not ended.
    pub up: bool,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Written down durably before anything that follows is done.
    Persist(ReservationLedger),
    Request(CircuitRequest),
    /// Given back, or cancelled if it was not granted yet. To be answered with [`Event::Gone`]; said again
    /// until it is.
    TearDown(RequestKey),
    /// The provider's list of what it holds for this link is wanted.
    List,
    Probe {
        key: RequestKey,
        ends: CircuitEndpoints,
    },
    /// From now on what moves on the link may go by the circuit; and not by the one before, if one is used:
    /// what is under way there moves over.
    Use {
        key: RequestKey,
        mbit: u64,
        ends: CircuitEndpoints,
    },
    /// From now on nothing begins on it; what is under way moves away or ends.
    StopUsing(RequestKey),
    /// For people.
    Note(Note),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitRequest {
    pub key: RequestKey,
    pub mbit: u64,
    pub lifetime: Option<Duration>,
}
