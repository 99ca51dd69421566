//! Per-file output of `longhaul copy`: lines for a dry run, and with `--json` one object per line.
//! docs/reference/copy-events.md describes the objects; a test compares them.

use longhaul_api::Problem;
use longhaul_copy::{CircuitNote, FileOutcome, Outcome, ReplicaShare, ReplicaTotals, Totals};
use longhaul_model::units::{self, printable};
use longhaul_model::{Fault, Timestamp, Verification};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Format, Output};

/// One line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event<'a> {
    /// Always the first event.
    Begun { version: &'static str, at: Timestamp },
    /// The outcome of one file, or what a dry run would do.
    File {
        source: &'a str,
        target: &'a str,
        bytes: u64,
        #[serde(flatten)]
        outcome: FileEnd<'a>,
        /// Contributions of the servers, if there were several.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        replicas: &'a [ReplicaShare],
    },
    /// Sent about once a second.
    Progress {
        at: Timestamp,
        bytes_per_s: f64,
        bytes_per_s_average: f64,
        /// None while files are still being listed, or nothing moves.
        done_at: Option<Timestamp>,
        note: &'a str,
        #[serde(flatten)]
        totals: &'a Totals,
    },
    /// Always the last event, unless that is an error.
    Summary {
        complete: bool,
        exit_code: u8,
        seconds: f64,
        /// Average rate over the network.
        bytes_per_s: f64,
        #[serde(flatten)]
        totals: &'a Totals,
        /// The first failed files.
        failed: Vec<FailedFile<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        replicas: Vec<ReplicaTotals>,
        /// What was done about a circuit, if one was requested.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        circuit: Vec<CircuitNote>,
        /// Why the copy as a whole failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        fault: Option<&'a Fault>,
    },
    /// The copy could not start: a bad argument, an unreadable list.
    Error { exit_code: u8, problem: &'a Problem },
}

#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum FileEnd<'a> {
    Copied { verification: Verification },
    Skipped { reason: &'static str },
    WouldCopy { replaces: bool },
    Failed { fault: &'a Fault },
    LeftOut { why: &'a str },
}

#[derive(Debug, Serialize)]
pub struct FailedFile<'a> {
    pub path: &'a str,
    pub fault: &'a Fault,
}

impl<'a> Event<'a> {
    fn from_outcome(outcome: &'a FileOutcome) -> Event<'a> {
        let end = match &outcome.outcome {
            Outcome::Done { verification } => FileEnd::Copied { verification: *verification },
            Outcome::Skipped(reason) => FileEnd::Skipped { reason: reason.text() },
            Outcome::WouldCopy { replaces } => FileEnd::WouldCopy { replaces: *replaces },
            Outcome::Failed(fault) => FileEnd::Failed { fault },
            Outcome::LeftOut(why) => FileEnd::LeftOut { why },
        };
        let FileOutcome { source, target, size, replicas, .. } = outcome;
        Event::File { source, target, bytes: *size, outcome: end, replicas }
    }
}

pub struct FileReporter {
    output: Output,
    dry_run: bool,
    write_failure: Option<Failure>,
}

impl FileReporter {
    pub fn new(output: Output, dry_run: bool) -> FileReporter {
        FileReporter { output, dry_run, write_failure: None }
    }

    pub fn report(&mut self, outcome: &FileOutcome) {
        let told = match self.output.format {
            Format::Json => self.output.json_line(&Event::from_outcome(outcome)),
            _ if self.dry_run => self.output.write(&(dry_run_line(outcome) + "\n")),
            _ => return,
        };
        if let Err(failure) = told {
            self.write_failure.get_or_insert(failure);
        }
    }

    /// Fails if any event could not be written.
    pub fn finish(self) -> Result<(), Failure> {
        self.write_failure.map_or(Ok(()), Err)
    }
}

fn dry_run_line(outcome: &FileOutcome) -> String {
    let size = units::bytes(outcome.size);
    let (source, target) = (printable(&outcome.source), printable(&outcome.target));
    match &outcome.outcome {
        Outcome::WouldCopy { replaces: true } => format!("replace  {size:>8}  {source} -> {target}"),
        Outcome::WouldCopy { .. } | Outcome::Done { .. } => {
            format!("copy     {size:>8}  {source} -> {target}")
        }
        Outcome::Skipped(reason) => format!("skip     {size:>8}  {target} ({})", reason.text()),
        Outcome::Failed(fault) => format!("refuse   {size:>8}  {source}: {fault}"),
        Outcome::LeftOut(why) => format!("leave    {:>8}  {source}: {why}", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::FaultCode;
    use serde_json::Value;

    /// The page that documents the events.
    const PAGE: &str = include_str!("../../../../../docs/reference/copy-events.md");

    fn every_event() -> Vec<Value> {
        let fault = Fault::new(FaultCode::SourceMissing, "x");
        let failure = Failure::from(fault.clone());
        let at: Timestamp = "2026-11-21T14:02:11Z".parse().unwrap();
        let totals = Totals::default();
        let outcomes = [
            Outcome::Done { verification: Verification::EndToEnd },
            Outcome::Skipped(longhaul_copy::rules::SkipReason::TargetNewer),
            Outcome::WouldCopy { replaces: true },
            Outcome::Failed(fault.clone()),
            Outcome::LeftOut("a socket".into()),
        ];
        let share = ReplicaShare {
            replica: "lh://a".into(),
            bytes: 1,
            wrong: vec![longhaul_copy::WrongRange { offset: 0, bytes: 1 }],
            fault: Some(fault.clone()),
        };
        let totals_of_one = ReplicaTotals {
            replica: "lh://a".into(),
            fault: Some(fault.clone()),
            ..ReplicaTotals::default()
        };
        let files = outcomes.map(|outcome| FileOutcome {
            source: "a".into(),
            target: "b".into(),
            size: 1,
            outcome,
            replicas: vec![share.clone()],
        });
        let failed = vec![FailedFile { path: "a", fault: &fault }];
        let mut events = vec![
            Event::Begun { version: "1", at },
            Event::Progress {
                at,
                bytes_per_s: 1.0,
                bytes_per_s_average: 1.0,
                done_at: None,
                note: "",
                totals: &totals,
            },
            Event::Summary {
                complete: false,
                exit_code: 7,
                seconds: 1.0,
                bytes_per_s: 1.0,
                totals: &totals,
                failed,
                replicas: vec![totals_of_one],
                circuit: Vec::new(),
                fault: Some(&fault),
            },
            Event::Error { exit_code: 3, problem: &failure.problem },
        ];
        events.extend(files.iter().map(Event::from_outcome));
        events.iter().map(|event| serde_json::to_value(event).unwrap()).collect()
    }

    #[test]
    fn the_page_names_every_event_and_every_field() {
        let events = every_event();
        assert_eq!(events.len(), 9);
        for event in &events {
            for (key, value) in event.as_object().unwrap() {
                assert!(PAGE.contains(&format!("`{key}`")), "{key} of {event}");
                if key == "event" || key == "outcome" {
                    assert!(PAGE.contains(&format!("| `{}` |", value.as_str().unwrap())), "{event}");
                }
            }
        }
        // And the page names nothing that does not exist; totals have rows of their own.
        let known: std::collections::BTreeSet<&str> =
            events.iter().flat_map(|event| event.as_object().unwrap().keys()).map(String::as_str).collect();
        for row in PAGE.lines().skip_while(|line| !line.starts_with("| field |")).skip(2) {
            let first = row.strip_prefix("| ").and_then(|row| row.split(" |").next()).unwrap_or_default();
            for name in first.split(", ").filter(|name| !name.is_empty()) {
                assert!(known.contains(name.trim_matches('`')), "{name}");
            }
        }
    }

    #[test]
    fn names_cannot_break_a_line() {
        let hostile = FileOutcome {
            source: "a\nb\u{1b}[2J".into(),
            target: "x".into(),
            size: 0,
            outcome: Outcome::LeftOut("\n".into()),
            replicas: Vec::new(),
        };
        assert_eq!(serde_json::to_string(&Event::from_outcome(&hostile)).unwrap().lines().count(), 1);
        assert!(!dry_run_line(&hostile).contains('\u{1b}'));
    }
}
