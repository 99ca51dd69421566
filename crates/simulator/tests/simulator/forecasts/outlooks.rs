//! How the outlooks of subscriptions turn out in random deployments: the time by which nine in ten shall be
//! there holds in 85 to 95 % of them, under limits of ours, with a bad file among 6,000 and with a source
//! that dies; and what cannot move has no time. `cargo xtask soak forecasts` does it for 200 deployments of
//! each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use longhaul_model::{SubscriptionId, Timestamp};
use longhaul_scheduler::Outlook;
use longhaul_simulator::quantity::Span;
use longhaul_simulator::random::Random;
use longhaul_simulator::{Plan, Policy, Scenario, Snapshot, simulate_observed};

/// Fewer in the test command than in `cargo xtask soak`.
const DEPLOYMENTS: u64 = 20;
const DEPLOYMENTS_SOAK: u64 = 200;
/// Set by `cargo xtask soak forecasts`.
const SOAK: &str = "LONGHAUL_SOAK_FORECAST_HOURS";
/// Time between two looks at the outlooks.
const INTERVAL: Span = Span(2.0);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Limits,
    BadFile,
    DeadSource,
}

/// A deployment by its seed: a target, two or three sources, other traffic, a second subscription, and the
/// trouble of its kind.
fn deployment(kind: Kind, seed: u64) -> String {
    let mut random = Random::stream(seed, &format!("{kind:?}"));
    let mut text = format!(
        "name = \"outlook\"\nseed = {seed}\nuntil = \"4 h\"\n\n[model]\noverhead = \"{:.2} s\"\n\
         rates = \"second\"\n",
        random.between(0.02, 0.3)
    );
    let sources = 2 + random.below(2);
    for number in 0..=sources {
        let name = if number == 0 { "target".to_owned() } else { format!("source-{number}") };
        let _ = write!(
            text,
            "\n[[site]]\nname = \"{name}\"\nport = \"{:.0} MB/s\"\nbackground = {:.2}\n",
            random.between(60.0, 600.0),
            random.between(0.0, 0.5),
        );
        let binds = kind == Kind::Limits && (number == 0 || random.chance(0.3));
        if binds {
            let side = if number == 0 { "limit_in" } else { "limit_out" };
            let _ = writeln!(text, "{side} = \"{:.0} MB/s\"", random.between(4.0, 40.0));
        }
    }
    let (files, megabytes) = match kind {
        Kind::BadFile => (6_000, random.between(0.5, 4.0)),
        _ => (200 + random.below(1_000), random.between(2.0, 60.0)),
    };
    let damaged = u32::from(kind == Kind::BadFile);
    for (name, first) in [("data", 1), ("more", sources)] {
        let holders: Vec<String> = (first..=sources).map(|number| format!("\"source-{number}\"")).collect();
        let (files, damaged) = if name == "data" { (files, damaged) } else { (50 + random.below(200), 0) };
        let _ = write!(
            text,
            "\n[[dataset]]\nname = \"{name}\"\nfiles = {files}\nat = [{}]\ndamaged = {damaged}\n\
             sizes = {{ median = \"{megabytes:.1} MB\", sigma = {:.1} }}\n\
             \n[[campaign]]\nat = \"{:.0} s\"\ndatasets = [\"{name}\"]\nto = [\"target\"]\n",
            holders.join(", "),
            random.between(0.0, 1.0),
            if name == "data" { 0.0 } else { random.between(0.0, 60.0) },
        );
    }
    if kind == Kind::DeadSource {
        let begin = random.between(5.0, 60.0);
        let _ = write!(
            text,
            "\n[[failure]]\nkind = \"site-down\"\nat = [\"source-1\"]\nbegin = \"{begin:.0} s\"\n"
        );
    }
    text
}

/// One promise, and what came of it.
#[derive(Clone, Copy, Debug)]
struct Promise {
    kept: bool,
    /// Logarithms of the time taken and of the time within which nine in ten are there, over the median.
    taken: f64,
    ninety: f64,
    limit_binds: bool,
    bytes: u64,
    /// The quarter of the whole time in which it was made, 0 to 3.
    quarter: u64,
}

/// What one deployment told: one promise from each quarter of the way, for those of neighbouring moments are
/// one.
fn promises(kind: Kind, seed: u64) -> Vec<Promise> {
    let scenario = Scenario::parse(&deployment(kind, seed)).unwrap();
    let mut told: Vec<(f64, Outlook)> = Vec::new();
    let mut done: Option<f64> = None;
    let mut observe = |snapshot: &Snapshot<'_>| {
        let outlook = snapshot.scheduler.outlook(SubscriptionId(1), snapshot.now);
        // All that can come is there when there is no time any more.
        if outlook.median.is_some() {
            told.push((snapshot.seconds, outlook));
            done = None;
        } else {
            done.get_or_insert(snapshot.seconds);
        }
    };
    let plan = Plan::new(&scenario, None).unwrap();
    simulate_observed(&plan, &Policy::parse("best").unwrap(), INTERVAL, &mut observe);
    let done = done.unwrap_or(f64::MAX);
    let mut quarters: BTreeMap<u64, Promise> = BTreeMap::new();
    for (seconds, outlook) in told.iter().filter(|(seconds, _)| *seconds >= 10.0) {
        let begin = Timestamp(1_800_000_000_000_000);
        let left = |until: Option<Timestamp>| until.unwrap().since(begin).as_secs_f64() - seconds;
        let (median, ninety) = (left(outlook.median), left(outlook.ninety));
        let taken = done - seconds;
        let quarter = (4.0 * seconds / done) as u64;
        let promise = Promise {
            quarter,
            kept: taken <= ninety + INTERVAL.0 / 2.0,
            taken: (taken / median.max(0.1)).ln(),
            ninety: (ninety / median.max(0.1)).ln(),
            limit_binds: outlook.held_up_by.iter().any(|reason| reason.ends_with("its limit")),
            bytes: plan.work.datasets[0].bytes,
        };
        quarters.entry(quarter).or_insert(promise);
    }
    quarters.into_values().collect()
}

