//! What the experiment came to: figures with their bars, and a plot.

use serde::Serialize;

use super::Experiment;
use crate::experiment_command::Bar;
use crate::line_plot::{Line, LinePlot};

/// The mean rate of writing over what the disks can take together.
const RATE_SHARE_MIN: f64 = 0.9;
/// The rate at a moment is that of so many samples before it.
const RATE_SAMPLES: usize = 10;

/// What each disk has written up to a moment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub seconds: f64,
    pub written: Vec<u64>,
}

/// Files brought to a storage of pools.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub experiment: Experiment,
    /// From the order until all files were there.
    pub seconds: f64,
    /// Bytes that each disk has written.
    pub written: Vec<u64>,
    /// Files that left the pool that was drained meanwhile.
    pub drained_files: usize,
    /// Files with the bytes that they should have.
    pub right_files: usize,
    pub(super) samples: Vec<Sample>,
}

impl Outcome {
    /// What was written, over what the disks that take new files can take in that time.
    pub fn rate_share(&self) -> f64 {
        let written = self.written.iter().sum::<u64>() as f64;
        written / (self.seconds * self.experiment.bytes_per_s_of_all() as f64).max(1.0)
    }

    pub fn bars(&self) -> Vec<Bar> {
        let (rate_share, right) = (self.rate_share(), self.right_files as f64 / self.experiment.files as f64);
        let figure = match self.experiment.drained_files {
            0 => "rate over what all disks can take",
            _ => "the same beside the draining of one",
        };
        let rate =
            Bar { figure, measured: rate_share, wanted: "≥ 0.9", reached: rate_share >= RATE_SHARE_MIN };
        let right = Bar {
            figure: "files in their pools, and right",
            measured: right,
            wanted: "1",
            reached: self.right_files == self.experiment.files,
        };
        vec![rate, right]
    }

    /// Rates over time, as a file that any browser shows.
    pub fn svg(&self) -> String {
        let Experiment { files, file_bytes, pools, slower_times, .. } = &self.experiment;
        let all = self.experiment.bytes_per_s_of_all() as f64;
        let last = self.written.len().saturating_sub(1);
        let line = |name: &str, colour, first| Line {
            name: name.to_owned(),
            colour,
            points: self.rates(first).collect(),
        };
        let plot = LinePlot {
            title: format!(
                "{files} files of {} MB to {pools} disks, one of them {slower_times} times slower",
                file_bytes / 1_000_000
            ),
            seconds: self.seconds,
            most: all * 1.1,
            levels: vec![(0.0, "#ddd", "0".to_owned()), (all, "#c33", format!("{:.1} MB/s", all / 1e6))],
            lines: vec![line("all disks", "#06c", 0), line("the slow one", "#393", last)],
        };
        plot.svg()
    }

    /// The rate of all disks from this one on, over time.
    fn rates(&self, first: usize) -> impl Iterator<Item = (f64, f64)> {
        let sum = move |sample: &Sample| sample.written.iter().skip(first).sum::<u64>() as f64;
        self.samples.windows(RATE_SAMPLES).filter_map(move |window| {
            let (begin, end) = (window.first()?, window.last()?);
            Some((end.seconds, (sum(end) - sum(begin)) / (end.seconds - begin.seconds).max(1e-3)))
        })
    }
}
