//! What waits and runs, as the scheduler is told of it: one demand per queue, with how much it lacks.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_catalog::{JobEndpointRow, JobFileTransition, JobQueueRow};
use longhaul_model::job::storage_element;
use longhaul_model::{JobFileState, SiteName, StorageId, Timestamp};
use longhaul_scheduler::{Demand, Event, SiteInfo, SiteLimits, SiteState, StorageInfo, Strategy};

use crate::config_store::Objects;
use crate::derived_limits::HostCopies;
use crate::ids;

/// What a file counts whose size nobody knows.
pub const SIZE_ASSUMED: u64 = 100_000_000;

struct Queue {
    row: JobQueueRow,
    /// Since something waits in it.
    since: Timestamp,
    /// The scheduler knows of it.
    told: bool,
}

pub struct Queues {
    queues: BTreeMap<u64, Queue>,
    changed: BTreeSet<u64>,
    hosts: BTreeMap<String, Host>,
    /// Files at once that usually may come to a host, and leave it.
    usual: u32,
}

/// One site of the scheduler.
struct Host {
    number: u64,
    name: SiteName,
    storages: Vec<String>,
    ends: Vec<u64>,
}

impl Queues {
    pub fn new(usual: u32) -> Queues {
        Queues { queues: BTreeMap::new(), changed: BTreeSet::new(), hosts: BTreeMap::new(), usual }
    }

    pub fn add(&mut self, rows: Vec<JobQueueRow>, now: Timestamp) {
        for row in rows {
            let id = row.id;
            self.queues.entry(id).or_insert(Queue { row, since: now, told: false });
            self.changed.insert(id);
        }
    }

    pub fn knows(&self, queue: u64) -> bool {
        self.queues.contains_key(&queue)
    }

    pub fn target(&self, queue: u64) -> Option<u64> {
        self.queues.get(&queue).map(|queue| queue.row.target)
    }

    /// A file came into its queue, or left it.
    pub fn count(&mut self, queue: u64, size: Option<u64>, more: bool, now: Timestamp) {
        let Some(queue_of) = self.queues.get_mut(&queue) else { return };
        let size = size.unwrap_or(SIZE_ASSUMED);
        let row = &mut queue_of.row;
        if more {
            if row.files == 0 {
                queue_of.since = now;
            }
            row.files += 1;
            row.bytes = row.bytes.saturating_add(size);
        } else {
            row.files = row.files.saturating_sub(1);
            row.bytes = row.bytes.saturating_sub(size);
        }
        self.changed.insert(queue);
    }

    /// Something in it may have its turn now.
    pub fn touch(&mut self, queue: u64) {
        self.changed.insert(queue);
    }

    /// What the scheduler has to hear.
    pub fn events(&mut self) -> Vec<Event> {
        let changed = std::mem::take(&mut self.changed);
        let mut events = Vec::with_capacity(changed.len());
        for id in changed {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            if queue.row.files > 0 {
                queue.told = true;
                events.push(Event::Demand(demand(&queue.row, queue.since)));
            } else {
                if queue.told {
                    events.push(Event::DemandGone { id: ids::demand(id) });
                }
                // It is read again when something comes into it.
                self.queues.remove(&id);
            }
        }
        events
    }

    /// The hosts again, since what was configured of their storages has changed.
    pub fn hosts(&self, configured: &Objects) -> Vec<Event> {
        self.hosts.values().map(|host| host.event(configured, self.usual)).collect()
    }

    /// Whether copies may begin now, at all end points.
    pub fn movers(&self, can_move: bool) -> Vec<Event> {
        let ends = self.hosts.values().flat_map(|host| &host.ends);
        ends.flat_map(|&end| [ids::source(end), ids::target(end)]).map(|id| movers(id, can_move)).collect()
    }

