//! Tape driver of one storage: persists its state and runs the site's commands that follow from it. Requested
//! files are staged, unpinned ones removed from disk, arrived ones migrated to tape.

use std::collections::VecDeque;
use std::path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_doors::{Report, RequestedFile, Tape};
use longhaul_model::{Fault, FaultCode, Lfn, Locality, Timestamp, units};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::disk_budget::DiskBudget;
use super::state::{ARRIVALS_MAX, End, ExpiredPins, MIGRATE_RETRY_INTERVAL, Path, Record, TapeState};
use super::system::{DiskState, TapeSystem, Verb};
use crate::clock::ServiceClock;
use crate::command::CommandExit;
use crate::record_log::{OpenedLog, RecordLog};
use crate::state_dir::random_u64;
use crate::threads::blocking;

/// Interval of checks for expired pins and for files old enough to be migrated.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Files whose places on tape are asked for at once.
const PLACED_AT_ONCE_MAX: usize = 10_000;
/// Minimum size of the log before it is compacted.
const LOG_BYTES_MIN: u64 = 8 << 20;
/// Prefix of our own temporary names: such a file is renamed in a moment.
const TEMP_NAME_PREFIX: &str = ".longhaul-";

pub(crate) struct TapeDriver {
    site: Arc<TapeSystem>,
    clock: ServiceClock,
    state: Mutex<DriverState>,
    /// Counts changes of the state.
    changed: watch::Sender<u64>,
    placing: Arc<Semaphore>,
    staging: Arc<Semaphore>,
    migrating: Arc<Semaphore>,
    removing: Arc<Semaphore>,
}

struct DriverState {
    tape: TapeState,
    log: RecordLog,
    /// Size of the log at which it is compacted.
    rewrite_at: u64,
    /// Expired, their removal not begun.
    removals: VecDeque<ExpiredPins>,
    budget: DiskBudget,
}

/// A command for the site to run.
enum TapeCommand {
    Place(Vec<Path>),
    Stage(Vec<String>, Option<Arc<str>>),
    Migrate(Vec<(String, u64)>),
    Remove(Vec<ExpiredPins>),
}

impl TapeDriver {
    pub(super) fn open(
        site: Arc<TapeSystem>,
        path: &path::Path,
        clock: ServiceClock,
    ) -> Result<TapeDriver, Fault> {
        let mut tape = TapeState::default();
        tape.expect_places(site.has_places());
        let opened = RecordLog::open(path, |_, payload| {
            tape.apply(serde_json::from_slice(payload)?);
            Ok(())
        });
        let failed = |error: std::io::Error| {
            Fault::new(FaultCode::StateDirectory, format!("{}: {error}", path.display())).with_source(error)
        };
        let OpenedLog { log, cut_bytes } = opened.map_err(failed)?;
        if cut_bytes > 0 {
            tracing::warn!(file = %path.display(), cut_bytes, "the end of a log was torn; nothing that was \
                promised is lost");
        }
        tape.all_arrived(clock.now());
        tape.restart(clock.now());
        let mut budget = DiskBudget::new(site.buffer_bytes());
        tape.pinned_paths().for_each(|path| budget.hold(path, site.size_of(path)));
        let rewrite_at = LOG_BYTES_MIN.max(log.bytes());
        let at_once = site.config.at_once;
        let slots = || Arc::new(Semaphore::new(at_once));
        Ok(TapeDriver {
            site,
            clock,
            state: Mutex::new(DriverState { tape, log, rewrite_at, removals: VecDeque::new(), budget }),
            changed: watch::Sender::new(0),
            placing: Arc::new(Semaphore::new(1)),
            staging: slots(),
            migrating: slots(),
            removing: slots(),
        })
    }

