//! The engine over real sockets and files, in one test binary, so that it is linked once.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod access;
mod allow_list;
mod calls;
mod common;
mod faults;
mod in_order;
mod marks;
mod offers;
mod paths;
mod pools;
mod preconnect;
mod replicas;
mod resume;
mod transfer;
