//! What the scheduler's knowledge of the network comes to in whole worlds: a steady month raises no alarm, and a route
//! that changes is noticed, located and avoided. How forecasts turn out: `forecasts`.

use std::path::PathBuf;

use longhaul_network::{Location, Shift};
use longhaul_simulator::learned::Noticed;
use longhaul_simulator::{Plan, Report, Scenario, Way, simulate};

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
    simulate(&plan(name, until, more, 1), &Way::named("best").unwrap(), None)
}

/// How many steady months, each by a seed of its own; `cargo xtask soak steady` has a year of them.
fn steady_months() -> u64 {
    std::env::var("LONGHAUL_SOAK_STEADY_MONTHS").map_or(1, |months| months.parse().unwrap())
}

#[test]
fn a_steady_world_raises_no_more_than_one_false_alarm_a_month() {
    for seed in 1..=steady_months() {
        let report =
            simulate(&plan("steady-month", 30.0 * DAY_S, "", seed), &Way::named("best").unwrap(), None);
        let learned = &report.learned;
        let a_month = learned.false_alarms as f64 / learned.link_months;
        println!(
            "seed {seed}: {} false alarms in {:.0} months of links, {a_month:.3} in a month of a link",
            learned.false_alarms, learned.link_months
        );
        assert!(learned.link_months > 120.0, "{}", learned.link_months);
        assert!(a_month <= 1.0, "{:?}", learned.noticed);
    }
}

/// The same world, where the way into a site becomes far slower: that is noticed in most runs. In three days few files come that way, and
/// which of them were alone on it hangs on chance.
#[test]
fn a_change_in_the_steady_world_is_noticed() {
    const RUNS: u64 = 12;
    let change = "\n[[failure]]\nkind = \"link-degraded\"\nat = [\"*\"]\nto = [\"university-1\"]\n\
                  begin = \"2 d\"\nlasts = \"30 d\"\nfactor = 0.03\n";
    let mut runs_with = 0;
    for seed in 1..=RUNS {
        let plan = plan("steady-month", 5.0 * DAY_S, change, seed);
        let report = simulate(&plan, &Way::named("best").unwrap(), None);
        let of_change = |one: &&Noticed| one.due && one.target == "university-1";
        let noticed: Vec<&Noticed> = report.learned.noticed.iter().filter(of_change).collect();
        assert!(noticed.iter().all(|one| one.change.worse()), "{noticed:?}");
        runs_with += u64::from(!noticed.is_empty());
    }
    assert!(runs_with * 2 > RUNS, "noticed in {runs_with} of {RUNS} runs");
}

#[test]
fn the_route_change_of_taiwan_is_noticed_located_and_avoided() {
    let sent = |report: &Report| report.through.iter().find(|row| row.0 == "taiwan out").unwrap().1;
    let before = run("taiwan", 3.0 * DAY_S, "");
    let report = run("taiwan", 6.0 * DAY_S, "");
    let changes: Vec<&Noticed> =
        report.learned.noticed.iter().filter(|one| one.source == "taiwan" && one.target == "qmul").collect();
    // By the first probe after it: the round trip, and that there are other routers on the way. Whether other links are as
    // they were shows when files have come over them.
    let probed = changes.first().unwrap();
    assert!(matches!(probed.change.shift, Shift::RoundTrip { .. }), "{probed:?}");
    assert!(probed.due && probed.change.worse() && probed.probes == 1, "{probed:?}");
    assert!((3.0 * DAY_S..3.0 * DAY_S + 301.0).contains(&probed.at), "{probed:?}");
    assert!(probed.change.rerouted.is_some(), "{probed:?}");
    // By the files that come: the rate.
    let change = changes.iter().find(|one| matches!(one.change.shift, Shift::Rate { .. })).unwrap();
    assert!(change.due && change.change.worse() && change.at > 3.0 * DAY_S, "{change:?}");
    assert!(change.files <= 20, "{change:?}");
    assert_eq!(change.change.location, Location::Link, "{change:?}");
    let (first, second) = (sent(&before), sent(&report) - sent(&before));
    assert!(second < 0.6 * first, "{second} bytes came that way in three days, {first} before");
}

/// What a single run of that world tells hangs on chance: the traffic of others takes 60 % of two ports, and at times 95 %.
#[test]
fn in_most_runs_of_taiwan_the_change_is_noticed_in_time_and_little_else_is_told() {
    const RUNS: u64 = 12;
    let (mut false_alarms, mut in_time) = (0, 0);
    for seed in 1..=RUNS {
        let report = simulate(&plan("taiwan", 6.0 * DAY_S, "", seed), &Way::named("best").unwrap(), None);
        let rated = |one: &&Noticed| one.due && matches!(one.change.shift, Shift::Rate { .. });
        let change = report.learned.noticed.iter().find(rated);
        let at_once = |one: &Noticed| one.files <= 20 && one.change.location == Location::Link;
        in_time += u64::from(change.is_some_and(at_once));
        false_alarms += report.learned.noticed.iter().filter(|one| !one.due).count() as u64;
    }
    assert!(in_time * 2 >= RUNS, "{in_time} of {RUNS}");
    assert!(false_alarms * 2 <= RUNS * 7, "{false_alarms} in {RUNS} times six days");
}
