//! `cargo xtask soak`: the random and long tests in full. They are the same tests as in the test command;
//! variables of the environment, which the tests read, set how much of each is done.

use crate::runner::run_counted;
use crate::tools::{cargo, run_command};

/// One long test: its name here, the program and the file of tests in which it stands, and how much of it.
struct LongTest {
    name: &'static str,
    program: &'static str,
    file: &'static str,
    variable: &'static str,
    full: &'static str,
}

/// The tests that run the built programs.
pub(crate) const SCENARIOS: &str = "scenarios";
const SCHEDULER: &str = "scheduler";
const SIMULATOR: &str = "simulator";

const LONG_TESTS: [LongTest; 13] = [
    LongTest { name: "kill", program: SCENARIOS, file: "kill", variable: "LONGHAUL_SOAK_KILLS", full: "100" },
    LongTest {
        name: "away",
        program: SCENARIOS,
        file: "away",
        variable: "LONGHAUL_SOAK_AWAY_S",
        full: "120",
    },
    LongTest {
        name: "tree",
        program: SCENARIOS,
        file: "campaign",
        variable: "LONGHAUL_SOAK_TREE_FILES",
        full: "20000",
    },
    LongTest {
        name: "hostile",
        program: SCENARIOS,
        file: "hostile",
        variable: "LONGHAUL_SOAK_HOSTILE_STREAMS",
        full: "1000000",
    },
    LongTest {
        name: "hostile-reporter",
        program: SCENARIOS,
        file: "hostile_reporter",
        variable: "LONGHAUL_SOAK_REPORTER_S",
        full: "600",
    },
    LongTest {
        name: "resume",
        program: SCENARIOS,
        file: "copy_resume",
        variable: "LONGHAUL_SOAK_RESUME_KILLS",
        full: "20",
    },
    LongTest {
        name: "path",
        program: SCENARIOS,
        file: "copy_path",
        variable: "LONGHAUL_SOAK_PATH_MB",
        full: "2000",
    },
    LongTest {
        name: "memory",
        program: SCENARIOS,
        file: "copy_memory",
        variable: "LONGHAUL_SOAK_MEMORY_TRANSFERS",
        full: "500",
    },
    LongTest {
        name: "worlds",
        program: SCHEDULER,
        file: "worlds",
        variable: "LONGHAUL_SOAK_WORLDS",
        full: "10000",
    },
    LongTest {
        name: "forecasts",
        program: SIMULATOR,
        file: "forecasts",
        variable: "LONGHAUL_SOAK_FORECAST_HOURS",
        full: "30",
    },
    LongTest {
        name: "steady",
        program: SIMULATOR,
        file: "learned",
        variable: "LONGHAUL_SOAK_STEADY_MONTHS",
        full: "12",
    },
    LongTest {
        name: "third-party",
        program: SCENARIOS,
        file: "third_party",
        variable: "LONGHAUL_SOAK_PAIRINGS",
        full: "16",
    },
    LongTest {
        name: SCHEMATHESIS,
        program: SCENARIOS,
        file: "schemathesis",
        variable: "LONGHAUL_SOAK_EXAMPLES",
        full: "100",
    },
];

/// Needs a program of others.
const SCHEMATHESIS: &str = "schemathesis";

const USAGE: &str = "usage: cargo xtask soak kill [KILLS] | away [SECONDS] | tree [FILES]
       | hostile [STREAMS] | hostile-reporter [SECONDS] | resume [KILLS] | path [MEGABYTES]
       | memory [TRANSFERS] | worlds [CASES] | forecasts [HOURS]
       | steady [MONTHS] | third-party [PAIRINGS] | schemathesis [EXAMPLES] | random [ROOM…]
       | fuzz [SECONDSs | EXECUTIONSx] [keep] [TARGET…] | all";

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["random", rooms @ ..] => random(rooms),
        ["fuzz", rest @ ..] => crate::fuzz::run(rest),
        ["all"] => {
            build()?;
            LONG_TESTS.iter().try_for_each(|long| once(long, long.full))?;
            random(&[])?;
            crate::fuzz::run(&[])
        }
        [name, rest @ ..] => {
            let long = LONG_TESTS.iter().find(|long| long.name == *name).ok_or(USAGE)?;
            let amount = match rest {
                [] => long.full,
                [amount] if amount.parse::<u32>().is_ok() => amount,
                _ => return Err(USAGE.to_owned()),
            };
            if long.program == SCENARIOS {
                build()?;
            }
            once(long, amount)
        }
        [] => Err(USAGE.to_owned()),
    }
}

/// Compiles the programs that the scenarios run, and the scenarios, with the features of the whole workspace:
/// tests that are asked for with those compile nothing twice.
pub(crate) fn build() -> Result<(), String> {
    run_command(cargo().args(["build", "--release", "--workspace", "--bins", "--test", SCENARIOS]))
}

fn once(long: &LongTest, amount: &str) -> Result<(), String> {
    let mut command = cargo();
    command
        .args(["test", "--release", "--workspace", "--test", long.program])
        .args(["--", "--nocapture", &format!("{}::", long.file)])
        .env(long.variable, amount);
    if long.name == SCHEMATHESIS {
        command.env("LONGHAUL_SCHEMATHESIS_PYTHON", crate::python::schemathesis()?);
    }
    run_counted(&mut command).map(drop)
}

/// The property tests of these rooms (`circuits`), or of all, with many more cases: those that fix a number
/// scale it by what the library reads here.
fn random(rooms: &[&str]) -> Result<(), String> {
    let mut command = cargo();
    command.args(["test", "--release"]).env("PROPTEST_CASES", "10000");
    match rooms {
        [] => command.args(["--workspace", "--exclude", "longhaul-testbed"]),
        rooms => command.args(rooms.iter().map(|room| format!("--package=longhaul-{room}"))),
    };
    run_counted(&mut command).map(drop)
}
