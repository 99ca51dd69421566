//! Two targets that want the same dataset help each other.

use std::time::Duration;

use longhaul_testkit::Dice;

use crate::world::{World, WorldSite};

/// As `longhaul demo` makes it: 2,000 files and about 1 GB in two blocks.
fn demo_sizes(seed: u64) -> Vec<u64> {
    let mut dice = Dice(seed);
    (0..1_000)
        .map(|at| match at % 10 {
            0..6 => dice.below(64_000),
            6..9 => 100_000 + dice.below(900_000),
            _ => 1_000_000 + dice.below(6_000_000),
        })
        .collect()
}

fn one_source_two_targets(rate: f64, scale: u64) -> (World, f64, f64) {
    let mut world = World::new(vec![WorldSite::new(rate), WorldSite::new(rate), WorldSite::new(rate)], 1);
    for block in 1..=2 {
        world.add_files(block, 0, demo_sizes(block).into_iter().map(|size| size * scale));
    }
    world.subscribe(1, &[1, 2], 1, 5);
    world.subscribe(2, &[1, 2], 2, 5);
    let took = world.run(Duration::from_secs(3_600)).as_secs_f64();
    let bytes: u64 = world.files.iter().map(|file| file.size).sum();
    // The source must send everything once, and each target take everything in.
    let bound = bytes as f64 / rate;
    let exchanged = world.bytes_between(1, 2) + world.bytes_between(2, 1);
    let share = exchanged as f64 / (2 * bytes) as f64;
    println!(
        "rate {rate:e} scale {scale}: {took:.2} s, bound {bound:.2} s, exchanged {:.0} %",
        100.0 * share
    );
    (world, took / bound, share)
}

#[test]
fn a_loaded_source_sends_little_twice() {
    for (rate, scale) in [(1e9, 1), (400e6, 1), (100e6, 1), (100e6, 20), (1e9, 20)] {
        let (world, ratio, share) = one_source_two_targets(rate, scale);
        assert!(share >= 0.25, "only {:.0} % came from the other target at {rate:e} B/s", 100.0 * share);
        // Below some seconds the round trips and the first windows weigh too much for a bound on time.
        if world.files.iter().map(|file| file.size).sum::<u64>() as f64 / rate > 5.0 {
            assert!(ratio <= 1.3, "{ratio:.2} times the bound");
        }
    }
}
