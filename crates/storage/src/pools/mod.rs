//! A storage of several pools: file systems, each with its own disk, that together hold one tree of names.
//!
//! A file lies in one pool, whole, under its own path: each pool can be read without the others, and losing
//! one loses only what it holds. Where a file lies is not written down anywhere: every pool is asked (a
//! look-up of a name that is not there costs a microsecond). New files go where they are expected to be
//! written first (`choice`). What replaces a file goes to that file's pool, so that its readers see the one
//! or the other.
//!
//! A pool that is out of service (not mounted, failing) takes nothing, and nothing is concluded about what it
//! may hold: a name that no other pool has is then unreadable, not missing, and listings fail.

mod choice;
mod marks;
mod merged_walk;
mod placement;
mod pool;
mod pool_load;
mod relocation;
mod reserved_names;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_model::limits::STORAGE_POOLS_MAX;
use longhaul_model::{Algorithm, Blame, DigestSet, Fault, FaultCode, Pfn, PoolState, StorageName, units};
use parking_lot::Mutex;

use crate::{
    Capabilities, Commit, Directories, Identity, PARALLEL_MAX, Placement, PoolDevice, SourceFile, Space,
    Storage, TargetFile, TempName, Visit,
};
use choice::{Candidate, rank};
use marks::PoolMarks;
use placement::PlannedFiles;
pub use pool::{DrainStatus, PoolOpener, PoolOptions, PoolStatus};
use pool::{Pool, PoolFile, at_target};
pub use relocation::Relocation;
use reserved_names::{ReservedName, ReservedNames};

/// Time since some moment; by which pools are measured and rested.
pub type PoolClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A storage of several pools.
pub struct PooledStorage {
    name: StorageName,
    capabilities: Capabilities,
    pools: Vec<Arc<Pool>>,
    reserved: ReservedNames,
    /// The pools of temporary files.
    temps: Mutex<HashMap<TempName, usize>>,
    planned: Arc<PlannedFiles>,
    marks: PoolMarks,
    clock: PoolClock,
    /// Files that were placed.
    placed: AtomicU64,
}

impl PooledStorage {
    /// Opens the storage. The storages of its pools bear its name. A pool that cannot be opened is out of
    /// service.
    ///
    /// # Errors
    /// `BadRequest` without a pool, with too many, or with two of one name; what the first pool says if none
    /// can be opened.
    pub fn open(
        name: StorageName,
        pools: Vec<PoolOptions>,
        clock: PoolClock,
    ) -> Result<PooledStorage, Fault> {
        check_pools(&name, &pools)?;
        let pools: Vec<Arc<Pool>> = pools.into_iter().map(|pool| Arc::new(Pool::new(pool))).collect();
        let opened: Vec<Result<_, Fault>> = pools.iter().map(|pool| pool.root()).collect();
        if let (true, Some(Err(fault))) = (opened.iter().all(Result::is_err), opened.into_iter().next()) {
            return Err(fault);
        }
        // What is wrong with a mark is noted with its pool.
        let marks = PoolMarks::default();
        let _ = marks.check(&pools, true);
        let storage = PooledStorage {
            capabilities: capabilities(&pools),
            name,
            pools,
            reserved: ReservedNames::default(),
            temps: Mutex::default(),
            planned: Arc::default(),
            marks,
            clock,
            placed: AtomicU64::new(0),
        };
        storage.find_new_temps();
        Ok(storage)
    }

    /// Looks for temporary files in pools that were opened and are in service.
    fn find_new_temps(&self) {
        for (place, pool) in self.pools.iter().enumerate() {
            if let Some(Err(fault)) = pool.take_if_new().map(|storage| self.find_temps(place, &*storage)) {
                tracing::warn!(storage = %self.name, pool = %pool.name, fault = %fault.chain(),
                    "the pool's temporary files are not known");
            }
        }
    }

    fn find_temps(&self, place: usize, storage: &dyn Storage) -> Result<(), Fault> {
        let found = storage.temps()?;
        self.temps.lock().extend(found.into_iter().map(|temp| (temp, place)));
        Ok(())
    }

