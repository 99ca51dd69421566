//! Phrases that several commands share.

use longhaul_api::agent::{LeftOut, LeftOutReason};
use longhaul_api::formats::{JobPriority, SubscriptionPriority};
use longhaul_api::native::{LeftOutCount, VerifiedCount};
use longhaul_model::units::{self, count, printable};

/// A number of files: `1 file`, `2,000 files`.
pub fn files(number: u64) -> String {
    plural(number, "file")
}

/// A word of a command that can be pasted into a shell: quoted where the shell would take it apart.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:,=@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", printable(word).replace('\'', "'\\''")),
    }
}

/// A number of what takes an s.
pub fn plural(number: u64, noun: &str) -> String {
    units::plural(number, noun, &format!("{noun}s"))
}

/// A line for each count that is not zero: how many of what (one, many), and what becomes of them.
pub fn push_counts(text: &mut String, counts: &[(u64, &str, &str, &str)]) {
    for (count, one, many, becomes) in counts.iter().filter(|(count, ..)| *count > 0) {
        text.push_str(&format!("\n  {count} {}: {becomes}", if *count == 1 { one } else { many }));
    }
}

pub fn retries(number: u64) -> String {
    units::plural(number, "retry", "retries")
}

/// A subscription's priority with its scale: `5 of 9`.
pub fn subscription_priority(priority: u8) -> String {
    format!("{priority} of {}", SubscriptionPriority::RANGE.end())
}

/// A job's priority with its scale: `3 of 5`.
pub fn job_priority(priority: u8) -> String {
    format!("{priority} of {}", JobPriority::RANGE.end())
}

/// A rate in a sentence, where zero is a number too.
pub fn rate(bytes_per_s: f64) -> String {
    units::rate(if bytes_per_s > 0.0 { bytes_per_s } else { 0.0 })
}

/// Verified files by kind: `1,990 end-to-end, 10 readback`.
pub fn verified(counts: &[VerifiedCount]) -> String {
    let shown: Vec<String> = counts
        .iter()
        .filter(|c| c.files > 0)
        .map(|c| format!("{} {}", count(c.files), printable(&c.how)))
        .collect();
    if shown.is_empty() { "–".to_owned() } else { shown.join(", ") }
}

/// A reason and its count: `3 empty directories`, `1 socket`.
pub fn left_out_reason(reason: LeftOutReason, number: u64) -> String {
    let (one, many) = match reason {
        LeftOutReason::LinkLeadsOut => ("link that leads out of the tree", "links that lead out of the tree"),
        LeftOutReason::BrokenLink => ("link to nothing", "links to nothing"),
        LeftOutReason::Device => ("device", "devices"),
        LeftOutReason::Socket => ("socket", "sockets"),
        LeftOutReason::Fifo => ("named pipe", "named pipes"),
        LeftOutReason::NotUtf8 => ("name that is not UTF-8", "names that are not UTF-8"),
        LeftOutReason::NameRules => {
            ("file that the name rules have no name for", "files that the name rules have no name for")
        }
        LeftOutReason::EmptyDirectory => ("empty directory", "empty directories"),
        LeftOutReason::Unreadable => ("unreadable file or directory", "unreadable files or directories"),
        LeftOutReason::ChangedWhileReading => {
            ("file that changed while it was read", "files that changed while they were read")
        }
    };
    units::plural(number, one, many)
}

/// One line per reason, with the first few examples.
pub fn left_out(counts: &[LeftOutCount], examples: usize) -> Vec<String> {
    counts
        .iter()
        .filter(|left| left.count > 0)
        .map(|left| {
            let some: Vec<String> = left.examples.iter().take(examples).map(example).collect();
            let more = if left.count > some.len() as u64 { ", …" } else { "" };
            let shown = if some.is_empty() { String::new() } else { format!(": {}{more}", some.join(", ")) };
            format!("{}{shown}", left_out_reason(left.reason, left.count))
        })
        .collect()
}

/// What was left out, and which rule is to blame: a path alone does not show that.
fn example(left: &LeftOut) -> String {
    let path = printable(&left.path);
    let by_rule = left.reason == LeftOutReason::NameRules && !left.detail.is_empty();
    if by_rule { format!("{path} ({})", printable(&left.detail)) } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_names_its_scale() {
        assert_eq!((subscription_priority(5), job_priority(3)), ("5 of 9".into(), "3 of 5".into()));
    }

    #[test]
    fn counts_what_was_left_out_and_shows_some() {
        let counts = [LeftOutCount {
            reason: LeftOutReason::Fifo,
            count: 3,
            examples: vec![LeftOut {
                path: "a\nb".into(),
                reason: LeftOutReason::Fifo,
                detail: String::new(),
            }],
        }];
        assert_eq!(left_out(&counts, 2), ["3 named pipes: a\\nb, …"]);
        let detail = "no name rule of alpha fits alpha:/x/f".to_owned();
        let reason = LeftOutReason::NameRules;
        let examples = vec![LeftOut { path: "x/f".into(), reason, detail }];
        let unnamed = [LeftOutCount { reason, count: 1, examples }];
        assert_eq!(
            left_out(&unnamed, 2),
            ["1 file that the name rules have no name for: x/f (no name rule of alpha fits alpha:/x/f)"]
        );
        assert_eq!(files(1), "1 file");
        assert_eq!(files(2_000), "2,000 files");
    }
}
