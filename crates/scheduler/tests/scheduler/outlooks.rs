//! What is said of the future is true: it gets worse while nothing comes, what cannot come has no forecast
//! but a reason, a few files that cannot come do not take away the forecast of the others, and our own limits
//! are known.

use std::time::Duration;

use longhaul_model::{Fault, FaultCode, StorageId, SubscriptionId};
use longhaul_scheduler::*;

use crate::world::*;

const MB: u64 = 1_000_000;

/// Two sites at 50 MB/s, and `files` of 2 MB at the first, wanted at the second.
fn two_sites(files: usize) -> World {
    let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![2 * MB; files]);
    world
}

fn outlook(world: &World) -> Outlook {
    world.scheduler.outlook(SubscriptionId(1), world.now)
}

fn seconds_left(world: &World) -> (f64, f64) {
    let outlook = outlook(world);
    let seconds = |at: Option<longhaul_model::Timestamp>| at.unwrap().since(world.now).as_secs_f64();
    (seconds(outlook.median), seconds(outlook.ninety))
}

fn no_forecast(world: &World) -> String {
    let outlook = outlook(world);
    assert_eq!((outlook.median, outlook.ninety), (None, None), "{outlook:?}");
    assert_eq!(outlook.chance_by(world.now + Duration::from_secs(3_600), world.now), None);
    outlook.why_none.unwrap()
}

#[test]
fn a_forecast_gets_worse_while_nothing_comes() {
    let mut world = two_sites(1_500);
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(5));
    let (before, _) = seconds_left(&world);
    world.slow.insert((0, 1), 0.0);
    world.run_for(Duration::from_secs(30));
    let (after_30, ninety_30) = seconds_left(&world);
    assert!(after_30 > before + 20.0, "{before} s, then {after_30} s");
    world.run_for(Duration::from_secs(30));
    let (after_60, ninety_60) = seconds_left(&world);
    assert!(after_60 > after_30 + 25.0 && ninety_60 > ninety_30 + 200.0, "{after_30} s, then {after_60} s");
    let deadline = world.now + Duration::from_secs_f64(2.0 * before);
    assert!(outlook(&world).chance_by(deadline, world.now).unwrap() < 0.5, "{:?}", outlook(&world));
    let held_up_by = outlook(&world).held_up_by;
    assert!(
        held_up_by[0].contains("nothing has come for 59 s") && held_up_by[0].contains("storage-0"),
        "{held_up_by:?}"
    );
    world.run_for(Duration::from_secs(600));
    assert!(no_forecast(&world).contains("nothing has come for"));
    world.slow.clear();
    world.run_for(Duration::from_secs(30));
    let (again, _) = seconds_left(&world);
    assert!(again < 2.0 * before, "{again} s after it moves");
}

/// The same where attempts end and begin anew, and before the first byte.
#[test]
fn attempts_that_fail_are_no_progress() {
    for begun in [false, true] {
        let mut world = two_sites(500);
        world.subscribe(1, &[1], 1, 5);
        world.run_for(Duration::from_secs(if begun { 5 } else { 0 }));
        world.failure_share = 1.0;
        world.slow.insert((0, 1), if begun { 0.0 } else { 2e6 });
        world.run_for(Duration::from_secs(2));
        let mut last = seconds_left(&world).0;
        for _ in 0..4 {
            world.run_for(Duration::from_secs(10));
            let running: Vec<_> = world.running.keys().copied().collect();
            for attempt in running {
                world.end(attempt, Some(Fault::new(FaultCode::Stalled, "not a byte for 10 s")));
            }
            let now = seconds_left(&world).0;
            assert!(begun && now > last + 5.0 || !begun && now > last - 10.0, "{last} s, then {now} s");
            last = now;
        }
    }
}

#[test]
fn what_waits_for_its_turn_is_not_silent() {
    let mut world = two_sites(1_500);
    world.add_files(2, 0, vec![2 * MB; 500]);
    world.subscribe(2, &[1], 1, 9);
    world.subscribe(1, &[2], 1, 1);
    world.run_for(Duration::from_secs(20));
    let (first, _) = seconds_left(&world);
    world.run_for(Duration::from_secs(20));
    let (second, _) = seconds_left(&world);
    assert!(second < first - 10.0, "{first} s, then {second} s");
}

#[test]
fn what_cannot_move_has_no_forecast_but_a_reason_and_a_number() {
    type Obstruct = fn(&mut World);
    let cases: [(Obstruct, &str); 9] = [
        (
            |world| world.limit_links([(1, 0)]),
            "20 files cannot come: no route leads from storage-0 to storage-1",
        ),
        (
            |world| {
                world.places[0].connected = false;
                world.tell_agent(0);
            },
            "20 files cannot come now: storage-0 has no agent connected",
        ),
        (
            |world| {
                world.places[1].connected = false;
                world.tell_agent(1);
            },
            "20 files cannot come now: the agent of storage-1 is not connected",
        ),
        (
            |world| {
                world.places[0].state = SiteState::Paused;
                world.tell_site(0);
            },
            "20 files cannot come now: storage-0 is at a paused site",
        ),
        (
            |world| {
                world.places[1].state = SiteState::Draining;
                world.tell_site(1);
            },
            "20 files cannot come now: site site-1 is draining",
        ),
        // On tape, or in a virtual storage: the catalog names no source.
        (|world| world.replicas.clear(), "20 files without a usable replica anywhere"),
        (
            |world| {
                let uncommissioned = vec![(StorageId(0), StorageId(1))];
                world.handle(Event::Limits(Limits { uncommissioned, ..Limits::default() }));
            },
            "20 files do not come over the link from storage-0, which is not commissioned",
        ),
        (
            |world| {
                let limit = Limit { active: Some(0), bytes_per_s: None };
                let links = vec![((StorageId(0), StorageId(1)), limit)];
                world.handle(Event::Limits(Limits { links, ..Limits::default() }));
            },
            "20 files cannot come now: storage-0 sends this storage no file, the limit of",
        ),
        (
            |world| {
                world.places[0].limits.active_out = Some(0);
                world.tell_site(0);
            },
            "20 files cannot come now: storage-0 has 0 of 0 attempts out running",
        ),
    ];
    for (obstruct, why) in cases {
        let mut world = two_sites(20);
        obstruct(&mut world);
        world.subscribe(1, &[1], 1, 5);
        for _ in 0..20 {
            world.step();
            no_forecast(&world);
        }
        world.run_for(Duration::from_secs(60));
        let told = no_forecast(&world);
        assert!(told.contains(why), "{told} instead of {why}");
    }
}

