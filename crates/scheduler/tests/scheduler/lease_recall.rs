//! Lease recall: leases that wait behind a link that became slow are recalled, returned unless they have
//! begun, and served by another source; and nothing is recalled where that would not help.

use std::time::Duration;

use longhaul_model::StorageId;
use longhaul_scheduler::*;

use crate::world::{World, WorldSite};

const MB: u64 = 1_000_000;

/// Both sources have all files; the target takes more than both give.
fn two_sources(lease_recall: bool) -> World {
    let settings = Settings { lease_recall, ..Settings::default() };
    let mut world =
        World::with(vec![WorldSite::new(1e9), WorldSite::new(4e8), WorldSite::new(2e9)], 7, settings);
    world.add_files(1, 0, vec![10 * MB; 2_800]);
    (0..world.files.len() as u64).for_each(|file| {
        world.replicas.insert((file, 1));
    });
    world.subscribe(1, &[1], 2, 5);
    world
}

/// After 16 s most is there; then the faster source falls by fifty. Seconds until all is there.
fn after_a_fall(world: &mut World) -> f64 {
    world.run_for(Duration::from_secs(16));
    world.places[0].out_bytes_per_s = 2e7;
    16.0 + world.run(Duration::from_secs(3_600)).as_secs_f64()
}

#[test]
fn leases_behind_a_slow_link_come_from_another_source() {
    let (mut kept, mut again) = (two_sources(false), two_sources(true));
    let (slow, fast) = (after_a_fall(&mut kept), after_a_fall(&mut again));
    assert!(kept.recalled.is_empty());
    assert!(again.given_back > 50, "{} given back", again.given_back);
    assert!(fast < 0.6 * slow, "{fast} s with lease recall, {slow} s without");
    // Promise 3: each file came once; and what was given back was not tried.
    assert!(again.arrivals.len() == 2_800 && again.arrivals.values().all(|&times| times == 1));
    let why = &again.recalled[0];
    assert!(
        why.starts_with("storage-0 gives ") && why.contains("from storage-1 after "),
        "with numbers, in words: {why}"
    );
    let left = again.scheduler.counts_of(StorageId(2));
    assert_eq!((left.leased, left.leased_bytes), (0, 0), "no sum is off");
}

/// Promise 5: an agent that has begun them all gives none back, and nothing is moved twice.
#[test]
fn attempts_that_began_are_not_recalled() {
    let mut world = two_sources(true);
    world.run_for(Duration::from_secs(16));
    world.running.values_mut().for_each(|running| running.started = true);
    let begun: Vec<_> = world.running.keys().copied().collect();
    world.places[0].out_bytes_per_s = 2e7;
    world.run_for(Duration::from_secs(16));
    assert!(world.recalled.len() > 20, "{}", world.recalled.len());
    let from_slow = begun
        .iter()
        .filter(|&&id| world.running.get(&id).is_some_and(|one| one.lease.source == StorageId(0)));
    assert!(from_slow.count() > 20, "the agent goes on with them, though asked");
    assert!(world.recalled.len() as u64 > world.given_back + 20);
    world.run(Duration::from_secs(3_600));
    assert!(world.arrivals.values().all(|&times| times == 1));
    assert_eq!(world.scheduler.counts_of(StorageId(2)).leased_bytes, 0, "no sum is off");
}

#[test]
fn nothing_is_recalled_in_a_steady_world_or_without_another_source() {
    let mut steady = two_sources(true);
    steady.run(Duration::from_secs(3_600));
    assert_eq!(steady.recalled, Vec::<String>::new());
    let mut alone = World::new(vec![WorldSite::new(1e9), WorldSite::new(2e9)], 7);
    alone.add_files(1, 0, vec![10 * MB; 1_200]);
    alone.subscribe(1, &[1], 1, 5);
    alone.run_for(Duration::from_secs(8));
    alone.places[0].out_bytes_per_s = 2e7;
    alone.run(Duration::from_secs(3_600));
    assert_eq!(alone.recalled, Vec::<String>::new());
}
