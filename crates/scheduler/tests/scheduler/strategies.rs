//! FTS3's strategies by their names: what each chooses, and that each delivers.

use std::time::Duration;

use longhaul_model::{Blame, Fault, FaultCode, StorageId};
use longhaul_scheduler::{Backoff, Rules, Settings, SiteState, Strategy};

use crate::world::{World, WorldSite};

const MB: u64 = 1_000_000;

/// Two sources of everything, the second five times as fast; both have been measured. Then 400 files are
/// wanted.
fn two_sources(strategy: Strategy) -> World {
    let mut world = World::new(vec![WorldSite::new(40e6), WorldSite::new(200e6), WorldSite::new(500e6)], 7);
    for (block, source) in [(1, 0), (2, 1)] {
        world.add_files(block, source, vec![2 * MB; 60]);
        world.subscribe(block, &[block], 2, 5);
    }
    world.run(Duration::from_secs(600));
    world.moved.clear();
    let first = world.files.len() as u64;
    world.add_files(3, 0, vec![5 * MB; 400]);
    (first..first + 400).for_each(|file| {
        world.replicas.insert((file, 1));
    });
    world.strategies.insert(3, strategy);
    world.subscribe(3, &[3], 2, 5);
    world.reasons.clear();
    world
}

/// The part of the bytes that came from the fast source.
fn from_the_fast_one(world: &World) -> f64 {
    let (slow, fast) = (world.bytes_between(0, 2) as f64, world.bytes_between(1, 2) as f64);
    fast / (slow + fast)
}

#[test]
fn each_goes_by_its_own_rule() {
    let wanted = [
        (Strategy::Orderly, 0.0..=0.0, "place 1 in the order given against place 2"),
        (Strategy::Queue, 0.45..=0.55, "files waiting against"),
        (Strategy::Throughput, 1.0..=1.0, "over the link against"),
        (Strategy::FileThroughput, 1.0..=1.0, "for one file against"),
        (Strategy::PendingData, 0.45..=0.55, "waiting against"),
        (Strategy::WaitingTime, 0.55..=0.95, "of work waiting against"),
        (Strategy::WaitingTimeWithError, 0.55..=0.95, "of work waiting against"),
        (Strategy::Duration, 0.55..=1.0, "until it is there against"),
        (Strategy::Best, 0.75..=0.9, "because it finishes first"),
    ];
    for (strategy, part, words) in wanted {
        let mut world = two_sources(strategy);
        world.run(Duration::from_secs(3_600));
        let got = from_the_fast_one(&world);
        assert!(part.contains(&got), "{strategy}: {got:.3} from the fast source");
        let told = world.reasons.iter().filter(|reason| reason.contains(words)).count();
        assert!(told > 0, "{strategy} tells why: {:?}", world.reasons.last());
    }
}

#[test]
fn the_order_of_a_strategy_gives_way_when_its_source_is_gone() {
    let mut world = two_sources(Strategy::Orderly);
    world.run_for(Duration::from_secs(3));
    world.places[0].state = SiteState::Paused;
    world.tell_site(0);
    let took = world.run(Duration::from_secs(3_600));
    assert!(took < Duration::from_secs(30), "{took:?}: the rest came from the other");
    assert!(world.bytes_between(1, 2) > 1_500 * MB);
    assert!(world.scheduler.counts_of(StorageId(2)).leased == 0);
}

/// A source that lives and sends nothing of a file: whoever is at fault, and under a limit too, the next try
/// is at another, although the order names this one first.
#[test]
fn a_file_that_its_source_did_not_send_comes_from_another() {
    for (blame, limit) in [(Blame::Source, None), (Blame::Network, Some(10 * MB))] {
        let mut world = World::new(vec![WorldSite::new(40e6); 3], 7);
        world.places[2].limits.in_bytes_per_s = limit;
        world.tell_site(2);
        world.add_files(1, 0, [5 * MB]);
        world.replicas.insert((0, 1));
        world.strategies.insert(1, Strategy::Orderly);
        world.subscribe(1, &[1], 2, 5);
        while world.running.is_empty() {
            world.step();
        }
        let attempt = *world.running.keys().next().unwrap();
        assert_eq!(world.running[&attempt].lease.source, StorageId(0));
        let fault = Fault::new(FaultCode::Stalled, "it sent nothing of it").blaming(blame);
        world.end(attempt, Some(fault));
        world.run(Duration::from_secs(60));
        assert_eq!((world.bytes_between(0, 2), world.bytes_between(1, 2)), (0, 5 * MB), "{blame:?}");
    }
}

/// FTS3's rules, for comparison: slots per link from its optimizer, strict priorities.
#[test]
fn by_the_rules_of_fts3_links_have_slots() {
    let settings = Settings { rules: Rules::Fts3, strategy: Strategy::Orderly, ..Settings::default() };
    let mut world = World::with(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 7, settings);
    world.add_files(1, 0, vec![10 * MB; 1_500]);
    world.add_files(2, 0, vec![MB; 200]);
    world.subscribe(1, &[1], 1, 5);
    world.subscribe(2, &[2], 1, 2);
    let most = |world: &mut World| {
        let mut most = 0;
        for _ in 0..200 {
            world.step();
            most = most.max(world.scheduler.counts().leased);
        }
        most
    };
    assert_eq!(most(&mut world), 2, "before the first decision");
    world.run_for(Duration::from_secs(60));
    assert_eq!(most(&mut world), 66, "halfway of its range");
    let lower = world.arrivals.keys().filter(|(file, _)| world.files[*file as usize].block == 2).count();
    assert_eq!(lower, 0, "strict priorities");
}

/// A short error costs seconds; with the legacy back-off it costs the better part of an hour.
#[test]
fn a_transient_error_costs_seconds_and_not_an_hour() {
    let took = |backoff: Backoff| {
        let settings = Settings { backoff, ..Settings::default() };
        let mut world = World::with(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 7, settings);
        world.add_files(1, 0, vec![20 * MB; 100]);
        world.subscribe(1, &[1], 1, 5);
        world.run_for(Duration::from_secs(10));
        world.failure_share = 1.0;
        world.run_for(Duration::from_secs(30));
        world.failure_share = 0.0;
        world.run(Duration::from_secs(4 * 3_600)).as_secs_f64()
    };
    // 40 s of bytes, 10 s of them had come before.
    assert!(took(Backoff::ByBlame) < 40.0 + 60.0, "{}", took(Backoff::ByBlame));
    assert!((2_700.0..2.0 * 5_400.0).contains(&took(Backoff::Legacy)), "{}", took(Backoff::Legacy));
}
