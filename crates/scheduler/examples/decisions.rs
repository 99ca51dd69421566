//! Decisions a second against the number of waiting transfers: the cost of one must not grow with the queue.
//!
//! One round is what a finished file costs: its outcome, and the lease of the next with the source chosen among
//! three replicas, loads and limits counted and the explanation kept. Every hundredth round a file gains a replica.
//!
//! `cargo run --release -p longhaul-scheduler --example decisions`

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longhaul_model::{AgentId, BlockId, FileId, SiteId, StorageId, SubscriptionId, Timestamp};
use longhaul_network::Knowledge;
use longhaul_scheduler::*;

const SOURCES: u64 = 10;
const TARGETS: u64 = 10;
const BLOCK: u64 = 1_000;
const ROUNDS: u64 = 200_000;
const SLICE: u64 = 5_000;
const ATTEMPTS_AT_ONCE: usize = 1_000;

fn main() {
    println!("{:>10} {:>12} {:>12} {:>10}", "waiting", "leases/s", "best slice", "µs each");
    for waiting in [1_000u64, 10_000, 100_000, 1_000_000] {
        let slices = measure(waiting);
        let each = |seconds: f64| seconds / SLICE as f64;
        let (median, best) = (each(slices[slices.len() / 2]), each(slices[0]));
        println!("{waiting:>10} {:>12.0} {:>12.0} {:>10.2}", 1.0 / median, 1.0 / best, median * 1e6);
    }
}

/// Seconds of each slice of rounds, the fastest first: the median tells, and the best when others use the machine.
fn measure(waiting: u64) -> Vec<f64> {
    let mut bench = Bench::new(waiting);
    bench.poll();
    // To a steady state first.
    (0..20_000).for_each(|round| bench.round(round));
    let mut slices: Vec<f64> = (0..ROUNDS / SLICE)
        .map(|slice| {
            let begin = Instant::now();
            (0..SLICE).for_each(|round| bench.round(slice * SLICE + round));
            begin.elapsed().as_secs_f64()
        })
        .collect();
    slices.sort_by(f64::total_cmp);
    slices
}

struct Bench {
    scheduler: Scheduler,
    now: Timestamp,
    files: u64,
    /// Files of blocks asked for and not yet answered with.
    running: VecDeque<Lease>,
}

impl Bench {
    fn new(waiting: u64) -> Self {
        let per_target = (waiting / TARGETS) as u32;
        let settings = Settings {
            horizon_files: per_target,
            horizon_files_min: per_target,
            lease_files_min: ATTEMPTS_AT_ONCE as u32 / TARGETS as u32,
            lease_files_max: ATTEMPTS_AT_ONCE as u32 / TARGETS as u32,
            ..Settings::default()
        };
        let mut bench = Bench {
            scheduler: Scheduler::new(settings, Knowledge::default(), 0),
            now: Timestamp::from_seconds(1_800_000_000),
            files: 0,
            running: VecDeque::new(),
        };
        for id in 0..SOURCES + TARGETS {
            bench.tell(Event::Site(SiteInfo {
                id: SiteId(id),
                name: format!("site-{id}").parse().unwrap(),
                state: SiteState::Open,
                reason: None,
                limits: SiteLimits {
                    active_in: Some(10_000),
                    active_out: Some(10_000),
                    ..SiteLimits::default()
                },
            }));
            bench.tell(Event::Storage(StorageInfo {
                id: StorageId(id),
                name: format!("storage-{id}").parse().unwrap(),
                site: SiteId(id),
                writable: true,
                relay: false,
                trouble: None,
            }));
            bench.tell(Event::Agent {
                storage: StorageId(id),
                agent: Some(AgentId(id + 1)),
                connected: true,
            });
        }
        // As many blocks as the rounds will use up, of several priorities.
        let blocks = waiting.div_ceil(BLOCK).max(TARGETS) + ROUNDS / BLOCK * 2 + 100;
        for block in 0..blocks {
            bench.tell(Event::Demand(Demand {
                id: DemandId { subscription: SubscriptionId(1 + block % TARGETS), block: BlockId(block) },
                target: StorageId(SOURCES + block % TARGETS),
                priority: 4 + (block % 3) as u8,
                party: Party { community: "default".parse().unwrap(), activity: None },
                deadline: None,
                strategy: None,
                created: Timestamp(block as i64),
                files_left: BLOCK,
                bytes_left: BLOCK * 1_000_000,
            }));
        }
        bench
    }

    fn tell(&mut self, event: Event) {
        self.scheduler.handle(event, self.now);
    }

    fn round(&mut self, round: u64) {
        self.now = self.now + Duration::from_micros(5);
        if let Some(lease) = self.running.pop_front() {
            if round.is_multiple_of(100) {
                let file = FileId(self.files.saturating_sub(1));
                self.tell(Event::ReplicaAdded { file, storage: StorageId(round / 100 % SOURCES) });
            }
            self.tell(Event::Outcome(Outcome {
                attempt: lease.attempt,
                epoch: lease.epoch,
                fault: None,
                bytes_moved: lease.size,
            }));
        }
        self.poll();
    }

    fn poll(&mut self) {
        while let Some(decision) = self.scheduler.poll_decision(self.now) {
            match decision {
                Decision::Lease(lease) => self.running.push_back(lease),
                Decision::Expand { demand, limit, .. } => {
                    let from = self.files;
                    self.files += u64::from(limit);
                    let files = (from..self.files).map(|file| WantedFile {
                        file: FileId(file),
                        size: 1_000_000,
                        sources: (0..3).map(|at| StorageId((file / BLOCK + at * 3) % SOURCES)).collect(),
                    });
                    let files = files.collect();
                    self.tell(Event::Files { demand, files, exhausted: false });
                }
                _ => {}
            }
        }
    }
}
