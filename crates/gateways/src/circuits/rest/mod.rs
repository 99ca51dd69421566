//! Providers with a REST interface that are only asked, never call: one reservation after the other goes through its
//! stages, one call at a time, and is looked at until it is what was wanted.
//!
//! The provider gives a name first, which is kept before anything is done under it: so nothing is ever reserved that is
//! not known, and asking again is safe at any time. What a stage says and hears is the [`Protocol`]'s.

mod machine;
mod oscars;
mod sense;

use std::time::Duration;

use longhaul_circuits::RequestKey;
use longhaul_model::Timestamp;

use super::remote::{Call, CallId, Heard};
pub(super) use machine::Rest;
pub(super) use oscars::Oscars;
pub use oscars::OscarsConfig;
pub(super) use sense::Sense;
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
    /// What is free.
    Look,
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

/// What follows from an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    Named(String, Stage),
    Go(Stage),
    /// The same after a while, which grows.
    Later(Stage),
    /// Nothing has changed yet.
    Again,
    Granted,
    Refused { less: bool, detail: String },
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
    /// By our clock.
    pub(super) end: Option<Timestamp>,
    /// The provider's name of it.
    pub(super) name: Option<String>,
    pub(super) stage: Stage,
    /// Looks in this stage that found nothing new.
    pub(super) looks: u32,
    /// VLANs that were chosen, at the source and at the target.
    pub(super) vlans: Option<(u16, u16)>,
    pub(super) route: Vec<String>,
    call: Option<CallId>,
    next: Timestamp,
    failures: u32,
    is_leaving: bool,
    is_stray: bool,
    is_told: bool,
}

/// What the provider speaks: without memory, for that is in the [`Job`].
pub(super) trait Protocol: Send {
    /// How a token is got; none if none is needed.
    fn login(&self) -> Option<Call>;
    fn token(&self, heard: &Heard) -> Result<String, String>;
    /// How it is shown.
    fn authorise(&self, token: &str) -> (&'static str, String);
    /// What comes first.
    fn ask(&self, job: &Job, now: Timestamp) -> Call;
    fn hear(&self, job: &mut Job, heard: &Heard, skew: i64) -> Next;
    /// Whether it is up; none if nothing is held.
    fn is_up(&self, heard: &Heard) -> Result<Option<bool>, String>;
    /// The question that [`Protocol::is_up`] is about.
    fn examine(&self, name: &str) -> Call;
    fn ends(&self) -> longhaul_circuits::Ends;
}

/// Of an answer that is not what was asked for.
fn unexpected(heard: &Heard) -> String {
    let said: String = heard.body.chars().take(200).collect();
    match said.trim_start().starts_with('<') {
        // A page for people.
        true => format!("it answered {}", heard.status),
        false => format!("it answered {}: {said}", heard.status),
    }
}

/// Of an answer that refuses, or of one that says that something is wrong there.
fn no(heard: &Heard, less: bool) -> Next {
    match heard.status {
        400..=499 if !matches!(heard.status, 408 | 429) => Next::Refused { less, detail: unexpected(heard) },
        _ => Next::Unclear(unexpected(heard)),
    }
}

/// Values in an address.
fn in_url(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
