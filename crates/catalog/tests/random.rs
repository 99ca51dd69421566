//! Random sequences of operations against a small model in memory: replicas, demands, progress and totals
//! agree after each step, `check` finds nothing, and nothing depends on the handle staying open.

#![allow(clippy::unwrap_used)]

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longhaul_catalog::conformance::{NOW, World, agent, lfn, terms};
use longhaul_catalog::{
    Catalog, FileScope, LeaseRefusal, LeaseResult, NewAttempt, NewTask, ReportItem, ReportedCheck,
    ReportedFact, SubscriptionPatch, TaskKind,
};
use longhaul_model::{
    DatasetId, Epoch, Fault, FaultCode, StorageId, SubscriptionId, SubscriptionState, TaskId,
};
use proptest::prelude::*;

/// Highest file number: with a dozen files in three blocks, steps often affect the same ones.
const FILES: u64 = 12;

#[derive(Clone, Debug)]
enum Step {
    Register {
        from: u64,
        count: u64,
        at: Option<usize>,
        block: u8,
    },
    Subscribe {
        target: usize,
        block: Option<u8>,
    },
    Change {
        which: usize,
        state: SubscriptionState,
    },
    /// A step as drawn, possible or not.
    Lease {
        file: u64,
        source: usize,
        target: usize,
    },
    /// One of the possible steps.
    LeasePossible {
        which: usize,
    },
    Finish {
        which: usize,
        how: Ending,
    },
    Suspect {
        file: u64,
        at: usize,
    },
    Clear {
        file: u64,
        at: usize,
    },
    Remove {
        file: u64,
        at: usize,
        force: bool,
    },
    Delete {
        at: usize,
        force: bool,
    },
    Verify {
        file: u64,
        at: usize,
    },
    Release {
        target: usize,
    },
    Reopen,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Good,
    Bad(FaultCode),
    /// The report is sent again under its old sequence number.
    Repeated,
    /// The right attempt under another epoch.
    Stale,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || 0..3usize;
    let file = || 0..FILES;
    let ending = prop_oneof![
        4 => Just(Ending::Good),
        1 => Just(Ending::Bad(FaultCode::Unreachable)),
        1 => Just(Ending::Bad(FaultCode::WrongDigest)),
        1 => Just(Ending::Repeated),
        1 => Just(Ending::Stale),
    ];
    let state = prop_oneof![
        Just(SubscriptionState::Active),
        Just(SubscriptionState::Suspended),
        Just(SubscriptionState::Cancelled)
    ];
    prop_oneof![
        4 => (file(), 1..5u64, proptest::option::of(place()), 0..3u8)
            .prop_map(|(from, count, at, block)| Step::Register { from, count, at, block }),
        3 => (place(), proptest::option::of(0..3u8)).prop_map(|(target, block)| Step::Subscribe { target,
            block }),
        2 => (0..8usize, state).prop_map(|(which, state)| Step::Change { which, state }),
        8 => (0..64usize).prop_map(|which| Step::LeasePossible { which }),
        2 => (file(), place(), place()).prop_map(|(file, source, target)| Step::Lease { file, source,
            target }),
        8 => (0..8usize, ending).prop_map(|(which, how)| Step::Finish { which, how }),
        1 => (file(), place()).prop_map(|(file, at)| Step::Suspect { file, at }),
        1 => (file(), place()).prop_map(|(file, at)| Step::Clear { file, at }),
        1 => (file(), place(), any::<bool>()).prop_map(|(file, at, force)| Step::Remove { file, at, force }),
        1 => (place(), any::<bool>()).prop_map(|(at, force)| Step::Delete { at, force }),
        1 => (file(), place()).prop_map(|(file, at)| Step::Verify { file, at }),
        1 => place().prop_map(|target| Step::Release { target }),
        1 => Just(Step::Reopen),
    ]
}

/// The expected state.
#[derive(Default)]
struct Model {
    /// File number to block.
    files: BTreeMap<u64, u8>,
    /// (file, storage) to whether it is suspect.
    replicas: BTreeMap<(u64, usize), bool>,
    /// Those that nobody verified.
    claimed: BTreeSet<(u64, usize)>,
    subscriptions: Vec<Wish>,
    leased: Vec<(u64, NewAttempt)>,
    /// Waiting live transfers by (file, target), with what a further attempt needs.
    waiting: BTreeMap<(u64, usize), NewAttempt>,
    /// (file, source) to the targets whose agents found it bad, each with whether that was refuted since.
    accusations: BTreeMap<(u64, usize), BTreeMap<usize, bool>>,
    done: u64,
}

