//! Who is who and who may do what: the built-in certificate authority, identities in certificates, TLS
//! settings, permits from the service to sources, join tokens and API tokens, login sessions, passwords and
//! how often they may be tried, roles; users of the grid by their certificates and proxies ([`grid`]), by
//! bearer tokens ([`bearer`]), and what they lend us ([`delegation`]), which is sealed where it lies
//! ([`Vault`]).
//!
//! Not here: sockets and handshakes (`engine`, `service`, `api::client` run them with the settings made
//! here), where tokens are stored (`catalog` keeps their hashes), which route needs which role
//! (`api::routes`). No function reads a clock: the time is an argument. The cryptography is aws-lc-rs, named
//! in every TLS setting, never the process's default. Secrets stay out of `Debug` output, and so out of logs.
//!
//! Start with [`Authority`] (the service's side), [`Credentials`] (everyone's) and [`Permit`].

mod access;
mod attempts;
mod authority;
pub mod bearer;
mod callout;
mod clients;
pub mod delegation;
mod door;
mod error;
mod files;
pub mod grid;
pub mod gridmap;
mod identity;
pub mod macaroon;
mod origin;
mod outside;
mod password;
mod pending;
mod permit;
mod role;
mod scope;
mod session;
mod shared_secret;
mod tally;
mod text;
mod tls;
mod token;
mod vault;

pub use access::{ALLOWED_MAX, Access, SubjectPattern};
pub use attempts::{Attempt, Attempts};
pub use authority::{Authority, Issued, KeyPair, new_signing_request};
pub use callout::{CallOut, CallOutSettings, mapping_answer};
pub use clients::{ClientIdentity, client_of, grid_server_tls};
pub use door::{door_grid_tls, door_server_tls, subject_names};
pub use error::SecurityError;
pub use files::{read_private, read_secret, write_private};
pub use identity::{Credentials, PeerIdentity, expires, needs_renewal, peer_identity};
pub use origin::check_origin;
pub use outside::{OutsideTrust, outside_client_tls, outside_client_tls_as};
pub use password::{
    PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN, Verdict, check_new_password, hash_password, verify_password,
};
pub use pending::{BegunLogin, PENDING_LOGIN_LIFE, PendingLogin, PendingLogins};
pub use permit::{Permit, PermitVerifier, list_digest};
pub use role::{Action, Charge, MANAGED_SITES_MAX, Of, Principal, Role, authorise, authorise_of};
pub use scope::{Area, Confinement, Scope, Scopes};
pub use session::{Holder, KnownAs, Session, Sessions};
pub use shared_secret::{SharedAuthority, SharedSecret};
pub use tally::{Counted, Decision, SEVERAL, Tally, TallyBounds};
pub use tls::{
    AGENT_NAME, SERVICE_NAME, agent_client_tls, client_identity, data_server_tls, io_fault, join_client_tls,
    people_client_tls, server_identity, service_server_tls, tls_fault,
};
pub use token::{JoinToken, new_secret, same_hash, secret_hash};
pub use vault::Vault;
