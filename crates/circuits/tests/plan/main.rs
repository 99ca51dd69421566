//! The central planner: each of its rules, and what holds whatever waits and whatever becomes of its wishes.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod renewal;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_circuits::plan::{
    BookingEvent, BookingId, BookingRequest, BookingState, Decision, PendingWork, PlanSettings, PlanView,
    Planner, Port, Provider, Reason, SitePair,
};
use longhaul_model::{SiteId, Timestamp};
use proptest::prelude::*;

const START: Timestamp = Timestamp(1_790_000_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Bytes a second of a Gbit/s.
const GBIT: f64 = 125e6;
const TB: u64 = 1_000_000_000_000;

fn pair(source: u64, target: u64) -> SitePair {
    SitePair { source: SiteId(source), target: SiteId(target) }
}

fn waits(source: u64, target: u64, bytes: u64, priority: u8) -> PendingWork {
    PendingWork {
        target: SiteId(target),
        sources: vec![SiteId(source)],
        bytes,
        priority,
        community: if priority >= 8 { "urgent" } else { "bulk" }.parse().unwrap(),
        since: START,
    }
}

fn provider(at_once: u32) -> Provider {
    Provider {
        name: "exchange".to_owned(),
        sites: None,
        mbit: vec![1_000, 2_000, 5_000],
        pairs: None,
        bypasses_ports: false,
        one_circuit_per_pair: false,
        setup: 2 * MINUTE,
        circuits_max: at_once,
        mbit_total_max: None,
        port_share: 0.6,
        lifetime: 6 * HOUR,
        requests_per_hour: 100,
    }
}

/// Six sites with 10 Gbit/s each, a mesh of links that carry 1 Gbit/s; time goes on by a minute from plan to
/// plan.
struct World {
    planner: Planner,
    view: PlanView,
    now: Timestamp,
}

impl World {
    fn new(settings: PlanSettings, rows: Vec<PendingWork>) -> World {
        let port = Port { outward: 10.0 * GBIT, inward: 10.0 * GBIT };
        let mut view = PlanView { pending: rows, providers: vec![provider(4)], ..PlanView::default() };
        view.ports = (0..6).map(|site| (SiteId(site), port)).collect();
        let pairs = (0..6).flat_map(|from| (0..6).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        view.best_effort = pairs.map(|(from, to)| (pair(from, to), GBIT)).collect();
        World { planner: Planner::new(settings), view, now: START }
    }

    fn usual(rows: Vec<PendingWork>) -> World {
        World::new(PlanSettings::default(), rows)
    }

    fn plan(&mut self) -> Vec<Decision> {
        self.now = self.now.plus(MINUTE);
        self.planner.plan(&self.view, self.now)
    }

    fn plans(&mut self, count: usize) -> Vec<Decision> {
        (0..count).flat_map(|_| self.plan()).collect()
    }

    /// As many plans as it takes to be sure.
    fn asked(&mut self) -> Vec<BookingRequest> {
        requests(&self.plans(2))
    }

    fn up(&mut self, request: &BookingRequest) {
        self.planner.apply_event(request.booking, BookingEvent::Established { mbit: request.mbit }, self.now);
    }

    fn why(&self, pair: SitePair) -> &Reason {
        &self.planner.reason(pair).expect("a reason").1
    }
}

fn requests(decisions: &[Decision]) -> Vec<BookingRequest> {
    let asked = decisions.iter().filter_map(|decision| match decision {
        Decision::Request(request) => Some(request.clone()),
        Decision::Release { .. } => None,
    });
    asked.collect()
}

fn releases(decisions: &[Decision]) -> Vec<(BookingId, Reason)> {
    let left = decisions.iter().filter_map(|decision| match decision {
        Decision::Release { booking, reason: why, .. } => Some((*booking, why.clone())),
        Decision::Request(_) => None,
    });
    left.collect()
}

#[test]
fn a_circuit_that_saves_time_is_requested_with_its_reason() {
    let mut world = World::usual(vec![waits(0, 1, 4 * TB, 5)]);
    assert!(world.plan().is_empty(), "once is not enough");
    assert_eq!(*world.why(pair(0, 1)), Reason::AwaitingConfirmation { seen: 1, of: 2 });
    let asked = requests(&world.plan());
    assert_eq!(asked.len(), 1);
    let request = &asked[0];
    assert_eq!((request.pair, request.mbit, request.replaces), (pair(0, 1), 5_000, None));
    // 4 TB at 5 Gbit/s take 1.8 h; somewhat more is booked.
    assert!((2 * HOUR..3 * HOUR).contains(&request.lifetime), "{:?}", request.lifetime);
    assert_eq!(
        request.reason.to_string(),
        "4.00 TB take 8.9 h the plain way and 108 min with 5 Gbit/s; others at its ports lose 0 % of their \
            rate"
    );
    assert!(world.plans(5).is_empty(), "what is asked for is not asked for again");
}

#[test]
fn a_gain_must_be_confirmed_in_consecutive_plans() {
    let mut world = World::usual(vec![waits(0, 1, 4 * TB, 5)]);
    let rows = std::mem::take(&mut world.view.pending);
    for _ in 0..3 {
        world.view.pending.clone_from(&rows);
        assert!(world.plan().is_empty());
        world.view.pending.clear();
        assert!(world.plan().is_empty());
    }
}

#[test]
fn work_below_the_priority_floor_gets_no_circuit_until_it_has_aged() {
    let mut world = World::usual(vec![waits(0, 1, 40 * TB, 3)]);
    assert!(world.asked().is_empty());
    assert_eq!(*world.why(pair(0, 1)), Reason::BelowPriorityFloor { highest: 3, floor: 5 });
    world.now = START.plus(12 * HOUR);
    assert_eq!(world.asked().len(), 1, "6 h are worth a priority");
}

#[test]
fn little_work_or_a_fast_link_gets_no_circuit() {
    // 20 min of work, of which a circuit would save 14.
    let mut world = World::usual(vec![waits(0, 1, 150_000_000_000, 8)]);
    assert!(world.asked().is_empty());
    assert!(matches!(world.why(pair(0, 1)), Reason::SavesTooLittle { .. }));
    let mut world = World::usual(vec![waits(0, 1, 40 * TB, 8)]);
    world.view.best_effort.insert(pair(0, 1), 5.5 * GBIT);
    assert!(world.asked().is_empty());
    assert!(matches!(world.why(pair(0, 1)), Reason::BestEffortSuffices { mbit: 5_000, .. }));
    // It saves 2 h of 11: not a fifth.
    world.view.best_effort.insert(pair(0, 1), 4.2 * GBIT);
    assert!(world.asked().is_empty());
    assert!(matches!(world.why(pair(0, 1)), Reason::SavesTooLittle { .. }));
}

#[test]
fn unknown_links_get_no_circuit() {
    let mut world = World::usual(vec![waits(0, 1, 40 * TB, 8)]);
    world.view.best_effort.remove(&pair(0, 1));
    assert!(world.asked().is_empty());
}

#[test]
fn a_measured_rate_precedes_a_lower_forecast() {
    let mut world = World::usual(vec![waits(0, 1, 40 * TB, 8)]);
    world.view.observed.insert(pair(0, 1), 5.0 * GBIT);
    assert!(world.asked().is_empty());
}

#[test]
fn losses_of_others_at_the_ports_count() {
    // Two links fill the port that the circuit would take half of, for work that is far more urgent.
    let rows = vec![waits(0, 1, 4 * TB, 5), waits(0, 2, 9 * TB, 9), waits(0, 3, 9 * TB, 9)];
    let mut world = World::usual(rows);
    world.view.best_effort.insert(pair(0, 2), 5.0 * GBIT);
    world.view.best_effort.insert(pair(0, 3), 5.0 * GBIT);
    assert!(world.asked().is_empty());
    assert!(matches!(world.why(pair(0, 1)), Reason::CostsOthers { .. }), "{}", world.why(pair(0, 1)));
    // The other end's port counts as well.
    let rows = vec![waits(1, 0, 4 * TB, 5), waits(2, 0, 9 * TB, 9), waits(3, 0, 9 * TB, 9)];
    let mut world = World::usual(rows);
    world.view.best_effort.insert(pair(2, 0), 5.0 * GBIT);
    world.view.best_effort.insert(pair(3, 0), 5.0 * GBIT);
    assert!(world.asked().is_empty());
    // Where there is room beside them, it is asked for.
    world.view.ports.insert(SiteId(0), Port { outward: 40.0 * GBIT, inward: 40.0 * GBIT });
    assert_eq!(world.asked().len(), 1);
    // And what is not ours there takes room.
    let mut full = World::usual(world.view.pending.clone());
    full.view = world.view.clone();
    full.view.foreign_traffic.insert((SiteId(0), true), 30.0 * GBIT);
    assert!(full.asked().is_empty());
}

#[test]
fn a_port_is_never_reserved_beyond_its_share() {
    let rows = (1..6).map(|target| waits(0, target, 20 * TB, 8)).collect();
    let mut world = World::usual(rows);
    world.view.providers[0].circuits_max = 10;
    let asked = world.plans(10);
    let sum: u64 = requests(&asked).iter().map(|request| request.mbit).sum();
    assert!((5_000..=6_000).contains(&sum), "{sum}");
    let without =
        (1..6).map(|target| pair(0, target)).find(|pair| matches!(world.why(*pair), Reason::PortFull { .. }));
    let reasons: Vec<_> = world.planner.reasons().map(|(_, reason)| reason.to_string()).collect();
    assert!(without.is_some(), "{reasons:?}");
}

#[test]
fn the_only_circuit_goes_to_the_highest_priority() {
    for urgent in 0..2 {
        let priority = |link| if link == urgent { 8 } else { 5 };
        let mut world =
            World::usual(vec![waits(0, 1, 9 * TB, priority(0)), waits(2, 3, 9 * TB, priority(1))]);
        world.view.providers = vec![provider(1)];
        let asked = world.asked();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].pair, [pair(0, 1), pair(2, 3)][urgent]);
        let other = [pair(0, 1), pair(2, 3)][1 - urgent];
        assert!(matches!(world.why(other), Reason::ProviderFull { circuits: 1, .. }));
    }
}