    /// What the scheduler has to know of end points before anything goes there.
    pub fn ends(&mut self, ends: &[JobEndpointRow], configured: &Objects, can_move: bool) -> Vec<Event> {
        let mut events = Vec::new();
        for end in ends {
            let (Some(storage), Some(name)) = (storage_element(&end.url), ids::storage_name(&end.url)) else {
                continue;
            };
            let host = host(&end.url);
            let Some(site_name) = ids::site_name(host) else { continue };
            let new = || Host { number: end.id, name: site_name, storages: Vec::new(), ends: Vec::new() };
            let host = self.hosts.entry(host.to_owned()).or_insert_with(new);
            let before = host.copies(configured);
            let is_new = host.storages.is_empty();
            if !host.storages.contains(&storage) {
                host.storages.push(storage);
            }
            if is_new || host.copies(configured) != before {
                events.push(host.event(configured, self.usual));
            }
            host.ends.push(end.id);
            let site = host.number;
            for (id, writable) in [(ids::source(end.id), false), (ids::target(end.id), true)] {
                events.push(Event::Storage(StorageInfo {
                    id,
                    name: name.clone(),
                    site: ids::site(site),
                    writable,
                    relay: false,
                    trouble: None,
                }));
                events.push(movers(id, can_move));
            }
        }
        events
    }
}

fn movers(storage: StorageId, can_move: bool) -> Event {
    Event::Agent { storage, agent: Some(ids::MOVERS), connected: can_move }
}

impl Host {
    fn copies(&self, configured: &Objects) -> HostCopies {
        configured.host_copies(&self.storages)
    }

    fn event(&self, configured: &Objects, usual: u32) -> Event {
        let copies = self.copies(configured);
        let limits = SiteLimits {
            active_in: Some(copies.inbound.unwrap_or(0).max(usual)),
            active_out: Some(copies.outbound.unwrap_or(0).max(usual)),
            ..SiteLimits::default()
        };
        let (id, name) = (ids::site(self.number), self.name.clone());
        Event::Site(SiteInfo { id, name, state: SiteState::Open, reason: None, limits })
    }
}

/// Whether the scheduler has a file in such a state.
pub fn counts(state: JobFileState) -> bool {
    state.is_queued() || state.is_running()
}

/// Whether this is news of a file that waited and waits no more, without having begun.
pub fn withdrawn(news: &JobFileTransition) -> bool {
    news.from.is_queued() && (!counts(news.to) || news.queue != news.queue_before)
}

fn demand(row: &JobQueueRow, since: Timestamp) -> Demand {
    Demand {
        id: ids::demand(row.id),
        target: ids::target(row.target),
        priority: ids::priority(row.priority),
        party: ids::party(row),
        created: since,
        deadline: None,
        // Checked when it was submitted; what nobody knows is chosen as is best.
        strategy: Some(row.strategy.parse().unwrap_or(Strategy::Best)),
        files_left: row.files,
        bytes_left: row.bytes,
    }
}

fn host(url: &str) -> &str {
    let place = url.split_once("://").map_or(url, |(_, rest)| rest);
    let bracket = place.rfind(']').map_or(0, |at| at + 1);
    place[bracket..].find(':').map_or(place, |at| &place[..bracket + at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_told_while_something_is_in_them() {
        let mut queues = Queues::new(60);
        let row = JobQueueRow {
            id: 3,
            target: 2,
            vo: "higgs".into(),
            activity: "default".into(),
            priority: 3,
            strategy: "auto".into(),
            files: 0,
            bytes: 0,
        };
        queues.add(vec![row.clone()], Timestamp(1));
        assert!(queues.events().is_empty() && !queues.knows(3));
        queues.add(vec![row], Timestamp(1));
        queues.count(3, Some(5), true, Timestamp(2));
        queues.count(3, None, true, Timestamp(3));
        let events = queues.events();
        let [Event::Demand(demand)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((demand.files_left, demand.bytes_left), (2, 5 + SIZE_ASSUMED));
        assert_eq!((demand.created, demand.strategy), (Timestamp(2), Some(Strategy::Queue)));
        assert!(queues.events().is_empty());
        queues.count(3, Some(5), false, Timestamp(4));
        queues.count(3, None, false, Timestamp(4));
        assert!(matches!(queues.events().as_slice(), [Event::DemandGone { .. }]));
    }

    #[test]
    fn a_host_is_one_site_whatever_its_ports() {
        for (url, name) in
            [("https://a:1", "a"), ("https://a", "a"), ("http://[::1]:9", "[::1]"), ("http://[::1]", "[::1]")]
        {
            assert_eq!(host(url), name);
        }
        let ends = [(1, "https://a:1"), (2, "davs://a:2"), (3, "https://b")];
        let ends = ends.map(|(id, url)| JobEndpointRow { id, url: url.into() });
        let events = Queues::new(60).ends(&ends, &Objects::default(), true);
        let sites = events.iter().filter(|event| matches!(event, Event::Site(_))).count();
        assert_eq!((sites, events.len()), (2, 2 + 3 * 4));
    }
}
