//! The scheduler as its callers see it, subject by subject: one program, for each would be built with its
//! world anew.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::expect_used, clippy::print_stdout, clippy::unwrap_used)]

mod absurd;
mod circuits;
mod concurrency;
mod deadlines;
mod exchange;
mod exclusive_target;
mod lease_recall;
mod limits;
mod link_shares;
mod outlooks;
mod routes;
mod shares;
mod strategies;
mod world;
mod worlds;
