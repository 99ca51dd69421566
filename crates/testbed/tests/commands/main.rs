//! Commands that need no deployment, as a person calls them. One test program, since each program is linked
//! anew.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::expect_used, clippy::print_stderr, clippy::unwrap_used)]

mod command_line;
mod copyjob;
mod doctor;
mod grid_map;
mod hardening;
mod lost_peers;
mod simulate;
