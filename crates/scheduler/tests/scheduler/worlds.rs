//! Promises of the scheduler in small worlds, many of them random. The world itself asserts on every lease:
//! limits of sites, links, storages and communities, one live attempt per file and target, open and connected
//! sites, sources that have the file.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, StorageId, SubscriptionId, TransferId};
use longhaul_scheduler::{
    CommunityShare, Event, Limit, Limits, LinkCircuit, LinkShares, Party, Settings, Shares, SiteLimits,
    SiteState, Strategy,
};
use longhaul_testkit::Dice;
use proptest::prelude::{ProptestConfig, TestCaseError, any, prop_assert, prop_assert_eq, proptest};

use crate::world::{World, WorldSite, party};

const HOUR: Duration = Duration::from_secs(3_600);

/// Random worlds for each property: in the test command, and in `cargo xtask soak worlds`, which sets the
/// variable.
const WORLDS: u32 = 250;
const WORLDS_VARIABLE: &str = "LONGHAUL_SOAK_WORLDS";

fn worlds() -> ProptestConfig {
    let default = ProptestConfig::default();
    let asked = std::env::var(WORLDS_VARIABLE).ok().map(|text| text.parse().unwrap());
    // What the library reads from the environment is 256 unless somebody wants more or fewer of everything.
    let cases = asked.unwrap_or(WORLDS * default.cases / 256);
    ProptestConfig { cases, failure_persistence: None, ..default }
}

/// Some sites, blocks with one or two first replicas, subscriptions of all priorities, limits here and there.
fn random_world(seed: u64) -> World {
    let mut dice = Dice(seed);
    let count = 3 + dice.below(3);
    let places = (0..count).map(|_| {
        let mut place = WorldSite::new(10e6 * (1 + dice.below(40)) as f64);
        if dice.chance(0.3) {
            place.limits.active_in = Some(1 + dice.below(30) as u32);
        }
        if dice.chance(0.3) {
            place.limits.active_out = Some(1 + dice.below(30) as u32);
        }
        place
    });
    let mut places: Vec<WorldSite> = places.collect();
    // Sometimes all goes through the third.
    let star = dice.chance(0.3);
    places[2].relay = star || dice.chance(0.3);
    let mut world = World::new(places, seed);
    if star {
        let all = (0..count).flat_map(|one| [(one, 2), (2, one)]).filter(|(source, target)| source != target);
        world.limit_links(all);
    }
    let blocks = 1 + dice.below(4);
    for block in 1..=blocks {
        let home = dice.below(2);
        let sizes: Vec<u64> = (0..1 + dice.below(60))
            .map(|_| match dice.below(10) {
                0 => 0,
                1..=6 => dice.below(200_000),
                _ => dice.below(20_000_000),
            })
            .collect();
        let first = world.files.len() as u64;
        world.add_files(block, home, sizes);
        if dice.chance(0.4) {
            (first..world.files.len() as u64).for_each(|file| {
                world.replicas.insert((file, 1 - home));
            });
        }
    }
    let all: Vec<u64> = (1..=blocks).collect();
    for id in 1..=1 + dice.below(5) {
        let target = dice.below(count);
        let community = ["atlas", "cms", "lhcb"][dice.below(3) as usize];
        world.parties.insert(id, party(community, dice.chance(0.5).then_some("production")));
        if dice.chance(0.5) {
            let strategy = Strategy::ALL[dice.below(Strategy::ALL.len() as u64) as usize];
            world.strategies.insert(id, strategy);
        }
        if dice.chance(0.3) {
            world.deadlines.insert(id, world.now + Duration::from_secs(dice.below(100)));
        }
        world.subscribe(id, &all, target, 1 + dice.below(9) as u8);
    }
    world
}

