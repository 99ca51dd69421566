//! What a person gives us to act for them: asked for, taken, told of, given back.

use http::{HeaderName, Method, StatusCode};
use longhaul_api::fts::{Moment, Refusal};
use longhaul_catalog::DelegationRow;
use longhaul_model::{Fault, Timestamp};
use longhaul_security::delegation as proxies;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ask::{Ask, Reply};
use super::kept::refusal;
use super::person::{Method as How, Person};
use super::routes;
use crate::operations::{Operations, problem};

const ID_HEADER: HeaderName = HeaderName::from_static("x-delegation-id");
/// When what never ends is said to end: some clients cannot do without a time.
const NEVER: Timestamp = Timestamp(4_102_444_800_000_000);

pub fn answer(operations: &Operations, ask: &Ask, words: &[&str]) -> Result<Reply, Refusal> {
    let Some((id, rest)) = words.split_first() else { return Err(routes::refused(ask)) };
    let person = &ask.person;
    person.needs("deleg")?;
    if *id != person.delegation_id {
        return Err(Refusal::forbidden("The requested ID and the credentials ID do not match"));
    }
    match (rest, &ask.method) {
        ([], &Method::GET) => show(operations, ask),
        ([], &Method::DELETE) => {
            if operations.delegation_end(person)?.is_none() {
                return Err(Refusal::missing("Delegated credentials not found"));
            }
            operations.shared.catalog.delete_delegation(id).map_err(|error| refusal(problem(error)))?;
            Ok(Reply::nothing())
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
        _ => Err(routes::refused(ask)),
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
    match operations.delegation_end(person)? {
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
    match operations.delegation_end(person)? {
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

/// What is kept of a request, so that whoever asks again gets the same one: two clients of a user may be at
/// it together.
#[derive(Serialize, Deserialize)]
struct Asked {
    bits: u32,
    request: String,
}

fn asked(row: Option<&DelegationRow>, bits: u32) -> Option<String> {
    let row = row.filter(|row| row.request.is_some())?;
    let asked: Asked = serde_json::from_str(&row.details).ok()?;
    (asked.bits == bits).then_some(asked.request)
}

/// The texts of the proxies' faults are those of FTS.
fn bad(fault: Fault) -> Refusal {
    Refusal::bad(fault.detail)
}

impl Operations {
    /// Ids are short: what has another owner is not touched.
    fn delegation_of(&self, person: &Person) -> Result<Option<DelegationRow>, Refusal> {
        let row = self.shared.delegation(&person.delegation_id);
        match row.map_err(|error| refusal(problem(error)))? {
            Some(row) if row.user != person.dn => {
                Err(Refusal::forbidden(format!("The delegation {} belongs to another user", row.id)))
            }
            row => Ok(row),
        }
    }

    fn keep_delegation(&self, row: DelegationRow) -> Result<(), Refusal> {
        self.shared.put_delegation(row).map_err(|error| refusal(problem(error)))
    }

    /// When the delegated credential of a user ends; none if there is none.
    fn delegation_end(&self, person: &Person) -> Result<Option<Timestamp>, Refusal> {
        let row = self.delegation_of(person)?;
        Ok(row.filter(|row| row.proxy.is_some()).and_then(|row| row.expires))
    }

    fn delegation_request(&self, person: &Person) -> Result<String, Refusal> {
        let size = person.certificate.as_ref().and_then(|certificate| certificate.rsa_bits);
        let bits = proxies::key_bits(size);
        if let Some(request) = asked(self.delegation_of(person)?.as_ref(), bits) {
            return Ok(request);
        }
        let made = proxies::new_request(bits).map_err(|fault| refusal(fault.into()))?;
        let _alone = self.shared.users.delegating();
        let row = self.delegation_of(person)?;
        // Made by another request meanwhile.
        if let Some(request) = asked(row.as_ref(), bits) {
            return Ok(request);
        }
        let (proxy, expires) = row.map_or((None, None), |row| (row.proxy, row.expires));
        let details = Asked { bits, request: made.request_pem };
        self.keep_delegation(DelegationRow {
            id: person.delegation_id.clone(),
            user: person.dn.clone(),
            request: Some(made.key_pem.as_bytes().to_vec()),
            proxy,
            expires,
            details: serde_json::to_string(&details).unwrap_or_default(),
            changed: self.now(),
        })?;
        Ok(details.request)
    }

    fn delegation_take(&self, person: &Person, pem: &[u8]) -> Result<(), Refusal> {
        let (users, now) = (&self.shared.users, self.now());
        let _alone = users.delegating();
        let none = || Refusal::bad("No credential cache found");
        let mut row = self.delegation_of(person)?.ok_or_else(none)?;
        let key = row.request.as_deref().and_then(|key| std::str::from_utf8(key).ok()).ok_or_else(none)?;
        let trust = users.trust().ok_or_else(|| Refusal::forbidden("Certificate required"))?;
        let delegated = proxies::accept(key, pem).map_err(bad)?;
        proxies::check_owner(&delegated, trust, &person.dn, now).map_err(bad)?;
        row.proxy = Some(delegated.credential_pem.as_bytes().to_vec());
        row.expires = Some(delegated.not_after);
        row.changed = now;
        self.keep_delegation(row)?;
        tracing::info!(user = person.dn, until = %delegated.not_after, "a proxy was delegated");
        Ok(())
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
