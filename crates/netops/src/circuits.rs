//! Circuits of the agents' links: what agents tell of them is checked and kept, what people want is told to
//! agents until they said what became of it.
//!
//! Not here: when a circuit is worth asking for, and who asks for it (`agent`, `circuits`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_api::circuits::{
    Circuit, CircuitLink, CircuitOrder, CircuitOrderState, CircuitOrdered, CircuitState, CircuitWish,
    ENDED_MAX, LINKS_MAX, MBIT_MAX, NOTES_MAX, ORDERS_MAX, PROVIDER_BYTES_MAX, RATES_MAX, TEXT_BYTES_MAX,
};
use longhaul_catalog::{Catalog, CatalogError, CircuitLinkRow, CircuitOrderRow, CircuitRow, DatabaseFailure};
use longhaul_control::brain::Input;
use longhaul_model::units::printable;
use longhaul_model::{AgentId, CircuitOrderId, StorageId, StorageName, Timestamp};
use longhaul_network::CLOCK_AHEAD_MAX;
use longhaul_scheduler::{Event, LinkCircuit};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::NetOps;

/// Bytes a second of one Mbit/s.
const BYTES_PER_S_PER_MBIT: f64 = 125_000.0;
/// What changes all the time is written so often.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);
const PROVIDERS: [&str; 4] = ["static", "nsi", "oscars", "sense"];
/// Circuits of a link that are read at the start.
const CIRCUITS_PER_LINK_LOADED_MAX: usize = 16;

pub type LinkKey = (AgentId, StorageName);

#[derive(Default)]
pub struct Circuits {
    state: Mutex<State>,
    /// What the scheduler was told last.
    told: Mutex<Vec<LinkCircuit>>,
}

#[derive(Default)]
struct State {
    links: BTreeMap<LinkKey, ReportedLink>,
    orders: BTreeMap<LinkKey, Vec<RecordedOrder>>,
}

/// A link as it was told.
#[derive(Clone)]
pub struct ReportedLink {
    pub told: Timestamp,
    pub link: CircuitLink,
    written: Timestamp,
    /// Its circuits that have not ended or were in the last report, by id.
    circuits: BTreeMap<String, RecordedCircuit>,
}

impl ReportedLink {
    pub fn recorded(&self, id: &str) -> Option<&RecordedCircuit> {
        self.circuits.get(id)
    }

    /// What is remembered of it.
    pub fn circuits(&self) -> impl Iterator<Item = &Circuit> {
        self.circuits.values().map(|kept| &kept.circuit)
    }
}

/// A circuit as it is kept: what it carried is the sum over all runs of its agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedCircuit {
    pub provider: String,
    pub circuit: Circuit,
    /// What the agent's present run said last.
    seen_bytes: u64,
    seen_s: f64,
    /// The catalog does not have all of it.
    #[serde(skip)]
    unwritten: bool,
}

impl RecordedCircuit {
    fn new(provider: &str, told: &Circuit) -> RecordedCircuit {
        let (seen_bytes, seen_s) = (told.carried_bytes, told.carried_s);
        RecordedCircuit {
            provider: provider.to_owned(),
            circuit: told.clone(),
            seen_bytes,
            seen_s,
            unwritten: true,
        }
    }

    /// An agent that was started again counts from nothing, and knows of a circuit only what its book has.
    fn merge(&mut self, told: &Circuit) {
        let before = self.circuit.clone();
        let again = told.carried_bytes < self.seen_bytes || told.carried_s < self.seen_s;
        let (bytes, seconds) = if again { (0, 0.0) } else { (self.seen_bytes, self.seen_s) };
        let known = &mut self.circuit;
        known.carried_bytes = known.carried_bytes.saturating_add(told.carried_bytes - bytes);
        known.carried_s += told.carried_s - seconds;
        (self.seen_bytes, self.seen_s) = (told.carried_bytes, told.carried_s);
        known.granted = known.granted.or(told.granted);
        known.booked_mbit = told.booked_mbit.or(known.booked_mbit);
        known.expires = told.expires.or(known.expires);
        known.used = known.used.or(told.used);
        known.plain_bytes_per_s = known.plain_bytes_per_s.or(told.plain_bytes_per_s);
        if known.ended.is_none() {
            (known.ended, known.end) = (told.ended, told.end.clone());
        }
        self.unwritten |= before != self.circuit;
    }

