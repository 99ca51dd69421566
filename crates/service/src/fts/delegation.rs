//! What a person gives us to act for them: asked for, taken, told of, given back.

use http::{HeaderName, Method, StatusCode};
use longhaul_api::fts::{Moment, Refusal};
use longhaul_model::Timestamp;
use serde_json::json;

use super::ask::{Ask, Reply};
use super::door::no_route;
use super::kept::refusal;
use super::person::{Method as How, Person};
use crate::operations::{Operations, problem};

const ID_HEADER: HeaderName = HeaderName::from_static("x-delegation-id");
/// When what never ends is said to end: some clients cannot do without a time.
const NEVER: Timestamp = Timestamp(4_102_444_800_000_000);

pub fn answer(operations: &Operations, ask: &Ask, words: &[&str]) -> Result<Reply, Refusal> {
    let Some((id, rest)) = words.split_first() else { return Err(no_route(ask)) };
    let person = &ask.person;
    person.needs("deleg")?;
    if *id != person.delegation_id {
        return Err(Refusal::forbidden("The requested ID and the credentials ID do not match"));
    }
    match (rest, &ask.method) {
        ([], &Method::GET) => show(operations, ask),
        ([], &Method::DELETE) => {
            let gone =
                operations.shared.catalog.delete_delegation(id).map_err(|error| refusal(problem(error)))?;
            if gone { Ok(Reply::nothing()) } else { Err(Refusal::missing("Delegated credentials not found")) }
        }
        (["request"], &Method::GET) => {
            needs_certificate(person)?;
            let pem = operations.delegation_request(person)?;
            Ok(Reply::text("text/plain", pem).with_header(ID_HEADER, id))
        }
        (["credential"], &(Method::PUT | Method::POST)) => {
            needs_certificate(person)?;
            operations.delegation_take(person, &ask.body)?;
            Ok(Reply::text("text/plain", "").with_status(StatusCode::CREATED))
        }
        (["voms"], &Method::POST) => {
            Err(Refusal::new(424, "VOMS attributes are not added here: delegate a proxy that has them"))
        }
        _ => Err(no_route(ask)),
    }
}

fn needs_certificate(person: &Person) -> Result<(), Refusal> {
    match person.method {
        How::Certificate => Ok(()),
        _ => Err(Refusal::forbidden("Certificate required: who comes with a token delegates nothing")),
    }
}

fn show(operations: &Operations, ask: &Ask) -> Result<Reply, Refusal> {
    let person = &ask.person;
    if person.method == How::Token {
        // The token is the credential; clients look for its end here.
        let ends = Moment(person.expires.unwrap_or(NEVER));
        return Reply::json(&json!({ "termination_time": ends, "voms_attrs": [] }));
    }
    match operations.delegation_end(&person.delegation_id)? {
        Some(ends) => Reply::json(&json!({ "termination_time": Moment(ends), "voms_attrs": person.fqans })),
        None if knows_empty_list(&ask.user_agent) => Reply::json(&json!([])),
        None => Reply::json(&json!(null)),
    }
}

/// Clients since 3.12 are told that there is nothing by an empty list, older ones by null.
fn knows_empty_list(user_agent: &str) -> bool {
    let Some((name, version)) = user_agent.split_once('/') else { return false };
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    name.starts_with("fts-") && version >= (3, 12)
}

/// Certificates act through what was delegated: without it no job is worth beginning.
pub fn needs_credential(operations: &Operations, person: &Person, life_s: u64) -> Result<(), Refusal> {
    let (id, now) = (&person.delegation_id, operations.now());
    match operations.delegation_end(id)? {
        None => Err(Refusal::new(419, format!("No delegation found for \"{}\"", person.dn))),
        Some(ends) if ends <= now => {
            let ago = now.since(ends).as_secs();
            Err(Refusal::new(419, format!("The delegated credentials expired {ago} seconds ago ({id})")))
        }
        Some(ends) if ends.since(now).as_secs() < life_s => {
            Err(Refusal::new(419, format!("The delegated credentials has less than one hour left ({id})")))
        }
        Some(_) => Ok(()),
    }
}

impl Operations {
    /// When the delegated credential of that id ends; none if there is none.
    fn delegation_end(&self, id: &str) -> Result<Option<Timestamp>, Refusal> {
        let row = self.shared.catalog.delegation(id).map_err(|error| refusal(problem(error)))?;
        Ok(row.filter(|row| row.proxy.is_some()).and_then(|row| row.expires))
    }

    fn delegation_request(&self, _person: &Person) -> Result<String, Refusal> {
        Err(Refusal::new(503, "certificates are not served yet"))
    }

    fn delegation_take(&self, _person: &Person, _pem: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::new(503, "certificates are not served yet"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_clients_are_told_of_nothing_by_an_empty_list() {
        for (agent, new) in [
            ("fts-rest-cli/3.14.2", true),
            ("fts-python-bindings/3.12.0", true),
            ("fts-python-bindings/3.11.9", false),
            ("fts-rest-cli/4.0", true),
            ("python-requests/2.32", false),
            ("", false),
        ] {
            assert_eq!(knows_empty_list(agent), new, "{agent}");
        }
    }
}
