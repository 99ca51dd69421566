//! Benchmarks of the whole system: real processes, real sockets, real disks; each figure a ratio to a
//! physical limit or to a part measured in the same run, since machines are noisy. `cargo xtask bench [CASE]`
//! builds all and runs this.
//!
//! Not here: tests (nothing fails by being slow), measurements of single rooms (their `examples/`). Figures
//! of the whole system are files below `cases/`, [`measure`] holds what they share; `transfers` compares one
//! command with its peers, `behaviour` looks at it alone; both have cases and options of their own.

// A benchmark that cannot go on ends with its reason; its output is its purpose.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod behaviour;
mod cases;
mod measure;
mod peers;
mod transfers;

use std::process::ExitCode;

use measure::Row;
use transfers::options::{Options, USAGE};

type Case = (&'static str, &'static str, fn(&Rounds) -> Vec<Row>);

const CASES: [Case; 10] = [
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
    (
        "fts",
        "the FTS3 API: jobs submitted, polled and listed with up to 1,000,000 in the database; starts and \
            small copies",
        cases::fts::run,
    ),
    (
        "fts-postgresql",
        "the same with the catalog in PostgreSQL, both on the same two cores",
        cases::fts::run_on_postgresql,
    ),
    (
        "doors",
        "a door against nginx, copies that go through the service against curl | curl; small copies between \
            doors",
        cases::doors::run,
    ),
    (
        "trust",
        "what strangers cost (memory, others' waiting), agents that speak of others, and repairs",
        cases::trust::run,
    ),
    (
        "limits",
        "the demo with 2 MB/s into each site: links, rates, shares by priority, forecasts, pictures of pages",
        cases::limits::run,
    ),
    ("build", "cold release build of the default feature set", cases::build::run),
];

/// How often each case alternates between us and its yardstick; the median counts.
pub(crate) struct Rounds(pub(crate) usize);

/// Rounds of each case, unless `--quick` is given.
const ROUNDS: usize = 3;
/// Rounds of each case with `--quick`.
const QUICK_ROUNDS: usize = 1;
/// What the comparison with peers gets when everything is run: one round, and nobody is waited for long.
const ONE_ROUND: [&str; 4] = ["--rounds", "1", "--limit", "20"];
/// Directory for pages and rows of a run of everything, below the root.
const RESULTS_DIRECTORY: &str = "target/bench";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == "transfers" => return compare(rest),
        Some((first, rest)) if first == "behaviour" => return behave(rest),
        // Their cases and groups are known by their names alone.
        Some((first, _)) if behaviour::CASES.iter().any(|case| case.name == first) => {
            return behave(&arguments);
        }
        Some((first, _)) if transfers::case::GROUPS.iter().any(|(name, _)| name == first) => {
            return compare(&arguments);
        }
        _ => {}
    }
    let (options, names): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    if let Some(unknown) = options.iter().find(|word| !["--json", "--quick"].contains(*word)) {
        eprintln!(
            "{unknown} is neither --json nor --quick; transfers and behaviour have options of their own"
        );
        return ExitCode::from(2);
    }
    if names == ["list"] {
        list();
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = names.iter().find(|name| !CASES.iter().any(|(known, ..)| known == *name)) {
        eprintln!("there is no case {unknown}; cargo xtask bench list names them");
        return ExitCode::from(2);
    }
    let (json, quick) = (options.contains(&"--json"), options.contains(&"--quick"));
    let rounds = Rounds(if quick { QUICK_ROUNDS } else { ROUNDS });
    let wanted =
        |name: &str| if names.is_empty() { !quick || name != "build" } else { names.contains(&name) };
    let mut rows = Vec::new();
    for (name, what, run) in CASES.iter().filter(|(name, ..)| wanted(name)) {
        eprintln!("{name}: {what}");
        rows.extend(run(&rounds));
    }
    if json {
        rows.iter().for_each(|row| println!("{}", row.json()))
    } else {
        print!("{}", measure::table(&rows))
    }
    if names.is_empty() { the_rest(quick, json) } else { ExitCode::SUCCESS }
}

/// What has options of its own, as it is run when nothing is named: pages and rows go to [`KEPT`]. Both are
/// run, whatever becomes of the first.
fn the_rest(quick: bool, json: bool) -> ExitCode {
    let words = |name: &str, words: &[&str]| -> Vec<String> {
        let kept = |ending: &str| format!("{RESULTS_DIRECTORY}/{name}.{ending}");
        let kept = ["--page".to_owned(), kept("md"), "--rows".to_owned(), kept("json")];
        words.iter().copied().chain(json.then_some("--json")).map(str::to_owned).chain(kept).collect()
    };
    if let Err(error) = std::fs::create_dir_all(RESULTS_DIRECTORY) {
        eprintln!("{RESULTS_DIRECTORY}: {error}");
        return ExitCode::FAILURE;
    }
    let behaved = behave(&words("behaviour", if quick { &["--quick"] } else { &[] }));
    let compared = compare(&words("transfers", if quick { &["--quick"] } else { &ONE_ROUND }));
    if behaved == ExitCode::SUCCESS { compared } else { behaved }
}

/// Names of all programs and of the floor's parts.
fn names() -> Vec<&'static str> {
    peers::all().iter().map(|program| program.name()).chain(transfers::floor::NAMES).collect()
}

fn list() {
    CASES.iter().for_each(|(name, what, _)| println!("{name:<14} {what}"));
    println!("behaviour  queues, growth, disks, windows, a shared link ({}):", behaviour::options::USAGE);
    for case in &behaviour::CASES {
        println!("  {:<18} {}", case.name, case.what);
    }
    println!("transfers  one command against its peers, in these cases ({USAGE}):");
    for case in &transfers::case::CASES {
        println!("  {:<18} {}", case.name, case.described());
    }
    for (name, cases) in transfers::case::GROUPS {
        println!("  {name:<18} all of: {}", cases.join(", "));
    }
    println!("  with: {}", names().join(", "));
}

/// `behaviour`: fails if a run failed.
fn behave(words: &[String]) -> ExitCode {
    end(behaviour::options::Options::parse(words).and_then(|options| behaviour::run_and_print(&options)))
}

/// `transfers`: fails if a program failed, or if ours fell behind an earlier table.
fn compare(words: &[String]) -> ExitCode {
    end(Options::parse(words, &names()).and_then(|options| transfers::run_and_print(&options)))
}

fn end(outcome: Result<bool, String>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
