//! How many files at once `best` finds for each of twenty links, against every fixed number: what each link
//! carries from the fifth to the tenth minute, and how far the number moves in that time.
//!
//! `cargo xtask bench concurrency [--check] [--page FILE]`; with `--check` a missed bar fails.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::process::ExitCode;

use longhaul_simulator::quantity::Span;
use longhaul_simulator::{Plan, Policy, Scenario, Snapshot, simulate_observed};

/// Each is given to all links; the best for a link is what it is compared with.
const FIXED: [u32; 13] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96];
/// By then the number is found; until then it is watched.
const FOUND_S: f64 = 300.0;
const END_S: f64 = 600.0;
const SNAPSHOT_INTERVAL: Span = Span(10.0);
/// Required share of the best fixed number's rate.
const RATE_MIN: f64 = 0.9;
/// The fewest files with this part of the best rate are told.
const AS_GOOD: f64 = 0.99;
/// Around the middle of what it was.
const SWING_MAX: u32 = 2;

const TITLE: &str = "\
# How many files at once

`cargo xtask bench concurrency --page docs/benchmarks/concurrency.md` writes this page: \
[twenty-links](../../scenarios/twenty-links.toml), where each
link is full with another number of files at once. `best` finds the number while files move; \
`best/at-once-N` has N from the beginning to the
end, on each link. What a link carries from the fifth to the tenth minute, under the best N for just this \
link (the least that brings
99 % of it is told) and under `best`; and the numbers that `best` had in that time. Asked is 0.9 of the best \
fixed number's rate, and a number
that moves by one around its middle at most.

| link | capacity, MB/s | fixed N | MB/s | `best`, MB/s | ratio | files at once | asked |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
";

const WHY: &str = "
Where a file takes about as long as the work that an agent is given, that work is a few files more than the \
number asks for. Then these are where the
search begins: else the number would never be what holds a link back, and would stay at two.
";

/// A link with what it can carry, as places of capacities and sites.
struct Link {
    name: String,
    into: usize,
    capacity: f64,
    target: u64,
}

/// What a way made of each link.
#[derive(Clone, Default)]
struct LinkResult {
    rate: f64,
    /// The least and the most files at once.
    numbers: Option<(u32, u32)>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let at = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/twenty-links.toml");
    let mut plan = Plan::new(&Scenario::parse(&std::fs::read_to_string(at).unwrap()).unwrap(), None).unwrap();
    plan.until = END_S;
    let links = links(&plan);
    let ours = run(&plan, "best", &links);
    let fixed: Vec<(u32, Vec<LinkResult>)> =
        FIXED.iter().map(|&number| (number, run(&plan, &format!("best/at-once-{number}"), &links))).collect();
    let (mut page, mut missed) = (TITLE.to_owned(), Vec::new());
    print!("{TITLE}");
    for (place, link) in links.iter().enumerate() {
        let best = fixed.iter().map(|(_, made)| made[place].rate).fold(0.0, f64::max);
        let enough = fixed.iter().find(|(_, made)| made[place].rate >= AS_GOOD * best).unwrap().0;
        let (row, met) = row(link, enough, best, &ours[place]);
        println!("{row}");
        let _ = writeln!(page, "{row}");
        missed.extend((!met).then(|| link.name.clone()));
    }
    let told = format!("\n{} of {} links have what is asked.\n", links.len() - missed.len(), links.len());
    print!("{told}");
    page += &told;
    page += WHY;
    if let Some(at) = words.iter().position(|word| word == "--page") {
        std::fs::write(&words[at + 1], page).unwrap();
    }
    if words.iter().any(|word| word == "--check") && !missed.is_empty() {
        eprintln!("MISSED: {}", missed.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn row(link: &Link, number: u32, rate: f64, ours: &LinkResult) -> (String, bool) {
    let ratio = ours.rate / rate;
    let steady = ours.numbers.is_some_and(|(least, most)| most - least <= SWING_MAX);
    let asked = match (ratio >= RATE_MIN, steady) {
        (true, true) => "met",
        (true, false) => "MISSED: it moves",
        (false, _) => "MISSED",
    };
    let numbers = ours.numbers.map_or("–".to_owned(), |(least, most)| {
        if least == most { least.to_string() } else { format!("{least} to {most}") }
    });
    let text = format!(
        "| {} | {:.0} | {number} | {:.0} | {:.0} | {ratio:.3} | {numbers} | {asked} |",
        link.name,
        link.capacity / 1e6,
        rate / 1e6,
        ours.rate / 1e6
    );
    (text, asked == "met")
}

/// Each site has one link at the most, so that its port carries what the link does.
fn links(plan: &Plan) -> Vec<Link> {
    let sites = &plan.layout.sites;
    let mut links = Vec::new();
    for from in 0..sites.len() {
        for to in (0..sites.len()).filter(|&to| plan.layout.pair(from, to).open) {
            let pair = plan.layout.pair(from, to);
            let ways =
                sites[from].out_capacities.iter().chain(&sites[to].in_capacities).chain(&pair.capacities);
            let capacity = ways
                .map(|&policy| plan.layout.capacities[policy as usize].rate)
                .fold(f64::INFINITY, f64::min);
            links.push(Link {
                name: format!("{} → {}, {:.0} ms", sites[from].name, sites[to].name, pair.rtt * 1e3),
                into: sites[to].in_capacities[0] as usize,
                capacity,
                target: to as u64,
            });
        }
    }
    links
}

fn run(plan: &Plan, policy: &str, links: &[Link]) -> Vec<LinkResult> {
    let mut made = vec![LinkResult::default(); links.len()];
    let mut before = vec![0.0; links.len()];
    simulate_observed(plan, &Policy::parse(policy).unwrap(), SNAPSHOT_INTERVAL, &mut |glimpse: &Snapshot<
        '_,
    >| {
        if glimpse.seconds < FOUND_S {
            return;
        }
        for (place, link) in links.iter().enumerate() {
            let come = glimpse.bytes_through[link.into];
            if glimpse.seconds == FOUND_S {
                before[place] = come;
            } else {
                made[place].rate = (come - before[place]) / (glimpse.seconds - FOUND_S);
            }
        }
        for row in glimpse.scheduler.links(glimpse.now) {
            if let Some(place) = links.iter().position(|link| link.target == row.target.0) {
                let (least, most) = made[place].numbers.unwrap_or((row.concurrency, row.concurrency));
                made[place].numbers = Some((least.min(row.concurrency), most.max(row.concurrency)));
            }
        }
    });
    made
}
