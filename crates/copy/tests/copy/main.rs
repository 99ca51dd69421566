//! Copies without a service. One test program, since each program is linked anew.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::expect_used, clippy::print_stdout, clippy::unwrap_used)]

mod common;
mod local;
mod pairs;
mod pull;
mod push;
mod replicas;
mod resume;
