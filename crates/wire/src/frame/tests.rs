use std::time::Duration;

use longhaul_model::{AttemptId, Blame, Dscp, Fault, FaultCode, Mark, Retry, SciTag, TransferId};
use proptest::prelude::*;

use super::*;
use crate::limits::{EXTENT_CHUNKS_MAX, PACK_FILES_MAX};
use crate::{FrameDecoder, FramePart};
use longhaul_model::limits::CHUNK_BYTES;

fn any_fault() -> impl Strategy<Value = Fault> {
    (0..FaultCode::ALL.len(), 0..Blame::ALL.len(), 0..3u8, ".{0,40}").prop_map(
        |(code, blame, retry, detail)| {
            let retry = [Retry::Now, Retry::Later, Retry::Never][usize::from(retry)];
            Fault::new(FaultCode::ALL[code], detail).blaming(Blame::ALL[blame]).retrying(retry)
        },
    )
}

fn any_identity() -> impl Strategy<Value = SourceIdentity> {
    any::<(u64, i64, u64)>().prop_map(|(size, mtime_ns, inode)| SourceIdentity { size, mtime_ns, inode })
}

fn any_manifest() -> impl Strategy<Value = Manifest> {
    let file = ("[a-zé\n]{1,9}(/[a-z]{1,9}){0,3}", any::<(u64, u64)>(), 0..i64::MAX as u64).prop_map(
        |(lfn, ids, size)| ManifestFile {
            attempt: AttemptId(ids.0),
            transfer: TransferId(ids.1),
            lfn: lfn.parse().unwrap(),
            size,
        },
    );
    (
        any::<(u32, u16, bool)>(),
        proptest::option::of("[ -~]{0,300}"),
        "[a-z][a-z0-9]{0,20}",
        proptest::collection::vec(file, 0..20),
    )
        .prop_map(|((batch, first, last_part), permit, storage, files)| Manifest {
            batch: BatchId(batch),
            first: FileNumber(u32::from(first)),
            permit: permit.map(|text| text.into()),
            storage: storage.parse().unwrap(),
            last_part,
            files,
        })
}

fn any_entry() -> impl Strategy<Value = PackEntry> {
    prop_oneof![
        (any::<(u32, u32, u32)>(), any_identity()).prop_map(|((file, size, crc32c), identity)| {
            PackEntry::Whole { file: FileNumber(file), size, crc32c, identity }
        }),
        (any::<u32>(), any_fault())
            .prop_map(|(file, fault)| PackEntry::Fault { file: FileNumber(file), fault }),
    ]
}

fn any_report() -> impl Strategy<Value = PathReport> {
    let times = proptest::collection::vec(any::<u32>().prop_map(|us| Duration::from_micros(us.into())), 5);
    (times, any::<(u64, u64, u32, u32, bool)>()).prop_map(|(times, counts)| PathReport {
        interval: times[0],
        round_trip: times[1],
        busy: times[2],
        receiver_limited: times[3],
        buffer_limited: times[4],
        delivery_rate: counts.0,
        acked_bytes: counts.1,
        segments: counts.2,
        retransmits: counts.3,
        rate_based: counts.4,
    })
}

fn any_mark() -> impl Strategy<Value = Mark> {
    (any::<u16>(), any::<u8>()).prop_map(|(number, point)| Mark {
        scitag: SciTag::from_number(number.into()).ok(),
        dscp: Dscp::new(point).ok(),
    })
}

