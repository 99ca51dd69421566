//! `cargo xtask soak`: the random and long tests in full. They are the same tests as in the test command;
//! variables of the environment, which the tests read, set how much of each is done.

use crate::runner::run_counted;
use crate::tools::{cargo, run_command};

/// One long test: its name here, the file of the tests of a room in which it stands, and how much of it.
struct LongTest {
    name: &'static str,
    tests: Tests,
    file: &'static str,
    variable: &'static str,
    full: &'static str,
}

/// The tests of a room: its package, and the program that they are.
#[derive(Clone, Copy, PartialEq)]
struct Tests {
    package: &'static str,
    program: &'static str,
}

/// Those that run the built programs.
const PROGRAMS: Tests = Tests { package: "longhaul-testbed", program: "scenarios" };
const SCHEDULER: Tests = Tests { package: "longhaul-scheduler", program: "scheduler" };
const SIMULATOR: Tests = Tests { package: "longhaul-simulator", program: "simulator" };

const LONG_TESTS: [LongTest; 13] = [
    LongTest { name: "kill", tests: PROGRAMS, file: "kill", variable: "LONGHAUL_SOAK_KILLS", full: "100" },
    LongTest { name: "away", tests: PROGRAMS, file: "away", variable: "LONGHAUL_SOAK_AWAY_S", full: "120" },
    LongTest {
        name: "tree",
        tests: PROGRAMS,
        file: "campaign",
        variable: "LONGHAUL_SOAK_TREE_FILES",
        full: "20000",
    },
    LongTest {
        name: "hostile",
        tests: PROGRAMS,
        file: "hostile",
        variable: "LONGHAUL_SOAK_HOSTILE_STREAMS",
        full: "1000000",
    },
    LongTest {
        name: "hostile-reporter",
        tests: PROGRAMS,
        file: "hostile_reporter",
        variable: "LONGHAUL_SOAK_REPORTER_S",
        full: "600",
    },
    LongTest {
        name: "resume",
        tests: PROGRAMS,
        file: "copy_resume",
        variable: "LONGHAUL_SOAK_RESUME_KILLS",
        full: "20",
    },
    LongTest {
        name: "path",
        tests: PROGRAMS,
        file: "copy_path",
        variable: "LONGHAUL_SOAK_PATH_MB",
        full: "2000",
    },
    LongTest {
        name: "memory",
        tests: PROGRAMS,
        file: "copy_memory",
        variable: "LONGHAUL_SOAK_MEMORY_TRANSFERS",
        full: "500",
    },
    LongTest {
        name: "worlds",
        tests: SCHEDULER,
        file: "worlds",
        variable: "LONGHAUL_SOAK_WORLDS",
        full: "10000",
    },
    LongTest {
        name: "forecasts",
        tests: SIMULATOR,
        file: "forecasts",
        variable: "LONGHAUL_SOAK_FORECAST_HOURS",
        full: "30",
    },
    LongTest {
        name: "steady",
        tests: SIMULATOR,
        file: "learned",
        variable: "LONGHAUL_SOAK_STEADY_MONTHS",
        full: "12",
    },
    LongTest {
        name: "third-party",
        tests: PROGRAMS,
        file: "third_party",
        variable: "LONGHAUL_SOAK_PAIRINGS",
        full: "16",
    },
    LongTest {
        name: SCHEMATHESIS,
        tests: PROGRAMS,
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
            if long.tests == PROGRAMS {
                build()?;
            }
            once(long, amount)
        }
        [] => Err(USAGE.to_owned()),
    }
}

fn build() -> Result<(), String> {
    run_command(cargo().args(["build", "--release", "--workspace"]))
}

fn once(long: &LongTest, amount: &str) -> Result<(), String> {
    let mut command = cargo();
    command
        .args(["test", "--release", "--package", long.tests.package, "--test", long.tests.program])
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
        [] => command.args(["--workspace", "--exclude", PROGRAMS.package]),
        rooms => command.args(rooms.iter().map(|room| format!("--package=longhaul-{room}"))),
    };
    run_counted(&mut command).map(drop)
}
