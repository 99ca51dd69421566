//! `cargo xtask previous`: this version beside the last release, which is built from its commit below the
//! target folder. State, wire and API stay compatible with that release, and nothing becomes slower.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::bench_comparison;
use crate::dist;
use crate::test::PROFILE;
use crate::tools::{cargo, root, run_command, target};

/// The last release: its version, and the commit from which it was made.
const RELEASE_VERSION: &str = "0.1.0";
const RELEASE_COMMIT: &str = "0c285b55";

/// Benchmarks that show what users feel: decisions, requests, doors, small files, large files.
const BENCH_CASES: [&str; 5] = ["decisions", "fts", "doors", "small", "large"];

/// Strategies of the simulator whose reports are compared.
const STRATEGIES: [&str; 3] = ["best", "queue", "throughput/fts3"];

const USAGE: &str =
    "usage: cargo xtask previous upgrade | reports [SCENARIO...] | bench [--rounds N] [CASE...]";

/// Runs of each version in a comparison, unless `--rounds` says otherwise.
const ROUNDS: usize = 3;

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["upgrade"] => upgrade(),
        ["reports", scenarios @ ..] => compare_reports(scenarios),
        ["bench", "--rounds", rounds, cases @ ..] => match rounds.parse() {
            Ok(rounds @ 1..) => bench(rounds, cases),
            _ => Err(format!("\"{rounds}\" is no number of rounds: at least 1")),
        },
        ["bench", cases @ ..] => bench(ROUNDS, cases),
        _ => Err(USAGE.to_owned()),
    }
}

/// The sources of the last release, unpacked from the history of this repository.
fn sources() -> Result<PathBuf, String> {
    let sources = target().join("previous").join(RELEASE_VERSION);
    if sources.join("Cargo.toml").exists() {
        return Ok(sources);
    }
    std::fs::create_dir_all(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    let script = "set -e; git rev-parse --quiet --verify \"$1^{commit}\" >&2 || { \
        echo \"the history here does not reach back to $1: git fetch --unshallow\" >&2; exit 1; }; \
        git archive --format=tar \"$1\" | tar -x -C \"$2\"";
    run_command(
        Command::new("sh").args(["-c", script, "sh", RELEASE_COMMIT]).arg(&sources).current_dir(root()),
    )?;
    Ok(sources)
}

/// `longhaul` of the last release, as its users run it.
fn binary() -> Result<PathBuf, String> {
    let sources = sources()?;
    run_command(cargo_in(&sources).args(["build", "--release"]))?;
    Ok(sources.join("target/release/longhaul"))
}

/// Cargo for the last release, with a target folder of its own.
fn cargo_in(sources: &Path) -> Command {
    let mut command = cargo();
    command.current_dir(sources).env_remove("CARGO_TARGET_DIR");
    command
}

/// A deployment of the last release, with work under way, goes on with this version.
fn upgrade() -> Result<(), String> {
    let previous = binary()?;
    run_command(cargo().args(["build", "--profile", PROFILE, "--workspace", "--bins"]))?;
    let test = ["test", "--profile", PROFILE, "--package", "longhaul-testbed", "--test", "scenarios"];
    let only = ["--", "--ignored", "--nocapture", "--test-threads", "1", "upgrade::"];
    run_command(cargo().args(test).args(only).env("LONGHAUL_PREVIOUS_BINARY", previous))
}

/// The benchmarks of both versions, case by case, each as its users have it: the last release optimised every
/// build as this one does what packages hold (profile `dist`, decision 0030).
fn bench(rounds: usize, cases: &[&str]) -> Result<(), String> {
    let cases = if cases.is_empty() { &BENCH_CASES } else { cases };
    let sources = sources()?;
    let of_last_release = || {
        let mut command = cargo_in(&sources);
        command.args(["xtask", "bench"]);
        command
    };
    let of_this_version = || {
        let mut command = cargo();
        command.args(["xtask", "bench", "--profile", dist::PROFILE]);
        command
    };
    cases
        .iter()
        .try_for_each(|case| bench_comparison::compare(case, rounds, of_last_release, of_this_version))
}

/// The simulator's reports over the shipped scenarios: same decisions, same numbers, only other words.
fn compare_reports(scenarios: &[&str]) -> Result<(), String> {
    let previous = binary()?;
    run_command(cargo().args(["build", "--release", "--package", "longhaul"]))?;
    let this = target().join("release/longhaul");
    let folder = target().join("previous/reports");
    let (mut compared, mut renamed) = (0, Renamed::new());
    for scenario in shipped_scenarios(scenarios)? {
        for strategy in STRATEGIES {
            let arguments = ["simulate", &scenario, "--strategy", strategy, "--seed", "3", "--json"];
            let (before, after) = std::thread::scope(|scope| {
                let before = scope.spawn(|| report(&previous, &arguments, &folder.join("before")));
                let after = report(&this, &arguments, &folder.join("after"));
                (before.join().unwrap_or_else(|_| Err("a thread panicked".into())), after)
            });
            compare_texts(&before?, &after?, &mut renamed)
                .map_err(|line| format!("{scenario} with {strategy}: the reports differ: {line}"))?;
            println!("{scenario} with {strategy}: the same");
            compared += 1;
        }
    }
    println!("{compared} reports are those of release {RELEASE_VERSION}, byte for byte but for these words:");
    renamed.iter().for_each(|(before, after)| println!("  {before} → {after}"));
    Ok(())
}

fn shipped_scenarios(named: &[&str]) -> Result<Vec<String>, String> {
    if !named.is_empty() {
        return Ok(named.iter().map(|name| format!("scenarios/{name}.toml")).collect());
    }
    let folder = root().join("scenarios");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut found: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".toml"))
        .map(|name| format!("scenarios/{name}"))
        .collect();
    found.sort();
    Ok(found)
}