fn any_answer() -> impl Strategy<Value = Result<Vec<u8>, Fault>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300).prop_map(Ok::<_, Fault>),
        any_fault().prop_map(Err)
    ]
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let request = || any::<u32>().prop_map(RequestId);
    let file = || any::<u32>().prop_map(FileNumber);
    let batch = || any::<u32>().prop_map(BatchId);
    let chunk = u64::from(CHUNK_BYTES);
    prop_oneof![
        any::<(u16, u16, [u8; 16], [u8; 32])>().prop_map(|(oldest, newest, session, key)| Frame::Hello(
            Hello {
                versions: VersionRange { oldest, newest },
                session: SessionId(session),
                key: JoinKey(key)
            }
        )),
        any::<(u16, u64)>()
            .prop_map(|(version, incarnation)| Frame::Welcome(Welcome { version, incarnation })),
        any_manifest().prop_map(Frame::Manifest),
        (batch(), proptest::option::of(any_fault()))
            .prop_map(|(batch, fault)| Frame::ManifestAnswer { batch, fault }),
        batch().prop_map(|batch| Frame::Forget { batch }),
        (request(), file(), 0..u64::from(u32::MAX), 1..=u64::from(EXTENT_CHUNKS_MAX) * chunk).prop_map(
            move |(request, file, chunks, len)| Frame::Request { request, file, offset: chunks * chunk, len }
        ),
        (request(), file(), 0..u64::from(u32::MAX), 1..=chunk, any::<[Option<u32>; 3]>()).prop_map(
            move |(request, file, chunks, last, held)| Frame::RequestIfChanged {
                request,
                file,
                offset: chunks * chunk,
                len: 2 * chunk + last,
                held_crc32c: held.to_vec(),
            }
        ),
        (request(), file(), any::<(u64, u32)>(), any_identity()).prop_map(
            |(request, file, (offset, crc32c), identity)| {
                Frame::Unchanged(ChunkHead { request, file, offset, crc32c, identity })
            }
        ),
        (request(), proptest::collection::vec(file(), 1..=PACK_FILES_MAX))
            .prop_map(|(request, files)| Frame::RequestPack { request, files }),
        (request(), file(), any::<(u64, u32)>(), any_identity()).prop_map(
            |(request, file, (offset, crc32c), identity)| {
                Frame::Data(ChunkHead { request, file, offset, crc32c, identity })
            }
        ),
        (request(), proptest::collection::vec(any_entry(), 1..30))
            .prop_map(|(request, entries)| Frame::PackData(PackHead { request, entries })),
        (request(), file(), any_fault()).prop_map(|(request, file, fault)| Frame::FileFault {
            request,
            file,
            fault
        }),
        any::<u64>().prop_map(|number| Frame::Ping { number }),
        any::<u64>().prop_map(|number| Frame::Pong { number }),
        proptest::option::of(any_fault()).prop_map(|fault| Frame::Goodbye { fault }),
        any::<(u16, u16)>()
            .prop_map(|(oldest, newest)| Frame::OpenCalls { versions: VersionRange { oldest, newest } }),
        any::<(u16, u16)>()
            .prop_map(|(oldest, newest)| Frame::Offer { versions: VersionRange { oldest, newest } }),
        (any::<u32>(), proptest::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(number, body)| Frame::Call(Call { number, body })),
        any_report().prop_map(Frame::Report),
        any_mark().prop_map(Frame::Mark),
        any::<u64>().prop_map(|bytes_per_s| Frame::Pace { bytes_per_s }),
        (any::<u32>(), any_answer()).prop_map(|(number, body)| Frame::Answer(Answer { number, body })),
    ]
}

/// Decodes `bytes`, fed in portions; payloads are joined.
fn decode_all(bytes: &[u8], portion: usize) -> Result<Vec<(Frame, Vec<u8>)>, crate::codec::Malformed> {
    let mut splitter = FrameDecoder::default();
    let mut found = Vec::new();
    for part in bytes.chunks(portion) {
        let mut rest = part;
        while let Some(piece) = splitter.next_part(&mut rest)? {
            match piece {
                FramePart::Frame { frame, .. } => found.push((frame, Vec::new())),
                FramePart::Payload(bytes) => found.last_mut().unwrap().1.extend_from_slice(bytes),
                FramePart::PayloadEnd => {}
            }
        }
        assert!(rest.is_empty(), "the decoder takes all it is given");
    }
    Ok(found)
}

