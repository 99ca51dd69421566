//! Frames of the data protocol: any bytes, cut anywhere, give frames within the limits or an error.

use longhaul_wire::limits::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX};
use longhaul_wire::{Frame, FrameDecoder, FramePart};

/// What came out of a stream, with payloads joined.
#[derive(Debug, PartialEq)]
enum DecodedPart {
    Frame(Frame, u32),
    Payload(Vec<u8>),
    End,
    Malformed(&'static str),
}

/// A stream in one piece gives the same as the same stream cut as the first bytes say.
pub fn frames(bytes: &[u8]) {
    let Some((cuts, stream)) = bytes.split_at_checked(4) else { return };
    let whole = split(std::iter::once(stream), false);
    let mut rest = stream;
    let mut turn = 0;
    let pieces = std::iter::from_fn(|| {
        if rest.is_empty() {
            return None;
        }
        let len = usize::from(cuts[turn % cuts.len()]).min(rest.len());
        turn += 1;
        let (now, later) = rest.split_at(if turn % 16 == 0 { len.max(1).min(rest.len()) } else { len });
        rest = later;
        Some(now)
    });
    assert_eq!(split(pieces, cuts[0] & 1 == 1), whole, "cuts change nothing");
    for seen in &whole {
        if let DecodedPart::Frame(frame, payload_len) = seen {
            check(frame, *payload_len);
        }
    }
}

/// With `aside`, what comes at the beginning of a piece and belongs to a payload does not pass through the
/// decoder.
fn split<'a>(pieces: impl Iterator<Item = &'a [u8]>, aside: bool) -> Vec<DecodedPart> {
    let mut decoder = FrameDecoder::default();
    let mut seen = Vec::new();
    for mut bytes in pieces {
        if aside {
            let (payload, rest) = bytes.split_at(decoder.payload_left().min(bytes.len()));
            decoder.skip_payload(payload.len());
            bytes = rest;
            if !payload.is_empty() {
                take_payload(&mut seen, payload);
            }
        }
        loop {
            match decoder.next_part(&mut bytes) {
                Ok(None) => break,
                Ok(Some(FramePart::Frame { frame, payload_len })) => {
                    seen.push(DecodedPart::Frame(frame, payload_len))
                }
                Ok(Some(FramePart::Payload(part))) => take_payload(&mut seen, part),
                Ok(Some(FramePart::PayloadEnd)) => seen.push(DecodedPart::End),
                Err(malformed) => {
                    seen.push(DecodedPart::Malformed(malformed.0));
                    return seen;
                }
            }
        }
        assert!(bytes.is_empty(), "the decoder takes what it is given");
    }
    seen
}

fn take_payload(seen: &mut Vec<DecodedPart>, part: &[u8]) {
    match seen.last_mut() {
        Some(DecodedPart::Payload(payload)) => payload.extend_from_slice(part),
        _ => seen.push(DecodedPart::Payload(part.to_vec())),
    }
}

/// What decodes is within the limits, and means the same after it was encoded.
fn check(frame: &Frame, payload_len: u32) {
    assert!(payload_len <= PAYLOAD_BYTES_MAX);
    let encoded = frame.encode(payload_len);
    let body = &encoded[longhaul_wire::frame::HEAD_BYTES..];
    assert!(body.len() <= BODY_BYTES_MAX as usize);
    let again = Frame::decode(encoded[0], body);
    assert_eq!(again.as_ref(), Ok(frame), "a frame survives the wire");
}

/// Bodies alone, which need no right length to be looked into.
pub fn frame_bodies(bytes: &[u8]) {
    let Some((&kind, body)) = bytes.split_first() else { return };
    if body.len() <= BODY_BYTES_MAX as usize
        && let Ok(frame) = Frame::decode(kind, body)
    {
        check(&frame, 0);
    }
}