/// What may happen to a world while it runs.
fn upset(world: &mut World, dice: &mut Dice) {
    let place = dice.below(world.places.len() as u64);
    let row = &mut world.places[place as usize];
    match dice.below(10) {
        0 => {
            row.connected = !row.connected;
            world.tell_agent(place);
        }
        1 => {
            row.state = match dice.below(3) {
                0 => SiteState::Paused,
                1 => SiteState::Draining,
                _ => SiteState::Open,
            };
            world.tell_site(place);
        }
        2 => row.unreachable = !row.unreachable,
        3 => row.full = !row.full,
        4 => world.restart_service(),
        5 => {
            let file = dice.below(world.files.len() as u64);
            let copies: Vec<u64> =
                world.replicas.range((file, 0)..=(file, u64::MAX)).map(|(_, storage)| *storage).collect();
            // The last good replica stays good.
            let bad = copies.iter().filter(|&&storage| world.corrupt.contains(&(file, storage))).count();
            if copies.len() > bad + 1 {
                world.corrupt.insert((file, copies[0]));
                let good = copies.iter().any(|&storage| !world.corrupt.contains(&(file, storage)));
                assert!(good);
            }
        }
        6 => world.failure_share = if world.failure_share > 0.0 { 0.0 } else { 0.2 },
        7 => random_circuits(world, dice),
        8 => random_limits(world, dice),
        _ => {
            let ids: Vec<u64> = world.subscriptions.keys().copied().collect();
            if let (Some(&id), true) = (ids.last(), ids.len() > 1) {
                world.cancel(id);
            }
        }
    }
}

/// Some links go by circuits from now on, and no others: which carry what they promise, or not.
fn random_circuits(world: &mut World, dice: &mut Dice) {
    let count = world.places.len() as u64;
    let share = [0.0, 0.2, 0.6][dice.below(3) as usize];
    let links = (0..count).flat_map(|source| (0..count).map(move |target| (source, target)));
    let up = links.filter(|(source, target)| source != target && dice.chance(share));
    let up: Vec<(u64, u64)> = up.collect();
    let one = |(source, target): (u64, u64)| LinkCircuit {
        source: StorageId(source),
        target: StorageId(target),
        bytes_per_s: 1e6 * (1 + dice.below(1_000)) as f64,
    };
    let all = up.into_iter().map(one).collect();
    world.handle(Event::Circuits(all));
}

/// Limits of all kinds here and there, in place of all that were; some links are not commissioned.
fn random_limits(world: &mut World, dice: &mut Dice) {
    let count = world.places.len() as u64;
    let share = [0.0, 0.2, 0.6][dice.below(3) as usize];
    let limit = |dice: &mut Dice| {
        let active = dice.chance(0.6).then(|| dice.below(12) as u32);
        let bytes_per_s = dice.chance(0.6).then(|| 100_000 << dice.below(9));
        dice.chance(share).then_some(Limit { active, bytes_per_s })
    };
    let mut limits = Limits { testers: Some("lhcb".parse().unwrap()), ..Limits::default() };
    for one in 0..count {
        let storage = StorageId(one);
        limits.into.extend(limit(dice).map(|limit| (storage, limit)));
        limits.out.extend(limit(dice).map(|limit| (storage, limit)));
        for other in (0..count).filter(|other| *other != one) {
            let pair = (storage, StorageId(other));
            limits.links.extend(limit(dice).map(|limit| (pair, limit)));
            limits.uncommissioned.extend(dice.chance(share / 4.0).then_some(pair));
        }
    }
    for name in ["atlas", "cms", "lhcb"] {
        limits.communities.extend(limit(dice).map(|limit| (name.parse().unwrap(), limit)));
    }
    world.handle(Event::Limits(limits));
}

fn calm(world: &mut World) {
    world.failure_share = 0.0;
    world.handle(Event::Limits(Limits::default()));
    for place in 0..world.places.len() as u64 {
        let row = &mut world.places[place as usize];
        row.connected = true;
        row.state = SiteState::Open;
        row.unreachable = false;
        row.full = false;
        world.tell_site(place);
        world.tell_agent(place);
        let none = Fault::new(FaultCode::TargetFull, "for a moment");
        world.tell_storage(place, Some(none));
        world.tell_storage(place, None);
    }
}

fn arrived_once(world: &World) {
    let twice = world.arrivals.iter().filter(|(pair, times)| **times > 1 && !world.corrupt.contains(*pair));
    assert_eq!(twice.count(), 0, "files arrived twice");
    assert!(world.failed.is_empty());
}

