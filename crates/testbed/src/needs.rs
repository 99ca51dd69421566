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

/// The first of these that cannot be run, each with the argument that shows it.
pub fn missing(programs: &[(&str, &str)]) -> Option<String> {
    let lacks = programs.iter().find(|(name, probe)| !program(name, &[probe]));
    lacks.map(|(name, _)| format!("there is no {name}"))
}

/// Whether all of these can be run; what is not tested without them is told.
pub fn programs(what: &str, programs: &[(&str, &str)]) -> bool {
    let missing = missing(programs);
    if let Some(why) = &missing {
        not_run(what, why);
    }
    missing.is_none()
}
