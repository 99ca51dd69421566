//! Limits of links, storages and communities, set while files move, and links that are not commissioned.

use std::time::Duration;

use longhaul_model::StorageId;
use longhaul_network::{Bottleneck, Link};
use longhaul_scheduler::*;

use crate::world::*;

const MB: u64 = 1_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// A source with much for a target of 100 MB/s, charged to `community`.
fn busy(files: usize, size: u64, community: &str) -> World {
    let mut world = World::new(vec![WorldSite::new(100e6); 3], 1);
    world.add_files(1, 0, vec![size; files]);
    world.parties.insert(1, party(community, None));
    world.subscribe(1, &[1], 1, 5);
    world
}

fn active(limit: u32) -> Limit {
    Limit { active: Some(limit), bytes_per_s: None }
}

fn rate(limit: u64) -> Limit {
    Limit { active: None, bytes_per_s: Some(limit) }
}

fn link(source: u64, target: u64) -> (StorageId, StorageId) {
    (StorageId(source), StorageId(target))
}

/// Each kind of limit that this work is subject to.
fn every_kind(limit: Limit) -> [Limits; 4] {
    [
        Limits { links: vec![(link(0, 1), limit)], ..Limits::default() },
        Limits { into: vec![(StorageId(1), limit)], ..Limits::default() },
        Limits { out: vec![(StorageId(0), limit)], ..Limits::default() },
        Limits { communities: vec![("atlas".parse().unwrap(), limit)], ..Limits::default() },
    ]
}

fn why(world: &World) -> String {
    let rows = world.scheduler.transfers(None, None, 200);
    let row = rows.iter().find(|row| row.leased.is_none()).unwrap();
    world.scheduler.explain_wait(row.transfer, world.now).unwrap()
}

#[test]
fn files_at_once_are_never_more_than_the_limit_and_all_come() {
    for (kind, limits) in every_kind(active(3)).into_iter().enumerate() {
        let mut world = busy(200, 5 * MB, "atlas");
        world.handle(Event::Limits(limits));
        for _ in 0..20 {
            world.run_for(Duration::from_millis(100));
            let leased = world.scheduler.counts().leased;
            assert!(leased <= 3, "kind {kind}: {leased} at once");
        }
        assert!(world.leases > 6, "kind {kind}: work goes on within the limit");
        let why = why(&world);
        assert!(why.contains("3 files at a time, ") && why.contains("limit"), "kind {kind}: {why}");
        world.handle(Event::Limits(Limits::default()));
        world.run(HOUR);
        assert_eq!(world.bytes_between(0, 1), 1_000 * MB, "kind {kind}");
    }
}

#[test]
fn a_rate_is_kept_in_the_mean_and_taken_away_at_once() {
    for (kind, limits) in every_kind(rate(10 * MB)).into_iter().enumerate() {
        let mut world = busy(1_000, 4 * MB, "atlas");
        world.handle(Event::Limits(limits));
        world.run_for(Duration::from_secs(60));
        let came = world.bytes_between(0, 1) / MB;
        assert!((560..=620).contains(&came), "kind {kind}: {came} MB in a minute at 10 MB/s");
        let why = why(&world);
        assert!(why.contains("10.0 MB/s, ") && why.contains("limit"), "kind {kind}: {why}");
        let (_, next) = why.split_once("; the next file goes at ").unwrap();
        assert!(next.ends_with('Z') && !next.contains('.'), "kind {kind}, to the second: {why}");
        world.handle(Event::Limits(Limits::default()));
        let took = world.run(HOUR);
        assert!(took < Duration::from_secs(60), "kind {kind}: {took:?} for the rest at 100 MB/s");
    }
}

/// Three sites; the last one takes in 10 MB/s.
fn limited_site() -> World {
    let mut world = World::new(vec![WorldSite::new(100e6); 3], 1);
    world.places[2].limits.in_bytes_per_s = Some(10 * MB);
    world.places[2].in_bytes_per_s = 10e6;
    world.tell_site(2);
    world
}