struct Wish {
    id: SubscriptionId,
    target: usize,
    block: Option<u8>,
    state: SubscriptionState,
}

impl Model {
    fn good(&self, file: u64, at: usize) -> bool {
        self.replicas.get(&(file, at)) == Some(&false)
    }

    /// Whether it counts as a good copy.
    fn counts(&self, file: u64, at: usize) -> bool {
        self.good(file, at) && !self.claimed.contains(&(file, at))
    }

    fn wanted(&self, block: u8, target: usize) -> bool {
        self.subscriptions.iter().any(|wish| {
            wish.state == SubscriptionState::Active
                && wish.target == target
                && wish.block.is_none_or(|only| only == block)
        })
    }

    fn demanded(&self, block: u8, target: usize) -> bool {
        self.wanted(block, target)
            && self.files.iter().any(|(&file, &of)| of == block && !self.good(file, target))
    }

    /// Live transfers that nobody wants end.
    fn drop_unwanted(&mut self) {
        let demanded: BTreeSet<(u8, usize)> = (0..3)
            .flat_map(|block| (0..3).map(move |at| (block, at)))
            .filter(|&(block, at)| self.demanded(block, at))
            .collect();
        let files = self.files.clone();
        let keep = |file: u64, target: usize| demanded.contains(&(files[&file], target));
        self.leased.retain(|(file, attempt)| keep(*file, attempt.target.0 as usize - 1));
        self.waiting.retain(|&(file, target), _| keep(file, target));
    }

    /// Two targets are believed about a replica that is not the last good one.
    fn accuse(&mut self, file: u64, source: usize, target: usize) {
        if !self.good(file, source) {
            return;
        }
        let accusers = self.accusations.entry((file, source)).or_default();
        accusers.entry(target).or_insert(false);
        let believed = accusers.values().filter(|refuted| !**refuted).count() >= 2;
        if believed && (0..3).any(|other| other != source && self.good(file, other)) {
            self.replicas.insert((file, source), true);
        }
    }

    fn can_lease(&self, file: u64, block: u8, source: usize, target: usize) -> bool {
        source != target
            && self.good(file, source)
            && !self.good(file, target)
            && self.wanted(block, target)
            && (self.waiting.contains_key(&(file, target)) || !self.live(file, target))
    }

    fn live(&self, file: u64, target: usize) -> bool {
        self.waiting.contains_key(&(file, target))
            || self
                .leased
                .iter()
                .any(|(other, attempt)| *other == file && attempt.target.0 as usize == target + 1)
    }
}

struct Run {
    world: World,
    model: Model,
    dataset: DatasetId,
    path: std::path::PathBuf,
    next_task: u64,
    last_items: BTreeMap<usize, Vec<ReportItem>>,
}

fn block_name(block: u8) -> String {
    format!("b{block}")
}

impl Run {
    fn step(&mut self, step: &Step) {
        match step.clone() {
            Step::Register { from, count, at, block } => {
                self.register(from..(from + count).min(FILES), at, block)
            }
            Step::Subscribe { target, block } => self.subscribe(target, block),
            Step::Change { which, state } => self.change(which, state),
            Step::Lease { file, source, target } => self.lease(file, source, target),
            Step::LeasePossible { which } => self.lease_possible(which),
            Step::Finish { which, how } => self.finish(which, how),
            Step::Suspect { file, at } => self.suspect(file, at, true),
            Step::Clear { file, at } => self.suspect(file, at, false),
            Step::Remove { file, at, force } => self.remove(file, at, force),
            Step::Delete { at, force } => self.delete(at, force),
            Step::Verify { file, at } => self.verify(file, at),
            Step::Release { target } => self.release(target),
            Step::Reopen => self.world.catalog = Catalog::open(&self.path, NOW).unwrap(),
        }
        self.model.drop_unwanted();
    }

    fn register(&mut self, numbers: Range<u64>, at: Option<usize>, block: u8) {
        self.world.register(self.dataset, numbers.clone(), at, Some(&block_name(block)));
        for number in numbers {
            self.model.files.entry(number).or_insert(block);
            if let Some(at) = at
                && let Entry::Vacant(entry) = self.model.replicas.entry((number, at))
            {
                entry.insert(false);
                self.model.claimed.insert((number, at));
            }
        }
    }

