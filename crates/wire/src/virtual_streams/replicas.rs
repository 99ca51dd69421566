//! Several sources of the same files: one that dies, lies, lacks some of them or crawls spoils nothing and
//! loses nothing.

use super::*;
use crate::limits::{RECONNECT_FOR, WRONG_OF_FILE_MAX};

fn world(seed: u64, sizes: Vec<u64>, sources: usize) -> World {
    let buffers = 12 + (seed % 13) as usize;
    let mut world = World::new(seed, sizes, buffers, false).with_sources(sources, 1 + (seed % 3) as usize);
    world.step_ms = 5;
    world.add_files();
    world
}

fn is_over(world: &World) -> bool {
    world.complete.len() + world.failed.len() == world.sizes.len()
}

fn finish(world: &mut World) {
    let mut steps = 0;
    while !is_over(world) {
        world.step();
        steps += 1;
        assert!(steps < 1_000_000, "it does not end: {:?}", world.failed);
    }
    world.check_complete();
}

/// Everything was sent once, but for what was wrong and for copies at the end.
fn sent_again(world: &World) -> usize {
    let twice: usize = world.manner.sent.values().map(|times| times - 1).sum();
    twice - world.manner.found_wrong
}

#[test]
fn all_sources_bring_their_share_and_nothing_comes_twice() {
    for seed in 1..30 {
        let mut world = world(seed, vec![60 * CHUNK, 3, 40 * CHUNK + 7, CHUNK], 3);
        finish(&mut world);
        assert!(world.failed.is_empty() && world.manner.left_out.is_empty());
        assert_eq!(sent_again(&world), 0);
        for origin in 0..3 {
            let brought = world.manner.brought.get(&OriginNumber(origin)).copied().unwrap_or(0);
            assert!(brought > 10 * CHUNK, "source {origin} brought {brought} of 100 chunks, seed {seed}");
        }
    }
}

/// What one gives wrongly is had from the others, and nothing else is asked for again.
#[test]
fn a_wrong_chunk_comes_from_another_source() {
    for seed in 1..30 {
        let mut world = world(seed, vec![90 * CHUNK, 20, 30], 2);
        world.manner.liar = Some((1, 17));
        finish(&mut world);
        assert!(world.failed.is_empty());
        assert!(world.manner.left_out.is_empty(), "a few wrong chunks do not make a source useless");
        assert_eq!(sent_again(&world), 0);
    }
}

/// Each has other chunks wrong, and more than a few: together they have the file.
#[test]
fn two_damaged_copies_make_a_whole_one() {
    for seed in 1..30 {
        let mut world = world(seed, vec![300 * CHUNK], 2);
        world.manner.all_lie = true;
        world.manner.apart = true;
        world.manner.liar = Some((0, 10));
        finish(&mut world);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
        assert!(world.manner.found_wrong > WRONG_OF_FILE_MAX);
        assert_eq!(sent_again(&world), 0);
    }
}

/// One that has other files altogether is not asked for long.
#[test]
fn a_source_that_only_lies_is_left_out() {
    for seed in 1..30 {
        let mut world = world(seed, vec![200 * CHUNK], 3);
        world.manner.liar = Some((0, 1));
        finish(&mut world);
        assert!(world.failed.is_empty());
        let fault = &world.manner.left_out[&(FileNumber(0), OriginNumber(0))];
        assert_eq!(fault.code, FaultCode::WrongDigest);
        let in_flight = 24;
        assert!(world.manner.found_wrong <= WRONG_OF_FILE_MAX + in_flight, "{}", world.manner.found_wrong);
    }
}

#[test]
fn without_a_better_source_a_wrong_chunk_is_tried_twice_and_fails_the_file() {
    for (seed, sources) in (1..20).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let mut world = world(seed, vec![5 * CHUNK], sources);
        world.receiver.files_are_checked();
        // All of them have the same chunk wrong.
        world.manner.all_lie = true;
        world.manner.liar = Some((0, 3));
        finish(&mut world);
        assert_eq!(world.failed[&FileNumber(0)].code, FaultCode::WrongDigest);
        assert!(world.failed[&FileNumber(0)].detail.contains("bytes "), "{:?}", world.failed);
        assert!(world.manner.found_wrong >= 2);
        assert!(world.manner.found_wrong <= 2 * 2 * sources, "{}", world.manner.found_wrong);
    }
}

#[test]
fn who_lacks_a_file_brings_the_others() {
    for seed in 1..30 {
        let mut dice = Dice(seed);
        let mut world = world(seed, sizes(&mut dice, 60, 6), 2);
        world.manner.poor = Some((1, 3));
        finish(&mut world);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
        assert!(world.manner.left_out.keys().all(|(file, origin)| file.0 % 3 == 0 && origin.0 == 1));
        assert!(world.manner.left_out.values().all(|fault| fault.code == FaultCode::SourceMissing));
    }
}

