//! The demo's output: a progress block, a summary when everything is complete, and any discrepancies.

use longhaul_api::native::{CheckReport, DatasetView, ReplicaView, SubscriptionView};
use longhaul_model::units::{bytes, count, duration, plural};
use longhaul_model::{FaultCode, Timestamp, TransferId};
use serde::Serialize;
use std::time::Duration;

use crate::commands::subscription::measure;
use crate::commands::words;
use crate::failure::Failure;
use crate::progress::lines;
use crate::table::rounded_percent;
use crate::terminal::{Style, Tone};

/// The final report, printed by `demo --json`.
#[derive(Debug, Serialize)]
pub struct DemoReport {
    /// Whether every site has every byte, verified.
    pub complete: bool,
    /// Discrepancies.
    pub wrong: Vec<String>,
    pub state: String,
    pub url: String,
    pub page: String,
    /// Seconds from the first subscription to the last file.
    pub seconds: f64,
    pub dataset: DatasetView,
    pub subscriptions: Vec<SubscriptionView>,
    pub bytes_moved: u64,
    /// Processes that died and were restarted.
    pub restarts: u64,
    pub checks: CheckReport,
    /// A transfer to explain, preferably one from another site than the first.
    pub example: Option<TransferId>,
}

/// One line per site, and one for each that takes files from another site than the first.
pub fn progress_block(
    subscriptions: &[SubscriptionView],
    first: &str,
    now: Timestamp,
    width: Option<usize>,
    style: Style,
) -> Vec<String> {
    let measures: Vec<_> =
        subscriptions.iter().map(|one| (one.storage.as_str(), measure(one, now))).collect();
    let indent = subscriptions.iter().map(|one| one.storage.as_str().len()).max().unwrap_or(0) + 4;
    let mut block = Vec::new();
    for (one, line) in subscriptions.iter().zip(lines(&measures, width)) {
        block.push(if one.complete { style.paint(Tone::Good, &line) } else { line });
        if let Some(share) = other_sources_text(one, first, "takes") {
            block.push(style.paint(Tone::Faint, &format!("{:indent$}{share}", "")));
        }
    }
    block
}

/// Share of other sources: `gamma takes 38 % of its files from beta`.
fn other_sources_text(one: &SubscriptionView, first: &str, verb: &str) -> Option<String> {
    let all: u64 = one.sources.iter().map(|source| source.files).sum();
    let others: Vec<String> = one
        .sources
        .iter()
        .filter(|source| source.storage.as_str() != first && source.files > 0)
        .map(|source| {
            format!("{} % of its files from {}", rounded_percent(source.files, all).max(1), source.storage)
        })
        .collect();
    (!others.is_empty()).then(|| format!("{} {verb} {}", one.storage, others.join(", ")))
}

/// All sites in one line, without a terminal.
pub fn plain_line(subscriptions: &[SubscriptionView], now: Timestamp) -> String {
    let parts: Vec<String> =
        subscriptions.iter().map(|one| measure(one, now).plain(one.storage.as_str())).collect();
    parts.join("   |   ")
}

/// The failure when nothing has arrived for `time`, with what the service says about it.
pub fn stalled_failure(subscriptions: &[SubscriptionView], time: Duration) -> Failure {
    let reasons: Vec<String> = subscriptions
        .iter()
        .filter(|one| !one.complete)
        .map(|one| {
            let expected = &one.expected;
            let known =
                expected.held_up_by.iter().chain(&expected.why_none).cloned().collect::<Vec<_>>().join("; ");
            let known = if known.is_empty() { "reason unknown".to_owned() } else { known };
            format!(
                "{} has {} of {}: {known}",
                one.storage,
                count(one.files_present),
                words::files(one.files_wanted)
            )
        })
        .collect();
    Failure::new(FaultCode::Stalled, reasons.join("; "))
        .with_title(format!("nothing has arrived for {}", duration(time)))
        .with_remedy("see the logs, or run the demo without --exit and use `longhaul problems`")
}

