//! The NSI requester agent, sans-IO: which requests go to the provider and when, and which events its owner
//! gets.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longhaul_circuits::{Answer, CircuitRequest, Event, Grant, RequestKey};
use longhaul_model::{Fault, Timestamp};

use super::NsiConfig;
use super::answers::{self, Called};
use super::connection::{Connection, Operation, Stage};
use super::messages::{ACTIONS, Header, Request, Reserve};
use crate::circuits::remote::{Call, CallId, Dialogue, HttpAnswer, Names, Step};

/// Calls of one kind that fail in a row, before a request is given up.
pub(super) const TRIES: u32 = 3;
/// A list that nobody is waiting for is asked for this much apart.
const LIST_APART: Duration = Duration::from_secs(10);
/// Clocks that differ by less are the same: dates are told in whole seconds.
const SKEW_MIN: Duration = Duration::from_secs(2);
/// Replies of a query come on the same connection, and yet some providers insist on an address.
const NOWHERE: &str = "http://requester.invalid/";
/// Calls whose confirmations are waited for.
const EXPECTED_MAX: usize = 4_096;
/// Reservations that are cleared away at a time.
pub(super) const CONNECTIONS_MAX: usize = 256;

/// The subject of a call.
#[derive(Clone, Debug)]
pub(super) enum CallSubject {
    Discovery,
    List {
        asked: Timestamp,
    },
    /// A connection, under the id that it had then.
    Of {
        serial: u64,
        operation: Operation,
        id: Option<String>,
    },
}

/// Random numbers, of which correlation ids are made.
pub(crate) type Ids = Box<dyn FnMut() -> u128 + Send>;

pub(super) struct Endpoint {
    pub(super) url: String,
    pub(super) nsa: String,
}

/// The state of the listing of all reservations.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) call: Option<CallId>,
    /// The owner has asked for the listing.
    pub(super) is_wanted: bool,
    pub(super) next: Timestamp,
    pub(super) failures: u32,
}

pub(crate) struct Nsi {
    pub(super) config: NsiConfig,
    /// The prefix of the descriptions of all reservations of this link.
    pub(super) mark: String,
    reply_to: Option<String>,
    ids: Ids,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) discovery: Listing,
    pub(super) listing: Listing,
    pub(super) names: Names,
    pub(super) connections: BTreeMap<u64, Connection>,
    calls: BTreeMap<CallId, CallSubject>,
    /// Expected confirmations by correlation id: the serial of the connection, and the operation. Only the
    /// provider knows the id, which proves that a confirmation is genuine.
    expected: BTreeMap<String, (u64, Operation)>,
    /// The provider's clock minus ours, in microseconds.
    skew: i64,
    count: u64,
    pub(super) steps: VecDeque<Step>,
}

impl Nsi {
    pub(crate) fn new(
        config: NsiConfig,
        link: &str,
        reply_to: Option<String>,
        names: Names,
        ids: Ids,
    ) -> Nsi {
        let known = config.url.clone().zip(config.provider_nsa.clone());
        Nsi {
            mark: format!("longhaul {link}"),
            endpoint: known.map(|(url, nsa)| Endpoint { url, nsa }),
            config,
            reply_to,
            ids,
            discovery: Listing::default(),
            listing: Listing::default(),
            names,
            connections: BTreeMap::new(),
            calls: BTreeMap::new(),
            expected: BTreeMap::new(),
            skew: 0,
            count: 0,
            steps: VecDeque::new(),
        }
    }

    fn next_count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn add(&mut self, connection: Connection) -> u64 {
        let serial = self.next_count();
        self.connections.insert(serial, connection);
        serial
    }

    pub(super) fn push_event(&mut self, event: Event) {
        self.steps.push_back(Step::Emit(event));
    }

    pub(super) fn persist_name(&mut self, key: RequestKey, id: Option<String>) {
        let changed = match id {
            Some(id) => self.names.insert(key, id.clone()) != Some(id),
            None => self.names.remove(&key).is_some(),
        };
        if changed {
            self.steps.push_back(Step::PersistNames(self.names.clone()));
        }
    }

    /// When it was asked, by our clock.
    pub(super) fn here(&self, there: Timestamp) -> Timestamp {
        Timestamp(there.0.saturating_sub(self.skew))
    }

    /// Nobody's confirmations of this connection are waited for any more.
    pub(super) fn forget_expected(&mut self, serial: u64) {
        self.expected.retain(|_, (of, _)| *of != serial);
    }

    /// A new correlation id for every call: a repeated one is refused here and there.
    fn correlation(&mut self) -> String {
        let random = (self.ids)() & !(0xf << 76) & !(0x3 << 62);
        format!("urn:uuid:{}", RequestKey(random | (0x4 << 76) | (0x2 << 62)))
    }