    fn to_row(&self, (agent, source): &LinkKey) -> CircuitRow {
        CircuitRow {
            id: self.circuit.id.clone(),
            agent: *agent,
            source: source.clone(),
            requested: self.circuit.asked,
            ended: self.circuit.ended,
            details: serde_json::to_string(self).unwrap_or_default(),
        }
    }

    pub fn from_row(row: &CircuitRow) -> Result<RecordedCircuit, CatalogError> {
        serde_json::from_str(&row.details).map_err(|error| {
            CatalogError::Corrupt(DatabaseFailure::new(format!("circuit {}: {error}", row.id), error))
        })
    }
}

/// What a person or the plan wants, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedOrder {
    pub id: CircuitOrderId,
    pub by: String,
    pub at: Timestamp,
    pub what: CircuitWish,
    pub state: CircuitOrderState,
    pub words: String,
    /// The booking of the plan that this order carries out, if it is the plan's.
    #[serde(default)]
    pub booking: Option<u64>,
}

impl RecordedOrder {
    pub fn to_row(&self, (agent, source): &LinkKey) -> CircuitOrderRow {
        CircuitOrderRow {
            id: self.id,
            agent: *agent,
            source: source.clone(),
            at: self.at,
            who: self.by.clone(),
            over: self.state.is_final(),
            details: serde_json::to_string(self).unwrap_or_default(),
        }
    }

    pub fn from_row(row: &CircuitOrderRow) -> Result<RecordedOrder, CatalogError> {
        serde_json::from_str(&row.details).map_err(|error| {
            CatalogError::Corrupt(DatabaseFailure::new(format!("circuit order {}: {error}", row.id), error))
        })
    }
}

impl Circuits {
    /// What a service before has kept.
    pub fn load(catalog: &Catalog) -> Result<Circuits, CatalogError> {
        let mut state = State::default();
        for row in catalog.circuit_links()? {
            let Ok(link) = serde_json::from_str::<CircuitLink>(&row.details) else {
                tracing::warn!(agent = %row.agent, source = %row.source, "what was told of its circuits does \
                    not read back; the agent tells it anew");
                continue;
            };
            let mut circuits = BTreeMap::new();
            for circuit in catalog.circuits_of(row.agent, &row.source, CIRCUITS_PER_LINK_LOADED_MAX)? {
                circuits.insert(circuit.id.clone(), RecordedCircuit::from_row(&circuit)?);
            }
            let known = ReportedLink { told: row.reported, written: row.reported, link, circuits };
            state.links.insert((row.agent, row.source), known);
        }
        for row in catalog.open_circuit_orders()? {
            let order = RecordedOrder::from_row(&row)?;
            state.orders.entry((row.agent, row.source)).or_default().push(order);
        }
        Ok(Circuits { state: Mutex::new(state), ..Circuits::default() })
    }

    pub fn links(&self) -> Vec<(LinkKey, ReportedLink)> {
        self.state.lock().links.iter().map(|(key, known)| (key.clone(), known.clone())).collect()
    }

    /// Circuits that transfers may begin on: asked for by that agent, for what comes from that storage.
    pub fn in_use(&self) -> Vec<(LinkKey, String)> {
        let state = self.state.lock();
        let links = state.links.iter().filter(|(_, known)| known.link.state == CircuitState::Established);
        let used = links.filter_map(|(key, known)| {
            let circuit = known.link.circuit.as_ref().filter(|circuit| circuit.used.is_some())?;
            Some((key.clone(), circuit.id.clone()))
        });
        used.collect()
    }

    /// The same with what is booked, in bytes a second.
    fn booked_rates(&self) -> Vec<(LinkKey, f64)> {
        let state = self.state.lock();
        let used = state.links.iter().filter(|(_, known)| known.link.state == CircuitState::Established);
        let rates = used.filter_map(|(key, known)| {
            let circuit = known.link.circuit.as_ref().filter(|circuit| circuit.used.is_some())?;
            Some((
                key.clone(),
                circuit.booked_mbit.unwrap_or(circuit.asked_mbit) as f64 * BYTES_PER_S_PER_MBIT,
            ))
        });
        rates.collect()
    }

