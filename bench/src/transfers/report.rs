//! What a session found: medians, the tables of the page, the rows as JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::bars;
use super::case::Case;
use super::costs;
use super::floor;
use super::run::{Failure, Measured};
use crate::measure::median;
use crate::peers::{Direction, Program};

/// All runs of one program in one case.
pub(crate) struct Outcome {
    pub(crate) case: &'static Case,
    pub(crate) program: &'static str,
    pub(crate) encrypted: &'static str,
    pub(crate) verified: &'static str,
    pub(crate) is_ours: bool,
    pub(crate) moves_files: bool,
    pub(crate) runs: Vec<Result<Measured, Failure>>,
}

/// Medians over all rounds; peaks are the highest.
pub(crate) struct Summary {
    pub(crate) seconds: f64,
    pub(crate) mb_per_s: f64,
    pub(crate) range: (f64, f64),
    pub(crate) cpu_s_per_gb: f64,
    pub(crate) client_cpu: f64,
    pub(crate) server_cpu: f64,
    pub(crate) path_cpu: f64,
    pub(crate) client_peak_mb: f64,
    pub(crate) server_peak_mb: f64,
    pub(crate) second_half: Option<f64>,
}

impl Summary {
    pub(crate) fn peak_mb(&self) -> f64 {
        self.client_peak_mb.max(self.server_peak_mb)
    }
}

impl Outcome {
    pub(crate) fn new(case: &'static Case, program: &dyn Program) -> Outcome {
        Outcome {
            case,
            program: program.name(),
            encrypted: program.encrypted(),
            verified: program.verified(),
            is_ours: program.is_ours(),
            moves_files: program.direction() != Direction::Memory,
            runs: Vec::new(),
        }
    }

    /// A floor is no program: nothing is moved, and nobody is measured against it but us.
    pub(crate) fn floor(case: &'static Case, name: &'static str) -> Outcome {
        let (encrypted, verified) =
            if floor::SEALED.contains(&name) { ("AES-128-GCM", "crc32c") } else { ("no", "crc32c") };
        let (is_ours, moves_files, runs) = (false, false, Vec::new());
        Outcome { case, program: name, encrypted, verified, is_ours, moves_files, runs }
    }

    pub(crate) fn is_floor(&self) -> bool {
        floor::NAMES.contains(&self.program)
    }

    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.runs.iter().find_map(|run| run.as_ref().err())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// MB/s of its first run, which decides whether there are more.
    pub(crate) fn first_rate(&self) -> Option<f64> {
        Some(self.runs.first()?.as_ref().ok()?.mb_per_s())
    }

    /// None if any of its runs failed: a median of the luckier runs would flatter.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let runs: Vec<&Measured> = self.runs.iter().map(|run| run.as_ref().ok()).collect::<Option<_>>()?;
        let last = runs.last()?;
        let all = |value: &dyn Fn(&Measured) -> f64| runs.iter().map(|run| value(run)).collect::<Vec<f64>>();
        let most = |value: &dyn Fn(&Measured) -> f64| all(value).into_iter().fold(0.0, f64::max);
        let per_gb =
            |seconds: &dyn Fn(&Measured) -> f64| median(all(&|run| seconds(run) / run.bytes as f64 * 1e9));
        let rates = all(&Measured::mb_per_s);
        let range =
            (rates.iter().copied().fold(f64::INFINITY, f64::min), rates.iter().copied().fold(0.0, f64::max));
        let halves: Vec<f64> = runs.iter().filter_map(|run| run.second_half).collect();
        Some(Summary {
            seconds: median(all(&|run| run.seconds)),
            mb_per_s: median(rates),
            range,
            cpu_s_per_gb: median(all(&Measured::cpu_s_per_gb)),
            client_cpu: per_gb(&|run| run.client_cpu),
            server_cpu: per_gb(&|run| run.server_cpu),
            path_cpu: per_gb(&|run| run.path_cpu),
            client_peak_mb: most(&|run| run.client_peak as f64 / 1e6),
            server_peak_mb: most(&|run| run.server_peak as f64 / 1e6),
            second_half: last.second_half.map(|_| median(halves)),
        })
    }

    fn json(&self) -> Value {
        let mut row = json!({
            "case": self.case.name, "program": self.program, "mb_per_s": null, "cpu_s_per_gb": null,
            "peak_mb": null, "encrypted": self.encrypted != "no",
                "verified": !self.verified.starts_with("no"),
        });
        match (self.summary(), self.failure()) {
            (Some(summary), _) => {
                row["mb_per_s"] = rounded(summary.mb_per_s, 10.0);
                row["cpu_s_per_gb"] = rounded(summary.cpu_s_per_gb, 1000.0);
                row["peak_mb"] = rounded(summary.peak_mb(), 10.0);
            }
            (None, Some(Failure::TooSlow { below_mb_per_s, .. })) => {
                row["below_mb_per_s"] = rounded(*below_mb_per_s, 10.0);
            }
            (None, Some(Failure::Failed(why))) => row["failed"] = json!(why),
            (None, None) => row["failed"] = json!("not run"),
        }
        row
    }
}

