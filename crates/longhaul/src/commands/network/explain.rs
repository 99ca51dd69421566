//! `longhaul network explain`: what limits a link, and what it would do with more work.

use std::time::Duration;

use clap::Args;
use longhaul_api::network::{NetworkLinkDetail, NetworkWhatIf};
use longhaul_model::units::{bytes, count, duration, parse_bytes, rate};

use super::links::{LinkArgs, bullet_list, changes_table, link_title};
use crate::clock;
use crate::terminal::Style;

#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub(super) link: LinkArgs,
    /// Predict the rate with this many more parallel files [default: 1, 4 and 16]
    #[arg(long, value_name = "COUNT")]
    files: Option<u32>,
    /// Predict the time for this many more bytes, such as 20TB [default: 1GB, 100GB and 10TB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    bytes: Option<u64>,
}

impl ExplainArgs {
    pub(super) fn query(&self) -> [(&'static str, Option<String>); 2] {
        [
            ("files", self.files.map(|files| files.to_string())),
            ("bytes", self.bytes.map(|bytes| bytes.to_string())),
        ]
    }
}

pub(super) fn explanation_text(detail: &NetworkLinkDetail, style: Style, width: Option<usize>) -> String {
    let mut text = link_title(&detail.link, style);
    text.push_str(&bullet_list(&detail.explanation, width));
    let more = what_if_sentences(&detail.what_if);
    if !more.is_empty() {
        text.push_str("\nwith more work\n");
        text.push_str(&bullet_list(&more, width));
    }
    if !detail.changes.is_empty() {
        text.push('\n');
        text.push_str(&changes_table(&detail.changes, clock::now()).human(style, width));
    }
    if !detail.advice.is_empty() {
        text.push_str(&format!(
            "\nadvice: longhaul network advise {} {}\n",
            detail.link.source, detail.link.target
        ));
    }
    text
}

fn what_if_sentences(what_if: &NetworkWhatIf) -> Vec<String> {
    let rates = what_if.rates.iter().map(|row| {
        let files = if row.more_files == 1 { "file" } else { "files" };
        format!(
            "with {} more parallel {files}, all together would reach {} (10 % chance of less than {}, 10 % \
                of more than {})",
            count(row.more_files.into()),
            rate(row.rate),
            rate(row.rate_low),
            rate(row.rate_high)
        )
    });
    let times = what_if.times.iter().map(|row| {
        format!(
            "{} more, {} in parallel, would take {} (80 % range: {} to {})",
            bytes(row.bytes),
            count(row.at_once.into()),
            duration_text(row.seconds),
            duration_text(row.seconds_low),
            duration_text(row.seconds_high)
        )
    });
    let failures = what_if.failures.iter().filter(|row| row.share >= 0.001).map(|row| {
        let whose = match row.blame.as_str() {
            "ourselves" => "a fault of Longhaul".to_owned(),
            blame => format!("a fault of the {blame}"),
        };
        format!("the next attempt fails by {whose} with {:.1} % probability", row.share * 100.0)
    });
    let mut lines: Vec<String> = rates.chain(times).chain(failures).collect();
    if what_if.failures.iter().all(|row| row.share < 0.001) {
        lines.push("no failures are expected".to_owned());
    }
    lines
}

/// The service never sends negative or infinite times; if it did, the nearest valid one is shown.
fn duration_text(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::network::{NetworkFailure, NetworkRate, NetworkTime};

    #[test]
    fn more_work_is_told_in_sentences() {
        let mut what_if = NetworkWhatIf {
            rates: vec![NetworkRate { more_files: 4, rate: 4e8, rate_low: 2e8, rate_high: 8e8 }],
            times: vec![NetworkTime {
                bytes: 100_000_000_000,
                files: 100,
                at_once: 4,
                seconds: 250.0,
                seconds_low: 125.0,
                seconds_high: 500.0,
            }],
            failures: Vec::new(),
        };
        assert_eq!(
            what_if_sentences(&what_if),
            [
                "with 4 more parallel files, all together would reach 400 MB/s (10 % chance of less than 200 \
                    MB/s, 10 % of more than 800 MB/s)",
                "100 GB more, 4 in parallel, would take 4 min 10 s (80 % range: 2 min 5 s to 8 min 20 s)",
                "no failures are expected",
            ]
        );
        let failure = |blame: &str, share| NetworkFailure { blame: blame.to_owned(), share };
        what_if.failures = vec![failure("network", 0.05), failure("ourselves", 0.01)];
        let lines = what_if_sentences(&what_if);
        assert_eq!(lines[2], "the next attempt fails by a fault of the network with 5.0 % probability");
        assert_eq!(lines[3], "the next attempt fails by a fault of Longhaul with 1.0 % probability");
        assert_eq!(duration_text(f64::NAN), "0 ms");
    }
}
