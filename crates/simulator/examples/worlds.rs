//! `best` in random worlds that it was never tuned on, against FTS3's nine strategies (with our order and concurrency, and
//! with its own), and against the bound that no schedule can beat.
//!
//! Ten worlds of each kind, seeds from 1,000 on: what is tuned is tuned with others.
//!
//! `cargo xtask bench worlds [--quick] [--page FILE]`

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fmt::Write as _;

use longhaul_simulator::generate::{KINDS, generate};
use longhaul_simulator::{Plan, Report, Scenario, Way, simulate};

const SEEDS_FROM: u64 = 1_000;
const WORLDS: u64 = 10;
const QUICK_WORLDS: u64 = 2;
/// Kinds in which work comes, or capacity goes, after the start: the bound on their makespan says little.
const UNKNOWN_AT_START: [&str; 2] = ["streams", "failures"];

const TITLE: &str = "\
# Worlds never seen before

`cargo xtask bench worlds --page docs/benchmarks/worlds.md` writes this page: ten random worlds of each kind (`longhaul simulate
--generate KIND --seed N`, N from 1,000), in which nothing was tuned. The first columns have the mean time until a dataset is complete
under `best`, as a multiple of the best of FTS3's nine strategies in the same world, by our order and concurrency and by FTS3's own; below 1
is better. Then the part of the makespan that no schedule can save (where all work is known at the start), and how many of the worlds' forecasts
came within their 90 %. Geometric means over the worlds of a kind; the worst world stands beside.

| kind | to the best of the nine | worst | to the best by FTS3's rules | worst | bound / makespan | worst | within 90 % | unfinished |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let worlds = if words.iter().any(|word| word == "--quick") { QUICK_WORLDS } else { WORLDS };
    let mut page = String::from(TITLE);
    let mut all = Vec::new();
    for kind in KINDS {
        let results: Vec<World> = (0..worlds).map(|number| World::run(kind, SEEDS_FROM + number)).collect();
        let row = row(kind, &results, !UNKNOWN_AT_START.contains(&kind));
        println!("{row}");
        let _ = writeln!(page, "{row}");
        all.extend(results);
    }
    let row = row("all", &all, false);
    println!("{row}");
    let _ = writeln!(page, "{row}");
    if let Some(at) = words.iter().position(|word| word == "--page") {
        std::fs::write(&words[at + 1], page).unwrap();
    }
}

/// One world under all strategies.
struct World {
    to_nine: f64,
    to_theirs: f64,
    of_bound: Option<f64>,
    scored: f64,
    within: f64,
    unfinished: u64,
}

impl World {
    fn run(kind: &str, seed: u64) -> Self {
        let plan = Plan::new(&Scenario::parse(&generate(kind, seed).unwrap()).unwrap(), None).unwrap();
        let (mut nine, mut theirs) = (f64::INFINITY, f64::INFINITY);
        let mut best: Option<Report> = None;
        for way in Way::all() {
            let report = simulate(&plan, &way, None);
            // What never comes complete is worse than anything that does.
            let mean = report.summary.dataset_mean_s.filter(|_| report.unfinished == 0);
            let mean = mean.unwrap_or(f64::INFINITY);
            match way.name.as_str() {
                "best" => best = Some(report),
                name if name.ends_with("/fts3") => theirs = theirs.min(mean),
                _ => nine = nine.min(mean),
            }
        }
        let best = best.unwrap();
        let mean = best.summary.dataset_mean_s.unwrap_or(f64::INFINITY);
        println!("{kind} {seed}: best {mean:.0} s, of the nine {nine:.0} s, by FTS3's rules {theirs:.0} s");
        let outcomes = best.learned.forecasts.iter().map(|part| part.outcomes as f64);
        let within = best.learned.forecasts.iter().map(|part| part.outcomes as f64 * part.within);
        World {
            to_nine: mean / nine,
            to_theirs: mean / theirs,
            of_bound: best.summary.makespan_s.map(|makespan| best.summary.makespan_bound_s / makespan),
            scored: outcomes.sum(),
            within: within.sum(),
            unfinished: best.unfinished,
        }
    }
}

fn row(kind: &str, worlds: &[World], known: bool) -> String {
    let mean =
        |values: &[f64]| (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp();
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let nine: Vec<f64> = worlds.iter().map(|world| world.to_nine).collect();
    let theirs: Vec<f64> = worlds.iter().map(|world| world.to_theirs).collect();
    let bounds: Vec<f64> = worlds.iter().filter_map(|world| world.of_bound).filter(|_| known).collect();
    let bound = match bounds.iter().copied().reduce(f64::min) {
        Some(worst) => format!("{:.2} | {worst:.2}", mean(&bounds)),
        None => "– | –".to_owned(),
    };
    let scored: f64 = worlds.iter().map(|world| world.scored).sum();
    let within: f64 = worlds.iter().map(|world| world.within).sum();
    format!(
        "| {kind} | {:.3} | {:.2} | {:.3} | {:.2} | {bound} | {:.0} % | {} |",
        mean(&nine),
        most(&nine),
        mean(&theirs),
        most(&theirs),
        100.0 * within / scored.max(1.0),
        worlds.iter().map(|world| world.unfinished).sum::<u64>()
    )
}
