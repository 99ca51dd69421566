//! The life of reserved bandwidth on a link: when it is asked for, used, left and given back. Pure: events
//! with `now` go in, actions come out, and whoever owns it carries them out in their order.
//!
//! ```text
//!            work, or a wish                granted, and its ends answer
//!    Off ───────────────────► Requested ───────────────────────────────► Established
//!     ▲                          │ refused, or no answer in time              │ expires, is not wanted any more
//!     │        window has passed ▼                            transfers fail  ▼
//!     └──────────────────── Resting ◄──────────────────────────────────── Draining ──► Off
//! ```
//!
//! What must hold whatever happens (`tests/random.rs`): at most one request or circuit of a link is alive;
//! each reservation that a provider may hold is in the durable [`Book`] before it is asked for, and stays
//! there until the provider says that it is gone; nothing uses a circuit that is not established, and use
//! stops before the circuit is given back; a clock that jumps prolongs nothing beyond its window. The
//! exception is a circuit that is to follow another: it is asked for while that is used, and that is given
//! back when it is used itself.
//!
//! A transfer never waits for a circuit: without one it goes the way it always went. Not here: providers and
//! what they speak (`gateways`), and streams that move onto the circuit's addresses (`engine`).
//!
//! What people want of a link ([`Order`]) goes the same way as what the work asks for. [`Look`] says why a
//! link has a circuit or none, with the numbers; [`Record`] keeps what came of each.
//!
//! Start with [`Lifecycle`]; where one place sees all links, [`plan::Planner`] decides which of them deserve
//! a circuit, and a lifecycle of its own carries out each of its wishes.

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