#[test]
fn provider_limits_are_respected() {
    let rows = vec![waits(0, 1, 9 * TB, 8), waits(2, 3, 9 * TB, 8), waits(4, 5, 9 * TB, 8)];
    let mut world = World::usual(rows.clone());
    world.view.providers[0].mbit_total_max = Some(12_000);
    let asked = world.plans(6);
    assert_eq!(requests(&asked).iter().map(|request| request.mbit).sum::<u64>(), 12_000);
    let mut world = World::usual(rows);
    world.view.providers[0].requests_per_hour = 2;
    assert_eq!(requests(&world.plans(6)).len(), 2);
    world.view.providers[0].sites = Some(BTreeSet::from([SiteId(0), SiteId(1)]));
    world.now = world.now.plus(HOUR);
    assert!(world.asked().is_empty(), "it does not reach the others");
}

#[test]
fn budgets_are_enforced_and_unused_parts_refunded() {
    let settings = PlanSettings { budget: Some(12.0), ..PlanSettings::default() };
    let mut world = World::new(settings, vec![waits(0, 1, 4 * TB, 8), waits(2, 3, 4 * TB, 8)]);
    let asked = world.asked();
    assert_eq!(asked.len(), 1, "one costs 12 Gbit/s·h, the other has to wait");
    let other = if asked[0].pair == pair(0, 1) { pair(2, 3) } else { pair(0, 1) };
    assert!(matches!(world.why(other), Reason::Budget { .. }), "{}", world.why(other));
    let booked = world.planner.booked_gbit_hours(&"urgent".parse().unwrap());
    assert!((11.0..=12.0).contains(&booked), "{booked}");
    world.planner.apply_event(asked[0].booking, BookingEvent::Failed, world.now);
    assert_eq!(world.planner.booked_gbit_hours(&"urgent".parse().unwrap()), 0.0);
    assert_eq!(world.asked()[0].pair, other, "its turn; the first one rests");
    // Another community has its own.
    world.view.pending.push(waits(4, 5, 4 * TB, 7));
    assert_eq!(world.asked()[0].pair, pair(4, 5));
}

