//! Login sessions.

use longhaul_model::Timestamp;

/// An open login session. Its end never lies after that of what opened it.
#[derive(Clone, PartialEq, Eq)]
pub struct LoginSessionRow {
    /// The hash of the cookie.
    pub hash: [u8; 32],
    /// The hash of the API token that opened it.
    pub token: Option<[u8; 32]>,
    /// The local account that opened it.
    pub account: Option<String>,
    /// Its holder as JSON, where neither a token nor an account says it.
    pub holder: Option<String>,
    pub created: Timestamp,
    pub expires: Timestamp,
}