proptest! {
    #![proptest_config(worlds())]

    /// Promise 3: whatever happens, every wanted file arrives exactly once, with a bounded number of
    /// decisions.
    #[test]
    fn everything_wanted_arrives_once(seed in any::<u64>()) {
        let mut world = random_world(seed);
        let mut dice = Dice(seed ^ 1);
        for _ in 0..dice.below(25) {
            world.run_for(Duration::from_millis(20 + dice.below(1_500)));
            upset(&mut world, &mut dice);
        }
        calm(&mut world);
        world.run(2 * HOUR);
        arrived_once(&world);
        let files = world.arrivals.len() as u64;
        prop_assert!(world.decisions < 2_000 + 200 * files, "{} decisions for {files} files",
            world.decisions);
        world.run_for(Duration::from_secs(1));
        let counts = world.scheduler.counts();
        prop_assert_eq!((counts.queued, counts.leased, counts.leased_bytes), (0, 0, 0));
    }

    /// The same events at the same times give the same decisions.
    #[test]
    fn same_input_same_output(seed in any::<u64>()) {
        let run = || {
            let mut world = random_world(seed);
            world.keep_log = true;
            let mut dice = Dice(seed ^ 1);
            for _ in 0..10 {
                world.run_for(Duration::from_millis(20 + dice.below(500)));
                upset(&mut world, &mut dice);
            }
            world.log
        };
        prop_assert_eq!(run(), run());
    }

    /// A party that wants more than arrives gets its share, and within it no priority starves.
    #[test]
    fn shares_converge_and_nobody_starves(seed in any::<u64>()) {
        shares_converge(seed)?;
    }
}

proptest! {
    // Each of them is half a minute of one target, which is long and much alike.
    #![proptest_config(ProptestConfig { cases: worlds().cases.div_ceil(5), ..worlds() })]

    /// However much of the younger and the more urgent comes by a circuit that never ends: what comes the
    /// plain way is served, a lower priority by its relief, and an equal one from when it is due.
    #[test]
    fn circuits_starve_nobody(seed in any::<u64>()) {
        circuits_starve(seed)?;
    }
}

const SPELL_S: u64 = 30;

fn circuits_starve(seed: u64) -> Result<(), TestCaseError> {
    let mut dice = Dice(seed ^ 0x0c1c);
    let rate = 10e6 * (2 + dice.below(3)) as f64;
    // The target takes a few files at a time, so that who is chosen counts.
    let mut places = vec![WorldSite::new(10.0 * rate), WorldSite::new(rate), WorldSite::new(rate)];
    places[2].limits.active_in = Some(2 + dice.below(3) as u32);
    let mut world = World::new(places, seed);
    let (older, younger, files) = (1, 2, 10 + dice.below(20));
    world.add_files(older, 1, vec![1_000_000; files as usize]);
    // More than comes in all of the time, of a source that could send ten times as fast.
    world.add_files(younger, 0, vec![5_000_000; (2.0 * rate / 1e6) as usize * SPELL_S as usize]);
    let high = 2 + dice.below(8) as u8;
    let low = if dice.chance(0.5) { high } else { 1 + dice.below(u64::from(high) - 1) as u8 };
    if low == high {
        world.deadlines.insert(older, world.now + Duration::from_secs(dice.below(5)));
    }
    world.subscribe(older, &[older], 2, low);
    world.subscribe(younger, &[younger], 2, high);
    let all = vec![LinkCircuit { source: StorageId(0), target: StorageId(2), bytes_per_s: 10.0 * rate }];
    world.handle(Event::Circuits(all));
    world.run_for(Duration::from_secs(SPELL_S));
    let came = world.arrivals.keys().filter(|(file, _)| *file < files).count() as u64;
    let least = if low == high { files } else { files.div_ceil(4) };
    prop_assert!(came >= least, "{came} of {files} came, with priority {low} beside {high}");
    prop_assert!(world.lacking() > 0, "there was always something by the circuit");
    Ok(())
}

/// Two activities of one community, of which the agent brought one a burst early; and a community that was
/// dealt a burst just before the beginning.
#[test]
fn bursts_of_what_is_dealt_or_comes_change_no_share() {
    shares_converge(7_112_661_147_336_812_571).unwrap();
    shares_converge(3_175_705_784_828_695_197).unwrap();
    shares_converge(10_324_014_539_966_711_769).unwrap();
    shares_converge(2_885_183_814_561_829_077).unwrap();
}

fn shares_converge(seed: u64) -> Result<(), TestCaseError> {
    if !farthest_off(seed, CONTENDED_S).is_ok_and(|(off, _)| off < OFF) {
        // In one world in ten thousand a burst at an end of that time counts for more; in a longer time it
        // does not.
        let (off, who) = farthest_off(seed, 5 * CONTENDED_S)?;
        prop_assert!(off < OFF, "{who} is still off by {off:.3} after a longer time");
    }
    Ok(())
}