    pub(super) fn send(&mut self, request: &Request, asked: CallSubject) -> Option<CallId> {
        let correlation = self.correlation();
        let endpoint = self.endpoint.as_ref()?;
        let nowhere = matches!(request, Request::Query(_)).then(|| NOWHERE.to_owned());
        let header = Header {
            correlation: correlation.clone(),
            requester: self.config.requester_nsa.clone(),
            provider: endpoint.nsa.clone(),
            reply_to: self.reply_to.clone().or(nowhere),
        };
        let call = Call {
            method: http::Method::POST,
            url: endpoint.url.clone(),
            headers: vec![
                ("content-type", "text/xml; charset=utf-8".to_owned()),
                ("soapaction", format!("\"{ACTIONS}{}\"", request.operation())),
            ],
            body: request.envelope(&header),
        };
        // Its confirmation may come before its acknowledgement.
        if let CallSubject::Of { serial, operation, .. } = &asked
            && *operation != Operation::Query
        {
            // Without them there is still asking.
            if self.expected.len() >= EXPECTED_MAX {
                self.expected.clear();
            }
            self.expected.insert(correlation, (*serial, *operation));
        }
        Some(self.call(call, asked))
    }

    pub(super) fn call(&mut self, call: Call, asked: CallSubject) -> CallId {
        let id = self.next_count();
        self.calls.insert(id, asked);
        self.steps.push_back(Step::Call(id, call));
        id
    }

    /// Does what is due of one connection.
    pub(super) fn drive(&mut self, serial: u64, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        if connection.call.is_some() {
            return;
        }
        if connection.is_leaving && connection.leave(now).is_none() {
            return self.finish(serial);
        }
        if connection.due().is_none_or(|due| due > now) {
            return;
        }
        if self.endpoint.is_none() {
            return self.discover(now);
        }
        let (stage, known) = (connection.stage, connection.id.clone());
        let id = known.clone().unwrap_or_default();
        let (operation, request) = match stage {
            Stage::Find => return self.ask_list(now),
            Stage::Reserve => (Operation::Reserve, Request::Reserve(self.reserve(serial, now))),
            Stage::Commit => (Operation::Commit, Request::Commit(id)),
            Stage::Abort => (Operation::Abort, Request::Abort(id)),
            Stage::Provision => (Operation::Provision, Request::Provision(id)),
            Stage::Terminate => (Operation::Terminate, Request::Terminate(id)),
            Stage::Checking
            | Stage::Committing
            | Stage::Provisioning
            | Stage::Up
            | Stage::Aborting
            | Stage::Terminating => (Operation::Query, Request::Query(Some(id))),
        };
        let call = self.send(&request, CallSubject::Of { serial, operation, id: known });
        if let Some(connection) = self.connections.get_mut(&serial) {
            (connection.call, connection.is_hint_newer) = (call, false);
        }
    }

    fn reserve(&mut self, serial: u64, now: Timestamp) -> Reserve {
        let skew = self.skew;
        let connection = self.connections.get_mut(&serial);
        let (key, mbit, lifetime) = connection.map_or((RequestKey(0), 0, None), |one| {
            one.end = one.lifetime.map(|lifetime| now.plus(lifetime));
            (one.key, one.mbit, one.lifetime)
        });
        let end =
            lifetime.map(|lifetime| whole_seconds(Timestamp(now.0.saturating_add(skew)).plus(lifetime)));
        Reserve {
            key: format!("urn:uuid:{key}"),
            description: self.mark.clone(),
            end,
            mbit,
            source: self.config.source_stp.clone(),
            target: self.config.target_stp.clone(),
        }
    }

    /// Nothing can be asked: requests that have not been made are refused.
    pub(super) fn give_up_waiting(&mut self, why: &str, now: Timestamp) {
        let waiting: Vec<u64> =
            self.connections.iter().filter(|(_, one)| one.id.is_none()).map(|(at, _)| *at).collect();
        for serial in waiting {
            self.refuse(serial, false, why.to_owned(), now);
        }
    }

    /// The request has failed; what may be left of it is cleared away.
    pub(super) fn refuse(&mut self, serial: u64, less: bool, detail: String, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        let key = connection.key;
        let is_silent = connection.is_leaving || connection.is_stray || connection.is_told;
        connection.is_told = true;
        if !is_silent {
            (connection.is_leaving, connection.is_stray) = (true, true);
            self.push_event(Event::Answer { key, answer: Answer::Refused { less, detail } });
        }
        self.drive(serial, now);
    }

    /// It is up.
    pub(super) fn grant(&mut self, serial: u64, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        connection.turn(Stage::Up, now);
        if connection.is_told || connection.is_stray || connection.is_leaving {
            return;
        }
        connection.is_told = true;
        let (key, mbit, expires) = (connection.key, connection.mbit, connection.end);
        let ends = self.config.ends.clone();
        self.push_event(Event::Answer { key, answer: Answer::Granted(Grant { mbit, ends, expires }) });
    }