    /// The pools in service.
    fn serving(&self) -> impl Iterator<Item = (usize, Arc<dyn Storage>)> {
        self.pools.iter().enumerate().filter_map(|(place, pool)| Some((place, pool.storage().ok()?)))
    }

    /// Why not all pools can be asked; `Ok` if they can.
    fn all_serve(&self) -> Result<(), Fault> {
        self.pools.iter().try_for_each(|pool| pool.storage().map(|_| ()))
    }

    /// The first pool that has the file. An error if none has, and one of them cannot tell.
    fn locate(&self, at: &Pfn) -> Result<Option<(usize, Identity)>, Fault> {
        let mut unknown = None;
        for (place, pool) in self.pools.iter().enumerate() {
            match pool.storage().and_then(|storage| storage.stat(at)) {
                Ok(Some(identity)) => return Ok(Some((place, identity))),
                Ok(None) => {}
                Err(fault) => unknown = unknown.or(Some(fault)),
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    /// The pools that may take a new file, the best one first.
    fn pools_for(&self, target: Option<&Pfn>, size: u64) -> Result<Vec<usize>, Fault> {
        if let Some(Ok(Some((place, _)))) = target.map(|at| self.locate(at)) {
            let pool = &self.pools[place];
            let may_replace = matches!(pool.state, PoolState::Open | PoolState::Draining);
            return if may_replace { Ok(vec![place]) } else { Err(pool.takes_nothing()) };
        }
        let open: Vec<usize> =
            (0..self.pools.len()).filter(|place| self.pools[*place].state == PoolState::Open).collect();
        let mut refusal = None;
        let mut candidates = Vec::new();
        for place in open {
            match self.pools[place].candidate() {
                Ok(candidate) => candidates.push((place, candidate)),
                Err(fault) => refusal = refusal.or(Some(fault)),
            }
        }
        if candidates.is_empty() {
            return Err(refusal.map_or_else(|| self.takes_nothing(), at_target));
        }
        let mut places = self.rank(&candidates, size);
        if places.is_empty() {
            let most = candidates.iter().map(|(_, pool)| pool.free_bytes).max().unwrap_or_default();
            let (size, most) = (units::bytes(size), units::bytes(most));
            let detail =
                format!("no pool of {} has room for {size}: the emptiest has {most} free", self.name);
            return Err(Fault::new(FaultCode::TargetFull, detail));
        }
        // One that has just failed comes last.
        let now = (self.clock)();
        places.sort_by_key(|place| self.pools[*place].is_resting(now));
        Ok(places)
    }

    /// The places of those candidates that have room, the best one first.
    fn rank(&self, candidates: &[(usize, Candidate)], size: u64) -> Vec<usize> {
        let known: Vec<Candidate> = candidates.iter().map(|(_, candidate)| *candidate).collect();
        let ranked = rank(&known, size, self.placed.fetch_add(1, Ordering::Relaxed));
        ranked.into_iter().map(|number| candidates[number].0).collect()
    }

    fn takes_nothing(&self) -> Fault {
        Fault::new(FaultCode::TargetReadOnly, format!("no pool of {} takes new files", self.name))
    }

    /// Makes a temporary file in the best pool that can.
    fn place<T>(
        &self,
        (temp, target, size): (&TempName, Option<&Pfn>, u64),
        make: impl Fn(&dyn Storage) -> Result<T, Fault>,
    ) -> Result<(usize, T), Fault> {
        if self.temps.lock().contains_key(temp) {
            self.remove_temp(temp)?;
        }
        let mut refusal = None;
        let planned = self.planned.take(temp);
        let others = match self.pools_for(target, size) {
            Err(_) if planned.is_some() => Vec::new(),
            others => others?,
        };
        for place in planned.into_iter().chain(others.into_iter().filter(|place| Some(*place) != planned)) {
            let pool = &self.pools[place];
            match pool.storage().and_then(|storage| make(&*storage)) {
                Ok(made) => {
                    self.temps.lock().insert(temp.clone(), place);
                    return Ok((place, made));
                }
                Err(fault) if pool.note_failure(&fault, (self.clock)()) => {
                    tracing::warn!(storage = %self.name, pool = %pool.name, fault = %fault.chain(),
                        "the pool does not take a file; another one is tried");
                    refusal = Some(fault);
                }
                Err(fault) => return Err(fault),
            }
        }
        Err(refusal.unwrap_or_else(|| self.takes_nothing()))
    }

    fn pool_of(&self, temp: &TempName) -> Option<usize> {
        self.temps.lock().get(temp).copied()
    }

    /// Takes the name of a file that is about to be committed in a pool; fails if any pool has it.
    fn take_name(&self, item: &Commit, own: usize) -> Result<ReservedName<'_>, Fault> {
        let clash = || Fault::new(FaultCode::NameClash, format!("{} is there already", item.target));
        let path = item.target.path();
        let name = self.reserved.reserve(path).ok_or_else(clash)?;
        let elsewhere = self.holders(path)?.into_iter().any(|(place, _)| place != own);
        if elsewhere || !self.is_below_directories(path)? { Err(clash()) } else { Ok(name) }
    }

    /// Makes the files of one pool visible.
    fn commit_in(&self, place: usize, items: &[&Commit]) -> Vec<Result<(), Fault>> {
        let pool = &self.pools[place];
        let batch: Vec<Commit> = items.iter().map(|item| (*item).clone()).collect();
        pool.load.begin((self.clock)());
        let results = match pool.storage() {
            Ok(storage) => storage.commit(&batch),
            Err(fault) => batch.iter().map(|_| Err(fault.clone().blaming(Blame::Target))).collect(),
        };
        pool.load.end(0, (self.clock)());
        for (item, result) in batch.iter().zip(&results) {
            match result {
                Ok(()) => drop(self.temps.lock().remove(&item.temp)),
                Err(fault) => {
                    pool.note_failure(fault, (self.clock)());
                }
            }
        }
        results
    }

    /// Removes directories of the path that are empty in other pools than the one that has pruned its own.
    fn prune(&self, path: &str) {
        let mut directory = path;
        while let Some((parent, _)) = directory.rsplit_once('/') {
            let Ok(at) = Pfn::new(self.name.clone(), parent) else { return };
            for (_, storage) in self.serving() {
                // Not there, or not empty: it stays.
                let _ = storage.directories().map(|tree| tree.remove_directory(&at));
            }
            if self.holders(parent).is_ok_and(|holders| !holders.is_empty()) {
                return;
            }
            directory = parent;
        }
    }
}

fn check_pools(name: &StorageName, pools: &[PoolOptions]) -> Result<(), Fault> {
    let refused = |why: String| Err(Fault::new(FaultCode::BadRequest, format!("storage {name}: {why}")));
    if pools.is_empty() || pools.len() > STORAGE_POOLS_MAX {
        return refused(format!("it has {} pools, 1 to {STORAGE_POOLS_MAX} are expected", pools.len()));
    }
    for (place, pool) in pools.iter().enumerate() {
        if pools[..place].iter().any(|before| before.name == pool.name) {
            return refused(format!("two pools are named {}", pool.name));
        }
    }
    Ok(())
}

/// What all pools in service can; without one, what the first can that could be opened.
fn capabilities(pools: &[Arc<Pool>]) -> Capabilities {
    let serving = pools.iter().filter(|pool| pool.storage().is_ok());
    let mut all: Vec<Capabilities> = serving.filter_map(|pool| pool.capabilities()).collect();
    if all.is_empty() {
        all.extend(pools.iter().find_map(|pool| pool.capabilities()));
    }
    let every = |has: fn(&Capabilities) -> bool| all.iter().all(has);
    let parallel = all.iter().map(|pool| pool.parallel.unwrap_or(2)).fold(0, u16::saturating_add);
    Capabilities {
        writable: all.iter().any(|pool| pool.writable),
        case_insensitive: false,
        random_write: every(|pool| pool.random_write),
        device: None,
        parallel: Some(parallel.clamp(1, PARALLEL_MAX)),
        discards: every(|pool| pool.discards),
        resumes: every(|pool| pool.resumes),
        reads_temps: every(|pool| pool.reads_temps),
        sets_attributes: every(|pool| pool.sets_attributes),
        keeps_any_name: every(|pool| pool.keeps_any_name),
        always_tells_space: false,
        has_directories: every(|pool| pool.has_directories),
        removes_empty_directories: every(|pool| pool.removes_empty_directories),
    }
}

impl Storage for PooledStorage {
    fn name(&self) -> &StorageName {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Free is what takes files; the total is that of all pools in service.
    fn space(&self) -> Result<Space, Fault> {
        let mut sum = Space { total_bytes: 0, free_bytes: 0 };
        let mut unknown = None;
        for pool in &self.pools {
            match pool.space() {
                Ok(space) => {
                    sum.total_bytes = sum.total_bytes.saturating_add(space.total_bytes);
                    let free = if pool.state == PoolState::Open { space.free_bytes } else { 0 };
                    sum.free_bytes = sum.free_bytes.saturating_add(free);
                }
                Err(fault) => unknown = Some(fault),
            }
        }
        unknown.filter(|_| sum.total_bytes == 0).map_or(Ok(sum), Err)
    }

    /// Also looks at all roots: a pool whose root is the right one again is back.
    fn pools(&self) -> Vec<PoolStatus> {
        // What is wrong is noted with its pool.
        let _ = self.root_mark();
        self.pools.iter().map(|pool| pool.status((self.clock)())).collect()
    }

    fn pool_devices(&self) -> Vec<PoolDevice> {
        let mut devices: Vec<PoolDevice> = Vec::new();
        for (place, pool) in self.pools.iter().enumerate() {
            let serving = pool.storage().ok().and_then(|_| pool.capabilities());
            let parallel = serving.and_then(|capabilities| capabilities.parallel);
            let number = self.device_of(place);
            match devices.iter_mut().find(|device| device.number == number) {
                Some(known) => known.parallel = known.parallel.into_iter().chain(parallel).min(),
                None => devices.push(PoolDevice { number, parallel }),
            }
        }
        devices
    }

    fn place(&self, files: &[(&TempName, u64)]) -> Option<Placement> {
        self.plan(files)
    }

    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        Ok(self.locate(at)?.map(|(_, identity)| identity))
    }

    fn stat_target(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        for (_, storage) in self.serving() {
            if let Some(identity) = storage.stat(at)? {
                return Ok(Some(identity));
            }
        }
        Ok(None)
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        let mut refusal = None;
        for pool in &self.pools {
            match pool.storage().and_then(|storage| storage.open(at)) {
                Err(fault) if fault.code == FaultCode::SourceMissing => {}
                Err(fault) => refusal = refusal.or(Some(fault)),
                opened => return opened,
            }
        }
        Err(refusal.unwrap_or_else(|| Fault::new(FaultCode::SourceMissing, at.to_string())))
    }

    fn told_digests(
        &self,
        at: &Pfn,
        algorithms: &[Algorithm],
    ) -> Result<Option<(Identity, DigestSet)>, Fault> {
        match self.locate(at)? {
            Some((place, _)) => self.pools[place].storage()?.told_digests(at, algorithms),
            None => Err(Fault::new(FaultCode::SourceMissing, at.to_string())),
        }
    }

    fn create(&self, temp: &TempName, target: Option<&Pfn>, size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        let (place, file) = self.place((temp, target, size), |storage| storage.create(temp, target, size))?;
        Ok(Box::new(PoolFile::new(file, &self.pools[place], size, self.clock.clone())))
    }

    fn put(&self, item: &Commit, bytes: &[u8]) -> Result<(), Fault> {
        let put = |storage: &dyn Storage| storage.put(item, bytes);
        self.place((&item.temp, Some(&item.target), item.size), put).map(|_| ())
    }

    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        let Some(place) = self.pool_of(temp) else { return Ok(None) };
        let pool = &self.pools[place];
        let storage = pool.storage().map_err(at_target)?;
        let Some(file) = storage.reopen(temp, size)? else {
            self.temps.lock().remove(temp);
            return Ok(None);
        };
        Ok(Some(Box::new(PoolFile::new(file, pool, size, self.clock.clone()))))
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        let mut results: Vec<Result<(), Fault>> = vec![Ok(()); batch.len()];
        let mut by_pool: BTreeMap<usize, Vec<(usize, ReservedName<'_>)>> = BTreeMap::new();
        for (number, item) in batch.iter().enumerate() {
            let place = self.pool_of(&item.temp).ok_or_else(|| {
                let detail = format!("the temporary file of {} is gone", item.target);
                Fault::new(FaultCode::TargetWrite, detail)
            });
            match place.and_then(|place| Ok((place, self.take_name(item, place)?))) {
                Ok((place, name)) => by_pool.entry(place).or_default().push((number, name)),
                Err(fault) => results[number] = Err(fault),
            }
        }
        // Each pool flushes by itself: at once.
        let groups: Vec<(usize, Vec<usize>)> = by_pool
            .iter()
            .map(|(place, items)| (*place, items.iter().map(|(number, _)| *number).collect()))
            .collect();
        let commit = |(place, numbers): &(usize, Vec<usize>)| {
            let items: Vec<&Commit> = numbers.iter().map(|number| &batch[*number]).collect();
            self.commit_in(*place, &items)
        };
        let done: Vec<Vec<Result<(), Fault>>> = match &groups[..] {
            [only] => vec![commit(only)],
            several => std::thread::scope(|scope| {
                let running: Vec<_> =
                    several.iter().map(|group| (group, scope.spawn(|| commit(group)))).collect();
                let join = |(group, thread): (&(usize, Vec<usize>), std::thread::ScopedJoinHandle<'_, _>)| {
                    thread.join().unwrap_or_else(|_| {
                        let fault = Fault::new(FaultCode::Internal, "committing in a pool has panicked");
                        vec![Err(fault); group.1.len()]
                    })
                };
                running.into_iter().map(join).collect()
            }),
        };
        for ((_, numbers), done) in groups.iter().zip(done) {
            for (number, result) in numbers.iter().zip(done) {
                results[*number] = result;
            }
        }
        results
    }

    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault> {
        let mut by_pool: BTreeMap<usize, Vec<Pfn>> = BTreeMap::new();
        for at in at {
            let found = self.locate(at).map_err(at_target)?;
            let missing = || Fault::new(FaultCode::TargetWrite, format!("{at} is gone"));
            by_pool.entry(found.ok_or_else(missing)?.0).or_default().push(at.clone());
        }
        by_pool.into_iter().try_for_each(|(place, files)| self.pools[place].storage()?.flush_present(&files))
    }

    fn temp_path(&self, temp: &TempName) -> Option<PathBuf> {
        self.pools[self.pool_of(temp)?].storage().ok()?.temp_path(temp)
    }

    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        let mut all = Vec::new();
        for (_, storage) in self.serving() {
            all.extend(storage.temps()?);
        }
        all.sort();
        Ok(all)
    }

    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        match self.pool_of(temp) {
            Some(place) => {
                let storage = self.pools[place].storage().map_err(at_target)?;
                storage.remove_temp(temp)?;
                self.temps.lock().remove(temp);
                Ok(())
            }
            None => self.serving().try_for_each(|(_, storage)| storage.remove_temp(temp)),
        }
    }

