//! The phases: one node alone, all nodes, all nodes while one after the other is killed.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::outcome::{Outcome, Phase, Sample};
use super::world::{NODES, World, in_world, node};
use crate::wan::Change;

/// Between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// A phase that takes longer is stuck.
const PHASE_WITHIN: Duration = Duration::from_secs(900);
/// A killed node is started again after this time, as by its host.
pub(super) const DOWN: Duration = Duration::from_secs(5);

/// What is measured.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Rate of each node's link.
    pub link_mbit: f64,
    pub rtt_ms: f64,
    /// What one node has to bring in each of the first two phases.
    pub node_bytes: u64,
    pub file_bytes: u64,
    /// How long nodes are killed; zero: not at all.
    pub kill_s: f64,
    /// Between two kills.
    pub kill_every_s: f64,
    /// Rate of each link meanwhile: what comes is kept in memory.
    pub kill_link_mbit: f64,
}

impl Default for Experiment {
    fn default() -> Self {
        Experiment {
            link_mbit: 500.0,
            rtt_ms: 10.0,
            node_bytes: 1_000_000_000,
            file_bytes: 20_000_000,
            kill_s: 300.0,
            kill_every_s: 20.0,
            kill_link_mbit: 50.0,
        }
    }
}

impl Experiment {
    /// Runs all phases. It needs namespaces, and memory for all that moves, twice.
    pub fn run(&self) -> Result<Outcome, String> {
        in_world(self.link_mbit, self.rtt_ms, |world| {
            let files = (self.node_bytes / self.file_bytes).max(1) as usize;
            let one = self.phase(world, "one", files, 0.0);
            world.add_nodes();
            let all = self.phase(world, "all", files * NODES, 0.0);
            let killed = (self.kill_s > 0.0).then(|| {
                for path in 0..NODES {
                    let rate = Change::RateMbit(Some(self.kill_link_mbit));
                    world.lab.set(path, rate).expect("the path is there");
                }
                let bytes = self.kill_s * self.kill_link_mbit * 1e6 / 8.0 * NODES as f64;
                self.phase(
                    world,
                    "killed",
                    (bytes / self.file_bytes as f64).ceil() as usize,
                    self.kill_every_s,
                )
            });
            Outcome { experiment: self.clone(), one, all, killed }
        })
    }

    /// Brings so many files. `kill_every_s`: a node is killed so often, each in its turn; zero: none.
    fn phase(&self, world: &mut World<'_>, dataset: &str, files: usize, kill_every_s: f64) -> Phase {
        world.register(dataset, files, self.file_bytes);
        let (begun, busy_before) = (Instant::now(), busy_seconds());
        let carried_before = world.carried();
        world.subscribe(dataset);
        let mut phase = Phase { files, bytes: files as u64 * self.file_bytes, ..Phase::default() };
        let mut down: Option<(usize, Instant)> = None;
        let mut next_kill = Duration::from_secs_f64(kill_every_s);
        let (_never, tick) = mpsc::channel::<()>();
        loop {
            let at = begun.elapsed();
            let carried = world.carried();
            let since = std::array::from_fn(|path| carried[path] - carried_before[path]);
            phase.samples.push(Sample { seconds: at.as_secs_f64(), carried: since });
            if kill_every_s > 0.0 && at >= next_kill && down.is_none() {
                let victim = phase.kills % NODES;
                world.deployment.kill(&node(victim));
                down = Some((victim, Instant::now()));
                phase.kills += 1;
                next_kill += Duration::from_secs_f64(kill_every_s);
            }
            if let Some((victim, _)) = down.filter(|(_, since)| since.elapsed() >= DOWN) {
                world.deployment.start(&node(victim));
                down = None;
            }
            if world.is_complete(dataset) {
                break;
            }
            assert!(at < PHASE_WITHIN, "{dataset} does not arrive");
            let _ = tick.recv_timeout(SAMPLE_INTERVAL);
        }
        phase.seconds = begun.elapsed().as_secs_f64();
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
        phase.busy = (busy_seconds() - busy_before) / phase.seconds / processors as f64;
        if let Some((victim, _)) = down {
            world.deployment.start(&node(victim));
        }
        let (arrived, wrong) = world.arrived(dataset);
        (phase.arrived, phase.wrong, phase.recorded) = (arrived, wrong, world.recorded(dataset));
        world.remove_files(dataset);
        phase
    }
}

/// Seconds for which all processors of this machine together were not idle, since its start (`/proc/stat`).
fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> = text
        .lines()
        .next()
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal: hundredths of a second.
    let busy = ticks.iter().take(8).enumerate().filter(|(place, _)| !matches!(place, 3 | 4));
    busy.map(|(_, ticks)| *ticks as f64 / 100.0).sum()
}
