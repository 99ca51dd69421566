//! The life of reserved bandwidth on a link: when it is asked for, used, left and given back. Pure: events with `now` go
//! in, actions come out, and whoever owns it carries them out in their order.
//!
//! ```text
//!            work, or a wish                granted, and its ends answer
//!    Off ───────────────────► Requested ───────────────────────────────► Established
//!     ▲                          │ refused, or no answer in time              │ expires, is not wanted any more
//!     │        window has passed ▼                            transfers fail  ▼
//!     └──────────────────── Resting ◄──────────────────────────────────── Draining ──► Off
//! ```
//!
//! What must hold whatever happens (`tests/random.rs`): at most one request or circuit of a link is alive; each
//! reservation that a provider may hold is in the durable [`Book`] before it is asked for, and stays there until the
//! provider says that it is gone; nothing uses a circuit that is not established, and use stops before the circuit is
//! given back; a clock that jumps prolongs nothing beyond its window.
//!
//! A transfer never waits for a circuit: without one it goes the way it always went. Not here: providers and what they
//! speak (`gateways`), and streams that move onto the circuit's addresses (`engine`).
//!
//! Start with [`Lifecycle`]; where one place sees all links, [`plan::Planner`] decides which of them deserve a circuit,
//! and a lifecycle of its own carries out each of its wishes.

mod book;
mod clock;
mod event;
mod lifecycle;
mod note;
pub mod plan;
mod settings;
mod trouble;
mod workload;

pub use book::{Book, Ends, RequestKey, Reservation, Rest, Stage, Why};
pub use event::{Action, Answer, Event, Grant, Held, Wish};
pub use lifecycle::{Lifecycle, State};
pub use note::Note;
pub use settings::{Leave, Settings, Slower};