    fn root_mark(&self) -> Result<Option<String>, Fault> {
        let checked = self.marks.check(&self.pools, false);
        self.find_new_temps();
        checked
    }

    fn put_root_mark(&self, text: &str) -> Result<(), Fault> {
        self.marks.put(&self.pools, text)
    }

    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        let found = self.locate(at).map_err(at_target)?;
        let Some((_, identity)) = found else { return Ok(()) };
        if identity != *expected {
            let detail = format!("{at} is {identity}, not {expected} (size:mtime:inode), and stays");
            return Err(Fault::new(FaultCode::Conflict, detail));
        }
        // Whoever moves it from pool to pool gives way.
        let _name = self.reserved.reserve(at.path());
        for (_, storage) in self.serving() {
            let copy = storage.stat(at).map_err(at_target)?;
            copy.map_or(Ok(()), |identity| storage.delete(at, &identity))?;
        }
        if self.capabilities.removes_empty_directories {
            self.prune(at.path());
        }
        Ok(())
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        self.all_serve()?;
        let storages: Vec<Arc<dyn Storage>> = self.serving().map(|(_, storage)| storage).collect();
        merged_walk::walk(&storages, path, visit)
    }

    fn directories(&self) -> Option<&dyn Directories> {
        self.capabilities.has_directories.then_some(self as &dyn Directories)
    }
}