    pub(super) fn lose(&mut self, serial: u64, detail: String) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        (connection.hint, connection.is_told) = (None, true);
        let (key, is_silent) = (connection.key, connection.is_stray || connection.is_leaving);
        // Whatever is left of it is torn down by its owner, and cannot come back to life by itself.
        connection.stage = Stage::Up;
        if !is_silent {
            self.push_event(Event::Answer { key, answer: Answer::Lost { detail } });
        }
    }

    /// The provider holds nothing of it any more.
    pub(super) fn finish(&mut self, serial: u64) {
        let Some(connection) = self.connections.remove(&serial) else { return };
        self.forget_expected(serial);
        let is_named = self.names.get(&connection.key) == connection.id.as_ref();
        let has_other = self.connections.values().any(|other| other.key == connection.key && !other.is_stray);
        if !connection.is_stray {
            self.persist_name(connection.key, None);
            self.push_event(Event::TornDown(connection.key));
        } else if is_named && !has_other {
            self.persist_name(connection.key, None);
        }
    }
}

fn whole_seconds(at: Timestamp) -> String {
    match jiff::Timestamp::from_second(at.0.div_euclid(1_000_000)) {
        Ok(at) => at.to_string(),
        Err(_) => at.to_string(),
    }
}

impl Dialogue for Nsi {
    fn request(&mut self, wish: &CircuitRequest, now: Timestamp) {
        let mut connection = Connection::new(wish.key, wish.mbit, Stage::Reserve, now);
        connection.lifetime = wish.lifetime;
        let serial = self.add(connection);
        self.drive(serial, now);
    }

    fn tear_down(&mut self, key: RequestKey, now: Timestamp) {
        let current = self.connections.iter_mut().find(|(_, one)| one.key == key && !one.is_stray);
        let serial = match current {
            Some((serial, connection)) => {
                connection.is_leaving = true;
                connection.next = now;
                *serial
            }
            // One of an earlier run of ours.
            None => {
                let id = self.names.get(&key).cloned();
                let stage = if id.is_some() { Stage::Terminate } else { Stage::Find };
                let mut connection = Connection::new(key, 0, stage, now);
                (connection.id, connection.is_leaving) = (id, true);
                self.add(connection)
            }
        };
        self.drive(serial, now);
    }

    fn list(&mut self, now: Timestamp) {
        self.listing.is_wanted = true;
        self.ask_list(now);
    }

    fn heard(&mut self, call: CallId, answer: Result<HttpAnswer, Fault>, now: Timestamp) {
        if let Ok(HttpAnswer { date: Some(date), .. }) = &answer {
            let skew = date.0.saturating_sub(now.0);
            self.skew = if skew.unsigned_abs() < SKEW_MIN.as_micros() as u64 { 0 } else { skew };
        }
        match self.calls.remove(&call) {
            Some(CallSubject::Discovery) => self.discovered(answer, now),
            Some(CallSubject::List { asked }) => self.listed(answer, asked, now),
            Some(CallSubject::Of { serial, operation, id }) => {
                let Some(connection) = self.connections.get_mut(&serial) else { return };
                connection.call = None;
                // It may be reserved anew meanwhile, and what is said of the old one means nothing.
                if operation == Operation::Reserve || connection.id == id {
                    self.answered(serial, operation, answer, now);
                }
                self.drive(serial, now);
            }
            None => {}
        }
    }

    fn called(&mut self, body: &str, now: Timestamp) {
        let Some(Called { correlation, id, what }) = answers::called(body) else { return };
        if let Some((serial, operation)) = self.expected.get(&correlation).copied() {
            self.confirmed(serial, operation, &id, what, now);
            return self.drive(serial, now);
        }
        // Anybody can say this, so it is only a reason to ask.
        let found = self.connections.iter_mut().find(|(_, one)| one.id.as_deref() == Some(&id));
        match found {
            Some((serial, connection)) => {
                let serial = *serial;
                let hint = match what {
                    answers::What::Event(words) => Some(words),
                    _ => None,
                };
                connection.hear(hint, now);
                self.drive(serial, now);
            }
            None if now >= self.listing.next => {
                self.listing.is_wanted = true;
                self.ask_list(now);
                self.listing.next = now.plus(LIST_APART);
            }
            None => {}
        }
    }

    fn tick(&mut self, now: Timestamp) {
        let serials: Vec<u64> = self.connections.keys().copied().collect();
        for serial in serials {
            self.drive(serial, now);
        }
        if self.listing.is_wanted {
            self.ask_list(now);
        }
    }

    fn next_wake(&self) -> Option<Timestamp> {
        let connections = self.connections.values().filter_map(|one| match one.stage {
            Stage::Find => self.list_at(one.due()?),
            _ => self.asked_at(one.due()?),
        });
        let list = self.listing.is_wanted.then(|| self.list_at(Timestamp::ZERO)).flatten();
        connections.chain(list).min()
    }

    fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }
}
