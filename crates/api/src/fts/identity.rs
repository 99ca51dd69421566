//! Names that FTS derives from who somebody is; software on the other side derives the same.

use std::collections::BTreeMap;

use longhaul_model::hex;
use longhaul_model::job::JobId;
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

/// The namespace of all job ids that clients choose.
pub const BASE_ID: JobId = JobId(0x01874efb_4735_4595_bc9c_591aef8240c9);

/// How far somebody's right to an operation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// What is one's own.
    #[serde(rename = "")]
    Own,
    /// What is of one's VO.
    #[serde(rename = "vo")]
    Vo,
    #[serde(rename = "all")]
    All,
}

/// By operation; an operation that is absent is not allowed.
pub type Levels = BTreeMap<String, Level>;

/// Answer to `GET /whoami`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhoAmI {
    pub user_dn: String,
    pub dn: Vec<String>,
    pub base_id: JobId,
    pub voms_cred: Vec<String>,
    pub vos: Vec<String>,
    pub vos_id: Vec<JobId>,
    pub roles: Vec<String>,
    pub level: Levels,
    pub delegation_id: String,
    pub method: &'static str,
    pub is_root: bool,
    /// The token's scopes, for callers that came with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth2_scope: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wlcg_profile: Option<bool>,
}

/// UUID of version 5: the same for the same name, everywhere.
pub fn uuid5(namespace: JobId, name: &str) -> JobId {
    let digest = Sha1::new().chain_update(namespace.0.to_be_bytes()).chain_update(name).finalize();
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes[6] = (bytes[6] & 0x0f) | 0x50;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    JobId(u128::from_be_bytes(bytes))
}

pub fn vo_id(vo: &str) -> JobId {
    uuid5(BASE_ID, vo)
}

/// The id of a job whose name its client chose.
pub fn deterministic_id(vo: &str, sid: &str) -> JobId {
    uuid5(vo_id(vo), sid)
}

/// The delegation id of a certificate's holder, from the DN and its VOMS attributes.
pub fn delegation_id(dn: &str, fqans: &[String]) -> String {
    let mut digest = Sha1::new().chain_update(dn);
    fqans.iter().for_each(|fqan| digest.update(fqan));
    first_digits(&digest.finalize())
}

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
