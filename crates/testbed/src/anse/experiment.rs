//! The run: a short queue on the shared path, then a long one, and what the agent makes of it; in the end a
//! circuit that is cut.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::record::{Record, Sample};
use super::world::{CIRCUIT, SHARED, Terms, World, in_world};
use super::{Background, Figures};
use crate::wan::{Change, Stall};

/// Between two looks at what the paths have carried.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// In the first half so many jobs are submitted and not done, so that none waits for the next.
const JOBS_AHEAD: u64 = 2;
/// All jobs that the first half does not want, as one dataset.
const REST: &str = "anse/rest";
/// Share of payload in what a path carries, roughly; tells when a job is done.
const PAYLOAD_FRACTION: f64 = 0.95;
/// When so much has come, the last job is done.
const DONE_FRACTION_MIN: f64 = 0.999;
/// Whatever does not happen within this will not.
const WITHIN_S: f64 = 300.0;
/// Jobs that the circuit carries before it is cut.
const JOBS_BEFORE_CUT: u64 = 2;
/// Jobs before the circuit is requested again, before it is cut, and after the cut, together.
const JOBS_AROUND_CUT: usize = 6;
/// Interval of samples after the cut.
const CUT_SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// What is scaled down from the paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// Rate of each of the two paths.
    pub rate_mbit: f64,
    pub background_mbit: f64,
    pub rtt_ms: f64,
    /// Approximate duration of each half.
    pub half_s: f64,
    pub files_per_job: usize,
    pub file_bytes: u64,
    /// The agent asks for a circuit if what waits takes longer than this.
    pub work_s: u32,
}

