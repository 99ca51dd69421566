//! Grid users: X.509 certificate chains (RFC 5280) from the authorities of a directory, with proxy
//! certificates (RFC 3820) at their end.
//!
//! Not here: what a user may do (`role` and the mapping of communities), our own certificates (`authority`,
//! `identity`). `docs/reference/identities.md` says what is accepted. Start with [`GridTrust`], which returns
//! a [`GridIdentity`].

mod certificate;
mod chain;
mod der;
mod directory;
mod files;
mod identity;
mod lsc;
mod name;
mod policy;
mod proxy;
mod revocation;
mod trust;
mod trust_store;
mod voms;

pub use files::{GridSettings, ReloadReport, Revocation};
pub use identity::GridIdentity;
pub use name::{DistinguishedName, NameError, canonical, denies_subject, same_subject};
pub use trust::GridTrust;

pub(crate) use certificate::{Certificate, public_key as key_parts, subject_line};
pub(crate) use identity::delegation_id as delegation_id_of;
