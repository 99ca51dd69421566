//! The bound is proven by the text of its certificate alone: a program that knows nothing but that text adds
//! it up.

#[allow(dead_code)]
#[path = "../../examples/check_bound.rs"]
mod check_bound;

use std::path::PathBuf;

use check_bound::check;
use longhaul_simulator::generate::generate;
use longhaul_simulator::plan::Via;
use longhaul_simulator::{Plan, Policy, Report, Scenario, simulate};

fn plan(text: &str) -> Plan {
    Plan::new(&Scenario::parse(text).unwrap(), None).unwrap()
}

fn run(plan: &Plan) -> Report {
    simulate(plan, &Policy::parse("best").unwrap(), None)
}

/// A shipped scenario that ends early: all that is ever wanted is in its bound, whether there was time for it
/// or not.
fn shipped(name: &str, until: f64) -> Plan {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/{name}.toml"));
    let mut plan = plan(&std::fs::read_to_string(path).unwrap());
    plan.until = until;
    plan
}

/// The bound follows from the text, and no more than the bound.
fn proven(report: &Report) {
    let name = &report.summary.scenario;
    let seconds = check(&report.certificate.text()).unwrap_or_else(|why| panic!("{name}: {why}"));
    let bound = report.summary.makespan_bound_s;
    assert!((seconds / bound - 1.0).abs() < 1e-6, "{name}: {seconds} of {bound}");
}

#[test]
fn the_text_proves_the_bound_of_shipped_scenarios() {
    for (name, until) in [
        ("phedex-hierarchy", 900.0),
        ("tape-ingest", 43_200.0),
        ("tape-recall", 3_600.0),
        ("grid", 600.0),
        ("detour", 600.0),
        ("flapping", 3_600.0),
        ("circuits", 1_800.0),
    ] {
        proven(&run(&shipped(name, until)));
    }
}

#[test]
fn the_text_proves_the_bound_of_random_worlds() {
    for (kind, seed) in
        [("mesh", 1), ("hierarchy", 2), ("replicas", 2), ("failures", 3), ("streams", 4), ("tape", 5)]
    {
        proven(&run(&plan(&generate(kind, seed).unwrap())));
    }
}

/// Every way in the text crosses what files cross in the world, as far as that has a price, and nothing else.
#[test]
fn the_ways_of_the_text_are_those_of_the_world() {
    for (kind, seed) in [("mesh", 1), ("hierarchy", 2), ("tape", 5)] {
        let plan = plan(&generate(kind, seed).unwrap());
        let certificate = run(&plan).certificate;
        assert!(!certificate.crossings.is_empty());
        for row in &certificate.crossings {
            let (source, target) =
                (&plan.layout.sites[row.from as usize], &plan.layout.sites[row.to as usize]);
            let route = plan.route(source.pools.start, target.pools.start, Via::Links);
            let names = route.capacities().iter().map(|&at| plan.layout.capacities[at as usize].name.clone());
            let mut crossed: Vec<String> = names.collect();
            crossed.push(format!("session {} → {}", source.name, target.name));
            let priced = |name: &String| certificate.capacities.iter().any(|row| row.name == *name);
            crossed.retain(priced);
            let mut told: Vec<String> = row
                .capacities
                .iter()
                .map(|&number| certificate.capacities[number as usize].name.clone())
                .collect();
            crossed.sort();
            told.sort();
            assert_eq!(told, crossed, "{kind}");
        }
    }
}

/// Whatever is changed in the claim's favour is noticed.
#[test]
fn a_proof_that_was_tampered_with_is_none() {
    let report = run(&shipped("phedex-hierarchy", 900.0));
    let text = report.certificate.text();
    let change = |line: &str, change: &dyn Fn(&mut Vec<String>)| {
        let lines = text.lines().map(|row| {
            let mut fields: Vec<String> = row.split('\t').map(str::to_owned).collect();
            if row.starts_with(line) {
                change(&mut fields);
            }
            fields.join("\t")
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let scaled = |text: &str, factor: f64| format!("{:?}", text.parse::<f64>().unwrap() * factor);
    assert!(check(&text).is_ok());
    for (what, text) in [
        ("the bound", change("bound", &|fields| fields[1] = scaled(&fields[1], 1.001))),
        ("prices of groups", change("group", &|fields| fields[4] = scaled(&fields[4], 1.001))),
        ("a price below zero", change("capacity\t0\t", &|fields| fields[3] = "-1.0".to_owned())),
        ("rates", change("capacity", &|fields| fields[4] = fields[4].replace("0.0:", "0.0:9"))),
        ("what ways cross", change("way", &|fields| fields[3] = String::new())),
        ("capacities that are not there", change("way", &|fields| fields[3] = "99999".to_owned())),
        ("a line of another kind", change("bound", &|fields| fields[0] = "bond".to_owned())),
    ] {
        assert!(check(&text).is_err(), "{what}");
    }
}