#[test]
fn bookings_do_not_exceed_what_storages_can_use() {
    let mut world = World::usual(vec![waits(0, 1, 9 * TB, 8)]);
    world.view.storage_rate_max.insert(pair(0, 1), 1.9 * GBIT);
    assert_eq!(world.asked()[0].mbit, 2_000);
}

#[test]
fn shared_work_counts_for_a_source_that_could_have_a_circuit() {
    let mut row = waits(0, 1, 9 * TB, 8);
    row.sources = vec![SiteId(0), SiteId(2)];
    let mut world = World::usual(vec![row]);
    world.view.best_effort.insert(pair(2, 1), 2.0 * GBIT);
    let reach = BTreeSet::from([SiteId(0), SiteId(1)]);
    world.view.providers[0].sites = Some(reach);
    let asked = world.asked();
    assert_eq!(asked[0].pair, pair(0, 1), "the slower source has it");
    let Reason::Gains { before, after, .. } = asked[0].reason else { panic!("{:?}", asked[0].reason) };
    // 3 Gbit/s of both before, 7 after.
    assert!((before.as_secs_f64() / 24_000.0 - 1.0).abs() < 0.01, "{before:?}");
    assert!((after.as_secs_f64() / 10_350.0 - 1.0).abs() < 0.01, "{after:?}");
}

