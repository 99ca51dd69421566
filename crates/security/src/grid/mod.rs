//! Users of the grid: chains of certificates from the authorities of a directory, with proxies (RFC 3820) at their end.
//!
//! Not here: what a user may do (`role` and the mapping of communities), our own certificates (`authority`, `identity`).
//! `docs/reference/identities.md` says what is accepted. Start with [`GridTrust`]; what it finds is a [`GridIdentity`].

mod certificate;
mod chain;
mod der;
mod directory;
mod identity;
mod name;
mod proxy;
mod trust;

pub use identity::GridIdentity;
pub use name::{canonical, same_subject};
pub use trust::{GridSettings, GridTrust, Reloaded, Revocation};

pub(crate) use certificate::Certificate;
pub(crate) use identity::delegation_id as delegation_id_of;
