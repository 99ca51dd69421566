//! Marks of the storages' roots: a small file in each root tells it from any other directory, such as that of
//! a disk that is not mounted. The state directory remembers the mark that each root had. A root without it,
//! or with another, is out of service: the storage is not offered, and nothing is concluded about its files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use longhaul_engine::Export;
use longhaul_model::units::printable_prefix;
use longhaul_model::{Fault, FaultCode, StorageKind, StorageName};
use longhaul_storage::Storage;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::StorageConfig;
use crate::context::AgentContext;
use crate::state_dir::{StateDir, random_u64};
use crate::step::{AgentTime, PeriodicLoop, Ticker};

/// A root that is gone must be noticed before much is concluded or written there: each check reads one small
/// file.
const CHECK_PERIOD: Duration = Duration::from_secs(60);
/// How much of a text that is no mark is shown.
const SHOWN_BYTES_MAX: usize = 80;

/// The content of the file in the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RootMark {
    pub storage: StorageName,
    pub deployment: String,
    /// Random: no two roots have the same.
    pub number: String,
}

/// The marks by storage that the state directory remembers; none: the next start takes the root that it
/// finds.
pub(crate) type KnownMarks = BTreeMap<StorageName, Option<RootMark>>;

/// The marked roots of this agent's storages.
#[derive(Default)]
pub(crate) struct RootMarks {
    roots: BTreeMap<StorageName, MarkedRoot>,
}

struct MarkedRoot {
    storage: Arc<dyn Storage>,
    /// None if the root belongs to another storage.
    mark: Option<RootMark>,
    /// What the last check came to.
    fault: Mutex<Option<Fault>>,
}

impl RootMarks {
    /// Compares the mark of each writable directory with the one that it had. A root that had none gets one:
    /// at the first start with this storage, and at the first after an upgrade from a release without marks.
    pub(crate) fn open(
        configs: &[StorageConfig],
        exports: &[Export],
        deployment: &str,
        state: &StateDir,
    ) -> Result<RootMarks, Fault> {
        let mut known = state.known_marks()?;
        let before = known.clone();
        let mut marks = RootMarks::default();
        for (config, export) in configs.iter().zip(exports) {
            if config.kind == StorageKind::Virtual || !config.writable {
                continue;
            }
            let storage = &export.storage;
            let mark = match known.get(&config.name) {
                Some(Some(mark)) => Some(mark.clone()),
                entry => match first_mark(storage.as_ref(), deployment, entry.is_some()) {
                    Ok(mark) => mark,
                    Err(fault) => {
                        tracing::warn!(storage = %config.name, fault = %fault.chain(),
                            "the storage's root gets no mark now");
                        continue;
                    }
                },
            };
            if mark.is_some() {
                known.insert(config.name.clone(), mark.clone());
            }
            let root = MarkedRoot { storage: storage.clone(), mark, fault: Mutex::default() };
            root.check();
            marks.roots.insert(config.name.clone(), root);
        }
        if known != before {
            state.save_known_marks(&known)?;
        }
        Ok(marks)
    }

    /// The number of the storage's mark; none if it has no mark.
    pub(crate) fn number(&self, storage: &StorageName) -> Option<String> {
        Some(self.roots.get(storage)?.mark.as_ref()?.number.clone())
    }

    /// Whether the last check found the root that the storage had.
    pub(crate) fn is_in_service(&self, storage: &StorageName) -> bool {
        self.fault(storage).is_none()
    }

    /// Why the storage is out of service.
    pub(crate) fn fault(&self, storage: &StorageName) -> Option<Fault> {
        self.roots.get(storage).and_then(|root| root.fault.lock().clone())
    }

    /// Reads the mark again: fails while the root is not the one that the storage had.
    pub(crate) fn check_now(&self, storage: &StorageName) -> Result<(), Fault> {
        self.roots.get(storage).map_or(Ok(()), MarkedRoot::compare)
    }

    /// Checks all roots; true if one of them went out of service or came back.
    fn check_all(&self) -> bool {
        // Each is checked: no short cut.
        self.roots.values().filter(|root| root.check()).count() > 0
    }
}

