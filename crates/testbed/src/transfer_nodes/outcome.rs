//! What the experiment came to: figures with their bars, and a plot.

use serde::Serialize;

use super::experiment::Experiment;
use super::world::NODES;
use crate::experiment_command::Bar;
use crate::line_plot::{Line, LinePlot};
use crate::wan::PACKET_PAYLOAD_FRACTION;

/// What a node has received and not written down when it is killed: two seconds of its link, and a group of
/// small files.
const IN_FLIGHT_S: f64 = 2.0;
const GROUP_BYTES: f64 = 4e6;
const COLOURS: [&str; NODES] = ["#06c", "#c60", "#393", "#939"];

/// What the paths had carried at a moment, since the phase began.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    pub seconds: f64,
    pub carried: [u64; NODES],
}

/// One phase.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Phase {
    pub files: usize,
    pub bytes: u64,
    /// From the subscription until all files were there.
    pub seconds: f64,
    /// How much of the time of all processors was used, from 0 to 1: at 1 the links do not limit.
    pub busy: f64,
    pub kills: usize,
    /// Files at the target, those with other bytes, and transfers that were recorded as done.
    pub arrived: usize,
    pub wrong: usize,
    pub recorded: usize,
    pub(super) samples: Vec<Sample>,
}

/// All phases.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub experiment: Experiment,
    pub one: Phase,
    pub all: Phase,
    pub killed: Option<Phase>,
}

impl Phase {
    /// Megabytes of files per second, from the subscription to the last file.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    fn carried(&self) -> f64 {
        let last = self.samples.last().map_or(0, |sample| sample.carried.iter().sum());
        last as f64 * PACKET_PAYLOAD_FRACTION
    }

    fn is_whole(&self) -> bool {
        self.arrived == self.files && self.recorded == self.files && self.wrong == 0
    }
}

impl Outcome {
    pub fn bars(&self) -> Vec<Bar> {
        let ratio = self.all.mb_per_s() / self.one.mb_per_s();
        let phases = [Some(&self.one), Some(&self.all), self.killed.as_ref()];
        let whole = phases.iter().flatten().all(|phase| phase.is_whole());
        let mut bars = vec![
            Bar { figure: "four nodes over one", measured: ratio, wanted: "≥ 3.8", reached: ratio >= 3.8 },
            Bar {
                figure: "every file once, and right",
                measured: f64::from(u8::from(whole)),
                wanted: "1",
                reached: whole,
            },
        ];
        if let Some(killed) = &self.killed {
            let living = self.living_mb_per_s(killed);
            let share = killed.mb_per_s() / living;
            bars.push(Bar {
                figure: "with kills, of what the living can carry",
                measured: share,
                wanted: "≥ 0.9",
                reached: share >= 0.9,
            });
            let again = (killed.carried() - killed.bytes as f64).max(0.0);
            let per_kill = self.experiment.kill_link_mbit * 1e6 / 8.0 * IN_FLIGHT_S + GROUP_BYTES;
            let in_flight = again / (per_kill * killed.kills.max(1) as f64);
            bars.push(Bar {
                figure: "sent again, of what was in flight",
                measured: in_flight,
                wanted: "≤ 1",
                reached: in_flight <= 1.0,
            });
        }
        bars
    }

    /// What the links of the nodes that run carry of files, on average.
    fn living_mb_per_s(&self, phase: &Phase) -> f64 {
        let down_s = phase.kills as f64 * super::experiment::DOWN.as_secs_f64();
        let living = NODES as f64 - down_s / phase.seconds;
        self.experiment.kill_link_mbit / 8.0 * PACKET_PAYLOAD_FRACTION * living
    }

    /// What each link carried in the last phase, as a file that any browser shows.
    pub fn svg(&self) -> String {
        let (phase, rate, title) = match &self.killed {
            Some(phase) => (phase, self.experiment.kill_link_mbit, "one node killed after the other"),
            None => (&self.all, self.experiment.link_mbit, "all nodes"),
        };
        let line = |(path, colour): (usize, &&'static str)| Line {
            name: format!("node {}", path + 1),
            colour,
            points: rates(&phase.samples, path).collect(),
        };
        let level = |mbit: f64| (mbit, "#ddd", format!("{mbit:.0}"));
        let plot = LinePlot {
            title: format!("{NODES} nodes, {title}: Mbit/s of IP packets on each link"),
            seconds: phase.seconds,
            most: rate * 1.2,
            levels: [0.0, rate / 2.0, rate].map(level).into(),
            lines: COLOURS.iter().enumerate().map(line).collect(),
        };
        plot.svg()
    }
}

/// Mbit/s on a path over each second.
fn rates(samples: &[Sample], path: usize) -> impl Iterator<Item = (f64, f64)> + '_ {
    let mut before: Option<&Sample> = None;
    samples.iter().filter_map(move |sample| {
        let since = before.get_or_insert(sample);
        let seconds = sample.seconds - since.seconds;
        if seconds < 1.0 {
            return None;
        }
        let bits = 8.0 * (sample.carried[path] - since.carried[path]) as f64;
        before = Some(sample);
        Some((sample.seconds, bits / seconds / 1e6))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(files: usize, seconds: f64) -> Phase {
        Phase {
            files,
            bytes: files as u64 * 1_000_000,
            seconds,
            arrived: files,
            recorded: files,
            ..Phase::default()
        }
    }

    #[test]
    fn bars_say_what_was_reached() {
        let experiment = Experiment { kill_link_mbit: 8.0, ..Experiment::default() };
        let killed = Phase { kills: 2, ..phase(350, 100.0) };
        let outcome =
            Outcome { experiment, one: phase(100, 10.0), all: phase(400, 10.4), killed: Some(killed) };
        let reached: Vec<bool> = outcome.bars().iter().map(|bar| bar.reached).collect();
        assert_eq!(reached, [true, true, true, true], "{:?}", outcome.bars());
        let slower = Outcome { all: phase(400, 12.0), ..outcome.clone() };
        assert!(!slower.bars()[0].reached);
        let twice = Outcome { all: Phase { recorded: 401, ..phase(400, 10.4) }, ..outcome };
        assert!(!twice.bars()[1].reached);
    }
}
