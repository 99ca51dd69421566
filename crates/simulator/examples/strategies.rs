//! The shipped scenarios under `best`, under FTS3's nine strategies with our order and concurrency, and under
//! the nine with its own rules; and the bound that no schedule can beat.
//!
//! `cargo xtask bench strategies [all | SCENARIO...] [--check] [--page FILE]`; with `--check` a missed bar
//! fails. Two scenarios are too long to be run nineteen times without having been asked for: `grid` (a day of
//! the whole grid, a minute each) and `steady-month`.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use longhaul_simulator::criteria::{
    BestPolicy, Comparison, Criterion, HEADROOM_BOUND_SHARE_MAX, HEADROOM_SCENARIOS_MIN, compare,
};
use longhaul_simulator::{Plan, Scenario};

const SCENARIOS_LONG: [&str; 2] = ["grid", "steady-month"];

const TITLE: &str = "\
# Strategies compared

`cargo xtask bench strategies [all | SCENARIO...] [--check] [--page FILE]` writes this page: mean seconds \
until a dataset is complete in the scenarios of
[scenarios/](../../scenarios), where the scheduler is the one of the service. `best` is ours. \"The nine\" \
are FTS3's strategies with our
order and concurrency; \"FTS3's rules\" the same nine with its own (strict priorities, age, slots by its \
optimizer). The ratio is `best`
to the best of all of these, less is better. One row in full: `longhaul simulate scenarios/qmul.toml \
--strategy all`. The bound is a
makespan that no schedule can beat ([how it is proven](../reference/scenarios.md)); it is loose where \
capacity comes and goes, or where
several hops are needed.

Asked is a ratio of 1.01 at most, and of 0.9 where half of the bytes or more can come from several sites or \
by several ways; and that the bound is
0.95 of the makespan at least where all work is known at the start. `--check` fails where one of these is \
missed.

| scenario | `best` | best of the nine | best by FTS3's rules | ratio | makespan of `best` | bound / \
makespan | the nine: bound / makespan | asked |
| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | --- |
";

const WHY: &str = "
Where `best` is behind, it is so on purpose or by little. In communities, `orderly` gives up the shares for \
its lead (the Jain index that
`longhaul simulate` prints tells). In challenge-2004, starvation and transient nothing is left to choose: \
there is one source, or the target is
what limits. In flapping the port is full in every moment that a source is there; the bound takes prices \
that do not change with time.

How many files are under way at once is [found while they \
work](../explanation/scheduling.md#how-many-files-at-once), for each link and
for each target. The nine gain by it as well.
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (mut names, mut page, mut check) = (Vec::new(), None, false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--page" => page = words.next().map(PathBuf::from),
            "--check" => check = true,
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
    let short = |name: &String| names.is_empty() && !SCENARIOS_LONG.contains(&&name[..]);
    let wanted = |name: &&String| all || short(name) || names.contains(name);
    let mut text = TITLE.to_owned();
    print!("{TITLE}");
    let (mut to_win, mut missed) = (0, Vec::new());
    for name in shipped.iter().filter(wanted) {
        let scenario = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
        let world = compare(&Plan::new(&Scenario::parse(&scenario).unwrap(), None).unwrap());
        let row = row(name, &world);
        println!("{row}");
        let _ = writeln!(text, "{row}");
        to_win += usize::from(world.has_headroom());
        missed.extend(
            world
                .criteria()
                .iter()
                .filter(|bar| !bar.is_met())
                .map(|bar| format!("{name}: {}", bar.summary())),
        );
    }
    let few = to_win < HEADROOM_SCENARIOS_MIN;
    let won = format!(
        "\nIn {to_win} of these the best of the nine stays below {HEADROOM_BOUND_SHARE_MAX} of the bound.\n"
    );
    print!("{won}");
    text += &won;
    text += WHY;
    // A few of them by name say nothing of how many there are.
    if few && (all || names.is_empty()) {
        missed.push(format!(
            "something to win in {HEADROOM_SCENARIOS_MIN} scenarios or more: {to_win}, MISSED"
        ));
    }
    if let Some(page) = page
        && let Err(error) = std::fs::write(&page, text)
    {
        eprintln!("{}: {error}", page.display());
        return ExitCode::from(2);
    }
    if check && !missed.is_empty() {
        eprintln!("{}", missed.join("\n"));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn shipped(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let scenarios = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let mut names: Vec<String> =
        scenarios.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The row of a scenario.
fn row(name: &str, world: &Comparison) -> String {
    let shown = |of: &Option<BestPolicy>| match of {
        None => "–".to_owned(),
        Some(of) => format!("{} {}", grouped(of.mean_s), of.strategy),
    };
    let digits = |part: Option<f64>| part.map_or("–".to_owned(), |part| format!("{part:.2}"));
    let ours = world.ours.as_ref();
    let bars: Vec<String> = world.criteria().iter().map(Criterion::summary).collect();
    format!(
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
        ours.map_or("–".to_owned(), |ours| grouped(ours.mean_s)),
        shown(&world.nine),
        shown(&world.theirs),
        digits(world.ratio()),
        ours.and_then(|ours| ours.makespan_s).map_or("–".to_owned(), grouped),
        digits(world.bound_share()),
        digits(world.nine.as_ref().and_then(BestPolicy::bound_share)),
        bars.join("; ")
    )
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
