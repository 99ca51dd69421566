//! Files that will be created in a pool: the choice is made when their first bytes come, so that those wait
//! for the disk of that pool and for no other.

use std::collections::HashMap;
use std::sync::Arc;

use longhaul_model::PoolState;
use parking_lot::Mutex;

use super::PooledStorage;
use super::choice::Candidate;
use super::pool::Pool;
use crate::{Placement, TempName};

/// The pools of files that are not created yet.
#[derive(Default)]
pub(super) struct PlannedFiles(Mutex<HashMap<TempName, PlannedFile>>);

struct PlannedFile {
    place: usize,
    size: u64,
    pool: Arc<Pool>,
}

impl PlannedFiles {
    /// The pool of a file that is created now.
    pub(super) fn take(&self, temp: &TempName) -> Option<usize> {
        let planned = self.0.lock().remove(temp)?;
        planned.pool.load.release(planned.size);
        Some(planned.place)
    }
}

/// Ends the plans of files that were not created.
struct Plan {
    planned: Arc<PlannedFiles>,
    temps: Vec<TempName>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        for temp in &self.temps {
            self.planned.take(temp);
        }
    }
}

impl PooledStorage {
    /// A number for the device of a pool: where the system has none, one that no device has.
    pub(super) fn device_of(&self, place: usize) -> u64 {
        let pool = &self.pools[place];
        let own = pool.storage().ok().and_then(|storage| storage.capabilities().device);
        own.unwrap_or(u64::MAX - place as u64)
    }

    /// Chooses a pool for all of these files. None if no pool has room, as far as is known.
    pub(super) fn plan(&self, files: &[(&TempName, u64)]) -> Option<Placement> {
        let (first, _) = files.first()?;
        let there = self.pool_of(first);
        let place = match there {
            Some(place) => place,
            None => self.best_as_known(files.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size)))?,
        };
        let pool = &self.pools[place];
        let mut temps = Vec::new();
        let mut planned = self.planned.0.lock();
        for (temp, size) in files.iter().filter(|_| there.is_none()) {
            pool.load.promise(*size);
            let file = PlannedFile { place, size: *size, pool: pool.clone() };
            if let Some(before) = planned.insert((*temp).clone(), file) {
                before.pool.load.release(before.size);
            }
            temps.push((*temp).clone());
        }
        drop(planned);
        let plan = Plan { planned: self.planned.clone(), temps };
        Some(Placement { device: self.device_of(place), _reservation: Box::new(plan) })
    }

    fn best_as_known(&self, size: u64) -> Option<usize> {
        let now = (self.clock)();
        let is_open = |pool: &Pool| pool.state == PoolState::Open && !pool.is_resting(now);
        let candidates: Vec<(usize, Candidate)> = self
            .pools
            .iter()
            .enumerate()
            .filter(|(_, pool)| is_open(pool))
            .filter_map(|(place, pool)| Some((place, pool.candidate_as_known()?)))
            .collect();
        self.rank(&candidates, size).first().copied()
    }
}
