//! Whole worlds: the same seed gives the same report, bytes are neither lost nor made, no capacity is
//! exceeded, the bound holds, and its proof adds up.

use std::collections::BTreeMap;
use std::path::PathBuf;

use longhaul_simulator::bound::Certificate;
use longhaul_simulator::generate::{KINDS, generate};
use longhaul_simulator::rate_error::compare_rates;
use longhaul_simulator::scenario::FailureKind;
use longhaul_simulator::{Plan, Policy, Rates, Report, Scenario, simulate};

fn plan(text: &str) -> Plan {
    Plan::new(&Scenario::parse(text).unwrap(), None).unwrap()
}

fn run(plan: &Plan, policy: &str) -> Report {
    simulate(plan, &Policy::parse(policy).unwrap(), None)
}

fn random(kind: &str, seed: u64) -> Plan {
    plan(&generate(kind, seed).unwrap())
}

/// What holds in every world.
fn sound(report: &Report) {
    let name = (&report.summary.scenario, &report.summary.strategy);
    assert!(
        report.utilization_max <= 1.0 + 1e-9,
        "{name:?}: {} of a capacity was used",
        report.utilization_max
    );
    assert!(report.summary.bytes_moved >= report.summary.bytes_wanted, "{name:?}");
    if let Some(makespan) = report.summary.makespan_s {
        let bound = report.summary.makespan_bound_s;
        assert!(bound <= makespan * (1.0 + 1e-6), "{name:?}: bound {bound}, makespan {makespan}");
        assert!(bound > 0.0, "{name:?}");
    }
}

