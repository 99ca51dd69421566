//! Rules that the compiler does not know: who may depend on whom, what pure rooms must not touch, sizes,
//! licences, generated pages, links, mutants. Each finding is one line that says where, what and why.

mod edges;
mod generated;
mod licences;
mod rooms;
mod text;
mod words;

use std::process::Command;

use crate::mutants::definitions as mutants;
use crate::tools::{cargo, root};

/// Findings of all rules; empty means tidy.
pub(crate) type Findings = Vec<String>;

pub(crate) fn run(fix: bool) -> Result<(), String> {
    let metadata = metadata()?;
    let files = tracked_files()?;
    let mut findings = Findings::new();
    rooms::check(&metadata, &mut findings);
    edges::check(&mut findings);
    licences::check(&metadata, &mut findings);
    text::check(&files, &mut findings);
    words::check(&files, &mut findings);
    generated::check(&metadata, fix, &mut findings);
    mutants::check(&mut findings);
    if findings.is_empty() {
        println!("tidy: {} files, {} crates", files.len(), rooms::ROOMS.len());
        return Ok(());
    }
    Err(format!("{}\ntidy: {} findings", findings.join("\n"), findings.len()))
}

/// Licences and bans of third-party packages alone.
pub(crate) fn check_licences() -> Result<(), String> {
    let mut findings = Findings::new();
    licences::check(&metadata()?, &mut findings);
    if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
}

/// What cargo knows of every package in the build.
fn metadata() -> Result<serde_json::Value, String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Files under version control, and new ones that are not ignored, relative to the root.
pub(crate) fn tracked_files() -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    let mut files: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .split('\0')
        .filter(|name| !name.is_empty() && root().join(name).exists())
        .map(str::to_owned)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// The packages of the workspace.
fn members(metadata: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    let ids: Vec<&str> =
        metadata["workspace_members"].as_array().into_iter().flatten().filter_map(|id| id.as_str()).collect();
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(move |package| package["id"].as_str().is_some_and(|id| ids.contains(&id)))
}