    pub fn link(&self, key: &LinkKey) -> Option<ReportedLink> {
        self.state.lock().links.get(key).cloned()
    }

    /// What an agent is to be told.
    pub fn orders(&self, agent: AgentId, now: Timestamp) -> Vec<CircuitOrder> {
        let state = self.state.lock();
        let of_agent = state.orders.iter().filter(|((of, _), _)| *of == agent);
        let all = of_agent.flat_map(|((_, source), orders)| orders.iter().map(move |order| (source, order)));
        let lasts = |order: &RecordedOrder| match order.what {
            CircuitWish::Request { until, .. } => until > now,
            CircuitWish::Release { .. } => true,
        };
        all.filter(|(_, order)| lasts(order))
            .map(|(source, order)| CircuitOrder {
                id: order.id,
                source: source.clone(),
                by: order.by.clone(),
                what: order.what.clone(),
            })
            .collect()
    }

    /// Durable when it returns. Requests of the link that were open are over: the new one stands in their
    /// place; unless it is for a circuit that is to follow one, which they keep until then.
    pub fn place_order(
        &self,
        catalog: &Catalog,
        key: &LinkKey,
        order: RecordedOrder,
        what: &str,
    ) -> Result<(), CatalogError> {
        let mut state = self.state.lock();
        let open = state.orders.entry(key.clone()).or_default();
        // A circuit that is to be given back is so before another is asked for.
        let follows = matches!(order.what, CircuitWish::Request { replaces: Some(_), .. });
        let (stand, over): (Vec<RecordedOrder>, Vec<RecordedOrder>) =
            open.drain(..).partition(|before| match before.what {
                CircuitWish::Release { .. } => before.what != order.what,
                CircuitWish::Request { .. } => follows,
            });
        let end = |before: &RecordedOrder| RecordedOrder {
            state: CircuitOrderState::Done,
            words: format!("{} wanted something else after that", order.by),
            ..before.clone()
        };
        let rows: Vec<CircuitOrderRow> = over.iter().map(|before| end(before).to_row(key)).collect();
        let written = catalog.order_circuit(&order.to_row(key), &rows, what);
        open.extend(stand);
        match &written {
            Ok(()) => open.extend((!order.state.is_final()).then_some(order)),
            Err(_) => open.extend(over),
        }
        written
    }

    /// One wish is not wanted any more, and the others of its link are. Durable when it returns.
    pub fn withdraw(
        &self,
        catalog: &Catalog,
        key: &LinkKey,
        id: CircuitOrderId,
        words: &str,
    ) -> Result<(), CatalogError> {
        let mut state = self.state.lock();
        let Some(open) = state.orders.get_mut(key) else { return Ok(()) };
        let Some(order) = open.iter().find(|order| order.id == id) else { return Ok(()) };
        let over = RecordedOrder { state: CircuitOrderState::Done, words: words.to_owned(), ..order.clone() };
        catalog.record_circuits(&[], &[], &[over.to_row(key)])?;
        open.retain(|order| order.id != id);
        Ok(())
    }

    /// What the plan wants, and nobody has ended.
    pub fn planned(&self) -> Vec<(LinkKey, RecordedOrder)> {
        let state = self.state.lock();
        let all = state.orders.iter().flat_map(|(key, orders)| orders.iter().map(move |order| (key, order)));
        let planned = all.filter(|(_, order)| order.booking.is_some());
        planned.map(|(key, order)| (key.clone(), order.clone())).collect()
    }

    /// Whether the plan's wish for that booking is not over.
    pub fn is_planned(&self, key: &LinkKey, booking: u64) -> bool {
        let state = self.state.lock();
        state.orders.get(key).into_iter().flatten().any(|order| order.booking == Some(booking))
    }

    /// Whether the circuit is to be given back, and the agent has not said that it was.
    pub fn is_releasing(&self, key: &LinkKey, circuit: &str) -> bool {
        let state = self.state.lock();
        let mut open = state.orders.get(key).into_iter().flatten();
        open.any(|order| matches!(&order.what, CircuitWish::Release { circuit: of } if of == circuit))
    }

