//! Circuits at two levels: an agent that decides for its own links, or one plan for all. Both are the real
//! code of `circuits`, and act through its [`Lifecycle`]; here they get their input, and what they do is
//! applied. Nothing here decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_circuits::plan::{
    BookingEvent, BookingId, Decision, PendingWork, PlanSettings, PlanView, Planner, Port, Provider, SitePair,
};
use longhaul_circuits::{
    Action, Answer, CircuitEndpoints, CircuitRequest, Event, Grant, Lifecycle, ProviderReservation,
    ReleaseRule, RequestKey, Settings, State,
};
use longhaul_model::{SiteId, StorageId, Timestamp};
use longhaul_network::Link;
use longhaul_scheduler::LinkCircuit;

use crate::circuit_provider::MBIT_BYTES_PER_S;
use crate::random::uniform_for;
use crate::scenario::CircuitLevel;
use crate::world::{START, SimEvent, World, micros};

/// Decisions of the plan that are logged in words.
const DECISIONS_LOGGED_MAX: usize = 20;
/// Window, in seconds with work, over which the rate of a pair is averaged.
const CARRIED_WINDOW_S: f64 = 600.0;
/// Seconds with work from which on that rate counts.
const CARRIED_WINDOW_S_MIN: f64 = 30.0;

/// A circuit on a pair with its lifecycle: of an agent's link, or of one booking of the plan.
#[derive(Debug)]
struct ManagedCircuit {
    lifecycle: Lifecycle,
    pair: (usize, usize),
    provider: usize,
    booking: Option<BookingId>,
    is_used: bool,
    was_used: bool,
    carried: f64,
}

/// Target, sources, priority and community of work that waits.
type DemandKey = (u32, Vec<u32>, u8, u32);

/// Summary of the use of circuits.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CircuitsSummary {
    pub asked: u64,
    pub refused: u64,
    pub used: u64,
    /// Reserved, used or not: Gbit/s times hours.
    pub gbit_hours: f64,
    pub bytes: u128,
    /// The first decisions of the plan, in words.
    #[serde(skip)]
    pub decision_log: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Circuits {
    planner: Option<Planner>,
    managed: BTreeMap<u32, ManagedCircuit>,
    /// Circuits of agents, by pair.
    by_pair: BTreeMap<(usize, usize), u32>,
    last_number: u32,
    /// What pairs carried of late without a circuit while they had work: bytes, and seconds.
    carried: BTreeMap<(usize, usize), (f64, f64)>,
    /// What each pair had moved, and the time with something to move, when it was looked at last.
    moved_before: BTreeMap<(usize, usize), (f64, f64)>,
    reserved_until: i64,
    pub(crate) summary: CircuitsSummary,
}