#[test]
fn a_circuit_is_released_when_little_work_is_left() {
    let mut world = World::usual(vec![waits(0, 1, 4 * TB, 8)]);
    let request = world.asked().remove(0);
    world.up(&request);
    world.view.pending[0].bytes = TB;
    assert!(world.plans(20).is_empty(), "it has something to do");
    world.view.pending[0].bytes = TB / 100;
    assert!(world.plan().is_empty(), "once is not enough");
    let left = releases(&world.plan());
    assert!(matches!(left[0], (booking, Reason::Idle { .. }) if booking == request.booking), "{left:?}");
    assert!(world.plans(5).is_empty(), "said once");
    world.planner.apply_event(request.booking, BookingEvent::Ended { carried: 3 * TB }, world.now);
    world.view.pending[0].bytes = 9 * TB;
    assert!(world.plans(30).is_empty(), "it rests");
    assert_eq!(requests(&world.plans(40)).len(), 1);
}

#[test]
fn a_far_larger_gain_preempts_a_circuit() {
    let mut world = World::usual(vec![waits(0, 1, 9 * TB, 5)]);
    world.view.providers = vec![provider(1)];
    let request = world.asked().remove(0);
    world.up(&request);
    world.view.pending.push(waits(2, 3, 9 * TB, 5));
    assert!(world.plans(20).is_empty(), "no more urgent");
    world.view.pending[1].priority = 8;
    let decisions = world.plans(3);
    let left = releases(&decisions);
    assert!(
        matches!(left[..], [(booking, Reason::Preempted { .. })] if booking == request.booking),
        "{left:?}"
    );
    assert!(requests(&decisions).is_empty(), "not before it is gone");
    world.planner.apply_event(request.booking, BookingEvent::Ended { carried: TB }, world.now);
    assert_eq!(world.asked()[0].pair, pair(2, 3));
}

#[test]
fn refusals_back_off_exponentially() {
    let mut world = World::usual(vec![waits(0, 1, 90 * TB, 8)]);
    for hours in [1, 2, 4] {
        let request = world.asked().remove(0);
        world.planner.apply_event(request.booking, BookingEvent::Failed, world.now);
        assert!(matches!(world.why(pair(0, 1)), Reason::CoolingDown { .. }));
        assert!(world.plans(60 * hours - 1).is_empty(), "{hours} h");
    }
    let request = world.asked().remove(0);
    world.up(&request);
    // Lost soon after: as a refusal, of which it is the first in a row.
    world.planner.apply_event(request.booking, BookingEvent::Ended { carried: 0 }, world.now.plus(MINUTE));
    assert!(world.plans(60).is_empty());
    assert_eq!(world.asked().len(), 1);
}

#[test]
fn a_provider_without_gain_is_suspended() {
    let rows = vec![waits(0, 1, 90 * TB, 8), waits(2, 3, 90 * TB, 8), waits(4, 5, 90 * TB, 8)];
    let mut world = World::usual(rows.clone());
    let asked = world.asked();
    assert_eq!(asked.len(), 3);
    asked.iter().for_each(|request| world.up(request));
    world.plans(60);
    // The plain way would have carried 450 GB in that hour.
    for request in &asked {
        world.planner.apply_event(
            request.booking,
            BookingEvent::Ended { carried: 100_000_000_000 },
            world.now,
        );
    }
    assert!(world.planner.gained("exchange") < 0.0);
    world.view.pending = vec![waits(1, 0, 90 * TB, 8)];
    assert!(world.plans(60 * 23).is_empty());
    assert!(matches!(world.why(pair(1, 0)), Reason::ProviderSuspended { .. }));
    assert_eq!(requests(&world.plans(120)).len(), 1, "it gets another chance");
    // The same with circuits that carried what they had promised.
    let mut world = World::usual(rows);
    let asked = world.asked();
    asked.iter().for_each(|request| world.up(request));
    world.plans(60);
    for request in &asked {
        world.planner.apply_event(request.booking, BookingEvent::Ended { carried: 2 * TB }, world.now);
    }
    assert!(world.planner.gained("exchange") > 4e12);
    world.view.pending = vec![waits(1, 0, 90 * TB, 8)];
    assert_eq!(world.asked().len(), 1);
}

#[test]
fn circuit_rates_do_not_change_the_best_effort_rate() {
    let mut world = World::usual(vec![waits(0, 1, 90 * TB, 8)]);
    let request = world.asked().remove(0);
    world.up(&request);
    // Forecasts follow what is seen.
    world.view.best_effort.insert(pair(0, 1), 5.0 * GBIT);
    assert!(world.plans(60).is_empty(), "it is not useless for that");
    let at = world.now.plus(5 * HOUR);
    world.now = at;
    world.planner.apply_event(request.booking, BookingEvent::Ended { carried: 13 * TB }, at);
    assert_eq!(world.asked().len(), 1, "an old belief is no reason to wait");
}

