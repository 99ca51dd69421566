//! What a test needs from the machine. Where it is missing, that is said loudly; with `CI=true` it fails.

use std::process::{Command, Stdio};

/// Tells that something was not tested, and why.
///
/// # Panics
/// With `CI=true`: there nothing may be left out.
pub fn not_run(what: &str, why: &str) {
    assert!(!std::env::var("CI").is_ok_and(|value| value == "true"), "NOT RUN: {what}: {why}");
    println!("\n*** NOT RUN: {what}: {why} ***\n");
    eprintln!("\n*** NOT RUN: {what}: {why} ***\n");
}

/// Whether a program can be run.
pub fn program(name: &str, arguments: &[&str]) -> bool {
    let quiet = || Stdio::null();
    Command::new(name)
        .args(arguments)
        .stdin(quiet())
        .stdout(quiet())
        .stderr(quiet())
        .status()
        .is_ok_and(|status| status.success())
}
