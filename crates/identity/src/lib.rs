//! Identity: who calls, what they may do, and a record of what they were allowed or refused.
//!
//! People come with API tokens, sessions, certificates and proxies, or tokens of other issuers; here each
//! becomes a [`Caller`] (native API and pages) or a [`Person`] (FTS3 API and jobs). Beside that: communities,
//! delegated credentials (encrypted at rest), login methods with throttling, re-authorisation of job owners,
//! and the audit log.
//!
//! It owns no thread. Whoever calls brings one that may block on the catalog; methods that do not block are
//! `async`.
//!
//! Not here: routes and pages (`service`, `web`), cryptography and trust (`security`), the store of bans and
//! grants ([`AccessRules`]). Start with [`Identity`].

mod audit;
mod bearer;
mod caller;
mod delegated_credentials;
mod delegation;
mod fts_config;
mod grid_users;
mod identity;
mod job_owner;
mod logins;
mod origin;
mod person;
mod problem;
mod rights;
mod session_store;
mod sessions;

pub use audit::{AuditLog, Counters, Requester, count as count_decisions, from_door};
pub use bearer::PresentedToken;
pub use caller::{Caller, Login, charge, not_authenticated};
pub use delegated_credentials::DelegatedCredentials;
pub use fts_config::{FtsConfig, FtsIssuer, FtsPerson, Reach};
pub use grid_users::GridUsers;
pub use identity::{AccessRules, Clock, Clocks, Identity, IdentitySettings};
pub use job_owner::{KnownBy, OwnerCache, job_details};
pub use logins::{
    CertificateRule, CertificateStatus, ClaimRule, LoginBegun, LoginConfig, LoginMethods, LoginReturn,
    LoginRole, Logins, OpenIdConfig, OpenIdMethod, OpenIdReturn,
};
pub use origin::{Origin, Visitor};
pub use person::{JobScope, Method as AuthMethod, Person, Token};
pub use problem::{catalog_problem, refusal};
pub use rights::{Belonging, judge};
