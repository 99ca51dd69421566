//! Listing of all reservations at the provider, in which lost ones are found, and discovery of its endpoint.

use longhaul_circuits::{Event, ProviderReservation, RequestKey};
use longhaul_model::{Fault, Timestamp};

use super::answers::{self, Summary};
use super::connection::{Connection, Stage};
use super::dialogue::{CONNECTIONS_MAX, CallSubject, Nsi, TRIES};
use super::discovery;
use super::messages::Request;
use crate::circuits::remote::{Call, HttpAnswer, Step, poll_delay};

impl Nsi {
    pub(super) fn ask_list(&mut self, now: Timestamp) {
        if self.listing.call.is_some() || now < self.listing.next {
            return;
        }
        if self.endpoint.is_none() {
            return self.discover(now);
        }
        self.listing.call = self.send(&Request::Query(None), CallSubject::List { asked: now });
        self.listing.next = now.plus(poll_delay(0));
    }

    /// When something that is due then can be asked; none while that waits for an answer.
    pub(super) fn asked_at(&self, due: Timestamp) -> Option<Timestamp> {
        match (&self.endpoint, self.discovery.call) {
            (Some(_), _) => Some(due),
            (None, None) => Some(due.max(self.discovery.next)),
            (None, Some(_)) => None,
        }
    }

    pub(super) fn list_at(&self, due: Timestamp) -> Option<Timestamp> {
        let due = due.max(self.listing.next);
        self.listing.call.is_none().then(|| self.asked_at(due)).flatten()
    }

    /// Where the provider is and what it is called, from its own description.
    pub(super) fn discover(&mut self, now: Timestamp) {
        let Some(url) = self.config.discovery.clone() else { return };
        if self.discovery.call.is_none() && now >= self.discovery.next {
            let call = Call { method: http::Method::GET, url, headers: Vec::new(), body: String::new() };
            self.discovery.call = Some(self.call(call, CallSubject::Discovery));
        }
    }

    pub(super) fn discovered(&mut self, answer: Result<HttpAnswer, Fault>, now: Timestamp) {
        self.discovery.call = None;
        let known = self.config.provider_nsa.as_deref();
        let found = answer.and_then(|heard| discovery::read(&heard, self.config.discovery.as_deref(), known));
        match found {
            Ok(endpoint) => self.endpoint = Some(endpoint),
            Err(fault) => {
                self.discovery.failures += 1;
                self.discovery.next = now.plus(poll_delay(self.discovery.failures));
                if self.discovery.failures >= TRIES {
                    self.give_up_waiting(&fault.to_string(), now);
                }
            }
        }
    }

    pub(super) fn listed(&mut self, answer: Result<HttpAnswer, Fault>, asked: Timestamp, now: Timestamp) {
        self.listing.call = None;
        let read = answer.map_err(|fault| fault.to_string()).and_then(|heard| {
            let body = answers::body(&heard).map_err(|refusal| refusal.words())?;
            answers::summaries(&body).map_err(|fault| fault.to_string())
        });
        let all = match read {
            Ok(all) => all,
            Err(why) => return self.list_failed(&why, now),
        };
        self.listing.failures = 0;
        let ours: Vec<Summary> = all
            .into_iter()
            .filter(|one| one.description == self.mark && one.key.is_some() && one.lives())
            .collect();
        self.find(&ours, now);
        if std::mem::take(&mut self.listing.is_wanted) {
            let up = |one: &Summary| one.is_active && one.provision == "provisioned";
            let cleared =
                |id: &str| self.connections.values().any(|one| one.is_stray && one.id.as_deref() == Some(id));
            let held = ours.iter().filter(|one| !cleared(&one.id));
            let held =
                held.filter_map(|one| Some(ProviderReservation { key: one.key?, up: up(one) })).collect();
            self.push_event(Event::Listed { asked, held });
            self.forget_names(&ours);
        }
    }

    fn list_failed(&mut self, why: &str, now: Timestamp) {
        self.listing.failures = self.listing.failures.saturating_add(1);
        self.listing.next = now.plus(poll_delay(self.listing.failures));
        let finding: Vec<u64> =
            self.connections.iter().filter(|(_, one)| one.stage == Stage::Find).map(|(at, _)| *at).collect();
        for serial in finding {
            let Some(connection) = self.connections.get_mut(&serial) else { continue };
            connection.fail(now);
            if connection.failures >= TRIES {
                self.refuse(serial, false, why.to_owned(), now);
            }
        }
    }

    /// What was looked for is in the list or is not there; and what is in it twice is cleared away.
    fn find(&mut self, ours: &[Summary], now: Timestamp) {
        let serials: Vec<u64> = self.connections.keys().copied().collect();
        for serial in serials {
            let known: Vec<String> = self.connections.values().filter_map(|one| one.id.clone()).collect();
            let Some(connection) = self.connections.get_mut(&serial) else { continue };
            if connection.stage != Stage::Find {
                continue;
            }
            let key = connection.key;
            match ours.iter().find(|one| one.key == Some(key) && !known.contains(&one.id)) {
                Some(found) => {
                    connection.id = Some(found.id.clone());
                    connection.held_since = Some(now);
                    connection.turn(Stage::Checking, now);
                    self.persist_name(key, Some(found.id.clone()));
                }
                None if connection.is_leaving => {
                    self.finish(serial);
                    continue;
                }
                None => {
                    connection.is_unsure = false;
                    connection.turn(Stage::Reserve, now);
                }
            }
            self.drive(serial, now);
        }
        let known: Vec<String> = self.connections.values().filter_map(|one| one.id.clone()).collect();
        let current: Vec<RequestKey> =
            self.connections.values().filter(|one| one.id.is_some()).map(|one| one.key).collect();
        for twin in ours.iter().filter(|one| !known.contains(&one.id)) {
            let named = twin.key.and_then(|key| self.names.get(&key));
            let is_twin = named.is_some_and(|named| *named != twin.id)
                || twin.key.is_some_and(|key| current.contains(&key));
            if let (Some(key), true, true) = (twin.key, is_twin, self.connections.len() < CONNECTIONS_MAX) {
                tracing::warn!(%key, id = twin.id, "the provider has made two reservations of one request");
                let serial = self.add(Connection::stray(key, twin.id.clone(), now));
                self.drive(serial, now);
            }
        }
    }

    /// Names of what is no more, and of which nobody speaks.
    fn forget_names(&mut self, ours: &[Summary]) {
        let used: Vec<RequestKey> = self.connections.values().map(|one| one.key).collect();
        let before = self.names.len();
        self.names.retain(|key, id| used.contains(key) || ours.iter().any(|one| one.id == *id));
        if self.names.len() != before {
            self.steps.push_back(Step::PersistNames(self.names.clone()));
        }
    }
}
