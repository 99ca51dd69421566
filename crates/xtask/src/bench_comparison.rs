//! `cargo xtask previous bench`: the same benchmarks of the last release and of this version, in alternation,
//! so that whatever else the machine does meets both alike. The medians of each figure are compared, and the
//! best of each: what else a machine does only ever makes a figure worse.

use std::process::{Command, Stdio};

use crate::tools::shown;

/// Runs of each version. Each measures once (`--quick`).
const ROUNDS: usize = 3;
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
    before: impl Fn() -> Command,
    after: impl Fn() -> Command,
) -> Result<(), String> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        old.push(measure(before(), case)?);
        new.push(measure(after(), case)?);
    }
    println!("\n{}", table(case, &figures_over(&old)?, &figures_over(&new)?)?);
    Ok(())
}

fn measure(mut command: Command, case: &str) -> Result<Vec<Figure>, String> {
    command.args(["xtask", "bench", case, "--quick"]);
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
        let more_is_better = text("bar").starts_with('≥') || name.contains("/s");
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

/// A figure over all runs of one version.
#[derive(Clone, Debug, PartialEq)]
struct FigureOverRuns {
    median: Figure,
    best: Figure,
}

fn figures_over(runs: &[Vec<Figure>]) -> Result<Vec<FigureOverRuns>, String> {
    let Some(first) = runs.first() else { return Err("no run".into()) };
    if runs.iter().any(|run| run.len() != first.len()) {
        return Err("the runs of one version have other figures".into());
    }
    let over_runs = |(place, figure): (usize, &Figure)| {
        let mut values: Vec<f64> = runs.iter().map(|run| run[place].value).collect();
        values.sort_by(f64::total_cmp);
        let best = if figure.more_is_better { values[values.len() - 1] } else { values[0] };
        let with_value = |value| Figure { value, ..figure.clone() };
        FigureOverRuns { median: with_value(values[values.len() / 2]), best: with_value(best) }
    };
    Ok(first.iter().enumerate().map(over_runs).collect())
}

/// How much worse the new value is, as a share of the old one; negative if it is better.
fn worse_by(old: &Figure, new: &Figure) -> f64 {
    if old.value == new.value {
        return 0.0;
    }
    if new.more_is_better { 1.0 - new.value / old.value } else { new.value / old.value - 1.0 }
}

/// Figures are compared in their order: their names may have changed. One is worse if both its median and its
/// best are.
fn table(case: &str, old: &[FigureOverRuns], new: &[FigureOverRuns]) -> Result<String, String> {
    if old.len() > new.len() {
        return Err(format!("{case}: {} figures, {} before", new.len(), old.len()));
    }
    let mut text = format!(
        "| {case} | last release | this version | ratio | best before | best now | ratio | |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n"
    );
    for (old, new) in old.iter().zip(new) {
        let pairs = [(&old.median, &new.median), (&old.best, &new.best)];
        let is_slower = pairs.iter().all(|(old, new)| worse_by(old, new) > SLOWER_BY_MAX);
        let cells =
            pairs.map(|(old, new)| format!("{} | {} | {:.2}", old.value, new.value, new.value / old.value));
        let verdict = if is_slower { "WORSE" } else { "" };
        text.push_str(&format!("| {} | {} | {} | {verdict} |\n", new.median.name, cells[0], cells[1]));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_output_are_read() {
        let row = r#"{"case":"fts","figure":"the same, p95 ms","value":"1,024.5","bar":"≤ 50"}"#;
        let figure = |name: &str, value, more_is_better| Figure { name: name.into(), value, more_is_better };
        assert_eq!(figures_of_line(row), [figure("the same, p95 ms", 1_024.5, false)]);
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
        let figure = |value, more_is_better| Figure { name: "x".into(), value, more_is_better };
        let over =
            |values: [f64; 3], more| figures_over(&values.map(|value| vec![figure(value, more)])).unwrap();
        let old = over([100.0, 90.0, 500.0], true);
        assert_eq!(old, [FigureOverRuns { median: figure(100.0, true), best: figure(500.0, true) }]);
        assert_eq!(over([100.0, 90.0, 500.0], false)[0].best, figure(90.0, false));
        let is_worse = |new: [f64; 3], more| {
            table("case", &over([100.0; 3], more), &over(new, more)).unwrap().contains("WORSE")
        };
        assert!(is_worse([94.0; 3], true) && !is_worse([96.0; 3], true));
        assert!(is_worse([106.0; 3], false) && !is_worse([94.0; 3], false));
        assert!(!is_worse([50.0, 60.0, 99.0], true) && !is_worse([101.0, 150.0, 160.0], false));
        assert!(table("case", &old, &[]).is_err(), "a figure is gone");
        assert!(figures_over(&[vec![figure(1.0, true)], vec![]]).is_err());
    }
}
