//! What communities and activities get of a target that all of them want.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{BlockId, FileId, StorageId, SubscriptionId};
use longhaul_scheduler::*;

use crate::world::*;

const MB: u64 = 1_000_000;

/// What arrived at target 1 of each block: bytes, and a megabyte for each file, as turns are counted.
fn by_block(world: &World) -> BTreeMap<u64, u64> {
    let mut bytes = BTreeMap::new();
    for &(file, _) in world.arrivals.keys() {
        let row = &world.files[file as usize];
        *bytes.entry(row.block).or_default() += row.size + MB;
    }
    bytes
}

fn community(weight: f64, activities: &[(&str, f64)]) -> CommunityShare {
    let activities = activities.iter().map(|(name, weight)| (name.parse().unwrap(), *weight)).collect();
    CommunityShare { activities, ..CommunityShare::with_weight(weight) }
}

/// One source, one target of 100 MB/s, and a subscription to a block of its own per party.
fn contended(shares: Shares, parties: &[Party]) -> World {
    let mut world = World::new(vec![WorldSite::new(100e6), WorldSite::new(100e6)], 1);
    world.handle(Event::Shares(shares));
    for (block, party) in (1u64..).zip(parties) {
        // Files of different sizes, and more of them than arrive in the time looked at.
        world.add_files(block, 0, (0..3_000).map(|at| MB + at % 7 * block * MB));
        world.parties.insert(block, party.clone());
        world.subscribe(block, &[block], 1, 5);
    }
    world
}

/// What a target lacks is told by whose it is and how urgent, and becomes less as it comes.
#[test]
fn what_is_lacking_is_told_by_party_and_priority() {
    let mut world = World::new(vec![WorldSite::new(100e6), WorldSite::new(100e6)], 1);
    for (block, name, priority) in [(1, "atlas", 8), (2, "cms", 5)] {
        world.add_files(block, 0, (0..100).map(|_| block * MB));
        world.parties.insert(block, party(name, None));
        world.subscribe(block, &[block], 1, priority);
    }
    let lacking = |world: &World| {
        let mut rows = world.scheduler.missing_bytes(StorageId(1));
        rows.sort_by_key(|row| row.priority);
        rows
    };
    let row = |name, priority, bytes| MissingBytes { party: party(name, None), priority, bytes };
    assert_eq!(lacking(&world), [row("cms", 5, 200 * MB), row("atlas", 8, 100 * MB)]);
    assert_eq!(world.scheduler.missing_bytes(StorageId(0)), []);
    world.run_for(Duration::from_secs(1));
    let left: u64 = lacking(&world).iter().map(|row| row.bytes).sum();
    assert!((150 * MB..290 * MB).contains(&left), "{left}");
    world.run_for(Duration::from_secs(10));
    assert_eq!(lacking(&world), []);
}

#[test]
fn communities_and_activities_get_their_shares_while_all_want_more() {
    let communities = BTreeMap::from([
        ("atlas".parse().unwrap(), community(3.0, &[("production", 4.0), ("analysis", 1.0)])),
        ("cms".parse().unwrap(), community(1.0, &[])),
    ]);
    let parties = [party("atlas", Some("production")), party("atlas", Some("analysis")), party("cms", None)];
    let mut world = contended(Shares { communities, default: 1.0 }, &parties);
    world.run_for(Duration::from_secs(60));
    let got = by_block(&world);
    let all: u64 = got.values().sum();
    let part = |block: u64| got[&block] as f64 / all as f64;
    for (block, wanted) in [(1, 0.6), (2, 0.15), (3, 0.25)] {
        assert!((part(block) - wanted).abs() < 0.02, "block {block} got {:.3}, not {wanted}", part(block));
    }
    assert!(all > 5_500 * MB, "the target is kept busy: {all}");
}

#[test]
fn what_one_community_does_not_use_is_the_others() {
    let communities = BTreeMap::from([("atlas".parse().unwrap(), community(9.0, &[]))]);
    let parties = [party("atlas", None), party("cms", None)];
    let mut world = contended(Shares { communities, default: 1.0 }, &parties);
    world.run_for(Duration::from_secs(30));
    world.cancel(1);
    let before = by_block(&world)[&2];
    world.run_for(Duration::from_secs(10));
    assert!(by_block(&world)[&2] - before > 900 * MB, "all of the target is the other's now");
}

#[test]
fn shares_that_sum_to_zero_are_equal_ones() {
    let communities = BTreeMap::from([
        ("atlas".parse().unwrap(), community(0.0, &[])),
        ("cms".parse().unwrap(), community(f64::NAN, &[])),
    ]);
    let parties = [party("atlas", None), party("cms", None)];
    let mut world = contended(Shares { communities, default: -1.0 }, &parties);
    world.run_for(Duration::from_secs(30));
    let got = by_block(&world);
    let part = got[&1] as f64 / (got[&1] + got[&2]) as f64;
    assert!((part - 0.5).abs() < 0.02, "{part}");
}