    fn subscribe(&mut self, target: usize, block: Option<u8>) {
        let id = match block {
            None => None,
            Some(block) => {
                let name = format!("r#{}", block_name(block)).parse().unwrap();
                match self.world.catalog.block(&name).unwrap() {
                    Some(row) => Some(row.id),
                    None => return,
                }
            }
        };
        let known = self.model.subscriptions.iter().any(|wish| {
            (wish.target, wish.block) == (target, block) && wish.state != SubscriptionState::Cancelled
        });
        let changed = self.world.subscribe(self.dataset, id, target);
        assert_eq!(changed.changed, !known);
        if !known {
            let id = changed.subscription.id;
            self.model.subscriptions.push(Wish { id, target, block, state: SubscriptionState::Active });
        }
    }

    fn change(&mut self, which: usize, state: SubscriptionState) {
        let count = self.model.subscriptions.len();
        if count == 0 {
            return;
        }
        let wish = &mut self.model.subscriptions[which % count];
        let patch = SubscriptionPatch { state: Some(state), ..SubscriptionPatch::default() };
        let changed = self.world.catalog.change_subscription(wish.id, &patch, NOW);
        let allowed = wish.state == state || wish.state.may_become(state);
        assert_eq!(changed.is_ok(), allowed);
        if allowed {
            wish.state = state;
        }
    }

    fn lease(&mut self, file: u64, source: usize, target: usize) {
        let Some(&block) = self.model.files.get(&file) else { return };
        let id = self.world.file(self.dataset, file).id;
        let waiting = self.model.waiting.get(&(file, target)).cloned();
        let fresh = self.world.new_attempt(id, source, target);
        let attempt = match &waiting {
            Some(last) => NewAttempt { transfer: last.transfer, epoch: Epoch(last.epoch.0 + 1), ..fresh },
            None => fresh,
        };
        let possible = self.model.can_lease(file, block, source, target);
        let begun = self.world.begin(&attempt);
        if begun == LeaseResult::Refused(LeaseRefusal::Worn) {
            return;
        }
        assert_eq!(!matches!(begun, LeaseResult::Refused(_)), possible, "{begun:?}");
        if possible {
            self.model.waiting.remove(&(file, target));
            self.model.leased.push((file, attempt));
        }
    }

    fn lease_possible(&mut self, which: usize) {
        let model = &self.model;
        let places = (0..3).flat_map(|source| (0..3).map(move |target| (source, target)));
        let possible: Vec<(u64, usize, usize)> = places
            .flat_map(|(source, target)| {
                model.files.iter().map(move |(&file, &block)| (file, block, source, target))
            })
            .filter(|&(file, block, source, target)| model.can_lease(file, block, source, target))
            .map(|(file, _, source, target)| (file, source, target))
            .collect();
        if !possible.is_empty() {
            let (file, source, target) = possible[which % possible.len()];
            self.lease(file, source, target);
        }
    }

    fn finish(&mut self, which: usize, how: Ending) {
        let count = self.model.leased.len();
        if count == 0 {
            return;
        }
        let (file, attempt) = self.model.leased[which % count].clone();
        let target = attempt.target.0 as usize - 1;
        let source = attempt.source.0 as usize - 1;
        let mut told = self.world.outcome(&attempt, None);
        match how {
            Ending::Repeated => {
                let Some(items) = self.last_items.get(&target) else { return };
                let last = self.world.sequences[target];
                let applied = self.world.catalog.apply_report(agent(target), items, last, NOW).unwrap();
                assert!(applied.outcomes.iter().all(|outcome| outcome.applied.is_none()));
                return;
            }
            Ending::Stale => told.epoch = Epoch(attempt.epoch.0 + 7),
            Ending::Bad(code) => told.fault = Some(Fault::new(code, "made up")),
            Ending::Good => {}
        }
        let applied = self.world.report(target, vec![ReportedFact::Outcome(told.clone())]);
        let item = ReportItem { sequence: self.world.sequences[target], fact: ReportedFact::Outcome(told) };
        self.last_items.insert(target, vec![item]);
        assert_eq!(applied.outcomes[0].applied.is_none(), matches!(how, Ending::Stale));
        match how {
            Ending::Good => {
                self.model.leased.remove(which % count);
                if self.model.replicas.insert((file, target), false) == Some(true) {
                    self.model.accusations.remove(&(file, target));
                }
                self.model.claimed.remove(&(file, target));
                self.model.done += 1;
            }
            Ending::Bad(code) => {
                self.model.leased.remove(which % count);
                self.model.waiting.insert((file, target), attempt);
                if code == FaultCode::WrongDigest {
                    self.model.accuse(file, source, target);
                }
            }
            Ending::Repeated | Ending::Stale => {}
        }
    }

