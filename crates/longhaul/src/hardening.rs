//! Keeps what this process knows from others: keys, tokens, proxies of users. It leaves no core dump, and the
//! kernel lets no process but root's read its memory, its environment or its open files, not even one of the
//! same user's.
//!
//! For every command, since each may hold a token. Programs that are started from here are dumpable again, as
//! any program, but leave no core dump either.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Set to 1: as if this were not there, for whoever looks for a fault with a debugger or a core dump.
pub const CORE_DUMPS_VARIABLE: &str = "LONGHAUL_CORE_DUMPS";

/// Before anything is read that is a secret.
pub fn harden_process() -> io::Result<()> {
    if std::env::var_os(CORE_DUMPS_VARIABLE).is_some_and(|value| value == "1") {
        return Ok(());
    }
    // The one thing of ours in /proc that we would not be let to open any more.
    longhaul_engine::open_counters();
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
