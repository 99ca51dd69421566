//! Local accounts: people who log in to the pages with a password that this deployment stores.

use longhaul_model::{CommunityName, SiteName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// `POST /api/v1/accounts`: creates a local account.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountAdd {
    /// Name to log in with: lower-case letters, digits and `-_.@+`.
    #[schema(value_type = formats::AccountName)]
    pub name: String,
    /// Password in clear text; the service stores only a hash of it.
    #[schema(value_type = formats::Password)]
    pub password: String,
    /// `admin`, `manager` or `viewer`.
    #[schema(value_type = formats::AccountRole)]
    pub role: String,
    /// Community whose jobs the account submits, sees and cancels; a manager also manages its shares and
    /// subscriptions.
    #[serde(default)]
    #[schema(value_type = Option<formats::CommunityName>)]
    pub community: Option<CommunityName>,
    /// Sites that the account manages, for the role `manager`.
    #[serde(default)]
    #[schema(value_type = Vec<formats::SiteName>)]
    pub sites: Vec<SiteName>,
}

/// `PATCH /api/v1/accounts/{account}`: absent fields keep their value.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccountChange {
    /// New password in clear text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::Password>)]
    pub password: Option<String>,
    /// `admin`, `manager` or `viewer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::AccountRole>)]
    pub role: Option<String>,
    /// New community; an empty text takes the account out of its community.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::CommunityOrEmpty>)]
    pub community: Option<String>,
    /// Sites that the account manages, for the role `manager`; an empty list means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<formats::SiteName>>)]
    pub sites: Option<Vec<SiteName>>,
    /// True forbids logging in and ends the account's sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
}

/// A local account without its password.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AccountView {
    /// Name to log in with.
    pub name: String,
    /// `admin`, `manager` or `viewer`.
    pub role: String,
    /// Community whose jobs the account may submit, see and cancel.
    #[schema(value_type = Option<formats::CommunityName>)]
    pub community: Option<CommunityName>,
    /// Sites that the account manages, for the role `manager`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<formats::SiteName>)]
    pub sites: Vec<SiteName>,
    /// True while the account may not log in.
    pub disabled: bool,
    /// Time when the account was created.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Time when the password was last set.
    #[schema(value_type = String)]
    pub password_since: Timestamp,
    /// Time of the last successful log-in; absent if there was none.
    #[schema(value_type = Option<String>)]
    pub last_login: Option<Timestamp>,
}

crate::hides_secrets!(AccountAdd, AccountChange);
