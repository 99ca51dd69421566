//! Process hardening: keeps secrets in memory (keys, tokens, users' proxies) from other processes. It
//! disables core dumps, and the kernel lets only root's processes read its memory, environment or open files,
//! not even those of the same user.
//!
//! For every command, since each may hold a token. Programs started from here are dumpable again, like any
//! program, but leave no core dump either.

use std::io;

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit, umask};

/// Set to 1 to disable the hardening, for debuggers and core dumps.
pub const CORE_DUMPS_VARIABLE: &str = "LONGHAUL_CORE_DUMPS";

/// Hardens the process. Call it before any secret is read.
pub fn harden_process() -> io::Result<()> {
    if std::env::var_os(CORE_DUMPS_VARIABLE).is_some_and(|value| value == "1") {
        return Ok(());
    }
    // Opened now, since we could not open it in /proc afterwards.
    longhaul_engine::open_counters();
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Files that this process makes are its owner's alone. For the service, whose every file may hold something
/// of its users; not for agents, whose files at storages are for others too: their state directory is closed
/// instead.
pub fn make_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}
