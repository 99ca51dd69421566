//! The scheduler with a fake clock: one file from alpha to beta, with no socket, thread or database.
//!
//! ```sh
//! cargo run -p longhaul-scheduler --example fake_clock
//! ```
//!
//! Time is an argument, so a simulation or a test decides how fast it passes. What the catalog and the agents
//! do in production, this program does by hand.

use std::collections::VecDeque;
use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use longhaul_model::{AgentId, BlockId, FileId, SiteId, StorageId, SubscriptionId, Timestamp};
use longhaul_network::Knowledge;
use longhaul_scheduler::{
    Decision, Demand, DemandId, Event, Outcome, Party, Scheduler, Settings, SiteInfo, SiteLimits, SiteState,
    StorageInfo, WantedFile,
};

const ALPHA: StorageId = StorageId(1);
const BETA: StorageId = StorageId(2);
const FILE_BYTES: u64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let mut now = Timestamp::from_seconds(1_800_000_000);
    let mut scheduler = Scheduler::new(Settings::default(), Knowledge::default(), 0);

    // First the world: sites, storages, and the agents that are connected.
    let mut events = VecDeque::new();
    for (storage, name) in [(ALPHA, "alpha"), (BETA, "beta")] {
        let site = SiteId(storage.0);
        events.push_back(Event::Site(SiteInfo {
            id: site,
            name: name.parse()?,
            state: SiteState::Open,
            reason: None,
            limits: SiteLimits::default(),
        }));
        events.push_back(Event::Storage(StorageInfo {
            id: storage,
            name: name.parse()?,
            site,
            writable: true,
            relay: false,
            trouble: None,
        }));
        events.push_back(Event::Agent { storage, agent: Some(AgentId(storage.0)), connected: true });
    }

    // Then the demand: a subscription wants one block of one file at beta.
    let demand = DemandId { subscription: SubscriptionId(1), block: BlockId(1) };
    events.push_back(Event::Demand(Demand {
        id: demand,
        target: BETA,
        priority: 5,
        party: Party { community: "physics".parse()?, activity: None },
        created: now,
        deadline: None,
        strategy: None,
        files_left: 1,
        bytes_left: FILE_BYTES,
    }));

    // The loop of every driver: events in, decisions out, then wait for the next event or wake-up.
    while let Some(event) = events.pop_front() {
        scheduler.handle(event, now);
        while let Some(decision) = scheduler.poll_decision(now) {
            match decision {
                // In production the catalog answers which files of the block are missing, and where they are.
                Decision::Expand { demand, .. } => {
                    let file = WantedFile { file: FileId(1), size: FILE_BYTES, sources: vec![ALPHA] };
                    events.push_back(Event::Files { demand, files: vec![file], exhausted: true });
                }
                // In production the target's agent fetches the file. Here the clock jumps ahead by 10 s.
                Decision::Lease(lease) => {
                    writeln!(out, "{now}: lease {} from storage {}", lease.attempt, lease.source)?;
                    now = now + Duration::from_secs(10);
                    events.push_back(Event::Outcome(Outcome {
                        attempt: lease.attempt,
                        epoch: lease.epoch,
                        fault: None,
                        bytes_moved: lease.size,
                    }));
                    writeln!(out, "{now}: the file is at beta")?;
                }
                other => writeln!(out, "{now}: {other:?}")?,
            }
        }
    }
    // A driver would sleep until then; none means that only an event can bring new work.
    writeln!(out, "next wake-up: {:?}", scheduler.next_wakeup())?;
    Ok(())
}
