//! The input of the plan: a snapshot of the catalog, the scheduler, the sites' uplinks and the agents' links.
//! Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_api::circuits::{CircuitLink, CircuitOffer, CircuitState};
use longhaul_catalog::{CatalogError, DemandRow};
use longhaul_circuits::plan::{ForeignCircuit, PendingWork, PlanView, Port, Provider, SitePair};
use longhaul_control::Directory;
use longhaul_model::{BlockId, CircuitUse, CommunityName, SiteId, StorageId, Timestamp};
use longhaul_network::Link;
use longhaul_scheduler::Scheduler;

use super::CircuitsConfig;
use crate::NetOps;
use crate::circuits::{LinkKey, ReportedLink};
use crate::measured::probe_state::uplink_of;

/// A port of which nobody knows what it carries bounds nothing: bytes a second beyond every network.
const UNKNOWN_PORT: f64 = 1e15;
/// What the plain way gives to work that may not take it: bytes a second.
const NO_ROUTED_RATE: f64 = 1.0;
/// Circuits of one provider by which its set-up time is judged.
const SETUPS_MAX: usize = 100;

/// A link that may have a circuit, as its agent told it.
#[derive(Clone, Debug)]
pub(super) struct CandidateLink {
    pub key: LinkKey,
    pub provider: String,
    pub pending: u64,
    pub connected: bool,
}

pub(super) struct PlanInput {
    pub view: PlanView,
    /// Links by the pair that they are of.
    pub ways: BTreeMap<SitePair, Vec<CandidateLink>>,
    pub taken: Timestamp,
}

impl PlanInput {
    /// What waits from each source of a pair, whoever else has it too.
    pub fn waits(&self) -> BTreeMap<SitePair, u64> {
        let mut sums: BTreeMap<SitePair, u64> = BTreeMap::new();
        for row in &self.view.pending {
            for &source in row.sources.iter().filter(|source| **source != row.target) {
                let sum = sums.entry(SitePair { source, target: row.target }).or_default();
                *sum = sum.saturating_add(row.bytes);
            }
        }
        sums
    }
}

/// `own`: links whose circuit the plan asked for. `gone`: sites that do not answer.
pub(super) fn plan_input(
    netops: &NetOps,
    config: &CircuitsConfig,
    own: &BTreeSet<LinkKey>,
    gone: BTreeSet<SiteId>,
) -> Result<PlanInput, CatalogError> {
    let now = netops.kernel.now();
    let directory = netops.kernel.directory();
    let mut input = PlanInput {
        view: PlanView { unreachable_sites: gone, ..PlanView::default() },
        ways: BTreeMap::new(),
        taken: now,
    };
    let (links, only) = waiting(netops, &directory, &mut input.view)?;
    rates(netops, &directory, links, &mut input.view, now);
    for row in netops.backlog.by_pair()? {
        at_least(&mut input.view.best_effort, row.pair, row.bytes_per_s);
        input.view.pending.extend(row.pending);
    }
    let mut all = Links { netops, own, input, providers: BTreeMap::new() };
    for (key, known) in netops.circuits.links() {
        if let Some(pair) = pair_of(netops, &directory, &key) {
            all.take(pair, key, &known);
        }
    }
    let Links { mut input, providers, .. } = all;
    for pair in only {
        // Nothing of it comes the plain way, whatever that gives to others.
        input.view.best_effort.insert(pair, NO_ROUTED_RATE);
        input.view.observed.remove(&pair);
    }
    input.view.providers =
        providers.into_iter().map(|(name, offered)| offered.provider(name, config)).collect();
    Ok(input)
}

/// Keeps the highest of several rates of one path: that is what it carries.
fn at_least(rates: &mut BTreeMap<SitePair, f64>, pair: SitePair, rate: f64) {
    let known = rates.entry(pair).or_insert(0.0);
    *known = known.max(rate);
}

/// From the source's site to the agent's.
pub fn pair_of(netops: &NetOps, directory: &Directory, (agent, source): &LinkKey) -> Option<SitePair> {
    let storage = directory.storage(source.as_str())?;
    let target = netops.control.agents.agent(*agent)?.site;
    (storage.site != target).then_some(SitePair { source: storage.site, target })
}

/// Target, sources, priority and community of work that waits.
type Alike = (SiteId, Vec<SiteId>, u8, CommunityName);

/// Links on which something may come, and the pairs on which some of it waits for a circuit.
type MayCome = (BTreeSet<(StorageId, StorageId)>, BTreeSet<SitePair>);

