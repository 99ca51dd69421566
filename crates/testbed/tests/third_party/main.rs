//! Third-party copies in all pairings of XRootD as Debian has it and the door of a real agent: pulled and pushed, with
//! certificates and with tokens; ordered by our service, and by the programs that people have.
//!
//! `cargo test --release --workspace --test third_party`

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod cases;
mod clients;
mod gate;
mod issuer;
mod jobs;
mod world;
