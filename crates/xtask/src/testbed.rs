//! `cargo xtask testbed`: builds everything once, then hands over to the scenario, an example of
//! `crates/testbed`.

use std::process::Command;

use crate::tools::{cargo, run_command, target};

const SCENARIOS: &[&str] = &["agents", "anse", "pools", "tape"];

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let Some((scenario, options)) = words.split_first().filter(|(name, _)| SCENARIOS.contains(name)) else {
        return Err(format!("usage: cargo xtask testbed {} [OPTIONS]", SCENARIOS.join("|")));
    };
    run_command(cargo().args(["build", "--release", "--quiet", "--workspace", "--examples", "--bins"]))?;
    run_command(Command::new(target().join("release/examples").join(scenario)).args(options))
}
