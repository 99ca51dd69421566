//! Everything that leaves by HTTP goes through here: addresses checked before they are dialled (SSRF filter),
//! TLS, redirects by rule, limits on bodies and time, retries, and credentials that go only to the host they
//! are for.
//!
//! Two ways: [`client`] is pooled and knows names and addresses only, for small requests to servers that an
//! administrator named; [`Connector`] gives one connection, for those who stream files and judge every step
//! themselves. Both dial exactly what [`AddressPolicy`] allowed.
//!
//! Not here: what requests say (`gateways`, `storage-remote`, `doors`), certificates and whom to trust
//! (`security`), the typed client of our own API, which has one server and no redirects (`api`).

mod authorities;
mod client;
mod connector;
mod expectation;
mod http1;
mod policy;
mod redirect;
mod resolver;
mod retry;
mod stream;
mod tls;

pub use authorities::{SYSTEM_AUTHORITIES, read as read_authorities};
pub use client::{HttpClient, client, send_bounded};
pub use connector::{ConnectError, Connector, dial_twice};
pub use expectation::expect_continue;
pub use http1::{Http1Connection, IdlePool, handshake_http1};
pub use policy::AddressPolicy;
pub use redirect::{CredentialScope, Origin, REDIRECTS_MAX, keeps_method};
pub use resolver::Resolver;
pub use retry::{RetryPolicy, retry_after};
pub use stream::{Stream, connect, connect_tls};
pub use tls::{CertificateId, TlsConfigError, TlsConfigs, TlsError, handshake_tls};
