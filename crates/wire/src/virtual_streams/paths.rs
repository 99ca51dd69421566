//! Streams that die, crawl or delay the last chunks.

use super::*;
use crate::limits::{SLOW_STREAM_AGE_MIN, STALL_MAX};
use crate::path::{BottleneckCause, PathReport};

const RECOVERY_MAX: Duration = Duration::from_secs(3);
const SILENT_CLOSE_MAX: Duration = Duration::from_millis(2_200);

/// One large file over two streams, both with work to do.
fn two_streams(seed: u64, chunks: u64) -> World {
    let mut world = World::new(seed, vec![chunks * CHUNK], 8, false);
    world.receiver = Receiver::new(2, Duration::ZERO);
    world.add_files();
    world.drain_outputs();
    let mut steps = 0;
    while world.streams.len() < 2 || world.receiver.slots_in_use() < 8 {
        world.step();
        steps += 1;
        assert!(steps < 10_000);
    }
    world
}

/// The stream goes silent, and neither end is told.
fn go_silent(line: &mut VirtualStream) {
    line.joined = None;
    line.to_source.clear();
    line.to_target.clear();
}

/// Promise 4: a path that dies silently stalls what was requested on it for at most 3 s.
#[test]
fn a_silent_stream_is_replaced_by_the_others() {
    for seed in 1..20 {
        let mut world = two_streams(seed, 14);
        let silent = *world.streams.keys().next().unwrap();
        world.streams.get_mut(&silent).into_iter().for_each(go_silent);
        let since = world.now;
        while world.complete.is_empty() {
            world.step();
            let (waited, gone) =
                (world.now - since, world.streams.get(&silent).is_none_or(|line| line.joined.is_some()));
            assert!(gone || waited < SILENT_CLOSE_MAX, "{waited:?}");
            // The other stream needs time for what it takes over.
            assert!(waited < RECOVERY_MAX + Duration::from_secs(1), "{waited:?}");
        }
        world.check_complete();
        assert!(world.failed.is_empty());
    }
}

/// Drained streams finish what they owe and close, others are opened meanwhile, and nothing is requested
/// twice.
#[test]
fn drained_streams_are_replaced_at_once() {
    for seed in 1..20 {
        let mut world = two_streams(seed, 40);
        let old: Vec<StreamNumber> = world.streams.keys().copied().collect();
        let owed = world.receiver.slots_in_use();
        old.iter().for_each(|&stream| world.receiver.drain_stream(stream, world.now));
        assert_eq!(world.receiver.slots_in_use(), owed, "open requests are finished");
        let mut seen = 0;
        while world.complete.is_empty() {
            world.step();
            seen = seen.max(world.streams.keys().filter(|stream| !old.contains(stream)).count());
            let kept = world.streams.keys().filter(|stream| old.contains(stream)).count();
            assert!(world.receiver.streams_up() <= 2 + kept);
        }
        assert_eq!(seen, 2);
        assert!(old.iter().all(|stream| !world.streams.contains_key(stream)), "they are closed");
        world.check_complete();
        assert!(world.failed.is_empty());
    }
}

/// All streams fall silent at once, but the path works again for new ones.
#[test]
fn new_streams_take_over_when_all_fall_silent() {
    for seed in 1..20 {
        let mut world = two_streams(seed, 20);
        world.streams.values_mut().for_each(go_silent);
        // A dial, a request and its answer take a dozen steps in random order; the bound is about the
        // time-outs.
        world.step_ms = 20;
        let (since, before) = (world.now, world.disk[0].len() + world.writing.len());
        while world.disk[0].len() <= before {
            world.step();
            assert!(world.now - since < RECOVERY_MAX, "{:?}", world.now - since);
        }
        world.run(100_000);
        assert_eq!(world.complete.len(), 1, "{:?}", world.failed);
        world.check_complete();
    }
}

