//! `cargo xtask mutants`: mutation testing (DeMillo, Lipton, Sayward 1978) of the faults of release 0.1.0.
//!
//! A mutant brings the old behaviour of one fault back into today's code, by a few edits of text, and names
//! the test that has to fail then. Each chapter of faults has a file of them in `crates/xtask/mutants`
//! ([`definitions`]). A run edits a copy of the working tree ([`sources`]), builds the test there and runs it
//! ([`runner`]); the working tree stays as it is. `cargo xtask tidy` finds mutants that no longer fit.
//!
//! Start with [`run`].

pub(crate) mod definitions;
mod runner;
mod sources;
#[cfg(test)]
mod tests;

use std::time::Instant;

use crate::tidy::tracked_files;
use crate::tools::{root, target};

use definitions::{Mutant, fault_number, in_build_order};
use runner::{MutantRunner, Outcome, last_lines, last_panic};

const USAGE: &str = "usage: cargo xtask mutants [--list] [FAULT...]
  FAULT is a fault (A2) or a chapter of them (A); by default all";

/// What became of one mutant.
struct Trial<'m> {
    mutant: &'m Mutant,
    outcome: Outcome,
    /// Where the test panicked: which of many scenarios it was.
    place: String,
    seconds: u64,
}

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let (options, faults): (Vec<&str>, Vec<&str>) =
        words.iter().copied().partition(|word| word.starts_with('-'));
    let is_list = match options.as_slice() {
        [] => false,
        ["--list"] => true,
        _ => return Err(USAGE.to_owned()),
    };
    let mut findings = Vec::new();
    let mutants = definitions::read(&root(), &mut findings);
    if !findings.is_empty() {
        return Err(findings.join("\n"));
    }
    let mutants = select(mutants, &faults)?;
    if is_list {
        let rows = mutants.iter().map(description);
        println!("{}", table(&["fault", "old behaviour", "test"], rows));
        return Ok(());
    }
    let trials = try_all(&mutants)?;
    let rows = trials.iter().map(|trial| {
        let mut row = description(trial.mutant);
        row.extend([trial.outcome.to_string(), trial.place.clone(), trial.seconds.to_string()]);
        row
    });
    println!("\n{}", table(&["fault", "old behaviour", "test", "outcome", "at", "seconds"], rows));
    match trials.iter().filter(|trial| trial.outcome != Outcome::Failed).count() {
        0 => Ok(()),
        others => Err(format!("of {} mutants {others} did not make their tests fail", trials.len())),
    }
}

/// The mutants of these faults and chapters, or all.
fn select(mutants: Vec<Mutant>, faults: &[&str]) -> Result<Vec<Mutant>, String> {
    let is_named = |mutant: &Mutant, word: &str| {
        mutant.fault == word || word.len() == 1 && mutant.fault.starts_with(word)
    };
    if let Some(unknown) = faults.iter().find(|word| !mutants.iter().any(|mutant| is_named(mutant, word))) {
        return Err(format!("no mutant is of {unknown}\n{USAGE}"));
    }
    if mutants.is_empty() {
        return Err(format!("there are no mutants in {}", definitions::MUTANTS_FOLDER));
    }
    let is_selected = |mutant: &Mutant| faults.is_empty() || faults.iter().any(|word| is_named(mutant, word));
    Ok(mutants.into_iter().filter(is_selected).collect())
}

/// Tries each mutant, prints a line as each ends, and returns them in the order of their faults.
fn try_all(mutants: &[Mutant]) -> Result<Vec<Trial<'_>>, String> {
    let folder = target().join("mutants");
    let folder = std::path::absolute(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let runner = MutantRunner::prepare(&root(), &tracked_files()?, &folder)?;
    println!("unmutated, each test has to pass:");
    let unfit = runner.run_unmutated(mutants)?;
    println!("mutated, each has to fail:");
    let mut trials = Vec::new();
    for (position, mutant) in in_build_order(mutants).into_iter().enumerate() {
        let begun = Instant::now();
        let (outcome, log) = match unfit.get(&mutant.test_case()) {
            Some(&outcome) => (outcome, None),
            None => {
                let label = format!("{}-{}", mutant.fault, position + 1);
                let (outcome, log) = runner.run_mutant(mutant, &label)?;
                (outcome, Some(log))
            }
        };
        let seconds = begun.elapsed().as_secs();
        let place = log.as_deref().and_then(last_panic).unwrap_or_default();
        println!("{seconds:6} s  {:4} {}: {outcome} {place}", mutant.fault, mutant.behaviour);
        if let Some(log) = log.filter(|_| outcome != Outcome::Failed) {
            println!("{}", last_lines(&log));
        }
        trials.push(Trial { mutant, outcome, place, seconds });
    }
    trials.sort_by_key(|trial| fault_number(&trial.mutant.fault));
    Ok(trials)
}

/// A mutant's cells of a table: its fault, the old behaviour, the test.
fn description(mutant: &Mutant) -> Vec<String> {
    vec![mutant.fault.clone(), mutant.behaviour.clone(), format!("`{}`", mutant.test_case())]
}

/// A table in Markdown.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut lines = vec![format!("| {} |", head.join(" | ")), format!("|{}", " --- |".repeat(head.len()))];
    lines.extend(rows.map(|cells| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |", cells.join(" | "))
    }));
    lines.join("\n")
}