/// What a run of the simulator writes: its summary, then every file of its report.
fn report(binary: &Path, arguments: &[&str], folder: &Path) -> Result<String, String> {
    let _ = std::fs::remove_dir_all(folder);
    let mut command = Command::new(binary);
    command.args(arguments).arg("--out").arg(folder).current_dir(root()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("{}: {error}", binary.display()))?;
    if !output.status.success() {
        return Err(format!("{} {}: {}", binary.display(), arguments.join(" "), output.status));
    }
    let mut text = String::from_utf8_lossy(&output.stdout).replace(',', ",\n");
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    for file in files {
        let content = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        text.push_str(&format!("\n== {name}\n{}", String::from_utf8_lossy(&content).replace(',', ",\n")));
    }
    Ok(text)
}

/// Lines that say how long the simulation itself took, which no two runs share.
const WALL_TIME_FIELDS: [&str; 2] = ["wall_s", "decisions_per_s"];

/// Two reports are the same if each line is, but for words: its numbers are equal, in their order. Words that
/// were renamed are collected.
fn compare_texts(before: &str, after: &str, renamed: &mut Renamed) -> Result<(), String> {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    if before.len() != after.len() {
        return Err(format!("{} lines, {} before", after.len(), before.len()));
    }
    for (old, new) in before.into_iter().zip(after) {
        if old == new || WALL_TIME_FIELDS.iter().any(|field| old.contains(field)) {
            continue;
        }
        if numbers(old) != numbers(new) {
            return Err(format!("\"{new}\", before \"{old}\""));
        }
        renamed.insert(without_numbers(old), without_numbers(new));
    }
    Ok(())
}

/// Lines without their numbers, before and after.
type Renamed = BTreeMap<String, String>;

fn numbers(line: &str) -> Vec<&str> {
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    line.split(|c| !is_of_number(c)).filter(|part| part.contains(|c: char| c.is_ascii_digit())).collect()
}

fn without_numbers(line: &str) -> String {
    let mut shown = String::new();
    for c in line.trim().chars() {
        match c {
            '0'..='9' | '.' if shown.ends_with('#') => {}
            '0'..='9' => shown.push('#'),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_may_differ_in_words_and_not_in_numbers() {
        let mut renamed = Renamed::new();
        let before = "way best: 12.5 s\n\"wall_s\": 1.5\nsame 3";
        let after = "policy best: 12.5 s\n\"wall_s\": 9.1\nsame 3";
        assert_eq!(compare_texts(before, after, &mut renamed), Ok(()));
        let expected = [("way best: # s".to_owned(), "policy best: # s".to_owned())];
        assert_eq!(renamed, Renamed::from(expected));
        let slower = after.replace("12.5", "12.6");
        assert!(compare_texts(before, &slower, &mut renamed).is_err());
        assert!(compare_texts(before, "policy best: 12.5 s", &mut renamed).is_err(), "lines are missing");
    }
}
