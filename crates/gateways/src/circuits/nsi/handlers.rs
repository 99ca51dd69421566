//! Handlers of answers, confirmations and query results. They may come in any order and twice; a repetition
//! changes nothing.

use longhaul_model::{Fault, Timestamp};

use super::answers::{self, Class, Refusal, Summary, What};
use super::connection::{Connection, Operation, Stage, is_failure};
use super::dialogue::{CONNECTIONS_MAX, Nsi, TRIES};
use super::xml::Element;
use crate::circuits::remote::HttpAnswer;

/// Looks that find something unchanged, before it is asked for again.
const LOOKS: u32 = 3;

/// Why a call came to nothing.
enum Trouble {
    /// Whether it was done, nobody knows.
    Unclear(String),
    Refused(Refusal),
}

fn understand(answer: Result<HttpAnswer, Fault>) -> Result<Element, Trouble> {
    let heard = answer.map_err(|fault| Trouble::Unclear(fault.to_string()))?;
    answers::body(&heard).map_err(|refusal| match (refusal.class, &refusal.error) {
        (Class::Provider, None) => Trouble::Unclear(refusal.words()),
        _ => Trouble::Refused(refusal),
    })
}

impl Nsi {
    pub(super) fn answered(
        &mut self,
        serial: u64,
        operation: Operation,
        answer: Result<HttpAnswer, Fault>,
        now: Timestamp,
    ) {
        let answer = understand(answer);
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        match (operation, answer) {
            (Operation::Reserve, answer) => self.reserve_answered(serial, answer, now),
            (Operation::Query, answer) => self.query_answered(serial, answer, now),
            (Operation::Commit, Err(Trouble::Refused(refusal))) => {
                if connection.stage == Stage::Commit {
                    self.hold_lost(serial, refusal.words(), now);
                }
            }
            (Operation::Commit, _) => go_on(connection, Stage::Commit, Stage::Committing, now),
            (Operation::Provision, Err(Trouble::Refused(refusal))) if refusal.class != Class::State => {
                connection.fail(now);
                if refusal.class != Class::Provider || connection.failures >= TRIES {
                    self.refuse(serial, false, refusal.words(), now);
                }
            }
            (Operation::Provision, _) => go_on(connection, Stage::Provision, Stage::Provisioning, now),
            (Operation::Abort, Ok(_)) => go_on(connection, Stage::Abort, Stage::Aborting, now),
            (Operation::Abort, Err(_)) => connection.turn(Stage::Terminate, now),
            (Operation::Terminate, Err(Trouble::Refused(refusal))) => match refusal.class {
                Class::Gone => self.finish(serial),
                Class::State => go_on(connection, Stage::Terminate, Stage::Terminating, now),
                _ => connection.fail(now),
            },
            (Operation::Terminate, _) => go_on(connection, Stage::Terminate, Stage::Terminating, now),
        }
    }

    fn reserve_answered(&mut self, serial: u64, answer: Result<Element, Trouble>, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        match answer.map(|body| answers::connection_id(&body)) {
            Ok(Some(id)) => {
                let is_other = connection.id.as_ref().is_some_and(|known| *known != id);
                let key = connection.key;
                if is_other {
                    // A confirmation under another id came first: one of the two is too much.
                    self.clear_away(key, id, now);
                    return;
                }
                connection.id = Some(id.clone());
                connection.is_unsure = false;
                connection.held_since.get_or_insert(now);
                go_on(connection, Stage::Reserve, Stage::Checking, now);
                self.persist_name(key, Some(id));
            }
            // Its confirmation came, so that nothing is unclear.
            _ if connection.id.is_some() => {}
            Ok(None) => {
                self.reserve_unclear(serial, "an acknowledgement without a connection id".to_owned(), now)
            }
            Err(Trouble::Unclear(why)) => self.reserve_unclear(serial, why, now),
            Err(Trouble::Refused(refusal)) => match refusal.class {
                Class::Unavailable => self.refuse(serial, true, refusal.words(), now),
                Class::Provider => {
                    connection.fail(now);
                    if connection.failures >= TRIES {
                        self.refuse(serial, false, refusal.words(), now);
                    }
                }
                _ => {
                    tracing::error!(
                        reason = refusal.words(),
                        "a circuit is refused for how it is configured"
                    );
                    self.refuse(serial, false, refusal.words(), now);
                }
            },
        }
    }

