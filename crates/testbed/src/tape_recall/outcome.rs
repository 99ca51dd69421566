//! What the experiment came to: figures with their bars, and a plot.

use std::fmt::Write as _;

use serde::Serialize;

use super::Experiment;
use crate::experiment_command::Bar;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 60.0;
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
        let all = self.experiment.files as f64;
        let x = |seconds: f64| MARGIN + seconds / self.seconds.max(1e-3) * (WIDTH - 2.0 * MARGIN);
        let y = |files: f64| HEIGHT - MARGIN - files / all * (HEIGHT - 2.0 * MARGIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
             <text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">{all:.0} files of {} cartridges, {} drives: {} \
             mounts</text>\n",
            self.experiment.cartridges, self.experiment.drives, self.mounts
        );
        let limit = self.experiment.buffer_bytes as f64 / self.experiment.file_bytes as f64;
        for (files, colour, name) in [
            (0.0, "#ddd", "0".to_owned()),
            (limit, "#c33", "limit".to_owned()),
            (all, "#ddd", format!("{all:.0}")),
        ] {
            let (at, right) = (y(files.min(all)), WIDTH - MARGIN);
            let _ = writeln!(
                svg,
                "<line x1=\"{MARGIN}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>\n\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                MARGIN - 6.0,
                at + 4.0
            );
        }
        let lines = [("#06c", "on disk"), ("#393", "at the target")];
        for (place, (colour, name)) in lines.into_iter().enumerate() {
            let point = |sample: &Sample| {
                let files = [sample.staged_files, sample.arrived][place];
                format!("{:.1},{:.1}", x(sample.seconds), y(files as f64))
            };
            let points: Vec<String> = self.samples.iter().map(point).collect();
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
