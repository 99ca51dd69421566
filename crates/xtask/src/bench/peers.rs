//! The programs that benchmarks compare with: Debian's packages, installed where they are missing, without
//! leaving a server that runs or starts with the machine.

use std::path::Path;
use std::process::Command;

use crate::tools::{install, is_root, run_command, works};

/// A program to look for, the package that has it, and the service that the package would start.
const PEERS: &[(&str, &str, &str)] = &[
    ("aria2c", "aria2", ""),
    ("curl", "curl", ""),
    ("globus-gridftp-server", "globus-gridftp-server-progs", "globus-gridftp-server globus-gridftp-sshftp"),
    ("globus-url-copy", "globus-gass-copy-progs", ""),
    ("ip", "iproute2", ""),
    ("iperf3", "iperf3", ""),
    ("nginx", "nginx-light", "nginx"),
    ("openssl", "openssl", ""),
    ("rclone", "rclone", ""),
    ("rsync", "rsync", "rsync"),
    ("xrdcp", "xrootd-client", ""),
    ("xrootd", "xrootd-server", ""),
];

/// Scripts of packages ask this one before they start a server.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs what is missing. What cannot be installed is told by the benchmark, as failed rows.
pub(crate) fn install_missing() -> Result<(), String> {
    let missing: Vec<_> = PEERS.iter().filter(|(program, ..)| !is_there(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    if !is_root() || !works("apt-get", &["--version"]) {
        println!(
            "not installed, and not installable here (root and apt-get are needed): {}",
            packages.join(", ")
        );
        return Ok(());
    }
    without_starting(|| install(&packages))?;
    for service in missing.iter().flat_map(|(.., services)| services.split_whitespace()) {
        run_command(Command::new("update-rc.d").args([service, "disable"]))?;
    }
    Ok(())
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
        || Path::new("/usr/sbin").join(program).exists()
}

/// No server is started meanwhile; a policy that an administrator has made stays as it is.
fn without_starting(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if Path::new(POLICY).exists() {
        return work();
    }
    let script = format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}");
    run_command(Command::new("sh").args(["-c", &script]))?;
    let outcome = work();
    let removed = std::fs::remove_file(POLICY).map_err(|error| format!("removing {POLICY}: {error}"));
    outcome.and(removed)
}
