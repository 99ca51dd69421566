//! `cargo xtask bench`: builds everything once, then hands over to the program in `bench/`; what measures one
//! room alone is an example of that room, built without the rest.

mod peers;

use std::path::PathBuf;
use std::process::Command;

use crate::test::{PROGRAMS, in_path};
use crate::tools::{self, cargo, root, run_command, target};

/// Cases that run other programs.
const WITH_PEERS: &[&str] = &["transfers", "mtu", "fdt", "floor"];
/// Cases whose storages, or peers, are these programs of Debian.
const WITH_PROGRAMS: &[&str] = &["fts", "fts-postgresql", "doors"];
const USED: [&str; 2] = ["nginx", "curl"];
/// The variable by which the testbed finds a browser.
const CHROMIUM_VARIABLE: &str = "LONGHAUL_CHROMIUM";
/// Cases of one room, with options of their own: the room, whose example has the case's name.
const OF_A_ROOM: &[(&str, &str)] = &[
    ("decisions", "longhaul-scheduler"),
    ("circuits", "longhaul-simulator"),
    ("concurrency", "longhaul-simulator"),
    ("strategies", "longhaul-simulator"),
    ("worlds", "longhaul-simulator"),
];

/// How the option that names another profile than the release's begins: `dist` is what packages hold.
const PROFILE_OPTION: &str = "--profile";

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    match words {
        [PROFILE_OPTION, profile, words @ ..] => run_built_by(profile, words),
        words => run_built_by("release", words),
    }
}

fn run_built_by(profile: &str, words: &[&str]) -> Result<(), String> {
    if let Some((case, options)) = words.split_first()
        && let Some((_, room)) = OF_A_ROOM.iter().find(|(name, _)| name == case)
    {
        let example = ["run", "--profile", profile, "--quiet", "--package", room, "--example", case, "--"];
        return run_command(cargo().args(example).args(options));
    }
    // Without a name everything is run.
    let names = || words.iter().filter(|word| !word.starts_with("--"));
    let any_of = |cases: &[&str]| names().next().is_none() || names().any(|word| cases.contains(word));
    if any_of(WITH_PEERS) {
        peers::install_missing()?;
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    if any_of(WITH_PROGRAMS) {
        for (_, name, package, probe) in PROGRAMS.iter().filter(|(_, _, package, _)| USED.contains(package)) {
            folders.extend(tools::program(name, package, probe)?);
        }
    }
    if any_of(&["fts-postgresql"]) {
        let (file, package) = tools::POSTGRESQL;
        tools::file(file, package)?;
    }
    run_command(cargo().args(["build", "--profile", profile, "--workspace", "--bins", "--examples"]))?;
    // As it was built with all the rest: for itself alone cargo would choose other features, and build again.
    let mut measure = Command::new(target().join(profile).join("longhaul-bench"));
    measure.args(words).env("PATH", in_path(&folders)?).current_dir(root());
    // Pictures of pages are made where the tests would find a browser; for them alone none is installed.
    if any_of(&["limits"])
        && std::env::var_os(CHROMIUM_VARIABLE).is_none()
        && let Some(chromium) = tools::chromium_if_installed()
    {
        measure.env(CHROMIUM_VARIABLE, chromium);
    }
    run_command(&mut measure)
}
