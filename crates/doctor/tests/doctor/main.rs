//! The doctor and those it looks at, subject by subject: one program, for each would be linked anew.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod credentials;
mod hosts;
mod peer;