#[test]
fn an_outage_affects_only_its_own_links() {
    let mut world = World::usual(vec![waits(0, 1, 90 * TB, 8), waits(2, 3, 90 * TB, 8)]);
    let asked = world.asked();
    assert_eq!(asked.len(), 2);
    asked.iter().for_each(|request| world.up(request));
    let [hit, spared] = [pair(0, 1), pair(2, 3)]
        .map(|pair| asked.iter().find(|request| request.pair == pair).unwrap().booking);
    world.plans(15);
    world.view.unreachable_sites.insert(SiteId(1));
    // Everything looks different now, and stays as it is.
    world.view.pending = vec![waits(0, 1, 90 * TB, 8), waits(4, 5, 90 * TB, 9)];
    let touched = BTreeSet::from([SiteId(1)]);
    for _ in 0..3 {
        world.now = world.now.plus(MINUTE);
        let decisions = world.planner.plan_around(&world.view, &touched, world.now);
        for decision in decisions {
            assert!(
                matches!(decision, Decision::Release { booking, reason: Reason::SiteUnreachable { .. },
                    .. } if booking == hit),
                "{decision:?}"
            );
        }
    }
    let stand = |booking| world.planner.circuits().find(|circuit| circuit.booking == booking).unwrap().state;
    assert!(matches!(stand(hit), BookingState::Releasing { .. }));
    assert!(matches!(stand(spared), BookingState::Established { .. }));
}

/// Work on each of 3,540 links, and room for as many circuits: a plan asks for some, the next ones for more.
#[test]
fn planning_is_bounded_for_any_backlog() {
    let pairs = (0..60).flat_map(|from| (0..60).map(move |to| (from, to)));
    let pairs: Vec<(u64, u64)> = pairs.filter(|(from, to)| from != to).collect();
    let rows = pairs.iter().map(|(from, to)| waits(*from, *to, 20 * TB, 5 + (from + to) as u8 % 5)).collect();
    let mut world = World::usual(rows);
    world.view.providers =
        vec![Provider { mbit_total_max: None, requests_per_hour: 10_000, ..provider(1_000) }];
    let port = Port { outward: 100.0 * GBIT, inward: 100.0 * GBIT };
    world.view.ports = (0..60).map(|site| (SiteId(site), port)).collect();
    world.view.best_effort = pairs.iter().map(|(from, to)| (pair(*from, *to), GBIT)).collect();
    let counts: Vec<usize> = (0..6).map(|_| requests(&world.plan()).len()).collect();
    assert_eq!(counts, [0, 32, 32, 32, 32, 32]);
}

/// Every reason can be said.
#[test]
fn reasons_are_sentences() {
    let mut world = World::usual(vec![waits(0, 1, 4 * TB, 3), waits(2, 3, 4 * TB, 8)]);
    world.plans(3);
    for (_, reason) in world.planner.reasons() {
        let words = reason.describe(&|site| format!("site-{site}"));
        assert!(words.len() > 20 && !words.contains("Reason") && !words.contains('{'), "{words}");
    }
    assert_eq!(
        world.why(pair(0, 1)).to_string(),
        "what waits has priority 3 of 9, circuits are for 5 and above"
    );
}

// ---- whatever happens -------------------------------------------------------------------------------------

/// What becomes of the wishes, in turn.
#[derive(Clone, Copy, Debug)]
enum CircuitFate {
    Granted { less: bool },
    Refused,
    Lost,
    Slow,
}

fn rows() -> impl Strategy<Value = Vec<PendingWork>> {
    let row = (0..6_u64, 1..6_u64, 0..30_u64, 1..10_u8, prop::collection::vec(0..6_u64, 0..3));
    prop::collection::vec(row, 0..25).prop_map(|rows| {
        let one = |(source, more, tb, priority, others): (u64, u64, u64, u8, Vec<u64>)| {
            let mut row = waits(source, (source + more) % 6, tb * TB, priority);
            row.sources.extend(others.into_iter().map(SiteId));
            row
        };
        rows.into_iter().map(one).collect()
    })
}

fn fate() -> impl Strategy<Value = CircuitFate> {
    prop_oneof![
        6 => any::<bool>().prop_map(|less| CircuitFate::Granted { less }),
        1 => Just(CircuitFate::Refused),
        1 => Just(CircuitFate::Lost),
        1 => Just(CircuitFate::Slow),
    ]
}