    /// Whether something else than that booking of the plan is requested on the link.
    pub fn is_requested_beside(&self, key: &LinkKey, booking: u64) -> bool {
        let state = self.state.lock();
        let mut open = state.orders.get(key).into_iter().flatten();
        open.any(|order| matches!(order.what, CircuitWish::Request { .. }) && order.booking != Some(booking))
    }

    /// Whether something is requested on the link that the agent has not ended.
    pub fn is_requested(&self, key: &LinkKey) -> bool {
        let state = self.state.lock();
        let mut open = state.orders.get(key).into_iter().flatten();
        open.any(|order| matches!(order.what, CircuitWish::Request { .. }))
    }
}

/// Takes what an agent told of all its links. Waits for the catalog.
pub fn take_report(netops: &NetOps, agent: AgentId, told: Vec<CircuitLink>) -> Result<(), CatalogError> {
    let now = netops.kernel.now();
    let mut seen = BTreeSet::new();
    let mut fine = Vec::new();
    for link in told.into_iter().take(LINKS_MAX) {
        let fresh = seen.insert(link.source.clone());
        let checked = if fresh { check(&link, now) } else { Err("it is told twice".to_owned()) };
        match checked {
            Ok(()) => fine.push(sanitised(link)),
            Err(why) => {
                tracing::warn!(%agent, source = %link.source, why, "what an agent tells of its circuits was \
                    refused")
            }
        }
    }
    let mut changes = Changes::default();
    // Held while it is written: two reports of one agent are never taken in at a time, and people wait for
    // neither.
    let mut state = netops.circuits.state.lock();
    for link in fine {
        let key = (agent, link.source.clone());
        count_carried(netops, &key, state.apply_report(&key, link, now, &mut changes));
    }
    let gone: Vec<LinkKey> =
        state.links.keys().filter(|(of, source)| *of == agent && !seen.contains(source)).cloned().collect();
    for key in &gone {
        state.forget(key, now, &mut changes);
    }
    if !changes.is_empty() {
        netops.kernel.catalog.record_circuits(&changes.links, &changes.circuits, &changes.orders)?;
    }
    if !gone.is_empty() {
        let sources: Vec<StorageName> = gone.into_iter().map(|(_, source)| source).collect();
        netops.kernel.catalog.forget_circuit_links(agent, &sources)?;
    }
    drop(state);
    update_scheduler(netops);
    Ok(())
}

/// Which links go by circuits now, if that is not what it knows: all from one agent to another, whatever
/// storages they have.
fn update_scheduler(netops: &NetOps) {
    let directory = netops.kernel.directory();
    let of_agent = |agent: AgentId| -> Vec<StorageId> {
        let all = directory.storages.keys().copied();
        all.filter(|storage| netops.control.agents.of_storage(*storage) == Some(agent)).collect()
    };
    let mut links: BTreeMap<(StorageId, StorageId), f64> = BTreeMap::new();
    for ((agent, source), bytes_per_s) in netops.circuits.booked_rates() {
        let row = directory.storage(source.as_str());
        let Some(from) = row.and_then(|row| netops.control.agents.of_storage(row.id)) else { continue };
        let (sources, targets) = (of_agent(from), of_agent(agent));
        let pairs = sources.iter().flat_map(|source| targets.iter().map(move |target| (*source, *target)));
        links.extend(pairs.map(|pair| (pair, bytes_per_s)));
    }
    let on_circuit = |((source, target), bytes_per_s)| LinkCircuit { source, target, bytes_per_s };
    let links: Vec<LinkCircuit> = links.into_iter().map(on_circuit).collect();
    let mut told = netops.circuits.told.lock();
    if *told != links {
        told.clone_from(&links);
        netops.kernel.notify_scheduler(Input::Events(vec![Event::Circuits(links)]));
    }
}

/// What others than its agent have moved on a circuit, and for how long.
pub fn add_carried(netops: &NetOps, key: &LinkKey, id: &str, bytes: u64, during: Duration) {
    count_carried(netops, key, bytes);
    let mut state = netops.circuits.state.lock();
    let Some(kept) = state.links.get_mut(key).and_then(|known| known.circuits.get_mut(id)) else { return };
    kept.circuit.carried_bytes = kept.circuit.carried_bytes.saturating_add(bytes);
    kept.circuit.carried_s += during.as_secs_f64();
    kept.unwritten = true;
}

