//! The kernel: what every subsystem of the control plane needs, and nothing that only one of them needs.
//!
//! Time, ids, the catalog, names of storages and sites, metrics, change notifications, and handles to the two
//! threads that others give work: the scheduler loop and the commit loop.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use longhaul_api::native::ChangeKind;
use longhaul_catalog::{Catalog, CatalogError, DemandRow, NameOwners, SiteRow, StorageRow};
use longhaul_identity::{Clock, Clocks};
use longhaul_model::{Fault, FaultCode, IdMaker, SiteId, StorageId, StorageName, Timestamp};
use longhaul_network::exchange::Imported;
use longhaul_network::{Observation, ObservationError, RegionId};
use longhaul_scheduler::{Event, ImportedKnowledge, Scheduler, SiteInfo, SiteLimits, SiteState, StorageInfo};
use longhaul_security::Vault;
use parking_lot::{Mutex, RwLock};

use crate::brain::Input;
use crate::changes::Changes;
use crate::commit_loop::CommitWork;
use crate::metrics::Metrics;
use crate::recorded::Recorded;
use crate::turns::LoopTurns;

/// The scheduler loop answers within milliseconds; longer means that it is stopping.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

pub struct Kernel {
    /// Never steps.
    pub clock: Clock,
    wall: Clock,
    ids: Mutex<IdMaker>,
    pub catalog: Catalog,
    /// Seals and unseals secrets that the catalog stores.
    pub vault: Arc<Vault>,
    directory: RwLock<Arc<Directory>>,
    /// Held from reading the directory until it is in use: an earlier reading never replaces a later one.
    directory_refresh: Mutex<()>,
    pub metrics: Arc<Metrics>,
    pub changes: Changes,
    /// When each loop made its last turn.
    pub turns: LoopTurns,
    /// Why the catalog cannot be written now, if so.
    trouble: Mutex<Option<Fault>>,
    pub scheduler: SchedulerHandle,
    pub writer: WriterHandle,
}

/// Sends events and questions to the scheduler loop.
#[derive(Clone)]
pub struct SchedulerHandle {
    inputs: SyncSender<Input>,
    /// Steps the loop, where it has no thread: whoever waits for an answer lets it work.
    step_inline: Arc<OnceLock<InlineStep>>,
}

/// Handles the queued inputs of a loop without a thread.
type InlineStep = Box<dyn Fn() + Send + Sync>;

/// Sends work to the commit loop.
#[derive(Clone)]
pub struct WriterHandle(Sender<CommitWork>);

/// Names of storages and sites by their ids, and whose a storage name is; read often, changed seldom.
#[derive(Default)]
pub struct Directory {
    pub storages: BTreeMap<StorageId, StorageRow>,
    pub sites: BTreeMap<SiteId, SiteRow>,
    pub name_owners: NameOwners,
}

impl Directory {
    /// The storage of that name.
    pub fn storage(&self, name: &str) -> Option<&StorageRow> {
        self.storages.values().find(|row| row.name.as_str() == name)
    }

    pub fn name(&self, id: StorageId) -> Option<StorageName> {
        self.storages.get(&id).map(|row| row.name.clone())
    }
}

impl Kernel {
    pub fn new(
        clocks: Clocks,
        ids: IdMaker,
        catalog: Catalog,
        vault: Arc<Vault>,
        metrics: Arc<Metrics>,
        scheduler: SchedulerHandle,
        writer: WriterHandle,
    ) -> Kernel {
        Kernel {
            clock: clocks.steady,
            wall: clocks.wall,
            ids: Mutex::new(ids),
            catalog,
            vault,
            directory: RwLock::default(),
            directory_refresh: Mutex::default(),
            metrics,
            changes: Changes::default(),
            turns: LoopTurns::default(),
            trouble: Mutex::new(None),
            scheduler,
            writer,
        }
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The host's time: for certificates, which others judge by their own clocks.
    pub fn wall_time(&self) -> Timestamp {
        (self.wall)()
    }

    pub fn wall_clock(&self) -> Clock {
        self.wall.clone()
    }

    pub fn new_id<T: From<u64>>(&self) -> T {
        self.ids.lock().next(self.now())
    }

    pub fn directory(&self) -> Arc<Directory> {
        self.directory.read().clone()
    }

    /// Reads sites and storages again and sends all of them to the scheduler; repeated events do no harm.
    pub fn refresh_directory(&self) -> Result<(), CatalogError> {
        let _refresh = self.directory_refresh.lock();
        let storages = self.catalog.storages()?.into_iter().map(|row| (row.id, row)).collect();
        let sites = self.catalog.sites()?.into_iter().map(|row| (row.id, row)).collect();
        let name_owners = self.catalog.name_owners()?;
        let directory = Arc::new(Directory { storages, sites, name_owners });
        *self.directory.write() = directory.clone();
        let mut events: Vec<Event> = directory.sites.values().flat_map(site_events).collect();
        events.extend(directory.storages.values().map(storage_event));
        self.notify_scheduler(Input::Events(events));
        Ok(())
    }

    /// Sends an input to the scheduler loop; waits for room in its queue.
    pub fn notify_scheduler(&self, input: Input) {
        self.scheduler.notify(input);
    }

    pub fn trouble(&self) -> Option<Fault> {
        self.trouble.lock().clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<Fault>) {
        *self.trouble.lock() = trouble;
    }

    /// Notifies listeners of subscriptions that want more or less than before.
    pub fn announce_demands(&self, demands: &[DemandRow]) {
        let now = self.now();
        let mut subscriptions: Vec<_> = demands.iter().map(|row| row.subscription).collect();
        subscriptions.dedup();
        for subscription in subscriptions {
            self.changes.touch(ChangeKind::Subscription, subscription, now);
        }
    }
}

impl SchedulerHandle {
    pub fn new(inputs: SyncSender<Input>) -> SchedulerHandle {
        SchedulerHandle { inputs, step_inline: Arc::default() }
    }

