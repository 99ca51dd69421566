//! Authentication and authorisation: the built-in certificate authority, identities in certificates, TLS
//! settings, permits, join and API tokens, login sessions, passwords and login throttling, roles; grid users
//! by certificates and proxies ([`grid`]) and by bearer tokens ([`bearer`]); their delegated credentials
//! ([`delegation`]), encrypted at rest ([`Vault`]).
//!
//! Not here: sockets and handshakes (`engine`, `service` and `api::client` run them with these settings),
//! storage of tokens (`catalog` has their hashes), which route needs which role (`api::routes`). No function
//! reads a clock: the time is an argument. The cryptography is aws-lc-rs, named in every TLS setting, never
//! the process's default. Secrets stay out of `Debug` output, and so out of logs.
//!
//! Start with [`Authority`] (the service's side), [`Credentials`] (everyone's) and [`Permit`].

mod access;
mod audit_aggregator;
mod authority;
pub mod bearer;
mod client_auth;
mod connection_places;
pub mod delegation;
mod door_tls;
mod error;
mod foreign_tls;
pub mod grid;
pub mod gridmap;
mod identity;
mod lock_file;
mod login_throttle;
pub mod macaroon;
mod mapping_callout;
mod origin;
mod password;
mod pending_logins;
mod permit;
mod private_files;
mod role;
mod scope;
mod service_certificates;
mod session;
mod shared_secret;
mod text;
mod tls;
mod token;
mod vault;

pub use access::{ALLOWED_MAX, Access, SubjectPattern};
pub use audit_aggregator::{AGGREGATED, AggregatedDecision, AuditAggregator, AuditBounds, Decision};
pub use authority::{Authority, CertifiedKeyPair, IssuedCertificate, new_signing_request};
pub use client_auth::{ClientIdentity, grid_server_tls, identify_client};
pub use connection_places::{AddressCounts, ConnectionBounds, ConnectionId, ConnectionPlaces, PlaceRefusal};
pub use door_tls::{door_grid_tls, door_server_tls, peer_chain_expires, subject_names};
pub use error::SecurityError;
pub use foreign_tls::{ForeignServerTrust, foreign_client_tls, foreign_client_tls_with_certificate};
pub use identity::{Credentials, PeerIdentity, expires, needs_renewal, peer_identity};
pub use lock_file::LockFile;
pub use login_throttle::{LoginAttempt, LoginThrottle, client_network};
pub use mapping_callout::{MappingCallout, MappingCalloutSettings, parse_mapping_answer};
pub use origin::check_origin;
pub use password::{PasswordVerdict, check_new_password, hash_password, verify_password};
pub use pending_logins::{LoginRedirect, PENDING_LOGIN_TTL, PendingLogin, PendingLogins};
pub use permit::{Permit, PermitVerifier, list_digest};
pub use private_files::{
    check_private_directory, create_private, read_private, read_secret, restrict_to_owner, write_private,
};
pub use role::{
    Action, MANAGED_SITES_MAX, ManagerScope, Principal, ResourceScope, Role, authorise, authorise_for,
    authorise_for_any,
};
pub use scope::{Area, Scope, Scopes, TokenRestrictions};
pub use service_certificates::{HostCertificate, SERVICE_PROTOCOL};
pub use session::{
    ExternalIdentity, LOGIN_TOKEN_PREFIX, ParentCredential, ParentToken, Session, SessionHolder, Sessions,
};
pub use shared_secret::{SharedAuthority, SharedSecret};
pub use tls::{
    AGENT_NAME, SERVICE_NAME, agent_client_tls, client_identity, data_server_tls, explain_io, io_fault,
    join_client_tls, people_client_tls, server_identity, service_client_tls, service_server_tls, tls_fault,
};
pub use token::{JoinToken, constant_time_eq, hash_secret, new_secret};
pub use vault::Vault;