fn count_carried(netops: &NetOps, key: &LinkKey, carried: u64) {
    let help = "Bytes that moved while all streams were on a circuit, and of jobs' copies that went by one.";
    netops.kernel.metrics.count(
        "longhaul_circuit_carried_bytes_total",
        help,
        metric_labels(netops, key),
        carried,
    );
}

/// How metrics name a link.
pub fn metric_labels(netops: &NetOps, (agent, source): &LinkKey) -> Vec<(&'static str, String)> {
    let site =
        netops.control.agents.agent(*agent).map(|known| known.site_name.to_string()).unwrap_or_default();
    vec![("source", source.to_string()), ("target", site)]
}

/// To be written.
#[derive(Default)]
struct Changes {
    links: Vec<CircuitLinkRow>,
    circuits: Vec<CircuitRow>,
    orders: Vec<CircuitOrderRow>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.links.is_empty() && self.circuits.is_empty() && self.orders.is_empty()
    }
}

impl State {
    /// Returns what the link's circuits have carried since it was told last.
    fn apply_report(
        &mut self,
        key: &LinkKey,
        link: CircuitLink,
        now: Timestamp,
        changes: &mut Changes,
    ) -> u64 {
        let before = self.links.remove(key);
        let due = before.as_ref().is_none_or(|known| {
            let same = known.link.state == link.state && known.link.notes == link.notes;
            !same || now.since(known.written) >= WRITE_INTERVAL
        });
        let (mut circuits, written) =
            before.map(|known| (known.circuits, known.written)).unwrap_or((BTreeMap::new(), now));
        let total = |circuits: &BTreeMap<String, RecordedCircuit>| -> u64 {
            circuits.values().fold(0, |sum, kept| sum.saturating_add(kept.circuit.carried_bytes))
        };
        let carried = total(&circuits);
        let named: BTreeSet<String> = reported_circuits(&link).map(|circuit| circuit.id.clone()).collect();
        for told in reported_circuits(&link) {
            let open = circuits.get(&told.id).is_some_and(|kept| kept.circuit.ended.is_none());
            let fresh = !circuits.contains_key(&told.id);
            let kept =
                circuits.entry(told.id.clone()).or_insert_with(|| RecordedCircuit::new(&link.provider, told));
            kept.merge(told);
            let ends = open && kept.circuit.ended.is_some();
            if kept.unwritten && (due || fresh || ends) {
                kept.unwritten = false;
                changes.circuits.push(kept.to_row(key));
            }
        }
        let grown = total(&circuits).saturating_sub(carried);
        end_unreported(
            &mut circuits,
            &named,
            "its agent was started again, and gave it back",
            key,
            now,
            changes,
        );
        circuits.retain(|id, _| named.contains(id));
        if let Some(open) = self.orders.get_mut(key) {
            update_orders(open, &link.orders, key, changes);
        }
        if due {
            let details = serde_json::to_string(&link).unwrap_or_default();
            changes.links.push(CircuitLinkRow {
                agent: key.0,
                source: key.1.clone(),
                reported: now,
                details,
            });
        }
        let written = if due { now } else { written };
        self.links.insert(key.clone(), ReportedLink { told: now, link, written, circuits });
        grown
    }

    fn forget(&mut self, key: &LinkKey, now: Timestamp, changes: &mut Changes) {
        if let Some(mut known) = self.links.remove(key) {
            let why = "its agent has no circuits on this link any more";
            end_unreported(&mut known.circuits, &BTreeSet::new(), why, key, now, changes);
        }
    }
}

/// Circuits that nobody tells of any more have ended.
fn end_unreported(
    circuits: &mut BTreeMap<String, RecordedCircuit>,
    named: &BTreeSet<String>,
    why: &str,
    key: &LinkKey,
    now: Timestamp,
    changes: &mut Changes,
) {
    let open = circuits.values_mut().filter(|kept| kept.circuit.ended.is_none());
    for kept in open.filter(|kept| !named.contains(&kept.circuit.id)) {
        (kept.circuit.ended, kept.circuit.end) = (Some(now), Some(why.to_owned()));
        changes.circuits.push(kept.to_row(key));
    }
}

