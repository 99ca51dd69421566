//! Builds and runs the tests of mutants in a copy of the working tree, with a target folder of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::definitions::{Mutant, Program, TestCase, UNIT_TESTS};
use super::sources::SourceCopy;
use crate::runner::read_counts;
use crate::test::PROFILE;
use crate::tools::{self, cargo};

/// A test that runs longer hangs: the longest of a mutant that fails late takes some minutes.
const TEST_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// How often a running test is asked whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How many lines of a log are shown where a mutant did not make its test fail.
const LOG_LINES_SHOWN: usize = 30;

/// The tests that start programs, which cargo does not build for a test of another package.
const SCENARIOS: Program<'static> = Program { package: "longhaul-testbed", target: "scenarios" };
/// The packages of these programs. They are chosen whenever the scenarios are, so that all have the same
/// features and no crate is built twice.
const STARTED_PACKAGES: [&str; 2] = ["longhaul", "longhaul-provider"];

/// How the test of a mutant ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The test failed: it sees the fault.
    Failed,
    /// The test passed: the mutant survived.
    Passed,
    DoesNotCompile,
    /// No test has that name, or it is ignored.
    Missing,
    /// The test program ended before it told of the test.
    Aborted,
    Hung,
    FailsUnmutated,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Failed => "failed, as it should",
            Outcome::Passed => "SURVIVED",
            Outcome::DoesNotCompile => "does not compile",
            Outcome::Missing => "no such test",
            Outcome::Aborted => "the test program was aborted",
            Outcome::Hung => "hung",
            Outcome::FailsUnmutated => "fails unmutated",
        })
    }
}

/// Where mutants are built and run.
pub(crate) struct MutantRunner {
    copy: SourceCopy,
    /// What cargo builds.
    target: PathBuf,
    logs: PathBuf,
}

impl MutantRunner {
    /// Copies these files of `root`, and begins with no logs. All lies below `folder`.
    pub(crate) fn prepare(root: &Path, files: &[String], folder: &Path) -> Result<MutantRunner, String> {
        let logs = folder.join("logs");
        let _ = fs::remove_dir_all(&logs);
        fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
        let copy = SourceCopy::update(root, files, folder.join("sources"))?;
        Ok(MutantRunner { copy, target: folder.join("target"), logs })
    }

