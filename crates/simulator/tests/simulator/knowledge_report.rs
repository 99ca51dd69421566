//! Network knowledge in whole worlds: a steady month raises no alarm, and a route change is detected, located
//! and avoided. Forecasts: see `forecasts`.

use std::path::PathBuf;

use longhaul_network::{CauseLocation, Shift};
use longhaul_simulator::knowledge_report::DetectedChange;
use longhaul_simulator::{Plan, Policy, Report, Scenario, simulate};

const DAY_S: f64 = 86_400.0;

/// A shipped scenario up to a time, with more to it.
fn plan(name: &str, until: f64, more: &str, seed: u64) -> Plan {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/{name}.toml"));
    let text = std::fs::read_to_string(path).unwrap() + more;
    let mut scenario = Scenario::parse(&text).unwrap();
    scenario.until.0 = until;
    Plan::new(&scenario, Some(seed)).unwrap()
}

fn run(name: &str, until: f64, more: &str) -> Report {
    simulate(&plan(name, until, more, 1), &Policy::parse("best").unwrap(), None)
}

/// How many steady months, each by a seed of its own; `cargo xtask soak steady` has a year of them.
fn steady_months() -> u64 {
    std::env::var("LONGHAUL_SOAK_STEADY_MONTHS").map_or(1, |months| months.parse().unwrap())
}

#[test]
fn a_steady_world_raises_no_more_than_one_false_alarm_a_month() {
    for seed in 1..=steady_months() {
        let report =
            simulate(&plan("steady-month", 30.0 * DAY_S, "", seed), &Policy::parse("best").unwrap(), None);
        let learned = &report.knowledge;
        let a_month = learned.false_alarms as f64 / learned.link_months;
        println!(
            "seed {seed}: {} false alarms in {:.0} months of links, {a_month:.3} in a month of a link",
            learned.false_alarms, learned.link_months
        );
        assert!(learned.link_months > 120.0, "{}", learned.link_months);
        assert!(a_month <= 1.0, "{:?}", learned.changes);
    }
}

/// The same world, where the way into a site becomes far slower: that is noticed in most runs. In three days
/// few files come that way, and which of them were alone on it hangs on chance.
#[test]
fn a_change_in_the_steady_world_is_noticed() {
    let change = "\n[[failure]]\nkind = \"link-degraded\"\nat = [\"*\"]\nto = [\"university-1\"]\n\
                  begin = \"2 d\"\nlasts = \"30 d\"\nfactor = 0.03\n";
    let runs_with = runs_with(("steady-month", 5.0, change), |noticed| {
        let mut of_change =
            noticed.iter().filter(|one| one.expected && one.target == "university-1").peekable();
        let some = of_change.peek().is_some();
        assert!(of_change.all(|one| one.change.is_worse()), "{noticed:?}");
        some
    });
    assert!(runs_with * 2 > RUNS, "noticed in {runs_with} of {RUNS} runs");
}

/// Where one run hangs on chance, so many are asked.
const RUNS: u64 = 12;

/// In how many of them, of a scenario's first days with an addition, that holds of what was noticed.
fn runs_with(
    (scenario, days, more): (&str, f64, &str),
    mut holds: impl FnMut(&[DetectedChange]) -> bool,
) -> u64 {
    let run =
        |seed| simulate(&plan(scenario, days * DAY_S, more, seed), &Policy::parse("best").unwrap(), None);
    (1..=RUNS).filter(|&seed| holds(&run(seed).knowledge.changes)).count() as u64
}

#[test]
fn the_route_change_of_taiwan_is_noticed_located_and_avoided() {
    let sent = |report: &Report| report.bytes_through.iter().find(|row| row.0 == "taiwan out").unwrap().1;
    let before = run("taiwan", 3.0 * DAY_S, "");
    let report = run("taiwan", 6.0 * DAY_S, "");
    let changes: Vec<&DetectedChange> = report
        .knowledge
        .changes
        .iter()
        .filter(|one| one.source == "taiwan" && one.target == "qmul")
        .collect();
    // By the first probe after it: the round trip, and that there are other routers on the way. Whether other
    // links are as they were shows when files have come over them.
    let probed = changes.first().unwrap();
    assert!(matches!(probed.change.shift, Shift::RoundTrip { .. }), "{probed:?}");
    assert!(probed.expected && probed.change.is_worse() && probed.probes == 1, "{probed:?}");
    assert!((3.0 * DAY_S..3.0 * DAY_S + 301.0).contains(&probed.at), "{probed:?}");
    assert!(probed.change.rerouted.is_some(), "{probed:?}");
    // By the files that come: the rate.
    let change = changes.iter().find(|one| matches!(one.change.shift, Shift::Rate { .. })).unwrap();
    assert!(change.expected && change.change.is_worse() && change.at > 3.0 * DAY_S, "{change:?}");
    assert!(change.files <= 20, "{change:?}");
    assert_eq!(change.change.location, CauseLocation::Link, "{change:?}");
    let (first, second) = (sent(&before), sent(&report) - sent(&before));
    assert!(second < 0.6 * first, "{second} bytes came that way in three days, {first} before");
}

/// What a single run of that world tells hangs on chance: the traffic of others takes 60 % of two ports, and
/// at times 95 %.
#[test]
fn in_most_runs_of_taiwan_the_change_is_noticed_in_time_and_little_else_is_told() {
    let mut false_alarms = 0;
    let in_time = runs_with(("taiwan", 6.0, ""), |noticed| {
        false_alarms += noticed.iter().filter(|one| !one.expected).count() as u64;
        let rated = |one: &&DetectedChange| one.expected && matches!(one.change.shift, Shift::Rate { .. });
        let change = noticed.iter().find(rated);
        change.is_some_and(|change| change.files <= 20 && change.change.location == CauseLocation::Link)
    });
    assert!(in_time * 2 >= RUNS, "{in_time} of {RUNS}");
    assert!(false_alarms * 2 <= RUNS * 7, "{false_alarms} in {RUNS} times six days");
}
