//! Exclusive target: the block that is due first has a full target to itself; and a source that stops, for
//! whatever reason, never keeps a target from work that could move.

use std::time::Duration;

use longhaul_scheduler::SiteState;
use proptest::prelude::{ProptestConfig, prop_assert, proptest};

use crate::world::{World, WorldSite};

const MB: u64 = 1_000_000;
const FILE: u64 = 10 * MB;
/// What the target takes.
const PORT: f64 = 30e6;

/// Two sources that could each fill the port of the target, one with the smaller block, and one with the
/// larger.
fn two_blocks(out: [f64; 2], seed: u64) -> World {
    let mut world =
        World::new(vec![WorldSite::new(out[0]), WorldSite::new(out[1]), WorldSite::new(PORT)], seed);
    world.add_files(1, 0, vec![FILE; 200]);
    world.add_files(2, 1, vec![FILE; 600]);
    world.subscribe(1, &[1], 2, 5);
    world.subscribe(2, &[2], 2, 5);
    world
}

/// Seconds until the first block is complete.
fn first_complete(world: &mut World) -> u64 {
    let mut seconds = 0;
    while world.bytes_between(0, 2) < 200 * FILE && seconds < 600 {
        world.run_for(Duration::from_secs(1));
        seconds += 1;
    }
    seconds
}

#[test]
fn what_is_due_first_has_a_full_target_to_itself() {
    let alone = (200 * FILE) as f64 / PORT;
    let seconds = first_complete(&mut two_blocks([100e6, 100e6], 1));
    assert!((seconds as f64) < 1.65 * alone, "{seconds} s, and {alone:.0} s alone");
}

#[test]
fn a_target_with_room_for_more_is_not_kept_for_a_slow_source() {
    let mut world = two_blocks([3e6, 100e6], 1);
    let come = |world: &World| [world.bytes_between(0, 2), world.bytes_between(1, 2)];
    // Nothing is known of either at the start.
    world.run_for(Duration::from_secs(60));
    let before = come(&world);
    world.run_for(Duration::from_secs(120));
    let [first, second] = come(&world);
    let (first, second) = (first - before[0], second - before[1]);
    assert!(first as f64 > 0.7 * 3e6 * 120.0, "{first}");
    assert!(second as f64 > 0.7 * (PORT - 3e6) * 120.0, "{second}");
}

/// All that a target holds is silent: no news comes, and it is looked at nevertheless.
#[test]
fn a_target_of_which_nothing_is_heard_is_looked_at_without_news() {
    let mut world = two_blocks([1.2 * PORT, 2.0 * PORT], 0);
    world.run_for(Duration::from_secs(27));
    world.places[0].out_bytes_per_s = 1e-3;
    let before = world.bytes_between(1, 2);
    world.run_for(Duration::from_secs(30));
    let came = world.bytes_between(1, 2) - before;
    assert!(came as f64 >= 0.5 * PORT * 30.0, "{came}: {}", world.standing());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_stops_keeps_a_target_from_nothing(
        seed in 0u64..1_000,
        fast in 1.2f64..6.0,
        stops_at in 1u64..60,
        why in 0u32..7,
    ) {
        let mut world = two_blocks([fast * PORT, 2.0 * PORT], seed);
        world.run_for(Duration::from_secs(stops_at));
        let row = &mut world.places[0];
        match why {
            // Its agent died: nothing comes, and no news.
            0 => row.out_bytes_per_s = 1e-3,
            1 => row.out_bytes_per_s = 0.02 * PORT,
            2 => row.state = SiteState::Paused,
            3 => row.state = SiteState::Draining,
            4 => row.connected = false,
            5 => row.unreachable = true,
            _ => {
                row.out_bytes_per_s = 0.02 * PORT;
                row.limits.active_out = Some(1);
                row.limits.out_bytes_per_s = Some((0.02 * PORT) as u64);
            }
        }
        world.tell_site(0);
        world.tell_agent(0);
        let before = world.bytes_between(1, 2);
        world.run_for(Duration::from_secs(90));
        let came = world.bytes_between(1, 2) - before;
        prop_assert!(came as f64 >= 0.4 * PORT * 90.0, "{came} bytes in 90 s: {}", world.standing());
    }

    /// Also after the service itself was away.
    #[test]
    fn a_restart_keeps_a_target_from_nothing(seed in 0u64..1_000, at in 1u64..60,
        stops in proptest::bool::ANY) {
        let mut world = two_blocks([3.0 * PORT, 2.0 * PORT], seed);
        world.run_for(Duration::from_secs(at));
        if stops {
            world.places[0].out_bytes_per_s = 1e-3;
        }
        world.restart_service();
        let before = world.bytes_between(0, 2) + world.bytes_between(1, 2);
        world.run_for(Duration::from_secs(90));
        let came = world.bytes_between(0, 2) + world.bytes_between(1, 2) - before;
        prop_assert!(came as f64 >= 0.4 * PORT * 90.0, "{came} bytes in 90 s: {}", world.standing());
    }
}
