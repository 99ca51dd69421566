//! What the cases of behaviour found: rows with their yardsticks, bars, the page and the JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::measure::median;
use crate::transfers::report::hidden;
use crate::transfers::run::{Clocked, Failure};

pub(crate) const OURS: &str = "longhaul";

/// One run of one row. What a yardstick has not is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) mb_per_s: Option<f64>,
    pub(crate) cpu_s_per_gb: Option<f64>,
    /// Memory of the end that took more, sockets included.
    pub(crate) peak_mb: Option<f64>,
    /// What this case is about, by its name in the table.
    pub(crate) more: Vec<(&'static str, f64)>,
}

impl Figures {
    /// Figures of a command from start to end.
    pub(crate) fn from_command(moved: &Clocked, bytes: u64) -> Figures {
        let peak = moved.peaks[0].max(moved.peaks[1]);
        Figures {
            mb_per_s: Some(bytes as f64 / 1e6 / moved.seconds),
            cpu_s_per_gb: Some((moved.client_cpu + moved.server_cpu) / bytes as f64 * 1e9),
            peak_mb: Some(peak as f64 / 1e6),
            more: Vec::new(),
        }
    }

    /// Figures of one part of the machine, such as its disk: a rate alone.
    pub(crate) fn rate(mb_per_s: f64) -> Figures {
        Figures { mb_per_s: Some(mb_per_s), ..Figures::default() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: Option<f64>) -> Figures {
        self.more.extend(value.map(|value| (name, value)));
        self
    }
}

/// All runs of one row.
pub(crate) struct Row {
    pub(crate) case: &'static str,
    /// Where or how, within the case.
    pub(crate) setting: String,
    pub(crate) program: String,
    runs: Vec<Result<Figures, String>>,
}

impl Row {
    /// Ours is encrypted and verified; yardsticks are neither.
    fn is_ours(&self) -> bool {
        self.program.starts_with(OURS)
    }

    fn failure(&self) -> Option<&str> {
        self.runs.iter().find_map(|run| run.as_ref().err().map(String::as_str))
    }

    /// Medians over the rounds, the highest peak. None if a run failed: a median of the luckier ones would
    /// flatter.
    pub(crate) fn summary(&self) -> Option<Figures> {
        let runs: Vec<&Figures> = self.runs.iter().map(|run| run.as_ref().ok()).collect::<Option<_>>()?;
        let all = |value: &dyn Fn(&Figures) -> Option<f64>| -> Option<Vec<f64>> {
            runs.iter().map(|run| value(run)).collect::<Option<Vec<f64>>>().filter(|all| !all.is_empty())
        };
        let first = runs.first()?;
        let more =
            first.more.iter().filter_map(|(name, _)| Some((*name, median(all(&|run| run.get(name))?))));
        Some(Figures {
            mb_per_s: all(&|run| run.mb_per_s).map(median),
            cpu_s_per_gb: all(&|run| run.cpu_s_per_gb).map(median),
            peak_mb: all(&|run| run.peak_mb).map(|peaks| peaks.into_iter().fold(0.0, f64::max)),
            more: more.collect(),
        })
    }

    fn json(&self) -> Value {
        let case = if self.setting.is_empty() {
            self.case.to_owned()
        } else {
            format!("{} {}", self.case, self.setting)
        };
        let mut row = json!({
            "case": case, "program": self.program, "mb_per_s": null, "cpu_s_per_gb": null, "peak_mb": null,
            "encrypted": self.is_ours(), "verified": self.is_ours(),
        });
        match self.summary() {
            Some(figures) => {
                let rounded =
                    |value: Option<f64>, scale: f64| value.map(|value| (value * scale).round() / scale);
                row["mb_per_s"] = json!(rounded(figures.mb_per_s, 10.0));
                row["cpu_s_per_gb"] = json!(rounded(figures.cpu_s_per_gb, 1000.0));
                row["peak_mb"] = json!(rounded(figures.peak_mb, 10.0));
                for (name, value) in figures.more {
                    row[name.replace(['/', ' '], "_")] = json!(rounded(Some(value), 1000.0));
                }
            }
            None => row["failed"] = json!(self.failure().unwrap_or("not run")),
        }
        row
    }
}

impl Figures {
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.more.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// What has to hold of a row, and does or does not. One whose figures are missing is missed.
pub(crate) struct Bar {
    pub(crate) case: &'static str,
    pub(crate) what: String,
    pub(crate) measured: Option<f64>,
    pub(crate) bound: Bound,
}

#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// What it is measured against failed.
    Missing,
}

impl Bar {
    fn reached(&self) -> bool {
        match (self.measured, self.bound) {
            (Some(value), Bound::AtLeast(bound)) => value >= bound,
            (Some(value), Bound::AtMost(bound)) => value <= bound,
            _ => false,
        }
    }

