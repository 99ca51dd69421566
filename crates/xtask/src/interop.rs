//! `cargo xtask interop`: programs of others that use the service, installed below the target folder and run
//! against it.

use std::path::PathBuf;

use crate::test::{PROGRAMS, in_path};
use crate::tools::{self, cargo, program, run_command};
use crate::{python, soak};

/// Nothing may be left out: what is missing is installed, or this fails.
pub(crate) fn rucio(cases: &[&str]) -> Result<(), String> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for (_, name, package, probe) in PROGRAMS {
        if USED.contains(&package) {
            folders.extend(program(name, package, probe)?);
        }
    }
    for (pattern, package) in FILES {
        tools::file(pattern, package)?;
    }
    let (rucio, fts3) = (python::rucio()?, python::fts3_client()?);
    soak::build()?;
    let test = ["test", "--release", "--workspace", "--test", soak::SCENARIOS, "--"];
    run_command(
        cargo()
            .args(test)
            .args(["--nocapture", "rucio::"])
            .env("LONGHAUL_RUCIO_PYTHON", rucio)
            .env("LONGHAUL_FTS3_PYTHON", fts3)
            .env("LONGHAUL_RUCIO_CASES", cases.join(" "))
            .env("PATH", in_path(&folders)?)
            .env("CI", "true"),
    )
}

/// Packages of the programs that the storages, brokers and databases of that test are.
const USED: [&str; 4] = ["openssl", "xrootd-server", "nginx", "activemq"];

/// What is in no search path: a file of it, its Debian package.
const FILES: [(&str, &str); 2] = [tools::XROOTD_TOKENS, tools::POSTGRESQL];
