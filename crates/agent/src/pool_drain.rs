//! Empties pools that are drained: one file after the other goes to the other pools of its storage, while the
//! storage is in use.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{AgentId, AttemptId, Fault, Pfn};
use longhaul_storage::{DrainStatus, PooledStorage, Relocation, Storage};

use crate::attempt_temps::AttemptTemps;
use crate::step::{AgentTime, PeriodicLoop};

/// How often a pool is looked at that seems to be empty, or cannot be read.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// How long files that could not be moved are left.
const STUCK_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// Drains the pools of one storage.
pub(crate) struct PoolDrain {
    storage: Arc<PooledStorage>,
    temps: AttemptTemps,
    pools: Vec<DrainedPool>,
    /// Number of the next file.
    number: u64,
}

struct DrainedPool {
    name: String,
    /// What was found and is to be moved next.
    files: VecDeque<Pfn>,
    /// What could not be moved in this pass.
    stuck: BTreeSet<Pfn>,
    status: DrainStatus,
    due: AgentTime,
}

impl PoolDrain {
    /// Removes what an earlier run has left half copied. None if no pool is drained.
    pub(crate) fn start(storage: Arc<PooledStorage>, agent: AgentId) -> Option<PoolDrain> {
        let temps = AttemptTemps::of_pools(agent);
        let pool = |name: &str| DrainedPool {
            name: name.to_owned(),
            files: VecDeque::new(),
            stuck: BTreeSet::new(),
            status: DrainStatus::default(),
            due: AgentTime::ZERO,
        };
        let pools: Vec<DrainedPool> = storage.draining().into_iter().map(pool).collect();
        let stale = storage.temps().unwrap_or_default().into_iter().filter(|temp| temps.contains(temp));
        for temp in stale {
            if let Err(fault) = storage.remove_temp(&temp) {
                tracing::warn!(storage = %storage.name(), fault = %fault.chain(), "a half copy stays");
            }
        }
        (!pools.is_empty()).then_some(PoolDrain { storage, temps, pools, number: 0 })
    }

    fn step_pool(&mut self, place: usize, now: AgentTime) {
        let pool = &mut self.pools[place];
        if pool.files.is_empty() {
            match self.storage.files_in(&pool.name, |at| pool.stuck.contains(at)) {
                Ok(files) => pool.files = files.into(),
                Err(fault) => return pool.fail(&self.storage, fault, now + LOOK_PERIOD),
            }
        }
        let Some(at) = pool.files.pop_front() else { return pool.end_pass(&self.storage, now) };
        self.number += 1;
        let temp = self.temps.name(AttemptId(self.number));
        match self.storage.relocate(&pool.name, &at, &temp) {
            Ok(Relocation::Moved) => pool.status.moved_files += 1,
            Ok(Relocation::Gone) => {}
            Ok(Relocation::Busy) => drop(pool.stuck.insert(at)),
            Err(fault) => {
                tracing::warn!(storage = %self.storage.name(), pool = pool.name, %at, fault = %fault.chain(),
                    "a file stays in the pool that is drained; it is tried again");
                pool.stuck.insert(at);
                pool.status.last_fault = Some(fault);
            }
        }
        pool.status.is_empty = false;
        pool.status.stuck_files = pool.status.stuck_files.max(pool.stuck.len() as u64);
        self.storage.note_drain(&pool.name, pool.status.clone());
        pool.due = now;
    }
}

impl DrainedPool {
    /// Everything that was found is moved or stuck.
    fn end_pass(&mut self, storage: &PooledStorage, now: AgentTime) {
        let was_empty = self.status.is_empty;
        self.status.is_empty = self.stuck.is_empty();
        self.status.stuck_files = self.stuck.len() as u64;
        if self.status.is_empty {
            self.status.last_fault = None;
            if !was_empty {
                let moved_files = self.status.moved_files;
                tracing::info!(storage = %storage.name(), pool = self.name, moved_files, "the pool is empty");
            }
        }
        self.due = now + if self.status.is_empty { LOOK_PERIOD } else { STUCK_RETRY_INTERVAL };
        self.stuck.clear();
        storage.note_drain(&self.name, self.status.clone());
    }

