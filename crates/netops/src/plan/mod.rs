//! The plan of circuits in the service, the third of their three levels: what waits everywhere is looked at
//! now and then, and what is decided goes to agents as orders, which they carry out with providers of theirs.
//!
//! What is asked for is written down before anybody hears of it, so that a service that is killed asks for
//! nothing twice and forgets nothing. Where agents decide, there is none of this: no timer, no record.
//!
//! Not here: when a circuit is worth its while (`circuits::plan`), and who asks for it (`agent`).

mod apply;
mod config;
mod snapshot;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::circuits::{CircuitPlan, CircuitWish};
use longhaul_catalog::{Catalog, CatalogError};
use longhaul_circuits::plan::{
    BookingEvent, BookingId, BookingRequest, Decision, Planner, PlannerSnapshot, SitePair,
};
use longhaul_control::Directory;
use longhaul_model::{SiteId, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::NetOps;
use crate::circuits::{LinkKey, RecordedOrder};
use apply::{OrderWish, PlannedOrder};
use snapshot::PlanInput;
pub use snapshot::pair_of;

pub use config::{BudgetConfig, CircuitsConfig, HostConfig, Level, ProviderConfig};
pub use views::{booked, last_decision, plan, recent_plan};

/// The requester of the plan's circuits, where others are people.
pub const PLAN_REQUESTER: &str = "the service's plan";
const PLAN_SETTING_KEY: &str = "circuit-plan";
/// Pairs of which the last decision is remembered.
const PAIR_DECISIONS_MAX: usize = 4_096;

/// The service's plan; empty where agents decide.
#[derive(Default)]
pub struct Plan {
    state: Mutex<Option<State>>,
    /// What was told last of what a plan would do.
    told: Mutex<Option<CircuitPlan>>,
}

struct State {
    planner: Planner,
    carried: BTreeMap<BookingId, PlannedOrder>,
    decided: BTreeMap<SitePair, PairDecision>,
    /// Sites without contact, and since when they are.
    silent: BTreeMap<SiteId, Timestamp>,
    planned: Option<Timestamp>,
    /// As the catalog has it.
    written: String,
}

/// What was done last about a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PairDecision {
    at: Timestamp,
    words: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredPlan {
    planner: PlannerSnapshot,
    carried: Vec<(BookingId, PlannedOrder)>,
    decided: Vec<(SitePair, PairDecision)>,
}

impl Plan {
    /// What a service before has planned; nothing where agents decide.
    pub fn load(config: &CircuitsConfig, catalog: &Catalog) -> Result<Plan, CatalogError> {
        if config.level != Level::Service {
            return Ok(Plan::default());
        }
        let written = catalog.setting(PLAN_SETTING_KEY)?.unwrap_or_default();
        let kept = match serde_json::from_str::<StoredPlan>(&written) {
            Ok(kept) => kept,
            Err(error) => {
                if !written.is_empty() {
                    tracing::warn!(%error, "the plan of circuits does not read back; what it had asked for \
                        is taken over from its orders");
                }
                StoredPlan::default()
            }
        };
        let state = State {
            planner: Planner::restore(config.settings(), kept.planner),
            carried: kept.carried.into_iter().collect(),
            decided: kept.decided.into_iter().collect(),
            silent: BTreeMap::new(),
            planned: None,
            written,
        };
        Ok(Plan { state: Mutex::new(Some(state)), ..Plan::default() })
    }
}

/// What a plan before this start has left: taken over, or given back where agents decide now.
pub fn take_up(netops: &NetOps) -> Result<(), CatalogError> {
    let now = netops.kernel.now();
    let mut state = netops.plan.state.lock();
    for (key, order) in netops.circuits.planned() {
        match state.as_mut() {
            Some(state) => state.adopt(netops, key, &order),
            None => {
                let CircuitWish::Request { mbit, until, .. } = order.what else { continue };
                let mut left = PlannedOrder::found(netops, key, &order, mbit, until);
                left.close(now);
                left.send(netops, order.booking.unwrap_or_default(), now)?;
            }
        }
    }
    Ok(())
}

/// Runs until the service stops; to be started only where the service decides.
pub async fn run(netops: Arc<NetOps>, mut stop: watch::Receiver<bool>) {
    let every = Duration::from_secs(netops.settings.circuits.every_s.into());
    loop {
        tokio::select! {
            _ = tokio::time::sleep(every) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let planning = netops.clone();
        let done = tokio::task::spawn_blocking(move || plan_once(&planning)).await;
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "circuits could not be planned; they stay as they are"),
            Err(error) => tracing::error!(%error, "the plan of circuits ended abnormally"),
        }
    }
}

/// One look at everything, and what follows from it.
fn plan_once(netops: &NetOps) -> Result<(), CatalogError> {
    let away = silent_for_long(netops);
    let input = snapshot::plan_input(netops, &netops.settings.circuits, &own_links(netops), away)?;
    let now = netops.kernel.now();
    let directory = netops.kernel.directory();
    // Held for milliseconds: by whoever asks what the plan says, and by nobody who moves files.
    let mut state = netops.plan.state.lock();
    let Some(state) = state.as_mut() else { return Ok(()) };
    state.poll_orders(netops, now)?;
    let decisions = state.planner.plan(&input.view, now);
    state.planned = Some(now);
    for decision in &decisions {
        state.decide(netops, &directory, &input, decision, now);
    }
    // Before anybody hears of it.
    state.write(&netops.kernel.catalog)?;
    for (id, carried) in &mut state.carried {
        carried.send(netops, id.0, now)?;
    }
    Ok(())
}