    fn lock_state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock()
    }

    /// Makes records durable, then applies them.
    fn write(&self, state: &mut DriverState, records: Vec<Record>) -> Result<(), Fault> {
        if records.is_empty() {
            return Ok(());
        }
        let failed = |error: std::io::Error| {
            let detail =
                format!("what is asked of the tape of {} cannot be kept: {error}", self.site.storage);
            Fault::new(FaultCode::StateDirectory, detail)
        };
        state.rewrite().map_err(failed)?;
        let payloads: Result<Vec<Vec<u8>>, _> = records.iter().map(serde_json::to_vec).collect();
        state.log.append(&payloads.map_err(|error| failed(error.into()))?, true).map_err(failed)?;
        records.into_iter().for_each(|record| state.tape.apply(record));
        self.changed.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Queues files that the engine has transferred for migration, like those that came through doors.
    pub(super) fn queue_migration(&self, lfns: &[Lfn]) -> Result<(), Fault> {
        if !self.site.can(Verb::Migrate) {
            return Ok(());
        }
        // A file that arrived under its name has a path.
        let paths: Vec<String> = lfns.iter().filter_map(|lfn| self.site.path_of(lfn)).collect();
        let mut state = self.lock_state();
        let records = paths.iter().map(|path| state.tape.arriving(path)).collect();
        self.write(&mut state, records)?;
        let due = self.migration_due();
        paths.iter().for_each(|path| state.tape.arrived(path, due));
        Ok(())
    }

    /// Records a request under an id that is new.
    fn request(&self, id: &str, files: Vec<RequestedFile>) -> Result<(), Fault> {
        let config = &self.site.config;
        let pins = (Duration::from_secs(config.pin_s.into()), Duration::from_secs(config.pin_max_s.into()));
        let mut state = self.lock_state();
        let record = state.tape.new_request(id, files, self.clock.now(), pins)?;
        self.write(&mut state, vec![record])
    }

    /// Brings files for an order of the service. An order that is known already changes nothing.
    pub(super) fn stage_order(&self, id: &str, files: Vec<RequestedFile>) -> Result<(), Fault> {
        match self.report(id) {
            Some(_) => Ok(()),
            None => self.request(id, files),
        }
    }

    /// Ids of requests that begin like this.
    pub(super) fn requests_beginning(&self, prefix: &str) -> Vec<String> {
        self.lock_state().tape.requests_beginning(prefix)
    }

    pub(super) fn path_of(&self, lfn: &Lfn) -> Option<String> {
        self.site.path_of(lfn)
    }

    /// Counts changes of the state.
    pub(super) fn changes(&self) -> u64 {
        *self.changed.borrow()
    }

    fn migration_due(&self) -> Timestamp {
        self.clock.now() + Duration::from_secs(self.site.config.migrate_after_s.into())
    }

    fn goes_to_tape(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.site.can(Verb::Migrate) && !name.starts_with(TEMP_NAME_PREFIX)
    }

    // ---- what the site does --------------------------------------------------------------------------

    /// Runs commands until it is dropped; ends only with a defect.
    pub(super) async fn run(self: Arc<Self>) -> Fault {
        let mut changed = self.changed.subscribe();
        let mut at_work = JoinSet::new();
        loop {
            changed.borrow_and_update();
            let driver = self.clone();
            match blocking(move || Ok(driver.next_commands())).await {
                Ok(work) => {
                    for (work, slot) in work {
                        at_work.spawn(self.clone().carry_out(work, slot));
                    }
                }
                Err(fault) => return fault,
            }
            tokio::select! {
                _ = changed.changed() => {}
                Some(done) = at_work.join_next() => {
                    if let Err(error) = done {
                        tracing::error!(%error, storage = %self.site.storage, "work for a tape ended \
                            abnormally");
                    }
                }
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// The commands that may begin now.
    fn next_commands(&self) -> Vec<(TapeCommand, OwnedSemaphorePermit)> {
        let (now, bulk) = (self.clock.now(), self.site.config.bulk);
        let mut state = self.lock_state();
        self.expire_pins(&mut state, now);
        let mut work = Vec::new();
        while let Ok(slot) = self.removing.clone().try_acquire_owned() {
            let most = bulk.min(state.removals.len());
            if most == 0 {
                break;
            }
            work.push((TapeCommand::Remove(state.removals.drain(..most).collect()), slot));
        }
        if let Ok(slot) = self.placing.clone().try_acquire_owned() {
            let unplaced = state.tape.unplaced(PLACED_AT_ONCE_MAX);
            if !unplaced.is_empty() {
                work.push((TapeCommand::Place(unplaced), slot));
            }
        }
        let DriverState { tape, budget, .. } = &mut *state;
        budget.retain(|path| tape.occupies_disk(path));
        while let Ok(slot) = self.staging.clone().try_acquire_owned() {
            let reserve = |path: &Path| budget.reserve(path, self.site.size_of(path));
            let Some((paths, metadata)) = tape.next_stage(bulk, now, reserve) else { break };
            work.push((TapeCommand::Stage(paths, metadata), slot));
        }
        while let Ok(slot) = self.migrating.clone().try_acquire_owned() {
            let files = state.tape.next_migrate(bulk, now);
            if files.is_empty() {
                break;
            }
            work.push((TapeCommand::Migrate(files), slot));
        }
        work
    }

    fn expire_pins(&self, state: &mut DriverState, now: Timestamp) {
        let (removed, spent): (Vec<ExpiredPins>, Vec<ExpiredPins>) = state
            .tape
            .take_expired_pins(now, self.site.can(Verb::Remove))
            .into_iter()
            .partition(|over| over.last);
        state.removals.extend(removed);
        let files: Vec<_> = spent.into_iter().flat_map(|over| over.files).collect();
        let mut records = state.tape.expired_requests(now);
        if !files.is_empty() {
            records.push(Record::Spent { files });
        }
        if let Err(fault) = self.write(state, records) {
            tracing::error!(fault = %fault.chain(),
                "expired pins are not recorded; they expire again after a restart");
        }
    }

    async fn carry_out(self: Arc<Self>, work: TapeCommand, slot: OwnedSemaphorePermit) {
        match work {
            TapeCommand::Place(paths) => self.clone().place_files(paths).await,
            TapeCommand::Stage(paths, metadata) => self.clone().stage_files(paths, metadata).await,
            TapeCommand::Migrate(files) => self.clone().migrate_files(files).await,
            TapeCommand::Remove(over) => self.clone().remove_files(over).await,
        }
        drop(slot);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Asks where files lie on tape, so that they can be staged in the order of the tape.
    async fn place_files(self: Arc<Self>, paths: Vec<Path>) {
        let asked: Vec<String> = paths.iter().map(|path| path.to_string()).collect();
        let places = self.site.places(&asked).await;
        let driver = self.clone();
        let noted = blocking(move || {
            let mut state = driver.lock_state();
            paths.iter().zip(places).for_each(|(path, place)| state.tape.place(path, place));
            Ok(())
        });
        if let Err(fault) = noted.await {
            tracing::error!(fault = %fault.chain(), "places on tape are not noted; they are asked for again");
        }
    }

    async fn stage_files(self: Arc<Self>, paths: Vec<String>, metadata: Option<Arc<str>>) {
        let found = self.site.locate(&paths).await;
        let (mut known, mut wanted) = (Vec::new(), Vec::new());
        for (path, at) in paths.into_iter().zip(found) {
            match at {
                at if at.is_on_disk() => known.push((path, Some(End::OnDisk))),
                Locality::Lost => known.push((path, Some(End::Failed("the tape system has lost it".into())))),
                Locality::None if self.site.knows_tape() => {
                    known.push((path, Some(End::Failed("file does not exist".into()))));
                }
                _ => wanted.push(path),
            }
        }
        self.settle(known).await;
        if wanted.is_empty() {
            return;
        }
        let first = units::printable(&wanted[0]);
        tracing::info!(storage = %self.site.storage, files = wanted.len(), first, "staging files from tape");
        let ended = tokio::select! {
            ended = self.site.run(Verb::Stage, &wanted, metadata.as_deref()) => ended,
            () = self.clone().unwanted(wanted.clone()) => {
                return self.settle(wanted.into_iter().map(|path| (path, None)).collect()).await;
            }
        };
        let found = self.site.locate(&wanted).await;
        let ends = wanted.into_iter().zip(found).map(|(path, at)| {
            let end = stage_end(at, &ended);
            if let End::Failed(why) = &end {
                tracing::warn!(storage = %self.site.storage, path = units::printable(&path), why, "a file \
                    does not come from tape");
            }
            (path, Some(end))
        });
        self.settle(ends.collect()).await;
    }

    /// Completes when nobody waits for any of these files.
    async fn unwanted(self: Arc<Self>, paths: Vec<String>) {
        let mut changed = self.changed.subscribe();
        let paths = Arc::new(paths);
        loop {
            let (driver, those) = (self.clone(), paths.clone());
            let look = move || Ok(those.iter().any(|path| driver.lock_state().tape.is_awaited(path)));
            if matches!(blocking(look).await, Ok(false)) {
                return;
            }
            if changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Records the results of staged files for all who wait for them, and releases their paths.
    async fn settle(self: &Arc<Self>, ends: Vec<(String, Option<End>)>) {
        if ends.is_empty() {
            return;
        }
        let driver = self.clone();
        let state = blocking(move || {
            let now = driver.clock.now();
            let mut state = driver.lock_state();
            let records = ends.iter().filter_map(|(path, end)| state.tape.staged(path, end.clone()?, now));
            let records = records.collect();
            let written = driver.write(&mut state, records);
            ends.iter().for_each(|(path, _)| state.tape.release_path(path, now));
            written
        });
        if let Err(fault) = state.await {
            tracing::error!(fault = %fault.chain(),
                "staged files could not be recorded; they are staged again");
        }
    }

    async fn migrate_files(self: Arc<Self>, files: Vec<(String, u64)>) {
        let paths: Vec<String> = files.iter().map(|(path, _)| path.clone()).collect();
        let found = self.site.locate(&paths).await;
        let gone = {
            let (site, paths) = (self.site.clone(), paths.clone());
            blocking(move || {
                Ok(paths.iter().map(|path| site.disk_state(path) == DiskState::Absent).collect::<Vec<bool>>())
            })
        };
        let gone = gone.await.unwrap_or_default();
        let done =
            found.iter().enumerate().map(|(place, at)| at.is_on_tape() || gone.get(place) == Some(&true));
        let mut done: Vec<bool> = done.collect();
        let wanted: Vec<String> =
            paths.iter().zip(&done).filter(|(_, done)| !**done).map(|(path, _)| path.clone()).collect();
        if !wanted.is_empty() {
            match self.site.migrate(&wanted).await {
                Ok(()) => done = vec![true; done.len()],
                Err(why) => {
                    let (storage, again_s) = (&self.site.storage, MIGRATE_RETRY_INTERVAL.as_secs());
                    let (files, first) = (wanted.len(), units::printable(&wanted[0]));
                    tracing::warn!(%storage, files, first, why, again_s, "migration failed; trying again");
                }
            }
        }
        let driver = self.clone();
        let noted = blocking(move || {
            let mut state = driver.lock_state();
            let mut records = Vec::new();
            for ((path, stamp), done) in files.iter().zip(done) {
                match done {
                    true => records.extend(state.tape.migrated(path, *stamp)),
                    false => {
                        state.tape.retry_migration(path, Some(driver.clock.now() + MIGRATE_RETRY_INTERVAL))
                    }
                }
            }
            driver.write(&mut state, records)
        });
        if let Err(fault) = noted.await {
            tracing::error!(fault = %fault.chain(),
                "migrations are not recorded; they are repeated after a restart");
        }
    }

    async fn remove_files(self: Arc<Self>, over: Vec<ExpiredPins>) {
        let paths: Vec<String> = over.iter().map(|over| over.path.to_string()).collect();
        let found = self.site.locate(&paths).await;
        // A file that is not on tape must not be removed from disk.
        let both = paths.iter().zip(found).filter(|(_, at)| *at == Locality::DiskAndTape);
        let both: Vec<String> = both.map(|(path, _)| path.clone()).collect();
        if !both.is_empty()
            && let Err(why) = self.site.complete(Verb::Remove, &both).await
        {
            let storage = &self.site.storage;
            tracing::warn!(%storage, files = both.len(), first = units::printable(&both[0]), why, "files \
                that nobody needs stay on disk");
        }
        let driver = self.clone();
        let noted = blocking(move || {
            let mut state = driver.lock_state();
            let files = over.iter().flat_map(|over| over.files.clone()).collect();
            let written = driver.write(&mut state, vec![Record::Spent { files }]);
            over.iter().for_each(|over| state.tape.release_path(&over.path, driver.clock.now()));
            written
        });
        if let Err(fault) = noted.await {
            tracing::error!(fault = %fault.chain(),
                "removals are not recorded; they are repeated after a restart");
        }
    }
}

impl DriverState {
    /// Compacts a log that is broken or much longer than its state.
    fn rewrite(&mut self) -> std::io::Result<()> {
        if !self.log.is_broken() && self.log.bytes() < self.rewrite_at {
            return Ok(());
        }
        let payloads: Result<Vec<Vec<u8>>, _> =
            self.tape.records().map(|record| serde_json::to_vec(&record)).collect();
        self.log.replace(payloads?.iter())?;
        self.rewrite_at = LOG_BYTES_MIN.max(2 * self.log.bytes());
        Ok(())
    }
}

/// The end of staging: what is on the disk decides; where that is unknown, the command's exit code.
fn stage_end(at: Locality, ended: &Result<CommandExit, Fault>) -> End {
    let why = match ended {
        _ if at.is_on_disk() => return End::OnDisk,
        Ok(ended) if ended.code == Some(0) && at == Locality::Unavailable => return End::OnDisk,
        Ok(ended) if ended.code == Some(0) => {
            format!("the site's command ended well, and the file is not on disk ({})", at.word())
        }
        Ok(ended) => format!("the site's command does not bring it {}", ended.describe()),
        Err(fault) => fault.detail.clone(),
    };
    End::Failed(why)
}

impl Tape for TapeDriver {
    fn stage(&self, files: Vec<RequestedFile>) -> Result<String, Fault> {
        let random = || {
            random_u64().map_err(|error| {
                Fault::new(FaultCode::Internal, format!("/dev/urandom: {error}")).with_source(error)
            })
        };
        let id = format!("{:016x}{:016x}", random()?, random()?);
        self.request(&id, files)?;
        Ok(id)
    }

    fn report(&self, request: &str) -> Option<Report> {
        self.lock_state().tape.report(request, self.clock.now())
    }

    fn cancel(&self, request: &str, paths: &[String]) -> Result<(), Fault> {
        let mut state = self.lock_state();
        let record = state.tape.cancel(request, paths, self.clock.now());
        self.write(&mut state, record.into_iter().collect())
    }

    fn release(&self, request: &str, paths: &[String]) -> Result<(), Fault> {
        let mut state = self.lock_state();
        let record = state.tape.release(request, paths, self.clock.now());
        self.write(&mut state, record.into_iter().collect())
    }

    fn end(&self, request: &str) -> Result<(), Fault> {
        let mut state = self.lock_state();
        let records = state.tape.end_request(request, self.clock.now());
        self.write(&mut state, records)
    }

    fn locate(&self, paths: &[String]) -> Vec<Locality> {
        self.site.locate_blocking(paths)
    }

    fn arriving(&self, path: &str) -> Result<(), Fault> {
        if !self.goes_to_tape(path) {
            return Ok(());
        }
        let mut state = self.lock_state();
        if state.tape.arrivals() >= ARRIVALS_MAX {
            let detail = format!("{ARRIVALS_MAX} files wait for their way to tape: no more are taken");
            return Err(Fault::new(FaultCode::Busy, detail));
        }
        let record = state.tape.arriving(path);
        self.write(&mut state, vec![record])
    }

    fn arrived(&self, path: &str) {
        let due = self.migration_due();
        self.lock_state().tape.arrived(path, due);
        self.changed.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
pub(super) mod tests;
