//! The demo under a limit: three sites that take in 2 MB/s each. How soon each link moves, what enters the
//! sites, how priorities share it, and what is said of it meanwhile.
//!
//! All three want something: beta and gamma the demo's own data, and alpha two datasets of other priorities,
//! one from each of the others. So all six links between them have work at one time or another. The demo, its
//! limits and its subscriptions are made by the commands that a user types; figures are those of the API.

mod demo;
mod forecasts;
mod links;
mod pictures;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longhaul_api::routes;
use longhaul_testbed::http::Api;
use serde_json::{Value, json};

use crate::Rounds;
use crate::measure::{Row, make_files};
use demo::Demo;
use links::LinkWatch;

const CASE: &str = "limits";
const DEMO_WORDS: [&str; 4] = ["--sites", "3", "--size", "1.5GB"];
/// The dataset that the demo registers at the first site and wants at all others.
const DEMO_DATASET: &str = "demo/set1";
/// As it is typed, as it is shown, and as a number.
const LIMIT_WORD: &str = "2MB";
const LIMIT_SHOWN: &str = "2.00 MB/s";
const LIMIT_BYTES_PER_S: f64 = 2e6;
/// Until leases and agents are in step with the limit.
const WARM_UP: Duration = Duration::from_secs(20);
const WINDOW_S: u32 = 60;
/// How far a rate may be off its limit, and a share off what is due.
const ERROR_MAX: f64 = 0.05;
/// The part of an activity's bytes that goes to lower priorities (`Settings::relief` of the scheduler).
const RELIEF_SHARE: f64 = 1.0 / 16.0;
/// Turns cost the bytes of a file and a constant: shares are those of bytes where all files have one size.
const FILE_BYTES: usize = 500_000;

/// Each site has a storage of its name; and the figure of what enters it.
const SITES: [(&str, &str); 3] = [
    ("alpha", "MB/s into alpha, in a minute"),
    ("beta", "MB/s into beta, in a minute"),
    ("gamma", "MB/s into gamma, in a minute"),
];

/// A dataset at one site, wanted at alpha, where nobody else wants anything.
struct Work {
    dataset: &'static str,
    source: &'static str,
    folder: &'static str,
    /// More than come while it is measured.
    files: usize,
    priority: &'static str,
    due_share: f64,
    figure: &'static str,
}

const WORK: [Work; 2] = [
    Work {
        dataset: "bench/urgent",
        source: "beta",
        folder: "urgent",
        files: 600,
        priority: "8",
        due_share: 1.0 - RELIEF_SHARE,
        figure: "share of priority 8, of the bytes into alpha",
    },
    Work {
        dataset: "bench/patient",
        source: "gamma",
        folder: "patient",
        files: 200,
        priority: "2",
        due_share: RELIEF_SHARE,
        figure: "share of priority 2, of the bytes into alpha",
    },
];

impl Work {
    /// Registers and subscribes it; returns the subscription.
    fn subscribe(&self, demo: &Demo) -> String {
        make_files(&demo.storage(self.source).join(self.folder), self.files, FILE_BYTES);
        let scanned = format!("{}:{}", self.source, self.folder);
        demo.json(&["dataset", "register", self.dataset, "--scan", &scanned]);
        let made = demo.json(&["subscribe", self.dataset, "alpha", "--priority", self.priority]);
        made["id"].as_str().expect("a subscription has an id").to_owned()
    }
}

/// Once, whatever the rounds: it is a minute's mean, and not a time.
pub(crate) fn run(_: &Rounds) -> Vec<Row> {
    let demo = Demo::start(&DEMO_WORDS);
    for (site, _) in SITES {
        demo.run_until_ok(&["site", "limit", site, "--in", LIMIT_WORD]);
    }
    // What is leased under no limit is all of the demo's data.
    let is_in_time = !demo.has_said("subscribed");
    let api = demo.api();
    let mut rows = vec![Row::at_least(
        CASE,
        "limits that were set before anything was wanted",
        if is_in_time { SITES.len() as f64 } else { 0.0 },
        SITES.len() as f64,
        "≥ 3",
    )];
    let (measured, links) = thread::scope(|scope| {
        // The watch ends with this sender, also if a figure cannot be had.
        let (sender, stop) = mpsc::channel();
        let watched = &api;
        let links = scope.spawn(move || LinkWatch::run(watched, &stop));
        let measured = measure(&demo, &api);
        drop(sender);
        (measured, links.join().expect("the API answers"))
    });
    rows.extend(links.rows());
    rows.extend(measured);
    demo.stop();
    rows
}

