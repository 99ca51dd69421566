//! `cargo xtask bench`: builds everything once, then hands over to the program in `bench/`; what measures one room alone
//! is an example of that room, built without the rest.

mod peers;

use crate::tools::{self, cargo, run_command};

/// Cases that run other programs.
const WITH_PEERS: &[&str] = &["transfers", "mtu", "fdt", "floor"];
/// Cases of one room, with options of their own: the room, whose example has the case's name.
const OF_A_ROOM: &[(&str, &str)] = &[
    ("decisions", "longhaul-scheduler"),
    ("circuits", "longhaul-simulator"),
    ("concurrency", "longhaul-simulator"),
    ("strategies", "longhaul-simulator"),
    ("worlds", "longhaul-simulator"),
];

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    if let Some((case, options)) = words.split_first()
        && let Some((_, room)) = OF_A_ROOM.iter().find(|(name, _)| name == case)
    {
        let example = ["run", "--release", "--quiet", "--package", room, "--example", case, "--"];
        return run_command(cargo().args(example).args(options));
    }
    // Without a name everything is run.
    let names = || words.iter().filter(|word| !word.starts_with("--"));
    if names().next().is_none() || names().any(|word| WITH_PEERS.contains(word)) {
        peers::install_missing()?;
    }
    if names().next().is_none() || names().any(|word| *word == "fts-postgresql") {
        let (file, package) = tools::POSTGRESQL;
        tools::file(file, package)?;
    }
    run_command(cargo().args(["build", "--release", "--workspace", "--bins", "--examples"]))?;
    run_command(
        cargo().args(["run", "--release", "--quiet", "--package", "longhaul-bench", "--"]).args(words),
    )
}
