//! Metrics of a running world.

use crate::plan::Plan;
use crate::random::mix;

/// Points of a curve; beyond this two become one.
const CURVE_BINS_MAX: usize = 240;
/// Forecasts kept for scoring; beyond this a reservoir sample (Vitter, algorithm R).
const FORECASTS_SAMPLED_MAX: usize = 200_000;

#[derive(Clone, Debug, Default)]
pub struct RunMetrics {
    /// Seconds from the request to the file, and to the last file of a dataset.
    pub transfers: Vec<f32>,
    pub datasets: Vec<f32>,
    pub bytes_moved: u128,
    pub bytes_done: u128,
    pub failed: u64,
    /// Attempts that ended with a fault.
    pub faults: u64,
    pub cancelled: u64,
    /// Leases that agents gave back before they began.
    pub leases_returned: u64,
    pub decisions: u64,
    pub leases: u64,
    /// Expected and taken, in seconds.
    pub forecasts: Vec<(f32, f32)>,
    forecasts_seen: u64,
    pub last_done: i64,
    /// By community: what is still wanted, and what was got while all wanted something.
    pending: Vec<u128>,
    pub contended: Vec<u128>,
    /// When dataset completions happened, for their curve: seconds.
    pub dataset_ends: Vec<f32>,
    /// Seconds until each request was complete, in the plan's order.
    pub requests: Vec<Option<f32>>,
    /// What capacities were from when on, in microseconds; only where they change.
    pub history: Vec<(i64, Vec<f64>)>,
    pub end: i64,
}

/// Bytes that arrived, by time.
#[derive(Clone, Debug)]
pub struct Curve {
    pub width: i64,
    pub bytes: Vec<f64>,
}

impl Default for Curve {
    fn default() -> Self {
        Curve { width: 1_000_000, bytes: Vec::new() }
    }
}

impl Curve {
    /// Bytes that came evenly from one time to another.
    pub fn add(&mut self, from: i64, to: i64, bytes: f64) {
        while (to / self.width) as usize >= CURVE_BINS_MAX {
            self.bytes = self.bytes.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.width *= 2;
        }
        let last = (to / self.width) as usize;
        if last >= self.bytes.len() {
            self.bytes.resize(last + 1, 0.0);
        }
        let each = bytes / (to - from).max(1) as f64;
        let mut at = from;
        while at < to {
            let bin = at / self.width;
            let end = ((bin + 1) * self.width).min(to);
            self.bytes[bin as usize] += each * (end - at) as f64;
            at = end;
        }
    }
}

impl RunMetrics {
    pub fn new(plan: &Plan) -> Self {
        let communities = plan.work.communities.len();
        RunMetrics {
            pending: vec![0; communities],
            contended: vec![0; communities],
            requests: vec![None; plan.work.requests.len()],
            history: vec![(0, plan.layout.capacities.iter().map(|capacity| capacity.rate).collect())],
            ..RunMetrics::default()
        }
    }

    pub fn add_wanted(&mut self, community: u32, bytes: u64) {
        self.pending[community as usize] += u128::from(bytes);
    }

    pub fn add_moved(&mut self, bytes: u64) {
        self.bytes_moved += u128::from(bytes);
    }

    pub fn file_done(&mut self, now: i64, asked: i64, community: u32, bytes: u64) {
        self.transfers.push(((now - asked) as f64 / 1e6) as f32);
        self.bytes_done += u128::from(bytes);
        self.last_done = now;
        if self.pending.iter().all(|&pending| pending > 0) {
            self.contended[community as usize] += u128::from(bytes);
        }
        let pending = &mut self.pending[community as usize];
        *pending = pending.saturating_sub(bytes.into());
    }

    pub fn dataset_done(&mut self, request: u32, seconds: f64) {
        self.requests[request as usize] = Some(seconds as f32);
        self.datasets.push(seconds as f32);
        self.dataset_ends.push((self.last_done as f64 / 1e6) as f32);
    }

    pub fn add_forecast(&mut self, expected: f64, taken: f64) {
        self.forecasts_seen += 1;
        let row = (expected as f32, taken as f32);
        if self.forecasts.len() < FORECASTS_SAMPLED_MAX {
            self.forecasts.push(row);
        } else {
            // Each has the same chance to be in the sample.
            let slot = mix(self.forecasts_seen) % self.forecasts_seen;
            if let Some(old) = self.forecasts.get_mut(slot as usize) {
                *old = row;
            }
        }
    }

    pub fn record_capacities(&mut self, now: i64, capacity: Vec<f64>) {
        self.history.push((now, capacity));
    }

    pub fn finish(&mut self, now: i64) {
        self.end = now;
    }
}
