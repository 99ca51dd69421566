//! A deadline in danger gets a new plan: it goes before other work of its own activity, and is kept; nobody
//! else pays.

use std::time::Duration;

use longhaul_model::SubscriptionId;
use longhaul_scheduler::*;

use crate::world::*;

const MB: u64 = 1_000_000;
/// The urgent subscription, of one of two communities that share a target of 100 MB/s evenly.
const URGENT: u64 = 2;

/// ATLAS has much of high priority, and little of low priority that is to be there in a minute; CMS has much
/// as well.
fn contended() -> World {
    let mut world = World::new(vec![WorldSite::new(100e6), WorldSite::new(100e6)], 1);
    world.deadlines.insert(URGENT, world.now + Duration::from_secs(60));
    for (block, community, files, priority) in
        [(1, "atlas", 800, 8), (URGENT, "atlas", 100, 3), (3, "cms", 800, 5)]
    {
        world.add_files(block, 0, (0..files).map(|_| 20 * MB));
        world.parties.insert(block, party(community, None));
        world.subscribe(block, &[block], 1, priority);
    }
    world
}

fn hurry(world: &mut World, hurry: bool) {
    world.handle(Event::Expedite { subscription: SubscriptionId(URGENT), expedite: hurry });
}

fn came(world: &World, block: u64) -> u64 {
    let of_block = world.arrivals.keys().filter(|(file, _)| world.files[*file as usize].block == block);
    of_block.count() as u64
}

fn outlook(world: &World) -> Outlook {
    world.scheduler.outlook(SubscriptionId(URGENT), world.now)
}

#[test]
fn in_danger_it_goes_first_and_is_kept() {
    let mut world = contended();
    world.run_for(Duration::from_secs(60));
    assert!(came(&world, URGENT) < 30, "without a new plan it is missed by far: {}", came(&world, URGENT));

    let mut world = contended();
    world.run_for(Duration::from_secs(5));
    let deadline = world.deadlines[&URGENT];
    assert!(outlook(&world).chance_by(deadline, world.now).unwrap() < 0.5, "that shows after a few seconds");
    hurry(&mut world, true);
    assert!(outlook(&world).expedited);
    world.run_for(Duration::from_secs(5));
    assert!(outlook(&world).chance_by(deadline, world.now).unwrap() > 0.5, "{:?}", outlook(&world));
    let (others, before) = (came(&world, 3), came(&world, 1));
    world.run_for(Duration::from_secs(40));
    let (others, lower) = (came(&world, 3) - others, came(&world, 1) - before);
    world.run_for(Duration::from_secs(10));
    assert_eq!(came(&world, URGENT), 100, "kept");
    assert!(
        (95..=105).contains(&others),
        "the other community has its half of 4 GB all the same: {others} files"
    );
    assert!(lower > 3, "nor does the rest of its own starve: {lower} files");
}

#[test]
fn it_is_told_why_and_ends_when_it_is_safe() {
    let mut world = contended();
    world.run_for(Duration::from_secs(2));
    hurry(&mut world, true);
    let told = |world: &World| {
        let waiting =
            world.scheduler.transfers(Some(SubscriptionId(URGENT)), None, 5_000).into_iter().find_map(
                |transfer| {
                    let urgent =
                        world.files[transfer.file.0 as usize].block == URGENT && transfer.leased.is_none();
                    if urgent { world.scheduler.explain_wait(transfer.transfer, world.now) } else { None }
                },
            );
        waiting.unwrap()
    };
    assert!(
        told(&world).contains("its deadline is in danger: it goes before all else of atlas"),
        "{}",
        told(&world)
    );
    world.run_for(Duration::from_secs(10));
    hurry(&mut world, false);
    assert!(!told(&world).contains("in danger"), "{}", told(&world));
    world.run_for(Duration::from_secs(5));
    let before = came(&world, URGENT);
    world.run_for(Duration::from_secs(20));
    assert!(came(&world, URGENT) - before < 10, "it has the place that its priority gives it");
    // Without a deadline there is none in danger, and of what nobody knows nothing is changed.
    world.handle(Event::Expedite { subscription: SubscriptionId(1), expedite: true });
    world.handle(Event::Expedite { subscription: SubscriptionId(99), expedite: true });
    world.run_for(Duration::from_secs(1));
}
