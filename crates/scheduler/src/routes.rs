//! Multi-hop routes: shortest paths over relays (Dijkstra, from the target backwards). Where links are
//! limited to some pairs of storages, a file whose replicas have no link to its target goes over storages
//! that pass on others' files (relays): one hop at a time, each an ordinary transfer, so that it waits,
//! shares, fails and is explained like any other. A file that reached a relay is a replica there, and the
//! rest of the route is searched anew, so that changes meanwhile count.
//!
//! Where there is a link, but a slow one, `detours` looks for a faster route.
//!
//! The cost of a hop is a second plus a nominal file at the expected rate of the link. Distances to a target
//! are cached for [`ROUTE_TTL`], so that a burst of files costs one search.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use longhaul_model::{BlockId, StorageId, Timestamp, TransferId};
use longhaul_network::Link;

use crate::decision::Decision;
use crate::event::WantedFile;
use crate::scheduler::Scheduler;
use crate::state::{Phase, Want};

/// Distances to a target are cached for this long.
const ROUTE_TTL: Duration = Duration::from_secs(60);
/// Size of the nominal file in the cost of a hop.
const ROUTE_FILE_BYTES: f64 = 1e9;
/// Fixed cost of a hop in seconds.
const HOP_COST_S: f64 = 1.0;

/// Links, and cached routes over them.
#[derive(Default)]
pub(crate) struct Routes {
    /// None: from every storage to every other.
    links: Option<LinkGraph>,
    /// By target.
    next_hops: BTreeMap<u32, (Timestamp, NextHops)>,
    pub(crate) relays: BTreeSet<u32>,
    /// Whether the detour timer is armed, and the number of searches so far.
    pub(crate) detour_timer_set: bool,
    pub(crate) detour_rounds: usize,
}

#[derive(Default)]
struct LinkGraph {
    pairs: LinkMatrix,
    /// Sources with a link to it.
    into: BTreeMap<u32, Vec<u32>>,
}

/// Adjacency matrix: one bit per source for each target, as each decision reads several.
#[derive(Default)]
struct LinkMatrix(Vec<Vec<u64>>);

impl LinkMatrix {
    fn contains(&self, source: u32, target: u32) -> bool {
        let bits = self.0.get(target as usize).and_then(|row| row.get(source as usize / 64));
        bits.is_some_and(|bits| bits >> (source % 64) & 1 == 1)
    }

    /// True if it is new.
    fn insert(&mut self, source: u32, target: u32) -> bool {
        let (row, at) = (target as usize, source as usize / 64);
        self.0.resize_with(self.0.len().max(row + 1), Vec::new);
        let row = &mut self.0[row];
        row.resize(row.len().max(at + 1), 0);
        let bit = 1 << (source % 64);
        let new = row[at] & bit == 0;
        row[at] |= bit;
        new
    }
}

/// By storage that can reach a target: seconds, and the next storage on the route.
type NextHops = BTreeMap<u32, (f64, u32)>;

impl Scheduler {
    pub(crate) fn links_changed(&mut self, links: Option<Vec<(StorageId, StorageId)>>, now: Timestamp) {
        self.routes.next_hops.clear();
        self.routes.links = links.map(|pairs| {
            let mut links = LinkGraph::default();
            for (source, target) in pairs {
                let (source, target) = (self.storage_index(source), self.storage_index(target));
                if links.pairs.insert(source, target) {
                    links.into.entry(target).or_default().push(source);
                }
            }
            links
        });
        let waits = |transfer: &&u32| {
            matches!(self.transfers[**transfer].phase, Phase::Queued | Phase::Unlinked | Phase::InBackoff)
        };
        let waiting: Vec<u32> = self.by_id.values().filter(waits).copied().collect();
        self.requeue_all(waiting, now);
    }

    /// Whether files may go from one storage to the other at once.
    pub(crate) fn is_link(&self, source: u32, target: u32) -> bool {
        // End points of jobs are nobody's to link: who may use them is for their jobs to say.
        let of_jobs = || longhaul_model::job::of_jobs(self.storages[target].id.0);
        self.routes.links.as_ref().is_none_or(|links| links.pairs.contains(source, target) || of_jobs())
    }

    /// No replica of a transfer has a link to its target: brings one nearer, if there is a way.
    pub(crate) fn route_transfer(&mut self, index: u32, now: Timestamp) {
        let transfer = &self.transfers[index];
        if transfer.phase != Phase::Unlinked {
            return;
        }
        let target = transfer.target;
        let storages: Vec<u32> = transfer.sources.iter().map(|source| source.storage).collect();
        self.find_next_hops(target, now);
        let Some((_, ways)) = self.routes.next_hops.get(&target) else { return };
        let nearest = storages
            .iter()
            .filter_map(|source| ways.get(source))
            .min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let Some(&(_, relay)) = nearest else { return };
        if relay != target {
            self.add_hop(index, relay, &storages, now);
        }
    }

    /// A transfer of the same file to a relay, charged to the one that needs it.
    pub(crate) fn add_hop(&mut self, index: u32, relay: u32, sources: &[u32], now: Timestamp) {
        let transfer = &self.transfers[index];
        let (file, size, want) = (transfer.file, transfer.size, transfer.want);
        let relayed = self.relay_want(want, relay);
        let position = self.wants[relayed].positions;
        self.wants[relayed].positions += 1;
        let id = TransferId(self.next_id(now));
        let wanted = WantedFile { file, size, sources: Vec::new() };
        // None if the file is on its way there already.
        self.add_transfer(relayed, id, &wanted, sources, position, now);
    }