    fn line(&self) -> String {
        let measured = self.measured.map_or("missing".to_owned(), shown);
        let bound = match self.bound {
            Bound::AtLeast(bound) => format!("≥ {}", shown(bound)),
            Bound::AtMost(bound) => format!("≤ {}", shown(bound)),
            Bound::Missing => "missing".to_owned(),
        };
        let reached = if self.reached() { "yes" } else { "NO" };
        format!("| {} | {} | {measured} | {bound} | {reached} |\n", self.case, self.what)
    }

    fn json(&self) -> Value {
        json!({"case": self.case, "bar": self.what, "measured": self.measured, "reached": self.reached()})
    }
}

fn shown(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

/// Everything that was measured since the command was given.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) rows: Vec<Row>,
    pub(crate) bars: Vec<Bar>,
    /// Name and description of each case.
    pub(crate) cases: Vec<(&'static str, String)>,
}

impl Session {
    /// Adds a run to its row, and prints it.
    pub(crate) fn record(
        &mut self,
        case: &'static str,
        setting: &str,
        program: &str,
        run: Result<Figures, Failure>,
    ) {
        let run = run.map_err(|failure| match failure {
            Failure::Failed(why) => why,
            Failure::TooSlow { limit_s, .. } => format!("stopped after {limit_s} s"),
        });
        match &run {
            Ok(figures) => eprintln!("  {setting:<28} {program:<34} {}", one_line(figures)),
            Err(why) => eprintln!("  {setting:<28} {program:<34} FAILED: {why}"),
        }
        let same = |row: &&mut Row| row.case == case && row.setting == setting && row.program == program;
        match self.rows.iter_mut().find(same) {
            Some(row) => row.runs.push(run),
            None => self.rows.push(Row {
                case,
                setting: setting.to_owned(),
                program: program.to_owned(),
                runs: vec![run],
            }),
        }
    }

    /// Reasons without the folders of this session.
    pub(crate) fn hide(&mut self, memory: &Path) {
        for run in self.rows.iter_mut().flat_map(|row| &mut row.runs) {
            if let Err(why) = run {
                *why = hidden(why, memory);
            }
        }
    }

    pub(crate) fn get(&self, case: &str, setting: &str, program: &str) -> Option<Figures> {
        let found = |row: &&Row| row.case == case && row.setting == setting && row.program == program;
        self.rows.iter().find(found)?.summary()
    }

    pub(crate) fn bar(
        &mut self,
        case: &'static str,
        what: impl Into<String>,
        measured: Option<f64>,
        bound: Bound,
    ) {
        self.bars.push(Bar { case, what: what.into(), measured, bound });
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = self.rows.iter().filter_map(|row| {
            Some(format!("{} {}: {}: {}", row.case, row.setting, row.program, row.failure()?))
        });
        failed.collect()
    }

    pub(crate) fn rows(&self) -> Vec<Value> {
        self.rows.iter().map(Row::json).collect()
    }

    /// Rows, then bars: the latter have a field of their own name.
    pub(crate) fn json_lines(&self) -> String {
        let bars = self.bars.iter().map(Bar::json);
        self.rows().into_iter().chain(bars).map(|value| format!("{value}\n")).collect()
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from(
            "## Bars\n\n| case | bar | measured | bound | reached |\n| --- | --- | ---: | ---: | --- |\n",
        );
        self.bars.iter().for_each(|bar| text += &bar.line());
        for (case, what) in &self.cases {
            let _ = write!(text, "\n## {case}\n\n{what}\n\n{}", self.case_table(case));
        }
        text
    }

    fn case_table(&self, case: &str) -> String {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.case == case).collect();
        let mut names: Vec<&'static str> = Vec::new();
        for row in &rows {
            let more = row.summary().map(|figures| figures.more).unwrap_or_default();
            names.extend(more.iter().map(|(name, _)| *name));
        }
        let mut columns: Vec<&'static str> = Vec::new();
        names.into_iter().for_each(|name| {
            if !columns.contains(&name) {
                columns.push(name)
            }
        });
        let heads: String = columns.iter().map(|name| format!(" {name} |")).collect();
        let rule: String = columns.iter().map(|_| " ---: |").collect();
        let mut text = format!(
            "| setting | program | MB/s | CPU s/GB | peak MB |{heads}\n| --- | --- | ---: | ---: | ---: \
                |{rule}\n"
        );
        for row in rows {
            let cell = |value: Option<f64>| format!(" {} |", value.map_or("–".to_owned(), shown));
            let _ = write!(text, "| {} | {} |", row.setting, row.program);
            match row.summary() {
                Some(figures) => {
                    text += &[figures.mb_per_s, figures.cpu_s_per_gb, figures.peak_mb].map(cell).concat();
                    columns.iter().for_each(|name| text += &cell(figures.get(name)));
                }
                None => {
                    let why = row.failure().unwrap_or("not run").replace('|', "¦").replace('\n', " ");
                    let short: String = why.chars().take(160).collect();
                    let _ = write!(text, " FAILED | {short} | |{}", " |".repeat(columns.len()));
                }
            }
            text.push('\n');
        }
        text
    }
}

fn one_line(figures: &Figures) -> String {
    let mut parts = Vec::new();
    parts.extend(figures.mb_per_s.map(|rate| format!("{} MB/s", shown(rate))));
    parts.extend(figures.cpu_s_per_gb.map(|cpu| format!("{} CPU s/GB", shown(cpu))));
    parts.extend(figures.peak_mb.map(|peak| format!("peak {} MB", shown(peak))));
    parts.extend(figures.more.iter().map(|(name, value)| format!("{name} {}", shown(*value))));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let mut session = Session::default();
        session.cases.push(("growth", "words".into()));
        for rate in [90.0, 100.0, 80.0] {
            let figures =
                Figures { cpu_s_per_gb: Some(1.0), ..Figures::rate(rate) }.with("files/s", Some(rate * 2.0));
            session.record("growth", "1 at once", "longhaul", Ok(figures));
        }
        session.record("growth", "", "floor", Ok(Figures::rate(1000.0)));
        session.record("growth", "2 at once", "longhaul", Err(Failure::Failed("no | way".into())));
        session
    }

