//! What communities get of a link that has weights of its own, and what that leaves as it was.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use longhaul_model::{AttemptId, BlockId, Fault, FaultCode, StorageId};
use longhaul_scheduler::*;

use crate::world::*;

const MB: u64 = 1_000_000;
const HOUR: Duration = Duration::from_secs(3_600);
/// The source with weights of its own to the target, the target, and a source without.
const WEIGHTED: u64 = 0;
const TARGET: u64 = 1;
const PLAIN: u64 = 2;

fn weights(links: (Option<u64>, Option<u64>), named: &[(&str, f64)], others: f64) -> LinkShares {
    let communities = named.iter().map(|(name, weight)| (name.parse().unwrap(), *weight)).collect();
    LinkShares { links: (links.0.map(StorageId), links.1.map(StorageId)), communities, others }
}

/// Weights of all: 3 for atlas, 1 for each other.
fn shares() -> Event {
    let communities = BTreeMap::from([("atlas".parse().unwrap(), CommunityShare::with_weight(3.0))]);
    Event::Shares(Shares { communities, default: 1.0 })
}

/// A community's block for itself at each source that is named, more than comes in two hours.
fn world(rates: [f64; 3], wants: &[(&str, u64)], files: u64) -> World {
    let mut world = World::new(rates.map(WorldSite::new).to_vec(), 1);
    world.handle(shares());
    for (block, &(community, source)) in (1..).zip(wants) {
        world.add_files(block, source, (0..files).map(|at| MB + at % 5 * MB));
        world.parties.insert(block, party(community, None));
        world.subscribe(block, &[block], TARGET, 5);
    }
    world
}

/// What came of each block from now on, as turns are counted.
fn comes(world: &mut World, time: Duration) -> Vec<f64> {
    comes_while(world, |world| world.run_for(time))
}

fn comes_while(world: &mut World, run: impl FnOnce(&mut World)) -> Vec<f64> {
    let all = |world: &World| {
        let mut got = vec![0.0; world.files.last().unwrap().block as usize];
        for &(file, _) in world.arrivals.keys() {
            let row = &world.files[file as usize];
            got[row.block as usize - 1] += (row.size + MB) as f64;
        }
        got
    };
    let before = all(world);
    run(world);
    all(world).iter().zip(before).map(|(after, before)| after - before).collect()
}

fn settle(world: &mut World) {
    world.run_for(Duration::from_secs(60));
}

/// Whether some file that waits does so in these words.
fn says(world: &World, words: &str) -> bool {
    let waiting = world.scheduler.transfers(None, None, 5_000);
    let mut waits = waiting.iter().filter_map(|row| world.scheduler.explain_wait(row.transfer, world.now));
    waits.any(|waits| waits.contains(words))
}

fn near(got: f64, all: f64, wanted: f64) {
    let part = got / all;
    assert!((part - wanted).abs() < 0.02, "{part:.3} instead of {wanted:.3}");
}

/// An hour in which both want the pair: by its weights; taken away: by those of all again.
#[test]
fn a_link_is_dealt_by_its_own_weights_for_an_hour_and_then_by_those_of_all() {
    let mut world = world([10e6; 3], &[("atlas", WEIGHTED), ("cms", WEIGHTED)], 30_000);
    settle(&mut world);
    let got = comes(&mut world, Duration::from_secs(600));
    near(got[0], got[0] + got[1], 0.75);
    let own = weights((Some(WEIGHTED), Some(TARGET)), &[("atlas", 1.0), ("cms", 4.0)], 0.0);
    world.handle(Event::LinkShares(vec![own]));
    settle(&mut world);
    let got = comes(&mut world, HOUR);
    near(got[1], got[0] + got[1], 0.8);
    let told = world.reasons.last().unwrap();
    assert!(told.contains("by the weights of that link its community had "), "{told}");
    assert!(says(&world, "storage-0 the share of atlas is 20 % now, by the weights of that link"));
    world.handle(Event::LinkShares(Vec::new()));
    settle(&mut world);
    let got = comes(&mut world, Duration::from_secs(600));
    near(got[0], got[0] + got[1], 0.75);
    assert!(!world.reasons.last().unwrap().contains("by the weights of that link"));
}

/// A community that wants nothing over the pair has what it has without weights there, though all want the
/// same target.
#[test]
fn who_wants_nothing_over_the_link_has_as_much_as_without() {
    let parts = |own: Vec<LinkShares>, failures: f64| {
        let mut world = world([10e6; 3], &[("atlas", WEIGHTED), ("cms", WEIGHTED), ("lhcb", PLAIN)], 20_000);
        world.failure_share = failures;
        world.handle(Event::LinkShares(own));
        settle(&mut world);
        comes(&mut world, HOUR / 2)
    };
    let own = weights((Some(WEIGHTED), None), &[("atlas", 1.0), ("cms", 4.0)], 0.0);
    for failures in [0.0, 0.1] {
        let (before, after) = (parts(Vec::new(), failures), parts(vec![own.clone()], failures));
        near(after[1], after[0] + after[1], 0.8);
        near(after[2], after.iter().sum(), before[2] / before.iter().sum::<f64>());
    }
}