/// What the planner may hold, counted by somebody else.
fn within_bounds(world: &World, settings: &PlanSettings, cost: &BTreeMap<BookingId, (Timestamp, f64)>) {
    let mut ports: BTreeMap<(SiteId, bool), f64> = BTreeMap::new();
    let mut links: BTreeMap<SitePair, Vec<BookingState>> = BTreeMap::new();
    let (mut count, mut mbit) = (0, 0);
    for circuit in world.planner.circuits() {
        *ports.entry((circuit.pair.source, false)).or_default() += circuit.mbit as f64 * 125_000.0;
        *ports.entry((circuit.pair.target, true)).or_default() += circuit.mbit as f64 * 125_000.0;
        links.entry(circuit.pair).or_default().push(circuit.state);
        count += 1;
        mbit += circuit.mbit;
    }
    let provider = &world.view.providers[0];
    assert!(count <= provider.circuits_max && provider.mbit_total_max.is_none_or(|all| mbit <= all));
    for ((site, inward), reserved) in ports {
        let port = world.view.ports[&site];
        let of = if inward { port.inward } else { port.outward } * provider.port_share;
        assert!(reserved <= of * (1.0 + 1e-9), "{reserved} of {of}");
    }
    for (pair, stands) in links {
        let waiting = stands.iter().filter(|stand| matches!(stand, BookingState::Requested)).count();
        let used = stands.iter().filter(|stand| matches!(stand, BookingState::Established { .. })).count();
        assert!(waiting <= 1 && used <= 2 && stands.len() <= 3, "{pair:?}: {stands:?}");
    }
    let hour = cost.values().filter(|(at, _)| world.now.since(*at) < HOUR).count();
    assert!(hour <= provider.requests_per_hour as usize);
    if let Some(budget) = settings.budget {
        let spent: f64 = ["bulk", "urgent"]
            .iter()
            .map(|name| {
                let booked = world.planner.booked_gbit_hours(&name.parse().unwrap());
                assert!(booked <= budget + 1e-9, "{name} has booked {booked} of {budget}");
                booked
            })
            .sum();
        let window = cost.values().filter(|(at, _)| world.now.since(*at) < settings.budget_window);
        let most: f64 = window.map(|(_, cost)| cost).sum();
        assert!(spent <= most + 1e-6);
    }
}

/// In the test command; more where more of everything is asked for.
const WORLDS: u32 = 40;

fn worlds() -> ProptestConfig {
    let default = ProptestConfig::default();
    // What the library reads from the environment is 256 unless somebody wants more or fewer.
    ProptestConfig { cases: (WORLDS * default.cases / 256).max(1), ..default }
}

