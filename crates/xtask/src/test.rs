//! `cargo xtask test`: everything that a change must pass, in the order in which it fails fastest.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::build::{self, CLIPPY};
use crate::runner::{self, Counts};
use crate::tools::{self, cargo, in_ci, run_command, target};
use crate::{python, tidy};

/// The steps of the test command, with the seconds that each took.
#[derive(Default)]
struct Steps(Vec<(&'static str, u64)>);

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        println!("\n== {name}");
        let begun = Instant::now();
        let ended = step();
        let seconds = begun.elapsed().as_secs();
        self.0.push((name, seconds));
        println!("== {name}: {} ({seconds} s)", if ended.is_ok() { "ok" } else { "failed" });
        ended
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.0.iter().map(|(_, seconds)| seconds).sum();
        let steps: Vec<String> = self.0.iter().map(|(name, seconds)| format!("{name} {seconds} s")).collect();
        write!(f, "{all} s: {}", steps.join("; "))
    }
}

/// What some tests watch others with, or need as the other end: for what, its name, its Debian package, how
/// to see that it works (nothing: that it is there says enough).
pub(crate) const PROGRAMS: [(&str, &str, &str, &str); 15] = [
    ("the order of flushes", "strace", "strace", "-V"),
    ("the emulated WAN", "ip", "iproute2", "-V"),
    ("round trips of the emulated WAN", "ping", "iputils-ping", "-V"),
    ("TLS with another implementation", "openssl", "openssl", "version"),
    ("copies among storages of others", "xrootd", "xrootd-server", "-v"),
    ("copies with a plain WebDAV server", "nginx", "nginx", "-v"),
    ("copies with Apache", "apache2", "apache2-bin", "-v"),
    ("doors with curl", "curl", "curl", "--version"),
    ("doors with litmus", "litmus", "litmus", ""),
    ("doors with rclone", "rclone", "rclone", "version"),
    ("doors with davix", "davix-get", "davix", ""),
    ("doors with gfal", "gfal-ls", "gfal2-util-scripts", "--version"),
    ("proxies with attributes by the tools of VOMS", "voms-proxy-fake", "voms-clients", "--version"),
    ("messages by STOMP", "activemq", "activemq", ""),
    ("messages by NATS", "nats-server", "nats-server", "--version"),
];

/// What is in no search path.
const FILES: [(&str, (&str, &str)); 4] = [
    ("the catalog in PostgreSQL", tools::POSTGRESQL),
    ("copies between storages with tokens", tools::XROOTD_TOKENS),
    ("doors with gfal", ("/usr/lib/*/gfal2-plugins/libgfal_plugin_http.so", "gfal2-plugin-http")),
    ("doors with gfal", ("/usr/lib/*/gfal2-plugins/libgfal_plugin_file.so", "gfal2-plugin-file")),
];

/// The profile in which all is built: the product, its tests and the demo (decision 0024).
pub(crate) const PROFILE: &str = "ci";

pub(crate) fn run() -> Result<(), String> {
    let mut steps = Steps::default();
    let ended = run_steps(&mut steps);
    println!("\n{steps}");
    let counts = ended?;
    println!("{} passed, {} failed", counts.passed, counts.failed);
    Ok(())
}

/// Returns how many tests ran, the demo among them.
fn run_steps(steps: &mut Steps) -> Result<Counts, String> {
    let mut missing = Vec::new();
    steps.run("format", || {
        if !there("rustfmt", cargo().args(["fmt", "--version"]), &mut missing)? {
            return Ok(());
        }
        run_command(cargo().args(["fmt", "--all", "--check"]))
    })?;
    steps.run("tidy", || tidy::run(false))?;
    let mut programs = Vec::new();
    let mut peers = Peers::default();
    let lints = there("clippy", Command::new(CLIPPY).arg("--version"), &mut missing)?;
    steps.run("build with lints, and programs of others", || {
        // The one computes, the other downloads.
        let (built, found) = std::thread::scope(|scope| {
            let found = scope.spawn(|| find_peers(&mut missing));
            let built = build::build(PROFILE, lints);
            (built, found.join().unwrap_or_else(|_| Err("the search for programs of others panicked".into())))
        });
        (programs, peers) = (built?, found?);
        Ok(())
    })?;
    let mut counts = Counts::default();
    steps.run("tests", || {
        counts = runner::run(programs, &peers.environment)?;
        Ok(())
    })?;
    steps.run("demo", demo)?;
    for what in &missing {
        println!("NOT RUN: {what}");
    }
    if let Some(what) = peers.s3_server {
        println!("S3 server of the tests: {what}");
    }
    Ok(Counts { passed: counts.passed + 1, ..counts })
}