/// One community wants more over a slow link than that gives, so all turns there are its own; most of the
/// files that go in its place are another's, and two of three leases of those are given back before anything
/// came. On the link that is refunded to who was served: both have their parts of what does come. At the
/// target it is refunded to whose turn it was: the other earns nothing by it over its other link.
#[test]
fn what_comes_to_nothing_is_given_back_to_who_paid_for_it() {
    let run = |world: &mut World, time: Duration| {
        let end = world.now + time;
        let mut seen = AttemptId(0);
        while world.now < end {
            world.step();
            let new = world.running.range((Bound::Excluded(seen), Bound::Unbounded));
            let new: Vec<_> = new.map(|(id, running)| (*id, running.lease.block)).collect();
            for (id, block) in new {
                seen = id;
                if block == BlockId(1) && world.dice.chance(2.0 / 3.0) {
                    world.end(id, Some(Fault::new(FaultCode::GivenBack, "not wanted now")));
                }
            }
        }
    };
    let wants = [("cms", WEIGHTED), ("atlas", WEIGHTED), ("lhcb", PLAIN)];
    let mut world = world([2e6, 20e6, 10e6], &wants, 8_000);
    world.add_files(4, PLAIN, (0..8_000).map(|at| MB + at % 5 * MB));
    world.parties.insert(4, party("cms", Some("plain")));
    world.subscribe(4, &[4], TARGET, 5);
    // So few that whose turn it is decides about each.
    world.places[TARGET as usize].limits.active_in = Some(20);
    world.tell_site(TARGET);
    world.places[WEIGHTED as usize].limits.active_out = Some(5);
    world.tell_site(WEIGHTED);
    let own = weights((Some(WEIGHTED), None), &[("cms", 4.0), ("atlas", 1.0)], 0.0);
    world.handle(Event::LinkShares(vec![own]));
    run(&mut world, Duration::from_secs(60));
    let got = comes_while(&mut world, |world| run(world, HOUR / 2));
    near(got[0], got[0] + got[1], 0.8);
    near(got[3], got[2] + got[3], 0.5);
}

/// The same communities on a link without weights get there what they would without any.
#[test]
fn links_without_weights_are_dealt_as_before() {
    let wants = [("atlas", WEIGHTED), ("cms", WEIGHTED), ("atlas", PLAIN), ("cms", PLAIN), ("lhcb", PLAIN)];
    let parts = |own: Vec<LinkShares>| {
        let mut world = world([5e6, 50e6, 5e6], &wants, 8_000);
        world.handle(Event::LinkShares(own));
        settle(&mut world);
        comes(&mut world, HOUR)
    };
    let before = parts(Vec::new());
    let own = weights((Some(WEIGHTED), Some(TARGET)), &[("atlas", 1.0), ("cms", 4.0)], 0.0);
    let after = parts(vec![own]);
    near(after[1], after[0] + after[1], 0.8);
    let plain = |got: &[f64]| got[2..].iter().sum::<f64>();
    for at in 2..5 {
        near(after[at], plain(&after), before[at] / plain(&before));
    }
}

/// Those that are not named share one weight; without any they have what nobody else can use, all of it if
/// need be.
#[test]
fn who_is_not_named_has_a_part_of_what_the_others_have_together() {
    let wants = [("atlas", WEIGHTED), ("cms", WEIGHTED), ("lhcb", WEIGHTED)];
    let mut world = world([10e6; 3], &wants, 8_000);
    let own = |others| Event::LinkShares(vec![weights((None, Some(TARGET)), &[("atlas", 2.0)], others)]);
    world.handle(own(2.0));
    settle(&mut world);
    let got = comes(&mut world, HOUR / 2);
    let all = got.iter().sum();
    near(got[0], all, 0.5);
    near(got[1], all, 0.25);
    near(got[2], all, 0.25);
    world.handle(own(0.0));
    settle(&mut world);
    let got = comes(&mut world, HOUR / 4);
    near(got[0], got.iter().sum(), 1.0);
    world.cancel(1);
    settle(&mut world);
    let got = comes(&mut world, HOUR / 4);
    near(got[1], got[1] + got[2], 0.5);
    assert!(got[1] + got[2] > 0.9 * 10e6 * (HOUR / 4).as_secs_f64(), "the link stays in use: {got:?}");
}
