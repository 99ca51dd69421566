//! How much of each random or long test is done: little in the test command, more where a variable says so
//! (`cargo xtask soak` sets them).

use std::path::PathBuf;

use crate::Random;

/// In the test command.
pub const HOSTILE_STREAMS: u64 = 2_000;

/// Kills of the test with kills.
pub fn kills() -> u64 {
    number("LONGHAUL_SOAK_KILLS", 10)
}

/// How long the service stays away, in seconds, after the agents have finished what they hold.
pub fn away_s() -> u64 {
    number("LONGHAUL_SOAK_AWAY_S", 3)
}

/// Streams that one hostile peer opens.
pub fn hostile_streams() -> u64 {
    number("LONGHAUL_SOAK_HOSTILE_STREAMS", HOSTILE_STREAMS)
}

/// How long the hostile reporter speaks, in seconds.
pub fn reporter_s() -> u64 {
    number("LONGHAUL_SOAK_REPORTER_S", 60)
}

/// Kills of either end of one copy.
pub fn copy_kills() -> u64 {
    number("LONGHAUL_SOAK_RESUME_KILLS", 3)
}

/// Megabytes that are copied while a path is cut.
pub fn path_mb() -> u64 {
    number("LONGHAUL_SOAK_PATH_MB", 60)
}

/// Transfers at once, far away.
pub fn memory_transfers() -> u64 {
    number("LONGHAUL_SOAK_MEMORY_TRANSFERS", 50)
}

/// At least so many files of a real tree.
pub fn tree_files() -> usize {
    number("LONGHAUL_SOAK_TREE_FILES", 4_000) as usize
}

/// The tree to send, instead of one of this system's.
pub fn tree() -> Option<PathBuf> {
    std::env::var_os("LONGHAUL_SOAK_TREE").map(PathBuf::from)
}

/// Randomness of one test, by a seed that is printed: `LONGHAUL_SOAK_SEED` repeats a run.
pub fn random(test: &str) -> Random {
    let clock = || {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |now| now.as_nanos() as u64)
    };
    let seed = number("LONGHAUL_SOAK_SEED", clock());
    println!("{test}: LONGHAUL_SOAK_SEED={seed}");
    Random::new(seed)
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is no number")),
        Err(_) => default,
    }
}