fn measure(demo: &Demo, api: &Api) -> Vec<Row> {
    demo.wait_until_said("subscribed");
    let subscriptions = WORK.each_ref().map(|work| work.subscribe(demo));
    thread::sleep(WARM_UP);
    let bytes = || subscriptions.each_ref().map(|id| bytes_present(api, id));
    let before = bytes();
    thread::sleep(Duration::from_secs(WINDOW_S.into()));
    let after = bytes();
    let mut rows: Vec<Row> = SITES.map(|(site, figure)| rate_row(figure, rate_into(api, site))).into();
    rows.extend(share_rows([0, 1].map(|place: usize| after[place].saturating_sub(before[place]))));
    let status = api.get(&routes::STATUS, &[], &[]);
    let wanted = status["subscriptions"].as_array().into_iter().flatten();
    let of_demo: Vec<&Value> = wanted.filter(|view| view["dataset"] == json!(DEMO_DATASET)).collect();
    rows.extend(forecasts::rows(&of_demo, &status["now"]));
    rows.push(forecasts::causes_row(api));
    rows.push(problems_row(&status));
    let first = of_demo.first().and_then(|view| view["id"].as_str());
    rows.extend(first.and_then(|subscription| pictures::take(demo, api, subscription)));
    rows
}

fn bytes_present(api: &Api, subscription: &str) -> u64 {
    let view = api.get(&routes::SUBSCRIPTION_SHOW, &[subscription], &[]);
    view["bytes_present"].as_u64().expect("a subscription has bytes")
}

/// The mean over the last minute, in bytes per second.
fn rate_into(api: &Api, site: &str) -> f64 {
    let seconds = WINDOW_S.to_string();
    let query = [("target", site), ("seconds", seconds.as_str())];
    let history = api.get(&routes::RATE_HISTORY, &[], &query);
    let rates: Vec<f64> =
        history["total"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

fn rate_row(figure: &'static str, bytes_per_s: f64) -> Row {
    let ratio = bytes_per_s / LIMIT_BYTES_PER_S;
    Row {
        value: format!("{:.3}", bytes_per_s / 1e6),
        yardstick: format!("{LIMIT_SHOWN}, the limit"),
        ratio: Some(ratio),
        bar: "within 5 % of the limit",
        reached: (ratio - 1.0).abs() <= ERROR_MAX,
        ..Row::plain(CASE, figure, 0.0)
    }
}

/// What came of each of [`WORK`].
fn share_rows(bytes: [u64; 2]) -> impl Iterator<Item = Row> {
    let all = bytes.iter().sum::<u64>().max(1);
    WORK.into_iter().zip(bytes).map(move |(work, bytes)| {
        let share = bytes as f64 / all as f64;
        Row {
            value: format!("{share:.3}"),
            yardstick: format!("{:.4} due", work.due_share),
            bar: "within 0.05 of what is due",
            reached: (share - work.due_share).abs() <= ERROR_MAX,
            ..Row::plain(CASE, work.figure, share)
        }
    })
}

fn problems_row(status: &Value) -> Row {
    let problems = status["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
    problems.iter().for_each(|problem| eprintln!("  problem: {problem}"));
    Row::at_most(CASE, "problems", problems.len() as f64, 0.0, "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_measured_by_what_is_due() {
        let reached = |bytes| share_rows(bytes).map(|row| row.reached).collect::<Vec<bool>>();
        assert_eq!(reached([112_500_000, 7_500_000]), [true, true]);
        assert_eq!(reached([105_000_000, 15_000_000]), [false, false], "an eighth is twice what is due");
        assert_eq!(reached([120_000_000, 0]), [false, false], "nobody starves");
        assert_eq!(reached([0, 0]), [false, false]);
        assert_eq!(WORK.iter().map(|work| work.due_share).sum::<f64>(), 1.0);
    }

    #[test]
    fn a_rate_may_be_off_its_limit_by_a_twentieth() {
        let reached = |rate| rate_row("x", rate).reached;
        assert!(reached(1.91e6) && reached(2.09e6) && !reached(1.89e6) && !reached(2.11e6) && !reached(0.0));
    }
}