    /// For a loop without a thread: `step` handles its queued inputs. To be called once.
    pub fn set_inline(&self, step: impl Fn() + Send + Sync + 'static) {
        let _ = self.step_inline.set(Box::new(step));
    }

    /// Waits for room among the inputs. The loop is gone only when the service stops.
    pub fn notify(&self, input: Input) {
        let _ = self.inputs.send(input);
    }

    /// As [`SchedulerHandle::notify`]; false if the loop has ended.
    pub fn send(&self, input: Input) -> bool {
        self.inputs.send(input).is_ok()
    }

    /// As [`SchedulerHandle::notify`], but drops the input where there is no room.
    pub fn try_notify(&self, input: Input) {
        let _ = self.inputs.try_send(input);
    }

    /// Asks the scheduler and waits for the answer; none if it does not come in time.
    pub fn query<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Scheduler, Timestamp) -> T + Send + 'static,
    ) -> Option<T> {
        self.with_scheduler(move |scheduler, now| question(scheduler, now))
    }

    /// Imports what others know of the network, and waits for the result.
    pub fn learn(&self, lesson: ImportedKnowledge) -> Option<Result<Imported, Fault>> {
        self.with_scheduler(move |scheduler, now| scheduler.learn(lesson, now))
    }

    /// Passes on observations, and waits for the verdict on each; none if it does not come in time.
    pub fn observe(&self, observations: Vec<Observation>) -> Option<Vec<Result<(), ObservationError>>> {
        self.with_scheduler(move |scheduler, now| {
            observations.into_iter().map(|seen| scheduler.observe(seen, now)).collect()
        })
    }

    fn with_scheduler<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Recorded, Timestamp) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, wait) = sync_channel(1);
        let question = move |scheduler: &mut Recorded, now: Timestamp| {
            // The asker may have given up.
            let _ = answer.send(question(scheduler, now));
        };
        self.inputs.try_send(Input::Ask(Box::new(question))).ok()?;
        if let Some(step) = self.step_inline.get() {
            step();
        }
        wait.recv_timeout(ANSWER_WAIT).ok()
    }
}

impl WriterHandle {
    pub fn new(work: Sender<CommitWork>) -> WriterHandle {
        WriterHandle(work)
    }

    /// An error means that the service stops.
    pub fn send(&self, work: CommitWork) -> Result<(), Fault> {
        self.0.send(work).map_err(|_| Fault::new(FaultCode::Busy, "the service stops"))
    }
}

/// The fault of a thread that could not be started.
pub fn thread_fault(name: &str, error: std::io::Error) -> Fault {
    Fault::new(FaultCode::Busy, format!("no thread for the {name}: {error}")).with_source(error)
}

fn site_events(row: &SiteRow) -> [Event; 2] {
    let region = row.region.as_ref().map(|name| RegionId::from_name(name.as_str()));
    let info = SiteInfo {
        id: row.id,
        name: row.name.clone(),
        state: match row.state {
            longhaul_catalog::SiteState::Open => SiteState::Open,
            longhaul_catalog::SiteState::Draining => SiteState::Draining,
            longhaul_catalog::SiteState::Paused => SiteState::Paused,
        },
        reason: row.reason.clone(),
        limits: SiteLimits {
            active_in: row.limits.active_in,
            active_out: row.limits.active_out,
            in_bytes_per_s: row.limits.in_bytes_per_s,
            out_bytes_per_s: row.limits.out_bytes_per_s,
        },
    };
    [Event::Site(info), Event::Region { site: row.id, region }]
}

fn storage_event(row: &StorageRow) -> Event {
    Event::Storage(StorageInfo {
        id: row.id,
        name: row.name.clone(),
        site: row.site,
        writable: row.writable,
        relay: row.relay,
        trouble: row.trouble.clone(),
    })
}
