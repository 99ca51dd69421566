//! What a person gives us to act for them: asked for, taken, told of, given back.

use http::{HeaderName, Method, StatusCode};
use longhaul_api::fts::{Moment, Refusal};
use longhaul_identity::{AuthMethod, Person, refusal};
use longhaul_model::Timestamp;
use serde_json::json;

use super::request::{FtsRequest, Reply};
use super::routes;
use crate::operations::{Operations, problem};

const ID_HEADER: HeaderName = HeaderName::from_static("x-delegation-id");
/// When what never ends is said to end: some clients cannot do without a time.
const NEVER: Timestamp = Timestamp(4_102_444_800_000_000);

pub fn answer(operations: &Operations, ask: &FtsRequest, words: &[&str]) -> Result<Reply, Refusal> {
    let Some((id, rest)) = words.split_first() else { return Err(routes::refused(ask)) };
    let person = &ask.person;
    person.needs("deleg")?;
    if *id != person.delegation_id {
        return Err(Refusal::forbidden("The requested ID and the credentials ID do not match"));
    }
    match (rest, &ask.method) {
        ([], &Method::GET) => show(operations, ask),
        ([], &Method::DELETE) => {
            if operations.shared.identity.delegation_end(person)?.is_none() {
                return Err(Refusal::missing("Delegated credentials not found"));
            }
            operations
                .shared
                .kernel
                .catalog
                .delete_delegation(id)
                .map_err(|error| refusal(problem(error)))?;
            Ok(Reply::nothing())
        }
        (["request"], &Method::GET) => {
            needs_certificate(person)?;
            let pem = operations.shared.identity.delegation_request(person)?;
            Ok(Reply::text("text/plain", pem).with_header(ID_HEADER, id))
        }
        (["credential"], &(Method::PUT | Method::POST)) => {
            needs_certificate(person)?;
            operations.shared.identity.accept_delegation(person, &ask.body)?;
            Ok(Reply::text("text/plain", "").with_status(StatusCode::CREATED))
        }
        (["voms"], &Method::POST) => {
            Err(Refusal::new(424, "VOMS attributes are not added here: delegate a proxy that has them"))
        }
        _ => Err(routes::refused(ask)),
    }
}

fn needs_certificate(person: &Person) -> Result<(), Refusal> {
    match person.method {
        AuthMethod::Certificate => Ok(()),
        _ => Err(Refusal::forbidden("Certificate required: who comes with a token delegates nothing")),
    }
}

fn show(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let person = &ask.person;
    if person.method == AuthMethod::Token {
        // The token is the credential; clients look for its end here.
        let ends = Moment(person.expires.unwrap_or(NEVER));
        return Reply::json(&json!({ "termination_time": ends, "voms_attrs": [] }));
    }
    match operations.shared.identity.delegation_end(person)? {
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
    match operations.shared.identity.delegation_end(person)? {
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