fn share_kept<'a>(promises: impl Iterator<Item = &'a Promise>) -> (usize, f64) {
    let (all, kept) = promises.fold((0, 0), |(all, kept), one| (all + 1, kept + usize::from(one.kept)));
    (all, kept as f64 / all.max(1) as f64)
}

/// By decade of size, by quarter of the way, and by whether a limit of ours binds.
fn print_scores(kind: Kind, count: u64, promises: &[Promise]) {
    let (all, kept) = share_kept(promises.iter());
    println!("{kind:?}: {count} deployments, {all} promises, {:.1} % kept", 100.0 * kept);
    for binds in [false, true] {
        let (all, kept) = share_kept(promises.iter().filter(|one| one.limit_binds == binds));
        println!("{kind:?}: limit of ours binds: {binds}: {all} promises, {:.1} % kept", 100.0 * kept);
    }
    for quarter in 0..4 {
        let (all, kept) = share_kept(promises.iter().filter(|one| one.quarter == quarter));
        println!("{kind:?}: quarter {}: {all} promises, {:.1} % kept", quarter + 1, 100.0 * kept);
    }
    let decade = |one: &Promise| one.bytes.max(1).ilog10();
    let decades: BTreeSet<u32> = promises.iter().map(decade).collect();
    for number in decades {
        let (all, kept) = share_kept(promises.iter().filter(|one| decade(one) == number));
        println!("{kind:?}: from 1e{number} bytes: {all} promises, {:.1} % kept", 100.0 * kept);
    }
    let quantiles = |value: fn(&Promise) -> f64| {
        let mut values: Vec<f64> = promises.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        [10, 50, 85, 90, 95].map(|percent| values[values.len() * percent / 100])
    };
    println!("{kind:?}: taken/median {:.3?}", quantiles(|one| one.taken));
    println!("{kind:?}: ninety/median {:.3?}", quantiles(|one| one.ninety));
}

fn nine_in_ten_hold(kind: Kind) {
    let count = if std::env::var_os(SOAK).is_some() { DEPLOYMENTS_SOAK } else { DEPLOYMENTS };
    let all: Vec<Promise> = (1..=count).flat_map(|seed| promises(kind, seed)).collect();
    print_scores(kind, count, &all);
    let (_, share) = share_kept(all.iter());
    let slack = if count == DEPLOYMENTS_SOAK { 0.0 } else { 0.1 };
    assert!((0.85 - slack..=0.95 + slack).contains(&share), "{kind:?}: {share:.3} of {}", all.len());
}

#[test]
fn nine_in_ten_hold_under_limits() {
    nine_in_ten_hold(Kind::Limits);
}

#[test]
fn nine_in_ten_hold_with_a_bad_file() {
    nine_in_ten_hold(Kind::BadFile);
}

#[test]
fn nine_in_ten_hold_with_a_dead_source() {
    nine_in_ten_hold(Kind::DeadSource);
}

/// The only source is away from the beginning, has no link, or has no good copy of anything.
#[test]
fn what_cannot_move_has_no_time() {
    let site = |name: &str| format!("\n[[site]]\nname = \"{name}\"\nport = \"100 MB/s\"\n");
    for seed in 1..=20 {
        let mut random = Random::new(seed);
        let files = 20 + random.below(6_000);
        let dataset = |damaged: usize| {
            format!(
                "\n[[dataset]]\nname = \"data\"\nfiles = {files}\nat = [\"source\"]\n\
                 sizes = \"1 MB\"\ndamaged = {damaged}\n\n\
                 [[campaign]]\nat = \"60 s\"\ndatasets = [\"data\"]\nto = [\"target\"]\n"
            )
        };
        let away = "\n[[failure]]\nkind = \"site-down\"\nat = [\"source\"]\n";
        let unlinked = "\n[[link]]\nfrom = \"target\"\nto = \"source\"\n";
        let worlds = [(dataset(0) + away, "mesh"), (dataset(0) + unlinked, "listed")];
        for (world, topology) in worlds {
            let text = format!(
                "name = \"stuck\"\nseed = {seed}\nuntil = \"10 min\"\n\n[links]\n\
                 topology = \"{topology}\"\n{}{}{world}",
                site("source"),
                site("target"),
            );
            let plan = Plan::new(&Scenario::parse(&text).unwrap(), None).unwrap();
            let mut forecasts = 0;
            simulate_observed(&plan, &Policy::parse("best").unwrap(), Span(1.0), &mut |snapshot| {
                let outlook = snapshot.scheduler.outlook(SubscriptionId(1), snapshot.now);
                forecasts += u32::from(outlook.median.is_some());
                assert!(outlook.median.is_some() || outlook.why_none.is_some());
            });
            assert_eq!(forecasts, 0, "{text}");
        }
    }
}