/// Next to no weight takes what is left for as long as nobody else wants it. When others come they share by
/// their weights, to the byte; and when its own is raised, it has that from then on: what it took before is
/// held against nobody for ever.
#[test]
fn a_weight_of_nothing_leaves_no_debt_and_no_disorder() {
    let weights = |cms: f64| {
        let rows = [("atlas", 3e6), ("cms", cms), ("lhcb", 1e6)];
        let communities = rows.map(|(name, weight)| (name.parse().unwrap(), community(weight, &[])));
        Shares { communities: communities.into(), default: 1.0 }
    };
    let mut world = World::new(vec![WorldSite::new(100e6), WorldSite::new(100e6)], 1);
    world.handle(Event::Shares(weights(0.0)));
    for (block, name) in [(1, "atlas"), (2, "cms"), (3, "lhcb")] {
        world.add_files(block, 0, (0..6_000).map(|_| 2 * MB));
        world.parties.insert(block, party(name, None));
    }
    world.subscribe(2, &[2], 1, 5);
    world.run_for(Duration::from_secs(60));
    assert!(by_block(&world)[&2] > 5_000 * MB, "nobody else wants it");
    let comes = |world: &mut World, seconds: u64| {
        let before = by_block(world);
        world.run_for(Duration::from_secs(seconds));
        let after = by_block(world);
        let got = [1, 2, 3].map(|block| {
            let of = |got: &BTreeMap<u64, u64>| got.get(&block).copied().unwrap_or(0);
            (of(&after) - of(&before)) as f64
        });
        let all: f64 = got.iter().sum();
        got.map(|got| got / all)
    };
    world.subscribe(1, &[1], 1, 5);
    world.subscribe(3, &[3], 1, 5);
    comes(&mut world, 5);
    let parts = comes(&mut world, 40);
    for (part, wanted) in parts.into_iter().zip([0.75, 0.0, 0.25]) {
        assert!((part - wanted).abs() < 0.02, "{parts:?}");
    }
    world.handle(Event::Shares(weights(4e6)));
    comes(&mut world, 5);
    let parts = comes(&mut world, 30);
    for (part, wanted) in parts.into_iter().zip([0.375, 0.5, 0.125]) {
        assert!((part - wanted).abs() < 0.02, "{parts:?}");
    }
}

/// A community whose only source has a slow port cannot use its share; while it waits it loses nothing but
/// what it could not use, and afterwards it does not starve the other for long.
#[test]
fn waiting_for_a_source_earns_a_bounded_claim() {
    let mut world = World::new(vec![WorldSite::new(5e6), WorldSite::new(100e6), WorldSite::new(100e6)], 1);
    for (block, source) in [(1, 0), (2, 2)] {
        world.add_files(block, source, (0..20_000).map(|_| MB));
        world.parties.insert(block, party(["", "atlas", "cms"][block as usize], None));
        world.subscribe(block, &[block], 1, 5);
    }
    world.run_for(Duration::from_secs(60));
    let got = by_block(&world);
    assert!(got[&1] > 200 * MB, "the slow source is used: {}", got[&1]);
    assert!(got[&2] > 5_000 * MB, "and the rest is the other's: {}", got[&2]);
    world.places[0].out_bytes_per_s = 100e6;
    world.run_for(Duration::from_secs(90));
    let before = by_block(&world);
    world.run_for(Duration::from_secs(10));
    let after = by_block(&world);
    let part = (after[&1] - before[&1]) as f64 / (after[&1] + after[&2] - before[&1] - before[&2]) as f64;
    assert!((part - 0.5).abs() < 0.1, "after its claim both have their shares: {part}");
}

/// Two communities with one slow source between them, while a third keeps the target full: both wait for as
/// long as it goes on, and share the source by their weights; and so what they catch up on when it is fast.
#[test]
fn those_that_wait_for_the_same_source_share_it_by_their_weights() {
    let mut world = World::new(vec![WorldSite::new(10e6), WorldSite::new(100e6), WorldSite::new(100e6)], 1);
    let communities = BTreeMap::from([("atlas".parse().unwrap(), community(3.0, &[]))]);
    world.handle(Event::Shares(Shares { communities, default: 1.0 }));
    for (block, name, source) in [(1, "atlas", 0), (2, "cms", 0), (3, "lhcb", 2)] {
        world.add_files(block, source, (0..10_000).map(|at| MB + at % 3 * MB));
        world.parties.insert(block, party(name, None));
        world.subscribe(block, &[block], 1, 5);
    }
    let part = |world: &mut World, seconds: u64| {
        let before = by_block(world);
        world.run_for(Duration::from_secs(seconds));
        let after = by_block(world);
        let [one, other] = [1, 2].map(|block| {
            let of = |got: &BTreeMap<u64, u64>| got.get(&block).copied().unwrap_or(0);
            (of(&after) - of(&before)) as f64
        });
        one / (one + other)
    };
    part(&mut world, 60);
    let slow = part(&mut world, 120);
    assert!((slow - 0.75).abs() < 0.03, "{slow}");
    world.places[0].out_bytes_per_s = 100e6;
    let fast = part(&mut world, 30);
    assert!((fast - 0.75).abs() < 0.03, "{fast}");
}

/// An answer that was read before a replica came, and is heard after it: the replica is a source all the
/// same.
#[test]
fn an_older_answer_does_not_hide_a_newer_replica() {
    let mut world = World::new(vec![WorldSite::new(1e9); 3], 1);
    world.add_files(1, 0, [MB]);
    let demand = DemandId { subscription: SubscriptionId(1), block: BlockId(1) };
    world.subscribe(1, &[1], 2, 5);
    let now = world.now;
    let asked = world.scheduler.poll_decision(now);
    assert!(matches!(asked, Some(Decision::Expand { .. })), "{asked:?}");
    world.handle(Event::ReplicaAdded { file: FileId(0), storage: StorageId(1) });
    let files = vec![WantedFile { file: FileId(0), size: MB, sources: vec![StorageId(0)] }];
    world.handle(Event::Files { demand, files, exhausted: true });
    let Some(Decision::Lease(lease)) = world.scheduler.poll_decision(now) else { panic!("no lease") };
    assert_eq!(lease.choice.candidates.len(), 2);
}