/// Promise 4: what a source that dies had been asked for comes from the others, and nothing that had come
/// before.
#[test]
fn a_source_that_dies_is_replaced_by_the_others() {
    for seed in 1..30 {
        let mut world = world(seed, vec![80 * CHUNK, 60 * CHUNK], 2);
        while world.manner.brought.values().sum::<u64>() < 30 * CHUNK {
            world.step();
        }
        let dies = (seed % 2) as usize;
        world.manner.dead = Some(dies);
        let streams: Vec<StreamNumber> =
            world.lines.iter().filter(|(_, line)| line.origin == dies).map(|(stream, _)| *stream).collect();
        let owed: usize = world.receiver.slots();
        streams.into_iter().for_each(|stream| world.cut(stream));
        world.drain();
        finish(&mut world);
        assert!(world.failed.is_empty() && world.now < 100 * RECONNECT_FOR);
        assert!(sent_again(&world) <= owed, "{} sent again, {owed} were in flight", sent_again(&world));
    }
}

/// It is dialled all the while, and takes its share again.
#[test]
fn a_source_that_comes_back_is_used_again() {
    let mut world = world(3, vec![400 * CHUNK], 2);
    world.manner.dead = Some(1);
    while world.now < RECONNECT_FOR + Duration::from_secs(2) {
        if world.manner.brought.values().sum::<u64>() > 100 * CHUNK {
            // The rest comes when the other has been given up for a while.
            world.now += Duration::from_secs(1);
        }
        world.step();
    }
    assert!(!world.manner.brought.contains_key(&OriginNumber(1)));
    world.manner.dead = None;
    finish(&mut world);
    assert!(world.failed.is_empty());
    assert!(world.manner.brought[&OriginNumber(1)] > 20 * CHUNK, "{:?}", world.manner.brought);
}

/// Without any source the files fail as they do with one.
#[test]
fn when_all_are_gone_the_files_fail() {
    let mut world = world(4, vec![9 * CHUNK, 5], 3);
    while world.failed.len() < 2 {
        world.now += Duration::from_millis(100);
        world.receiver.handle_timeout(world.now);
        world.drain();
        for stream in std::mem::take(&mut world.dialled) {
            world.receiver.stream_down(stream, Fault::new(FaultCode::Unreachable, "refused"), world.now);
        }
        assert!(world.now < 2 * RECONNECT_FOR);
    }
    assert!(world.failed.values().all(|fault| fault.code == FaultCode::Unreachable));
}

/// A stranger in place of a source ends that source and nothing else.
#[test]
fn a_source_that_will_not_have_us_is_not_dialled_again() {
    let mut world = world(5, vec![30 * CHUNK, 7], 2);
    world.drain();
    let refused = Fault::new(FaultCode::NotAllowed, "go away");
    let of_second =
        |world: &World, stream: &StreamNumber| world.receiver.origin_of(*stream) == OriginNumber(1);
    let streams = std::mem::take(&mut world.dialled);
    for stream in streams {
        if of_second(&world, &stream) {
            world.receiver.stream_down(stream, refused.clone(), world.now);
        } else {
            world.dialled.push(stream);
        }
    }
    world.manner.dead = Some(1);
    finish(&mut world);
    assert!(world.failed.is_empty());
    assert_eq!(world.manner.left_out.len(), 2);
    assert!(!world.dialled.iter().any(|stream| of_second(&world, stream)));
}

/// One that lives and sends nothing costs no more than a minute.
#[test]
fn a_source_that_sends_nothing_is_left_out() {
    let mut world = world(6, vec![40 * CHUNK], 2);
    let mut steps = 0;
    while !is_over(&world) {
        world.step();
        for (&stream, line) in &mut world.lines {
            // Both are alive.
            world.receiver.heard(stream, 0, world.now);
            if line.origin == 1 {
                line.to_source.clear();
            }
        }
        if world.manner.brought.values().sum::<u64>() > 30 * CHUNK {
            world.now += Duration::from_millis(200);
        }
        steps += 1;
        assert!(steps < 1_000_000);
    }
    assert!(world.failed.is_empty(), "{:?}", world.failed);
    world.check_complete();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256, ..ProptestConfig::default() })]
    /// Whatever streams, sources and disks do, every file ends complete, written once, within the buffers.
    #[test]
    fn sessions_with_several_sources_complete(seed in any::<u64>(), trouble: bool, in_order: bool) {
        let mut dice = Dice(seed ^ 0x7777);
        let (small, large, buffers) = (dice.below(60), 1 + dice.below(6), 2 + dice.below(20) as usize);
        let (sources, streams) = (2 + dice.below(3) as usize, 1 + dice.below(3) as usize);
        let sizes = sizes(&mut dice, small, large);
        let mut world = World::new(seed, sizes, buffers, trouble).with_sources(sources, streams);
        if in_order {
            world.places = Some(dice.below(buffers as u64) as usize);
        }
        world.manner.liar = dice.once_in(2).then(|| (dice.below(sources as u64) as usize, 1 + dice.below(9)));
        world.manner.poor = dice.once_in(2).then(|| (dice.below(sources as u64) as usize, 1 + dice.below(4) as u32));
        world.manner.dead = dice.once_in(3).then(|| dice.below(sources as u64) as usize);
        completes(world, true)?;
    }
}