    #[test]
    fn medians_failures_and_yardsticks_are_in_the_table() {
        let session = session();
        let text = session.markdown();
        assert!(text.contains("| 1 at once | longhaul | 90.0 | 1.000 | – | 180 |"), "{text}");
        assert!(text.contains("|  | floor | 1000 | – | – | – |"), "{text}");
        assert!(text.contains("| 2 at once | longhaul | FAILED | no ¦ way | | |"), "{text}");
        let table = session.case_table("growth");
        assert!(table.lines().all(|line| line.matches('|').count() == 7), "{table}");
        assert_eq!(session.failures(), ["growth 2 at once: longhaul: no | way"]);
    }

    #[test]
    fn a_failed_run_spoils_its_row() {
        let mut session = session();
        session.record("growth", "1 at once", "longhaul", Err(Failure::Failed("gone".into())));
        assert!(session.get("growth", "1 at once", "longhaul").is_none());
    }

    #[test]
    fn rows_have_the_names_that_readers_expect() {
        let rows = session().rows();
        let expected = json!({
            "case": "growth 1 at once", "program": "longhaul", "mb_per_s": 90.0, "cpu_s_per_gb": 1.0,
            "peak_mb": null, "encrypted": true, "verified": true, "files_s": 180.0,
        });
        assert_eq!(rows[0], expected);
        assert_eq!(rows[1]["encrypted"], false);
        assert_eq!(rows[2]["failed"], "no | way");
    }

    #[test]
    fn bars_are_met_or_missed_and_never_met_by_nothing() {
        let mut session = session();
        session.bar("growth", "a", Some(0.98), Bound::AtLeast(0.98));
        session.bar("growth", "b", Some(0.11), Bound::AtMost(0.1));
        session.bar("growth", "c", None, Bound::AtLeast(0.0));
        session.bar("growth", "d", Some(1.0), Bound::Missing);
        let text = session.markdown();
        for line in [
            "a | 0.980 | ≥ 0.980 | yes",
            "b | 0.110 | ≤ 0.100 | NO",
            "c | missing | ≥ 0 | NO",
            "d | 1.000 | missing | NO",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
