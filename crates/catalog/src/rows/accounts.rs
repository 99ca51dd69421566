//! Local accounts.

use std::fmt;

use longhaul_model::{CommunityName, Timestamp};

#[derive(Clone, PartialEq, Eq)]
pub struct AccountRow {
    pub name: String,
    /// The hash of its password (PHC string).
    pub password: String,
    /// `admin`, `manager` or `viewer`.
    pub role: String,
    pub community: Option<CommunityName>,
    pub disabled: bool,
    pub created: Timestamp,
    pub password_since: Timestamp,
    pub last_login: Option<Timestamp>,
    /// The sites that its holder manages, separated by blanks.
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

/// Changes of an account; None leaves a field as it is.
#[derive(Clone, Default)]
pub struct AccountPatch {
    pub password: Option<String>,
    pub role: Option<String>,
    /// `Some(None)` removes the community.
    pub community: Option<Option<CommunityName>>,
    /// `Some(None)` removes all sites.
    pub sites: Option<Option<String>>,
    pub disabled: Option<bool>,
}

impl fmt::Debug for AccountRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountRow({:?}, {}, password hidden)", self.name, self.role)
    }
}
