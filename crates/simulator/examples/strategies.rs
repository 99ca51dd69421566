//! The shipped scenarios under `best`, under FTS3's nine strategies with our order and concurrency, and under the nine with its
//! own rules; and the bound that no schedule can beat.
//!
//! `cargo xtask bench strategies [all | SCENARIO...] [--page FILE]`. Two scenarios are too long to be run nineteen times without
//! having been asked for: `grid` (a day of the whole grid, a minute each) and `steady-month`.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use longhaul_simulator::{Plan, Scenario, Way, simulate};

const LONG: [&str; 2] = ["grid", "steady-month"];

const TITLE: &str = "\
# Strategies compared

`cargo xtask bench strategies [all | SCENARIO...] [--page FILE]` writes this page: mean seconds until a dataset is complete in the scenarios of
[scenarios/](../../scenarios), where the scheduler is the one of the service. `best` is ours. \"The nine\" are FTS3's strategies with our
order and concurrency; \"FTS3's rules\" the same nine with its own (strict priorities, age, slots by its optimizer). The ratio is `best`
to the best of all of these, less is better. One row in full: `longhaul simulate scenarios/qmul.toml --strategy all`. The bound is a
makespan that no schedule can beat ([how it is proven](../reference/scenarios.md)); it is loose where capacity comes and goes, or where
several hops are needed.

| scenario | `best` | best of the nine | best by FTS3's rules | ratio | makespan of `best` | bound / makespan | the nine: bound / makespan |
| --- | ---: | --- | --- | ---: | ---: | ---: | ---: |
";

const WHY: &str = "
Where `best` is behind, it is so on purpose or by little. In communities, `orderly` gives up the shares for its lead (the Jain index that
`longhaul simulate` prints tells). In challenge-2004, starvation and transient nothing is left to choose: there is one source, or the target is
what limits. In flapping the port is full in every moment that a source is there; the bound takes prices that do not change with time.

How many files are under way at once is [found while they work](../explanation/scheduling.md#how-many-files-at-once), for each link and
for each target. The nine gain by it as well.
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (mut names, mut page) = (Vec::new(), None);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--page" => page = words.next().map(PathBuf::from),
            name => names.push(name.to_owned()),
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let shipped = shipped(&folder);
    let all = names == ["all"];
    if let Some(unknown) = names.iter().find(|name| !all && !shipped.contains(name)) {
        eprintln!("there is no scenario {unknown}; there are {}", shipped.join(", "));
        return ExitCode::from(2);
    }
    let short = |name: &String| names.is_empty() && !LONG.contains(&&name[..]);
    let wanted = |name: &&String| all || short(name) || names.contains(name);
    let mut text = TITLE.to_owned();
    print!("{TITLE}");
    let mut to_win = 0;
    for name in shipped.iter().filter(wanted) {
        let (row, nine) = row(name, &folder);
        println!("{row}");
        let _ = writeln!(text, "{row}");
        to_win += u32::from(nine.of_bound().is_some_and(|part| part < 0.85));
    }
    let to_win = format!("\nIn {to_win} of these the best of the nine stays below 0.85 of the bound.\n");
    print!("{to_win}");
    text += &to_win;
    text += WHY;
    match page.map(|page| (std::fs::write(&page, text), page)) {
        Some((Err(error), page)) => {
            eprintln!("{}: {error}", page.display());
            ExitCode::from(2)
        }
        _ => ExitCode::SUCCESS,
    }
}

fn shipped(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let scenarios = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let mut names: Vec<String> =
        scenarios.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The best way of a kind, by its mean dataset.
#[derive(Default)]
struct Best {
    strategy: String,
    mean_s: Option<f64>,
    makespan_s: Option<f64>,
    bound_s: f64,
}

impl Best {
    fn shown(&self) -> String {
        self.mean_s.map_or("–".to_owned(), |mean| format!("{} {}", grouped(mean), self.strategy))
    }

    /// What of the makespan no schedule could have saved.
    fn of_bound(&self) -> Option<f64> {
        self.makespan_s.map(|makespan| self.bound_s / makespan)
    }
}

/// The row of a scenario, and the best of the nine.
fn row(name: &str, folder: &Path) -> (String, Best) {
    let text = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
    let plan = Plan::new(&Scenario::parse(&text).unwrap(), None).unwrap();
    let [mut ours, mut nine, mut theirs] = [(); 3].map(|()| Best::default());
    for way in Way::all() {
        let report = simulate(&plan, &way, None);
        let (best, strategy) = match way.name.split_once('/') {
            None if way.name == "best" => (&mut ours, ""),
            None => (&mut nine, &way.name[..]),
            Some((strategy, _)) => (&mut theirs, strategy),
        };
        // What never comes complete is worse than anything that does.
        let Some(mean) = report.summary.dataset_mean_s.filter(|_| report.unfinished == 0) else { continue };
        if best.mean_s.is_none_or(|known| mean < known) {
            let (makespan_s, bound_s) = (report.summary.makespan_s, report.summary.makespan_bound_s);
            *best = Best { strategy: strategy.to_owned(), mean_s: Some(mean), makespan_s, bound_s };
        }
    }
    let others = [nine.mean_s, theirs.mean_s].into_iter().flatten().reduce(f64::min);
    let ratio =
        ours.mean_s.zip(others).map_or("–".to_owned(), |(ours, others)| format!("{:.2}", ours / others));
    let part = |best: &Best| best.of_bound().map_or("–".to_owned(), |part| format!("{part:.2}"));
    let row = format!(
        "| {name} | {} | {} | {} | {ratio} | {} | {} | {} |",
        ours.mean_s.map_or("–".to_owned(), grouped),
        nine.shown(),
        theirs.shown(),
        ours.makespan_s.map_or("–".to_owned(), grouped),
        part(&ours),
        part(&nine)
    );
    (row, nine)
}

/// Whole seconds with commas.
fn grouped(seconds: f64) -> String {
    let digits = format!("{seconds:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