/// Work for that site from two sources, of one community each.
fn limited_site_of_two(sizes: [(usize, u64); 2], priorities: [u8; 2]) -> World {
    let mut world = limited_site();
    for (source, (files, size)) in [(0, sizes[0]), (1, sizes[1])] {
        world.add_files(source + 1, source, vec![size; files]);
        world.parties.insert(source + 1, party(["atlas", "cms"][source as usize], None));
        world.subscribe(source + 1, &[source + 1], 2, priorities[source as usize]);
    }
    world
}

#[test]
fn the_limit_of_a_site_is_used_in_full_and_shared_by_communities() {
    let mut world = limited_site_of_two([(2_000, 2 * MB), (2_000, 2 * MB)], [5, 5]);
    world.run_for(Duration::from_secs(120));
    let (atlas, cms) = (world.bytes_between(0, 2) / MB, world.bytes_between(1, 2) / MB);
    assert!((1_140..=1_260).contains(&(atlas + cms)), "{atlas} and {cms} MB of 1200");
    assert!(atlas.abs_diff(cms) * 20 <= atlas + cms, "{atlas} and {cms} MB");
    let says_so = (0..50).any(|_| {
        world.run_for(Duration::from_millis(100));
        why(&world).contains("waits: this site takes in 10.0 MB/s, its limit; ")
    });
    assert!(says_so, "{}", why(&world));
    world.places[2].limits.in_bytes_per_s = None;
    world.places[2].in_bytes_per_s = 100e6;
    world.tell_site(2);
    let before = world.bytes_between(0, 2) + world.bytes_between(1, 2);
    world.run_for(Duration::from_secs(20));
    let came = (world.bytes_between(0, 2) + world.bytes_between(1, 2) - before) / MB;
    assert!(came > 1_000, "{came} MB in 20 s at 100 MB/s");
}

/// Bytes of a block that have come to the limited site.
fn bytes_of_block(world: &World, block: u64) -> u64 {
    let arrived = world.arrivals.keys().filter(|(_, storage)| *storage == 2);
    let files = arrived.map(|(file, _)| &world.files[*file as usize]);
    files.filter(|file| file.block == block).map(|file| file.size).sum()
}

/// One part in sixteen goes to the lower priority, whichever links the files of each come over.
#[test]
fn the_limit_of_a_site_is_shared_by_priority_over_all_its_links() {
    const SHARE_ERROR_MAX: f64 = 0.05;
    let due = 1.0 - 1.0 / f64::from(Settings::default().relief);
    // Sources of the files of each priority, by turns.
    for [urgent, patient] in [[[0, 0], [1, 1]], [[0, 1], [0, 1]], [[0, 1], [1, 1]]] {
        let mut world = limited_site();
        for (block, sources, priority) in [(1, urgent, 8), (2, patient, 2)] {
            for source in sources.repeat(300) {
                world.add_files(block, source, [2 * MB]);
            }
            world.subscribe(block, &[block], 2, priority);
        }
        let bytes = |world: &World| [1, 2].map(|block| bytes_of_block(world, block));
        world.run_for(Duration::from_secs(10));
        let before = bytes(&world);
        world.run_for(Duration::from_secs(60));
        let after = bytes(&world);
        let came = [0, 1].map(|place| (after[place] - before[place]) / MB);
        let all = came[0] + came[1];
        assert!((570..=630).contains(&all), "{came:?} MB of 600 from {urgent:?} and {patient:?}");
        let share = came[0] as f64 / all as f64;
        assert!(
            (share - due).abs() <= SHARE_ERROR_MAX && came[1] > 0,
            "{came:?} MB from {urgent:?} and {patient:?}: {share:.3}, not {due}"
        );
        for source in 0..2 {
            let is_used = urgent.contains(&source) || patient.contains(&source);
            assert_eq!(world.bytes_between(source, 2) > 0, is_used, "over the link from {source}");
        }
    }
}