impl Default for Experiment {
    /// 10 h are 25 s, 10 Gbit/s are 200 Mbit/s.
    fn default() -> Self {
        Experiment {
            rate_mbit: 200.0,
            background_mbit: 100.0,
            rtt_ms: 20.0,
            half_s: 25.0,
            files_per_job: 30,
            file_bytes: 1_000_000,
            work_s: 20,
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub experiment: Experiment,
    pub record: Record,
    pub jobs: usize,
    /// When the queue became long, when the circuit came into use, when the last job was done.
    pub queued_s: f64,
    pub used_s: f64,
    pub done_s: f64,
    pub attempts_failed: u64,
    /// Chunks fetched more than once until the last job was done, as the agent counts them.
    pub resent_bytes: u64,
    /// Chunks fetched more than once after the cut.
    pub cut_resent_bytes: u64,
    /// The longest time without data after the circuit was cut silently, by the emulator's clock.
    pub cut_stall_s: f64,
    /// What the agent said about its circuit.
    pub story: Vec<String>,
}

impl Outcome {
    pub fn figures(&self) -> Figures {
        Figures::from_outcome(self)
    }
}

impl Experiment {
    /// Needs a laboratory (root, network namespaces).
    pub fn run(&self) -> Result<Outcome, String> {
        let plan = format!(
            "work_s = {}\nchecks = 3\ncheck_s = 1\nleave_work_s = 1\nleave_during_s = 2\nleave_hold_s = 5\n\
             rate_over_s = 10\nslower_percent = 0\ndrain_s = 5\n",
            self.work_s
        );
        let terms = Terms {
            rate_mbit: self.rate_mbit,
            circuit_rate_mbit: self.rate_mbit,
            promised_mbit: self.rate_mbit,
            rtt_ms: self.rtt_ms,
            plan: Some(plan),
            service: String::new(),
            circuit: "setup_s = 0.5\n".to_owned(),
        };
        in_world(terms, |world| self.run_in(world))?
    }

    fn job_bytes(&self) -> u64 {
        self.files_per_job as u64 * self.file_bytes
    }

    /// So many jobs that each half takes its time.
    fn jobs(&self) -> usize {
        self.jobs_at((self.rate_mbit - self.background_mbit) + self.rate_mbit)
    }

    /// Those that the first half can want.
    fn jobs_of_first_half(&self) -> usize {
        self.jobs_at(self.rate_mbit - self.background_mbit) + JOBS_AHEAD as usize
    }

    /// What comes in one half.
    fn jobs_at(&self, mbit: f64) -> usize {
        (mbit * 1e6 / 8.0 * self.half_s * PAYLOAD_FRACTION / self.job_bytes() as f64).ceil() as usize
    }

    fn run_in(&self, world: &mut World<'_>) -> Result<Outcome, String> {
        let jobs = self.jobs();
        let first = self.jobs_of_first_half().min(jobs - 1);
        let name = |job: usize| format!("anse/job{job:02}");
        (0..first).for_each(|job| world.register(&name(job), self.files_per_job, self.file_bytes));
        world.register(REST, (jobs - first) * self.files_per_job, self.file_bytes);
        let background = Background::start(world.lab, SHARED, self.background_mbit)?;
        let mut outcome = Outcome {
            experiment: self.clone(),
            record: Record::default(),
            jobs,
            queued_s: 0.0,
            used_s: 0.0,
            done_s: 0.0,
            attempts_failed: 0,
            resent_bytes: 0,
            cut_resent_bytes: 0,
            cut_stall_s: 0.0,
            story: Vec::new(),
        };
        let before = sample(world, &background, 0.0);
        let mut submitted = 0_usize;
        let log = world.log();
        let said = |words: &str| !log.lines_with(&[words]).is_empty();
        loop {
            let record = &mut outcome.record;
            sleep(record.until_next(SAMPLE_INTERVAL));
            let now = record.now_s();
            let sample = since(sample(world, &background, now), before);
            record.samples.push(sample);
            let done = (sample.ours() as f64 * PAYLOAD_FRACTION) as u64 / self.job_bytes();
            let is_long = now > self.half_s;
            let ahead = (submitted as u64).saturating_sub(done);
            if is_long && outcome.queued_s == 0.0 {
                // In one piece, so that it is long from the first file on.
                world.submit(REST);
                outcome.queued_s = now;
            } else if submitted < first && (is_long || ahead < JOBS_AHEAD) {
                world.submit(&name(submitted));
                submitted += 1;
            }
            if outcome.used_s == 0.0 && said("transfers go by the circuit") {
                outcome.used_s = now;
            }
            if said("is released") && outcome.queued_s > 0.0 && submitted == first {
                break;
            }
            if now > WITHIN_S {
                return Err(format!("it does not end; the agent's log:\n{}", log.tail()));
            }
        }
        (0..first).for_each(|job| world.wait_for(&name(job), Duration::from_secs(60)));
        world.wait_for(REST, Duration::from_secs(60));
        // Connections that rest and close say little more.
        let total = outcome.record.last().ours() as f64 * DONE_FRACTION_MIN;
        let last = outcome.record.samples.iter().find(|sample| sample.ours() as f64 >= total);
        outcome.done_s = last.map_or(0.0, |sample| sample.at_s);
        outcome.resent_bytes = resent(world);
        self.cut(world, background, &mut outcome)?;
        outcome.attempts_failed = failed(world);
        let note = |line: String| {
            let line: Value = serde_json::from_str(&line).ok()?;
            Some(format!("{} {}", line["at"].as_str()?, line["note"].as_str()?))
        };
        outcome.story = log.lines_with(&["circuit", "note"]).into_iter().filter_map(note).collect();
        Ok(outcome)
    }

    /// A long queue once more, and in the midst of it a circuit that is silent from one packet to the next.
    /// Others are gone by then, for the emulator's clock does not tell their packets from ours.
    fn cut(&self, world: &World<'_>, background: Background, outcome: &mut Outcome) -> Result<(), String> {
        // Long also at the rate of the circuit that there was, which the link is believed to have until files
        // have come without.
        let wanted = self.rate_mbit * 1e6 / 8.0 * f64::from(self.work_s) / self.job_bytes() as f64;
        let jobs = wanted.ceil() as usize + JOBS_AROUND_CUT;
        // In one piece, so that it is long from the first file on.
        world.register("anse/cut", jobs * self.files_per_job, self.file_bytes);
        world.submit("anse/cut");
        let part = JOBS_BEFORE_CUT * self.job_bytes();
        until_carried(world, CIRCUIT, part / 2, || ())?;
        drop(background);
        until_carried(world, CIRCUIT, part, || ())?;
        world.lab.set(CIRCUIT, Change::Cut)?;
        let mut stall = Stall::after(&world.counters(CIRCUIT), &world.counters(SHARED));
        until_carried(world, SHARED, part, || stall.observe(&world.counters(SHARED)))?;
        outcome.cut_stall_s = stall.longest_s();
        // What is left need not take its time.
        world.lab.set(SHARED, Change::RateMbit(None))?;
        world.wait_for("anse/cut", Duration::from_secs(120));
        outcome.cut_resent_bytes = resent(world) - outcome.resent_bytes;
        Ok(())
    }
}

/// Waits until a path has carried so much more.
fn until_carried(world: &World<'_>, path: usize, bytes: u64, mut look: impl FnMut()) -> Result<(), String> {
    let (begun, bytes) = (Instant::now(), world.carried(path) + bytes);
    while world.carried(path) < bytes {
        if begun.elapsed().as_secs_f64() > WITHIN_S {
            return Err(format!("nothing comes on path {path}; the agent's log:\n{}", world.log().tail()));
        }
        sleep(CUT_SAMPLE_INTERVAL);
        look();
    }
    Ok(())
}

fn sample(world: &World<'_>, background: &Background, at_s: f64) -> Sample {
    let (shared, background) = (world.carried(SHARED), background.arrived());
    Sample { at_s, shared: shared.saturating_sub(background), circuit: world.carried(CIRCUIT), background }
}

fn since(now: Sample, before: Sample) -> Sample {
    Sample {
        at_s: now.at_s,
        shared: now.shared.saturating_sub(before.shared),
        circuit: now.circuit.saturating_sub(before.circuit),
        background: now.background.saturating_sub(before.background),
    }
}

/// Bytes of files that came again, in all attempts that have ended.
fn resent(world: &World<'_>) -> u64 {
    let of = |line: String| serde_json::from_str::<Value>(&line).ok()?["bytes_resent"].as_u64();
    world.log().lines_with(&["bytes_resent"]).into_iter().filter_map(of).sum()
}

fn failed(world: &World<'_>) -> u64 {
    let status = world.deployment.json(&["status"]);
    let by_blame = status["failures_by_blame"].as_array().cloned().unwrap_or_default();
    by_blame.iter().filter_map(|blame| blame["count"].as_u64()).sum()
}
