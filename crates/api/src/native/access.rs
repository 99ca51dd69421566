//! Credentials of callers: who they are, API tokens and login sessions.

use longhaul_model::{CommunityName, SiteName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /api/v1/whoami`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Areas that the credential is confined to; none: all that the role may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// For whose jobs alone it is good; of a manager, whose shares, subscriptions and jobs are theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    /// The sites that a manager manages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub sites: Vec<SiteName>,
}

/// `POST /api/v1/tokens`
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TokenCreate {
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Areas that it is confined to (`jobs`, `data`, `sites`, `steering`, `network`, `access`), each with
    /// `:read` behind it for looking only; none: all that its role may.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// For whose jobs alone it is good; of a manager, whose shares, subscriptions and jobs are theirs.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    /// The sites that a manager manages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub sites: Vec<SiteName>,
}

/// An API token without its secret.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    #[schema(value_type = String)]
    pub created: Timestamp,
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Areas that it is confined to; none: all that its role may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// For whose jobs alone it is good; of a manager, whose shares, subscriptions and jobs are theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    /// The sites that a manager manages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub sites: Vec<SiteName>,
}

/// `POST /api/v1/session`: an API token or a one-time login token in, a cookie out.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginRequest {
    pub token: String,
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginReply {
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    /// To be sent as `X-CSRF-Token` with every request of this session that changes something.
    pub csrf_token: String,
    #[schema(value_type = String)]
    pub expires: Timestamp,
}

/// `POST /api/v1/session/tokens`: opens one login session, once, within minutes.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginToken {
    pub token: String,
    #[schema(value_type = String)]
    pub expires: Timestamp,
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// Shown this once.
    pub token: String,
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
}

crate::hides_secrets!(TokenCreated, LoginRequest, LoginReply, LoginToken);