/// By what part of all a party is off its share at the most, while all contend for so long, and which.
fn farthest_off(seed: u64, contended_s: u64) -> Result<(f64, String), TestCaseError> {
    let (mut world, wishes) = contended(seed, contended_s);
    let mut farthest = (f64::MIN, String::new());
    world.run_for(Duration::from_secs(SETTLED_S));
    let before = (obtained(&world, wishes.len()), held(&world, wishes.len()));
    world.run_for(Duration::from_secs(contended_s));
    let since = |now: Vec<f64>, before: Vec<f64>| -> Vec<f64> {
        now.into_iter().zip(before).map(|(now, before)| now - before).collect()
    };
    let got = since(obtained(&world, wishes.len()), before.0);
    let more_held = since(held(&world, wishes.len()), before.1);
    // The scheduler shares what it deals, some of it in bursts; an agent brings of that what is urgent first.
    let dealt: Vec<f64> = got.iter().zip(&more_held).map(|(got, held)| got + held).collect();
    let all_dealt: f64 = dealt.iter().sum();
    let all: f64 = got.iter().sum();
    let port = world.places[TARGET as usize].in_bytes_per_s;
    prop_assert!(
        all > 0.85 * port * contended_s as f64,
        "the target was kept busy: {all} at {port} a second"
    );
    for (wish, got_here) in wishes.iter().zip(&got) {
        let same = wishes.iter().zip(&got).filter(|(other, _)| other.party == wish.party);
        let (together, highest) =
            same.fold((0.0, 0), |(sum, most), (other, got)| (sum + got, most.max(other.priority)));
        let part = together / all;
        prop_assert!((part - wish.share).abs() < 0.08, "{wish:?} got {part:.3}");
        // What is under way at the beginning and at the end, some seconds of work, counts or not.
        let same = wishes.iter().zip(&dealt).filter(|(other, _)| other.party == wish.party);
        let dealt = same.map(|(_, dealt)| dealt).sum::<f64>() / all_dealt;
        let off = (part.min(dealt) - wish.share).max(wish.share - part.max(dealt));
        if off > farthest.0 {
            farthest =
                (off, format!("{wish:?}, with {part:.3} of what came and {dealt:.3} of what was dealt,"));
        }
        // One part in `relief` is for those below the highest; what is under way and one file either way.
        let relief = f64::from(Settings::default().relief);
        // Of the lower one comes what was leased before, and what fills batches, beside its relief: in one
        // world of some thousands most of what its party gets in this time. Nobody starves by it.
        let least = if wish.priority == highest { 0.2 } else { 0.2 / relief };
        let least = least * wish.share * all - 3.0 * (LARGEST as f64 + TURN_BYTES);
        prop_assert!(*got_here > least, "{wish:?} got {got_here:.0} of at least {least:.0}");
    }
    Ok(farthest)
}

const TARGET: u64 = 0;
/// What was leased before all had asked comes first.
const SETTLED_S: u64 = 10;
const CONTENDED_S: u64 = 30;
/// Tolerance of a share, as a part of all that arrives meanwhile.
const OFF: f64 = 0.03;
const LARGEST: u64 = 6_000_000;
/// What turns count for a file beside its bytes.
const TURN_BYTES: f64 = 1e6;

/// A subscription of a block of its own, numbered as it is.
#[derive(Debug)]
struct Wish {
    party: Party,
    priority: u8,
    /// Share of all, together with the wishes of the same party.
    share: f64,
}

/// Bytes that came of each block, as turns count them.
fn obtained(world: &World, blocks: usize) -> Vec<f64> {
    let mut got = vec![0.0; blocks];
    for &(file, _) in world.arrivals.keys() {
        let row = &world.files[file as usize];
        got[row.block as usize - 1] += row.size as f64 + TURN_BYTES;
    }
    got
}

/// The same of what is leased and did not come yet.
fn held(world: &World, blocks: usize) -> Vec<f64> {
    let mut held = vec![0.0; blocks];
    for running in world.running.values() {
        held[running.lease.block.0 as usize - 1] += running.lease.size as f64 + TURN_BYTES;
    }
    held
}

