//! Local accounts: people who log in to the pages with a password of this deployment's own.

use longhaul_model::{CommunityName, SiteName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /api/v1/accounts`
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountAdd {
    /// Lower-case letters, digits and `-_.@+`.
    pub name: String,
    pub password: String,
    /// `admin`, `manager` or `viewer`.
    pub role: String,
    /// For whom they work: whose jobs they submit, see and cancel; of a manager, whose shares and
    /// subscriptions are theirs.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    /// The sites that a manager manages.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub sites: Vec<SiteName>,
}

/// `PATCH /api/v1/accounts/{account}`: what is absent stays as it is.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccountChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// `admin`, `manager` or `viewer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Empty: of no community.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub community: Option<String>,
    /// The sites that a manager manages; an empty list: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub sites: Option<Vec<SiteName>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
}

/// A local account without its password.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AccountView {
    pub name: String,
    /// `admin`, `manager` or `viewer`.
    pub role: String,
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub sites: Vec<SiteName>,
    pub disabled: bool,
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// When the password was given.
    #[schema(value_type = String)]
    pub password_since: Timestamp,
    #[schema(value_type = Option<String>)]
    pub last_login: Option<Timestamp>,
}

crate::hides_secrets!(AccountAdd, AccountChange);