#[test]
fn frames_beyond_a_limit_are_refused() {
    let refused = |kind: u8, body_len: u32, payload_len: u32| {
        let mut head = vec![kind, 0, 0, 0];
        head.extend_from_slice(&body_len.to_le_bytes());
        head.extend_from_slice(&payload_len.to_le_bytes());
        decode_all(&head, 100).is_err()
    };
    assert!(refused(kind::MANIFEST, u32::MAX, 0));
    assert!(refused(kind::MANIFEST, crate::limits::BODY_BYTES_MAX + 1, 0));
    assert!(refused(kind::DATA, 44, CHUNK_BYTES + 1));
    assert!(refused(99, 0, 0));
    assert!(!refused(kind::MANIFEST, crate::limits::BODY_BYTES_MAX, 0), "incomplete is not invalid");
    assert!(decode_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 5).is_err());

    let mut ping = Frame::Ping { number: 1 }.encode(0);
    ping[8] = 1;
    assert!(decode_all(&ping, 100).is_err(), "a payload where none belongs");
    let fine = Frame::Request { request: RequestId(1), file: FileNumber(1), offset: 0, len: 1 }.encode(0);
    let mut crooked = fine.clone();
    crooked[HEAD_BYTES + 8] = 1;
    assert!(
        decode_all(&fine, 100).is_ok() && decode_all(&crooked, 100).is_err(),
        "offsets are at chunk boundaries"
    );
}

#[test]
fn the_largest_frames_are_within_the_limits() {
    let long = format!("{}/{}", "x".repeat(255), vec!["y".repeat(255); 3].join("/"));
    let long: longhaul_model::Lfn = long.parse().unwrap();
    let file = ManifestFile { attempt: AttemptId(1), transfer: TransferId(1), lfn: long, size: 1 };
    let manifest = Manifest {
        batch: BatchId(0),
        first: FileNumber(0),
        permit: Some("p".repeat(crate::limits::PERMIT_BYTES_MAX).into()),
        storage: "s".repeat(64).parse().unwrap(),
        last_part: true,
        files: vec![file; crate::limits::MANIFEST_PART_FILES_MAX],
    };
    let frame = Frame::Manifest(manifest);
    assert_eq!(decode_all(&frame.encode(0), 4096).unwrap(), vec![(frame, vec![])]);
    let fault = Fault::new(FaultCode::SourceMissing, "m".repeat(5_000));
    let entries = vec![PackEntry::Fault { file: FileNumber(1), fault }; PACK_FILES_MAX];
    let frame = Frame::PackData(PackHead { request: RequestId(1), entries });
    assert_eq!(decode_all(&frame.encode(0), 4096).unwrap(), vec![(frame, vec![])]);
}

#[test]
fn a_call_may_be_as_long_as_its_limit() {
    use crate::limits::CALL_BYTES_MAX;
    let call = |len| Frame::Call(Call { number: 1, body: vec![7; len] });
    let answer = |len| Frame::Answer(Answer { number: 1, body: Ok(vec![7; len]) });
    for frame in [call(CALL_BYTES_MAX), answer(CALL_BYTES_MAX)] {
        assert_eq!(decode_all(&frame.encode(0), 4096).unwrap(), vec![(frame, vec![])]);
    }
    for frame in [call(CALL_BYTES_MAX + 1), answer(CALL_BYTES_MAX + 1)] {
        assert!(decode_all(&frame.encode(0), 4096).is_err());
    }
    let mut open = Frame::OpenCalls { versions: crate::VERSIONS }.encode(0);
    open[HEAD_BYTES] ^= 1;
    assert!(decode_all(&open, 100).is_err(), "every opening frame carries the magic");
}

proptest! {
    #[test]
    fn frames_survive_a_round_trip(frames in proptest::collection::vec((any_frame(),
        proptest::collection::vec(any::<u8>(), 0..300)), 1..6),
                        portion in 1usize..400) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (frame, payload) in frames {
            let payload = if frame.carries_payload() { payload } else { Vec::new() };
            bytes.extend(frame.encode(payload.len() as u32));
            bytes.extend_from_slice(&payload);
            expected.push((frame, payload));
        }
        prop_assert_eq!(decode_all(&bytes, portion).unwrap(), expected);
    }

    #[test]
    fn random_bytes_never_panic(kind in 0u8..20, body in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Frame::decode(kind, &body);
        let _ = decode_all(&body, 7);
    }

    /// A flipped bit gives an error or another valid frame, never a panic.
    #[test]
    fn damaged_frames_never_panic(frame in any_frame(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = frame.encode(0);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(found) = decode_all(&bytes, 64) {
            for (frame, payload) in found {
                let _ = frame.encode(payload.len() as u32);
            }
        }
    }
}