/// Programs of others that tests need, installed.
#[derive(Default)]
struct Peers {
    /// Variables by which the tests find them.
    environment: Vec<(&'static str, OsString)>,
    /// The server that speaks S3.
    s3_server: Option<String>,
}

fn find_peers(missing: &mut Vec<String>) -> Result<Peers, String> {
    let mut peers = Peers::default();
    let mut name = |variable, path: PathBuf| peers.environment.push((variable, path.into_os_string()));
    if let Some(path) = optional("the pages in a browser", tools::chromium(), missing)? {
        name("LONGHAUL_CHROMIUM", path);
    }
    if let Some(python) = optional("the FTS3 client", python::fts3_client(), missing)? {
        name("LONGHAUL_FTS3_PYTHON", python);
    }
    if let Some((variable, path, what)) =
        optional("copies with a storage that speaks S3", s3_server(), missing)?
    {
        name(variable, path);
        peers.s3_server = Some(what);
    }
    if let Some(python) = optional("the API by its document", python::schemathesis(), missing)? {
        name("LONGHAUL_SCHEMATHESIS_PYTHON", python);
    }
    let mut folders = Vec::new();
    for (what, program, package, probe) in PROGRAMS {
        folders.extend(optional(what, tools::program(program, package, probe), missing)?.flatten());
    }
    for (what, (file, package)) in FILES {
        optional(what, tools::file(file, package), missing)?;
    }
    peers.environment.push(("PATH", in_path(&folders)?));
    Ok(peers)
}

/// The server that speaks S3, as the tests find it: a variable and its value; and which it is. Where there is
/// no Go to build the real one, a mock stands in.
fn s3_server() -> Result<(&'static str, PathBuf, String), String> {
    let (module, version) = tools::VERSITYGW;
    if let Some(program) = tools::go_program(tools::VERSITYGW)? {
        return Ok(("LONGHAUL_VERSITYGW", program, format!("{module} {version}")));
    }
    let what = format!("moto, a mock: there is no Go here to build {module} {version}");
    Ok(("LONGHAUL_S3_PYTHON", python::s3_mock()?, what))
}

/// `PATH` with these folders before all others.
pub(crate) fn in_path(folders: &[PathBuf]) -> Result<OsString, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = folders.iter().cloned().chain(std::env::split_paths(&path));
    std::env::join_paths(path).map_err(|error| error.to_string())
}

/// Whether a component of the tool chain is installed, by a probe that it answers: says so where it is not,
/// and fails where nothing may be left out.
fn there(component: &str, probe: &mut Command, missing: &mut Vec<String>) -> Result<bool, String> {
    if probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Ok(true);
    }
    let what = format!("{component} is not installed (rustup component add {component})");
    if in_ci() {
        return Err(what);
    }
    println!("NOT RUN: {what}");
    missing.push(what);
    Ok(false)
}

/// A part that some tests need: where it cannot be had that is said, and fails where nothing may be left out.
fn optional<T>(what: &str, found: Result<T, String>, missing: &mut Vec<String>) -> Result<Option<T>, String> {
    match found {
        Ok(part) => Ok(Some(part)),
        Err(why) if in_ci() => Err(why),
        Err(why) => {
            let what = format!("{what}: {why}");
            println!("NOT RUN: {what}");
            missing.push(what);
            Ok(None)
        }
    }
}

/// The main job as a newcomer runs it.
fn demo() -> Result<(), String> {
    run_command(Command::new(target().join(PROFILE).join("longhaul")).args(["demo", "--exit"]))
}
