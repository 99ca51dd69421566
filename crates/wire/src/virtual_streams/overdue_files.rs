//! A source that sends all but one chunk, and a limit of ours for which no source is to blame.

use longhaul_model::Blame;

use super::*;
use crate::limits::STALL_MAX;

/// Enough files that others are under way for minutes. A read hangs once they are.
fn world_with_a_hanging_read(sources: usize) -> (World, FileNumber) {
    let mut world = World::new(11, vec![100 * CHUNK; 60], 8, false).with_sources(sources, 2);
    // So short that no stream is silent by chance for so long that it is closed.
    world.step_ms = 8;
    world.add_files();
    world.run(300);
    world.behaviour.hanging = Some(0);
    while world.behaviour.hanging_chunk.is_none() {
        world.step();
    }
    let (_, file, _) = world.behaviour.hanging_chunk.unwrap();
    (world, file)
}

/// The session never rests, so that the source as a whole is never silent.
#[test]
fn a_file_that_a_source_does_not_send_fails_while_others_come() {
    let (mut world, file) = world_with_a_hanging_read(1);
    let begun = world.now;
    while world.failed.is_empty() {
        world.step();
        assert!(world.receiver.has_unrequested_files(), "others are under way");
    }
    assert!(world.now - begun >= STALL_MAX, "{:?}", world.now - begun);
    let fault = &world.failed[&file];
    assert_eq!((fault.code, fault.blame), (FaultCode::Stalled, Blame::Source), "{fault}");
    world.run(400_000);
    assert_eq!((world.complete.len(), world.failed.len()), (59, 1), "{:?}", world.failed);
    world.check_complete();
}

#[test]
fn a_chunk_that_a_source_does_not_send_comes_from_another() {
    let (mut world, file) = world_with_a_hanging_read(2);
    world.run(400_000);
    assert_eq!((world.complete.len(), world.failed.len()), (60, 0), "{:?}", world.failed);
    world.check_complete();
    let fault = &world.behaviour.excluded[&(file, OriginNumber(0))];
    assert_eq!((fault.code, fault.blame), (FaultCode::Stalled, Blame::Source), "{fault}");
}

/// A chunk in a hundred seconds: what was not requested is not owed.
#[test]
fn a_limit_of_ours_makes_no_source_look_stalled() {
    for sources in 1..=2 {
        let mut world = World::new(3, vec![4 * CHUNK, 2 * CHUNK], 4, false).with_sources(sources, 1);
        world.rate_in.set_rate(Some(CHUNK / 100), Duration::ZERO);
        world.add_files();
        world.run(400_000);
        assert_eq!((world.complete.len(), world.failed.len()), (2, 0), "{:?}", world.failed);
        assert!(world.behaviour.excluded.is_empty(), "{:?}", world.behaviour.excluded);
        assert!(world.now > 4 * STALL_MAX, "{:?}", world.now);
    }
}