/// Two to four communities, some with two activities, some of these with two priorities: all want more of one
/// target than it can take, from sources that could each fill it and have all of it.
fn contended(seed: u64, contended_s: u64) -> (World, Vec<Wish>) {
    let mut dice = Dice(seed ^ 0x5a5a);
    let port = 40e6 * (1 + dice.below(4)) as f64;
    let sources = 1 + dice.below(3);
    let mut places = vec![WorldSite::new(port)];
    places.extend((0..sources).map(|_| WorldSite::new(port * (1.0 + dice.below(3) as f64))));
    if dice.chance(0.3) {
        places[TARGET as usize].limits.active_in = Some(200 + dice.below(400) as u32);
    }
    let mut shares = Shares { communities: Default::default(), default: 1.0 };
    let mut wishes = Vec::new();
    let names = &["atlas", "cms", "lhcb", "alice"][..2 + dice.below(3) as usize];
    for name in names {
        let weight = (1 + dice.below(4)) as f64;
        let activities: Vec<(&str, f64)> = match dice.chance(0.5) {
            true => vec![("production", 1.0 + dice.below(3) as f64), ("analysis", 1.0)],
            false => Vec::new(),
        };
        let sum: f64 = activities.iter().map(|(_, weight)| weight).sum();
        let rows = activities.iter().map(|(name, weight)| (name.parse().unwrap(), *weight));
        let share = CommunityShare { activities: rows.collect(), ..CommunityShare::with_weight(weight) };
        shares.communities.insert(name.parse().unwrap(), share);
        let mut parties: Vec<(Party, f64)> = activities
            .iter()
            .map(|(activity, part)| (party(name, Some(activity)), weight * part / sum))
            .collect();
        if parties.is_empty() {
            parties.push((party(name, None), weight));
        }
        for (party, share) in parties {
            let priority = 1 + dice.below(8) as u8;
            wishes.push(Wish { party: party.clone(), priority, share });
            if dice.chance(0.4) {
                wishes.push(Wish { party, priority: priority + 1, share });
            }
        }
    }
    let weights: f64 = shares.communities.values().map(|share| share.weight).sum();
    wishes.iter_mut().for_each(|wish| wish.share /= weights);
    let mut world = World::new(places, seed);
    // The same weights, as those of the links alone: all of the target's links have them, so all comes out
    // the same.
    if Dice(seed ^ 0x11ea).chance(0.3) {
        let communities = shares.communities.iter_mut();
        let of_links = communities
            .map(|(name, share)| (name.clone(), std::mem::replace(&mut share.weight, 1.0)))
            .collect();
        let links = (None, Some(StorageId(TARGET)));
        world.handle(Event::LinkShares(vec![LinkShares { links, communities: of_links, others: 0.0 }]));
    }
    world.handle(Event::Shares(shares));
    for (block, wish) in (1..).zip(&wishes) {
        let mut left = wish.share * port * 1.5 * (SETTLED_S + contended_s) as f64 + 100e6;
        let mut sizes = Vec::new();
        while left > 0.0 {
            let size = dice.below(LARGEST);
            left -= size as f64 + TURN_BYTES;
            sizes.push(size);
        }
        let first = world.files.len() as u64;
        world.add_files(block, 1, sizes);
        let others = (2..=sources)
            .flat_map(|source| (first..world.files.len() as u64).map(move |file| (file, source)));
        let others: Vec<(u64, u64)> = others.collect();
        world.replicas.extend(others);
        world.parties.insert(block, wish.party.clone());
        world.subscribe(block, &[block], TARGET, wish.priority);
    }
    (world, wishes)
}

/// Promise 8: nothing starts at a paused site, what has not begun is taken back; afterwards all goes on.
#[test]
fn a_paused_site_gets_nothing() {
    let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![5_000_000; 200]);
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(2));
    world.places[1].state = SiteState::Paused;
    world.tell_site(1);
    world.run_for(Duration::from_secs(1));
    assert!(world.running.values().all(|running| running.started), "what had not begun was taken back");
    world.run_for(Duration::from_secs(60));
    assert!(world.running.is_empty() && world.lacking() > 0);
    let outlook = world.scheduler.outlook(SubscriptionId(1), world.now);
    assert_eq!(outlook.median, None);
    assert!(outlook.why_none.unwrap().contains("site-1 is paused"));
    world.places[1].state = SiteState::Open;
    world.tell_site(1);
    world.run(HOUR);
    arrived_once(&world);
}