/// Links on which the plan asked for something.
fn own_links(netops: &NetOps) -> BTreeSet<LinkKey> {
    let state = netops.plan.state.lock();
    state.iter().flat_map(|state| state.carried.values().map(PlannedOrder::key)).collect()
}

/// Contact is lost and found again within a minute when a service or an agent is started anew: that takes no
/// circuit away.
fn silent_for_long(netops: &NetOps) -> BTreeSet<SiteId> {
    let (now, silent) = (netops.kernel.now(), snapshot::out_of_contact(netops));
    let mut state = netops.plan.state.lock();
    let Some(state) = state.as_mut() else { return silent };
    state.silent.retain(|site, _| silent.contains(site));
    for site in silent {
        state.silent.entry(site).or_insert(now);
    }
    let long = Duration::from_secs(netops.settings.circuits.away_s.into());
    state.silent.iter().filter(|(_, since)| now.since(**since) >= long).map(|(site, _)| *site).collect()
}

impl State {
    fn adopt(&mut self, netops: &NetOps, key: LinkKey, order: &RecordedOrder) {
        let CircuitWish::Request { mbit, until, .. } = order.what else { return };
        if self.carried.values().any(|carried| carried.key() == key) {
            return;
        }
        let Some(pair) = snapshot::pair_of(netops, &netops.kernel.directory(), &key) else { return };
        let link = netops.circuits.link(&key);
        let provider = link.map(|known| known.link.offer.map_or(known.link.provider, |offer| offer.name));
        let lifetime = until.since(order.at);
        let booking = self.planner.adopt(pair, &provider.unwrap_or_default(), mbit, order.at, lifetime);
        tracing::info!(link = apply::name(netops, &key), mbit, "a circuit of a plan before is taken over");
        self.carried.insert(booking, PlannedOrder::found(netops, key, order, mbit, until));
    }

    fn poll_orders(&mut self, netops: &NetOps, now: Timestamp) -> Result<(), CatalogError> {
        let mut over = Vec::new();
        for (&id, carried) in &mut self.carried {
            if let Some(news) = carried.poll_event(netops, id.0, now)? {
                self.planner.apply_event(id, news, now);
                over.extend((!matches!(news, BookingEvent::Established { .. })).then_some(id));
            }
        }
        for id in over {
            self.carried.remove(&id);
        }
        // A booking that stands for nothing is none.
        let known: Vec<BookingId> = self.planner.circuits().map(|circuit| circuit.booking).collect();
        for id in known.into_iter().filter(|id| !self.carried.contains_key(id)) {
            self.planner.apply_event(id, BookingEvent::Failed, now);
        }
        Ok(())
    }

    fn decide(
        &mut self,
        netops: &NetOps,
        directory: &Directory,
        input: &PlanInput,
        decision: &Decision,
        now: Timestamp,
    ) {
        let (pair, words) = views::decision(directory, decision);
        tracing::info!(link = views::pair(directory, pair), "circuit: {words}");
        let what = match decision {
            Decision::Request(_) => "ask",
            Decision::Release { .. } => "give-back",
        };
        netops.kernel.metrics.count(
            "longhaul_circuit_plan_decisions_total",
            "Circuits that the service's plan asked for, and gave back.",
            vec![("what", what.to_owned())],
            1,
        );
        match decision {
            Decision::Request(request) => self.request_circuit(netops, input, request, &words, now),
            Decision::Release { booking, .. } => {
                if let Some(carried) = self.carried.get_mut(booking) {
                    carried.close(now);
                }
            }
        }
        if self.decided.len() >= PAIR_DECISIONS_MAX && !self.decided.contains_key(&pair) {
            let oldest = self.decided.iter().min_by_key(|(_, decided)| decided.at).map(|(pair, _)| *pair);
            oldest.and_then(|pair| self.decided.remove(&pair));
        }
        self.decided.insert(pair, PairDecision { at: now, words });
    }

    /// Orders a circuit from the agent and storage of the pair with most work waiting, or from the one that
    /// has the circuit to be replaced.
    fn request_circuit(
        &mut self,
        netops: &NetOps,
        input: &PlanInput,
        request: &BookingRequest,
        words: &str,
        now: Timestamp,
    ) {
        let before = request.replaces.and_then(|booking| self.carried.get(&booking));
        let ways = input.ways.get(&request.pair).into_iter().flatten();
        let ways = ways.filter(|way| way.provider == request.provider);
        let way = ways.max_by_key(|way| (way.connected, way.pending));
        let Some(key) = before.map(PlannedOrder::key).or_else(|| way.map(|way| way.key.clone())) else {
            return;
        };
        let replaces = before.and_then(|carried| carried.circuit().map(str::to_owned));
        let provider = input.view.providers.iter().find(|provider| provider.name == request.provider);
        let setup = provider.map_or(Duration::ZERO, |provider| provider.setup);
        let wish = OrderWish { order: netops.kernel.new_id(), replaces, setup, why: words.to_owned() };
        self.carried.insert(request.booking, PlannedOrder::new(key, request, wish, now));
    }

    fn write(&mut self, catalog: &Catalog) -> Result<(), CatalogError> {
        let written = StoredPlan {
            planner: self.planner.snapshot(),
            carried: self.carried.iter().map(|(id, carried)| (*id, carried.clone())).collect(),
            decided: self.decided.iter().map(|(pair, decided)| (*pair, decided.clone())).collect(),
        };
        let text = serde_json::to_string(&written).unwrap_or_default();
        if text != self.written {
            catalog.set_setting(PLAN_SETTING_KEY, &text)?;
            self.written = text;
        }
        Ok(())
    }
}