    fn suspect(&mut self, file: u64, at: usize, suspect: bool) {
        if !self.model.files.contains_key(&file) {
            return;
        }
        let id = self.world.file(self.dataset, file).id;
        let storage = self.world.storages[at];
        let fault = Fault::new(FaultCode::SourceUnreadable, "made up");
        if suspect {
            self.world.catalog.mark_suspect(id, storage, &fault, NOW).unwrap();
        } else {
            self.world.catalog.clear_suspect(id, storage, NOW).unwrap();
        }
        if let Some(state) = self.model.replicas.get_mut(&(file, at)) {
            *state = suspect;
        }
    }

    fn remove(&mut self, file: u64, at: usize, force: bool) {
        if !self.model.files.contains_key(&file) {
            return;
        }
        let id = self.world.file(self.dataset, file).id;
        let allowed = force || (0..3).any(|other| other != at && self.model.counts(file, other));
        let removed = self.world.catalog.remove_replicas(self.world.storages[at], &[id], force, &terms());
        assert_eq!(removed.is_ok(), allowed);
        if allowed {
            self.model.accusations.remove(&(file, at));
            self.model.replicas.remove(&(file, at));
            self.model.claimed.remove(&(file, at));
        }
    }

    /// A whole deletion: the task, its files, the agent's report.
    fn delete(&mut self, at: usize, force: bool) {
        let storage = self.world.storages[at];
        let here: Vec<u64> = self.model.replicas.keys().filter(|key| key.1 == at).map(|key| key.0).collect();
        let last = here
            .iter()
            .filter(|&&file| !(0..3).any(|other| other != at && self.model.counts(file, other)))
            .count();
        let wanted = self
            .model
            .subscriptions
            .iter()
            .any(|wish| wish.target == at && wish.state != SubscriptionState::Cancelled);
        self.next_task += 1;
        let id = TaskId(self.next_task);
        let new = NewTask { id, kind: TaskKind::Delete { force }, dataset: self.dataset, storage };
        let preview = self.world.catalog.deletion_preview(self.dataset, storage, &terms()).unwrap();
        assert_eq!((preview.files, preview.last_replicas), (here.len() as u64, last as u64));
        let added = self.world.catalog.add_task(&new, &terms());
        assert_eq!(added.is_ok(), !here.is_empty() && !wanted && (force || last == 0));
        if added.is_err() {
            return;
        }
        let (mut files, mut after) = (Vec::new(), None);
        loop {
            let page = self.world.catalog.task_files(id, after, 2, &terms()).unwrap();
            files.extend(page.files.into_iter().map(|file| ReportedCheck { lfn: file.lfn, fault: None }));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(files.len(), here.len());
        self.world.report(
            at,
            vec![ReportedFact::Checked { task: id, files }, ReportedFact::TaskDone { task: id, fault: None }],
        );
        self.model.replicas.retain(|key, _| key.1 != at);
        self.model.accusations.retain(|key, _| key.1 != at);
        self.model.claimed.retain(|key| key.1 != at);
    }

    fn verify(&mut self, file: u64, at: usize) {
        if !self.model.replicas.contains_key(&(file, at)) {
            return;
        }
        self.next_task += 1;
        let id = TaskId(self.next_task);
        let new =
            NewTask { id, kind: TaskKind::Verify, dataset: self.dataset, storage: self.world.storages[at] };
        let id = self.world.catalog.add_task(&new, &terms()).unwrap().task.id;
        let files = vec![ReportedCheck { lfn: lfn(self.dataset, file), fault: None }];
        self.world.report(at, vec![ReportedFact::Checked { task: id, files }]);
        self.model.replicas.insert((file, at), false);
        let accusers = self.model.accusations.get_mut(&(file, at));
        accusers.into_iter().flat_map(|accusers| accusers.values_mut()).for_each(|refuted| *refuted = true);
        self.model.claimed.remove(&(file, at));
    }

    fn release(&mut self, target: usize) {
        self.world.catalog.release_leases_except(agent(target), &[], NOW).unwrap();
        let (lost, kept): (Vec<_>, Vec<_>) =
            self.model.leased.drain(..).partition(|(_, attempt)| attempt.target.0 as usize == target + 1);
        self.model.leased = kept;
        self.model.waiting.extend(lost.into_iter().map(|(file, attempt)| ((file, target), attempt)));
    }

    fn compare(&self) {
        self.world.assert_sound();
        let catalog = &self.world.catalog;
        let row = catalog.dataset_by_id(self.dataset).unwrap().unwrap();
        assert_eq!(row.files, self.model.files.len() as u64);
        assert_eq!(row.bytes, self.model.files.keys().map(|file| 100 + file).sum::<u64>());
        let totals = catalog.totals().unwrap();
        assert_eq!(totals.files_done, self.model.done);
        assert_eq!(
            (totals.transfers_leased, totals.transfers_waiting),
            (self.model.leased.len() as u64, self.model.waiting.len() as u64)
        );
        for at in 0..3 {
            self.compare_storage(at);
        }
        for wish in &self.model.subscriptions {
            self.compare_progress(wish);
        }
        let demands: BTreeSet<(SubscriptionId, StorageId)> =
            catalog.demands().unwrap().iter().map(|row| (row.subscription, row.target)).collect();
        for wish in &self.model.subscriptions {
            let lacks = wish.state == SubscriptionState::Active
                && self.model.files.iter().any(|(&file, &block)| {
                    wish.block.is_none_or(|only| only == block) && !self.model.good(file, wish.target)
                });
            assert_eq!(demands.contains(&(wish.id, self.world.storages[wish.target])), lacks);
        }
    }

    fn compare_storage(&self, at: usize) {
        let catalog = &self.world.catalog;
        let here = catalog.replicas_of_dataset(self.dataset).unwrap();
        let here = here.iter().find(|row| row.storage == self.world.storages[at]);
        let files = self.model.replicas.keys().filter(|key| key.1 == at).count() as u64;
        let suspect =
            self.model.replicas.iter().filter(|(key, suspect)| key.1 == at && **suspect).count() as u64;
        assert_eq!(here.map_or((0, 0), |row| (row.files, row.suspect_files)), (files, suspect));
        for file in catalog.files(FileScope::Dataset(self.dataset), None, 100).unwrap() {
            let number = file.size - 100;
            let (_, replicas) = catalog.replicas_of_file(&file.lfn).unwrap().unwrap();
            let found = replicas.iter().find(|row| row.storage == self.world.storages[at]);
            assert_eq!(
                found.map(|row| row.suspect.is_some()),
                self.model.replicas.get(&(number, at)).copied()
            );
        }
        for block in catalog.blocks(self.dataset, None, 10).unwrap() {
            let page = catalog.expand(block.id, self.world.storages[at], None, 100).unwrap();
            let lacking: Vec<u64> = page.files.iter().map(|file| file.size - 100).collect();
            let mut expected: Vec<u64> = self
                .model
                .files
                .iter()
                .filter(|(_, of)| block.name.as_str().ends_with(&block_name(**of)))
                .map(|(&file, _)| file)
                .filter(|&file| !self.model.good(file, at) && !self.model.live(file, at))
                .collect();
            expected.sort_by_key(|&number| self.world.file(self.dataset, number).id);
            assert_eq!(lacking, expected);
            for file in page.files {
                let sources: Vec<usize> = (0..3)
                    .filter(|&source| source != at && self.model.good(file.size - 100, source))
                    .collect();
                assert_eq!(file.sources.iter().map(|id| id.0 as usize - 1).collect::<Vec<_>>(), sources);
            }
        }
    }

    fn compare_progress(&self, wish: &Wish) {
        let progress = self.world.catalog.subscription_progress(wish.id).unwrap();
        let wanted: Vec<u64> = self
            .model
            .files
            .iter()
            .filter(|(_, block)| wish.block.is_none_or(|only| only == **block))
            .map(|(&file, _)| file)
            .collect();
        let present = wanted.iter().filter(|&&file| self.model.good(file, wish.target)).count() as u64;
        assert_eq!((progress.files_wanted, progress.files_present), (wanted.len() as u64, present));
        assert_eq!(progress.complete, present == wanted.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48 * ProptestConfig::default().cases / 256,
        failure_persistence: None, ..ProptestConfig::default() })]

    /// Promises 2 and 3: whatever happens in whatever order, the catalog agrees with the model.
    #[test]
    fn the_catalog_agrees_with_the_model(begun in 0..=3usize, steps in proptest::collection::vec(step(),
        1..60)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("catalog.db");
        let world = World::new(Catalog::open(&path, NOW).unwrap());
        let dataset = world.dataset("r");
        let mut run = Run { world, model: Model::default(), dataset, path, next_task: 0,
            last_items: BTreeMap::new() };
        let beginning = [
            Step::Register { from: 0, count: 6, at: Some(0), block: 0 },
            Step::Subscribe { target: 1, block: None },
            Step::Subscribe { target: 2, block: Some(0) },
        ];
        for step in beginning.iter().take(begun).chain(&steps) {
            run.step(step);
            run.compare();
        }
    }
}