/// Promise 10: the queue of a full target waits with the reason, and goes on when there is room.
#[test]
fn a_full_target_waits_and_goes_on() {
    let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![1_000_000; 300]);
    world.subscribe(1, &[1], 1, 5);
    world.places[1].full = true;
    world.run_for(Duration::from_secs(300));
    assert_eq!(world.arrivals.len(), 0);
    assert!(world.leases < 300 + 20, "{} leases: single probes only", world.leases);
    let waits = world.scheduler.transfers(None, None, 1)[0].transfer;
    let waits = world.scheduler.explain_wait(waits, world.now).unwrap();
    assert!(waits.contains("full or read-only"), "{waits}");
    world.places[1].full = false;
    world.run(HOUR);
    // And as the agent's own report tells.
    world.add_files(2, 0, vec![1_000_000; 10]);
    world.subscribe(2, &[2], 1, 5);
    world.tell_storage(1, Some(Fault::new(FaultCode::TargetFull, "3 bytes free")));
    let leases = world.leases;
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.leases, leases);
    let why = world.scheduler.outlook(SubscriptionId(2), world.now).why_none.unwrap();
    assert!(why.contains("3 bytes free"), "{why}");
    world.tell_storage(1, None);
    world.run(Duration::from_secs(60));
}

/// A damaged replica is told of, its storage is asked no more for that file, and another one serves it.
#[test]
fn a_damaged_replica_is_left_for_another() {
    let mut world = World::new(vec![WorldSite::new(400e6), WorldSite::new(20e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![1_000_000; 100]);
    (0..100).for_each(|file| {
        world.replicas.insert((file, 1));
    });
    world.corrupt = (0..100).step_by(10).map(|file| (file, 0)).collect();
    let damaged = world.corrupt.clone();
    world.subscribe(1, &[1], 2, 5);
    world.run(HOUR);
    arrived_once(&world);
    let suspected: BTreeSet<(u64, u64)> =
        damaged.into_iter().filter(|pair| !world.replicas.contains(pair)).collect();
    assert!(suspected.len() >= 5, "most were tried at the faster source");
    assert!(world.bytes_between(1, 2) >= 1_000_000 * suspected.len() as u64);
}

/// Without any other replica the transfer is parked with a reason, and goes on when there is one.
#[test]
fn without_a_source_it_waits_for_one() {
    let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![1_000_000; 3]);
    world.corrupt.insert((1, 0));
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(30));
    assert_eq!(world.lacking(), 1);
    let outlook = world.scheduler.outlook(SubscriptionId(1), world.now);
    assert!(outlook.why_none.unwrap().contains("1 file without a usable replica"));
    let parked = world.scheduler.transfers(Some(SubscriptionId(1)), None, 9);
    let waits = world.scheduler.explain_wait(parked[0].transfer, world.now).unwrap();
    assert!(waits.contains("no storage holds a usable replica"), "{waits}");
    world.replicas.insert((1, 2));
    world.handle(longhaul_scheduler::Event::ReplicaAdded {
        file: longhaul_model::FileId(1),
        storage: StorageId(2),
    });
    world.run(Duration::from_secs(30));
}

/// The least priority is served while the highest never ends, and the highest gets most.
#[test]
fn no_priority_starves() {
    let mut world = World::new(vec![WorldSite::new(20e6), WorldSite::new(20e6)], 3);
    world.add_files(1, 0, vec![1_000_000; 4_000]);
    world.add_files(2, 0, vec![1_000_000; 20]);
    world.subscribe(2, &[2], 1, 1);
    world.subscribe(1, &[1], 1, 9);
    world.run_for(Duration::from_secs(60));
    let low = world.arrivals.keys().filter(|(file, _)| *file >= 4_000).count();
    let high = world.arrivals.len() - low;
    assert_eq!(low, 20, "the least priority starves");
    assert!(high > 900, "only {high} of the highest priority in a minute of 20 files/s");
}

/// An urgent subscription overtakes one that fills the horizon already.
#[test]
fn the_urgent_overtakes() {
    let mut world = World::new(vec![WorldSite::new(20e6), WorldSite::new(20e6)], 3);
    world.add_files(1, 0, vec![1_000_000; 6_000]);
    world.add_files(2, 0, vec![1_000_000; 200]);
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(5));
    world.subscribe(2, &[2], 1, 9);
    world.run_for(Duration::from_secs(25));
    let urgent = world.arrivals.keys().filter(|(file, _)| *file >= 6_000).count();
    assert_eq!(urgent, 200);
}

