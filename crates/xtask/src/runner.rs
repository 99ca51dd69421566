//! Runs test programs side by side and adds up what they say: a small test runner over what cargo built.
//!
//! `cargo test` runs one program after the other. Most of our longer programs wait (for processes, timers,
//! sockets), so that several of them at once use the cores better. Each program is started as cargo would
//! start it: in the folder of its package, with one process for all of its tests. Its output is shown when it
//! failed.
//!
//! Not here: how they are built (`build`), and which programs of others the tests need (`test`).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tools;

/// How many tests ran, from the programs' own closing lines.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// One executable with tests, as cargo built it, or a part of its tests.
#[derive(Clone)]
pub(crate) struct TestProgram {
    /// `scheduler` for the unit tests of a crate, `scheduler::worlds` for a program of integration tests.
    name: String,
    executable: PathBuf,
    folder: PathBuf,
    /// For the test harness.
    arguments: Vec<String>,
    /// Where its output goes.
    log: PathBuf,
}

/// A single test and how long it took by the program's own clock.
struct TestTime {
    name: String,
    seconds: f64,
}

#[derive(Default)]
struct Outcome {
    counts: Counts,
    times: Vec<TestTime>,
    failures: Vec<String>,
}

/// Programs side by side: more than cores, since the long ones wait most of the time.
const PROGRAMS_AT_ONCE: usize = 3;

/// A program that runs longer than this hangs: the longest takes some six minutes on two cores, and several
/// times that where others use them too.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(60 * 60);

/// How often a running program is asked whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How many of the slowest tests are told at the end.
const SLOWEST_SHOWN: usize = 20;

/// The programs that take longest, in the order in which they are begun; all others follow. The last to end
/// decides how long the whole takes, so the longest must not begin last.
const LONGEST_FIRST: [&str; 7] = [
    SCENARIOS,
    "scheduler::scheduler",
    "service::service",
    "simulator::simulator",
    "engine::engine",
    "catalog",
    "provider::suite",
];

/// Tests that a program may run at once, because they wait for processes, timers or the network. All others
/// run as many as there are cores.
const WAITING: [(&str, usize); 3] = [(SCENARIOS, 4), ("service::service", 4), ("provider::suite", 4)];

/// The program whose tests start whole deployments.
const SCENARIOS: &str = "testbed::scenarios";

/// Tests of [`SCENARIOS`] that take longer than a minute: their names, or what these begin with. The harness
/// begins tests in the order of their names, so that one of these would be the last to end; they begin first,
/// in a process of their own.
const LONG_SCENARIOS: [&str; 7] = [
    "hostile_reporter::",
    "kill::nothing_is_lost",
    "postgresql::the_catalog_conforms",
    "schemathesis::",
    "shift::",
    "third_party::clients::",
    "third_party::jobs::jobs_that_are_cancelled",
];
/// As many of them at once.
const LONG_SCENARIOS_AT_ONCE: usize = 3;

/// Test programs in the order in which they are begun, the longest first; the one of scenarios in two parts.
pub(crate) fn arrange(mut programs: Vec<TestProgram>) -> Vec<TestProgram> {
    programs.sort_by_key(|program| {
        LONGEST_FIRST.iter().position(|name| *name == program.name).unwrap_or(usize::MAX)
    });
    programs.into_iter().flat_map(parts).collect()
}

/// The program with the number of its tests at once; the one of scenarios as two, the long ones first.
fn parts(mut program: TestProgram) -> Vec<TestProgram> {
    let threads = |at_once: usize| format!("--test-threads={at_once}");
    if let Some((_, at_once)) = WAITING.iter().find(|(name, _)| *name == program.name) {
        program.arguments.push(threads(*at_once));
    }
    if program.name != SCENARIOS {
        return vec![program];
    }
    let log = program.executable.with_extension("long.log");
    let mut long = TestProgram { name: format!("{SCENARIOS}, the long ones"), log, ..program.clone() };
    long.arguments = vec![threads(LONG_SCENARIOS_AT_ONCE)];
    long.arguments.extend(LONG_SCENARIOS.map(str::to_owned));
    let skipped = LONG_SCENARIOS.into_iter().flat_map(|name| ["--skip", name]);
    program.arguments.extend(skipped.map(str::to_owned));
    vec![long, program]
}

