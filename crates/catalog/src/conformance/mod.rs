//! Conformance suite: what every backend must do. [`check`] runs the operations and asserts what DESIGN
//! promises of them, in [`World`], a small deployment that other tests of the catalog use too.
//!
//! For tests; it panics where a backend is wrong.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod accounts;
mod accusations;
mod circuits;
mod copies;
mod decisions;
mod facts;
mod hosts;
mod jobs;
mod login_sessions;
mod placement;
mod refusals;
mod registration;
mod relays;
mod removals;
mod repairs;
mod storage_names;
mod tape;
mod transfers;

use longhaul_model::{
    AgentId, AttemptId, BlockId, DatasetId, Digest, DigestOrigin, DigestSet, Epoch, Fault, FileId, IdMaker,
    Lfn, NameRules, StorageId, StorageKind, SubscriptionId, Timestamp, TransferId, Verification,
};

use crate::{
    AttemptTimes, Catalog, CopyTerms, Incarnation, LeaseResult, ManifestError, NewAttempt, NewFile,
    NewSubscription, NewTask, RegistrationResult, ReportItem, ReportResult, ReportedCheck, ReportedFact,
    ReportedOutcome, StorageOfferRow, SubscriptionResult, TaskKind,
};

pub const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

/// Creates an empty database and returns a function that opens it, each time on a new handle.
pub type MakeCatalog<'a> = dyn Fn() -> Box<dyn Fn() -> Catalog> + 'a;

/// Runs every scenario against a backend; panics where it fails.
pub fn check(make: &MakeCatalog<'_>) {
    let all = [
        accounts::SCENARIOS,
        login_sessions::SCENARIOS,
        decisions::SCENARIOS,
        registration::SCENARIOS,
        placement::SCENARIOS,
        copies::SCENARIOS,
        transfers::SCENARIOS,
        relays::SCENARIOS,
        circuits::SCENARIOS,
        hosts::SCENARIOS,
        refusals::SCENARIOS,
        removals::SCENARIOS,
        storage_names::SCENARIOS,
        jobs::SCENARIOS,
        tape::SCENARIOS,
        facts::SCENARIOS,
        accusations::SCENARIOS,
        repairs::SCENARIOS,
    ];
    for scenario in all.into_iter().flatten() {
        let open = make();
        let mut world = World::new(open());
        scenario(&mut world);
        world.assert_sound();
        // No state is in the handle: a new one sees the same.
        drop(world);
        assert!(open().check().unwrap().iter().all(|result| result.violations == 0));
    }
}

/// Three sites, alpha, beta and gamma, with one storage and one agent each.
pub struct World {
    pub catalog: Catalog,
    pub storages: Vec<StorageId>,
    pub ids: IdMaker,
    /// The last sequence number of each agent.
    pub sequences: Vec<u64>,
    pub now: Timestamp,
}

pub const ALPHA: usize = 0;
pub const BETA: usize = 1;
pub const GAMMA: usize = 2;

impl World {
    pub fn new(catalog: Catalog) -> Self {
        let storages = ["alpha", "beta", "gamma"].iter().enumerate().map(|(place, name)| {
            let site = catalog.add_site(&name.parse().unwrap(), NOW).unwrap().0;
            catalog.add_agent(agent(place), site.id, name, Timestamp::MAX, NOW).unwrap();
            let offer = offer(name);
            let first = Incarnation { number: 1, nonce: 7 };
            let hello = catalog.agent_hello(agent(place), first, name, "0.1.0", &[], &[offer], NOW).unwrap();
            hello.storages[0].id
        });
        let storages = storages.collect();
        World { catalog, storages, ids: IdMaker::default(), sequences: vec![0; 3], now: NOW }
    }

    pub fn assert_sound(&self) {
        let broken: Vec<_> =
            self.catalog.check().unwrap().into_iter().filter(|result| result.violations > 0).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }

