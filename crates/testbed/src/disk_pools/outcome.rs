//! What the experiment came to: figures with their bars, and a plot.

use std::fmt::Write as _;

use serde::Serialize;

use super::Experiment;
use crate::experiment_command::Bar;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 80.0;
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
        let most = self.experiment.bytes_per_s_of_all() as f64 * 1.1;
        let x = |seconds: f64| MARGIN + seconds / self.seconds.max(1e-3) * (WIDTH - 2.0 * MARGIN);
        let y = |rate: f64| HEIGHT - MARGIN - rate.min(most) / most * (HEIGHT - 2.0 * MARGIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
             <text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">{} files of {} MB to {} disks, one of them {} \
             times slower</text>\n",
            self.experiment.files,
            self.experiment.file_bytes / 1_000_000,
            self.experiment.pools,
            self.experiment.slower_times,
        );
        let all = self.experiment.bytes_per_s_of_all() as f64;
        let names = [(0.0, "#ddd", "0".to_owned()), (all, "#c33", format!("{:.1} MB/s", all / 1e6))];
        for (rate, colour, name) in names {
            let (at, right) = (y(rate), WIDTH - MARGIN);
            let _ = writeln!(
                svg,
                "<line x1=\"{MARGIN}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>\n\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                MARGIN - 4.0,
                at + 4.0
            );
        }
        let last = self.written.len().saturating_sub(1);
        let lines = [("#06c", "all disks", 0), ("#393", "the slow one", last)];
        for (place, (colour, name, first)) in lines.into_iter().enumerate() {
            let points: Vec<String> = self
                .rates(first)
                .map(|(seconds, rate)| format!("{:.1},{:.1}", x(seconds), y(rate)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>\n\
                 <text x=\"{}\" y=\"{}\" fill=\"{colour}\">{name}</text>",
                points.join(" "),
                MARGIN + 110.0 * place as f64,
                MARGIN - 12.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.0} s</text>\n</svg>",
            WIDTH - MARGIN,
            HEIGHT - MARGIN + 18.0,
            self.seconds
        );
        svg
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
