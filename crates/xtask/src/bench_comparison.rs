//! `cargo xtask previous bench`: the same benchmarks of the last release and of this version, in pairs. What
//! else the machine does changes within minutes and meets both runs of a pair alike: the median of the pairs'
//! ratios counts, not the ratio of two medians. The interval beside it holds the median of all such pairs in
//! nine of ten cases, by the order statistics of a binomial distribution: no shape of the noise is assumed.

use std::process::{Command, Stdio};

use crate::tools::shown;

/// A figure that is worse by more than this is slower. Machines are not quieter than that.
const SLOWER_BY_MAX: f64 = 0.05;
/// Columns of the table of `decisions` that are figures: decisions and turns a second.
const DECISION_COLUMNS: [(usize, &str); 2] = [(3, "decisions/s"), (5, "turns of a file/s")];

/// One figure of a run.
#[derive(Clone, Debug, PartialEq)]
struct Figure {
    name: String,
    value: f64,
    /// Otherwise less is.
    more_is_better: bool,
}

/// Compares one case. `before` and `after` make the commands of the two versions, without the words of the
/// case.
pub(crate) fn compare(
    case: &str,
    rounds: usize,
    before: impl Fn() -> Command,
    after: impl Fn() -> Command,
) -> Result<(), String> {
    let mut pairs = Vec::new();
    for round in 0..rounds {
        // Neither is always the first.
        pairs.push(if round % 2 == 0 {
            let old = measure(before(), case)?;
            Pair { old, new: measure(after(), case)? }
        } else {
            let new = measure(after(), case)?;
            Pair { old: measure(before(), case)?, new }
        });
    }
    println!("\n{}", table(case, &pairs)?);
    Ok(())
}

/// What the two versions measured one right after the other. Figures are compared in their order: their names
/// may have changed.
struct Pair {
    old: Vec<Figure>,
    new: Vec<Figure>,
}

fn measure(mut command: Command, case: &str) -> Result<Vec<Figure>, String> {
    command.args([case, "--quick"]);
    if case != "decisions" {
        command.arg("--json");
    }
    let shown = shown(&command);
    eprintln!("$ {shown}");
    let ran = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{shown}: {error}"))?;
    if !ran.status.success() {
        return Err(format!("{shown}: {}", ran.status));
    }
    let figures: Vec<Figure> =
        String::from_utf8_lossy(&ran.stdout).lines().flat_map(figures_of_line).collect();
    if figures.is_empty() { Err(format!("{shown}: no figure")) } else { Ok(figures) }
}

/// The figures of a line of output: a row as JSON, or a row of the table of decisions.
fn figures_of_line(line: &str) -> Vec<Figure> {
    if let Ok(row) = serde_json::from_str::<serde_json::Value>(line) {
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        let (name, value) = (text("figure"), text("value").replace(',', "").parse());
        let bar = text("bar");
        let more_is_better = bar.starts_with('≥') || name.contains("/s") && !bar.starts_with('≤');
        return value
            .map(|value| Figure { name: name.to_owned(), value, more_is_better })
            .into_iter()
            .collect();
    }
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let figure = |&(column, name): &(usize, &str)| {
        let value = cells.get(column)?.parse().ok()?;
        let name = format!("{name}, {} wait", cells[0].parse::<u64>().ok()?);
        Some(Figure { name, value, more_is_better: true })
    };
    if line.starts_with('|') { DECISION_COLUMNS.iter().filter_map(figure).collect() } else { Vec::new() }
}

/// How much worse the new value is where it is `ratio` times the old one, as a share; negative if it is
/// better.
fn worse_by(figure: &Figure, ratio: f64) -> f64 {
    if figure.more_is_better { 1.0 - ratio } else { ratio - 1.0 }
}

