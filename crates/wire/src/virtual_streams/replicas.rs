//! Several sources of the same files: one that dies, corrupts, lacks some of them or stalls costs neither
//! data nor correctness.

use super::*;
use crate::limits::{RECONNECT_FOR, WRONG_CHUNKS_PER_FILE_MAX};

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
        assert!(steps < 1_000_000, "the session does not end: {:?}", world.failed);
    }
    world.check_complete();
}

/// Chunks sent more than once, except for wrong ones; endgame copies count.
fn repeated_chunks(world: &World) -> usize {
    let twice: usize = world.behaviour.sent.values().map(|times| times - 1).sum();
    twice - world.behaviour.found_wrong
}

#[test]
fn all_sources_share_the_load_and_nothing_is_sent_twice() {
    for seed in 1..30 {
        let mut world = world(seed, vec![60 * CHUNK, 3, 40 * CHUNK + 7, CHUNK], 3);
        finish(&mut world);
        assert!(world.failed.is_empty() && world.behaviour.excluded.is_empty());
        assert_eq!(repeated_chunks(&world), 0);
        for origin in 0..3 {
            let brought = world.behaviour.bytes_by_source.get(&OriginNumber(origin)).copied().unwrap_or(0);
            assert!(brought > 10 * CHUNK, "source {origin} brought {brought} of 100 chunks, seed {seed}");
        }
    }
}

/// A chunk that is wrong at one source is fetched from another, and nothing else is requested again.
#[test]
fn a_wrong_chunk_is_fetched_from_another_source() {
    for seed in 1..30 {
        let mut world = world(seed, vec![90 * CHUNK, 20, 30], 2);
        world.behaviour.corrupt_origin = Some((1, 17));
        finish(&mut world);
        assert!(world.failed.is_empty());
        assert!(world.behaviour.excluded.is_empty(), "a few wrong chunks do not exclude a source");
        assert_eq!(repeated_chunks(&world), 0);
    }
}

/// Each replica has many wrong chunks, but different ones: together they have the whole file.
#[test]
fn two_damaged_replicas_make_one_good_file() {
    for seed in 1..30 {
        let mut world = world(seed, vec![300 * CHUNK], 2);
        world.behaviour.all_corrupt = true;
        world.behaviour.corrupt_differently = true;
        world.behaviour.corrupt_origin = Some((0, 10));
        finish(&mut world);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
        assert!(world.behaviour.found_wrong > WRONG_CHUNKS_PER_FILE_MAX);
        assert_eq!(repeated_chunks(&world), 0);
    }
}

/// A source with an altogether different file is soon excluded.
#[test]
fn a_source_with_only_wrong_chunks_is_excluded() {
    for seed in 1..30 {
        let mut world = world(seed, vec![200 * CHUNK], 3);
        world.behaviour.corrupt_origin = Some((0, 1));
        finish(&mut world);
        assert!(world.failed.is_empty());
        let fault = &world.behaviour.excluded[&(FileNumber(0), OriginNumber(0))];
        assert_eq!(fault.code, FaultCode::WrongDigest);
        let in_flight = 24;
        assert!(
            world.behaviour.found_wrong <= WRONG_CHUNKS_PER_FILE_MAX + in_flight,
            "{}",
            world.behaviour.found_wrong
        );
    }
}

#[test]
fn a_chunk_wrong_at_every_source_is_tried_twice_and_fails_the_file() {
    for (seed, sources) in (1..20).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let mut world = world(seed, vec![5 * CHUNK], sources);
        world.receiver.require_checks();
        // All of them have the same chunk wrong.
        world.behaviour.all_corrupt = true;
        world.behaviour.corrupt_origin = Some((0, 3));
        finish(&mut world);
        assert_eq!(world.failed[&FileNumber(0)].code, FaultCode::WrongDigest);
        assert!(world.failed[&FileNumber(0)].detail.contains("bytes "), "{:?}", world.failed);
        assert!(world.behaviour.found_wrong >= 2);
        assert!(world.behaviour.found_wrong <= 2 * 2 * sources, "{}", world.behaviour.found_wrong);
    }
}

#[test]
fn a_source_lacking_some_files_serves_the_others() {
    for seed in 1..30 {
        let mut dice = SeededRng(seed);
        let mut world = world(seed, sizes(&mut dice, 60, 6), 2);
        world.behaviour.incomplete_origin = Some((1, 3));
        finish(&mut world);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
        assert!(world.behaviour.excluded.keys().all(|(file, origin)| file.0 % 3 == 0 && origin.0 == 1));
        assert!(world.behaviour.excluded.values().all(|fault| fault.code == FaultCode::SourceMissing));
    }
}

