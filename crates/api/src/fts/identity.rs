//! Ids that FTS derives from a person's identity; clients derive the same.

use std::collections::BTreeMap;

use longhaul_model::hex;
use longhaul_model::job::JobId;
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

/// Namespace of all job ids that clients choose.
pub const BASE_ID: JobId = JobId(0x01874efb_4735_4595_bc9c_591aef8240c9);

/// How far a right to an operation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// Only what belongs to the person.
    #[serde(rename = "")]
    Own,
    /// Everything that belongs to the person's VO.
    #[serde(rename = "vo")]
    Vo,
    /// Everything.
    #[serde(rename = "all")]
    All,
}

/// Rights by operation; an absent operation is not allowed.
pub type Levels = BTreeMap<String, Level>;

/// Reply to `GET /whoami`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhoAmI {
    /// DN of the caller.
    pub user_dn: String,
    /// DNs of the caller; empty without a credential.
    pub dn: Vec<String>,
    /// Namespace of job ids that clients choose.
    pub base_id: JobId,
    /// VOMS attributes (FQANs).
    pub voms_cred: Vec<String>,
    /// VOs of the caller.
    pub vos: Vec<String>,
    /// Ids of the VOs, in the same order.
    pub vos_id: Vec<JobId>,
    /// Roles of the caller.
    pub roles: Vec<String>,
    /// Rights by operation.
    pub level: Levels,
    /// Id under which the caller delegates credentials, 16 hex digits.
    pub delegation_id: String,
    /// How the caller logged in: `certificate`, `oauth2` or `unauthenticated`.
    pub method: &'static str,
    /// True if every operation is allowed.
    pub is_root: bool,
    /// Scopes of the token, for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth2_scope: Option<String>,
    /// Whether the token follows the WLCG profile, for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wlcg_profile: Option<bool>,
}

/// UUID of version 5 (RFC 9562): the same for the same name, everywhere.
pub fn uuid5(namespace: JobId, name: &str) -> JobId {
    let digest = Sha1::new().chain_update(namespace.0.to_be_bytes()).chain_update(name).finalize();
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes[6] = (bytes[6] & 0x0f) | 0x50;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    JobId(u128::from_be_bytes(bytes))
}

/// Id of a VO: a UUID derived from its name.
pub fn vo_id(vo: &str) -> JobId {
    uuid5(BASE_ID, vo)
}

/// Id of a job whose name its client chose.
pub fn deterministic_id(vo: &str, sid: &str) -> JobId {
    uuid5(vo_id(vo), sid)
}

/// Delegation id of a certificate's holder, derived from the DN and its VOMS attributes.
pub fn delegation_id(dn: &str, fqans: &[String]) -> String {
    let mut digest = Sha1::new().chain_update(dn);
    fqans.iter().for_each(|fqan| digest.update(fqan));
    first_digits(&digest.finalize())
}

/// Delegation id of a token's holder, derived from the issuer and the subject.
pub fn delegation_id_of_token(issuer: &str, subject: &str) -> String {
    first_digits(&Sha1::new().chain_update(issuer).chain_update(subject).finalize())
}

fn first_digits(digest: &[u8]) -> String {
    hex::encode(&digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_that_clients_compute() {
        // The reference's own example, and one from the standard library of Python.
        assert_eq!(vo_id("testvo").to_string(), "477b9065-8416-5b27-be32-ff1573788e71");
        let dns: JobId = "6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse().unwrap();
        assert_eq!(uuid5(dns, "python.org").to_string(), "886313e1-3b8a-5372-9b90-0c9aee199e5d");
        assert_eq!(deterministic_id("testvo", "abc"), uuid5(vo_id("testvo"), "abc"));
    }

    #[test]
    fn delegation_ids_have_no_separators() {
        let fqan = |text: &str| vec![text.to_owned()];
        assert_eq!(delegation_id("/CN=a", &fqan("/b")), delegation_id("/CN=a/b", &[]));
        assert_eq!(delegation_id("/CN=a", &[]).len(), 16);
        assert_ne!(delegation_id_of_token("https://a", "x"), delegation_id_of_token("https://b", "x"));
        // sha1("abc") begins so.
        assert_eq!(delegation_id("abc", &[]), "a9993e364706816a");
    }
}
