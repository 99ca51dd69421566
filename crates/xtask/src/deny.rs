//! `cargo xtask deny`: what may be built of others, by `deny.toml`: licences, banned packages, sources, and
//! known vulnerabilities (the advisories of RustSec, <https://rustsec.org>). cargo-deny checks them; without
//! it the rules that `tidy` knows are checked, and what was not checked is said.

use std::path::{Path, PathBuf};

use crate::tidy;
use crate::tools::{cargo, root, run_command};

pub(crate) fn run() -> Result<(), String> {
    if !has_cargo_deny() {
        tidy::check_licences()?;
        println!("licences and bans: ok");
        println!(
            "NOT CHECKED: advisories and sources, since cargo-deny is not installed (next: cargo install \
             --locked cargo-deny)"
        );
        return Ok(());
    }
    run_command(cargo().args(["deny", "check"]).args(RULES_OF_PACKAGES))?;
    if !has_advisories() {
        println!(
            "NOT CHECKED: advisories, since their database cannot be fetched and none was fetched before \
             (next: cargo deny fetch db, where github.com can be reached)"
        );
        return Ok(());
    }
    run_command(cargo().args(["deny", "check", "--disable-fetch", "advisories"]))
}

/// What the packages themselves tell.
const RULES_OF_PACKAGES: [&str; 3] = ["bans", "licenses", "sources"];

fn has_cargo_deny() -> bool {
    cargo().args(["deny", "--version"]).output().is_ok_and(|ran| ran.status.success())
}

/// Fetches the advisories; those of an earlier day will do where that fails.
fn has_advisories() -> bool {
    run_command(cargo().args(["deny", "fetch", "db"])).is_ok() || has_entries(&advisory_databases())
}

/// Where cargo-deny keeps them unless its settings say otherwise, which ours do not.
fn advisory_databases() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    home.unwrap_or_else(root).join("advisory-dbs")
}

/// Whether there is a database, and not only the lock of a fetch that failed.
fn has_entries(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().join("crates").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_fetch_that_failed_is_no_database() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_entries(folder.path()));
        std::fs::write(folder.path().join("db.lock"), "").unwrap();
        std::fs::create_dir(folder.path().join("advisory-db-1")).unwrap();
        assert!(!has_entries(folder.path()));
        std::fs::create_dir(folder.path().join("advisory-db-1/crates")).unwrap();
        assert!(has_entries(folder.path()));
    }
}
