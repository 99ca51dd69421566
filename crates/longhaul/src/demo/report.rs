//! What the demo tells: a block while it runs, a summary when all is there, and what is not as it should be.

use longhaul_api::native::{CheckReport, DatasetView, ReplicaView, SubscriptionView};
use longhaul_model::units::{bytes, count, duration};
use longhaul_model::{Timestamp, TransferId};
use serde::Serialize;
use std::time::Duration;

use crate::commands::subscription::measure;
use crate::commands::words;
use crate::table::percent;
use crate::terminal::{Style, Tone};

/// Everything at the end; `demo --json` prints it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether every site has every byte, verified.
    pub complete: bool,
    /// What is not as it should be.
    pub wrong: Vec<String>,
    pub state: String,
    pub url: String,
    pub page: String,
    /// From the first subscription to the last file.
    pub seconds: f64,
    pub dataset: DatasetView,
    pub subscriptions: Vec<SubscriptionView>,
    pub bytes_moved: u64,
    /// Processes that died and were restarted.
    pub restarts: u64,
    pub checks: CheckReport,
    /// One to be explained: if possible one that took its file from another site than the first.
    pub example: Option<TransferId>,
}

/// One line a site, and one for each that takes files from another site than the first.
pub fn block(
    subscriptions: &[SubscriptionView],
    first: &str,
    now: Timestamp,
    width: Option<usize>,
    style: Style,
) -> Vec<String> {
    let names = subscriptions.iter().map(|one| one.storage.as_str().len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for one in subscriptions {
        let line = measure(one, now).line(one.storage.as_str(), names, width);
        lines.push(if one.complete { style.paint(Tone::Good, &line) } else { line });
        if let Some(share) = from_others(one, first, "takes") {
            let indented = format!("  {:names$}  {share}", "");
            lines.push(style.paint(Tone::Faint, &indented));
        }
    }
    lines
}

/// `gamma takes 38 % of its files from beta`.
fn from_others(one: &SubscriptionView, first: &str, verb: &str) -> Option<String> {
    let all: u64 = one.sources.iter().map(|source| source.files).sum();
    let others: Vec<String> = one
        .sources
        .iter()
        .filter(|source| source.storage.as_str() != first && source.files > 0)
        .map(|source| format!("{} % of its files from {}", percent(source.files, all).max(1), source.storage))
        .collect();
    (!others.is_empty()).then(|| format!("{} {verb} {}", one.storage, others.join(", ")))
}

/// Without a terminal: all sites in one line.
pub fn plain_line(subscriptions: &[SubscriptionView], now: Timestamp) -> String {
    let parts: Vec<String> = subscriptions
        .iter()
        .map(|one| measure(one, now).line(one.storage.as_str(), 0, Some(0)).trim().to_owned())
        .collect();
    parts.join("   |   ")
}

/// `beta and gamma`.
pub fn and(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

impl Report {
    /// Compares every count with every other. Promise 2: complete is what was compared, not what was sent.
    pub fn check(&mut self) {
        let mut wrong = Vec::new();
        let dataset = &self.dataset;
        for one in &self.subscriptions {
            let name = &one.storage;
            if !one.complete {
                wrong.push(format!(
                    "{name} is not complete: {} of {}",
                    count(one.files_present),
                    words::files(dataset.files)
                ));
            }
            if (one.files_present, one.bytes_present) != (dataset.files, dataset.bytes) {
                wrong.push(format!(
                    "{name} counts {}, {} B; the dataset has {}, {} B",
                    words::files(one.files_present),
                    count(one.bytes_present),
                    words::files(dataset.files),
                    count(dataset.bytes)
                ));
            }
            match dataset.replicas.iter().find(|replica| replica.storage == *name) {
                Some(replica) => wrong.extend(replica_faults(replica, dataset)),
                None => wrong.push(format!("the catalog knows no replica at {name}")),
            }
        }
        for check in self.checks.checks.iter().filter(|check| check.violations > 0) {
            wrong.push(format!(
                "the service's check \"{}\" finds {} violations: {}",
                check.name,
                check.violations,
                check.examples.join(", ")
            ));
        }
        if !self.checks.sound && wrong.is_empty() {
            wrong.push("the service's check of its state finds it unsound".to_owned());
        }
        self.complete = wrong.is_empty();
        self.wrong = wrong;
    }

    pub fn summary(&self, style: Style, program: &str) -> String {
        let names: Vec<&str> = self.subscriptions.iter().map(|one| one.storage.as_str()).collect();
        let took = duration(Duration::from_secs_f64(self.seconds));
        let mut text = if self.complete {
            let head = format!("{} is complete at {} after {took}.", self.dataset.name, and(&names));
            format!("{}\n", style.paint(Tone::Good, &head))
        } else {
            let head = format!("{} is NOT as it should be at {}:", self.dataset.name, and(&names));
            let wrong: Vec<String> = self.wrong.iter().map(|what| format!("  {what}\n")).collect();
            format!("{}\n{}", style.paint(Tone::Bad, &head), wrong.concat())
        };
        text.push_str(&format!("  {}\n", self.moved()));
        text.push_str(&format!("  {}\n", self.checked()));
        let first = self.first_site();
        for one in &self.subscriptions {
            if let Some(share) = from_others(one, &first, "took") {
                text.push_str(&format!("  {share}\n"));
            }
        }
        if self.restarts > 0 {
            text.push_str(&format!(
                "  {} died and went on\n",
                words::plural_of(self.restarts, "process", "processes")
            ));
        }
        let left_out: u64 = self.dataset.left_out.iter().map(|left| left.count).sum();
        text.push_str(&format!("  {} left out\n", words::files(left_out)));
        for line in words::left_out(&self.dataset.left_out, 3) {
            text.push_str(&format!("    {line}\n"));
        }
        text.push_str(&self.try_this(program));
        text
    }

    /// `4,000 files, 2.00 GB moved; 4,000 verified end to end (…); 0 retries`.
    fn moved(&self) -> String {
        let files: u64 = self.subscriptions.iter().map(|one| one.files_present).sum();
        let retries: u64 = self.subscriptions.iter().map(|one| one.retries).sum();
        format!(
            "{}, {} moved; {}; {}",
            words::files(files),
            bytes(self.bytes_moved),
            verified_in_words(&self.subscriptions),
            words::retries(retries)
        )
    }

    fn checked(&self) -> String {
        let checks = words::plural(self.checks.checks.len() as u64, "invariant");
        let state = if self.checks.sound { "hold" } else { "do NOT all hold" };
        format!("{checks} of the service's state {state} (longhaul service check)")
    }

    fn first_site(&self) -> String {
        let targets: Vec<&str> = self.subscriptions.iter().map(|one| one.storage.as_str()).collect();
        let others = self.dataset.replicas.iter().map(|replica| replica.storage.as_str());
        others.filter(|name| !targets.contains(name)).map(str::to_owned).next().unwrap_or_default()
    }

    fn try_this(&self, program: &str) -> String {
        let target = self.subscriptions.first().map_or("beta", |one| one.storage.as_str());
        let mut text = format!("Page: {}\n", self.page);
        text.push_str(&format!("Try:  kill -9 $(cat {}/{target}/pid)\n", self.state));
        if let Some(example) = self.example {
            text.push_str(&format!("      {program} transfer explain {example} --dir {}\n", self.state));
        }
        text.push_str(&format!(
            "      {program} verify {target} {} --dir {}\n",
            self.dataset.name, self.state
        ));
        text
    }
}

fn replica_faults(replica: &ReplicaView, dataset: &DatasetView) -> Vec<String> {
    let name = &replica.storage;
    let mut wrong = Vec::new();
    if !replica.complete || (replica.files, replica.bytes) != (dataset.files, dataset.bytes) {
        wrong.push(format!(
            "the catalog counts {}, {} B at {name}",
            words::files(replica.files),
            count(replica.bytes)
        ));
    }
    if replica.suspect_files > 0 {
        wrong.push(format!("{} at {name} are suspect", words::files(replica.suspect_files)));
    }
    let verified: u64 =
        replica.verified.iter().filter(|how| how.how != "registered").map(|how| how.files).sum();
    if verified != dataset.files {
        wrong.push(format!("{} of {} at {name} are verified", count(verified), words::files(dataset.files)));
    }
    wrong
}

/// How many were compared how; the weaker kinds are named as what they are.
fn verified_in_words(subscriptions: &[SubscriptionView]) -> String {
    let mut kinds: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
    for how in subscriptions.iter().flat_map(|one| &one.verified) {
        *kinds.entry(how.how.as_str()).or_default() += how.files;
    }
    let parts: Vec<String> = kinds
        .iter()
        .filter(|(_, files)| **files > 0)
        .map(|(how, files)| {
            let meaning = match *how {
                "end-to-end" => "verified end to end (digest in the catalog = digest of the bytes written)",
                "readback" => "verified by reading them back from the disk",
                "wire" => "verified on the wire only",
                "registered" => "registered in place",
                other => other,
            };
            format!("{} {meaning}", count(*files))
        })
        .collect();
    if parts.is_empty() { "none verified".to_owned() } else { parts.join(", ") }
}