/// Promise 4: what was requested from a source that dies comes from the others, and nothing that had arrived
/// before.
#[test]
fn a_source_that_dies_is_replaced_by_the_others() {
    for seed in 1..30 {
        let mut world = world(seed, vec![80 * CHUNK, 60 * CHUNK], 2);
        while world.behaviour.bytes_by_source.values().sum::<u64>() < 30 * CHUNK {
            world.step();
        }
        let dies = (seed % 2) as usize;
        world.behaviour.dead = Some(dies);
        let streams: Vec<StreamNumber> =
            world.streams.iter().filter(|(_, line)| line.origin == dies).map(|(stream, _)| *stream).collect();
        let owed: usize = world.receiver.slots_in_use();
        streams.into_iter().for_each(|stream| world.cut_stream(stream));
        world.drain_outputs();
        finish(&mut world);
        assert!(world.failed.is_empty() && world.now < 100 * RECONNECT_FOR);
        assert!(
            repeated_chunks(&world) <= owed,
            "{} sent again, {owed} were in flight",
            repeated_chunks(&world)
        );
    }
}

/// The source is dialled all the while, and takes its share again when it is back.
#[test]
fn a_source_that_comes_back_is_used_again() {
    let mut world = world(3, vec![400 * CHUNK], 2);
    world.behaviour.dead = Some(1);
    while world.now < RECONNECT_FOR + Duration::from_secs(2) {
        if world.behaviour.bytes_by_source.values().sum::<u64>() > 100 * CHUNK {
            // The rest comes when the source has been unreachable for a while.
            world.now += Duration::from_secs(1);
        }
        world.step();
    }
    assert!(!world.behaviour.bytes_by_source.contains_key(&OriginNumber(1)));
    world.behaviour.dead = None;
    finish(&mut world);
    assert!(world.failed.is_empty());
    assert!(
        world.behaviour.bytes_by_source[&OriginNumber(1)] > 20 * CHUNK,
        "{:?}",
        world.behaviour.bytes_by_source
    );
}

/// Without any source the files fail, as with a single one.
#[test]
fn the_files_fail_when_all_sources_are_unreachable() {
    let mut world = world(4, vec![9 * CHUNK, 5], 3);
    while world.failed.len() < 2 {
        world.now += Duration::from_millis(100);
        world.receiver.handle_timeout(world.now);
        world.drain_outputs();
        for stream in std::mem::take(&mut world.dialled) {
            world.receiver.stream_down(stream, Fault::new(FaultCode::Unreachable, "refused"), world.now);
        }
        assert!(world.now < 2 * RECONNECT_FOR);
    }
    assert!(world.failed.values().all(|fault| fault.code == FaultCode::Unreachable));
}

/// A peer that refuses us takes out that source only.
#[test]
fn a_source_that_refuses_us_is_not_dialled_again() {
    let mut world = world(5, vec![30 * CHUNK, 7], 2);
    world.drain_outputs();
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
    world.behaviour.dead = Some(1);
    finish(&mut world);
    assert!(world.failed.is_empty());
    assert_eq!(world.behaviour.excluded.len(), 2);
    assert!(!world.dialled.iter().any(|stream| of_second(&world, stream)));
}

/// A source that lives and sends nothing costs no more than a minute.
#[test]
fn a_stalled_source_is_excluded() {
    let mut world = world(6, vec![40 * CHUNK], 2);
    let mut steps = 0;
    while !is_over(&world) {
        world.step();
        for (&stream, line) in &mut world.streams {
            // Both are alive.
            world.receiver.note_received(stream, 0, world.now);
            if line.origin == 1 {
                line.to_source.clear();
            }
        }
        if world.behaviour.bytes_by_source.values().sum::<u64>() > 30 * CHUNK {
            world.now += Duration::from_millis(200);
        }
        steps += 1;
        assert!(steps < 1_000_000);
    }
    assert!(world.failed.is_empty(), "{:?}", world.failed);
    world.check_complete();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256,
        ..ProptestConfig::default() })]
    /// Whatever streams, sources and disks do, every file ends complete, written once, within the buffers.
    #[test]
    fn sessions_with_several_sources_complete(seed in any::<u64>(), trouble: bool, in_order: bool) {
        let mut dice = SeededRng(seed ^ 0x7777);
        let (small, large, buffers) = (dice.below(60), 1 + dice.below(6), 2 + dice.below(20) as usize);
        let (sources, streams) = (2 + dice.below(3) as usize, 1 + dice.below(3) as usize);
        let sizes = sizes(&mut dice, small, large);
        let mut world = World::new(seed, sizes, buffers, trouble).with_sources(sources, streams);
        if in_order {
            world.reorder_credits_max = Some(dice.below(buffers as u64) as usize);
        }
        world.behaviour.corrupt_origin = dice.once_in(2).then(|| (dice.below(sources as u64) as usize,
            1 + dice.below(9)));
        world.behaviour.incomplete_origin = dice.once_in(2).then(|| (dice.below(sources as u64) as usize,
            1 + dice.below(4) as u32));
        world.behaviour.dead = dice.once_in(3).then(|| dice.below(sources as u64) as usize);
        check_completes(world, true)?;
    }
}
