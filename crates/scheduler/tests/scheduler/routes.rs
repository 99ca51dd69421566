//! Routes of several hops: files reach targets to which no replica has a link, over storages that let them
//! pass.

use std::time::Duration;

use longhaul_model::StorageId;

use crate::world::{World, WorldSite};

const MB: u64 = 1_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

fn world(places: usize, relays: &[usize], pairs: &[(u64, u64)]) -> World {
    let mut rows = vec![WorldSite::new(100e6); places];
    relays.iter().for_each(|&relay| rows[relay].relay = true);
    let mut world = World::new(rows, 1);
    world.limit_links(pairs.iter().copied());
    world
}

#[test]
fn files_pass_through_two_relays_and_each_hop_is_moved_once() {
    let mut world = world(4, &[1, 2], &[(0, 1), (1, 2), (2, 3)]);
    world.add_files(1, 0, vec![5 * MB; 100]);
    world.subscribe(1, &[1], 3, 5);
    world.run_for(Duration::from_millis(300));
    let row = world
        .scheduler
        .transfers(None, None, 200)
        .into_iter()
        .find(|row| row.target == StorageId(3))
        .unwrap();
    let waits = world.scheduler.explain_wait(row.transfer, world.now).unwrap();
    assert_eq!(waits, "it comes over storage-1: storage-0 has no link to its target");
    let took = world.run(HOUR);
    for (source, target) in [(0, 1), (1, 2), (2, 3)] {
        assert_eq!(world.bytes_between(source, target), 500 * MB, "from {source} to {target}");
    }
    // 5 s of bytes for each hop; the hops overlap.
    assert!(took < Duration::from_secs(10), "{took:?}");
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.scheduler.counts(), Default::default(), "nothing is left behind");
}

#[test]
fn who_is_no_relay_is_passed_by_and_without_a_way_files_wait() {
    let mut world = world(4, &[2], &[(0, 1), (1, 3), (0, 2)]);
    world.add_files(1, 0, vec![MB; 10]);
    world.subscribe(1, &[1], 3, 5);
    world.run_for(Duration::from_secs(100));
    assert_eq!(world.leases, 0);
    let row = world.scheduler.transfers(None, None, 1)[0].transfer;
    assert_eq!(
        world.scheduler.explain_wait(row, world.now).unwrap(),
        "no route leads from storage-0 to its target"
    );
    world.limit_links([(0, 2), (2, 3)]);
    world.run(HOUR);
    assert_eq!((world.bytes_between(0, 2), world.bytes_between(2, 3)), (10 * MB, 10 * MB));
}

#[test]
fn a_way_opens_when_its_relay_comes_back_and_the_faster_one_is_taken() {
    let mut world = world(4, &[1, 2], &[(0, 1), (0, 2), (1, 3), (2, 3)]);
    for relay in [1, 2] {
        world.places[relay].connected = false;
        world.tell_agent(relay as u64);
    }
    world.add_files(1, 0, vec![MB; 50]);
    world.subscribe(1, &[1], 3, 5);
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.leases, 0);
    world.places[2].connected = true;
    world.tell_agent(2);
    world.run(HOUR);
    assert_eq!(world.bytes_between(2, 3), 50 * MB);
    assert_eq!(world.bytes_between(0, 1), 0);
}

/// What passes through for one is no longer wanted there, or is wanted there for itself: nothing is lost.
#[test]
fn a_relay_may_want_the_files_itself_and_stop_wanting_them() {
    let mut world = world(3, &[1], &[(0, 1), (1, 2)]);
    world.add_files(1, 0, vec![5 * MB; 60]);
    world.subscribe(1, &[1], 2, 5);
    world.run_for(Duration::from_millis(400));
    world.subscribe(2, &[1], 1, 9);
    world.run_for(Duration::from_millis(400));
    world.cancel(2);
    world.run(HOUR);
    assert_eq!(world.bytes_between(1, 2), 300 * MB);
    assert!(world.arrivals.values().all(|&times| times == 1));
}

/// A smaller block for one target and a larger one for two come over the relay 1: the larger one first, as it
/// is less for each.
#[test]
fn what_more_targets_wait_for_passes_first() {
    for others in [[3, 4], [1, 3]] {
        let mut world = world(5, &[1], &[(0, 1), (1, 2), (1, 3), (1, 4)]);
        world.add_files(1, 0, vec![5 * MB; 60]);
        world.add_files(2, 0, vec![5 * MB; 80]);
        world.subscribe(1, &[1], 2, 5);
        world.subscribe(2, &[2], others[0], 5);
        world.subscribe(3, &[2], others[1], 5);
        world.run_for(Duration::from_secs(4));
        let (smaller, larger) = (world.bytes_between(1, 2), world.bytes_between(1, 3));
        assert!(larger >= 90 * MB && smaller <= 20 * MB, "{others:?}: {larger} and {smaller} bytes");
        world.run(HOUR);
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.scheduler.counts(), Default::default());
    }
}