fn rounded(value: f64, scale: f64) -> Value {
    json!((value * scale).round() / scale)
}

/// Everything that was measured since the command was given.
pub(crate) struct Session {
    pub(crate) outcomes: Vec<Outcome>,
    rounds: usize,
    accounting: &'static str,
}

impl Session {
    pub(crate) fn new(rounds: usize, accounting: &'static str) -> Session {
        Session { outcomes: Vec::new(), rounds, accounting }
    }

    pub(crate) fn get(&self, case: &str, program: &str) -> Option<Summary> {
        self.outcomes
            .iter()
            .find(|outcome| outcome.case.name == case && outcome.program == program)?
            .summary()
    }

    /// MB/s of a program, or what it certainly stayed below because it was stopped.
    pub(crate) fn rate_at_most(&self, case: &str, program: &str) -> Option<f64> {
        let found = |outcome: &&Outcome| outcome.case.name == case && outcome.program == program;
        let outcome = self.outcomes.iter().find(found)?;
        match (outcome.summary(), outcome.failure()) {
            (Some(summary), _) => Some(summary.mb_per_s),
            (None, Some(Failure::TooSlow { below_mb_per_s, .. })) => Some(*below_mb_per_s),
            (None, _) => None,
        }
    }

    /// Programs that did not work, with their reason. One that was stopped as too slow has worked.
    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = self.outcomes.iter().filter_map(|outcome| match outcome.failure()? {
            Failure::Failed(why) => Some(format!("{}: {}: {why}", outcome.case.name, outcome.program)),
            Failure::TooSlow { .. } => None,
        });
        failed.collect()
    }

    pub(crate) fn rows(&self) -> Vec<Value> {
        self.outcomes.iter().map(Outcome::json).collect()
    }

    /// The page's body: bars, then a table for each case, then the settings.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "Medians of {} alternating rounds. CPU time by {}.\n\n## Bars\n\n{}",
            self.rounds,
            self.accounting,
            bars::table(self)
        );
        text += "\n## Cases\n";
        let mut cases: Vec<&'static Case> = Vec::new();
        for outcome in &self.outcomes {
            if !cases.iter().any(|case| case.name == outcome.case.name) {
                cases.push(outcome.case);
            }
        }
        for case in &cases {
            let _ = write!(text, "\n### {}\n\n{}\n\n{}", case.name, case.described(), self.case_table(case));
        }
        text += &costs::section(self);
        text + "\n## Settings\n\nFor each program the server's command (with its file of settings, if it has \
            one), then the client's, \
                and the cases in which they were used.\n"
            + &self.settings()
    }

    fn outcomes_of<'a>(&'a self, case: &'a Case) -> impl Iterator<Item = &'a Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.case.name == case.name)
    }

    /// MB/s of the best peer that moves files.
    pub(crate) fn best_peer(&self, case: &Case) -> Option<(&'static str, f64)> {
        let peers = self.outcomes_of(case).filter(|outcome| !outcome.is_ours && outcome.moves_files);
        let rates = peers.filter_map(|outcome| Some((outcome.program, outcome.summary()?.mb_per_s)));
        rates.max_by(|one, other| one.1.total_cmp(&other.1))
    }

    fn case_table(&self, case: &Case) -> String {
        let best = self.best_peer(case).map(|(_, rate)| rate);
        let mut text = String::from(
            "| program | MB/s | lowest to highest | × best peer | CPU s/GB | client + server | path | peak \
                MB, client / server \
             | encrypted | verified |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- \
             |\n",
        );
        for outcome in self.outcomes_of(case) {
            let _ = write!(text, "| {} |", outcome.program);
            match (outcome.summary(), outcome.failure()) {
                (Some(summary), _) => {
                    let range = if outcome.runs.len() == 1 && self.rounds > 1 {
                        "one run".to_owned()
                    } else {
                        format!("{:.0}–{:.0}", summary.range.0, summary.range.1)
                    };
                    text += &cells(&summary, &range, best);
                }
                (None, Some(Failure::TooSlow { limit_s, below_mb_per_s })) => {
                    let _ = write!(text, " < {below_mb_per_s:.0} | stopped after {limit_s} s | | | | | |");
                }
                (None, failure) => {
                    let why = match failure {
                        Some(Failure::Failed(why)) => in_a_cell(why),
                        _ => "not run".to_owned(),
                    };
                    let _ = write!(text, " FAILED | {why} | | | | | |");
                }
            }
            let _ = writeln!(text, " {} | {} |", outcome.encrypted, outcome.verified);
        }
        text
    }

    /// Alike commands once, with all their cases.
    fn settings(&self) -> String {
        let mut groups: Vec<(&str, &Measured, Vec<&str>)> = Vec::new();
        for outcome in self.outcomes.iter().filter(|outcome| !outcome.is_floor()) {
            let Some(run) = outcome.runs.iter().find_map(|run| run.as_ref().ok()) else { continue };
            let same = |(program, other, _): &&mut (&str, &Measured, Vec<&str>)| {
                *program == outcome.program
                    && (&other.server_words, &other.client_words) == (&run.server_words, &run.client_words)
            };
            match groups.iter_mut().find(same) {
                Some((.., cases)) => cases.push(outcome.case.name),
                None => groups.push((outcome.program, run, vec![outcome.case.name])),
            }
        }
        groups.sort_by_key(|(program, ..)| *program);
        let mut text = String::new();
        let mut last = "";
        for (program, run, cases) in groups {
            if program != last {
                let _ = writeln!(text, "\n### Settings of {program}");
                last = program;
            }
            let (server, client) = (&run.server_words, &run.client_words);
            let _ = write!(text, "\n{}:\n\n```text\n{server}\n{client}\n```\n", cases.join(", "));
        }
        text
    }
}

