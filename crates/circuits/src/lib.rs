//! Lifecycle of reserved bandwidth (circuits) on a link as a sans-IO state machine: when a circuit is
//! requested, used, drained and released. Pure: events with `now` go in, actions come out, and the owner
//! carries them out in order.
//!
//! ```text
//!            work or an order               granted, and its endpoints answer
//!    Off ───────────────────► Requested ───────────────────────────────► Established
//!     ▲                          │ refused, or no answer in time              │ expires, or no longer wanted
//!     │       cool-down is over  ▼                            transfers fail  ▼
//!     └──────────────────── Cooldown ◄───────────────────────────────────── Draining ──► Off
//! ```
//!
//! Invariants, tested in `tests/random.rs`: at most one request or circuit of a link is alive; each
//! reservation that a provider may hold is in the durable [`ReservationLedger`] before it is requested
//! (write-ahead), and stays there until the provider confirms its release; nothing uses a circuit that is not
//! established, and its use stops before it is released; a clock step prolongs nothing beyond its window. The
//! exception is a replacement (make before break): it is requested while its predecessor is used, and that is
//! released once the replacement is used itself.
//!
//! A transfer never waits for a circuit: without one it takes the best-effort path. Not here: providers and
//! their protocols (`gateways`), and streams that move onto the circuit's addresses (`engine`).
//!
//! An [`Order`] is what people want of a link, and takes the same path as demand from work. [`Explanation`]
//! says why a link has a circuit or none, with the numbers; [`CircuitHistory`] records what came of each.
//!
//! Start with [`Lifecycle`]; where one service sees all links, [`plan::Planner`] selects those that deserve a
//! circuit, and a lifecycle carries out each of its bookings.

mod deadline;
mod event;
mod explanation;
mod history;
mod ledger;
mod lifecycle;
mod note;
mod order;
pub mod plan;
mod settings;
mod transfer_outcomes;
mod workload;

pub use event::{Action, Answer, CircuitRequest, Event, Grant, ProviderReservation};
pub use explanation::{Explanation, RateSource};
pub use history::{CircuitHistory, CircuitRecord, NOTES_MAX, OrderState};
pub use ledger::{
    CircuitEndpoints, Cooldown, CooldownReason, RequestKey, Reservation, ReservationLedger, ReservationStage,
};
pub use lifecycle::{Lifecycle, State};
pub use note::Note;
pub use order::{Order, OrderKind};
pub use settings::{ReleaseRule, RenewalRule, Settings, SlownessRule};