#[test]
fn what_only_passes_through_stops_when_nobody_wants_it_any_more() {
    let mut world = world(4, &[1, 2], &[(0, 1), (1, 2), (2, 3)]);
    world.add_files(1, 0, vec![5 * MB; 400]);
    world.subscribe(1, &[1], 3, 5);
    world.run_for(Duration::from_secs(1));
    assert!(world.scheduler.counts().leased > 0);
    world.cancel(1);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.scheduler.counts(), Default::default());
    let moved = world.bytes_between(0, 1);
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.bytes_between(0, 1), moved, "the rest of 2 GB stays where it is");
}

/// Storage 1 is a relay between 0 and 2; the link from 0 to 2 carries 5 MB/s, all else 100.
fn slow_link() -> World {
    let mut rows = vec![WorldSite::new(100e6); 3];
    rows[1].relay = true;
    let mut world = World::new(rows, 1);
    world.slow.insert((0, 2), 5e6);
    world
}

/// Something has moved over both halves of the way before.
fn measured(world: &mut World) {
    world.add_files(8, 0, vec![10 * MB; 50]);
    world.add_files(9, 1, vec![10 * MB; 50]);
    world.subscribe(8, &[8], 1, 5);
    world.subscribe(9, &[9], 2, 5);
    world.run(HOUR);
}

#[test]
fn a_slow_link_and_a_way_over_a_relay_are_both_used() {
    let mut world = slow_link();
    measured(&mut world);
    let before = world.bytes_between(0, 1);
    world.add_files(1, 0, vec![10 * MB; 600]);
    world.subscribe(1, &[1], 2, 5);
    // The first files over the slow link have come, and links have been looked at.
    world.run_for(Duration::from_secs(30));
    let rows = world.scheduler.transfers(None, None, 2_000);
    let waits = rows.iter().filter(|row| row.target == StorageId(2) && row.leased.is_none());
    let waits: Vec<String> =
        waits.filter_map(|row| world.scheduler.explain_wait(row.transfer, world.now)).collect();
    assert!(
        waits.iter().any(|text| text.starts_with("it comes over storage-1: ") && text.ends_with(" directly")),
        "{:?}",
        waits.first()
    );
    let took = world.run(HOUR);
    // 6 GB: 20 minutes directly, a minute over the relay.
    assert!(took < Duration::from_secs(100), "{took:?}");
    let (direct, first) = (world.bytes_between(0, 2), world.bytes_between(0, 1) - before);
    assert!(direct > 300 * MB, "the slow link idles: {direct}");
    assert!(first > 4_000 * MB, "{first}");
    // Hardly anything went both ways.
    assert!(direct + first < 6_200 * MB, "{direct} directly, {first} to the relay");
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.scheduler.counts(), Default::default(), "nothing is left behind");
}

#[test]
fn what_was_never_measured_is_no_reason_for_a_detour() {
    let mut world = slow_link();
    world.add_files(1, 0, vec![10 * MB; 60]);
    world.subscribe(1, &[1], 2, 5);
    world.run(HOUR);
    assert_eq!((world.bytes_between(0, 1), world.bytes_between(0, 2)), (0, 600 * MB));
}

/// Five sources share the port of the target: each link is slow, but no way is faster.
#[test]
fn a_full_port_is_no_reason_for_a_detour() {
    let mut rows = vec![WorldSite::new(100e6); 7];
    rows[5].relay = true;
    let mut world = World::new(rows, 1);
    for source in 0..5 {
        world.add_files(10 + source, source, vec![10 * MB; 30]);
        world.subscribe(10 + source, &[10 + source], 5, 5);
    }
    world.add_files(20, 5, vec![10 * MB; 100]);
    world.subscribe(20, &[20], 6, 5);
    world.run(HOUR);
    let before: u64 = (0..5).map(|source| world.bytes_between(source, 5)).sum();
    for source in 0..5 {
        world.add_files(source, source, vec![10 * MB; 200]);
        world.subscribe(source, &[source], 6, 5);
    }
    world.run(HOUR);
    let after: u64 = (0..5).map(|source| world.bytes_between(source, 5)).sum();
    assert_eq!(after, before);
}
