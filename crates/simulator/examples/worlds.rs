//! `best` in random worlds that it was never tuned on, against FTS3's nine strategies (with our order and
//! concurrency, and with its own), and against the bound that no schedule can beat.
//!
//! Ten worlds of each kind, seeds from 1,000 on: what is tuned is tuned with others.
//!
//! `cargo xtask bench worlds [--quick] [--check] [--page FILE]`; with `--check` a missed bar fails.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::process::ExitCode;

use longhaul_simulator::criteria::{BestPolicy, Criterion, RATIO_WITH_CHOICE_MAX, compare, mean_bound};
use longhaul_simulator::generate::{KINDS, generate};
use longhaul_simulator::{Plan, Scenario};

const SEEDS_FROM: u64 = 1_000;
const WORLDS: u64 = 10;
const QUICK_WORLDS: u64 = 2;

const TITLE: &str = "\
# Worlds never seen before

`cargo xtask bench worlds --page docs/benchmarks/worlds.md` writes this page: ten random worlds of each kind \
(`longhaul simulate
--generate KIND`, seeds from 1,000), in which nothing was tuned. The first columns have the mean time \
until a dataset is complete
under `best`, as a multiple of the best of FTS3's nine strategies in the same world, by our order and \
concurrency and by FTS3's own; below 1
is better. Then the part of the makespan that no schedule can save (where all work is known at the start), \
and how many of the worlds' forecasts
came within their 90 %. Geometric means over the worlds of a kind; the worst world stands beside. \"Bound / \
mean of the others\" is a mean that no
schedule can beat (each target takes all that it can, the smallest dataset first, and nobody else uses its \
port), as a part of the mean of the best of
all others; then in how many of the worlds it is above 0.9, so that a ratio of 0.9 cannot be had there. Of \
each world is asked what is asked of
[shipped scenarios](strategies.md), and `--check` fails where that is missed.

What hierarchies lack to their bound is mostly real: the largest block for a slow site passes its relay \
last, so that the site's own port idles
first; and a way over a relay that was never measured is not tried, however slow the direct one is. In \
worlds of tape the
bound has all drives at work all the time, though a session between two sites opens four large files at \
once; it knows that only where one site alone
wants them.

| kind | to the best of the nine | worst | to the best by FTS3's rules | worst | bound / makespan | worst | \
bound / mean of the others | above 0.9 | bars met | within 90 % | unfinished |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |option: &str| words.iter().any(|word| word == option);
    let worlds = if has("--quick") { QUICK_WORLDS } else { WORLDS };
    let mut page = String::from(TITLE);
    let (mut all, mut missed) = (Vec::new(), Vec::new());
    for kind in KINDS {
        let results: Vec<World> = (0..worlds).map(|number| World::run(kind, SEEDS_FROM + number)).collect();
        let row = row(kind, &results);
        println!("{row}");
        let _ = writeln!(page, "{row}");
        missed.extend(results.iter().flat_map(|world| world.missed.iter().cloned()));
        all.extend(results);
    }
    let row = row("all", &all);
    println!("{row}");
    let _ = writeln!(page, "{row}");
    if !missed.is_empty() {
        let _ = writeln!(page, "\nMissed are:\n");
        missed.iter().for_each(|one| {
            let _ = writeln!(page, "- {one}");
        });
    }
    if let Some(at) = words.iter().position(|word| word == "--page") {
        std::fs::write(&words[at + 1], page).unwrap();
    }
    if has("--check") && !missed.is_empty() {
        eprintln!("{}", missed.join("\n"));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// One world under all strategies.
struct World {
    to_nine: f64,
    to_theirs: f64,
    /// Where all work is known at the start.
    of_bound: Option<f64>,
    /// Part of the mean of the best of all others that no schedule could save, where that is known.
    of_mean: Option<f64>,
    bars: usize,
    missed: Vec<String>,
    scored: f64,
    within: f64,
    unfinished: u64,
}

impl World {
    fn run(kind: &str, seed: u64) -> Self {
        let plan = Plan::new(&Scenario::parse(&generate(kind, seed).unwrap()).unwrap(), None).unwrap();
        let world = compare(&plan);
        // What never comes complete is worse than anything that does.
        let mean = |of: &Option<BestPolicy>| of.as_ref().map_or(f64::INFINITY, |of| of.mean_s);
        let (best, nine, theirs) = (mean(&world.ours), mean(&world.nine), mean(&world.theirs));
        let bars = world.criteria();
        let told: Vec<String> = bars.iter().map(Criterion::summary).collect();
        println!(
            "{kind} {seed}: best {best:.0} s, of the nine {nine:.0} s, by FTS3's rules {theirs:.0} s; {}",
            told.join("; ")
        );
        let of_mean = mean_bound(&plan).map(|bound| bound / nine.min(theirs));
        let least = of_mean.map_or(String::new(), |least| format!(", and no schedule is below {least:.3}"));
        let missed = bars.iter().filter(|bar| !bar.is_met()).map(|bar| {
            let why = if bar.what == "ratio" { &least[..] } else { "" };
            format!("{kind} {seed}: {}{why}", bar.summary())
        });
        let report = world.report.as_ref().unwrap();
        let outcomes = report.knowledge.forecasts.iter().map(|part| part.outcomes as f64);
        let within = report.knowledge.forecasts.iter().map(|part| part.outcomes as f64 * part.within);
        World {
            to_nine: best / nine,
            to_theirs: best / theirs,
            of_bound: world.bound_share().filter(|_| world.known_at_start),
            of_mean,
            bars: bars.len(),
            missed: missed.collect(),
            scored: outcomes.sum(),
            within: within.sum(),
            unfinished: report.unfinished,
        }
    }
}

fn row(kind: &str, worlds: &[World]) -> String {
    let mean =
        |values: &[f64]| (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp();
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let nine: Vec<f64> = worlds.iter().map(|world| world.to_nine).collect();
    let theirs: Vec<f64> = worlds.iter().map(|world| world.to_theirs).collect();
    let bounds: Vec<f64> = worlds.iter().filter_map(|world| world.of_bound).collect();
    let bound = match bounds.iter().copied().reduce(f64::min) {
        Some(worst) => format!("{:.2} | {worst:.2}", mean(&bounds)),
        None => "– | –".to_owned(),
    };
    let means: Vec<f64> = worlds.iter().filter_map(|world| world.of_mean).collect();
    let beyond = means.iter().filter(|part| **part > RATIO_WITH_CHOICE_MAX).count();
    let of_mean = if means.is_empty() {
        "– | –".to_owned()
    } else {
        format!("{:.2} | {beyond} of {}", mean(&means), means.len())
    };
    let sum = |of: &dyn Fn(&World) -> f64| worlds.iter().map(of).sum::<f64>();
    let asked = sum(&|world| world.bars as f64);
    format!(
        "| {kind} | {:.3} | {:.2} | {:.3} | {:.2} | {bound} | {of_mean} | {} of {asked} | {:.0} % | {} |",
        mean(&nine),
        most(&nine),
        mean(&theirs),
        most(&theirs),
        asked - sum(&|world| world.missed.len() as f64),
        100.0 * sum(&|world| world.within) / sum(&|world| world.scored).max(1.0),
        worlds.iter().map(|world| world.unfinished).sum::<u64>()
    )
}