fn update_orders(
    open: &mut Vec<RecordedOrder>,
    told: &[CircuitOrdered],
    key: &LinkKey,
    changes: &mut Changes,
) {
    for order in open.iter_mut() {
        let Some(news) = told.iter().find(|news| news.id == order.id) else { continue };
        if (news.state, &news.words) != (order.state, &order.words) {
            (order.state, order.words) = (news.state, news.words.clone());
            changes.orders.push(order.to_row(key));
        }
    }
    open.retain(|order| !order.state.is_final());
}

/// All circuits that an agent tells of.
fn reported_circuits(link: &CircuitLink) -> impl Iterator<Item = &Circuit> {
    link.ended.iter().chain(&link.circuit).chain(&link.next)
}

fn check(link: &CircuitLink, now: Timestamp) -> Result<(), String> {
    if !PROVIDERS.contains(&link.provider.as_str()) {
        return Err("no provider that there is".into());
    }
    if link.notes.len() > NOTES_MAX || link.ended.len() > ENDED_MAX || link.orders.len() > ORDERS_MAX {
        return Err("more than a report can hold".into());
    }
    if let Some(offer) = &link.offer {
        let named = !offer.name.is_empty() && offer.name.len() <= PROVIDER_BYTES_MAX;
        let fine = |mbit: &u64| (1..=MBIT_MAX).contains(mbit);
        if !named || offer.mbit.len() > RATES_MAX || !offer.mbit.iter().all(fine) {
            return Err("an offer that no provider makes".into());
        }
    }
    let texts = link.notes.iter().map(|note| &note.words).chain(link.orders.iter().map(|order| &order.words));
    if texts.chain([&link.look.words]).any(|text| text.len() > TEXT_BYTES_MAX) {
        return Err("its words are too long".into());
    }
    let look = &link.look;
    let fine = |number: f64| number.is_finite() && (0.0..1e18).contains(&number);
    let numbers = [look.bytes_per_s, look.work_s, Some(look.threshold_s), look.leave_below_s];
    // What takes for ever is told as the longest time that there is.
    if numbers.into_iter().flatten().any(|number| !number.is_finite() || number < 0.0) || look.mbit > MBIT_MAX
    {
        return Err("numbers that no link has".into());
    }
    for circuit in reported_circuits(link) {
        if !is_circuit_id(&circuit.id) {
            return Err("no name of a circuit".into());
        }
        let words = [Some(&circuit.why), circuit.end.as_ref()];
        if words.into_iter().flatten().any(|text| text.len() > TEXT_BYTES_MAX) {
            return Err("its words are too long".into());
        }
        if circuit.asked_mbit > MBIT_MAX || circuit.booked_mbit.is_some_and(|mbit| mbit > MBIT_MAX) {
            return Err("more than a circuit can have".into());
        }
        let rates = [Some(circuit.carried_s), circuit.plain_bytes_per_s];
        if rates.into_iter().flatten().any(|number| !fine(number)) {
            return Err("numbers that no circuit has".into());
        }
        if circuit.asked.since(now) > CLOCK_AHEAD_MAX {
            return Err("it was asked for in the future".into());
        }
    }
    if link.ended.iter().any(|circuit| circuit.ended.is_none()) {
        return Err("an end without a time".into());
    }
    Ok(())
}

/// A UUID, as they are written.
pub fn is_circuit_id(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        })
}

/// Safe to print, whatever an agent or its provider says.
fn sanitised(mut link: CircuitLink) -> CircuitLink {
    let clean = |text: &mut String| *text = printable(text);
    clean(&mut link.look.words);
    if let Some(offer) = &mut link.offer {
        clean(&mut offer.name);
    }
    link.notes.iter_mut().for_each(|note| clean(&mut note.words));
    link.orders.iter_mut().for_each(|order| clean(&mut order.words));
    for circuit in link.ended.iter_mut().chain(&mut link.circuit).chain(&mut link.next) {
        clean(&mut circuit.why);
        circuit.end.as_mut().map(clean);
    }
    link
}
