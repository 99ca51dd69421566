//! Python environments below the target folder, each with one program of others as it is published.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::{install, is_root, run_command, target, works};

/// An environment and how to see that it is whole.
struct Environment {
    name: &'static str,
    /// Must run in it.
    probe: &'static str,
}

/// The FTS3 client. Its TLS library comes as source only, so a compiler and OpenSSL's headers have to be
/// there; what generates its glue is a package of the same index.
pub(crate) fn fts3_client() -> Result<PathBuf, String> {
    let environment = Environment { name: "fts3", probe: "import fts3.cli, fts3.rest.client.easy" };
    environment.python(|pip| {
        if !Path::new("/usr/include/openssl/ssl.h").exists() && is_root() && works("apt-get", &["--version"])
        {
            install(&["libssl-dev", "gcc"])?;
        }
        pip(&["setuptools", "wheel", "swig"])?;
        // Without isolation, so that the build finds the generator just installed.
        pip(&["--no-build-isolation", "fts3==3.14.2"])
    })
}

/// Rucio: server, daemons and client, with what it needs to speak to PostgreSQL.
pub(crate) fn rucio() -> Result<PathBuf, String> {
    let probe = "import psycopg, rucio.client; from importlib.metadata import version; assert \
        version('rucio') == '41.5.1'";
    let environment = Environment { name: "rucio", probe };
    environment.python(|pip| pip(&["rucio[postgresql]==41.5.1"]))
}

/// A mock of a server that speaks S3.
pub(crate) fn s3_mock() -> Result<PathBuf, String> {
    let environment = Environment { name: "s3", probe: "import boto3, moto.server" };
    environment.python(|pip| pip(&["moto[s3,server]==5.1.22"]))
}

/// What asks an API everything that its document allows, and more.
pub(crate) fn schemathesis() -> Result<PathBuf, String> {
    let environment = Environment { name: "schemathesis", probe: "import schemathesis" };
    environment.python(|pip| pip(&["schemathesis==4.32.5"]))
}

impl Environment {
    /// Its interpreter. Made, and filled by `fill` with what is given to `pip install`, unless it is there.
    fn python(
        &self,
        fill: impl FnOnce(&dyn Fn(&[&str]) -> Result<(), String>) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        let folder = target().join("tools").join(self.name);
        let python = folder.join("bin/python");
        let there = || works(&python.to_string_lossy(), &["-c", self.probe]);
        if there() {
            return Ok(python);
        }
        if !works("python3", &["-m", "venv", "-h"]) && is_root() && works("apt-get", &["--version"]) {
            install(&["python3-venv", "python3-dev"])?;
        }
        run_command(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(folder.join("bin")).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(path).map_err(|error| error.to_string())?;
        fill(&|words| {
            // What is imported is compiled then; most of it never is.
            let install = ["-m", "pip", "install", "-q", "--no-compile"];
            let quiet = ["--disable-pip-version-check", "--root-user-action=ignore"];
            run_command(Command::new(&python).args(install).args(quiet).args(words).env("PATH", &path))
        })?;
        if there() { Ok(python) } else { Err(format!("{} was installed and cannot be imported", self.name)) }
    }
}