    /// The outcome is unknown: the listing decides before the request is repeated.
    fn reserve_unclear(&mut self, serial: u64, why: String, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        connection.is_unsure = true;
        connection.lost += 1;
        let is_last = connection.lost >= TRIES;
        connection.turn(Stage::Find, now);
        if is_last {
            self.refuse(serial, false, why, now);
        }
    }

    pub(super) fn clear_away(&mut self, key: longhaul_circuits::RequestKey, id: String, now: Timestamp) {
        if self.connections.len() < CONNECTIONS_MAX {
            let stray = self.add(Connection::stray(key, id, now));
            self.drive(stray, now);
        }
    }

    /// The hold is lost: the reservation is released and made anew.
    fn hold_lost(&mut self, serial: u64, why: String, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        connection.lost += 1;
        if connection.is_leaving {
            return connection.turn(Stage::Terminate, now);
        }
        if connection.lost >= TRIES {
            return self.refuse(serial, false, why, now);
        }
        tracing::warn!(key = %connection.key, why, "a reservation is lost before it was committed, and asked \
            for anew");
        let (key, id) = (connection.key, connection.id.take());
        connection.held_since = None;
        connection.turn(Stage::Reserve, now);
        self.forget_expected(serial);
        if let Some(id) = id {
            self.clear_away(key, id, now);
        }
    }

    fn query_answered(&mut self, serial: u64, answer: Result<Element, Trouble>, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        let found = match answer {
            Ok(body) => answers::summaries(&body).map_err(|fault| Trouble::Unclear(fault.to_string())),
            Err(trouble) => Err(trouble),
        };
        match found {
            Ok(all) => match all.into_iter().find(|one| Some(&one.id) == connection.id.as_ref()) {
                Some(summary) => self.look_at(serial, &summary, now),
                None => self.unknown_there(serial),
            },
            Err(Trouble::Refused(refusal)) if refusal.class == Class::Gone => self.unknown_there(serial),
            Err(Trouble::Unclear(why)) => {
                tracing::debug!(why, "a circuit's state is not known");
                connection.look_later(now);
            }
            Err(Trouble::Refused(refusal)) => {
                tracing::debug!(why = refusal.words(), "a circuit's state is not told");
                connection.look_later(now);
            }
        }
    }

    fn unknown_there(&mut self, serial: u64) {
        match self.connections.get(&serial) {
            Some(connection) if connection.is_leaving => self.finish(serial),
            Some(_) => self.lose(serial, "the provider does not know it any more".to_owned()),
            None => {}
        }
    }

    fn look_at(&mut self, serial: u64, summary: &Summary, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        if connection.is_leaving {
            if summary.lifecycle == "terminated" {
                return self.finish(serial);
            }
            return look_at_leaving(connection, summary, now);
        }
        // Whatever else it says of itself: the provision state of one that has ended stays what it was.
        if summary.lifecycle != "created" {
            let hint =
                connection.hint.take().unwrap_or_else(|| format!("the provider says {}", summary.lifecycle));
            return match connection.is_told {
                true => self.lose(serial, hint),
                false => self.refuse(serial, false, hint, now),
            };
        }
        match connection.stage {
            Stage::Checking => self.look_at_checking(serial, summary, now),
            Stage::Committing => match summary.reservation.as_str() {
                "reservestart" => connection.turn(Stage::Provision, now),
                "reserveheld" if connection.is_held_too_long(self.config.hold, now) => {
                    self.hold_lost(serial, "it was not committed in time".to_owned(), now)
                }
                "reserveheld" if connection.looks >= LOOKS => connection.turn(Stage::Commit, now),
                "reservefailed" | "reservetimeout" => {
                    self.hold_lost(serial, "it was not committed".to_owned(), now)
                }
                _ => connection.look_later(now),
            },
            Stage::Provisioning | Stage::Up => self.look_at_data_plane(serial, summary, now),
            _ => connection.look_later(now),
        }
    }

    fn look_at_checking(&mut self, serial: u64, summary: &Summary, now: Timestamp) {
        let hold = self.config.hold;
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        match summary.reservation.as_str() {
            // Not everybody tells when a hold is over, so that our clock decides.
            "reserveheld" => match connection.is_held_too_long(hold, now) {
                true => self.hold_lost(serial, "what was held is too old".to_owned(), now),
                false => self.held(serial, summary.mbit, summary.end, now),
            },
            "reservefailed" => self.refuse(serial, true, "it cannot be reserved".to_owned(), now),
            "reservetimeout" => self.hold_lost(serial, "the hold is over".to_owned(), now),
            state if state.starts_with("reservecom") => connection.wait(Stage::Committing, now),
            _ => {
                connection.held_since = Some(now);
                connection.look_later(now);
            }
        }
    }

