//! Whole deployments of the real binary on this machine, and what acceptance tests need around them: trees of
//! files to send and to compare, a watcher of final names, kills, private mounts, a browser.
//!
//! Nothing here is part of the product and nothing depends on it but benchmarks. Every deployment is made
//! with the public commands, as an administrator would; every process holds the reading end of a pipe of ours
//! and ends when we do, however we end. Tests wait for events (an exit, a line of a log, a change told by the
//! service), never for time to pass.
//!
//! Not here: tests of single rooms (beside their code), simulated networks (`scheduler/tests`). One test
//! drives a deployment without processes, in one thread (`tests/one_thread`). Start with [`Deployment`]; each
//! file of `tests/` is one subject. Sizes and counts grow with the variables in [`effort`].

// A test's helper that cannot go on fails the test, and says why on the terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod ad_hoc;
pub mod anse;
pub mod browser;
mod changes;
mod circuit_provider;
pub mod clock;
mod deployment;
mod directory_tape;
pub mod disk_pools;
pub mod effort;
pub mod experiment_command;
pub mod foreign;
pub mod hostile;
pub mod http;
mod line_plot;
mod log;
pub mod mounts;
pub mod needs;
mod ports;
mod process;
pub mod processes;
mod run;
pub mod tape_recall;
pub mod transfer_nodes;
pub mod tree;
pub mod wan;
mod watcher;

pub use ad_hoc::{AdHoc, INTERRUPTED, TICK};
pub use circuit_provider::CircuitProvider;
pub use deployment::{Deployment, SERVICE, ServiceOptions, SiteOptions};
pub use directory_tape::DirectoryTape;
pub use log::Log;
pub use longhaul_testkit::Random;
pub use ports::free_port;
pub use process::Process;
pub use run::{CommandOutput, binary, clean};
pub use watcher::{Expected, WatchReport, Watcher};