/// All that is lacking somewhere and may go by circuits, alike together.
fn waiting(netops: &NetOps, directory: &Directory, view: &mut PlanView) -> Result<MayCome, CatalogError> {
    let demands = netops.kernel.catalog.demands()?;
    let mut sources: BTreeMap<BlockId, Vec<StorageId>> = BTreeMap::new();
    if !demands.is_empty() {
        for (block, storage) in netops.kernel.catalog.sources_of_demands()? {
            sources.entry(block).or_default().push(storage);
        }
    }
    // A block that several subscriptions want at one place comes there once, for the most urgent of them.
    let mut wanted: BTreeMap<(BlockId, StorageId), DemandRow> = BTreeMap::new();
    for row in demands {
        let known = wanted.get(&(row.block, row.target));
        if known.is_none_or(|known| known.priority < row.priority) {
            wanted.insert((row.block, row.target), row);
        }
    }
    let site = |storage: &StorageId| directory.storages.get(storage).map(|row| row.site);
    let (mut links, mut only) = (BTreeSet::new(), BTreeSet::new());
    let mut alike: BTreeMap<Alike, (u64, Timestamp)> = BTreeMap::new();
    for ((block, target), row) in wanted {
        let (Some(at), Some(holders)) = (site(&target), sources.get(&block)) else { continue };
        let others = holders.iter().filter(|storage| **storage != target);
        links.extend(others.clone().map(|&storage| (storage, target)));
        let places: BTreeSet<SiteId> = others.filter_map(site).collect();
        let community = row.terms.community.unwrap_or(row.community);
        match netops.control.marks.treatment(&community, row.terms.activity.as_ref()).circuits {
            CircuitUse::Never => continue,
            CircuitUse::Prefer => {}
            CircuitUse::Only => {
                only.extend(places.iter().map(|&source| SitePair { source, target: at }));
            }
        }
        let sum = alike
            .entry((at, places.into_iter().collect(), row.priority, community))
            .or_insert((0, row.created));
        *sum = (sum.0.saturating_add(row.bytes_missing), sum.1.min(row.created));
    }
    let rows = alike.into_iter().map(|((target, sources, priority, community), (bytes, since))| {
        PendingWork { target, sources, bytes, priority, community, since }
    });
    view.pending = rows.collect();
    Ok((links, only))
}

/// What links are expected to carry, and what ports carry of ours and of others.
fn rates(
    netops: &NetOps,
    directory: &Directory,
    links: BTreeSet<(StorageId, StorageId)>,
    view: &mut PlanView,
    now: Timestamp,
) {
    let asked = netops.kernel.scheduler.query(move |scheduler: &Scheduler, now: Timestamp| {
        let expected = |(source, target)| {
            scheduler.knowledge().best_effort_rate(Link { source, target }, now).bytes_per_s
        };
        let rates: Vec<_> = links.into_iter().map(|link| (link, expected(link))).collect();
        let moving: Vec<_> = scheduler
            .links(now)
            .into_iter()
            .map(|link| ((link.source, link.target), link.rate_now))
            .collect();
        (rates, moving)
    });
    // Without an answer nothing is known of any link, and nothing is asked for.
    let Some((expected, moving)) = asked else { return };
    let sites = |(source, target): (StorageId, StorageId)| {
        let site = |storage: StorageId| directory.storages.get(&storage).map(|row| row.site);
        Some(SitePair { source: site(source)?, target: site(target)? })
    };
    for (link, rate) in expected {
        // Storages of a site share the way.
        if let Some(pair) = sites(link) {
            at_least(&mut view.best_effort, pair, rate);
        }
    }
    let mut ours: BTreeMap<(SiteId, bool), f64> = BTreeMap::new();
    for (link, rate) in moving {
        for (site, inward) in
            sites(link).into_iter().flat_map(|pair| [(pair.source, false), (pair.target, true)])
        {
            *ours.entry((site, inward)).or_default() += rate;
        }
    }
    for (&site, row) in &directory.sites {
        let uplink = uplink_of(netops, site, now);
        let capacity = uplink.and_then(|uplink| uplink.capacity_bytes_per_s).unwrap_or(UNKNOWN_PORT);
        let limited = |limit: Option<u64>| limit.map_or(capacity, |limit| capacity.min(limit as f64));
        let port =
            Port { outward: limited(row.limits.out_bytes_per_s), inward: limited(row.limits.in_bytes_per_s) };
        view.ports.insert(site, port);
        if let Some(uplink) = uplink {
            for (inward, all) in [(false, uplink.out_bytes_per_s), (true, uplink.into_bytes_per_s)] {
                let own = ours.get(&(site, inward)).copied().unwrap_or(0.0);
                view.foreign_traffic.insert((site, inward), (all - own).max(0.0));
            }
        }
    }
}

