//! The parts of a transfer, and whether other programs find the same: iperf3 for TCP, `openssl speed` for
//! AES-128-GCM, dd for reading and writing. A part that differs much from what others measure would make
//! every ratio to the floor worthless.

use std::ops::RangeInclusive;
use std::process::Command;

use crate::Rounds;
use crate::measure::{Row, median};
use crate::transfers::floor::{self, Parts};
use crate::transfers::{Yardsticks, yardsticks};

/// A part may cost so much of its yardstick: other code for the same work.
const WITHIN: RangeInclusive<f64> = 0.67..=1.5;
/// OpenSSL before 3.5 has no AES-GCM with 256-bit vectors on machines without AVX-512; what we use has.
const AEAD_WITHIN: RangeInclusive<f64> = 0.33..=1.5;

pub(crate) fn run(rounds: &Rounds) -> Vec<Row> {
    match measured(rounds.0) {
        Ok(rows) => rows,
        Err(why) => vec![Row {
            case: "floor",
            figure: "parts of a transfer",
            value: format!("FAILED: {why}"),
            yardstick: "–".into(),
            ratio: None,
            bar: "measured",
            reached: false,
        }],
    }
}

/// A figure, its value of ours and of another program, that program, and what the one may be of the other.
type Compared = (&'static str, fn(&Parts) -> f64, fn(&Others) -> f64, &'static str, RangeInclusive<f64>);

const COMPARED: [Compared; 5] = [
    ("TCP, both ends, CPU s/GB", |parts| parts.tcp.part.cpu_s_per_gb, |o| o.tcp, "iperf3 -P1", WITHIN),
    ("seal, CPU s/GB", |parts| parts.local.seal.cpu_s_per_gb, |o| o.seal, "openssl speed", AEAD_WITHIN),
    (
        "open, CPU s/GB",
        |parts| parts.local.open.cpu_s_per_gb,
        |o| o.open,
        "openssl speed -decrypt",
        AEAD_WITHIN,
    ),
    ("write a new file, CPU s/GB", |parts| parts.local.write.cpu_s_per_gb, |o| o.write, "dd", WITHIN),
    ("read a file, CPU s/GB", |parts| parts.local.read.cpu_s_per_gb, |o| o.read, "dd", WITHIN),
];

fn measured(rounds: usize) -> Result<Vec<Row>, String> {
    let session = yardsticks()?;
    let mut each: Vec<(Parts, Others)> = Vec::new();
    for _ in 0..rounds {
        let parts = floor::parts(session.lab(), session.folder())?;
        each.push((parts, Others::measure(&session)?));
    }
    let ours = |value: &dyn Fn(&Parts) -> f64| median(each.iter().map(|(parts, _)| value(parts)).collect());
    let others =
        |value: &dyn Fn(&Others) -> f64| median(each.iter().map(|(_, others)| value(others)).collect());
    let mut rows: Vec<Row> = COMPARED
        .iter()
        .map(|(figure, part, other, by, within)| row(figure, ours(part), others(other), by, within.clone()))
        .collect();
    rows.push(alone("crc32c, CPU s/GB", ours(&|parts| parts.local.crc32c.cpu_s_per_gb)));
    let case = &crate::transfers::case::CASES[0];
    for (name, figure) in
        floor::NAMES.into_iter().zip(["sum with AEAD, CPU s/GB", "sum without AEAD, CPU s/GB"])
    {
        rows.push(alone(figure, ours(&|parts| parts.as_run(name, case).cpu_s_per_gb())));
    }
    Ok(rows)
}

fn row(figure: &'static str, value: f64, yardstick: f64, by: &str, within: RangeInclusive<f64>) -> Row {
    let ratio = value / yardstick;
    Row {
        case: "floor",
        figure,
        value: format!("{value:.3}"),
        yardstick: format!("{yardstick:.3} ({by})"),
        ratio: Some(ratio),
        bar: if within == WITHIN { "0.67 to 1.5" } else { "0.33 to 1.5" },
        reached: within.contains(&ratio),
    }
}

fn alone(figure: &'static str, value: f64) -> Row {
    let yardstick = "–".to_owned();
    Row {
        case: "floor",
        figure,
        value: format!("{value:.3}"),
        yardstick,
        ratio: None,
        bar: "–",
        reached: true,
    }
}

/// CPU seconds per GB by other programs.
struct Others {
    tcp: f64,
    seal: f64,
    open: f64,
    write: f64,
    read: f64,
}

impl Others {
    fn measure(session: &Yardsticks) -> Result<Others, String> {
        let speed = |decrypt: &[&str]| {
            let output = Command::new("openssl")
                .args(["speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-gcm", "-mr"])
                .args(decrypt)
                .output()
                .map_err(|error| format!("openssl: {error}"))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            // It counts its own user time.
            bytes_per_second(&text)
                .map(|rate| 1e9 / rate)
                .ok_or_else(|| format!("openssl speed said: {text}"))
        };
        let file = session.folder().join("dd");
        let (from, to) = (format!("if={}", file.display()), format!("of={}", file.display()));
        let (seal, open) = (speed(&[])?, speed(&["-decrypt"])?);
        let write = session.dd(&["if=/dev/zero", &to])?;
        let read = session.dd(&[&from, "of=/dev/null"])?;
        let _ = std::fs::remove_file(&file);
        let tcp = session.iperf()?;
        Ok(Others { tcp, seal, open, write, read })
    }
}

/// From a line `+F:NUMBER:NAME:RATE`.
fn bytes_per_second(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("+F:")?.rsplit(':').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_openssl_is_read() {
        assert_eq!(bytes_per_second("+H:16384\n+F:25:AES-128-GCM:4228276705.88\n"), Some(4_228_276_705.88));
        assert_eq!(bytes_per_second("usage"), None);
    }

    #[test]
    fn a_part_that_differs_much_is_not_reached() {
        assert!(
            row("x", 1.4, 1.0, "dd", WITHIN).reached && row("x", 0.4, 1.0, "openssl", AEAD_WITHIN).reached
        );
        assert!(!row("x", 1.6, 1.0, "dd", WITHIN).reached && !row("x", 0.6, 1.0, "dd", WITHIN).reached);
    }
}
