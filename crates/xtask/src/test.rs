//! `cargo xtask test`: everything that a change must pass, in the order in which it fails fastest.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::tools::{self, cargo, in_ci, run_command};
use crate::{python, tidy};

pub(crate) fn run_step(name: &str, step: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    println!("\n== {name}");
    let begun = Instant::now();
    step()?;
    println!("== {name}: ok ({} s)", begun.elapsed().as_secs());
    Ok(())
}

/// How many tests ran, from the runner's own closing lines.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
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

pub(crate) fn run() -> Result<(), String> {
    let mut missing = Vec::new();
    run_step("format", || {
        needed("rustfmt", &["fmt", "--version"], &mut missing, &["fmt", "--all", "--check"])
    })?;
    run_step("tidy", || tidy::run(false))?;
    run_step("lint", || {
        needed(
            "clippy",
            &["clippy", "--version"],
            &mut missing,
            &["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"],
        )
    })?;
    run_step("build", || run_command(cargo().args(["build", "--release", "--workspace"])))?;
    let chromium = optional("the pages in a browser", tools::chromium(), &mut missing)?;
    let fts3 = optional("the FTS3 client", python::fts3_client(), &mut missing)?;
    let s3 = optional("copies with a storage that speaks S3", s3_server(), &mut missing)?;
    let schemathesis = optional("the API by its document", python::schemathesis(), &mut missing)?;
    let mut folders = Vec::new();
    for (what, name, package, probe) in PROGRAMS {
        folders.extend(optional(what, tools::program(name, package, probe), &mut missing)?.flatten());
    }
    for (what, (file, package)) in FILES {
        optional(what, tools::file(file, package), &mut missing)?;
    }
    let mut counts = Counts::default();
    run_step("tests", || {
        // The tests find the browser by this name; set here once, before any thread exists.
        let mut command = cargo();
        command.args(["test", "--release", "--workspace", "--no-fail-fast"]);
        if let Some(path) = &chromium {
            command.env("LONGHAUL_CHROMIUM", path);
        }
        if let Some(python) = &fts3 {
            command.env("LONGHAUL_FTS3_PYTHON", python);
        }
        if let Some(python) = &schemathesis {
            command.env("LONGHAUL_SCHEMATHESIS_PYTHON", python);
        }
        if let Some((variable, path, _)) = &s3 {
            command.env(variable, path);
        }
        command.env("PATH", in_path(&folders)?);
        counts = run_counted(&mut command)?;
        Ok(())
    })?;
    run_step("demo", demo)?;
    for what in &missing {
        println!("NOT RUN: {what}");
    }
    if let Some((_, _, what)) = &s3 {
        println!("S3 server of the tests: {what}");
    }
    println!("\n{} passed, {} failed", counts.passed + 1, counts.failed);
    Ok(())
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

/// Runs a cargo subcommand that may not be installed: says so, and fails where nothing may be left out.
fn needed(tool: &str, probe: &[&str], missing: &mut Vec<String>, arguments: &[&str]) -> Result<(), String> {
    let there =
        cargo().args(probe).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if there {
        return run_command(cargo().args(arguments));
    }
    let what = format!("{tool} is not installed (rustup component add {tool})");
    if in_ci() {
        return Err(what);
    }
    println!("NOT RUN: {what}");
    missing.push(what);
    Ok(())
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
    run_command(cargo().args(["run", "--release", "--", "demo", "--exit"]))
}

/// Runs a test command, showing its output, and adds up what its runner says.
pub(crate) fn run_counted(command: &mut Command) -> Result<Counts, String> {
    use std::io::{BufRead, BufReader};
    println!("$ {}", tools::shown(command));
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot run cargo: {error}"))?;
    let mut counts = Counts::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some(rest) = line.strip_prefix("test result: ") {
                counts.passed += number_before(rest, " passed");
                counts.failed += number_before(rest, " failed");
            }
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
    fn counts_are_read_from_the_runner() {
        let line = "ok. 21 passed; 3 failed; 0 ignored; 0 measured";
        assert_eq!(number_before(line, " passed"), 21);
        assert_eq!(number_before(line, " failed"), 3);
    }
}