#[test]
fn a_file_of_hours_under_the_limit_of_a_site_keeps_nobody_out() {
    let mut world = limited_site_of_two([(4, 100_000 * MB), (100, MB)], [5, 8]);
    world.run_for(Duration::from_secs(240));
    let urgent = world.bytes_between(1, 2) / MB;
    assert_eq!(urgent, 100, "MB of small files beside files that take three hours each");
}

/// A limit that holds a link up is named as the cause, not a disk or the network.
#[test]
fn the_network_knows_every_limit_of_a_rate() {
    type SetLimit = fn(&mut World);
    let limits: [(SetLimit, Bottleneck); 5] = [
        (
            |world| {
                let links = vec![(link(0, 1), rate(10 * MB))];
                world.handle(Event::Limits(Limits { links, ..Limits::default() }));
            },
            Bottleneck::LinkLimit,
        ),
        (
            |world| {
                let into = vec![(StorageId(1), rate(10 * MB))];
                world.handle(Event::Limits(Limits { into, ..Limits::default() }));
            },
            Bottleneck::TargetLimit,
        ),
        (
            |world| {
                let out = vec![(StorageId(0), rate(10 * MB))];
                world.handle(Event::Limits(Limits { out, ..Limits::default() }));
            },
            Bottleneck::SourceLimit,
        ),
        (
            |world| {
                world.places[1].limits.in_bytes_per_s = Some(10 * MB);
                world.tell_site(1);
            },
            Bottleneck::TargetLimit,
        ),
        (
            |world| {
                world.places[0].limits.out_bytes_per_s = Some(10 * MB);
                world.tell_site(0);
            },
            Bottleneck::SourceLimit,
        ),
    ];
    for (set_limit, expected) in limits {
        let mut world = busy(4_000, 2 * MB, "atlas");
        world.run_for(Duration::from_secs(10));
        set_limit(&mut world);
        // Agents keep to it as well.
        world.slow.insert((0, 1), 10e6);
        world.run_for(Duration::from_secs(60));
        let of_link = Link { source: StorageId(0), target: StorageId(1) };
        let is_named = (0..100).any(|_| {
            world.run_for(Duration::from_millis(100));
            world.scheduler.knowledge().bottleneck(of_link, world.now) == expected
        });
        assert!(is_named, "{:?}", world.scheduler.knowledge().explain(of_link, world.now));
    }
}

/// The world asserts that no more is leased than the limit has earned.
#[test]
fn what_was_leased_before_a_limit_and_does_not_come_gives_no_room_under_it() {
    let [_, _, out, community] = every_kind(rate(MB));
    for limits in [out, community] {
        let mut world = busy(200, 20 * MB, "atlas");
        world.add_files(2, 0, vec![20 * MB; 200]);
        world.parties.insert(2, party("atlas", None));
        world.run_for(Duration::from_millis(100));
        assert!(world.leases > 1, "there is something to give back");
        world.handle(Event::Limits(limits));
        world.subscribe(2, &[2], 2, 5);
        world.run_for(Duration::from_millis(500));
        let before = world.leases;
        world.cancel(1);
        world.run_for(Duration::from_secs(10));
        assert_eq!(world.leases, before, "what is leased takes longer than this at 1 MB/s");
        world.run_for(Duration::from_secs(120));
        assert!(world.leases > before, "work goes on");
    }
}

/// Its outcome is on the way to the service while that takes the lease back. The world asserts here too.
#[test]
fn what_came_although_its_lease_was_taken_back_stays_counted() {
    for limits in every_kind(rate(MB)) {
        let mut world = busy(20, 20 * MB, "atlas");
        world.handle(Event::Limits(limits));
        while !world.hears_an_end_next() {
            world.step();
        }
        world.cancel(1);
        world.parties.insert(2, party("atlas", None));
        world.subscribe(2, &[1], 1, 5);
        let before = world.leases;
        world.run_for(Duration::from_secs(60));
        assert_eq!(world.leases, before + 3, "a file takes 20 s");
    }
}

