//! `cargo xtask previous bench`: the same benchmarks of the last release and of this version, in alternation,
//! so that whatever else the machine does meets both alike; the median of each figure counts.

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
    println!("\n{}", table(case, &medians(&old)?, &medians(&new)?)?);
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

/// The median of each figure over the runs.
fn medians(runs: &[Vec<Figure>]) -> Result<Vec<Figure>, String> {
    let Some(first) = runs.first() else { return Err("no run".into()) };
    if runs.iter().any(|run| run.len() != first.len()) {
        return Err("the runs of one version have other figures".into());
    }
    let median = |(place, figure): (usize, &Figure)| {
        let mut values: Vec<f64> = runs.iter().map(|run| run[place].value).collect();
        values.sort_by(f64::total_cmp);
        Figure { value: values[values.len() / 2], ..figure.clone() }
    };
    Ok(first.iter().enumerate().map(median).collect())
}

/// How much worse the new value is, as a share of the old one; negative if it is better.
fn worse_by(old: &Figure, new: &Figure) -> f64 {
    if old.value == new.value {
        return 0.0;
    }
    if new.more_is_better { 1.0 - new.value / old.value } else { new.value / old.value - 1.0 }
}

/// Figures are compared in their order: their names may have changed.
fn table(case: &str, old: &[Figure], new: &[Figure]) -> Result<String, String> {
    if old.len() > new.len() {
        return Err(format!("{case}: {} figures, {} before", new.len(), old.len()));
    }
    let mut text =
        format!("| {case} | last release | this version | ratio | |\n| --- | ---: | ---: | ---: | --- |\n");
    for (old, new) in old.iter().zip(new) {
        let slower = worse_by(old, new) > SLOWER_BY_MAX;
        let verdict = if slower { "WORSE" } else { "" };
        let ratio = new.value / old.value;
        text.push_str(&format!(
            "| {} | {} | {} | {ratio:.2} | {verdict} |\n",
            new.name, old.value, new.value
        ));
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
        let figure = |value, more_is_better| Figure { name: "x".into(), value, more_is_better };
        let runs = |values: [f64; 3], more| values.map(|value| vec![figure(value, more)]).to_vec();
        let old = medians(&runs([100.0, 90.0, 500.0], true)).unwrap();
        assert_eq!(old, [figure(100.0, true)]);
        let said = |new: f64, more| table("case", &[figure(100.0, more)], &[figure(new, more)]).unwrap();
        assert!(said(94.0, true).contains("WORSE") && !said(96.0, true).contains("WORSE"));
        assert!(said(106.0, false).contains("WORSE") && !said(94.0, false).contains("WORSE"));
        assert!(table("case", &old, &[]).is_err(), "a figure is gone");
        assert!(medians(&[old.clone(), vec![]]).is_err());
    }
}
