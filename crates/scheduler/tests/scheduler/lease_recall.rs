//! Leases that wait behind a link that has become slow are asked back, given back unless they have begun, and
//! come from elsewhere; and nothing is asked back where that would not help.

use std::time::Duration;

use longhaul_model::StorageId;
use longhaul_scheduler::*;

use crate::world::{Place, World};

const MB: u64 = 1_000_000;

/// Both sources have all files; the target takes more than both give.
fn two_sources(second_thoughts: bool) -> World {
    let settings = Settings { lease_recall: second_thoughts, ..Settings::default() };
    let mut world = World::with(vec![Place::new(1e9), Place::new(4e8), Place::new(2e9)], 7, settings);
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
fn leases_behind_a_link_that_fell_come_from_elsewhere() {
    let (mut kept, mut again) = (two_sources(false), two_sources(true));
    let (slow, fast) = (after_a_fall(&mut kept), after_a_fall(&mut again));
    assert!(kept.asked_back.is_empty());
    assert!(again.given_back > 50, "{} given back", again.given_back);
    assert!(fast < 0.6 * slow, "{fast} s with second thoughts, {slow} s without");
    // Promise 3: each file came once; and what was given back was not tried.
    assert!(again.arrivals.len() == 2_800 && again.arrivals.values().all(|&times| times == 1));
    let why = &again.asked_back[0];
    assert!(
        why.starts_with("storage-0 gives ") && why.contains("from storage-1 after "),
        "with numbers, in words: {why}"
    );
    let left = again.scheduler.counts_of(StorageId(2));
    assert_eq!((left.leased, left.leased_bytes), (0, 0), "no sum is off");
}

/// Promise 5: an agent that has begun them all gives none back, and nothing is moved twice.
#[test]
fn what_has_begun_goes_on() {
    let mut world = two_sources(true);
    world.run_for(Duration::from_secs(16));
    world.running.values_mut().for_each(|running| running.started = true);
    let begun: Vec<_> = world.running.keys().copied().collect();
    world.places[0].out_bytes_per_s = 2e7;
    world.run_for(Duration::from_secs(16));
    assert!(world.asked_back.len() > 20, "{}", world.asked_back.len());
    let from_slow = begun
        .iter()
        .filter(|&&id| world.running.get(&id).is_some_and(|one| one.lease.source == StorageId(0)));
    assert!(from_slow.count() > 20, "the agent goes on with them, though asked");
    assert!(world.asked_back.len() as u64 > world.given_back + 20);
    world.run(Duration::from_secs(3_600));
    assert!(world.arrivals.values().all(|&times| times == 1));
    assert_eq!(world.scheduler.counts_of(StorageId(2)).leased_bytes, 0, "no sum is off");
}

#[test]
fn nothing_is_asked_back_in_a_steady_world_or_where_there_is_no_other_source() {
    let mut steady = two_sources(true);
    steady.run(Duration::from_secs(3_600));
    assert_eq!(steady.asked_back, Vec::<String>::new());
    let mut alone = World::new(vec![Place::new(1e9), Place::new(2e9)], 7);
    alone.add_files(1, 0, vec![10 * MB; 1_200]);
    alone.subscribe(1, &[1], 1, 5);
    alone.run_for(Duration::from_secs(8));
    alone.places[0].out_bytes_per_s = 2e7;
    alone.run(Duration::from_secs(3_600));
    assert_eq!(alone.asked_back, Vec::<String>::new());
}