    fn fail(&mut self, storage: &PooledStorage, fault: Fault, due: AgentTime) {
        self.status.is_empty = false;
        self.status.last_fault = Some(fault);
        storage.note_drain(&self.name, self.status.clone());
        self.due = due;
    }
}

impl PeriodicLoop for PoolDrain {
    /// Moves one file of each pool that is due. Blocks on the disks.
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        for place in 0..self.pools.len() {
            if self.pools[place].due <= now {
                self.step_pool(place, now);
            }
        }
        self.pools.iter().map(|pool| pool.due).min()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use longhaul_model::PoolState;
    use longhaul_storage::{FlushPolicy, PoolOptions, Posix, PosixOptions};

    use super::*;

    fn open(folder: &Path, states: [PoolState; 3]) -> Arc<PooledStorage> {
        let pool = |(number, state): (usize, PoolState)| {
            let root = folder.join(format!("disk{number}"));
            let open = move || {
                let (name, root) = ("alpha".parse().unwrap(), root.clone());
                let flush = FlushPolicy::None;
                let posix = Posix::open(PosixOptions { name, root, work: None, writable: true, flush })?;
                Ok(Arc::new(posix) as Arc<dyn Storage>)
            };
            PoolOptions { name: format!("disk{number}"), open: Box::new(open), state }
        };
        let pools = states.into_iter().enumerate().map(pool).collect();
        let clock = Arc::new(|| Duration::ZERO);
        Arc::new(PooledStorage::open("alpha".parse().unwrap(), pools, clock).unwrap())
    }

    /// Steps until it would wait; when it wants to go on.
    fn step_while_due(drain: &mut PoolDrain, now: AgentTime) -> AgentTime {
        loop {
            let due = drain.step(now).unwrap();
            if due > now {
                return due;
            }
        }
    }

    #[test]
    fn a_pool_is_emptied_and_what_is_stuck_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..3 {
            fs::create_dir_all(folder.path().join(format!("disk{number}/d"))).unwrap();
        }
        let file = |disk: usize, name: &str| folder.path().join(format!("disk{disk}/d/{name}"));
        for number in 0..1_500 {
            fs::write(file(0, &format!("f{number}")), b"x").unwrap();
        }
        // Another pool has a different file of that name.
        (0..2).for_each(|disk| fs::write(file(disk, "twin"), format!("disk{disk}")).unwrap());
        let storage = open(folder.path(), [PoolState::Draining, PoolState::Open, PoolState::Open]);
        let mut drain = PoolDrain::start(storage.clone(), AgentId(1)).unwrap();
        assert_eq!(step_while_due(&mut drain, AgentTime::ZERO), STUCK_RETRY_INTERVAL);
        let status = || storage.pools()[0].drain.clone().unwrap();
        let first = status();
        assert_eq!((first.moved_files, first.stuck_files, first.is_empty), (1_500, 1, false));
        assert!(first.last_fault.unwrap().detail.contains("twin"));
        assert_eq!(fs::read_dir(file(0, "twin").parent().unwrap()).unwrap().count(), 1);

        fs::remove_file(file(1, "twin")).unwrap();
        let now = STUCK_RETRY_INTERVAL;
        assert_eq!(step_while_due(&mut drain, now), now + LOOK_PERIOD);
        let last = DrainStatus { moved_files: 1_501, stuck_files: 0, last_fault: None, is_empty: true };
        assert_eq!(status(), last);
        assert!(!file(0, "twin").exists() && storage.temps().unwrap().is_empty());
    }

    #[test]
    fn half_copies_of_an_earlier_run_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        (0..3).for_each(|number| fs::create_dir(folder.path().join(format!("disk{number}"))).unwrap());
        let storage = open(folder.path(), [PoolState::Open; 3]);
        let of_drain = AttemptTemps::of_pools(AgentId(1)).name(AttemptId(7));
        let of_others = AttemptTemps::of_pools(AgentId(2)).name(AttemptId(7));
        for temp in [&of_drain, &of_others] {
            storage.create(temp, None, 10).unwrap();
        }
        assert!(PoolDrain::start(storage.clone(), AgentId(1)).is_none(), "nothing is drained");
        assert_eq!(storage.temps().unwrap(), [of_others]);
    }
}
