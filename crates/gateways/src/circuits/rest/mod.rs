//! Providers with a REST interface that are only asked, never call: one reservation after the other goes
//! through its stages, one call at a time, and is looked at until it is what was wanted.
//!
//! The provider gives a name first, which is kept before anything is done under it: so nothing is ever
//! reserved that is not known, and asking again is safe at any time. What a stage says and hears is the
//! [`Protocol`]'s.

mod machine;
mod oscars;
mod sense;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use longhaul_circuits::RequestKey;
use longhaul_model::percent::encode_component;
use longhaul_model::{Fault, FaultCode, Timestamp};
use zeroize::Zeroizing;

use super::Provider;
use super::remote::{Call, CallId, Caller, Ground, HttpAnswer};
use machine::Rest;
pub use oscars::OscarsConfig;
pub(super) use oscars::vlans;
pub use sense::SenseConfig;

/// ```text
/// Name ─► Look ─► Path ─► Hold ─► Commit ─► Wait ─► Settle ─► Up
///                                       any of them ─► Examine ◄─► Cancel, Remove ─► gone
/// ```
/// Not every protocol has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The provider's name for it.
    Name,
    /// Query of free bandwidth.
    Availability,
    /// A way through the network.
    Path,
    Hold,
    Commit,
    /// Until it is there,
    Wait,
    /// and carries traffic.
    Settle,
    Up,
    /// It is not wanted: what is there of it?
    Examine,
    Cancel,
    Remove,
}

/// The consequence of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    Named(String, Stage),
    Go(Stage),
    /// The same after a while, which grows.
    Later(Stage),
    /// Nothing has changed yet.
    Unchanged,
    Granted,
    Refused {
        less: bool,
        detail: String,
    },
    /// It makes no sense, or something is wrong there for a while.
    Unclear(String),
    /// Nothing is held.
    Gone,
}

/// One reservation.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) key: RequestKey,
    /// Asked for, and granted once that is known.
    pub(super) mbit: u64,
    pub(super) lifetime: Option<Duration>,
    /// When the stage began, by our clock.
    pub(super) end: Option<Timestamp>,
    /// The provider's name of it.
    pub(super) name: Option<String>,
    pub(super) stage: Stage,
    /// Looks in this stage that found nothing new.
    pub(super) polls: u32,
    /// VLANs that were chosen, at the source and at the target.
    pub(super) vlans: Option<(u16, u16)>,
    pub(super) route: Vec<String>,
    call: Option<CallId>,
    next: Timestamp,
    failures: u32,
    is_releasing: bool,
    is_stray: bool,
    is_reported: bool,
}

/// Why a call gave neither a token nor the state of a reservation.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    /// The call failed: there is no answer.
    #[error(transparent)]
    Call(#[from] Fault),
    /// The body is not shown, since it may hold a secret.
    #[error("it answered {status}: ")]
    NoToken { status: u16 },
    #[error("it answered {status}: {text}")]
    Unexpected { status: u16, text: String },
    /// A page for people, which is not shown.
    #[error("it answered {status}")]
    HtmlPage { status: u16 },
}

/// What the provider speaks: without memory, for that is in the [`Job`].
pub(super) trait Protocol: Send {
    /// The call that gets a token; none if none is needed.
    fn login(&self) -> Option<Call>;
    fn token(&self, heard: &HttpAnswer) -> Result<String, AnswerError>;
    /// A configured token, which needs no login.
    fn given_token(&self) -> Option<String> {
        None
    }
    /// Adds the token to a call.
    fn authorise(&self, token: &str) -> (&'static str, String);
    /// The first stage.
    fn next_call(&self, job: &Job, now: Timestamp) -> Call;
    fn hear(&self, job: &mut Job, heard: &HttpAnswer, skew: i64) -> Next;
    /// Whether it is up; none if nothing is held.
    fn is_up(&self, heard: &HttpAnswer) -> Result<Option<bool>, AnswerError>;
    /// The question that [`Protocol::is_up`] is about.
    fn examine(&self, name: &str) -> Call;
    fn ends(&self) -> longhaul_circuits::CircuitEndpoints;
}

pub(super) fn open_oscars(
    config: &OscarsConfig,
    link: &str,
    ground: Ground,
    caller: Caller,
) -> Result<Box<dyn Provider>, Fault> {
    let protocol = oscars::Oscars::new(config.clone(), read_secret(&config.secret)?, link);
    open(Box::new(protocol), ground, caller)
}

pub(super) fn open_sense(
    config: &SenseConfig,
    link: &str,
    ground: Ground,
    caller: Caller,
) -> Result<Box<dyn Provider>, Fault> {
    let (client_secret, password) = (read_secret(&config.client_secret)?, read_secret(&config.password)?);
    let protocol = sense::Sense::new(config.clone(), client_secret, password, link);
    open(Box::new(protocol), ground, caller)
}

/// Opens without names from earlier runs.
#[cfg(any(test, feature = "testing"))]
pub(super) fn rehearsed_oscars(config: &OscarsConfig, link: &str, secret: Zeroizing<String>) -> Rest {
    Rest::new(Box::new(oscars::Oscars::new(config.clone(), secret, link)), Default::default())
}

#[cfg(any(test, feature = "testing"))]
pub(super) fn rehearsed_sense(config: &SenseConfig, link: &str, secret: Zeroizing<String>) -> Rest {
    let protocol = sense::Sense::new(config.clone(), secret.clone(), secret, link);
    Rest::new(Box::new(protocol), Default::default())
}

fn open(protocol: Box<dyn Protocol>, ground: Ground, caller: Caller) -> Result<Box<dyn Provider>, Fault> {
    let names = ground.read_names()?;
    Ok(Box::new(ground.start(caller, Box::new(Rest::new(protocol, names)))))
}

fn read_secret(path: &Path) -> Result<Zeroizing<String>, Fault> {
    let secret = longhaul_security::read_secret(path);
    secret.map_err(|error| Fault::new(FaultCode::BadRequest, Fault::from(error).detail))
}

/// The fault of an answer that is not the expected one.
fn unexpected(heard: &HttpAnswer) -> AnswerError {
    let (status, text) = (heard.status, heard.body.chars().take(200).collect::<String>());
    match text.trim_start().starts_with('<') {
        true => AnswerError::HtmlPage { status },
        false => AnswerError::Unexpected { status, text },
    }
}

/// The consequence of a refusal, or of an error at the provider.
fn no(heard: &HttpAnswer, less: bool) -> Next {
    match heard.status {
        400..=499 if !matches!(heard.status, 408 | 429) => {
            Next::Refused { less, detail: unexpected(heard).to_string() }
        }
        _ => Next::Unclear(unexpected(heard).to_string()),
    }
}
