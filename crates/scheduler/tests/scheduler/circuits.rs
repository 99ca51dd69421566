//! Links that go by circuits: believed at once, used before what is not due, and left at once.

use std::time::Duration;

use longhaul_model::StorageId;
use longhaul_scheduler::*;

use crate::world::*;

const MB: u64 = 1_000_000;
const SECONDS: Duration = Duration::from_secs(1);
const BOOKED: f64 = 500e6;

fn circuits(links: &[(u64, u64)]) -> Event {
    let one = |&(source, target): &(u64, u64)| LinkCircuit {
        source: StorageId(source),
        target: StorageId(target),
        bytes_per_s: BOOKED,
    };
    Event::Circuits(links.iter().map(one).collect())
}

/// What came from each of two sources within that time.
fn bytes_arrived(world: &mut World, target: u64, time: Duration) -> [u64; 2] {
    let before = [0, 1].map(|source| world.bytes_between(source, target));
    world.run_for(time);
    [0, 1].map(|source| world.bytes_between(source, target) - before[source as usize])
}

/// Two sources with the same files: the first of 10 MB/s, and far more by its circuit; the second of 60 MB/s.
#[test]
fn a_source_with_a_circuit_is_chosen_from_the_first_moment_and_not_after_its_last() {
    let mut places = vec![WorldSite::new(10e6), WorldSite::new(60e6), WorldSite::new(1e9)];
    places[2].limits.active_in = Some(8);
    let mut world = World::new(places, 1);
    world.add_files(1, 0, vec![2 * MB; 10_000]);
    world.replicas.extend((0..10_000).map(|file| (file, 1)));
    world.subscribe(1, &[1], 2, 5);
    world.run_for(30 * SECONDS);
    let [first, second] = bytes_arrived(&mut world, 2, 10 * SECONDS);
    assert!(second > 3 * first, "{first} and {second} the plain way");

    world.places[0].out_bytes_per_s = BOOKED;
    world.handle(circuits(&[(0, 2)]));
    world.reasons.clear();
    let [first, second] = bytes_arrived(&mut world, 2, 3 * SECONDS);
    assert!(first > 3 * second && first > 200 * MB, "{first} and {second} by the circuit");
    let said = |reason: &&String| reason.starts_with("storage-0 by a circuit, because it finishes first");
    assert!(world.reasons.iter().filter(said).count() > 50, "{:?}", world.reasons.first());

    world.places[0].out_bytes_per_s = 10e6;
    world.handle(circuits(&[]));
    // What was leased before comes as it can.
    world.run_for(5 * SECONDS);
    world.reasons.clear();
    let [first, second] = bytes_arrived(&mut world, 2, 5 * SECONDS);
    assert!(second > 3 * first, "{first} and {second} after it");
    assert!(!world.reasons.is_empty() && !world.reasons.iter().any(|reason| reason.contains("circuit")));
    world.run(Duration::from_secs(3_600));
}

/// The older work comes from the second source, the younger from the first, and the target takes two files at
/// a time.
fn queues(older_is_due: bool) -> World {
    let mut places = vec![WorldSite::new(BOOKED), WorldSite::new(20e6), WorldSite::new(1e9)];
    places[2].limits.active_in = Some(2);
    let mut world = World::new(places, 1);
    world.add_files(1, 1, vec![10 * MB; 500]);
    world.add_files(2, 0, vec![10 * MB; 500]);
    if older_is_due {
        world.deadlines.insert(1, world.now);
    }
    world.subscribe(1, &[1], 2, 5);
    world.run_for(SECONDS);
    world.subscribe(2, &[2], 2, 5);
    world
}

#[test]
fn what_comes_by_a_circuit_goes_before_what_is_not_due_yet() {
    let mut world = queues(false);
    let [younger, older] = bytes_arrived(&mut world, 2, 3 * SECONDS);
    assert!(older > younger, "by age: {older} and {younger}");
    world.handle(circuits(&[(0, 2)]));
    let [younger, older] = bytes_arrived(&mut world, 2, 3 * SECONDS);
    assert!(younger > 5 * older, "by the circuit: {younger} and {older}");
    // Nothing is lost by it.
    world.run(Duration::from_secs(3_600));
}

#[test]
fn what_is_due_is_overtaken_by_no_circuit_and_neither_is_a_higher_priority() {
    let mut world = queues(true);
    world.handle(circuits(&[(0, 2)]));
    let [younger, older] = bytes_arrived(&mut world, 2, 5 * SECONDS);
    assert!(older > younger, "{older} and {younger}");

    let mut world = queues(false);
    world.subscriptions.get_mut(&1).unwrap().2 = 8;
    world.tell_demands(1);
    world.handle(circuits(&[(0, 2)]));
    let [younger, older] = bytes_arrived(&mut world, 2, 5 * SECONDS);
    assert!(older > younger, "{older} and {younger}");
}

/// Work that may not take the plain way waits, says why, is told as what waits, and goes with the first
/// circuit.
#[test]
fn work_that_goes_by_circuits_only_waits_for_one() {
    let mut world = World::new(vec![WorldSite::new(BOOKED), WorldSite::new(1e9), WorldSite::new(1e9)], 1);
    world.add_files(1, 0, vec![10 * MB; 300]);
    world.add_files(2, 0, vec![10 * MB; 30]);
    world.parties.insert(1, party("cms", Some("raw")));
    world.parties.insert(2, party("cms", None));
    let rule = |activity: Option<&str>, only| CircuitRule {
        community: Some("cms".parse().unwrap()),
        activity: activity.map(|name| name.parse().unwrap()),
        only,
    };
    let circuits_of = vec![rule(Some("raw"), true), rule(None, false)];
    world.handle(Event::Limits(Limits { circuits: circuits_of, ..Limits::default() }));
    world.subscribe(1, &[1], 2, 5);
    world.subscribe(2, &[2], 2, 5);
    world.run_for(10 * SECONDS);
    assert_eq!(world.bytes_between(0, 2), 300 * MB, "what may take the plain way did");
    let rows = world.scheduler.transfers(None, None, 200);
    let why = world.scheduler.explain_wait(rows[0].transfer, world.now).unwrap();
    assert!(why.contains("has no circuit to this storage now, and this work goes by circuits only"), "{why}");
    let ahead = world.scheduler.link_backlogs(StorageId(2), world.now);
    assert_eq!(ahead.iter().map(|link| link.bytes).sum::<u64>(), 3_000 * MB, "{ahead:?}");
    assert!(ahead.iter().all(|link| link.plain_expected <= 1.0), "{ahead:?}");
    world.handle(circuits(&[(0, 2)]));
    world.run_for(3 * SECONDS);
    assert!(world.bytes_between(0, 2) > 1_000 * MB, "{}", world.bytes_between(0, 2));
    world.handle(circuits(&[]));
    world.run_for(5 * SECONDS);
    let stopped = world.bytes_between(0, 2);
    world.run_for(5 * SECONDS);
    assert_eq!(world.bytes_between(0, 2), stopped, "what was leased came, and nothing after it");
    world.handle(circuits(&[(0, 2)]));
    world.run(Duration::from_secs(60));
}
