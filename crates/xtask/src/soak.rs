//! `cargo xtask soak`: the random and long tests in full. They are the same tests as in the test command; an
//! environment variable sets how much of each is done.

use crate::test::run_counted;
use crate::tools::{cargo, run_command};

/// Read by the tests: how many kills, cases or rounds instead of the small number of the test command.
const KILLS: &str = "LONGHAUL_SOAK_KILLS";
const CASES: &str = "PROPTEST_CASES";

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["kill"] => kill("100"),
        ["kill", count] if count.parse::<u32>().is_ok() => kill(count),
        ["all"] => {
            kill("100")?;
            let mut command = cargo();
            command
                .args(["test", "--release", "--workspace", "--exclude", "longhaul-testbed"])
                .env(CASES, "10000");
            run_counted(&mut command).map(drop)
        }
        _ => Err("usage: cargo xtask soak kill [N] | all".into()),
    }
}

fn kill(count: &str) -> Result<(), String> {
    run_command(cargo().args(["build", "--release", "--workspace"]))?;
    let mut command = cargo();
    command
        .args(["test", "--release", "--package", "longhaul-testbed", "--test", "kill", "--", "--nocapture"])
        .env(KILLS, count);
    run_counted(&mut command).map(drop)
}
