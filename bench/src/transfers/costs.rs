//! Costs that do not grow with the bytes: of a job, and of each file in it.
//!
//! A job's is the time that one file of 64 kB takes. A file's is what 5,000 small files take beyond a job and
//! beyond the time of their bytes at the rate of large files.

use std::fmt::Write as _;

use super::case::{ONE_LAN, ONE_WAN};
use super::report::{Outcome, Session};

const MANY_SMALL: &str = "lan-5000x64k";
const LARGE: &str = "lan-20x100m";

/// Empty if the session has none of the cases that tell.
pub(crate) fn section(session: &Session) -> String {
    let mut text = String::new();
    let mut programs: Vec<&str> = Vec::new();
    for outcome in &session.outcomes {
        if !programs.contains(&outcome.program) {
            programs.push(outcome.program);
        }
    }
    for program in programs {
        let job = |case: &str| Some(session.get(case, program)?.seconds * 1e3);
        let cells = [job(ONE_LAN), job(ONE_WAN), per_file_us(session, program)];
        if cells.iter().any(Option::is_some) {
            let [lan, wan, file] =
                cells.map(|cell| cell.map_or("not measured".to_owned(), |value| format!("{value:.0}")));
            let _ = writeln!(text, "| {program} | {lan} | {wan} | {file} |");
        }
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "\n## Fixed costs\n\nA job: one file of 64 kB. A file: {MANY_SMALL} beyond a job and beyond its \
            bytes at the rate of \
         {LARGE}.\n\n| program | a job on the LAN, ms | a job at 100 ms, ms | a file on the LAN, µs |\n| --- \
         | ---: | ---: | ---: |\n{text}"
    )
}

fn per_file_us(session: &Session, program: &str) -> Option<f64> {
    let many: &Outcome = session
        .outcomes
        .iter()
        .find(|outcome| outcome.case.name == MANY_SMALL && outcome.program == program)?;
    let job = session.get(ONE_LAN, program)?.seconds;
    let data = many.case.bytes() as f64 / 1e6 / session.get(LARGE, program)?.mb_per_s;
    Some((many.summary()?.seconds - job - data) / many.case.files as f64 * 1e6)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{outcome, session};
    use super::*;

    #[test]
    fn a_file_costs_what_neither_job_nor_bytes_explain() {
        // 327.68 MB at 1,000 MB/s and a job of 20 ms leave 0.65232 s for 5,000 files.
        let session = session(vec![
            outcome(MANY_SMALL, "longhaul", &[1.0]),
            outcome(LARGE, "longhaul", &[2.0]),
            outcome(ONE_LAN, "longhaul", &[0.02]),
            outcome(ONE_LAN, "curl", &[0.01]),
        ]);
        let text = section(&session);
        assert!(text.contains("| longhaul | 20 | not measured | 130 |"), "{text}");
        assert!(text.contains("| curl | 10 | not measured | not measured |"), "{text}");
    }

    #[test]
    fn nothing_is_said_without_the_cases() {
        assert_eq!(section(&session(vec![outcome("lan-2g", "longhaul", &[1.0])])), "");
    }
}