    /// What passes through `relay` of the block of `want`, in its place among others.
    fn relay_want(&mut self, want: u32, relay: u32) -> u32 {
        let (block, party, rank) = (self.wants[want].block, self.wants[want].party, self.wants[want].rank);
        if let Some(&known) = self.want_of.get(&(block, relay)) {
            self.add_onward_target(known, want);
            return known;
        }
        let level = self.storages[self.wants[want].target].target.lanes.level(self.wants[want].lane);
        let lane = self.storages[relay].target.lanes.lane(party, level, &self.parties);
        let strategy = self.wants[want].strategy;
        let new = self.wants.add(Want::relay(block, relay, lane, party, strategy, rank));
        self.want_of.insert((block, relay), new);
        let target = self.wants[want].target;
        self.wants[new].onward_targets.insert(target);
        new
    }

    /// What passes through a relay on the way to one target more is due sooner: the same bytes bring both
    /// nearer.
    fn add_onward_target(&mut self, relayed: u32, want: u32) {
        let target = self.wants[want].target;
        if self.wants[relayed].onward_targets.insert(target) {
            self.rerank(relayed, self.clock.now());
        }
    }

    /// Transfers that only brought a file nearer to one that is over: they are over too.
    pub(crate) fn end_idle_hops(&mut self, hops: Vec<u32>) {
        let now = self.clock.now();
        for hop in hops {
            let row = &self.transfers[hop];
            if row.lease().is_none() {
                self.out.push_back(Decision::Drop { transfer: row.id });
            }
            self.drop_transfer(hop, now);
        }
    }

    /// What of a block passes through a relay, for a transfer there that was live before a restart: taken up
    /// as long as somebody wants the block elsewhere.
    pub(crate) fn relay_want_for(&mut self, block: BlockId, relay: u32) -> Option<u32> {
        if !self.storages[relay].relay {
            return None;
        }
        let wants = self.want_of.range((block, 0)..=(block, u32::MAX)).map(|(_, &want)| want);
        let beyond =
            wants.filter(|&want| !self.wants[want].relay).min_by_key(|&want| self.wants[want].rank)?;
        Some(self.relay_want(beyond, relay))
    }

    /// The storages after `source` on the way to `target`, as it was found last; none if the way is direct or
    /// unknown.
    pub fn route(&self, source: StorageId, target: StorageId) -> Option<Vec<StorageId>> {
        let (from, to) = (*self.storage_of.get(&source)?, *self.storage_of.get(&target)?);
        let (_, ways) = self.routes.next_hops.get(&to)?;
        let (mut index, mut way) = (from, Vec::new());
        while index != to && way.len() <= ways.len() {
            index = ways.get(&index)?.1;
            way.push(self.storages[index].id);
        }
        Some(way)
    }

    /// The least time from everywhere to a target, backwards from it over relays.
    fn find_next_hops(&mut self, target: u32, now: Timestamp) {
        if self.routes.next_hops.get(&target).is_some_and(|(at, _)| now.since(*at) < ROUTE_TTL) {
            return;
        }
        if self.routes.links.is_none() && !self.limits.has_closed_links() {
            return;
        }
        let everywhere: Vec<u32> = match &self.routes.links {
            Some(_) => Vec::new(),
            None => self.storage_of.values().copied().collect(),
        };
        let mut ways = NextHops::new();
        let mut open = BinaryHeap::from([(Reverse(Seconds(0.0)), target, target)]);
        while let Some((Reverse(Seconds(far)), storage, next)) = open.pop() {
            if ways.contains_key(&storage) {
                continue;
            }
            ways.insert(storage, (far, next));
            if storage != target && !self.can_relay(storage) {
                continue;
            }
            let listed = self.routes.links.as_ref().map(|links| links.into.get(&storage));
            let into =
                listed.map_or(everywhere.as_slice(), |into| into.map(Vec::as_slice).unwrap_or_default());
            for &source in into {
                // What is only passed on is no test of a link.
                if source == storage || self.limits.is_closed(source, storage) {
                    continue;
                }
                let link = Link { source: self.storages[source].id, target: self.storages[storage].id };
                let rate = self.knowledge.rate(link, now).bytes_per_s.max(1.0);
                open.push((Reverse(Seconds(far + HOP_COST_S + ROUTE_FILE_BYTES / rate)), source, storage));
            }
        }
        self.routes.next_hops.insert(target, (now, ways));
    }

    /// Whether files of others may go over a storage now.
    pub(crate) fn can_relay(&self, storage: u32) -> bool {
        let row = &self.storages[storage];
        row.relay && row.writable && row.trouble.is_none() && self.may_serve(storage)
    }

    pub(crate) fn forget_routes(&mut self) {
        self.routes.next_hops.clear();
    }

    /// A relay's want that has nothing left and that nobody asked for.
    pub(crate) fn is_idle_relay(&self, want: u32) -> bool {
        let row = &self.wants[want];
        row.relay && row.transfers.is_empty()
    }

    /// A way may have opened.
    pub(crate) fn reroute(&mut self) {
        if self.routes.links.is_some() || self.limits.has_closed_links() {
            self.routes.next_hops.clear();
            self.unlinked.extend(self.unroutable.iter().map(|&index| self.transfers[index].id));
        }
    }
}

/// Finite seconds, which can be ordered.
#[derive(Clone, Copy, PartialEq)]
struct Seconds(f64);

impl Eq for Seconds {}

impl Ord for Seconds {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Seconds {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
