//! A dialogue with a simulated provider, without socket, clock and secrets: what becomes of any answer. For
//! fuzzing, and for whoever wants to see it.
//!
//! Not here: the provider that answers as it should (`crates/provider`).

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_circuits::CircuitRequest;
pub use longhaul_circuits::{
    Answer, Event, Lifecycle, ProviderReservation, RequestKey, ReservationLedger, Settings,
};
use longhaul_model::{Fault, FaultCode, Timestamp};
use zeroize::Zeroizing;

use super::config::ProviderConfig;
use super::nsi;
use super::remote::{CallId, Dialogue, HttpAnswer, Names, Step};
use super::rest;

/// 2026-09-21T14:13:20Z
const BEGINNING: Timestamp = Timestamp(1_790_000_000_000_000);

pub struct Rehearsal {
    dialogue: Box<dyn Dialogue>,
    acknowledge: fn(&str) -> Option<String>,
    /// Calls that are not answered yet, the oldest first.
    open: VecDeque<CallId>,
    names: Names,
    now: Timestamp,
    news: Vec<Event>,
}

impl Rehearsal {
    /// None of the static provider, which says nothing. Files of secrets are not read.
    pub fn new(config: &ProviderConfig, link: &str) -> Option<Rehearsal> {
        let secret = || Zeroizing::new("secret".to_owned());
        let dialogue: Box<dyn Dialogue> = match config {
            ProviderConfig::Static(_) => return None,
            ProviderConfig::Nsi(config) => Box::new(nsi::rehearsed(config, link)),
            ProviderConfig::Oscars(config) => Box::new(rest::rehearsed_oscars(config, link, secret())),
            ProviderConfig::Sense(config) => Box::new(rest::rehearsed_sense(config, link, secret())),
        };
        let (open, names, news) = (VecDeque::new(), Names::new(), Vec::new());
        let acknowledge = nsi::acknowledge;
        Some(Rehearsal { dialogue, acknowledge, open, names, now: BEGINNING, news })
    }

    pub fn request(&mut self, key: RequestKey, mbit: u64) {
        let lifetime = Some(Duration::from_secs(6 * 3600));
        self.dialogue.request(&CircuitRequest { key, mbit, lifetime }, self.now);
        self.go_on();
    }

    pub fn tear_down(&mut self, key: RequestKey) {
        self.dialogue.tear_down(key, self.now);
        self.go_on();
    }

    pub fn list(&mut self) {
        self.dialogue.list(self.now);
        self.go_on();
    }

    /// The oldest call under way is answered, or breaks if there is no status; false if none is under way.
    pub fn answer(&mut self, status: Option<u16>, body: &str) -> bool {
        let Some(call) = self.open.pop_front() else { return false };
        let answer = match status {
            Some(status) => Ok(HttpAnswer { status, date: Some(self.now), body: body.to_owned() }),
            None => Err(Fault::new(FaultCode::ConnectionLost, "it broke")),
        };
        self.dialogue.heard(call, answer, self.now);
        self.go_on();
        true
    }

    /// The provider calls; false if it is no call.
    pub fn call(&mut self, body: &str) -> bool {
        if (self.acknowledge)(body).is_none() {
            return false;
        }
        self.dialogue.called(body, self.now);
        self.go_on();
        true
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.plus(time);
        self.dialogue.tick(self.now);
        self.go_on();
    }

    /// Calls that wait for an answer.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    /// The provider's names that were recorded.
    pub fn names(&self) -> impl Iterator<Item = (&RequestKey, &str)> {
        self.names.iter().map(|(key, name)| (key, name.as_str()))
    }

    pub fn news(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.news)
    }

    fn go_on(&mut self) {
        while let Some(step) = self.dialogue.poll() {
            match step {
                Step::PersistNames(names) => self.names = names,
                Step::Call(id, _) => self.open.push_back(id),
                Step::Emit(event) => self.news.push(event),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuits::CircuitConfig;

    #[test]
    fn a_conversation_goes_on_by_what_is_answered() {
        let text = "provider = \"oscars\"\nsource = \"10.1.0.1\"\ntarget = \"10.1.0.2\"\nmbit = 1000\n\
                    url = \"https://o/\"\nsource_port = \"a:1\"\ntarget_port = \"b:1\"\nvlans = \"7-9\"\n\
                    username = \"u\"\npassword_file = \"/nowhere\"\n";
        let config = CircuitConfig::parse(text, "file").unwrap();
        let mut rehearsal = Rehearsal::new(&config.provider, "alpha→beta").unwrap();
        let key = RequestKey(7);
        rehearsal.request(key, 400);
        let free = "{\"vlanExpression\":\"8\",\"ingressBandwidth\":900,\"egressBandwidth\":900}";
        for body in [
            "{\"token\":\"t\"}",
            "K7XT",
            &format!("{{\"a:1\":{free},\"b:1\":{free}}}"),
            "{\"fits\":{\"azEro\":[{\"urn\":\"a\"},{\"urn\":\"a:2\"},{\"urn\":\"b:2\"},{\"urn\":\"b\"}]}}",
            "{\"phase\":\"HELD\"}",
            "",
            "{\"phase\":\"RESERVED\",\"state\":\"ACTIVE\"}",
        ] {
            assert!(rehearsal.answer(Some(200), body), "before {body}");
        }
        assert_eq!(rehearsal.names().collect::<Vec<_>>(), [(&key, "K7XT")]);
        let news = rehearsal.news();
        assert!(
            matches!(&news[..], [Event::Answer { answer: Answer::Granted(grant), .. }] if grant.mbit == 400),
            "{news:?}"
        );
        assert!(!rehearsal.answer(Some(200), ""), "nothing is asked any more");
        assert!(!rehearsal.call("nobody calls"));
    }
}