/// More files than the scheduler takes into memory: all of them are counted.
#[test]
fn all_files_of_a_dead_source_are_counted() {
    let mut world = two_sites(9_000);
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(2));
    world.places[0].unreachable = true;
    world.run_for(Duration::from_secs(120));
    let left = world.lacking();
    for _ in 0..60 {
        world.run_for(Duration::from_secs(1));
        let told = no_forecast(&world);
        assert!(told.contains("could not be reached"), "{told}");
    }
    let count = longhaul_model::units::count(left as u64);
    let told = no_forecast(&world);
    assert!(told.contains(&format!("{count} files cannot come now")), "{told}, {count} are lacking");
}

#[test]
fn one_bad_file_leaves_the_others_their_forecast() {
    let mut world = two_sites(6_000);
    world.corrupt.insert((7, 0));
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(20));
    let outlook = outlook(&world);
    let stuck = outlook.stuck.as_ref().unwrap();
    assert_eq!(stuck.files, 1);
    assert!(stuck.why.starts_with("1 file without a usable replica anywhere"), "{outlook:?}");
    assert!(stuck.why.contains("adler32 differs"), "{outlook:?}");
    assert!(outlook.held_up_by.contains(&stuck.why), "{outlook:?}");
    let (median, ninety) = seconds_left(&world);
    let begin = world.now;
    while world.lacking() > 1 {
        world.step();
    }
    let took = world.now.since(begin).as_secs_f64();
    assert!((median / took - 1.0).abs() < 0.1 && ninety > took, "{median} s and {ninety} s, {took} s taken");
    world.run_for(Duration::from_secs(1));
    assert!(no_forecast(&world).starts_with("1 file without a usable replica"));
}

/// A part that has one source only, which is away, and a file that failed for good.
#[test]
fn files_that_can_come_have_a_forecast_beside_those_that_cannot() {
    let mut world = World::new(vec![WorldSite::new(50e6); 3], 3);
    world.add_files(1, 0, vec![2 * MB; 1_000]);
    world.add_files(1, 2, vec![2 * MB; 300]);
    world.places[2].connected = false;
    world.tell_agent(2);
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(10));
    let stuck = outlook(&world).stuck.unwrap();
    assert_eq!(stuck.files, 300);
    assert!(stuck.why.contains("storage-2 has no agent connected"), "{stuck:?}");
    let (median, _) = seconds_left(&world);
    assert!((20.0..45.0).contains(&median), "{median} s for 1,000 files of 2 MB at 50 MB/s");
    let deadline = world.now + Duration::from_secs(3_600);
    assert_eq!(outlook(&world).chance_by(deadline, world.now), None, "not all of it comes by any time");
}

#[test]
fn limits_of_ours_bound_the_forecast_and_are_named() {
    let of_site = |limits: SiteLimits, place: usize| {
        let mut world = two_sites(100);
        world.places[place].limits = limits;
        world.places[place].out_bytes_per_s = 2e6;
        world.places[place].in_bytes_per_s = 2e6;
        world.tell_site(place as u64);
        world
    };
    let inward = SiteLimits { in_bytes_per_s: Some(2 * MB), ..SiteLimits::default() };
    let outward = SiteLimits { out_bytes_per_s: Some(2 * MB), ..SiteLimits::default() };
    let of_link = || {
        let mut world = two_sites(100);
        let limit = Limit { active: None, bytes_per_s: Some(2 * MB) };
        let links = vec![((StorageId(0), StorageId(1)), limit)];
        world.handle(Event::Limits(Limits { links, ..Limits::default() }));
        world
    };
    let cases = [
        (of_site(inward, 1), "site site-1 takes in 2.00 MB/s at most, its limit"),
        (of_site(outward, 0), "site site-0 gives out 2.00 MB/s at most, its limit"),
        (of_link(), "storage-0 sends 2.00 MB/s at most, its limit"),
    ];
    for (mut world, words) in cases {
        world.subscribe(1, &[1], 1, 5);
        for seconds in [0, 30] {
            world.run_for(Duration::from_millis(seconds * 1_000 + 100));
            let (median, _) = seconds_left(&world);
            let bound = world.lacking() as f64 * 2.0 * MB as f64 / 2e6;
            assert!(median > 0.8 * bound && median < 1.3 * bound, "{words}: {median} s instead of {bound}");
            let held_up_by = outlook(&world).held_up_by;
            assert!(held_up_by.iter().any(|reason| reason == words), "{held_up_by:?}");
        }
    }
}