impl MarkedRoot {
    /// Notes what the check comes to; true if that is a change.
    fn check(&self) -> bool {
        let fault = self.compare().err();
        let mut last = self.fault.lock();
        let changed = last.is_some() != fault.is_some();
        let storage = self.storage.name();
        match &fault {
            Some(fault) if changed => {
                tracing::error!(%storage, fault = %fault.chain(), "the storage is out of service")
            }
            None if changed => tracing::info!(%storage, "the storage's root is there again"),
            _ => {}
        }
        *last = fault;
        changed
    }

    fn compare(&self) -> Result<(), Fault> {
        let name = self.storage.name();
        let what = match self.storage.root_mark()? {
            None => "has no mark".to_owned(),
            Some(text) => match serde_json::from_str::<RootMark>(&text) {
                Ok(mark) if Some(&mark) == self.mark.as_ref() => return Ok(()),
                Ok(mark) => format!(
                    "has the mark of another root of {} in {}",
                    mark.storage,
                    printable_prefix(&mark.deployment, SHOWN_BYTES_MAX)
                ),
                Err(_) => {
                    let shown = printable_prefix(&text, SHOWN_BYTES_MAX);
                    format!("has a mark that cannot be read: {shown}")
                }
            },
        };
        let detail = format!(
            "the root of storage {name} {what}, so it is not the one that the storage had: mount the right \
             disk and restart the agent; or, if this root is meant, stop the agent and run: longhaul agent \
             accept-root {name}"
        );
        Err(Fault::new(FaultCode::Conflict, detail))
    }
}

/// Lets the next start take the root that it finds at the storage, whatever its mark. The agent must
/// not run. False if none was known.
pub fn accept_root(state_dir: &Path, storage: &StorageName) -> Result<bool, Fault> {
    let state = StateDir::open(state_dir)?;
    let mut known = state.known_marks()?;
    let before = known.insert(storage.clone(), None);
    state.save_known_marks(&known)?;
    Ok(before.is_some())
}

/// The mark that the root has from a former agent of this storage, or a new one. None if the root belongs to
/// another storage, unless an administrator accepts that.
fn first_mark(storage: &dyn Storage, deployment: &str, accepted: bool) -> Result<Option<RootMark>, Fault> {
    let name = storage.name();
    let own = |text: &str| {
        let mark = serde_json::from_str::<RootMark>(text).ok();
        mark.filter(|mark| mark.storage == *name && mark.deployment == deployment)
    };
    if let Some(text) = storage.root_mark()? {
        match own(&text) {
            Some(mark) => {
                // New disks of a storage of pools may have none.
                if accepted {
                    storage.put_root_mark(&text)?;
                }
                return Ok(Some(mark));
            }
            None if !accepted => return Ok(None),
            None => {}
        }
    }
    let number = random_u64().map_err(|error| {
        Fault::new(FaultCode::Internal, format!("/dev/urandom: {error}")).with_source(error)
    })?;
    let (storage_name, number) = (name.clone(), format!("{number:016x}"));
    let mark = RootMark { storage: storage_name, deployment: deployment.to_owned(), number };
    let text = serde_json::to_string(&mark)
        .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))?;
    if accepted {
        storage.put_root_mark(&text)?;
        return Ok(Some(mark));
    }
    // Another agent of a shared root may have been first.
    Ok(own(&storage.claim_root_mark(&text)?))
}

/// The root at which a task runs. What the task found is reported only while the root is the right one.
pub(crate) struct RootGuard<'a> {
    marks: &'a RootMarks,
    storage: &'a StorageName,
    broken: OnceLock<Fault>,
}

impl<'a> RootGuard<'a> {
    pub(crate) fn new(marks: &'a RootMarks, storage: &'a StorageName) -> RootGuard<'a> {
        RootGuard { marks, storage, broken: OnceLock::new() }
    }

    /// Once failed, it fails for ever: what was found between is worth nothing.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if let Err(fault) = self.marks.check_now(self.storage) {
            // The first one counts.
            let _ = self.broken.set(fault);
        }
        self.broken.get().cloned().map_or(Ok(()), Err)
    }
}

/// Checks all roots each minute, and says hello anew when that changes what is offered.
pub(crate) struct RootCheck {
    context: Arc<AgentContext>,
    ticker: Ticker,
}

