//! Benchmarks of the whole system: real processes, real sockets, real disks; each figure a ratio to a physical limit or to a
//! part measured in the same run, since machines are noisy. `cargo xtask bench [CASE]` builds all and runs this.
//!
//! Not here: tests (nothing fails by being slow), measurements of single rooms (their `examples/`).
//! Figures of the whole system are files below `cases/`, [`measure`] holds what they share; `transfers` compares one
//! command with its peers and has cases of its own.

// A benchmark that cannot go on ends with its reason; its output is its purpose.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod cases;
mod measure;
mod peers;
mod transfers;

use std::process::ExitCode;

use measure::Row;
use transfers::options::{Options, USAGE};

type Case = (&'static str, &'static str, fn(&Rounds) -> Vec<Row>);

const CASES: [Case; 5] = [
    (
        "small",
        "10,000 files of 64 KB from alpha to beta on the disk, against the disk's own floor",
        cases::small::run,
    ),
    (
        "large",
        "20 files of 100 MB on tmpfs, against the engine without the service; longest gap on the wire",
        cases::large::run,
    ),
    ("floor", "the parts of a transfer, checked against iperf3, openssl and dd", cases::floor::run),
    ("register", "1,000,000 files by manifest; subscription to first byte; memory", cases::register::run),
    ("build", "cold release build of the default feature set", cases::build::run),
];

/// How often each case alternates between us and its yardstick; the median counts.
pub(crate) struct Rounds(pub(crate) usize);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == "transfers"
    {
        return compare(rest);
    }
    let json = arguments.iter().any(|word| word == "--json");
    let words: Vec<&str> = arguments.iter().map(String::as_str).filter(|word| *word != "--json").collect();
    let chosen: Vec<&Case> = match words.as_slice() {
        [] => CASES.iter().collect(),
        ["list"] => {
            list();
            return ExitCode::SUCCESS;
        }
        names => names.iter().filter_map(|name| CASES.iter().find(|(known, ..)| known == name)).collect(),
    };
    if chosen.is_empty() {
        eprintln!("no such case; cargo xtask bench list names them");
        return ExitCode::from(2);
    }
    let mut rows = Vec::new();
    for (name, what, run) in chosen {
        eprintln!("{name}: {what}");
        rows.extend(run(&Rounds(3)));
    }
    if json {
        rows.iter().for_each(|row| println!("{}", row.json()))
    } else {
        print!("{}", measure::table(&rows))
    }
    if words.is_empty() {
        eprintln!("the comparison with other programs takes hours: cargo xtask bench transfers");
    }
    ExitCode::SUCCESS
}

/// Of programs, and of the floor.
fn names() -> Vec<&'static str> {
    peers::all().iter().map(|program| program.name()).chain(transfers::floor::NAMES).collect()
}

fn list() {
    CASES.iter().for_each(|(name, what, _)| println!("{name:<10} {what}"));
    println!("transfers  one command against its peers, in these cases ({USAGE}):");
    for case in &transfers::case::CASES {
        println!("  {:<18} {}", case.name, case.described());
    }
    println!("  with: {}", names().join(", "));
}

/// `transfers`: fails if a program failed, or if ours fell behind an earlier table.
fn compare(words: &[String]) -> ExitCode {
    let outcome = Options::parse(words, &names()).and_then(|options| transfers::run_and_print(&options));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
