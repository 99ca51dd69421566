//! What the scheduler's knowledge of the network comes to in whole worlds: a steady month raises no alarm, and a route
//! that changes is noticed, located and avoided. How forecasts turn out: `forecasts`.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use longhaul_network::{Location, Shift};
use longhaul_simulator::learned::Noticed;
use longhaul_simulator::{Plan, Report, Scenario, Way, simulate};

const DAY_S: f64 = 86_400.0;

/// A shipped scenario up to a time, with more to it.
fn run(name: &str, until: f64, more: &str) -> Report {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/{name}.toml"));
    let text = std::fs::read_to_string(path).unwrap() + more;
    let mut scenario = Scenario::parse(&text).unwrap();
    scenario.until.0 = until;
    simulate(&Plan::new(&scenario, None).unwrap(), &Way::named("best").unwrap(), None)
}

/// Days of the steady month; `cargo xtask soak steady` has all thirty.
fn steady_days() -> u32 {
    std::env::var("LONGHAUL_SOAK_STEADY_DAYS").map_or(5, |days| days.parse().unwrap())
}

#[test]
fn a_steady_world_raises_no_more_than_one_false_alarm_a_month() {
    let days = steady_days();
    let report = run("steady-month", f64::from(days) * DAY_S, "");
    let learned = &report.learned;
    println!(
        "{days} days: {} false alarms in {:.1} months of links, {:.3} in a month of a link",
        learned.false_alarms,
        learned.link_months,
        learned.false_alarms as f64 / learned.link_months
    );
    assert!(learned.link_months > 4.0 * f64::from(days), "{}", learned.link_months);
    assert!(learned.false_alarms as f64 <= learned.link_months, "{:?}", learned.noticed);
}

/// The same world, where the way into a site becomes far slower: that is noticed.
#[test]
fn a_change_in_the_steady_world_is_noticed() {
    let change = "\n[[failure]]\nkind = \"link-degraded\"\nat = [\"*\"]\nto = [\"university-1\"]\n\
                  begin = \"2 d\"\nlasts = \"30 d\"\nfactor = 0.03\n";
    let report = run("steady-month", 5.0 * DAY_S, change);
    let noticed: Vec<&Noticed> =
        report.learned.noticed.iter().filter(|one| one.due && one.target == "university-1").collect();
    assert!(!noticed.is_empty(), "{:?}", report.learned.noticed);
    assert!(noticed.iter().all(|one| one.change.worse()), "{noticed:?}");
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
    // What else is told comes from where the traffic of others takes 60 % of the port and at times 95 %.
    let others = report.learned.noticed.iter().filter(|one| !one.due);
    assert!(others.clone().all(|one| one.source == "cern"), "{:?}", report.learned.noticed);
    assert!(others.count() <= 4, "{:?}", report.learned.noticed);
    let (first, second) = (sent(&before), sent(&report) - sent(&before));
    assert!(second < 0.6 * first, "{second} bytes came that way in three days, {first} before");
}