/// Folders of this session get short names in what is kept and printed.
pub(crate) fn without_folders(run: Result<Measured, Failure>, memory: &Path) -> Result<Measured, Failure> {
    let short = |text: String| hidden(&text, memory);
    match run {
        Ok(run) => {
            let (server_words, client_words) = (short(run.server_words), short(run.client_words));
            Ok(Measured { server_words, client_words, ..run })
        }
        Err(Failure::Failed(why)) => Err(Failure::Failed(short(why))),
        slow @ Err(Failure::TooSlow { .. }) => slow,
    }
}

pub(crate) fn hidden(text: &str, memory: &Path) -> String {
    let (memory, binary) = (memory.to_string_lossy(), longhaul_testbed::binary());
    let mut text = text
        .replace(&format!("{memory}/stage/keys"), "KEYS")
        .replace(&binary.to_string_lossy()[..], "longhaul");
    for (folder, name) in [("source", "SOURCE"), ("target", "TARGET"), ("run", "RUN")] {
        text = text.replace(&format!("{memory}/{folder}"), name);
    }
    text
}

/// A reason that does not break the table; all of it is on the terminal.
fn in_a_cell(why: &str) -> String {
    const SHOWN: usize = 160;
    let more = if why.chars().count() > SHOWN { "…" } else { "" };
    let short: String = why.chars().take(SHOWN).collect();
    short.replace('|', "¦").replace('\n', " ") + more
}

fn cells(summary: &Summary, range: &str, best: Option<f64>) -> String {
    let ratio = best.map_or("–".to_owned(), |best| format!("{:.2}", summary.mb_per_s / best));
    format!(
        " {:.0} | {range} | {ratio} | {:.2} | {:.2} + {:.2} | {:.2} | {:.0} / {:.0} |",
        summary.mb_per_s,
        summary.cpu_s_per_gb,
        summary.client_cpu,
        summary.server_cpu,
        summary.path_cpu,
        summary.client_peak_mb,
        summary.server_peak_mb
    )
}

