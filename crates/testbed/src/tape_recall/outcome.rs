//! What the experiment came to: figures with their bars, and a plot.

use serde::Serialize;

use super::Experiment;
use crate::experiment_command::Bar;
use crate::line_plot::{Line, LinePlot};

/// Mounts over the least that are possible.
const MOUNTS_RATIO_MAX: f64 = 1.2;

/// The disk and the target at a moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    pub seconds: f64,
    pub staged_files: u64,
    pub arrived: u64,
}

/// A recall.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub experiment: Experiment,
    /// From the subscription until all files were at the target.
    pub seconds: f64,
    /// Cartridges put into drives.
    pub mounts: u64,
    /// Files at the target with the bytes that the tape has.
    pub right_files: usize,
    pub(super) samples: Vec<Sample>,
}

impl Outcome {
    /// The most that staged files took up of the disk.
    pub fn staged_bytes_max(&self) -> u64 {
        let files = self.samples.iter().map(|sample| sample.staged_files).max();
        files.unwrap_or_default() * self.experiment.file_bytes
    }

    pub fn bars(&self) -> Vec<Bar> {
        let mounts = self.mounts as f64 / self.experiment.cartridges as f64;
        let disk = self.staged_bytes_max() as f64 / self.experiment.buffer_bytes as f64;
        let right = self.right_files as f64 / self.experiment.files as f64;
        vec![
            Bar {
                figure: "mounts over the least possible",
                measured: mounts,
                wanted: "≤ 1.2",
                reached: self.mounts > 0 && mounts <= MOUNTS_RATIO_MAX,
            },
            Bar {
                figure: "disk of staged files, of its limit",
                measured: disk,
                wanted: "≤ 1",
                reached: disk <= 1.0,
            },
            Bar {
                figure: "files at the target, and right",
                measured: right,
                wanted: "1",
                reached: self.right_files == self.experiment.files,
            },
        ]
    }

    /// What was on disk and what had arrived, as a file that any browser shows.
    pub fn svg(&self) -> String {
        let Experiment { cartridges, drives, buffer_bytes, file_bytes, .. } = &self.experiment;
        let all = self.experiment.files as f64;
        let limit = *buffer_bytes as f64 / *file_bytes as f64;
        let line = |name: &str, colour, value: fn(&Sample) -> u64| Line {
            name: name.to_owned(),
            colour,
            points: self.samples.iter().map(|sample| (sample.seconds, value(sample) as f64)).collect(),
        };
        let plot = LinePlot {
            title: format!(
                "{all:.0} files of {cartridges} cartridges, {drives} drives: {} mounts",
                self.mounts
            ),
            seconds: self.seconds,
            most: all,
            levels: vec![
                (0.0, "#ddd", "0".to_owned()),
                (limit, "#c33", "limit".to_owned()),
                (all, "#ddd", format!("{all:.0}")),
            ],
            lines: vec![
                line("on disk", "#06c", |sample| sample.staged_files),
                line("at the target", "#393", |sample| sample.arrived),
            ],
        };
        plot.svg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_say_what_was_reached() {
        let experiment = Experiment { files: 100, cartridges: 10, ..Experiment::default() };
        let sample = Sample { seconds: 1.0, staged_files: 4_000, arrived: 50 };
        let outcome =
            Outcome { experiment, seconds: 2.0, mounts: 12, right_files: 100, samples: vec![sample] };
        assert!(outcome.bars().iter().all(|bar| bar.reached), "{:?}", outcome.bars());
        let missed = |outcome: Outcome| outcome.bars().iter().position(|bar| !bar.reached);
        assert_eq!(missed(Outcome { mounts: 13, ..outcome.clone() }), Some(0));
        let full = Sample { staged_files: 4_001, ..sample };
        assert_eq!(missed(Outcome { samples: vec![full], ..outcome.clone() }), Some(1));
        assert_eq!(missed(Outcome { right_files: 99, ..outcome }), Some(2));
    }
}