/// Joins names: `beta and gamma`.
pub fn join_names(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

impl DemoReport {
    /// Compares all counts with each other. Promise 2: complete is what was verified, not what was sent.
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
                None if dataset.files == 0 => {}
                None => wrong.push(format!("the catalog has no replica at {name}")),
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
            wrong.push("the service's check finds its state unsound".to_owned());
        }
        self.complete = wrong.is_empty();
        self.wrong = wrong;
    }

    pub fn summary(&self, style: Style) -> String {
        let names: Vec<&str> = self.subscriptions.iter().map(|one| one.storage.as_str()).collect();
        let took = duration(Duration::from_secs_f64(self.seconds));
        let mut text = if self.complete {
            let head = format!("{} is complete at {} after {took}.", self.dataset.name, join_names(&names));
            format!("{}\n", style.paint(Tone::Good, &head))
        } else {
            let head = format!("{} is NOT correct at {}:", self.dataset.name, join_names(&names));
            let wrong: Vec<String> = self.wrong.iter().map(|what| format!("  {what}\n")).collect();
            format!("{}\n{}", style.paint(Tone::Bad, &head), wrong.concat())
        };
        text.push_str(&format!("  {}\n", self.moved_text()));
        text.push_str(&format!("  {}\n", self.checks_text()));
        let first = self.first_site();
        for one in &self.subscriptions {
            if let Some(share) = other_sources_text(one, &first, "took") {
                text.push_str(&format!("  {share}\n"));
            }
        }
        if self.restarts > 0 {
            text.push_str(&format!("  {} died and resumed\n", plural(self.restarts, "process", "processes")));
        }
        let left_out: u64 = self.dataset.left_out.iter().map(|left| left.count).sum();
        let what = if left_out == 0 { words::files(0) } else { count(left_out) };
        text.push_str(&format!("  {what} left out\n"));
        for line in words::left_out(&self.dataset.left_out, 3) {
            text.push_str(&format!("    {line}\n"));
        }
        text
    }

    /// Line about transfers: `4,000 files, 2.00 GB moved; 4,000 verified end to end (…); 0 retries`.
    fn moved_text(&self) -> String {
        let files: u64 = self.subscriptions.iter().map(|one| one.files_present).sum();
        let retries: u64 = self.subscriptions.iter().map(|one| one.retries).sum();
        format!(
            "{}, {} moved; {}; {}",
            words::files(files),
            bytes(self.bytes_moved),
            verified_text(&self.subscriptions),
            words::retries(retries)
        )
    }

    fn checks_text(&self) -> String {
        let checks = words::plural(self.checks.checks.len() as u64, "invariant");
        let state = if self.checks.sound { "hold" } else { "do NOT all hold" };
        format!("{checks} of the service's state {state} (longhaul service check)")
    }

    fn first_site(&self) -> String {
        let targets: Vec<&str> = self.subscriptions.iter().map(|one| one.storage.as_str()).collect();
        let others = self.dataset.replicas.iter().map(|replica| replica.storage.as_str());
        others.filter(|name| !targets.contains(name)).map(str::to_owned).next().unwrap_or_default()
    }

    /// Suggestions for what to try while the demo keeps running.
    pub fn suggestions(&self, program: &str) -> String {
        let target = self.subscriptions.first().map_or("beta", |one| one.storage.as_str());
        let mut text = format!("Open  {}\n", self.page);
        text.push_str(&format!("Try:  kill -9 $(cat {}/{target}/pid)\n", self.state));
        if let Some(example) = self.example {
            text.push_str(&format!("      {program} transfer explain {example} --dir {}\n", self.state));
        }
        text.push_str(&format!(
            "      {program} verify {target} {} --dir {}\n",
            self.dataset.name, self.state
        ));
        text.push_str(&format!(
            "      {program} status --watch --dir {}\n      Ctrl-C stops everything\n",
            self.state
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

/// Files by kind of verification; the weaker kinds are named as what they are.
fn verified_text(subscriptions: &[SubscriptionView]) -> String {
    let mut kinds: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
    for how in subscriptions.iter().flat_map(|one| &one.verified) {
        *kinds.entry(how.how.as_str()).or_default() += how.files;
    }
    let parts: Vec<String> = kinds
        .iter()
        .filter(|(_, files)| **files > 0)
        .map(|(how, files)| {
            let meaning = match *how {
                "end-to-end" => "verified end to end (catalog digest = digest of the bytes written)",
                "readback" => "verified by reading back from disk",
                "wire" => "verified on the wire only",
                "registered" => "registered in place",
                other => other,
            };
            format!("{} {meaning}", count(*files))
        })
        .collect();
    if parts.is_empty() { "none verified".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::columns;
    use longhaul_api::agent::{LeftOut, LeftOutReason};
    use longhaul_api::native::{CheckResult, Expected, LeftOutCount, SourceShare, VerifiedCount};
    use longhaul_model::{IdMaker, SubscriptionState, Verification};

    fn now() -> Timestamp {
        "2026-11-21T14:02:00Z".parse().unwrap()
    }

    fn subscription(storage: &str, files: u64, from_beta: u64) -> SubscriptionView {
        let source =
            |name: &str, files| SourceShare { storage: name.parse().unwrap(), files, bytes: files * 500_000 };
        let complete = files == 2_000;
        SubscriptionView {
            charged_to: None,
            id: IdMaker::default().next(now()),
            dataset: "demo/set1".parse().unwrap(),
            block: None,
            storage: storage.parse().unwrap(),
            state: SubscriptionState::Active,
            priority: 5,
            verification: Verification::EndToEnd,
            terms: longhaul_api::steering::Terms::default(),
            custodial: false,
            cancel_consent: None,
            promise: None,
            created: now(),
            files_wanted: 2_000,
            bytes_wanted: 1_000_000_000,
            files_present: files,
            bytes_present: files * 500_000,
            complete,
            completed: complete.then(now),
            rate_now: if complete { 0.0 } else { 612e6 },
            rate_average: 588e6,
            files_running: 16,
            retries: 0,
            failed_files: 0,
            sources: vec![source("alpha", files - from_beta), source("beta", from_beta)],
            space_warning: None,
            expected: Expected { why_none: Some("nothing has been moved yet".into()), ..Expected::default() },
            verified: vec![VerifiedCount { how: "end-to-end".into(), files }],
        }
    }

    fn report() -> DemoReport {
        let replica = |name: &str, how: &str| ReplicaView {
            storage: name.parse().unwrap(),
            files: 2_000,
            bytes: 1_000_000_000,
            complete: true,
            suspect_files: 0,
            suspect_bytes: 0,
            verified: vec![VerifiedCount { how: how.into(), files: 2_000 }],
        };
        let left = LeftOut { path: "run7/pipe\n".into(), reason: LeftOutReason::Fifo, detail: String::new() };
        DemoReport {
            complete: false,
            wrong: Vec::new(),
            state: "/tmp/longhaul-demo-x1".into(),
            url: "https://127.0.0.1:8443".into(),
            page: "http://127.0.0.1:8080/ui/?token=k3v".into(),
            seconds: 2.3,
            dataset: DatasetView {
                name: "demo/set1".parse().unwrap(),
                community: "default".parse().unwrap(),
                open: true,
                files: 2_000,
                bytes: 1_000_000_000,
                blocks: 2,
                created: now(),
                left_out: vec![LeftOutCount { reason: LeftOutReason::Fifo, count: 1, examples: vec![left] }],
                replicas: vec![
                    replica("alpha", "registered"),
                    replica("beta", "end-to-end"),
                    replica("gamma", "end-to-end"),
                ],
                scan: None,
            },
            subscriptions: vec![subscription("beta", 2_000, 0), subscription("gamma", 2_000, 760)],
            bytes_moved: 2_000_000_000,
            restarts: 1,
            checks: CheckReport {
                checks: vec![CheckResult {
                    name: "replica without file".into(),
                    violations: 0,
                    examples: vec![],
                }],
                sound: true,
            },
            example: Some(IdMaker::default().next(now())),
        }
    }

    #[test]
    fn the_block_fits_and_names_who_takes_from_whom() {
        let list = [subscription("beta", 1_481, 0), subscription("gamma", 1_160, 440)];
        for width in [80, 100, 120] {
            let lines = progress_block(&list, "alpha", now(), Some(width), Style::plain());
            assert!(lines.iter().all(|line| columns(line) <= width), "{width}: {lines:#?}");
            assert_eq!(lines[2], "         gamma takes 38 % of its files from beta");
            assert!(lines[0].starts_with("  beta   ") && lines[1].starts_with("  gamma  "), "{lines:#?}");
        }
        let plain = plain_line(&list, now());
        assert!(
            plain.starts_with("beta") && plain.contains("1,160 / 2,000 files") && !plain.contains('\n'),
            "{plain}"
        );
    }

    #[test]
    fn the_summary_says_what_was_verified_and_how() {
        let mut report = report();
        report.check();
        assert!(report.complete, "{:?}", report.wrong);
        let text = report.summary(Style::plain());
        for part in [
            "demo/set1 is complete at beta and gamma after 2.3 s.\n",
            "  4,000 files, 2.00 GB moved; 4,000 verified end to end (catalog digest = digest of the \
                bytes written); 0 retries\n",
            "  gamma took 38 % of its files from beta\n",
            "  1 process died and resumed\n",
            "  1 left out\n    1 named pipe: run7/pipe\\n\n",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }

    #[test]
    fn what_to_try_can_be_typed() {
        let text = report().suggestions("target/release/longhaul");
        for part in [
            "Open  http://127.0.0.1:8080/ui/?token=k3v\n",
            "Try:  kill -9 $(cat /tmp/longhaul-demo-x1/beta/pid)\n",
            "      target/release/longhaul verify beta demo/set1 --dir /tmp/longhaul-demo-x1\n",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }

    /// Promise 2: a count that does not match is never reported as success.
    #[test]
    fn a_wrong_count_is_no_success() {
        let spoiled: [fn(&mut DemoReport); 6] = [
            |report| report.subscriptions[1].complete = false,
            |report| report.subscriptions[0].bytes_present -= 1,
            |report| report.dataset.replicas[1].files -= 1,
            |report| report.dataset.replicas[2].verified[0].how = "registered".into(),
            |report| report.dataset.replicas[2].suspect_files = 1,
            |report| {
                report.checks.sound = false;
                report.checks.checks[0].violations = 1;
            },
        ];
        for spoil in spoiled {
            let mut report = report();
            spoil(&mut report);
            report.check();
            assert!(!report.complete && !report.wrong.is_empty());
            let text = report.summary(Style::plain());
            assert!(text.contains("NOT correct") && !text.contains("is complete"), "{text}");
        }
    }

    /// `demo --data` with a directory that has no files.
    #[test]
    fn where_there_is_nothing_to_bring_all_is_complete() {
        let mut report = report();
        (report.dataset.files, report.dataset.bytes) = (0, 0);
        report.dataset.replicas.clear();
        for one in &mut report.subscriptions {
            (one.files_present, one.bytes_present) = (0, 0);
        }
        report.check();
        assert!(report.complete, "{:?}", report.wrong);
    }

    #[test]
    fn names_are_joined_as_people_do() {
        assert_eq!(join_names(&["beta"]), "beta");
        assert_eq!(join_names(&["beta", "gamma", "delta"]), "beta, gamma and delta");
    }
}