/// What agents told of one provider.
#[derive(Default)]
struct Offered {
    pairs: BTreeMap<SitePair, Vec<u64>>,
    lifetime: Option<Duration>,
    own_line: bool,
    /// One of its agents makes another only after the one that there is was given back.
    one_a_pair: bool,
    setups: Vec<Duration>,
}

impl Offered {
    fn take(&mut self, pair: SitePair, offer: &CircuitOffer, known: &ReportedLink) {
        self.own_line |= offer.own_line;
        self.one_a_pair |= !offer.replaces;
        let rates = self.pairs.entry(pair).or_default();
        rates.extend(&offer.mbit);
        rates.sort_unstable();
        rates.dedup();
        let lifetime = offer.lifetime_s.map(Duration::from_secs);
        self.lifetime = [self.lifetime, lifetime].into_iter().flatten().min();
        let used = known.circuits().filter_map(|circuit| Some(circuit.used?.since(circuit.asked)));
        self.setups.extend(used.take(SETUPS_MAX.saturating_sub(self.setups.len())));
    }

    fn provider(self, name: String, config: &CircuitsConfig) -> Provider {
        let known = config.provider(&name);
        let lifetime = Duration::from_secs(known.lifetime_s.into());
        let mut setups = self.setups;
        setups.sort();
        Provider {
            name,
            sites: None,
            mbit: Vec::new(),
            // One for each, and one that follows it.
            circuits_max: known.at_once.unwrap_or(u32::try_from(self.pairs.len() * 2).unwrap_or(u32::MAX)),
            pairs: Some(self.pairs),
            bypasses_ports: self.own_line,
            one_circuit_per_pair: self.one_a_pair,
            setup: setups.get(setups.len() / 2).copied().unwrap_or(Duration::from_secs(known.setup_s.into())),
            mbit_total_max: known.mbit_all,
            port_share: f64::from(known.port_percent) / 100.0,
            lifetime: self.lifetime.map_or(lifetime, |offered| offered.min(lifetime)),
            requests_per_hour: known.requests_per_hour,
        }
    }
}

/// The agents' links, one after the other.
struct Links<'a> {
    netops: &'a NetOps,
    own: &'a BTreeSet<LinkKey>,
    input: PlanInput,
    providers: BTreeMap<String, Offered>,
}

impl Links<'_> {
    fn take(&mut self, pair: SitePair, key: LinkKey, known: &ReportedLink) {
        let (link, view) = (&known.link, &mut self.input.view);
        let offer = link.offer.clone().unwrap_or_else(|| offer_of_old(link));
        self.providers.entry(offer.name.clone()).or_default().take(pair, &offer, known);
        let is_used = matches!(link.state, CircuitState::Established | CircuitState::Draining);
        if let Some(seen) = link.look.bytes_per_s.filter(|_| !is_used) {
            at_least(&mut view.observed, pair, seen);
        }
        let asked = is_used || link.state == CircuitState::Requested;
        if !self.own.contains(&key) && (asked || self.netops.circuits.is_requested(&key)) {
            let mbit = link.circuit.as_ref().map_or(0, |one| one.booked_mbit.unwrap_or(one.asked_mbit));
            view.foreign_circuits.insert(pair, ForeignCircuit { provider: offer.name.clone(), mbit });
        }
        let connected = self.netops.control.agents.is_connected(key.0, self.input.taken);
        let way = CandidateLink { key, provider: offer.name, pending: link.look.pending_bytes, connected };
        self.input.ways.entry(pair).or_default().push(way);
    }
}

/// Agents of before did not tell what can be asked for.
fn offer_of_old(link: &CircuitLink) -> CircuitOffer {
    CircuitOffer {
        name: link.provider.clone(),
        mbit: vec![link.look.mbit.max(1)],
        lifetime_s: None,
        own_line: link.provider == "static",
        replaces: false,
    }
}

/// Sites that have agents, none of which is in contact.
pub(super) fn out_of_contact(netops: &NetOps) -> BTreeSet<SiteId> {
    let now = netops.kernel.now();
    let silent = |site: &SiteId| {
        let agents = netops.control.agents.of_site(*site);
        !agents.is_empty() && !agents.into_iter().any(|agent| netops.control.agents.is_connected(agent, now))
    };
    netops.kernel.directory().sites.keys().copied().filter(silent).collect()
}
