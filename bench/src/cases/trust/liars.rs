//! What an agent that reports of things of others costs an honest deployment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_api::agent::{AttemptTimes, Fact, Outcome};
use longhaul_model::{AttemptId, DigestSet, Epoch, TaskId, Verification};
use longhaul_testbed::{Deployment, SiteOptions};
use serde_json::json;

use super::at_most;
use super::reporter::Reporter;
use crate::Rounds;
use crate::measure::{Row, make_files, median, seconds_of};

const FILES: usize = 20_000;
const SIZE: usize = 8_000;
const FACTS_PER_S: u64 = 200;
const REPORTS_PER_S: u64 = 10;

/// Alternates between deliveries with and without the reporter.
pub(super) fn run(rounds: &Rounds) -> Vec<Row> {
    let mut deployment = Deployment::new();
    ["alpha", "beta"].into_iter().for_each(|site| deployment.add_site(SiteOptions::new(site)));
    let liar = Reporter::join(&deployment, "mallory");
    let told = AtomicU64::new(0);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    // One delivery before, so that both have warm caches.
    deliver(&deployment, 0);
    for round in 0..2 * rounds.0 {
        if round.is_multiple_of(2) {
            alone.push(deliver(&deployment, round + 1));
        } else {
            beside.push(deliver_beside(&deployment, &liar, &told, round + 1));
        }
    }
    eprintln!("  alone {alone:.2?} s, beside a liar {beside:.2?} s, {} claims", told.load(Ordering::Relaxed));
    let (alone, beside) = (median(alone), median(beside));
    vec![Row {
        yardstick: format!("{alone:.2} s without"),
        ..at_most(
            "20,000 files beside 200 foreign facts a second, time by that without",
            beside / alone,
            1.1,
            "≤ 1.1",
        )
    }]
}

/// Seconds from the subscription to the last file.
fn deliver(deployment: &Deployment, number: usize) -> f64 {
    let dataset = format!("bench/liars{number}");
    make_files(&deployment.storage("alpha").join(format!("r{number}")), FILES, SIZE);
    deployment.register(&dataset, &format!("alpha:r{number}"));
    seconds_of(&deployment.json(&["subscribe", &dataset, "beta", "--wait=600"]))
}

fn deliver_beside(deployment: &Deployment, liar: &Reporter, told: &AtomicU64, number: usize) -> f64 {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| report_claims(liar, told, &over));
        let seconds = deliver(deployment, number);
        over.store(true, Ordering::Relaxed);
        seconds
    })
}

/// Claims that leases and tasks of others have ended, well or badly, at a steady rate.
fn report_claims(liar: &Reporter, told: &AtomicU64, over: &AtomicBool) {
    let mut connection = liar.connect();
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let first = told.fetch_add(FACTS_PER_S / REPORTS_PER_S, Ordering::Relaxed);
        let mut report = liar.report();
        let sequences = first + 1..=first + FACTS_PER_S / REPORTS_PER_S;
        report["entries"] =
            sequences.map(|number| json!({ "sequence": number, "fact": claim(number) })).collect();
        connection.send(report);
        next += Duration::from_secs(1) / REPORTS_PER_S as u32;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn claim(number: u64) -> Fact {
    if number.is_multiple_of(2) {
        return Fact::TaskDone { task: TaskId(number), fault: None };
    }
    Fact::Outcome(Outcome {
        attempt: AttemptId(number),
        epoch: Epoch(1),
        fault: None,
        digests: DigestSet::default(),
        verification: Verification::EndToEnd,
        already_there: false,
        bytes_moved: 1,
        bytes_resent: 0,
        executor: None,
        times: AttemptTimes::default(),
    })
}