/// The test program that a message of cargo tells of, if it does.
pub(crate) fn program(message: &Value) -> Option<TestProgram> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?;
    let unit = message["target"]["kind"].as_array()?.iter().any(|kind| kind == "lib");
    let name = if unit { package.to_owned() } else { format!("{package}::{target}") };
    let log = executable.with_extension("log");
    Some(TestProgram { name, executable, folder, arguments: Vec::new(), log })
}

/// Runs all of them, prints a line for each and the slowest tests, and adds up.
///
/// # Errors
/// If a test failed, a program could not be run or hung, or no test ran.
pub(crate) fn run(programs: Vec<TestProgram>, environment: &[(&str, OsString)]) -> Result<Counts, String> {
    let queue = Mutex::new(VecDeque::from(programs));
    let outcome = Mutex::new(Outcome::default());
    std::thread::scope(|scope| {
        for _ in 0..PROGRAMS_AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = next(&queue) {
                    let ran = run_program(&program, environment);
                    add(&mut outcome.lock().unwrap_or_else(PoisonError::into_inner), &program, ran);
                }
            });
        }
    });
    let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("the slowest tests:");
    for test in outcome.times.iter().take(SLOWEST_SHOWN) {
        println!("  {:6.1} s  {}", test.seconds, test.name);
    }
    let Counts { passed, failed } = outcome.counts;
    if !outcome.failures.is_empty() {
        return Err(format!(
            "tests failed: {passed} passed, {failed} failed\n  {}",
            outcome.failures.join("\n  ")
        ));
    }
    if passed == 0 {
        return Err("no test ran".into());
    }
    Ok(outcome.counts)
}

fn next(queue: &Mutex<VecDeque<TestProgram>>) -> Option<TestProgram> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// What a program printed, and how it ended.
struct Ran {
    output: String,
    ended: Result<(), String>,
    took: Duration,
}

fn run_program(program: &TestProgram, environment: &[(&str, OsString)]) -> Ran {
    let begun = Instant::now();
    let mut output = String::new();
    let ended = run_to_end(program, environment, &mut output);
    Ran { output, ended, took: begun.elapsed() }
}

fn run_to_end(
    program: &TestProgram,
    environment: &[(&str, OsString)],
    output: &mut String,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", program.executable.display());
    let file = std::fs::File::create(&program.log).map_err(failed)?;
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    // Each test's time is an unstable option of the test harness, which this variable allows.
    command.env("RUSTC_BOOTSTRAP", "1").args(["-Z", "unstable-options", "--report-time"]);
    command.args(&program.arguments);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
    let mut child = command.spawn().map_err(failed)?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break Ok(status);
        }
        if begun.elapsed() > PROGRAM_TIME_MAX {
            let _ = child.kill();
            let _ = child.wait();
            break Err(format!("ended after {} s: it hangs", PROGRAM_TIME_MAX.as_secs()));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    *output = String::from_utf8_lossy(&std::fs::read(&program.log).map_err(failed)?).into_owned();
    let status = status?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn add(outcome: &mut Outcome, program: &TestProgram, ran: Ran) {
    let counts = read_counts(&ran.output);
    outcome.counts.passed += counts.passed;
    outcome.counts.failed += counts.failed;
    outcome.times.extend(read_times(&program.name, &ran.output));
    let took = ran.took.as_secs_f64();
    match ran.ended {
        Ok(()) => println!("{:7.1} s  {:4} passed  {}", took, counts.passed, program.name),
        Err(why) => {
            println!("{}\n{:7.1} s  FAILED  {}: {why}", ran.output, took, program.name);
            outcome.failures.push(format!("{}: {why}", program.name));
            let failed =
                ran.output.lines().filter(|line| line.starts_with("test ") && line.contains("... FAILED"));
            outcome.failures.extend(failed.map(|line| format!("  {line}")));
        }
    }
}

/// Adds up the closing lines of one program or several: `test result: ok. 21 passed; 3 failed; …`.
pub(crate) fn read_counts(output: &str) -> Counts {
    let mut counts = Counts::default();
    for rest in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        counts.passed += number_before(rest, " passed");
        counts.failed += number_before(rest, " failed");
    }
    counts
}

/// `test NAME ... ok <1.234s>`, as the harness reports times.
fn read_times(program: &str, output: &str) -> Vec<TestTime> {
    let time = |line: &str| {
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let seconds = rest.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
        Some(TestTime { name: format!("{program} {name}"), seconds })
    };
    output.lines().filter_map(time).collect()
}

