//! `cargo xtask bench`: builds everything once, then hands over to the program in `bench/`.

mod peers;

use crate::tools::{cargo, run_command};

/// Cases that run other programs.
const WITH_PEERS: &[&str] = &["transfers", "mtu", "fdt", "floor"];

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    // Without a name everything is run.
    let names = || words.iter().filter(|word| !word.starts_with("--"));
    if names().next().is_none() || names().any(|word| WITH_PEERS.contains(word)) {
        peers::install_missing()?;
    }
    run_command(cargo().args(["build", "--release", "--workspace", "--examples"]))?;
    run_command(
        cargo().args(["run", "--release", "--quiet", "--package", "longhaul-bench", "--"]).args(words),
    )
}
