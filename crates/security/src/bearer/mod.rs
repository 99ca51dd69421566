//! Bearer tokens (RFC 6750) of trusted issuers: JSON web tokens (RFC 7519) of the WLCG profile, SciTokens and
//! plain ones; and ID tokens of OpenID Connect, by which an issuer says who logs in ([`LoginIdentity`]).
//!
//! Not here: sockets (`gateways` drives a [`KeyFetch`], which names the next URL), our own tokens (`token`,
//! `session`), what a token's holder may do beyond its scopes (`role`). `docs/reference/identities.md` says
//! what is accepted. Start with [`TokenTrust`], which returns a [`TokenIdentity`].

mod claims;
mod code_flow;
mod id_token;
mod jwt;
mod key_fetch;
mod keys;
mod scope;
mod trust;
mod unverified;

pub use claims::{Profile, TokenIdentity};
pub use code_flow::{ProviderMetadata, extract_id_token};
pub use id_token::{ExpectedLogin, ID_TOKEN_BYTES_MAX, LoginIdentity};
pub use jwt::TOKEN_BYTES_MAX;
pub use key_fetch::{FetchResponse, FetchStep, KeyFetch};
pub use keys::KEYS_BYTES_MAX;
pub use scope::{Capability, Scopes, StorageAction};
pub use trust::{Audience, IssuerRule, TokenRefusal, TokenSettings, TokenTrust, WLCG_ANY};
pub use unverified::{OFFLINE_ACCESS, UnverifiedClaims};

use longhaul_model::{Fault, FaultCode};

fn refused(detail: impl Into<String>) -> Fault {
    Fault::new(FaultCode::NotAuthenticated, detail)
}