/// A busy peer still answers pings; and if this process was not running, peers were not silent.
#[test]
fn answering_peers_and_local_pauses_are_no_silence() {
    let mut world = two_streams(3, 20);
    world.streams.values_mut().for_each(|line| line.to_target.clear());
    for round in 0..300 {
        world.now += Duration::from_millis(100);
        world.receiver.handle_timeout(world.now);
        let streams: Vec<StreamNumber> = world.streams.keys().copied().collect();
        for stream in streams {
            // As often as it is pinged: the pings arrived, but nothing else did.
            if round % 15 == 0 {
                world.receiver.note_received(stream, 0, world.now);
            }
        }
        world.drain_outputs();
        assert_eq!(world.streams.len(), 2, "at {:?}", world.now);
    }
    // A pause of our own.
    world.now += Duration::from_secs(20);
    world.receiver.handle_timeout(world.now);
    world.drain_outputs();
    assert_eq!(world.streams.len(), 2);
}

/// A crawling stream is closed and dialled again, its siblings are not.
#[test]
fn a_stream_far_slower_than_its_siblings_is_closed() {
    for seed in 1..6 {
        let mut world = World::new(seed, vec![4_000 * CHUNK], 12, false);
        world.receiver = Receiver::new(3, Duration::ZERO);
        world.add_files();
        let mut crawling = None;
        let mut steps = 0;
        while crawling.is_none() || !world.dialled.contains(&StreamNumber(1)) {
            if crawling.is_none() && world.streams.len() == 3 {
                crawling = Some(world.now);
            }
            // One message in 40 steps passes; the others pass one every few steps.
            let held = (steps % 40 != 0)
                .then(|| world.streams.get_mut(&StreamNumber(1)))
                .flatten()
                .map(|line| std::mem::take(&mut line.to_target));
            world.step();
            if let (Some(held), Some(line)) = (held, world.streams.get_mut(&StreamNumber(1))) {
                let newer = std::mem::replace(&mut line.to_target, held);
                line.to_target.extend(newer);
            }
            world.receiver.note_received(StreamNumber(1), 0, world.now);
            steps += 1;
            assert!(world.now < 4 * SLOW_STREAM_AGE_MIN, "{seed}: {:?}", world.now);
            let up = |stream| world.streams.contains_key(&StreamNumber(stream));
            assert!(crawling.is_none() || (up(0) && up(2)), "{seed}: only the slow stream is closed");
        }
        assert!(world.now - crawling.unwrap() >= SLOW_STREAM_AGE_MIN, "a young stream is not compared");
    }
}

/// Endgame: the last chunks are stuck on a live stream that sends nothing; others fetch copies, each written
/// once.
#[test]
fn the_last_chunks_are_requested_twice_in_the_endgame() {
    for seed in 1..20 {
        let mut world = two_streams(seed, 30);
        let lame = *world.streams.keys().next().unwrap();
        let since = world.now;
        while world.complete.is_empty() {
            world.streams.get_mut(&lame).into_iter().for_each(|line| line.to_target.clear());
            world.step();
            world.receiver.note_received(lame, 0, world.now);
            assert!(world.now - since < STALL_MAX / 4, "{:?}", world.now - since);
        }
        world.check_complete();
    }
}

/// More is requested from a BBR sender than its window lets through, so that it never waits for requests; and
/// the window is not mistaken for the bottleneck.
#[test]
fn a_rate_based_sender_gets_a_window_below_what_was_requested() {
    let mut world = two_streams(1, 400);
    let stream = *world.streams.keys().next().unwrap();
    let report = |by_rate, round_trip_ms| PathReport {
        rate_based: by_rate,
        interval: Duration::from_secs(1),
        busy: Duration::from_secs(1),
        receiver_limited: Duration::from_secs(1),
        round_trip: Duration::from_millis(round_trip_ms),
        ..PathReport::default()
    };
    let tell = |world: &mut World, report| {
        world.receiver.handle_frame(stream, Frame::Report(report), world.now).unwrap();
        world.receiver.receive_window(stream)
    };
    assert_eq!(world.receiver.receive_window(stream), None, "no report yet");
    assert_eq!(tell(&mut world, report(false, 100)), None, "the kernel's own window tuning is kept");
    assert_eq!(world.receiver.path_snapshot(false, world.now).cause, Some(BottleneckCause::ReceiveWindow));
    let window = tell(&mut world, report(true, 100)).unwrap();
    // Four slots of eight.
    assert_eq!(window, 4 * CHUNK - 3 * CHUNK / 2);
    tell(&mut world, report(true, 100));
    assert_eq!(world.receiver.path_snapshot(false, world.now).cause, Some(BottleneckCause::Network));
    assert_eq!(tell(&mut world, report(false, 100)), None, "the sender went back to loss-based control");
}
