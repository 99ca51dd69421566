//! Inputs and outputs of a [`crate::Lifecycle`].

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::{CircuitEndpoints, Note, Order, RequestKey, ReservationLedger};

/// Input of the state machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// Pending bytes of the link, and its forecast rate if any: the forecast counts only until a rate was
    /// measured.
    Work { pending_bytes: u64, bytes_per_s: Option<f64> },
    /// Bytes moved during a time in which transfers were under way throughout.
    Moved { on_circuit: bool, bytes: u64, during: Duration },
    /// Whether a circuit is wanted regardless of the work.
    SetWanted(bool),
    /// All current orders of people for this link. Repeated orders are idempotent; those left out are
    /// withdrawn.
    Orders(Vec<Order>),
    /// Whether a central planner decides about work: then none is requested here because of it.
    SetPlannedCentrally(bool),
    /// The link's owner ends: everything is released, and nothing is requested any more.
    OwnerEnded,
    /// The provider's answer to a request, or a later notification about it.
    Answer { key: RequestKey, answer: Answer },
    /// The provider holds nothing under this key any more.
    TornDown(RequestKey),
    /// Whether the circuit's endpoints answer, after [`Action::Probe`].
    Probed { key: RequestKey, good: bool },
    /// A transfer ended, on the circuit or beside it. Failures of disks and permissions are not reported,
    /// since they say nothing about the circuit.
    Transfer { on_circuit: bool, good: bool },
    /// Transfers that use the circuit now.
    Users(usize),
    /// The superseded circuit is no longer in use.
    PredecessorDrained,
    /// Reservations that the provider listed under our keys for this link, and the time of the query.
    Listed { asked: Timestamp, held: Vec<ProviderReservation> },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Granted(Grant),
    /// `less` if a lower rate may be available.
    Refused {
        less: bool,
        detail: String,
    },
    /// The circuit ended before its time.
    Lost {
        detail: String,
    },
}

/// What a provider granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub mbit: u64,
    pub ends: CircuitEndpoints,
    pub expires: Option<Timestamp>,
}

/// A reservation as listed by the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderReservation {
    pub key: RequestKey,
    /// It was granted and has not ended.
    pub up: bool,
}

/// Output of the state machine, to be carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Persist durably before anything that follows is done.
    Persist(ReservationLedger),
    Request(CircuitRequest),
    /// Release, or cancel if not granted yet. Confirmed by [`Event::TornDown`]; repeated until then.
    TearDown(RequestKey),
    /// Query the provider's reservations for this link.
    List,
    Probe {
        key: RequestKey,
        ends: CircuitEndpoints,
    },
    /// From now on transfers may use the circuit, and no longer its predecessor; what is under way there
    /// moves over.
    Use {
        key: RequestKey,
        mbit: u64,
        ends: CircuitEndpoints,
    },
    /// From now on nothing starts on it; what is under way moves away or ends.
    StopUsing(RequestKey),
    /// For people.
    Note(Note),
}

/// A request to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitRequest {
    pub key: RequestKey,
    pub mbit: u64,
    pub lifetime: Option<Duration>,
}
