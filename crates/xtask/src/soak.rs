//! `cargo xtask soak`: the random and long tests in full. They are the same tests as in the test command; variables of
//! the environment, which the tests read, set how much of each is done.

use crate::test::run_counted;
use crate::tools::{cargo, run_command};

/// One long test: its name here, its room and test file, and how much of it.
struct Long {
    name: &'static str,
    room: &'static str,
    test: &'static str,
    variable: &'static str,
    full: &'static str,
}

/// The room of tests that run the built programs.
const PROGRAMS: &str = "longhaul-testbed";

const LONG: [Long; 11] = [
    Long { name: "kill", room: PROGRAMS, test: "kill", variable: "LONGHAUL_SOAK_KILLS", full: "100" },
    Long { name: "away", room: PROGRAMS, test: "away", variable: "LONGHAUL_SOAK_AWAY_S", full: "120" },
    Long {
        name: "tree",
        room: PROGRAMS,
        test: "campaign",
        variable: "LONGHAUL_SOAK_TREE_FILES",
        full: "20000",
    },
    Long {
        name: "hostile",
        room: PROGRAMS,
        test: "hostile",
        variable: "LONGHAUL_SOAK_HOSTILE_STREAMS",
        full: "1000000",
    },
    Long {
        name: "resume",
        room: PROGRAMS,
        test: "copy_resume",
        variable: "LONGHAUL_SOAK_RESUME_KILLS",
        full: "20",
    },
    Long { name: "path", room: PROGRAMS, test: "copy_path", variable: "LONGHAUL_SOAK_PATH_MB", full: "2000" },
    Long {
        name: "memory",
        room: PROGRAMS,
        test: "copy_memory",
        variable: "LONGHAUL_SOAK_MEMORY_TRANSFERS",
        full: "500",
    },
    Long {
        name: "worlds",
        room: "longhaul-scheduler",
        test: "worlds",
        variable: "LONGHAUL_SOAK_WORLDS",
        full: "10000",
    },
    Long {
        name: "forecasts",
        room: "longhaul-simulator",
        test: "forecasts",
        variable: "LONGHAUL_SOAK_FORECAST_HOURS",
        full: "30",
    },
    Long {
        name: "steady",
        room: "longhaul-simulator",
        test: "learned",
        variable: "LONGHAUL_SOAK_STEADY_MONTHS",
        full: "12",
    },
    Long {
        name: "third-party",
        room: PROGRAMS,
        test: "third_party",
        variable: "LONGHAUL_SOAK_PAIRINGS",
        full: "16",
    },
];

const USAGE: &str = "usage: cargo xtask soak kill [KILLS] | away [SECONDS] | tree [FILES]
       | hostile [STREAMS] | resume [KILLS] | path [MEGABYTES] | memory [TRANSFERS] | worlds [CASES] | forecasts [HOURS]
       | steady [MONTHS] | third-party [PAIRINGS] | random [ROOM…] | fuzz [SECONDSs | EXECUTIONSx] [keep] [TARGET…] | all";

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["random", rooms @ ..] => random(rooms),
        ["fuzz", rest @ ..] => crate::fuzz::run(rest),
        ["all"] => {
            build()?;
            LONG.iter().try_for_each(|long| once(long, long.full))?;
            random(&[])?;
            crate::fuzz::run(&[])
        }
        [name, rest @ ..] => {
            let long = LONG.iter().find(|long| long.name == *name).ok_or(USAGE)?;
            let amount = match rest {
                [] => long.full,
                [amount] if amount.parse::<u32>().is_ok() => amount,
                _ => return Err(USAGE.to_owned()),
            };
            if long.room == PROGRAMS {
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

fn once(long: &Long, amount: &str) -> Result<(), String> {
    let mut command = cargo();
    command
        .args(["test", "--release", "--package", long.room, "--test", long.test, "--", "--nocapture"])
        .env(long.variable, amount);
    run_counted(&mut command).map(drop)
}

/// The property tests of these rooms (`circuits`), or of all, with many more cases: those that fix a number scale it by what
/// the library reads here.
fn random(rooms: &[&str]) -> Result<(), String> {
    let mut command = cargo();
    command.args(["test", "--release"]).env("PROPTEST_CASES", "10000");
    match rooms {
        [] => command.args(["--workspace", "--exclude", PROGRAMS]),
        rooms => command.args(rooms.iter().map(|room| format!("--package=longhaul-{room}"))),
    };
    run_counted(&mut command).map(drop)
}
