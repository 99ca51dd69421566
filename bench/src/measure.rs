//! Rows of the result, medians, and what a process has used.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_testbed::Deployment;
pub(crate) use longhaul_testbed::processes::{memory_bytes as current_memory, peak_bytes as peak_memory};
use serde_json::{Value, json};

/// One figure, with its yardstick and its bar.
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) figure: &'static str,
    pub(crate) value: String,
    pub(crate) yardstick: String,
    /// Value over yardstick, where that makes sense.
    pub(crate) ratio: Option<f64>,
    /// What has to hold, in words, and whether it does.
    pub(crate) bar: &'static str,
    pub(crate) reached: bool,
}

impl Row {
    /// Without yardstick and bar.
    pub(crate) fn plain(case: &'static str, figure: &'static str, value: f64) -> Row {
        let value = if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        Row { case, figure, value, yardstick: "–".into(), ratio: None, bar: "–", reached: true }
    }

    pub(crate) fn at_least(
        case: &'static str,
        figure: &'static str,
        value: f64,
        bound: f64,
        bar: &'static str,
    ) -> Row {
        Row { bar, reached: value >= bound, ..Row::plain(case, figure, value) }
    }

    pub(crate) fn at_most(
        case: &'static str,
        figure: &'static str,
        value: f64,
        bound: f64,
        bar: &'static str,
    ) -> Row {
        Row { bar, reached: value <= bound, ..Row::plain(case, figure, value) }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "case": self.case, "figure": self.figure, "value": self.value, "yardstick": self.yardstick,
            "ratio": self.ratio, "bar": self.bar, "reached": self.reached,
        })
    }
}

pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| case | figure | measured | yardstick | ratio | bar | reached |\n| --- | --- | ---: | ---: | ---: \
            | --- | --- |\n",
    );
    for row in rows {
        let ratio = row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
        let reached = if row.reached { "yes" } else { "NO" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {ratio} | {} | {reached} |",
            row.case, row.figure, row.value, row.yardstick, row.bar
        );
    }
    text
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    assert!(!values.is_empty(), "a median of nothing");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

/// User and system time of a process so far, in seconds (fields 14 and 15 of `/proc/PID/stat`, in ticks of 10
/// ms).
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let field = |number: usize| {
        after_name.split_whitespace().nth(number - 3).and_then(|word| word.parse::<f64>().ok())
    };
    (field(14).unwrap_or(0.0) + field(15).unwrap_or(0.0)) / 100.0
}

/// CPU time of all processes of a deployment of two sites so far.
pub(crate) fn used(deployment: &Deployment) -> f64 {
    ["service", "alpha", "beta"].iter().map(|name| cpu_seconds(deployment.pid(name))).sum()
}

/// From now on its peak is counted anew (proc(5), `clear_refs`).
pub(crate) fn reset_peak_memory(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("a process of ours");
}

/// Memory of all TCP sockets of this machine, in bytes: the most that any of our processes can hold in the
/// kernel.
pub(crate) fn socket_memory() -> u64 {
    let text = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let pages = line.and_then(|rest| rest.split(" mem ").nth(1)?.trim().parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// A program of `examples/`, built beside this one.
pub(crate) fn example(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("this program has a path");
    here.parent().expect("and a folder").join("examples").join(name)
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Memory that a host has not lent us lately is slow at its first touch: a receiver of new files on tmpfs
/// would measure the host. So as much as a run will fill is filled and freed just before.
pub(crate) fn touch_memory(folder: &Path, files: usize, size: usize) {
    let warm = folder.join("warm");
    make_files(&warm, files, size);
    fs::remove_dir_all(&warm).expect("room for the run");
}

/// Files of `size` bytes, all different, named `f00000` onwards.
pub(crate) fn make_files(folder: &Path, count: usize, size: usize) {
    fs::create_dir_all(folder).expect("a folder for the files");
    let mut bytes = vec![0u8; size];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    for number in 0..count {
        let stamp = (number as u64).to_le_bytes();
        bytes[..8.min(size)].copy_from_slice(&stamp[..8.min(size)]);
        fs::write(folder.join(format!("f{number:05}")), &bytes).expect("a file is written");
    }
}

/// Seconds from a subscription's beginning to its end, both by the service's clock.
pub(crate) fn seconds_of(subscription: &Value) -> f64 {
    let time = |name: &str| -> longhaul_model::Timestamp {
        subscription[name]
            .as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {subscription}"))
    };
    time("completed").since(time("created")).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_uses_is_read() {
        assert!(peak_memory(std::process::id()) > 100_000);
        assert!((0.0..3600.0).contains(&cpu_seconds(std::process::id())));
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