/// One run on the terminal, while more are to come.
pub(crate) fn line(program: &str, measured: &Result<Measured, Failure>) -> String {
    match measured {
        Ok(run) => format!(
            "{program:<22} {:>5.0} MB/s, {:.2} CPU s/GB, peaks {:.0} and {:.0} MB",
            run.mb_per_s(),
            run.cpu_s_per_gb(),
            run.client_peak as f64 / 1e6,
            run.server_peak as f64 / 1e6
        ),
        Err(Failure::TooSlow { limit_s, below_mb_per_s }) => {
            format!("{program:<22} stopped after {limit_s} s: below {below_mb_per_s:.0} MB/s")
        }
        Err(Failure::Failed(why)) => format!("{program:<22} FAILED: {why}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::case::CASES;
    use super::*;

    /// An outcome of runs that took so many seconds each; no seconds, no success.
    pub(crate) fn outcome(case: &str, program: &'static str, seconds: &[f64]) -> Outcome {
        let case = CASES.iter().find(|known| known.name == case).unwrap();
        let run = |&seconds: &f64| {
            let (bytes, cpu) = (case.bytes(), case.bytes() as f64 / 1e9);
            let peak = 50_000_000;
            let run =
                Measured { seconds, bytes, client_cpu: cpu, server_cpu: cpu / 2.0, ..Measured::default() };
            Ok(Measured { client_peak: peak, second_half: Some(124.0), ..run })
        };
        let ours = program.starts_with("longhaul");
        Outcome {
            case,
            program,
            encrypted: if ours { "TLS 1.3" } else { "no" },
            verified: if ours { "file digest end to end" } else { "no" },
            is_ours: ours,
            moves_files: !program.starts_with("iperf3"),
            runs: if seconds.is_empty() {
                vec![Err(Failure::Failed("no such | program".into()))]
            } else {
                seconds.iter().map(run).collect()
            },
        }
    }

    pub(crate) fn session(outcomes: Vec<Outcome>) -> Session {
        Session { outcomes, ..Session::new(3, "control groups") }
    }

    #[test]
    fn medians_and_ratios_are_in_the_table() {
        let session = session(vec![
            outcome("lan-2g", "longhaul", &[1.0, 4.0, 2.0]),
            outcome("lan-2g", "iperf3 -P1", &[0.5]),
            outcome("lan-2g", "curl", &[2.5]),
            outcome("lan-2g", "rsync", &[5.0]),
        ]);
        let table = session.case_table(session.outcomes[0].case);
        assert!(
            table.contains(
                "| longhaul | 1000 | 500–2000 | 1.25 | 1.50 | 1.00 + 0.50 | 0.00 | 50 / 0 | TLS 1.3 |"
            ),
            "{table}"
        );
        assert!(table.contains("| rsync | 400 | one run | 0.50 |"), "{table}");
        assert!(session.markdown().contains("## Bars"));
        assert!(session.failures().is_empty());
    }

    #[test]
    fn a_failure_is_a_row_and_never_an_empty_cell() {
        let mut slow = outcome("lan-2g", "xrdcp", &[1.0]);
        slow.runs.push(Err(Failure::TooSlow { limit_s: 60, below_mb_per_s: 33.3 }));
        let session = session(vec![outcome("lan-2g", "curl", &[]), slow]);
        let table = session.case_table(session.outcomes[0].case);
        assert!(table.contains("| curl | FAILED | no such ¦ program |"), "{table}");
        assert!(table.contains("| xrdcp | < 33 | stopped after 60 s |"), "{table}");
        assert!(table.lines().skip(1).all(|line| line.matches('|').count() == 11), "{table}");
        assert_eq!(session.failures(), ["lan-2g: curl: no such | program"]);
        assert_eq!(session.rows()[1]["below_mb_per_s"], 33.3);
        assert!(session.rows()[1]["mb_per_s"].is_null());
    }

    #[test]
    fn rows_have_the_names_that_readers_expect() {
        let session = session(vec![outcome("lan-2g", "longhaul", &[2.0])]);
        let expected = json!({
            "case": "lan-2g", "program": "longhaul", "mb_per_s": 1000.0, "cpu_s_per_gb": 1.5, "peak_mb": 50.0,
            "encrypted": true, "verified": true,
        });
        assert_eq!(session.rows(), [expected]);
    }
}
