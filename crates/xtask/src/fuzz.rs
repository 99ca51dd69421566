//! `cargo xtask soak fuzz`: builds every fuzz target with libFuzzer and coverage, runs it, and keeps what it
//! learned.
//!
//! Works with the stable toolchain: the instrumentation is LLVM's, libFuzzer itself is compiled by its crate
//! with the system's C++ compiler. Everything lies below `target/fuzz`; findings, and with `keep` the
//! minimised corpus, go to `fuzz/corpus`, which the test command replays.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::tools::{cargo, root, run_command, target};

/// Counters at every edge, and comparisons that tell libFuzzer which bytes matter.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Seconds that a target runs, unless it reaches its executions before.
const SECONDS_DEFAULT: u64 = 600;
/// Executions of a target, unless its time is over before.
const EXECUTIONS_DEFAULT: u64 = 10_000_000;
/// Files of a target in the committed corpus; `crates/testbed/tests/scenarios/corpus.rs` checks it.
const CORPUS_FILES_MAX: usize = 200;
/// Bytes of a file in the committed corpus; checked there too.
const CORPUS_FILE_BYTES_MAX: usize = 4_096;
/// Learned inputs in the committed corpus: more make the test slower, and no better.
const LEARNED_FILES_MAX: usize = 120;
/// Prefix of a finding's file name.
const FINDING_PREFIX: &str = "found-";
/// Findings, and what was written by hand to show the way, stay in the corpus for good.
const PERMANENT_PREFIXES: [&str; 2] = [FINDING_PREFIX, "seed-"];

const USAGE: &str = "usage: cargo xtask soak fuzz [SECONDSs | EXECUTIONSx] [keep] [TARGET…]
  by default 600 s or 10,000,000 executions of each target, whichever comes first";

/// How much of which targets.
#[derive(Debug, PartialEq)]
struct Plan {
    seconds: u64,
    executions: u64,
    keep: bool,
    names: Vec<String>,
}

/// What came of one target.
struct Outcome {
    name: String,
    executions: u64,
    seconds: u64,
    corpus: usize,
    findings: Vec<PathBuf>,
    trouble: Option<String>,
}

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let plan = Plan::parse(words, &all()?)?;
    build()?;
    let waiting = Mutex::new(plan.names.iter().cloned().collect::<VecDeque<_>>());
    let results = Mutex::new(Vec::new());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(name) = next() {
                    let result = one(&name, &plan);
                    result.print();
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    summary(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

impl Plan {
    fn parse(words: &[&str], known: &[String]) -> Result<Plan, String> {
        let mut plan =
            Plan { seconds: SECONDS_DEFAULT, executions: EXECUTIONS_DEFAULT, keep: false, names: Vec::new() };
        for word in words {
            if *word == "keep" {
                plan.keep = true;
            } else if let Some(seconds) = number(word, 's') {
                (plan.seconds, plan.executions) = (seconds, u64::MAX);
            } else if let Some(executions) = number(word, 'x') {
                (plan.seconds, plan.executions) = (0, executions);
            } else if known.iter().any(|name| name == word) {
                plan.names.push((*word).to_owned());
            } else {
                return Err(format!("{USAGE}\n  targets: {}", known.join(" ")));
            }
        }
        if plan.names.is_empty() {
            plan.names = known.to_vec();
        }
        Ok(plan)
    }

    /// libFuzzer's own words for it; zero is no limit there.
    fn limits(&self) -> [String; 2] {
        let runs = i64::try_from(self.executions).map_or(-1, |runs| runs);
        [format!("-max_total_time={}", self.seconds), format!("-runs={runs}")]
    }
}

/// `90s`, `1000000x`; a number alone is seconds.
fn number(word: &str, unit: char) -> Option<u64> {
    let digits = if unit == 's' { word.strip_suffix(unit).unwrap_or(word) } else { word.strip_suffix(unit)? };
    digits.parse().ok().filter(|&value| value > 0)
}

/// Every target has a wrapper in its own file.
fn all() -> Result<Vec<String>, String> {
    let folder = root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            entry.ok()?.file_name().into_string().ok()?.strip_suffix(".rs").map(str::to_owned)
        })
        .collect();
    names.sort();
    Ok(names)
}

