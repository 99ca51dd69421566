//! People with a password of this deployment's own.

use std::fmt;

use longhaul_model::{CommunityName, Timestamp};

#[derive(Clone, PartialEq, Eq)]
pub struct AccountRow {
    pub name: String,
    /// Its hash.
    pub password: String,
    /// `admin`, `manager` or `viewer`.
    pub role: String,
    pub community: Option<CommunityName>,
    pub disabled: bool,
    pub created: Timestamp,
    pub password_since: Timestamp,
    pub last_login: Option<Timestamp>,
    /// Whose manager its holder is, separated by blanks.
    pub sites: Option<String>,
}

#[derive(Clone)]
pub struct NewAccount {
    pub name: String,
    pub password: String,
    pub role: String,
    pub community: Option<CommunityName>,
    pub sites: Option<String>,
}

/// What is None stays as it is.
#[derive(Clone, Default)]
pub struct AccountPatch {
    pub password: Option<String>,
    pub role: Option<String>,
    /// None inside: of no community.
    pub community: Option<Option<CommunityName>>,
    /// None inside: of none.
    pub sites: Option<Option<String>>,
    pub disabled: Option<bool>,
}

impl fmt::Debug for AccountRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountRow({:?}, {}, password hidden)", self.name, self.role)
    }
}