    /// Builds every test program of the mutants once, runs their tests, and returns those that do not pass.
    ///
    /// # Errors
    /// If one does not compile: then nothing can be learned.
    pub(crate) fn run_unmutated<'m>(
        &self,
        mutants: &'m [Mutant],
    ) -> Result<BTreeMap<TestCase<'m>, Outcome>, String> {
        let mut programs: BTreeMap<Program<'m>, BTreeSet<TestCase<'m>>> = BTreeMap::new();
        for test in mutants.iter().map(Mutant::test_case) {
            programs.entry(test.program).or_default().insert(test);
        }
        let mut unfit = BTreeMap::new();
        for (program, tests) in programs {
            let label = format!("unmutated-{}-{}", program.package, program.target);
            let log = self.logs.join(format!("{label}.build.log"));
            if !self.build(program, &log)? {
                return Err(format!("{program} does not compile unmutated\n{}", last_lines(&log)));
            }
            for (position, test) in tests.into_iter().enumerate() {
                let log = self.logs.join(format!("{label}.{}.test.log", position + 1));
                let begun = Instant::now();
                let outcome = match self.run_test(test, &log)? {
                    Outcome::Passed => {
                        println!("{:6} s  {test}", begun.elapsed().as_secs());
                        continue;
                    }
                    Outcome::Missing => Outcome::Missing,
                    _ => Outcome::FailsUnmutated,
                };
                println!("{:6} s  {test}: {outcome}\n{}", begun.elapsed().as_secs(), last_lines(&log));
                unfit.insert(test, outcome);
            }
        }
        Ok(unfit)
    }

    /// Builds the mutant and runs its test. Returns how it ended, and the log that says why.
    pub(crate) fn run_mutant(&self, mutant: &Mutant, label: &str) -> Result<(Outcome, PathBuf), String> {
        let test = mutant.test_case();
        let (build_log, test_log) =
            (self.logs.join(format!("{label}.build.log")), self.logs.join(format!("{label}.test.log")));
        self.copy.with_mutant(mutant, || {
            if !self.build(test.program, &build_log)? {
                return Ok((Outcome::DoesNotCompile, build_log));
            }
            let outcome = self.run_test(test, &test_log)?;
            Ok((outcome, test_log))
        })
    }

    /// Builds the program with what its tests start; says whether it compiles.
    fn build(&self, program: Program<'_>, log: &Path) -> Result<bool, String> {
        let mut command = if program == SCENARIOS {
            let mut command = self.cargo("build", program)?;
            command.arg("--bins");
            command
        } else {
            let mut command = self.cargo("test", program)?;
            command.arg("--no-run");
            command
        };
        let status = run_logged(&mut command, log, None)?;
        Ok(status.is_some_and(|status| status.success()))
    }

    /// Runs one test of a program that is built.
    fn run_test(&self, test: TestCase<'_>, log: &Path) -> Result<Outcome, String> {
        let mut command = self.cargo("test", test.program)?;
        // With one thread the harness leaves a test's line open for whatever the test prints.
        command.args(["--", "--test-threads=2", "--exact", test.name]);
        let Some(status) = run_logged(&mut command, log, Some(TEST_TIME_MAX))? else {
            return Ok(Outcome::Hung);
        };
        let output = fs::read(log).map_err(|error| format!("{}: {error}", log.display()))?;
        Ok(read_outcome(test.name, status.success(), &String::from_utf8_lossy(&output)))
    }

    /// A command of cargo in the copy, for this program alone.
    fn cargo(&self, subcommand: &str, program: Program<'_>) -> Result<Command, String> {
        let mut command = cargo();
        command.current_dir(self.copy.folder()).env("CARGO_TARGET_DIR", &self.target);
        // A mutant differs in a line or two from what was built before.
        command.env("CARGO_INCREMENTAL", "1");
        command.args([subcommand, "--profile", PROFILE, "--package", program.package]);
        if program == SCENARIOS {
            command.args(STARTED_PACKAGES.map(|package| format!("--package={package}")));
        }
        let is_library = program.source(self.copy.folder())?.ends_with("src/lib.rs");
        match program.target {
            UNIT_TESTS if is_library => command.arg("--lib"),
            UNIT_TESTS => command.arg("--bins"),
            target => command.args(["--test", target]),
        };
        Ok(command)
    }
}

/// Runs a command to its end, with all that it prints in the log. None if it took longer than the limit: then
/// its process group was killed.
pub(crate) fn run_logged(
    command: &mut Command,
    log: &Path,
    time_max: Option<Duration>,
) -> Result<Option<ExitStatus>, String> {
    let shown = tools::shown(command);
    let failed =
        |error: io::Error| format!("cannot run {shown}, with its output in {}: {error}", log.display());
    let file = fs::File::create(log).map_err(failed)?;
    command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
    let Some(time_max) = time_max else {
        return command.status().map(Some).map_err(failed);
    };
    let mut child = command.process_group(0).spawn().map_err(failed)?;
    wait(&mut child, time_max).map_err(failed)
}

fn wait(child: &mut Child, time_max: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > time_max {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// How a test ended, by the exit code and the output of a test program that was to run it alone.
pub(crate) fn read_outcome(test: &str, is_success: bool, output: &str) -> Outcome {
    let begins = format!("test {test} ");
    // The list of failures at the end names it too: a line may be torn by what a child process prints.
    let listed = format!("    {test}");
    let has_failed = |line: &str| line == listed || line.starts_with(&begins) && line.ends_with("FAILED");
    match is_success {
        true if read_counts(output).passed > 0 => Outcome::Passed,
        true => Outcome::Missing,
        false if output.lines().any(has_failed) => Outcome::Failed,
        false => Outcome::Aborted,
    }
}

/// The file and line of the last panic in a log.
pub(crate) fn last_panic(log: &Path) -> Option<String> {
    let text = fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    let place = text.lines().rev().find_map(|line| line.split_once(" panicked at "))?.1;
    let (file_and_line, _column) = place.trim_end_matches(':').rsplit_once(':')?;
    Some(file_and_line.to_owned())
}

/// The end of a log, after its path.
pub(crate) fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
    format!("    {}:\n    {}", log.display(), shown.join("\n    "))
}