impl RootCheck {
    pub(crate) fn new(context: Arc<AgentContext>) -> RootCheck {
        RootCheck { context, ticker: Ticker::new(CHECK_PERIOD) }
    }
}

impl PeriodicLoop for RootCheck {
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        if self.ticker.tick(now).is_some() && self.context.roots.check_all() {
            self.context.session.request_hello();
        }
        self.ticker.due()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use longhaul_model::NameRules;
    use longhaul_storage::Posix;

    use super::*;

    const MARK: &str = ".longhaul/root.json";

    /// The agent of `alpha` is started with this root.
    fn start(root: &Path, state: &Path) -> RootMarks {
        let config = StorageConfig::new("alpha".parse().unwrap(), root);
        let storage: Arc<dyn Storage> = Arc::new(Posix::open(config.posix()).unwrap());
        let exports = [Export { storage, rules: NameRules::default() }];
        RootMarks::open(&[config], &exports, "d", &StateDir::open(state).unwrap()).unwrap()
    }

    fn is_in_service(marks: &RootMarks) -> bool {
        marks.is_in_service(&"alpha".parse().unwrap())
    }

    #[test]
    fn a_storage_is_out_of_service_at_a_root_that_it_did_not_have() {
        let directory = tempfile::tempdir().unwrap();
        let (state, disk, other) =
            (directory.path().join("state"), directory.path().join("disk"), directory.path().join("other"));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&other).unwrap();
        let alpha = "alpha".parse().unwrap();
        let first = start(&disk, &state);
        assert!(is_in_service(&first), "the first start marks the root");
        assert!(is_in_service(&start(&disk, &state)));
        let unmounted = start(&other, &state);
        assert!(!is_in_service(&unmounted), "an empty directory");
        assert!(unmounted.check_now(&alpha).unwrap_err().detail.contains("accept-root alpha"));
        assert!(!other.join(MARK).exists(), "and it gets no mark");
        fs::copy(disk.join(MARK), other.join(MARK)).unwrap();
        assert!(unmounted.check_all() && is_in_service(&unmounted));
        fs::write(other.join(MARK), "{}").unwrap();
        assert!(unmounted.check_all() && !is_in_service(&unmounted), "no mark at all");
        assert!(accept_root(&state, &alpha).unwrap());
        let accepted = start(&other, &state);
        assert!(is_in_service(&accepted) && accepted.number(&alpha) != first.number(&alpha));
        assert!(!is_in_service(&start(&disk, &state)), "the former one is not the storage's any more");
    }

    #[test]
    fn an_agent_with_a_new_state_directory_takes_over_the_mark() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let former = start(&disk, &directory.path().join("former"));
        let next = start(&disk, &directory.path().join("next"));
        let alpha = "alpha".parse().unwrap();
        assert!(former.number(&alpha).is_some() && next.number(&alpha) == former.number(&alpha));
        assert!(former.check_now(&alpha).is_ok());
    }

    #[test]
    fn of_agents_that_find_a_new_root_at_one_time_the_first_marks_it() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let agents: Vec<_> = (0..8).map(|agent| directory.path().join(format!("state{agent}"))).collect();
        let alpha = "alpha".parse().unwrap();
        let numbers: Vec<Option<String>> = std::thread::scope(|scope| {
            let starting: Vec<_> = agents.iter().map(|state| scope.spawn(|| start(&disk, state))).collect();
            starting.into_iter().map(|agent| agent.join().unwrap().number(&alpha)).collect()
        });
        assert!(numbers[0].is_some() && numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
        assert!(agents.iter().all(|state| is_in_service(&start(&disk, state))));
        let left = fs::read_dir(disk.join(".longhaul")).unwrap();
        let marks =
            left.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("root"));
        assert_eq!(marks.count(), 1, "nothing else is left");
    }

    #[test]
    fn the_root_of_another_storage_is_taken_only_when_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let (state, disk) = (directory.path().join("state"), directory.path().join("disk"));
        fs::create_dir_all(disk.join(".longhaul")).unwrap();
        let other = r#"{"storage":"beta","deployment":"d","number":"1"}"#;
        fs::write(disk.join(MARK), other).unwrap();
        let alpha = "alpha".parse().unwrap();
        for _ in 0..2 {
            let marks = start(&disk, &state);
            assert!(!is_in_service(&marks) && marks.number(&alpha).is_none());
            assert!(marks.fault(&alpha).unwrap().detail.contains("another root of beta"));
            assert_eq!(fs::read_to_string(disk.join(MARK)).unwrap(), other, "beta goes on");
        }
        assert!(!accept_root(&state, &alpha).unwrap(), "none was known");
        assert!(is_in_service(&start(&disk, &state)) && is_in_service(&start(&disk, &state)));
    }

    /// The name says nothing: each deployment may have a storage alpha.
    #[test]
    fn the_root_of_another_deployment_is_taken_only_when_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let (state, disk) = (directory.path().join("state"), directory.path().join("disk"));
        fs::create_dir_all(disk.join(".longhaul")).unwrap();
        let theirs = r#"{"storage":"alpha","deployment":"omega","number":"1"}"#;
        fs::write(disk.join(MARK), theirs).unwrap();
        let alpha = "alpha".parse().unwrap();
        for _ in 0..2 {
            let marks = start(&disk, &state);
            assert!(!is_in_service(&marks) && marks.number(&alpha).is_none());
            assert!(marks.check_now(&alpha).is_err(), "no task concludes anything there");
            let detail = marks.fault(&alpha).unwrap().detail;
            assert!(detail.contains("another root of alpha in omega"), "{detail}");
            assert_eq!(fs::read_to_string(disk.join(MARK)).unwrap(), theirs, "omega goes on");
        }
        accept_root(&state, &alpha).unwrap();
        let accepted = start(&disk, &state);
        assert!(is_in_service(&accepted) && accepted.number(&alpha).is_some_and(|number| number != "1"));
        // As the file system of the first deployment's disk comes back under a running agent.
        fs::write(disk.join(MARK), theirs).unwrap();
        assert!(accepted.check_all() && !is_in_service(&accepted));
    }

    /// What the open root shows is gone for an hour and comes back, as that of a network file system: nothing
    /// is concluded meanwhile, nothing is marked anew, and no restart is needed.
    #[test]
    fn a_storage_whose_mark_is_gone_for_an_hour_is_back_without_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let marks = start(&disk, &directory.path().join("state"));
        let alpha: StorageName = "alpha".parse().unwrap();
        let (number, text) = (marks.number(&alpha), fs::read_to_string(disk.join(MARK)).unwrap());
        let guard = RootGuard::new(&marks, &alpha);
        assert!(guard.check().is_ok());
        fs::remove_dir_all(disk.join(".longhaul")).unwrap();
        let mut ticker = Ticker::new(CHECK_PERIOD);
        let mut changes = Vec::new();
        for second in 0..=3_700 {
            if second == 3_601 {
                fs::create_dir(disk.join(".longhaul")).unwrap();
                fs::write(disk.join(MARK), &text).unwrap();
            }
            if ticker.tick(Duration::from_secs(second)).is_some() && marks.check_all() {
                changes.push((second, is_in_service(&marks)));
            }
            let is_back = second > 3_600;
            assert_eq!(marks.check_now(&alpha).is_ok(), is_back, "second {second}");
            assert!(guard.check().is_err(), "what a task finds meanwhile, or found before, is worth nothing");
            assert_eq!(disk.join(MARK).exists(), is_back, "nothing heals it in secret");
        }
        assert_eq!(changes, [(60, false), (3_660, true)], "within a minute, either way");
        assert_eq!(marks.number(&alpha), number, "the same root");
        assert!(RootGuard::new(&marks, &alpha).check().is_ok());
    }

    #[test]
    fn a_mark_that_vanishes_is_noticed_at_the_next_check() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let marks = start(&disk, &directory.path().join("state"));
        assert!(!marks.check_all(), "nothing has changed");
        fs::remove_file(disk.join(MARK)).unwrap();
        assert!(marks.check_all() && !is_in_service(&marks));
        assert!(!marks.check_all() && !disk.join(MARK).exists(), "nothing heals it in secret");
    }
}