    /// The provider holds it for us, with what it wants to give.
    fn held(&mut self, serial: u64, mbit: Option<u64>, end: Option<Timestamp>, now: Timestamp) {
        let end = end.map(|end| self.here(end));
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        if let Some(mbit) = mbit {
            connection.mbit = mbit;
        }
        connection.end = end.or(connection.end);
        connection.turn(Stage::Commit, now);
        if connection.mbit == 0 {
            self.refuse(serial, true, "the provider gives 0 Mbit/s".to_owned(), now);
        }
    }

    fn look_at_data_plane(&mut self, serial: u64, summary: &Summary, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        let is_up = summary.provision == "provisioned" && summary.is_active;
        match (connection.stage, is_up) {
            (Stage::Up, true) => connection.drop_hint(),
            (_, true) => self.grant(serial, now),
            (Stage::Up, false) => {
                let hint = connection.hint.take();
                self.lose(serial, hint.unwrap_or_else(|| "its data plane is not active".to_owned()));
            }
            _ if connection.hint.as_deref().is_some_and(is_failure) => {
                let why = connection.hint.take().unwrap_or_default();
                self.refuse(serial, false, why, now);
            }
            // Refused, or a commit that failed: both look like nothing at all.
            _ if summary.provision == "released" && connection.looks >= LOOKS => {
                connection.lost += 1;
                match connection.lost >= TRIES {
                    true => self.refuse(serial, false, "it cannot be provisioned".to_owned(), now),
                    false => connection.turn(Stage::Provision, now),
                }
            }
            _ => {
                connection.drop_hint();
                connection.look_later(now);
            }
        }
    }

    /// The provider has called with the correlation id of a call of ours.
    pub(super) fn confirmed(
        &mut self,
        serial: u64,
        operation: Operation,
        id: &str,
        what: What,
        now: Timestamp,
    ) {
        let Some(connection) = self.connections.get_mut(&serial) else { return };
        if connection.id.as_deref().is_some_and(|known| known != id) {
            return;
        }
        // What is said twice, or is known already, changes nothing.
        let waits_for = match connection.stage {
            Stage::Reserve | Stage::Find | Stage::Checking => Operation::Reserve,
            Stage::Commit | Stage::Committing => Operation::Commit,
            Stage::Provision | Stage::Provisioning => Operation::Provision,
            Stage::Abort | Stage::Aborting => Operation::Abort,
            Stage::Terminate | Stage::Terminating => Operation::Terminate,
            Stage::Up => return,
        };
        if operation != waits_for {
            return;
        }
        match (operation, what) {
            (Operation::Reserve, What::Reserved { mbit, end }) if !id.is_empty() => {
                connection.id = Some(id.to_owned());
                connection.is_unsure = false;
                let key = connection.key;
                self.persist_name(key, Some(id.to_owned()));
                self.held(serial, mbit, end, now);
            }
            (Operation::Reserve, What::Failed(refusal)) => {
                if !id.is_empty() {
                    connection.id.get_or_insert_with(|| id.to_owned());
                }
                self.refuse(serial, refusal.class == Class::Unavailable, refusal.words(), now);
            }
            (Operation::Commit, What::Committed) => connection.turn(Stage::Provision, now),
            (Operation::Commit, What::Failed(refusal)) => self.hold_lost(serial, refusal.words(), now),
            // Traffic flows when the data plane is active, which has been told already or is asked.
            (Operation::Provision, What::Provisioned) => connection.turn(Stage::Provisioning, now),
            (Operation::Abort, What::Aborted) => connection.turn(Stage::Terminate, now),
            (Operation::Terminate, What::Terminated) => self.finish(serial),
            _ => {}
        }
    }
}

/// The next stage, unless a confirmation was faster.
fn go_on(connection: &mut Connection, from: Stage, to: Stage, now: Timestamp) {
    if connection.stage == from {
        connection.wait(to, now);
    }
}

fn look_at_leaving(connection: &mut Connection, summary: &Summary, now: Timestamp) {
    let is_stuck = connection.looks >= LOOKS;
    match connection.stage {
        Stage::Aborting if is_stuck || summary.reservation == "reservestart" => {
            connection.turn(Stage::Terminate, now)
        }
        // It was said to be terminated, or nothing was said.
        Stage::Terminating if is_stuck && summary.lifecycle != "terminating" => {
            connection.turn(Stage::Terminate, now)
        }
        _ => connection.look_later(now),
    }
}
