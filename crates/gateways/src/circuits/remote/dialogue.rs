//! [`Dialogue`]: a protocol towards a provider as a sans-IO state machine. Answers go in, calls and events
//! come out.

use std::collections::BTreeMap;

use longhaul_circuits::{CircuitRequest, Event, RequestKey};
use longhaul_model::{Fault, Timestamp};

/// The provider's names of our requests: kept before anything is done under them.
pub(crate) type Names = BTreeMap<RequestKey, String>;
pub(crate) type CallId = u64;

/// A request over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) method: http::Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

/// An answer over HTTP, whatever its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// The `Date` of the answer: the provider's clock.
    pub(crate) date: Option<Timestamp>,
    pub(crate) body: String,
}

/// Outputs of a dialogue, to be carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Written down before the calls that follow.
    PersistNames(Names),
    Call(CallId, Call),
    Emit(Event),
}

pub(crate) trait Dialogue: Send {
    fn request(&mut self, wish: &CircuitRequest, now: Timestamp);
    fn tear_down(&mut self, key: RequestKey, now: Timestamp);
    fn list(&mut self, now: Timestamp);
    /// The outcome of a call. Every call ends, at least by a fault.
    fn heard(&mut self, call: CallId, answer: Result<HttpAnswer, Fault>, now: Timestamp);
    /// The provider has called us.
    fn called(&mut self, body: &str, now: Timestamp);
    fn tick(&mut self, now: Timestamp);
    fn next_wake(&self) -> Option<Timestamp>;
    fn poll(&mut self) -> Option<Step>;
}

/// Between the looks at something that is expected: dense at first.
pub(crate) fn poll_delay(looks: u32) -> std::time::Duration {
    std::time::Duration::from_secs(match looks {
        0 => 2,
        1 => 4,
        2 => 8,
        _ => 15,
    })
}