fn home() -> PathBuf {
    target().join("fuzz")
}

fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

fn build() -> Result<(), String> {
    // A target named on the command line keeps the flags away from build scripts and macros.
    run_command(
        cargo()
            .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &triple()])
            .arg("--target-dir")
            .arg(home())
            .env("RUSTFLAGS", COVERAGE),
    )
}

fn program(name: &str) -> PathBuf {
    home().join(triple()).join("release").join(name)
}

fn corpus(name: &str) -> PathBuf {
    root().join("fuzz/corpus").join(name)
}

fn one(name: &str, plan: &Plan) -> Outcome {
    let begun = Instant::now();
    let mut result = Outcome {
        name: name.to_owned(),
        executions: 0,
        seconds: 0,
        corpus: 0,
        findings: Vec::new(),
        trouble: None,
    };
    let searched = search(name, plan, &mut result);
    result.seconds = begun.elapsed().as_secs();
    let ended = searched.and_then(|()| shrink_corpus(name)).and_then(|files| {
        result.corpus = files;
        if plan.keep { update_corpus(name) } else { Ok(()) }
    });
    result.trouble = ended.err();
    result
}

/// Runs the target; what it finds is made small and put into the corpus.
fn search(name: &str, plan: &Plan, result: &mut Outcome) -> Result<(), String> {
    let (grown, found) = (home().join("corpus").join(name), home().join("findings").join(name));
    for folder in [&grown, &found, &corpus(name)] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let log = home().join(format!("{name}.log"));
    let told = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let status = Command::new(program(name))
        .args([&grown, &corpus(name)])
        .args(plan.limits())
        .args([format!("-max_len={CORPUS_FILE_BYTES_MAX}"), format!("-artifact_prefix={}/", found.display())])
        .args(["-print_final_stats=1", "-timeout=10", "-rss_limit_mb=1024", "-verbosity=1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(told)
        .status()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    let text = fs::read(&log).unwrap_or_default();
    result.executions = statistic(&String::from_utf8_lossy(&text), "number_of_executed_units");
    for file in files_in(&found) {
        result.findings.push(small(name, &file)?);
    }
    if !status.success() && result.findings.is_empty() {
        return Err(format!("{status}; see {}", log.display()));
    }
    Ok(())
}

/// A finding in few bytes, as a file of the corpus.
fn small(name: &str, file: &Path) -> Result<PathBuf, String> {
    let minimal = home().join(format!("{name}.minimal"));
    let _ = fs::remove_file(&minimal);
    let mut command = Command::new(program(name));
    command.args(["-minimize_crash=1", "-max_total_time=20", "-timeout=10"]);
    command.arg(format!("-exact_artifact_path={}", minimal.display())).arg(file);
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let from = if minimal.exists() { &minimal } else { file };
    let short = file.file_name().map(|name| name.to_string_lossy().chars().rev().take(8).collect::<String>());
    let kept = corpus(name).join(format!("{FINDING_PREFIX}{}", short.unwrap_or_default()));
    fs::copy(from, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    let _ = fs::remove_file(file);
    Ok(kept)
}

/// Rewrites what was learned as the fewest inputs with the same coverage; says how many.
fn shrink_corpus(name: &str) -> Result<usize, String> {
    let (grown, shrunk) = (home().join("corpus").join(name), home().join("shrunk").join(name));
    let _ = fs::remove_dir_all(&shrunk);
    fs::create_dir_all(&shrunk).map_err(|error| format!("{}: {error}", shrunk.display()))?;
    let status = Command::new(program(name))
        .arg("-set_cover_merge=1")
        .args([
            format!("-max_len={CORPUS_FILE_BYTES_MAX}"),
            format!("-artifact_prefix={}/merge-", home().display()),
        ])
        .args([&shrunk, &corpus(name), &grown])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    if !status.success() {
        return Err(format!("merging the corpus of {name}: {status}"));
    }
    fs::remove_dir_all(&grown)
        .and_then(|()| fs::rename(&shrunk, &grown))
        .map_err(|error| format!("{}: {error}", grown.display()))?;
    Ok(files_in(&grown).len())
}

/// The committed corpus becomes what was learned, short inputs and long ones, and what stays for good.
fn update_corpus(name: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the corpus of {name}: {error}");
    let stays = |file: &PathBuf| {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        PERMANENT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let (kept, old): (Vec<PathBuf>, Vec<PathBuf>) = files_in(&corpus(name)).into_iter().partition(stays);
    old.iter().try_for_each(fs::remove_file).map_err(failed)?;
    let mut learned = files_in(&home().join("corpus").join(name));
    learned.sort_by_key(|file| fs::metadata(file).map_or(u64::MAX, |data| data.len()));
    for file in spread(&learned, LEARNED_FILES_MAX.min(CORPUS_FILES_MAX.saturating_sub(kept.len()))) {
        if let Some(known) = file.file_name() {
            fs::copy(file, corpus(name).join(known)).map_err(failed)?;
        }
    }
    Ok(())
}

/// So many of a list, evenly over all of it.
fn spread<T>(list: &[T], most: usize) -> impl Iterator<Item = &T> {
    let count = list.len().min(most);
    (0..count).map(move |place| &list[place * list.len() / count])
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

/// A line `stat::NAME: N` of libFuzzer's.
fn statistic(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| {
            line.strip_prefix("stat::")?.strip_prefix(name)?.trim_start_matches(':').trim().parse().ok()
        })
        .next_back()
        .unwrap_or(0)
}

impl Outcome {
    fn print(&self) {
        let rate = self.executions / self.seconds.max(1);
        println!(
            "{:<18} {:>11} executions {:>5} s {:>8}/s   corpus {:>4}   findings {}{}",
            self.name,
            self.executions,
            self.seconds,
            rate,
            self.corpus,
            self.findings.len(),
            self.trouble.as_ref().map(|why| format!("   FAILED: {why}")).unwrap_or_default()
        );
    }
}

fn summary(results: Vec<Outcome>) -> Result<(), String> {
    let executions: u64 = results.iter().map(|result| result.executions).sum();
    println!("{} targets, {executions} executions", results.len());
    let mut bad = Vec::new();
    for result in results {
        bad.extend(result.findings.iter().map(|file| {
            let bytes = fs::read(file).unwrap_or_default();
            let hex = longhaul_model::hex::encode(&bytes);
            format!("{}: {} ({hex})", result.name, file.display())
        }));
        bad.extend(result.trouble.map(|why| format!("{}: {why}", result.name)));
    }
    if bad.is_empty() { Ok(()) } else { Err(bad.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read() {
        let known = ["a".to_owned(), "b".to_owned()];
        let plan = |words: &[&str]| Plan::parse(words, &known);
        assert_eq!(plan(&[]).unwrap().limits(), ["-max_total_time=600", "-runs=10000000"]);
        assert_eq!(plan(&["90"]).unwrap().limits(), ["-max_total_time=90", "-runs=-1"]);
        assert_eq!(plan(&["90s"]).unwrap().limits(), ["-max_total_time=90", "-runs=-1"]);
        assert_eq!(plan(&["5000x"]).unwrap().limits(), ["-max_total_time=0", "-runs=5000"]);
        assert_eq!(plan(&["keep", "b"]).unwrap().names, ["b"]);
        assert!(plan(&["c"]).is_err() && plan(&["0s"]).is_err());
    }

    #[test]
    fn a_few_stand_for_many() {
        let list: Vec<u32> = (0..10).collect();
        assert_eq!(spread(&list, 3).collect::<Vec<_>>(), [&0, &3, &6]);
        assert_eq!(spread(&list, 20).count(), 10);
        assert_eq!(spread(&list[..0], 3).count(), 0);
    }

    #[test]
    fn statistics_are_read() {
        let text = "x\nstat::number_of_executed_units: 1234\nstat::average_exec_per_sec:     2\n";
        assert_eq!(statistic(text, "number_of_executed_units"), 1234);
        assert_eq!(statistic("", "number_of_executed_units"), 0);
    }
}