#[test]
fn a_limit_of_another_link_or_community_holds_nothing_up() {
    let mut world = busy(200, 5 * MB, "atlas");
    world.handle(Event::Limits(Limits {
        links: vec![(link(2, 1), active(0)), (link(1, 0), active(0))],
        into: vec![(StorageId(0), rate(1))],
        out: vec![(StorageId(1), rate(1))],
        communities: vec![("cms".parse().unwrap(), active(0))],
        ..Limits::default()
    }));
    assert!(world.run(HOUR) < Duration::from_secs(20));
}

fn uncommissioned(pairs: &[(u64, u64)]) -> Event {
    Event::Limits(Limits {
        uncommissioned: pairs.iter().map(|&(source, target)| link(source, target)).collect(),
        testers: Some("commissioning".parse().unwrap()),
        ..Limits::default()
    })
}

#[test]
fn a_link_that_is_not_commissioned_carries_test_transfers_only() {
    let mut tests = busy(20, 5 * MB, "commissioning");
    tests.handle(uncommissioned(&[(0, 1)]));
    tests.run(HOUR);
    assert_eq!(tests.bytes_between(0, 1), 100 * MB);

    let mut work = busy(20, 5 * MB, "atlas");
    work.handle(uncommissioned(&[(0, 1)]));
    work.run_for(Duration::from_secs(100));
    assert_eq!(work.leases, 0);
    assert_eq!(
        why(&work),
        "the link from storage-0 to its target is not commissioned: only test transfers may use it"
    );
    work.handle(uncommissioned(&[]));
    work.run(HOUR);
    assert_eq!(work.bytes_between(0, 1), 100 * MB, "commissioned, it carries everything");
}

#[test]
fn files_go_around_a_link_that_is_not_commissioned() {
    let mut rows = vec![WorldSite::new(100e6); 3];
    rows[2].relay = true;
    let mut world = World::new(rows, 1);
    world.handle(uncommissioned(&[(0, 1)]));
    world.add_files(1, 0, vec![5 * MB; 20]);
    world.subscribe(1, &[1], 1, 5);
    world.run(HOUR);
    assert_eq!(world.bytes_between(0, 1), 0);
    assert_eq!((world.bytes_between(0, 2), world.bytes_between(2, 1)), (100 * MB, 100 * MB));
}

/// As the service tells it by default: a twentieth beside another community, and 64 files at once where
/// nobody else wants anything.
#[test]
fn test_transfers_have_a_small_part_beside_production_and_are_limited_when_alone() {
    let mut world = busy(6_000, 2 * MB, "atlas");
    world.add_files(2, 0, vec![2 * MB; 6_000]);
    world.parties.insert(2, party("commissioning", None));
    world.subscribe(2, &[2], 1, 1);
    let tests: longhaul_model::CommunityName = "commissioning".parse().unwrap();
    let communities = [(tests.clone(), CommunityShare::with_weight(1.0 / 19.0))].into_iter().collect();
    world.handle(Event::Shares(Shares { communities, default: 1.0 }));
    world.handle(Event::Limits(Limits { communities: vec![(tests, active(64))], ..Limits::default() }));
    world.run_for(Duration::from_secs(60));
    let of_tests = |world: &World| {
        world.arrivals.keys().filter(|(file, _)| world.files[*file as usize].block == 2).count()
    };
    let part = of_tests(&world) as f64 / world.arrivals.len() as f64;
    assert!((part - 0.05).abs() < 0.01, "{part}");
    world.cancel(1);
    world.run_for(Duration::from_secs(2));
    let mut most = 0;
    for _ in 0..100 {
        world.run_for(Duration::from_millis(100));
        most = most.max(world.scheduler.counts().leased);
    }
    assert_eq!(most, 64, "no more than that, though nobody else wants anything");
    assert!(of_tests(&world) as f64 > 0.05 * 3_000.0 + 400.0, "and at full speed: {}", of_tests(&world));
}
