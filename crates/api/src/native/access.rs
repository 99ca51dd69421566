//! Credentials of callers: who they are, API tokens and login sessions.

use longhaul_model::{CommunityName, SiteName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// `GET /api/v1/whoami`: the caller's identity and rights.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// Name of the credential or account.
    pub name: String,
    /// Role: `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    /// Time when the credential expires; absent if it does not.
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Areas that the credential is confined to; empty: everything that the role allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Community whose jobs alone the credential is good for; a manager also manages its shares and
    /// subscriptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::CommunityName>)]
    pub community: Option<CommunityName>,
    /// Sites that the caller manages, for the role `manager`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<formats::SiteName>)]
    pub sites: Vec<SiteName>,
}

/// `POST /api/v1/tokens`: creates an API token.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenCreate {
    /// Name of the token, unique in the deployment.
    #[schema(value_type = formats::TokenName)]
    pub name: String,
    /// Role: `admin`, `manager`, `viewer` or `observer`.
    #[schema(value_type = formats::TokenRole)]
    pub role: String,
    /// Seconds until the token expires; absent: it does not expire.
    #[serde(default)]
    #[schema(value_type = Option<formats::TokenSeconds>)]
    pub seconds: Option<u64>,
    /// Areas that the token is confined to (`jobs`, `data`, `sites`, `steering`, `network`, `access`), each
    /// with `:read` appended for reading only; empty: everything that the role allows.
    #[serde(default)]
    #[schema(value_type = Vec<formats::Scope>)]
    pub scopes: Vec<String>,
    /// Community whose jobs alone the token is good for; a manager also manages its shares and subscriptions.
    #[serde(default)]
    #[schema(value_type = Option<formats::CommunityName>)]
    pub community: Option<CommunityName>,
    /// Sites that the token manages, for the role `manager`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<formats::SiteName>)]
    pub sites: Vec<SiteName>,
}

/// An API token without its secret.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Name of the token, unique in the deployment.
    pub name: String,
    /// Role: `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    /// Time when the token was created.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Time when the token expires; absent if it does not.
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Areas that the token is confined to; empty: everything that the role allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Community whose jobs alone the token is good for; a manager also manages its shares and subscriptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::CommunityName>)]
    pub community: Option<CommunityName>,
    /// Sites that the token manages, for the role `manager`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<formats::SiteName>)]
    pub sites: Vec<SiteName>,
}

/// `POST /api/v1/session`: exchanges an API token or a one-time login token for a session cookie.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    /// API token or one-time login token.
    pub token: String,
}

/// A login session; the reply sets its cookie.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginReply {
    /// Name of the credential that opened the session.
    pub name: String,
    /// Role: `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    /// Value of the `X-CSRF-Token` header, which every request of this session that changes something must
    /// carry.
    pub csrf_token: String,
    /// Time when the session expires.
    #[schema(value_type = String)]
    pub expires: Timestamp,
}

/// `POST /api/v1/session/tokens`: a token that opens one login session, once, within minutes.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginToken {
    /// The token, a secret.
    pub token: String,
    /// Time when the token expires.
    #[schema(value_type = String)]
    pub expires: Timestamp,
}

/// A new API token.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// The token, a secret; never shown again.
    pub token: String,
    /// Time when the token expires; absent if it does not.
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
}

crate::hides_secrets!(TokenCreated, LoginRequest, LoginReply, LoginToken);