/// Runs a test command of cargo, showing its output, and adds up what its programs say.
pub(crate) fn run_counted(command: &mut Command) -> Result<Counts, String> {
    use std::io::BufReader;
    println!("$ {}", tools::shown(command));
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot run cargo: {error}"))?;
    let mut counts = Counts::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let here = read_counts(&line);
            counts.passed += here.passed;
            counts.failed += here.failed;
            println!("{line}");
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if !status.success() || counts.failed > 0 {
        return Err(format!("tests failed: {} passed, {} failed, {status}", counts.passed, counts.failed));
    }
    if counts.passed == 0 {
        return Err("no test ran".into());
    }
    Ok(counts)
}

fn number_before(text: &str, word: &str) -> u64 {
    text.find(word)
        .and_then(|end| text[..end].rsplit(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_closing_lines() {
        let counts =
            read_counts("test a ... ok\ntest result: ok. 21 passed; 3 failed; 0 ignored; 0 measured\n");
        assert_eq!((counts.passed, counts.failed), (21, 3));
    }

    #[test]
    fn times_are_read_from_test_lines() {
        let output = "test a::b ... ok <0.250s>\ntest c ... ignored\ntest d ... FAILED <12.500s>\n";
        let times: Vec<_> =
            read_times("x", output).into_iter().map(|test| (test.name, test.seconds)).collect();
        assert_eq!(times, [("x a::b".to_owned(), 0.25), ("x d".to_owned(), 12.5)]);
    }

    fn named(name: &str) -> TestProgram {
        TestProgram {
            name: name.to_owned(),
            executable: PathBuf::from("/t/scenarios-1"),
            folder: PathBuf::new(),
            arguments: Vec::new(),
            log: PathBuf::from("/t/scenarios-1.log"),
        }
    }

    /// A lock that was held while a program ran made all of them wait for each other.
    #[test]
    fn programs_run_side_by_side() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert!(Command::new("mkfifo").args([at("one"), at("other")]).status().unwrap().success());
        // Each waits until the other has begun.
        let meeting = |own: &str, other: &str| {
            let mut program = named(own);
            program.log = at(own).with_extension("log");
            program.folder = directory.path().to_owned();
            program.executable = at(own).with_extension("sh");
            let script = format!(
                "#!/bin/sh\necho here > {other} &\ntimeout 30 cat {own} > /dev/null || exit 1\n\
                 echo 'test result: ok. 1 passed; 0 failed'\n"
            );
            std::fs::write(&program.executable, script).unwrap();
            assert!(Command::new("chmod").arg("+x").arg(&program.executable).status().unwrap().success());
            program
        };
        let counts = run(vec![meeting("one", "other"), meeting("other", "one")], &[]);
        assert_eq!(counts.unwrap().passed, 2);
    }

    #[test]
    fn each_scenario_is_in_one_of_two_parts() {
        let [long, others] = &parts(named(SCENARIOS))[..] else { panic!("two parts") };
        let chosen: Vec<&str> = long.arguments.iter().skip(1).map(String::as_str).collect();
        assert_eq!(chosen, LONG_SCENARIOS);
        let skipped = others.arguments.iter().filter(|argument| !argument.starts_with("--"));
        assert_eq!(skipped.collect::<Vec<_>>(), LONG_SCENARIOS);
        assert_ne!(long.log, others.log);
        assert!(parts(named("wire")).iter().all(|program| program.arguments.is_empty()));
    }

    #[test]
    fn programs_are_named_by_crate_and_file() {
        let message = |kind: &str, name: &str| {
            let text = format!(
                "{{\"reason\":\"compiler-artifact\",\"profile\":{{\"test\":true}},\"executable\":\"/t/x\",\
                 \"manifest_path\":\"/r/crates/wire/Cargo.toml\",\
                 \"target\":{{\"kind\":[\"{kind}\"],\"name\":\"{name}\"}}}}"
            );
            serde_json::from_str::<Value>(&text).unwrap()
        };
        assert_eq!(program(&message("lib", "longhaul_wire")).unwrap().name, "wire");
        assert_eq!(program(&message("test", "frames")).unwrap().name, "wire::frames");
        // Two programs may have one name: that of a binary and of its integration tests.
        assert_eq!(program(&message("test", "frames")).unwrap().log, Path::new("/t/x.log"));
        assert!(program(&serde_json::json!({"reason": "build-finished"})).is_none());
    }
}
