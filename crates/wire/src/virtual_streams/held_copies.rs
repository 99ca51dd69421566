//! Repairs: what is held of a file is not sent again.

use super::*;

/// A world whose target holds damaged copies of its large files.
fn world_with_held_copies(seed: u64, trouble: bool) -> World {
    let mut dice = SeededRng(seed ^ 0x3333);
    let (small, large, buffers) = (dice.below(40), 1 + dice.below(8), 2 + dice.below(20) as usize);
    let mut world = World::new(seed, sizes(&mut dice, small, large), buffers, trouble);
    world.version = crate::VERSIONS.newest;
    for number in 0..world.sizes.len() {
        if !dice.once_in(4) {
            let chunks = (0..world.sizes[number]).step_by(CHUNK as usize);
            let damaged = chunks.filter(|_| dice.once_in(5)).collect();
            world.held.insert(FileNumber(number as u32), damaged);
        }
    }
    world
}

#[test]
fn the_damaged_chunks_of_a_held_copy_are_sent() {
    for version in 1..=crate::VERSIONS.newest {
        let mut world = world_with_held_copies(7, false);
        world.version = version;
        world.add_files();
        world.run(400_000);
        assert_eq!(world.complete.len(), world.sizes.len());
        world.check_complete();
        for (number, &size) in world.sizes.iter().enumerate() {
            let file = FileNumber(number as u32);
            let all: BTreeSet<u64> = (0..size.max(1)).step_by(CHUNK as usize).collect();
            let is_small = size <= longhaul_model::limits::SMALL_FILE_BYTES;
            let expected = match world.held.get(&file) {
                Some(damaged) if !is_small && version >= crate::CONDITIONAL_REQUESTS_SINCE => damaged,
                _ => &all,
            };
            let sent = world.behaviour.sent.keys().filter(|(of, _)| *of == file).map(|(_, offset)| *offset);
            assert_eq!(&sent.collect::<BTreeSet<u64>>(), expected, "version {version}, {file:?}");
        }
    }
}

#[test]
fn a_chunk_is_unchanged_only_as_it_is_held() {
    let mut world = World::new(1, vec![3 * CHUNK], 4, false);
    world.version = crate::VERSIONS.newest;
    world.held.insert(FileNumber(0), BTreeSet::new());
    world.add_files();
    let asked = loop {
        world.step();
        let lines = world.streams.iter();
        let asked = lines.flat_map(|(&stream, line)| line.to_source.iter().map(move |sent| (stream, sent)));
        let mut extents = asked.filter_map(|(stream, sent)| match &sent.frame {
            Frame::RequestIfChanged { request, file, offset, .. } => Some((stream, *request, *file, *offset)),
            _ => None,
        });
        if let Some(found) = extents.next_back() {
            break found;
        }
    };
    let (stream, request, file, offset) = asked;
    let head = ChunkHead { request, file, offset, crc32c: 0, identity: world.identity(file) };
    let refused = world.receiver.begin_unchanged(stream, &head, world.now).unwrap_err();
    assert_eq!(refused.code, FaultCode::ProtocolError);
    world.cut_stream(stream);
    world.slots_free += world.receiver.take_freed_slots();
    world.run(100_000);
    assert_eq!(world.complete.len(), 1);
    world.check_complete();
}

/// The time to fetch 30 chunks over one stream, with a held copy in which these are damaged, if there is one.
/// A chunk takes five seconds of the limit, which is that of the target or that of the source.
fn time_under_limit(damaged: Option<BTreeSet<u64>>, is_of_target: bool) -> Duration {
    let mut world = World::new(5, vec![30 * CHUNK], 8, false);
    world.receiver = Receiver::new(1, Duration::ZERO);
    world.version = crate::VERSIONS.newest;
    let limit = if is_of_target { &mut world.rate_in } else { &mut world.rate_out };
    limit.set_rate(Some(CHUNK / 5), Duration::ZERO);
    world.held.extend(damaged.map(|damaged| (FileNumber(0), damaged)));
    world.add_files();
    world.run(400_000);
    assert_eq!(world.complete.len(), 1);
    world.check_complete();
    world.now
}

#[test]
fn a_limit_counts_what_is_sent_of_a_held_copy() {
    for is_of_target in [true, false] {
        let one = BTreeSet::from([11 * CHUNK]);
        let repair = time_under_limit(Some(one), is_of_target);
        assert!(repair < Duration::from_secs(60), "{repair:?}, of the target: {is_of_target}");
        let all = (0..30).map(|chunk| chunk * CHUNK).collect();
        for damaged in [None, Some(all)] {
            let whole = time_under_limit(damaged, is_of_target);
            assert!(whole > Duration::from_secs(120), "{whole:?}, of the target: {is_of_target}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256,
        ..ProptestConfig::default() })]
    #[test]
    fn held_copies_are_repaired_over_dying_streams(seed in any::<u64>()) {
        check_completes(world_with_held_copies(seed, true), true)?;
    }
}