impl World<'_> {
    pub(crate) fn start_circuits(&mut self) {
        if self.plan.circuits.level == CircuitLevel::None || self.plan.layout.providers.is_empty() {
            return;
        }
        if self.plan.circuits.level == CircuitLevel::Service {
            let written = &self.plan.circuits;
            self.circuits.planner = Some(Planner::new(PlanSettings {
                priority_floor: written.floor,
                gain_min: Duration::from_secs_f64(written.gain.0),
                aging_step: Duration::from_secs_f64(written.age_step.0),
                budget: written.budget,
                ..PlanSettings::default()
            }));
        }
        self.schedule_after(self.plan.circuits.every.0, SimEvent::ReviewCircuits);
    }

    fn time(&self) -> Timestamp {
        Timestamp(START.0 + self.now)
    }

    pub(crate) fn review_circuits(&mut self) {
        self.count_reserved();
        for key in self.circuit_providers.expired(self.now) {
            self.release_circuit(key);
            let managed: Vec<u32> = self.circuits.managed.keys().copied().collect();
            let detail = "it has expired".to_owned();
            for line in managed {
                self.handle_circuit_event(
                    line,
                    Event::Answer { key, answer: Answer::Lost { detail: detail.clone() } },
                );
            }
        }
        match self.plan.circuits.level {
            CircuitLevel::None => return,
            CircuitLevel::Agent => self.update_agent_circuits(),
            CircuitLevel::Service => {}
        }
        let flows = self.flows.rows.iter().map(|flow| (flow.source, flow.target));
        let pairs: BTreeSet<(usize, usize)> = flows.collect();
        pairs.into_iter().for_each(|pair| self.count_moved(pair));
        let managed: Vec<u32> = self.circuits.managed.keys().copied().collect();
        managed.into_iter().for_each(|line| self.handle_circuit_event(line, Event::Tick));
        if self.plan.circuits.level == CircuitLevel::Service {
            self.plan_circuits(None);
        }
        self.schedule_after(self.plan.circuits.every.0, SimEvent::ReviewCircuits);
    }

    /// Gbit/s times hours since the last time.
    fn count_reserved(&mut self) {
        let hours = (self.now - self.circuits.reserved_until) as f64 / 3_600e6;
        self.circuits.reserved_until = self.now;
        self.circuits.summary.gbit_hours += self.circuit_providers.mbit() as f64 / 1000.0 * hours;
    }

    // ---- an agent for each of its links ---------------------------------------------------------------

    fn update_agent_circuits(&mut self) {
        let mut work: BTreeMap<(usize, usize), (u64, f64)> = BTreeMap::new();
        for target in 0..self.plan.layout.sites.len() {
            for ahead in self.scheduler.link_backlogs(StorageId(target as u64), self.service_time()) {
                let source = ahead.source.0 as usize;
                let wrong = self.forecast_error(source, target);
                work.insert((source, target), (ahead.bytes, ahead.plain_expected * wrong));
            }
        }
        for &pair in work.keys() {
            if !self.circuits.by_pair.contains_key(&pair) {
                self.add_agent_circuit(pair);
            }
        }
        let managed: Vec<((usize, usize), u32)> =
            self.circuits.by_pair.iter().map(|(pair, line)| (*pair, *line)).collect();
        for (pair, line) in managed {
            let (pending_bytes, rate) = work.get(&pair).copied().unwrap_or_default();
            let bytes_per_s = Some(rate).filter(|rate| *rate > 0.0);
            self.handle_circuit_event(line, Event::Work { pending_bytes, bytes_per_s });
        }
    }

    fn add_agent_circuit(&mut self, pair: (usize, usize)) {
        let providers = &self.plan.layout.providers;
        let Some(provider) = providers.iter().position(|provider| provider.reaches(pair.0, pair.1)) else {
            return;
        };
        let written = &self.plan.circuits;
        let largest = providers[provider].mbit.last().copied().unwrap_or(1);
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let settings = Settings {
            work_threshold: Duration::from_secs_f64(written.work.0),
            release: Some(ReleaseRule { work_below: minutes(10), during: minutes(5), age_min: minutes(30) }),
            mbit: written.rate.map_or(largest, |rate| (rate.0 / MBIT_BYTES_PER_S) as u64),
            ..self.circuit_settings(provider, Duration::from_secs_f64(providers[provider].lifetime))
        };
        let line = self.add_managed_circuit(pair, provider, settings, None);
        self.circuits.by_pair.insert(pair, line);
    }

    fn circuit_settings(&self, provider: usize, lifetime: Duration) -> Settings {
        let setup = Duration::from_secs_f64(self.plan.layout.providers[provider].setup);
        let usual = Settings::default();
        let every = Duration::from_secs_f64(self.plan.circuits.every.0);
        Settings {
            lifetime: Some(lifetime),
            request_timeout: usual.request_timeout.max(setup * 2),
            expiry_margin: every * 2,
            ..usual
        }
    }

    fn add_managed_circuit(
        &mut self,
        pair: (usize, usize),
        provider: usize,
        settings: Settings,
        booking: Option<BookingId>,
    ) -> u32 {
        self.circuits.last_number += 1;
        let number = self.circuits.last_number;
        let name = format!("{} {} {number}", pair.0, pair.1);
        let lifecycle = Lifecycle::new(name, settings, self.plan.seed, self.time());
        let line = ManagedCircuit {
            lifecycle,
            pair,
            provider,
            booking,
            is_used: false,
            was_used: false,
            carried: 0.0,
        };
        self.circuits.managed.insert(number, line);
        // What the pair has moved before is not the line's.
        let now = self.moved_of(pair);
        self.circuits.moved_before.entry(pair).or_insert(now);
        number
    }

    // ---- one plan for all -----------------------------------------------------------------------------

    /// Something happened at a site.
    pub(crate) fn replan_circuits_at(&mut self, site: u32) {
        self.plan_circuits(Some(BTreeSet::from([SiteId(site.into())])));
    }

    fn plan_circuits(&mut self, touched: Option<BTreeSet<SiteId>>) {
        let Some(mut planner) = self.circuits.planner.take() else { return };
        let (view, now) = (self.plan_input(), self.time());
        let decisions = match touched {
            None => planner.plan(&view, now),
            Some(touched) => planner.plan_around(&view, &touched, now),
        };
        self.circuits.planner = Some(planner);
        for decision in decisions {
            self.log_decision(&decision);
            match decision {
                Decision::Request(request) => {
                    let pair = (request.pair.source.0 as usize, request.pair.target.0 as usize);
                    let mut providers = self.plan.layout.providers.iter();
                    let Some(provider) = providers.position(|row| row.name == request.provider) else {
                        continue;
                    };
                    // What follows it is the plan's to say.
                    let usual = self.circuit_settings(provider, request.lifetime);
                    let settings = Settings { mbit: request.mbit, renewal: None, ..usual };
                    let line = self.add_managed_circuit(pair, provider, settings, Some(request.booking));
                    self.handle_circuit_event(line, Event::SetWanted(true));
                }
                Decision::Release { booking, .. } => {
                    let line = self.circuits.managed.iter().find(|(_, line)| line.booking == Some(booking));
                    if let Some((&line, _)) = line {
                        self.handle_circuit_event(line, Event::SetWanted(false));
                    }
                }
            }
        }
    }

    fn log_decision(&mut self, decision: &Decision) {
        if self.circuits.summary.decision_log.len() >= DECISIONS_LOGGED_MAX {
            return;
        }
        let sites = &self.plan.layout.sites;
        let name = |site: SiteId| sites.get(site.0 as usize).map_or(String::new(), |site| site.name.clone());
        let (pair, what, why) = match decision {
            Decision::Request(request) => {
                (request.pair, format!("{} Gbit/s asked for", request.mbit as f64 / 1000.0), &request.reason)
            }
            Decision::Release { pair, reason: why, .. } => (*pair, "given back".to_owned(), why),
        };
        let at = longhaul_model::units::duration(Duration::from_micros(self.now.max(0) as u64));
        let (source, target) = (name(pair.source), name(pair.target));
        let words = why.describe(&name);
        self.circuits.summary.decision_log.push(format!("after {at}, {source} → {target}: {what}: {words}"));
    }

    /// What the plan is told.
    fn plan_input(&self) -> PlanView {
        let layout = &self.plan.layout;
        let mut view = PlanView { pending: self.waiting_demand(), ..PlanView::default() };
        for (at, site) in self.sites.iter().enumerate() {
            let (outward, inward) = (self.plan.port(at, false), self.plan.port(at, true));
            let id = SiteId(at as u64);
            view.ports.insert(id, Port { outward, inward });
            // Uplinks are counted: what is not ours there is known.
            for (inward, ways) in
                [(false, &layout.sites[at].out_capacities), (true, &layout.sites[at].in_capacities)]
            {
                let taken = ways.first().map_or(0.0, |&way| 1.0 - self.unused_share[way as usize]);
                view.foreign_traffic.insert((id, inward), self.plan.port(at, inward) * taken);
            }
            if !site.connected {
                view.unreachable_sites.insert(SiteId(at as u64));
            }
        }
        let wanted =
            view.pending.iter().flat_map(|row| row.sources.iter().map(|&source| (source, row.target)));
        let pairs: BTreeSet<(SiteId, SiteId)> = wanted.filter(|(source, target)| source != target).collect();
        for (source, target) in pairs {
            let (from, to) = (source.0 as usize, target.0 as usize);
            if layout.pair(from, to).open {
                let link = Link { source: StorageId(source.0), target: StorageId(target.0) };
                let believed =
                    self.scheduler.knowledge().best_effort_rate(link, self.service_time()).bytes_per_s;
                let pair = SitePair { source, target };
                view.best_effort.insert(pair, believed * self.forecast_error(from, to));
                if let Some((bytes, busy)) = self.circuits.carried.get(&(from, to))
                    && *busy >= CARRIED_WINDOW_S_MIN
                {
                    view.observed.insert(pair, bytes / busy);
                }
            }
        }
        view.providers = layout.providers.iter().map(provider).collect();
        view
    }

    /// All that is wanted and not there, alike together.
    fn waiting_demand(&self) -> Vec<PendingWork> {
        let mut alike: BTreeMap<DemandKey, (u64, f64)> = BTreeMap::new();
        for (&(block, target), want) in &self.wants {
            // It waits for whoever wants it most; of several, the latest.
            let mut requests = want.requests.iter().rev().map(|&at| &self.plan.work.requests[at as usize]);
            let highest = requests.clone().map(|request| request.priority).max();
            let Some(first) = requests.find(|request| Some(request.priority) == highest) else { continue };
            let row = &self.plan.work.blocks[block as usize];
            let sizes = &self.plan.work.sizes[row.files.start as usize..row.files.end as usize];
            let mean = sizes.iter().sum::<u64>() as f64 / sizes.len().max(1) as f64;
            let bytes = (mean * want.files as f64) as u64;
            let sources = self.catalog.sites_with_block(block);
            let key = (target, sources, first.priority, first.community);
            let sum = alike.entry(key).or_insert((0, first.at));
            *sum = (sum.0 + bytes, sum.1.min(first.at));
        }
        let rows =
            alike.into_iter().map(|((target, sources, priority, community), (bytes, since))| PendingWork {
                target: SiteId(target.into()),
                sources: sources.into_iter().map(|site| SiteId(site.into())).collect(),
                bytes,
                priority,
                community: self.plan.work.communities[community as usize].name.clone(),
                since: Timestamp(START.0 + micros(since)),
            });
        rows.collect()
    }

    /// By the seed, for each pair for good.
    fn forecast_error(&self, from: usize, to: usize) -> f64 {
        let factor = self.plan.circuits.forecast_error;
        let up = uniform_for(self.plan.seed ^ 0xf0ca57, from as u64, to as u64) < 0.5;
        if up { factor } else { 1.0 / factor }
    }

    // ---- lives and their provider ---------------------------------------------------------------------

    fn handle_circuit_event(&mut self, number: u32, event: Event) {
        let now = self.time();
        let Some(line) = self.circuits.managed.get_mut(&number) else { return };
        line.lifecycle.handle(event, now);
        while let Some(action) = self.circuits.managed.get_mut(&number).and_then(|line| line.lifecycle.poll())
        {
            self.apply_action(number, action);
        }
        self.remove_if_ended(number);
    }

    fn apply_action(&mut self, number: u32, action: Action) {
        let now = self.time();
        let Some(line) = self.circuits.managed.get_mut(&number) else { return };
        let pair = line.pair;
        match action {
            Action::Persist(_) | Action::Note(_) => {}
            Action::Request(wish) => self.request_circuit(number, wish),
            Action::TearDown(key) => {
                self.release_circuit(key);
                self.notify_circuit(number, Event::TornDown(key));
            }
            Action::List => {
                let reservations = line.lifecycle.ledger().reservations;
                let held = reservations.iter().filter(|one| self.circuit_providers.is_reserved(one.key));
                let held = held.map(|one| ProviderReservation { key: one.key, up: true }).collect();
                self.notify_circuit(number, Event::Listed { asked: now, held });
            }
            Action::Probe { key, .. } => self.notify_circuit(number, Event::Probed { key, good: true }),
            Action::Use { key, mbit, .. } => {
                let (booking, first) = (line.booking, !line.was_used);
                (line.is_used, line.was_used) = (true, true);
                self.circuits.summary.used += u64::from(first || booking.is_none());
                self.switch_traffic(number, key, true);
                self.announce_circuits();
                if let (Some(booking), Some(planner)) = (booking, &mut self.circuits.planner) {
                    planner.apply_event(booking, BookingEvent::Established { mbit }, now);
                }
            }
            Action::StopUsing(key) => {
                self.switch_traffic(number, key, false);
                self.announce_circuits();
                if let Some(line) = self.circuits.managed.get_mut(&number) {
                    line.is_used = false;
                }
            }
        }
        self.update_routes_where(|source, target| (source, target) == pair);
    }

    fn notify_circuit(&mut self, number: u32, event: Event) {
        let now = self.time();
        if let Some(line) = self.circuits.managed.get_mut(&number) {
            line.lifecycle.handle(event, now);
        }
    }

    /// What was moved until now went the way it was before.
    fn switch_traffic(&mut self, number: u32, key: RequestKey, used: bool) {
        let Some(pair) = self.circuits.managed.get(&number).map(|line| line.pair) else { return };
        if !used {
            self.count_moved(pair);
            return self.circuit_providers.set_active(key, false);
        }
        if let Some(line) = self.circuits.managed.get_mut(&number) {
            line.is_used = false;
        }
        self.count_moved(pair);
        // Another one of this pair carries nothing from now on.
        for line in self.circuits.managed.values_mut().filter(|line| line.pair == pair) {
            line.is_used = false;
        }
        if let Some(line) = self.circuits.managed.get_mut(&number) {
            line.is_used = true;
        }
        self.circuit_providers.set_active(key, true);
    }

    fn request_circuit(&mut self, number: u32, wish: CircuitRequest) {
        let Some(line) = self.circuits.managed.get(&number) else { return };
        let (provider, pair) = (line.provider, line.pair);
        let row = &self.plan.layout.providers[provider];
        let lifetime =
            wish.lifetime.map_or(row.lifetime, |lifetime| lifetime.as_secs_f64().min(row.lifetime));
        let until = self.now + micros(row.setup + lifetime);
        self.circuits.summary.asked += 1;
        match self.circuit_providers.reserve(self.plan, provider, wish.key, pair, wish.mbit, until) {
            Ok(index) => {
                self.count_reserved();
                self.flows.capacity[index as usize] = wish.mbit as f64 * MBIT_BYTES_PER_S;
                self.update_port_capacity(pair);
                self.schedule_after(row.setup, SimEvent::CircuitGranted { number, key: wish.key });
            }
            Err(refusal) => {
                self.circuits.summary.refused += 1;
                let answer = Answer::Refused { less: refusal.less, detail: refusal.detail.to_owned() };
                self.notify_circuit(number, Event::Answer { key: wish.key, answer });
            }
        }
    }

    pub(crate) fn on_granted(&mut self, number: u32, key: RequestKey) {
        let Some(line) = self.circuits.managed.get(&number) else { return };
        let reservation = line.lifecycle.ledger().reservations.into_iter().find(|one| one.key == key);
        let (Some(reservation), true) = (reservation, self.circuit_providers.is_reserved(key)) else {
            return;
        };
        let row = &self.plan.layout.providers[line.provider];
        let expires = self.circuit_providers.until(key).map(|at| Timestamp(START.0 + at));
        let name = |site: usize| self.plan.layout.sites[site].name.clone();
        let ends = CircuitEndpoints {
            source: name(line.pair.0),
            target: format!("{} by {}", name(line.pair.1), row.name),
        };
        let answer = Answer::Granted(Grant { mbit: reservation.mbit, ends, expires });
        self.handle_circuit_event(number, Event::Answer { key, answer });
    }

    fn release_circuit(&mut self, key: RequestKey) {
        self.count_reserved();
        if let Some((pair, _)) = self.circuit_providers.release(key) {
            self.update_port_capacity(pair);
            self.announce_circuits();
            self.update_routes_where(|source, target| (source, target) == pair);
        }
    }

    /// Which links go by circuits now, as the service tells it.
    fn announce_circuits(&mut self) {
        let on_circuit = |((source, target), index): ((usize, usize), u32)| LinkCircuit {
            source: StorageId(source as u64),
            target: StorageId(target as u64),
            bytes_per_s: self.flows.capacity[index as usize],
        };
        let all = self.circuit_providers.active_capacities().map(on_circuit).collect();
        self.handle(longhaul_scheduler::Event::Circuits(all));
    }

    /// What is reserved is not there for others.
    fn update_port_capacity(&mut self, pair: (usize, usize)) {
        let [out, into] = self.circuit_providers.reserved(pair);
        let sites = &self.plan.layout.sites;
        let ends = [(sites[pair.0].out_capacities.first(), out), (sites[pair.1].in_capacities.first(), into)];
        for (index, reserved) in ends {
            if let Some(&index) = index {
                self.reserved[index as usize] = reserved;
                self.update_capacity(index as usize);
            }
        }
    }

    /// A booking whose life is over.
    fn remove_if_ended(&mut self, number: u32) {
        let Some(line) = self.circuits.managed.get(&number) else { return };
        let Some(booking) = line.booking else { return };
        let over = matches!(line.lifecycle.state(), State::Off | State::Cooldown(_));
        if !over || !line.lifecycle.ledger().reservations.is_empty() {
            return;
        }
        let news = if line.was_used {
            BookingEvent::Ended { carried: line.carried as u64 }
        } else {
            BookingEvent::Failed
        };
        self.circuits.managed.remove(&number);
        let now = self.time();
        if let Some(planner) = &mut self.circuits.planner {
            planner.apply_event(booking, news, now);
        }
    }

    /// Bytes and busy seconds of a pair since the beginning.
    fn moved_of(&mut self, pair: (usize, usize)) -> (f64, f64) {
        let flows = self.flows.flows_of_pair(pair.0, pair.1);
        flows.into_iter().fold((0.0, 0.0), |(bytes, busy), flow| {
            self.flows.advance(flow, self.now);
            let row = &self.flows.rows[flow as usize];
            (bytes + row.moved, f64::max(busy, row.busy_s))
        })
    }

    fn count_moved(&mut self, pair: (usize, usize)) {
        let (bytes, busy) = self.moved_of(pair);
        let (bytes_before, busy_before) =
            self.circuits.moved_before.insert(pair, (bytes, busy)).unwrap_or_default();
        let (bytes, busy) = ((bytes - bytes_before).max(0.0), (busy - busy_before).max(0.0));
        let on_circuit = self.circuit_providers.active_capacity(pair.0, pair.1).is_some();
        if on_circuit {
            self.circuits.summary.bytes += bytes as u128;
        } else if busy > 0.0 {
            let sum = self.circuits.carried.entry(pair).or_default();
            let kept = (CARRIED_WINDOW_S / (sum.1 + busy)).min(1.0);
            *sum = ((sum.0 + bytes) * kept, (sum.1 + busy) * kept);
        }
        let event = Event::Moved { on_circuit, bytes: bytes as u64, during: Duration::from_secs_f64(busy) };
        let now = self.time();
        for line in self.circuits.managed.values_mut().filter(|line| line.pair == pair) {
            if line.is_used {
                line.carried += bytes;
            }
            if busy > 0.0 {
                line.lifecycle.handle(event.clone(), now);
            }
        }
    }
}

fn provider(row: &crate::circuit_provider::ProviderPlan) -> Provider {
    Provider {
        name: row.name.clone(),
        sites: Some(row.sites.iter().map(|&site| SiteId(site as u64)).collect()),
        mbit: row.mbit.clone(),
        pairs: None,
        bypasses_ports: false,
        one_circuit_per_pair: false,
        setup: Duration::from_secs_f64(row.setup),
        circuits_max: row.capacities.len() as u32,
        mbit_total_max: row.mbit_all,
        port_share: row.port_share,
        lifetime: Duration::from_secs_f64(row.lifetime),
        requests_per_hour: row.requests_per_hour,
    }
}
