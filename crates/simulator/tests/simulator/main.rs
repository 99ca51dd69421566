//! The simulator with the real scheduler, subject by subject: one program, for each would be linked anew.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::expect_used, clippy::print_stdout, clippy::unwrap_used)]

mod bound;
mod circuits;
mod concurrency;
mod forecasts;
mod knowledge_report;
mod mistakes;
mod replay;
mod slow_first;
mod strategies;
mod tape;
mod worlds;
