//! Helpers that the tests of several crates share: seeded random numbers, reproducible contents, a checksum
//! and waiting; with the feature `net` also certificates, signed tokens and an HTTP server on the loopback
//! address, with `async` waiting on a runtime.
//!
//! It uses no other crate of the workspace, so that all of them may use it in their tests. Helpers that make
//! values of a crate's own types stand in that crate, behind its feature `testing`.
//!
//! Not here: whole deployments and programs of others (`testbed`). It panics where a test cannot go on.

// For tests, and clippy.toml's leave for tests does not reach a crate of helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

mod adler32;
#[cfg(feature = "net")]
mod certificates;
mod content;
mod dice;
#[cfg(feature = "net")]
pub mod http;
mod random;
mod resent;
#[cfg(feature = "net")]
mod token_signer;
mod wait;

pub use adler32::adler32;
#[cfg(feature = "net")]
pub use certificates::{CertificateAuthority, server_tls};
pub use content::content;
pub use dice::Dice;
pub use random::Random;
pub use resent::resent_max;
#[cfg(feature = "net")]
pub use token_signer::TokenSigner;
pub use wait::wait_until;
#[cfg(feature = "async")]
pub use wait::{until, until_met};