fn table(case: &str, pairs: &[Pair]) -> Result<String, String> {
    let Some(first) = pairs.first() else { return Err("no run".into()) };
    if pairs.iter().any(|pair| pair.old.len() != first.old.len() || pair.new.len() != first.new.len()) {
        return Err(format!("{case}: the runs of one version have other figures"));
    }
    if first.old.len() > first.new.len() {
        return Err(format!("{case}: {} figures, {} before", first.new.len(), first.old.len()));
    }
    let mut text = format!(
        "| {case}, {} pairs | last release | this version | ratio | between | |\n\
         | --- | ---: | ---: | ---: | --- | --- |\n",
        pairs.len()
    );
    for (place, figure) in first.new.iter().enumerate().take(first.old.len()) {
        let sorted = |value_of: &dyn Fn(&Pair) -> f64| {
            let mut values: Vec<f64> = pairs.iter().map(value_of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let median = |values: &[f64]| values[values.len() / 2];
        let old = sorted(&|pair| pair.old[place].value);
        let new = sorted(&|pair| pair.new[place].value);
        let ratios = sorted(&|pair| ratio(pair.old[place].value, pair.new[place].value));
        let outside = place_outside_interval(ratios.len());
        let (low, high) = (ratios[outside], ratios[ratios.len() - 1 - outside]);
        let is_worse = |ratio| worse_by(figure, ratio) > SLOWER_BY_MAX;
        let verdict = match is_worse(median(&ratios)) {
            true if is_worse(low) && is_worse(high) => "WORSE",
            true => "unsure",
            false => "",
        };
        text.push_str(&format!(
            "| {} | {} | {} | {:.2} | {low:.2} and {high:.2} | {verdict} |\n",
            figure.name,
            median(&old),
            median(&new),
            median(&ratios),
        ));
    }
    Ok(text)
}

/// How many of `count` sorted values lie on each side of the interval of the median: the most of which it is
/// said, with a chance of 0.05 at most on each side, that the median is not beyond them.
fn place_outside_interval(count: usize) -> usize {
    let (mut outside, mut chance) = (0, 0.5_f64.powi(count as i32));
    let mut beyond = chance;
    loop {
        chance *= (count - outside) as f64 / (outside + 1) as f64;
        beyond += chance;
        if beyond > 0.05 || 2 * (outside + 2) > count {
            return outside;
        }
        outside += 1;
    }
}

/// Two figures of nothing are equal.
fn ratio(old: f64, new: f64) -> f64 {
    if old == new { 1.0 } else { new / old }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_output_are_read() {
        let row = r#"{"case":"fts","figure":"the same, p95 ms","value":"1,024.5","bar":"≤ 50"}"#;
        let figure = |name: &str, value, more_is_better| Figure { name: name.into(), value, more_is_better };
        assert_eq!(figures_of_line(row), [figure("the same, p95 ms", 1_024.5, false)]);
        let polls =
            r#"{"case":"fts","figure":"poll, 200/s over 20 connections, ms","value":"4","bar":"≤ 15"}"#;
        assert_eq!(figures_of_line(polls), [figure("poll, 200/s over 20 connections, ms", 4.0, false)]);
        let decisions = "| 1000 | 100 | 1000 | 250000 | 4.00 | 90000 | 11.1 | 12 |";
        let expected = [
            figure("decisions/s, 1000 wait", 250_000.0, true),
            figure("turns of a file/s, 1000 wait", 90_000.0, true),
        ];
        assert_eq!(figures_of_line(decisions), expected);
        assert_eq!(figures_of_line("small: 10,000 files"), []);
        assert_eq!(figures_of_line("| --- | --- | --- | --- |"), []);
    }

    #[test]
    fn what_is_worse_by_more_than_a_twentieth_is_said() {
        let figures = |value, more_is_better| vec![Figure { name: "x".into(), value, more_is_better }];
        let pair = |old, new, more| Pair { old: figures(old, more), new: figures(new, more) };
        let said = |new: f64, more| table("case", &[pair(100.0, new, more)]).unwrap();
        assert!(said(94.0, true).contains("WORSE") && !said(96.0, true).contains("WORSE"));
        assert!(said(106.0, false).contains("WORSE") && !said(94.0, false).contains("WORSE"));
        let wide = [pair(100.0, 90.0, true), pair(100.0, 99.0, true), pair(100.0, 91.0, true)];
        assert!(table("case", &wide).unwrap().contains("unsure"), "one of three was as good");
        assert!(table("case", &[Pair { old: figures(1.0, true), new: vec![] }]).is_err(), "a figure is gone");
        assert!(table("case", &[]).is_err());
        let short = Pair { old: figures(1.0, true), new: vec![] };
        assert!(table("case", &[pair(1.0, 1.0, true), short]).is_err());
    }

    #[test]
    fn a_machine_that_becomes_slower_between_pairs_changes_no_ratio() {
        let figures = |value| vec![Figure { name: "x".into(), value, more_is_better: true }];
        let pair = |old, new| Pair { old: figures(old), new: figures(new) };
        let text = table("case", &[pair(100.0, 100.0), pair(50.0, 51.0), pair(80.0, 70.0)]).unwrap();
        assert!(text.contains("| x | 80 | 70 | 1.00 | 0.88 and 1.02 |  |"), "{text}");
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_sign_test() {
        let places = [1, 3, 5, 7, 8, 9, 12, 15, 21].map(place_outside_interval);
        assert_eq!(places, [0, 0, 0, 0, 1, 1, 2, 3, 6]);
    }
}
