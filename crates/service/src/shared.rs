//! What the threads and the requests of one service share.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use longhaul_catalog::{Catalog, CatalogError, SiteRow, StorageRow};
use longhaul_identity::{Counters, Identity};
use longhaul_model::mark::MarkTable;
use longhaul_model::{Fault, IdMaker, SiteId, StorageId, StorageName, Timestamp};
use longhaul_network::RegionId;
use longhaul_scheduler::{Event, SiteInfo, SiteLimits, SiteState, StorageInfo};
use longhaul_security::{Authority, Vault};
use longhaul_storage_remote::Remote;

use crate::agents::Agents;
use crate::brain::Input;
use crate::changes::Changes;
use crate::circuits::Circuits;
use crate::deadlines::Deadlines;
use crate::jobs::{Jobs, QueuedFiles, Tokens};
use crate::live::Live;
use crate::measured::Measured;
use crate::messages::Messages;
use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::recorded::Recording;
use crate::scribe::Job;
use crate::{Clock, Config};

pub struct Shared {
    pub config: Config,
    pub clock: Clock,
    pub started: Timestamp,
    /// How agents reach this service, as join tokens say.
    pub public_url: String,
    pub catalog: Catalog,
    pub authority: Authority,
    pub vault: Arc<Vault>,
    pub identity: Arc<Identity>,
    pub agents: Agents,
    pub live: Live,
    pub deadlines: Deadlines,
    pub measured: Measured,
    pub circuits: Circuits,
    pub plan: Plan,
    pub marks: MarkTable,
    pub metrics: Arc<Metrics>,
    pub changes: Changes,
    pub recording: Arc<Recording>,
    pub fts: Arc<crate::fts::ConfigStore>,
    pub tokens: Tokens,
    pub queued: QueuedFiles,
    /// By which storages are asked; none if there is nothing that could.
    pub remote: Option<Arc<Remote>>,
    pub brain: SyncSender<Input>,
    pub scribe: Sender<Job>,
    pub jobs: Jobs,
    pub messages: Messages,
    pub directory: RwLock<Arc<Directory>>,
    pub ids: Mutex<IdMaker>,
    /// Why the catalog cannot be written now, if so.
    pub trouble: Mutex<Option<Fault>>,
    /// The state directory is ours as long as this lives.
    pub _lock: std::fs::File,
}

impl Counters for Metrics {
    fn count(&self, name: &'static str, help: &'static str, labels: Vec<(&'static str, String)>, by: u64) {
        Metrics::count(self, name, help, labels, by);
    }
}

/// Names of storages and sites by their ids; read often, changed seldom.
#[derive(Default)]
pub struct Directory {
    pub storages: BTreeMap<StorageId, StorageRow>,
    pub sites: BTreeMap<SiteId, SiteRow>,
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

impl Shared {
    /// What this service is called by those who come from elsewhere.
    pub fn own_host(&self) -> String {
        let url: Option<http::Uri> = self.public_url.parse().ok();
        url.and_then(|url| url.host().map(str::to_owned)).unwrap_or_default()
    }

    /// Whether an administrator lets no copy of a job begin.
    pub fn drains(&self) -> bool {
        self.fts.get().is_ok_and(|configured| configured.draining.contains(&self.own_host()))
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub fn new_id<T: From<u64>>(&self) -> T {
        guard(&self.ids).next(self.now())
    }

    pub fn directory(&self) -> Arc<Directory> {
        self.directory.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads sites and storages again and tells the scheduler of all of them: saying it twice does no harm.
    pub fn refresh_directory(&self) -> Result<(), CatalogError> {
        let storages = self.catalog.storages()?.into_iter().map(|row| (row.id, row)).collect();
        let sites = self.catalog.sites()?.into_iter().map(|row| (row.id, row)).collect();
        let directory = Arc::new(Directory { storages, sites });
        *self.directory.write().unwrap_or_else(PoisonError::into_inner) = directory.clone();
        let mut events: Vec<Event> = directory.sites.values().flat_map(site_events).collect();
        events.extend(directory.storages.values().map(storage_event));
        self.tell(Input::Events(events));
        Ok(())
    }

    /// Tells the brain; it is gone only when the service stops.
    pub fn tell(&self, input: Input) {
        let _ = self.brain.send(input);
    }

    pub fn trouble(&self) -> Option<Fault> {
        guard(&self.trouble).clone()
    }
}

/// A lock whose holder panicked is used as it is: everything under it is counters and caches.
pub fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Subscriptions that want more or less than before.
pub fn announce_demands(shared: &Shared, demands: &[longhaul_catalog::DemandRow]) {
    let now = shared.now();
    let mut subscriptions: Vec<_> = demands.iter().map(|row| row.subscription).collect();
    subscriptions.dedup();
    for subscription in subscriptions {
        shared.changes.touch(longhaul_api::native::ChangeKind::Subscription, subscription, now);
    }
}
