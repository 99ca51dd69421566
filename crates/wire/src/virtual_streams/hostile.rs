//! A source that sends any frame at any time.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256,
        ..ProptestConfig::default() })]
    /// No order of frames, valid or not, makes a session panic or lose a slot.
    #[test]
    fn a_hostile_source_causes_no_panic_and_loses_no_slot(seed in any::<u64>()) {
        let mut world = World::new(seed, vec![3 * CHUNK, 100, 200, 5 * CHUNK], 6, false);
        world.version = crate::VERSIONS.newest;
        world.held.insert(FileNumber(3), BTreeSet::from([CHUNK]));
        world.add_files();
        for _ in 0..400 {
            world.step();
            let Some(stream) = world.pick_stream() else { continue };
            if world.rng.once_in(3) {
                let frame = world.hostile_frame();
                let payload = world.rng.below(CHUNK + 1) as u32;
                let now = world.now;
                let result = match &frame {
                    Frame::Data(head) => world.receiver.begin_chunk(stream, head, payload,
                        now).map(usize::from),
                    Frame::Unchanged(head) => {
                        world.receiver.begin_unchanged(stream, head, now).map(usize::from)
                    }
                    Frame::PackData(head) => world.receiver.begin_pack(stream, head, payload,
                        now).map(|wanted| usize::from(!wanted.is_empty())),
                    _ => world.receiver.handle_frame(stream, frame.clone(), now).map(|()| 0),
                };
                match result {
                    Ok(buffers) => {
                        world.slots_free += buffers;
                        world.cut_stream(stream);
                    }
                    Err(_) => world.cut_stream(stream),
                }
                world.drain_outputs();
            }
        }
    }
}

impl World {
    fn hostile_frame(&mut self) -> Frame {
        let request = crate::frame::RequestId(self.rng.below(6) as u32);
        let file = FileNumber(self.rng.below(5) as u32);
        let identity = SourceIdentity { size: 1, mtime_ns: self.rng.below(2) as i64, inode: 0 };
        let fault = Fault::new(FaultCode::SourceMissing, "so it says");
        let offset = self.rng.below(6) * CHUNK;
        match self.rng.below(7) {
            0 | 1 => Frame::Data(ChunkHead { request, file, offset, crc32c: 0, identity }),
            6 => {
                let crc32c = Self::content_crc32c(file, offset) ^ self.rng.below(2) as u32;
                Frame::Unchanged(ChunkHead { request, file, offset, crc32c, identity })
            }
            2 => {
                let size = self.rng.below(300) as u32;
                let entries = vec![PackEntry::Whole { file, size, crc32c: 0, identity }];
                Frame::PackData(PackHead { request, entries })
            }
            3 => Frame::FileFault { request, file, fault },
            4 => {
                Frame::ManifestAnswer { batch: crate::frame::BatchId(self.rng.below(3) as u32), fault: None }
            }
            _ => Frame::Pong { number: 3 },
        }
    }
}