    pub fn dataset(&self, name: &str) -> DatasetId {
        self.catalog.create_dataset(&name.parse().unwrap(), &"higgs".parse().unwrap(), NOW).unwrap().0.id
    }

    /// Registers files `numbers` of a dataset, in automatic blocks or in the named one.
    pub fn register(
        &self,
        dataset: DatasetId,
        numbers: std::ops::Range<u64>,
        at: Option<usize>,
        block: Option<&str>,
    ) -> RegistrationResult {
        let mut files =
            numbers.enumerate().map(|(place, number)| Ok(new_file(dataset, number, block, place as u64 + 1)));
        self.catalog.add_files(dataset, &mut files, at.map(|place| self.storages[place]), self.now).unwrap()
    }

    pub fn try_register(
        &self,
        dataset: DatasetId,
        files: Vec<Result<NewFile, ManifestError>>,
    ) -> Result<RegistrationResult, crate::AddError> {
        self.catalog.add_files(dataset, &mut files.into_iter(), Some(self.storages[ALPHA]), self.now)
    }

    pub fn file(&self, dataset: DatasetId, number: u64) -> crate::FileRow {
        self.catalog.file(&lfn(dataset, number)).unwrap().unwrap()
    }

    pub fn subscribe(
        &mut self,
        dataset: DatasetId,
        block: Option<BlockId>,
        target: usize,
    ) -> SubscriptionResult {
        self.try_subscribe(dataset, block, target).unwrap()
    }

    pub fn try_subscribe(
        &mut self,
        dataset: DatasetId,
        block: Option<BlockId>,
        target: usize,
    ) -> Result<SubscriptionResult, crate::CatalogError> {
        let new = NewSubscription {
            id: self.ids.next(self.now),
            dataset,
            block,
            target: self.storages[target],
            priority: 5,
            verification: Verification::EndToEnd,
            terms: crate::Terms::default(),
            custodial: false,
        };
        self.catalog.add_subscription(&new, self.now)
    }

    pub fn new_attempt(&mut self, file: FileId, source: usize, target: usize) -> NewAttempt {
        NewAttempt {
            transfer: self.ids.next::<TransferId>(self.now),
            attempt: self.ids.next::<AttemptId>(self.now),
            epoch: Epoch(1),
            file,
            source: self.storages[source],
            target: self.storages[target],
            agent: agent(target),
            subscription: SubscriptionId(1),
            start_by: self.now,
            choice: r#"{"reason":"the only replica"}"#.into(),
        }
    }

    pub fn lease(&mut self, file: FileId, source: usize, target: usize) -> NewAttempt {
        let attempt = self.new_attempt(file, source, target);
        assert_eq!(self.begin(&attempt), LeaseResult::Leased);
        attempt
    }

    /// Leases again what an earlier attempt left waiting.
    pub fn lease_next(&mut self, earlier: &NewAttempt, epoch: u64) -> NewAttempt {
        let attempt = self.ids.next::<AttemptId>(self.now);
        let next = NewAttempt { attempt, epoch: Epoch(epoch), ..earlier.clone() };
        assert_eq!(self.begin(&next), LeaseResult::Leased);
        next
    }

    pub fn begin(&self, attempt: &NewAttempt) -> LeaseResult {
        self.catalog.begin_attempts(std::slice::from_ref(attempt), self.now).unwrap()[0]
    }

    /// Reports facts of the agent at `place`, under its next sequence numbers.
    pub fn report(&mut self, place: usize, facts: Vec<ReportedFact>) -> ReportResult {
        let items: Vec<ReportItem> = facts
            .into_iter()
            .map(|fact| {
                self.sequences[place] += 1;
                ReportItem { sequence: self.sequences[place], fact }
            })
            .collect();
        self.catalog.apply_report(agent(place), &items, self.sequences[place], self.now).unwrap()
    }