#[test]
fn random_worlds_are_sound_and_above_their_bound() {
    for kind in KINDS {
        for seed in 1..=4 {
            let plan = random(kind, seed);
            for policy in ["best", "queue", "duration/fts3"] {
                let report = run(&plan, policy);
                sound(&report);
                assert_eq!(report.unfinished, 0, "{}: {:?}", report.summary.scenario, report.wait_reasons);
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    for kind in KINDS {
        let text = generate(kind, 7).unwrap();
        let show = |report: Report| format!("{report:?}");
        assert_eq!(show(run(&plan(&text), "best")), show(run(&plan(&text), "best")), "{kind}");
    }
    let one = run(&random("failures", 7), "best");
    let other = run(&random("failures", 8), "best");
    assert_ne!(one.summary.bytes_wanted, other.summary.bytes_wanted);
}

#[test]
fn worlds_that_fail_have_all_that_can_be_wrong() {
    for seed in 1..=3 {
        let plan = random("failures", seed);
        let has = |kind| plan.failures.iter().any(|trouble| trouble.kind == kind);
        for kind in [
            FailureKind::SiteDown,
            FailureKind::LinkDegraded,
            FailureKind::SlowStorage,
            FailureKind::CredentialOutage,
        ] {
            assert!(has(kind), "{seed}: {kind:?}");
        }
        assert!(plan.work.blocks.iter().all(|block| block.bad > 0.0), "{seed}: bad replicas");
        assert!(!plan.history.is_empty(), "{seed}: wrong memories");
    }
}

const TWO: &str = r#"
name = "two"
until = "1 d"
[[site]]
name = "a"
port = "8 Gbit/s"
[[site]]
name = "b"
port = "4 Gbit/s"
[[dataset]]
name = "data"
files = 100
at = ["a"]
[[campaign]]
datasets = ["data"]
to = ["b"]
"#;

#[test]
fn what_leaves_arrives() {
    let report = run(&plan(TWO), "best");
    assert_eq!(report.summary.bytes_moved, 100_000_000_000);
    assert_eq!(report.summary.bytes_wanted, 100_000_000_000);
    let through = |name: &str| report.bytes_through.iter().find(|row| row.0 == name).unwrap().1;
    for port in ["a out", "b in"] {
        assert!((through(port) / 100e9 - 1.0).abs() < 1e-6, "{port}: {}", through(port));
    }
    assert!(through("a in") == 0.0 && through("b out") == 0.0);
    // 100 GB at 500 MB/s, and the first round trips.
    let makespan = report.summary.makespan_s.unwrap();
    assert!((200.0..202.0).contains(&makespan), "{makespan}");
    assert!((report.summary.makespan_bound_s - 200.0).abs() < 1e-6);
}

#[test]
fn loss_and_windows_limit_a_stream() {
    let far = TWO.replace(
        "[[dataset]]",
        "[links]\nrtt = \"100 ms\"\n[model]\nstreams = 1\nwindow = \"5 MB\"\n[[dataset]]",
    );
    // 5 MB each 100 ms.
    let report = run(&plan(&far), "best");
    let makespan = report.summary.makespan_s.unwrap();
    assert!((2_000.0..2_020.0).contains(&makespan), "{makespan}");
    assert!((report.summary.makespan_bound_s - 2_000.0).abs() < 1.0, "{}", report.summary.makespan_bound_s);
    let lossy = far.replace("rtt = \"100 ms\"", "rtt = \"100 ms\"\nloss = 1e-4");
    assert!(run(&plan(&lossy), "best").summary.makespan_s.unwrap() > 2.0 * makespan);
}

#[test]
fn a_circuit_carries_past_a_narrow_segment() {
    let narrow =
        format!("{TWO}[[segment]]\nname = \"sea\"\ncapacity = \"1 Gbit/s\"\nfrom = [\"a\"]\nto = [\"b\"]\n");
    let slow = run(&plan(&narrow), "best").summary.makespan_s.unwrap();
    assert!((800.0..805.0).contains(&slow), "{slow}");
    let circuit =
        "[[circuit]]\nfrom = \"a\"\nto = \"b\"\ncapacity = \"4 Gbit/s\"\nbegin = \"100 s\"\nend = \"1 h\"\n";
    let fast = run(&plan(&format!("{narrow}{circuit}")), "best").summary.makespan_s.unwrap();
    // 12.5 GB before it, the rest at 500 MB/s.
    assert!((275.0..280.0).contains(&fast), "{fast}");
}

/// Compares each world by the bytes of an hour. Means of datasets too; where files fail by lot, of several
/// worlds together: a decision that falls another way there draws another lot for all files after it.
#[test]
fn once_a_second_is_near_enough() {
    for (kind, seeds) in [("mesh", 11..=13), ("streams", 11..=13), ("failures", 11..=18)] {
        let mut ratios = Vec::new();
        for seed in seeds {
            let mut scenario = Scenario::parse(&generate(kind, seed).unwrap()).unwrap();
            scenario.until.0 = 3_600.0;
            let plan = Plan::new(&scenario, None).unwrap();
            let policy = Policy::parse("best").unwrap();
            let exact = simulate(&plan, &policy, Some(Rates::Exact));
            let second = simulate(&plan, &policy, Some(Rates::Second));
            sound(&second);
            // What is moved for nothing is another matter: which source a file comes from first, where some
            // replicas are bad.
            let bytes = |report: &Report| match kind {
                "failures" => report.summary.bytes_wanted as f64,
                _ => report.summary.bytes_moved as f64,
            };
            let mean = |report: &Report| report.summary.dataset_mean_s.unwrap();
            let ratio = mean(&second) / mean(&exact);
            assert!(kind == "failures" || near(ratio, 0.05), "{kind} {seed}: means of datasets: {ratio}");
            ratios.push(ratio);
            let (exact, second) = (bytes(&exact), bytes(&second));
            assert!(near(second / exact, 0.01), "{kind} {seed}: {exact} and {second}");
        }
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        println!("{kind}: {ratios:.3?}, {mean:.4} together");
        assert!(near(mean, 0.03), "{kind}: means of datasets together: {mean}, of {ratios:?}");
    }
}

fn near(ratio: f64, within: f64) -> bool {
    (ratio - 1.0).abs() <= within
}

/// What is shipped with rates once a second is near enough to exact ones, too; the grid by its first ten
/// minutes, since exact rates of an hour take long there.
#[test]
fn once_a_second_is_near_enough_where_it_is_shipped() {
    let mut seen = 0;
    for (name, text) in shipped() {
        let mut scenario = Scenario::parse(&text).unwrap();
        if scenario.model.rates != Rates::Second {
            continue;
        }
        seen += 1;
        if name == "grid" {
            scenario.until.0 = 600.0;
        }
        let hour = compare_rates(&Plan::new(&scenario, None).unwrap(), &Policy::parse("best").unwrap());
        assert!(hour.exact > 0.0 && hour.is_within_limit(), "{name}: {:.4}, {hour:?}", hour.error());
    }
    assert!(seen >= 8, "{seen}");
}

/// The proof, added up with ways of the plan: prices by name, no search. By the text alone: bound.rs.
#[test]
fn the_proof_of_the_bound_adds_up() {
    for (kind, seed) in [("mesh", 1), ("replicas", 2), ("failures", 3), ("streams", 4)] {
        let plan = random(kind, seed);
        let report = run(&plan, "best");
        let certificate = &report.certificate;
        let prices: BTreeMap<&str, f64> =
            certificate.capacities.iter().map(|row| (row.name.as_str(), row.price)).collect();
        assert!(prices.values().all(|price| *price >= 0.0));
        let cost: f64 = certificate
            .groups
            .iter()
            .map(|group| {
                let least = |to: u32| {
                    let others = group.sources.iter().chain(&group.targets).filter(|&&from| from != to);
                    others.map(|&from| edge(&plan, &prices, from, to)).fold(f64::INFINITY, f64::min)
                };
                let sum: f64 = group.targets.iter().map(|&to| least(to)).sum();
                // At least one of them has it from a first replica, which may cost more.
                let more = group.targets.iter().map(|&to| {
                    let first = group.sources.iter().map(|&from| edge(&plan, &prices, from, to));
                    first.fold(f64::INFINITY, f64::min) - least(to)
                });
                let price = sum + more.fold(f64::INFINITY, f64::min);
                assert!(
                    (group.price / price.max(1e-30) - 1.0).abs() < 1e-9 || group.price == price,
                    "{kind}"
                );
                group.bytes * price
            })
            .sum();
        let bound = certificate.bound;
        let own = certificate.last.map_or(0.0, |last| last.bound());
        let own = own.max(certificate.recall.map_or(0.0, |recall| recall.bound()));
        let own = own.max(certificate.session.map_or(0.0, |session| session.bound()));
        if bound > own {
            // Just below the bound the capacities cannot pay for it.
            assert!(paid(certificate, bound * (1.0 - 1e-9)) <= cost, "{kind}");
            assert!(paid(certificate, bound * (1.0 + 1e-9)) >= cost * (1.0 - 1e-9), "{kind}");
        }
    }
}

fn edge(plan: &Plan, prices: &BTreeMap<&str, f64>, from: u32, to: u32) -> f64 {
    let layout = &plan.layout;
    let (source, target) = (&layout.sites[from as usize], &layout.sites[to as usize]);
    let mut ways: Vec<u32> = plan
        .route(source.pools.start, target.pools.start, longhaul_simulator::plan::Via::Links)
        .capacities()
        .to_vec();
    ways.dedup();
    let named = ways.iter().map(|&policy| layout.capacities[policy as usize].name.clone());
    let session = format!("session {} → {}", source.name, target.name);
    named.chain([session]).map(|name| prices.get(name.as_str()).copied().unwrap_or(0.0)).sum()
}

/// Σ price × what the capacity carries up to a time.
fn paid(certificate: &Certificate, until: f64) -> f64 {
    let carried = |rate: &[(f64, f64)]| {
        let ends = rate.iter().skip(1).map(|(from, _)| *from).chain([f64::INFINITY]);
        let parts = rate.iter().zip(ends);
        parts.map(|((from, rate), end)| rate * (end.min(until) - from).max(0.0)).sum::<f64>()
    };
    certificate.capacities.iter().map(|row| row.price * carried(&row.rate)).sum()
}

fn shipped() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let toml = files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "toml"));
    toml.map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).unwrap())
    })
    .collect()
}

