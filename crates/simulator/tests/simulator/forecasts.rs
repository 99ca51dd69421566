//! How the scheduler's forecasts turn out in whole worlds, in each quarter of the history that links have:
//! nine in ten outcomes lie within their interval, and the interval says more than the link's former rates.
//! `cargo xtask soak forecasts` does it for whole days of the grid.

mod outlooks;

use std::path::PathBuf;

use longhaul_simulator::{Plan, Policy, Scenario, simulate};

const HOUR_S: f64 = 3_600.0;
/// Hours of the grid; more of them in `cargo xtask soak`.
const HOURS: &str = "LONGHAUL_SOAK_FORECAST_HOURS";

fn keeps_its_promise(name: &str, until: f64) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/{name}.toml"));
    let mut scenario = Scenario::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    scenario.until.0 = until;
    let report = simulate(&Plan::new(&scenario, None).unwrap(), &Policy::parse("best").unwrap(), None);
    let quarters = &report.knowledge.forecasts;
    assert_eq!(quarters.len(), 4);
    println!(
        "{name}, {:.0} h: | outcomes before | outcomes | within 90 % | score | of former rates' |",
        until / HOUR_S
    );
    for quarter in quarters {
        println!("{quarter:?}");
    }
    for quarter in quarters {
        assert!(quarter.outcomes > 200, "{name}: {quarter:?}");
        assert!((0.85..=0.95).contains(&quarter.within), "{name}: {quarter:?}");
        let ratio = quarter.score_ratio.unwrap();
        assert!(ratio <= 0.8, "{name}: {quarter:?}");
    }
}

#[test]
fn in_the_grid() {
    let hours = std::env::var(HOURS).ok().map_or(1.0, |text| text.parse().unwrap());
    keeps_its_promise("grid", hours * HOUR_S);
}

#[test]
fn in_a_small_world_without_change() {
    keeps_its_promise("steady-month", 72.0 * HOUR_S);
}