    pub fn finish(&mut self, attempt: &NewAttempt, fault: Option<Fault>) -> ReportResult {
        let place = self.storages.iter().position(|storage| *storage == attempt.target).unwrap();
        let outcome = self.outcome(attempt, fault);
        self.report(place, vec![ReportedFact::Outcome(outcome)])
    }

    /// The end of an attempt, as an honest agent reports it: a success shows the digests.
    pub fn outcome(&self, attempt: &NewAttempt, fault: Option<Fault>) -> ReportedOutcome {
        let file = self.catalog.read(|tx| crate::datasets::file_by_id(tx, attempt.file)).unwrap();
        let shown = file.filter(|_| fault.is_none()).map(|file| file.digests).unwrap_or_default();
        ReportedOutcome { digests: shown, ..outcome(attempt, fault) }
    }

    /// Reads files again at a storage, all of them good.
    pub fn verify(&mut self, dataset: DatasetId, numbers: std::ops::Range<u64>, place: usize) {
        let id = self.ids.next(self.now);
        let new = NewTask { id, kind: TaskKind::Verify, dataset, storage: self.storages[place] };
        self.catalog.add_task(&new, &CopyTerms::lenient(self.now)).unwrap();
        let check = |number| ReportedCheck { lfn: lfn(dataset, number), fault: None };
        let files = numbers.map(check).collect();
        let done = ReportedFact::TaskDone { task: id, fault: None };
        self.report(place, vec![ReportedFact::Checked { task: id, files }, done]);
    }

    /// Brings a file with one attempt.
    pub fn bring(&mut self, file: FileId, source: usize, target: usize) -> ReportResult {
        let attempt = self.lease(file, source, target);
        self.finish(&attempt, None)
    }
}

/// Every agent is connected, and the age of a verification does not matter.
pub fn terms() -> CopyTerms {
    CopyTerms::lenient(NOW)
}

pub fn agent(place: usize) -> AgentId {
    AgentId(place as u64 + 1)
}

pub fn offer(name: &str) -> StorageOfferRow {
    StorageOfferRow {
        name: name.parse().unwrap(),
        kind: StorageKind::Posix,
        rules: NameRules::default(),
        writable: true,
        case_insensitive: false,
        shared_root: None,
    }
}

pub fn lfn(dataset: DatasetId, number: u64) -> Lfn {
    format!("d{dataset}/f{number:05}").parse().unwrap()
}

pub fn digests(number: u64) -> DigestSet {
    [Digest::adler32(number as u32 + 1), Digest::crc32c(number as u32)].into_iter().collect()
}

pub fn new_file(dataset: DatasetId, number: u64, block: Option<&str>, line: u64) -> NewFile {
    NewFile {
        lfn: lfn(dataset, number),
        size: 100 + number,
        digests: digests(number),
        block: block.map(str::to_owned),
        line,
    }
}

/// A scan below this path that reads what it finds.
fn scan(path: &str) -> TaskKind {
    TaskKind::Scan { path: path.to_owned(), algorithms: Vec::new(), digests: DigestOrigin::Computed }
}

fn outcome(attempt: &NewAttempt, fault: Option<Fault>) -> ReportedOutcome {
    ReportedOutcome {
        attempt: attempt.attempt,
        epoch: attempt.epoch,
        fault,
        digests: DigestSet::default(),
        verification: Verification::EndToEnd,
        already_there: false,
        bytes_moved: 100,
        bytes_resent: 0,
        executor: None,
        times: AttemptTimes { received: NOW, ..AttemptTimes::default() },
    }
}

/// A bit of everything, for the tests of `check` to break.
#[cfg(test)]
pub(crate) fn small_world(catalog: &Catalog) {
    let mut world = World::new(catalog.clone());
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.subscribe(dataset, None, BETA);
    let file = |number| world.file(dataset, number).id;
    let (first, second) = (file(0), file(1));
    world.bring(first, ALPHA, BETA);
    world.lease(second, ALPHA, BETA);
    jobs::one(&world);
}