proptest! {
    #![proptest_config(worlds())]

    /// Never more than ports, provider and budgets have, over restarts too; and the same again gives the
    /// same.
    #[test]
    fn limits_hold_for_any_work_and_outcome(
        waits in prop::collection::vec(rows(), 1..12), fates in prop::collection::vec(fate(), 1..12),
        at_once in 1..8_u32, all in prop::option::of(1_000..20_000_u64), share in 0.1..1.0_f64,
            per_hour in 1..20_u32,
        budget in prop::option::of(1.0..200.0_f64), floor in 1..9_u8, away in prop::option::of(0..6_u64),
        killed in prop::collection::vec(prop::option::weighted(0.3, 0..20_u32), 12),
    ) {
        let settings = PlanSettings { budget, priority_floor: floor, ..PlanSettings::default() };
        let mut world = World::new(settings.clone(), Vec::new());
        world.view.providers = vec![Provider {
            mbit_total_max: all, port_share: share, requests_per_hour: per_hour, ..provider(at_once)
        }];
        let mut twin = Planner::new(settings.clone());
        let mut fates = fates.into_iter().cycle();
        let mut cost: BTreeMap<BookingId, (Timestamp, f64)> = BTreeMap::new();
        let mut leaving: Vec<BookingId> = Vec::new();
        for (step, rows) in waits.into_iter().enumerate() {
            world.view.pending = rows;
            world.view.unreachable_sites = away.filter(|_| step % 4 == 3).map(SiteId).into_iter().collect();
            for minute in 0..20 {
                if killed[step] == Some(minute) {
                    world.planner = restarted(&world.planner, &settings);
                    twin = restarted(&twin, &settings);
                    within_bounds(&world, &settings, &cost);
                }
                let mut news: Vec<(BookingId, BookingEvent)> =
                    leaving.drain(..).map(|booking| (booking, BookingEvent::Ended { carried: TB })).collect();
                let decisions = world.plan();
                prop_assert_eq!(&decisions, &twin.plan(&world.view, world.now));
                for decision in decisions {
                    match decision {
                        Decision::Release { booking, .. } => leaving.push(booking),
                        Decision::Request(request) => {
                            let hours = request.lifetime.as_secs_f64() / 3600.0;
                            cost.insert(request.booking, (world.now, request.mbit as f64 / 1000.0 * hours));
                            prop_assert!(request.lifetime <= 6 * HOUR);
                            let row = world.view.pending.iter().any(|row| {
                                row.target == request.pair.target
                                    && row.sources.contains(&request.pair.source)
                            });
                            prop_assert!(row, "nothing waits there");
                            prop_assert!(!request.pair_is_away(&world.view));
                            let id = request.booking;
                            match fates.next().unwrap() {
                                CircuitFate::Granted { less } => {
                                    let mbit = if less { request.mbit / 2 } else { request.mbit };
                                    news.push((id, BookingEvent::Established { mbit }));
                                }
                                CircuitFate::Refused => news.push((id, BookingEvent::Failed)),
                                CircuitFate::Lost => {
                                    news.push((id, BookingEvent::Established { mbit: request.mbit }));
                                    news.push((id, BookingEvent::Ended { carried: 0 }));
                                }
                                CircuitFate::Slow => {}
                            }
                        }
                    }
                }
                within_bounds(&world, &settings, &cost);
                for (id, what) in news {
                    world.planner.apply_event(id, what, world.now);
                    twin.apply_event(id, what, world.now);
                }
                within_bounds(&world, &settings, &cost);
            }
        }
    }

    /// While nothing changes, what was decided stays: links are not asked for again and again.
    #[test]
    fn decisions_are_stable_while_nothing_changes(rows in rows(), at_once in 1..8_u32,
        share in 0.3..1.0_f64) {
        let mut world = World::usual(rows);
        // It does not grow older either.
        world.view.pending.iter_mut().for_each(|row| row.since = START.plus(100 * HOUR));
        world.view.providers = vec![Provider { port_share: share, ..provider(at_once) }];
        let mut asked: BTreeMap<SitePair, u32> = BTreeMap::new();
        let mut gave_way: BTreeMap<SitePair, u32> = BTreeMap::new();
        let (mut left, mut renewals) = (0, 0);
        let mut said = Vec::new();
        for _ in 0..5 * 60 {
            for decision in world.plan() {
                said.push(format!("{:?}: {decision:?}", world.now.since(START)));
                match decision {
                    Decision::Request(request) => {
                        world.up(&request);
                        // What follows one that expires is no change.
                        let renewed = matches!(request.reason, Reason::Renewed { .. });
                        *asked.entry(request.pair).or_default() += u32::from(!renewed);
                        renewals += usize::from(renewed);
                    }
                    Decision::Release { booking, pair, reason } => {
                        left += 1;
                        let gives_way = matches!(reason, Reason::Preempted { .. });
                        *gave_way.entry(pair).or_default() += u32::from(gives_way);
                        world.planner.apply_event(booking, BookingEvent::Ended { carried: 5 * TB },
                            world.now);
                    }
                }
            }
        }
        // What others gain changes with each circuit, so that one may give way and come again; then it rests
        // for long.
        let times = |pair: &SitePair| gave_way.get(pair).copied().unwrap_or(0);
        prop_assert!(gave_way.values().all(|times| *times <= 2), "{said:#?}");
        // Each time one, and another that fits better.
        prop_assert!(asked.iter().all(|(pair, count)| *count <= 2 + 2 * times(pair)), "{said:#?}");
        prop_assert!(left <= asked.values().map(|count| *count as usize).sum::<usize>() + renewals);
    }

    /// The only circuit goes to the link of higher priority, if two links differ in that alone.
    #[test]
    fn the_higher_priority_comes_first(one in 5..10_u8, more in 1..5_u8, tb in 3..40_u64) {
        let other = 5 + (one - 5 + more) % 5;
        let mut world = World::usual(vec![waits(0, 1, tb * TB, one), waits(2, 3, tb * TB, other)]);
        world.view.providers = vec![provider(1)];
        let asked = world.asked();
        prop_assert_eq!(asked.len(), 1);
        prop_assert_eq!(asked[0].pair, if one > other { pair(0, 1) } else { pair(2, 3) });
    }

    /// What waits below the priority of endless others has its circuit within the time in which it has become
    /// as urgent, and one lifetime of a circuit.
    #[test]
    fn nobody_waits_forever((low, high) in (2..10_u8).prop_flat_map(|high| (1..high, Just(high)))) {
        let mut world = World::usual(vec![waits(0, 1, 9 * TB, low), waits(2, 3, 90 * TB, high)]);
        world.view.providers = vec![provider(1)];
        let bound = 8 * 6 + 7;
        let mut had = false;
        let mut held: Option<(BookingRequest, Timestamp)> = None;
        for _ in 0..bound * 60 {
            // What is urgent is always new.
            world.view.pending[1].since = world.now;
            if let Some((request, _)) = held.take_if(|(_, until)| *until <= world.now) {
                world.planner.apply_event(request.booking, BookingEvent::Ended { carried: 9 * TB },
                    world.now);
            }
            for decision in world.plan() {
                match decision {
                    Decision::Request(request) => {
                        world.up(&request);
                        had |= request.pair == pair(0, 1);
                        held = Some((request.clone(), world.now.plus(request.lifetime)));
                    }
                    Decision::Release { booking, .. } => {
                        world.planner.apply_event(booking, BookingEvent::Ended { carried: 9 * TB },
                            world.now);
                        held.take_if(|(request, _)| request.booking == booking);
                    }
                }
            }
        }
        prop_assert!(had, "{low} waited {bound} h behind {high}");
    }
}