/// The first part of each: enough to meet what it is about.
#[test]
fn every_shipped_scenario_runs() {
    let all = shipped();
    assert!(all.len() >= 15, "{}", all.len());
    for (name, text) in all {
        let mut scenario = Scenario::parse(&text).unwrap_or_else(|mistake| panic!("{name}: {mistake}"));
        assert_eq!(scenario.name, name, "a scenario has the name of its file");
        assert!(!scenario.about.is_empty() && text.starts_with("# "), "{name}: says what it is after");
        scenario.until.0 = scenario.until.0.min(900.0);
        for stream in &mut scenario.stream {
            stream.begin.0 = 0.0;
            // Five datasets, or bursts of them, are to be expected.
            stream.files_per_day = f64::from(stream.files * stream.burst) * 5.0 * 96.0;
        }
        let plan = Plan::new(&scenario, None).unwrap_or_else(|mistake| panic!("{name}: {mistake}"));
        let report = run(&plan, "best");
        sound(&report);
        assert!(report.leases > 0, "{name}");
    }
}

#[test]
fn shares_are_obtained() {
    let (_, text) = shipped().into_iter().find(|(name, _)| name == "communities").unwrap();
    let mut scenario = Scenario::parse(&text).unwrap();
    scenario.until.0 = 3_600.0;
    let report = run(&Plan::new(&scenario, None).unwrap(), "best");
    assert_eq!(report.shares.len(), 10);
    for (name, wanted, got) in &report.shares {
        assert!((got - wanted).abs() < 0.02, "{name}: {got} of {wanted}");
    }
    assert!(report.summary.jain > 0.98, "{}", report.summary.jain);
}

/// A path falls by ten while leases wait at it: those that have not begun come from elsewhere.
#[test]
fn leases_behind_a_link_that_fell_are_given_back() {
    let text = include_str!("../../../../scenarios/falling-link.toml");
    let plan = plan(text);
    let (again, kept) = (run(&plan, "best/ask-back"), run(&plan, "best"));
    sound(&again);
    assert_eq!((again.unfinished, kept.unfinished, kept.leases_returned), (0, 0, 0));
    assert!(again.leases_returned > 50, "{}", again.leases_returned);
    assert_eq!(
        again.summary.bytes_moved, again.summary.bytes_wanted,
        "nothing that has begun is moved twice"
    );
    let gain = |of: fn(&Report) -> Option<f64>| of(&again).unwrap() / of(&kept).unwrap();
    let (mean, p95) =
        (gain(|report| report.summary.dataset_mean_s), gain(|report| report.summary.dataset_p95_s));
    assert!(
        mean < 0.9 && p95 < 0.85,
        "datasets are complete sooner: mean {mean:.3}, 95th percentile {p95:.3}"
    );
}
