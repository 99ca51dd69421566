//! `cargo xtask soak`: the random and long tests in full. They are the same tests as in the test command; variables of
//! the environment, which the tests read, set how much of each is done.

use crate::test::run_counted;
use crate::tools::{cargo, run_command};

/// One long test: its name here, the test file of `testbed`, and how much of it.
struct Long {
    name: &'static str,
    test: &'static str,
    variable: &'static str,
    full: &'static str,
}

const LONG: [Long; 7] = [
    Long { name: "kill", test: "kill", variable: "LONGHAUL_SOAK_KILLS", full: "100" },
    Long { name: "away", test: "away", variable: "LONGHAUL_SOAK_AWAY_S", full: "120" },
    Long { name: "tree", test: "campaign", variable: "LONGHAUL_SOAK_TREE_FILES", full: "20000" },
    Long { name: "hostile", test: "hostile", variable: "LONGHAUL_SOAK_HOSTILE_STREAMS", full: "1000000" },
    Long { name: "resume", test: "copy_resume", variable: "LONGHAUL_SOAK_RESUME_KILLS", full: "20" },
    Long { name: "path", test: "copy_path", variable: "LONGHAUL_SOAK_PATH_MB", full: "2000" },
    Long { name: "memory", test: "copy_memory", variable: "LONGHAUL_SOAK_MEMORY_TRANSFERS", full: "500" },
];

const USAGE: &str = "usage: cargo xtask soak kill [KILLS] | away [SECONDS] | tree [FILES]
       | hostile [STREAMS] | resume [KILLS] | path [MEGABYTES] | memory [TRANSFERS] | random | fuzz [SECONDSs | EXECUTIONSx] [keep] [TARGET…] | all";

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["random"] => random(),
        ["fuzz", rest @ ..] => crate::fuzz::run(rest),
        ["all"] => {
            build()?;
            LONG.iter().try_for_each(|long| once(long, long.full))?;
            random()?;
            crate::fuzz::run(&[])
        }
        [name, rest @ ..] => {
            let long = LONG.iter().find(|long| long.name == *name).ok_or(USAGE)?;
            let amount = match rest {
                [] => long.full,
                [amount] if amount.parse::<u32>().is_ok() => amount,
                _ => return Err(USAGE.to_owned()),
            };
            build()?;
            once(long, amount)
        }
        [] => Err(USAGE.to_owned()),
    }
}

fn build() -> Result<(), String> {
    run_command(cargo().args(["build", "--release", "--workspace"]))
}

fn once(long: &Long, amount: &str) -> Result<(), String> {
    let mut command = cargo();
    command
        .args([
            "test",
            "--release",
            "--package",
            "longhaul-testbed",
            "--test",
            long.test,
            "--",
            "--nocapture",
        ])
        .env(long.variable, amount);
    run_counted(&mut command).map(drop)
}

/// The property tests of all rooms, with many more cases: those that fix a number scale it by what the library reads here.
fn random() -> Result<(), String> {
    let mut command = cargo();
    command
        .args(["test", "--release", "--workspace", "--exclude", "longhaul-testbed"])
        .env("PROPTEST_CASES", "10000");
    run_counted(&mut command).map(drop)
}