trait Ends {
    fn pair_is_away(&self, view: &PlanView) -> bool;
}

impl Ends for BookingRequest {
    fn pair_is_away(&self, view: &PlanView) -> bool {
        view.unreachable_sites.contains(&self.pair.source)
            || view.unreachable_sites.contains(&self.pair.target)
    }
}

/// As of a service that is killed and started again.
fn restarted(planner: &Planner, settings: &PlanSettings) -> Planner {
    let text = serde_json::to_string(&planner.snapshot()).unwrap();
    Planner::restore(settings.clone(), serde_json::from_str(&text).unwrap())
}

impl World {
    fn restart(&mut self) {
        self.planner = restarted(&self.planner, &PlanSettings::default());
    }
}

#[test]
fn a_restart_repeats_no_request_and_keeps_back_offs() {
    let mut world = World::usual(vec![waits(0, 1, 40 * TB, 8), waits(2, 3, 40 * TB, 8)]);
    let asked = world.asked();
    assert_eq!(asked.len(), 2);
    world.up(&asked[0]);
    world.restart();
    assert!(world.plans(5).is_empty(), "both are there");
    let stands: Vec<BookingState> = world.planner.circuits().map(|circuit| circuit.state).collect();
    assert!(matches!(stands[..], [BookingState::Established { .. }, BookingState::Requested]), "{stands:?}");
    world.planner.apply_event(asked[1].booking, BookingEvent::Failed, world.now);
    world.restart();
    assert!(world.plans(10).is_empty());
    assert!(matches!(world.why(asked[1].pair), Reason::CoolingDown { .. }));
    // What was booked before still counts, and new names repeat none.
    assert!(world.planner.booked_gbit_hours(&"urgent".parse().unwrap()) > 0.0);
    world.view.pending.push(waits(4, 5, 40 * TB, 8));
    let more = world.asked();
    assert!(more.len() == 1 && more[0].booking > asked[1].booking, "{more:?}");
}

#[test]
fn circuits_of_a_lost_plan_are_adopted() {
    let mut world = World::usual(vec![waits(0, 1, 40 * TB, 8)]);
    let booking = world.planner.adopt(pair(0, 1), "exchange", 5_000, START, HOUR);
    assert!(world.plans(5).is_empty(), "it is there");
    world.planner.apply_event(booking, BookingEvent::Established { mbit: 5_000 }, world.now);
    world.view.pending.clear();
    assert_eq!(releases(&world.plans(15)).len(), 1, "and given back when nothing waits");
}

#[test]
fn foreign_circuits_block_their_pair_and_take_capacity() {
    let mut world = World::usual(vec![waits(0, 1, 40 * TB, 8), waits(2, 1, 40 * TB, 8)]);
    world.view.providers = vec![Provider { mbit: vec![5_000], ..provider(4) }];
    let held = longhaul_circuits::plan::ForeignCircuit { provider: "exchange".to_owned(), mbit: 5_000 };
    world.view.foreign_circuits.insert(pair(0, 1), held);
    assert!(world.asked().is_empty());
    assert_eq!(*world.why(pair(0, 1)), Reason::HeldElsewhere);
    assert!(matches!(world.why(pair(2, 1)), Reason::PortFull { .. }), "{:?}", world.why(pair(2, 1)));
    // A line of its own takes nothing from the port.
    world.view.providers[0].bypasses_ports = true;
    let asked = world.asked();
    assert_eq!(asked.len(), 1);
    assert!(matches!(asked[0].reason, Reason::Gains { others_lose: 0.0, .. }), "{:?}", asked[0].reason);
}
