//! Users of the grid: chains, directories, attributes, delegation, and handshakes with all of them.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod chains;
mod clients;
mod delegation;
mod directory;
mod pki;
mod voms;