/// The same block wanted twice at a target is moved once; one of the wishes may go.
#[test]
fn what_two_want_is_moved_once() {
    let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![1_000_000; 100]);
    world.subscribe(1, &[1], 1, 3);
    world.subscribe(2, &[1], 1, 7);
    world.run_for(Duration::from_millis(500));
    world.cancel(2);
    assert!(world.lacking() > 0);
    world.run(Duration::from_secs(60));
    arrived_once(&world);
    assert_eq!(world.arrivals.len(), 100);
}

/// A source that cannot be reached costs a few attempts and single probes, and is used again when it can.
#[test]
fn an_unreachable_source_is_probed() {
    let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![100_000; 2_000]);
    world.places[0].unreachable = true;
    world.places[1].limits = SiteLimits { active_in: Some(50), ..SiteLimits::default() };
    world.tell_site(1);
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(120));
    assert!(world.leases < 120, "{} leases to a source that nobody reaches", world.leases);
    let outlook = world.scheduler.outlook(SubscriptionId(1), world.now);
    assert!(outlook.why_none.as_ref().is_some_and(|why| why.contains("could not be reached")), "{outlook:?}");
    world.places[0].unreachable = false;
    let took = world.run(HOUR);
    assert!(took < Duration::from_secs(120), "{took:?}");
}

/// The host of a source that refuses connections has said what every further attempt would hear.
#[test]
fn a_source_that_refuses_connections_is_only_probed_from_the_first_refusal_on() {
    let leases = |refusing: bool| {
        let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 3);
        world.refusing = refusing;
        world.add_files(1, 0, vec![100_000; 200]);
        world.places[0].unreachable = true;
        world.places[1].limits = SiteLimits { active_in: Some(1), ..SiteLimits::default() };
        world.tell_site(1);
        world.subscribe(1, &[1], 1, 5);
        world.run_for(Duration::from_secs(30));
        world.leases
    };
    let (refused, unreachable) = (leases(true), leases(false));
    assert!(refused > 0 && refused < unreachable, "{refused} and {unreachable}");
}

/// A transient error of 30 s costs little more than itself.
#[test]
fn a_short_failure_costs_little() {
    let clean = {
        let mut world = World::new(vec![WorldSite::new(20e6), WorldSite::new(20e6)], 3);
        world.add_files(1, 0, vec![500_000; 3_000]);
        world.subscribe(1, &[1], 1, 5);
        world.run(HOUR)
    };
    let mut world = World::new(vec![WorldSite::new(20e6), WorldSite::new(20e6)], 3);
    world.add_files(1, 0, vec![500_000; 3_000]);
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(10));
    world.places[0].unreachable = true;
    world.run_for(Duration::from_secs(30));
    world.places[0].unreachable = false;
    let rest = world.run(HOUR);
    let lost = Duration::from_secs(40) + rest;
    assert!(lost < clean + Duration::from_secs(90), "{lost:?} instead of {clean:?}");
}

/// A repaired cause need not wait until a backoff is over.
#[test]
fn a_resting_transfer_is_tried_at_once_by_request() {
    let mut world = World::new(vec![WorldSite::new(1e9), WorldSite::new(1e9)], 3);
    world.add_files(1, 0, [1_000]);
    world.subscribe(1, &[1], 1, 5);
    world.failure_share = 1.0;
    world.run_for(Duration::from_secs(3_600));
    world.failure_share = 0.0;
    let transfers: Vec<TransferId> =
        world.scheduler.transfers(None, None, 10).into_iter().map(|now| now.transfer).collect();
    assert_eq!(transfers.len(), 1);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.arrivals.len(), 0, "it rests for minutes after so many failures");
    world.handle(Event::TryNow { transfer: transfers[0] });
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.arrivals.len(), 1);
    world.handle(Event::TryNow { transfer: transfers[0] });
}

