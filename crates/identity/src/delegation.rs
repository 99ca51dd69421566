//! Delegation of proxies (RFC 3820) as FTS does it: a request is made here, signed by the user, and taken
//! back.

use longhaul_api::fts::Refusal;
use longhaul_catalog::DelegationRow;
use longhaul_model::{Fault, Timestamp};
use longhaul_security::delegation as proxies;
use serde::{Deserialize, Serialize};

use crate::{Identity, Person, catalog_problem, refusal};

/// The stored certificate request, so that a second client of the same user gets the same one.
#[derive(Serialize, Deserialize)]
struct PendingRequest {
    bits: u32,
    request: String,
}

fn pending_request(row: Option<&DelegationRow>, bits: u32) -> Option<String> {
    let row = row.filter(|row| row.request.is_some())?;
    let pending: PendingRequest = serde_json::from_str(&row.details).ok()?;
    (pending.bits == bits).then_some(pending.request)
}

/// The texts of the proxies' faults are those of FTS.
fn bad(fault: Fault) -> Refusal {
    Refusal::bad(fault.detail)
}

impl Identity {
    /// Ids are short: what has another owner is not touched.
    fn delegation_of(&self, person: &Person) -> Result<Option<DelegationRow>, Refusal> {
        let row = self.credentials.get(&person.delegation_id);
        match row.map_err(|error| refusal(catalog_problem(error)))? {
            Some(row) if row.user != person.dn => {
                Err(Refusal::forbidden(format!("The delegation {} belongs to another user", row.id)))
            }
            row => Ok(row),
        }
    }

    fn keep_delegation(&self, row: DelegationRow) -> Result<(), Refusal> {
        self.credentials.put(row).map_err(|error| refusal(catalog_problem(error)))
    }

    /// When the delegated credential of a user ends; none if there is none.
    pub fn delegation_end(&self, person: &Person) -> Result<Option<Timestamp>, Refusal> {
        let row = self.delegation_of(person)?;
        Ok(row.filter(|row| row.proxy.is_some()).and_then(|row| row.expires))
    }

    pub fn delegation_request(&self, person: &Person) -> Result<String, Refusal> {
        let size = person.certificate.as_ref().and_then(|certificate| certificate.rsa_bits);
        let bits = proxies::key_bits(size);
        if let Some(request) = pending_request(self.delegation_of(person)?.as_ref(), bits) {
            return Ok(request);
        }
        let made = proxies::new_request(bits).map_err(|fault| refusal(fault.into()))?;
        let _alone = self.users.delegating();
        let row = self.delegation_of(person)?;
        // Made by another request meanwhile.
        if let Some(request) = pending_request(row.as_ref(), bits) {
            return Ok(request);
        }
        let (proxy, expires) = row.map_or((None, None), |row| (row.proxy, row.expires));
        let details = PendingRequest { bits, request: made.request_pem };
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

    pub fn accept_delegation(&self, person: &Person, pem: &[u8]) -> Result<(), Refusal> {
        let (users, now) = (&self.users, self.now());
        let valid_at = self.wall_time();
        let _alone = users.delegating();
        let none = || Refusal::bad("No credential cache found");
        let mut row = self.delegation_of(person)?.ok_or_else(none)?;
        let key = row.request.as_deref().and_then(|key| std::str::from_utf8(key).ok()).ok_or_else(none)?;
        let trust = users.trust().ok_or_else(|| Refusal::forbidden("Certificate required"))?;
        let delegated = proxies::accept_proxy(key, pem).map_err(bad)?;
        proxies::check_owner(&delegated, trust, &person.dn, valid_at).map_err(bad)?;
        row.proxy = Some(delegated.credential_pem.as_bytes().to_vec());
        row.expires = Some(delegated.not_after);
        row.changed = now;
        self.keep_delegation(row)?;
        tracing::info!(user = person.dn, until = %delegated.not_after, "a proxy was delegated");
        Ok(())
    }
}
