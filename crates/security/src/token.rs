use longhaul_model::Fault;

/// Everything an agent needs to find, trust and join a service once. The text form is `lhj_` and base64url.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub url: String,
    pub ca_fingerprint: String,
    pub secret: String,
}

impl std::fmt::Display for JoinToken {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}
impl std::str::FromStr for JoinToken {
    type Err = Fault;
    fn from_str(_text: &str) -> Result<Self, Fault> {
        todo!()
    }
}

/// 160 random bits as text behind a prefix such as `lht_`.
pub fn new_secret(_prefix: &str) -> String {
    todo!()
}
/// What is stored instead of a secret.
pub fn secret_hash(_secret: &str) -> [u8; 32] {
    todo!()
}
/// Compares in a time that does not depend on where they differ.
pub fn same_hash(_one: &[u8; 32], _other: &[u8; 32]) -> bool {
    todo!()
}