/// The faster of two sources gets more, none is left idle, and both together beat the faster alone.
#[test]
fn sources_are_used_by_their_rates() {
    let mut world = World::new(vec![WorldSite::new(80e6), WorldSite::new(20e6), WorldSite::new(1e9)], 3);
    world.add_files(1, 0, vec![2_000_000; 2_000]);
    (0..2_000).for_each(|file| {
        world.replicas.insert((file, 1));
    });
    world.subscribe(1, &[1], 2, 5);
    let took = world.run(HOUR).as_secs_f64();
    let share = world.bytes_between(0, 2) as f64 / 4e9;
    assert!((0.7..0.9).contains(&share), "the faster source gave {share:.2}");
    assert!(took < 40.0 * 1.15, "{took} s instead of 40");
}

/// One site's limit on attempts out is shared by targets of different priority, and none is left out.
#[test]
fn slots_of_a_site_are_shared() {
    let mut places = vec![WorldSite::new(100e6); 4];
    places[0].limits.active_out = Some(4);
    let mut world = World::new(places, 3);
    world.add_files(1, 0, vec![1_000_000; 400]);
    for target in 1..=3 {
        world.subscribe(target, &[1], target, [9, 5, 1][target as usize - 1]);
    }
    world.run_for(Duration::from_secs(10));
    let got = |target| world.arrivals.keys().filter(|(_, at)| *at == target).count();
    assert!(got(1) > 0 && got(2) > 0 && got(3) > 0, "{} {} {}", got(1), got(2), got(3));
    world.run(HOUR);
    arrived_once(&world);
}

/// Leases reach the agent before it runs dry: no time is lost between small files.
#[test]
fn no_gap_between_files() {
    let mut world = World::new(vec![WorldSite::new(500e6), WorldSite::new(500e6)], 3);
    world.add_files(1, 0, vec![64_000; 30_000]);
    world.subscribe(1, &[1], 1, 5);
    let took = world.run(HOUR).as_secs_f64();
    let bound = 30_000.0 * 64_000.0 / 500e6;
    assert!(took < bound * 1.1 + 0.5, "{took:.2} s instead of {bound:.2}");
}

/// Promise 10: there is an expected time, it is about right, and it holds nine times in ten.
#[test]
fn the_outlook_is_about_right() {
    let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![2_000_000; 2_000]);
    world.subscribe(1, &[1], 1, 5);
    world.run_for(Duration::from_secs(10));
    let outlook = world.scheduler.outlook(SubscriptionId(1), world.now);
    let at = world.now;
    let took = world.run(HOUR).as_secs_f64();
    let median = outlook.median.unwrap().since(at).as_secs_f64();
    let ninety = outlook.ninety.unwrap().since(at).as_secs_f64();
    assert!((median / took - 1.0).abs() < 0.2, "{median:.1} s expected, {took:.1} s taken");
    assert!(ninety > took * 0.95 && ninety < took * 2.0, "{ninety:.1} s for nine in ten, {took:.1} s taken");
    assert_eq!(world.scheduler.outlook(SubscriptionId(1), world.now).why_none.unwrap(), "nothing is missing");
}

/// What goes first to the same target is counted, and told.
#[test]
fn the_outlook_tells_who_goes_before() {
    let mut world = World::new(vec![WorldSite::new(50e6), WorldSite::new(50e6)], 3);
    world.add_files(1, 0, vec![2_000_000; 500]);
    world.add_files(2, 0, vec![2_000_000; 50]);
    world.subscribe(1, &[1], 1, 9);
    world.subscribe(2, &[2], 1, 5);
    world.run_for(Duration::from_secs(5));
    let first = world.scheduler.outlook(SubscriptionId(1), world.now);
    let second = world.scheduler.outlook(SubscriptionId(2), world.now);
    assert!(second.median.unwrap() > first.median.unwrap());
    assert!(second.held_up_by[0].contains("more urgent subscriptions go first"), "{second:?}");
}

/// A choice among several is told with the number that decided it.
#[test]
fn a_choice_tells_its_reason() {
    let mut world = World::new(vec![WorldSite::new(80e6), WorldSite::new(20e6), WorldSite::new(1e9)], 3);
    world.keep_log = true;
    world.add_files(1, 0, vec![2_000_000; 500]);
    (0..500).for_each(|file| {
        world.replicas.insert((file, 1));
    });
    world.subscribe(1, &[1], 2, 5);
    world.run(HOUR);
    let told = world.reasons.iter().filter(|reason| reason.contains("because it finishes first: "));
    assert!(told.count() > 10, "{:?}", &world.reasons[..5]);
    assert!(world.reasons.iter().any(|reason| reason.contains("storage-1") && reason.contains("against")));
}
