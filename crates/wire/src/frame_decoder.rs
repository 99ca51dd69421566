//! Frame decoder: cuts the bytes of a stream into frames. Bodies are collected (they are bounded); payload is
//! passed through as it arrives, so that it is copied once, into its buffer.

use crate::codec::Malformed;
use crate::frame::{Frame, HEAD_BYTES};
use crate::limits::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// A part of the byte stream.
#[derive(Debug, PartialEq, Eq)]
pub enum FramePart<'a> {
    /// A whole frame. For data, `payload_len` bytes of payload follow, then [`FramePart::PayloadEnd`].
    Frame {
        /// The frame.
        frame: Frame,
        /// Payload that follows, in bytes; 0 for a frame without payload.
        payload_len: u32,
    },
    /// A piece of the current payload, of any length.
    Payload(&'a [u8]),
    /// The current payload is complete.
    PayloadEnd,
}

/// Incremental decoder of one direction of a stream.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    /// Head and body of the current frame, as far as they have arrived.
    collected: Vec<u8>,
    /// Rest of the current payload; none outside of one.
    payload_left: Option<u32>,
}

impl FrameDecoder {
    /// The next part, or none if `bytes` is used up. Consumed bytes are taken off the front of `bytes`.
    ///
    /// # Errors
    /// The bytes are not a frame, or exceed a limit: close the stream.
    pub fn next_part<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<FramePart<'a>>, Malformed> {
        if let Some(left) = self.payload_left {
            return Ok(self.next_payload(left, bytes));
        }
        if self.collect(HEAD_BYTES, bytes) {
            let (kind, body_len, payload_len) = self.head()?;
            if self.collect(HEAD_BYTES + body_len as usize, bytes) {
                let frame = Frame::decode(kind, &self.collected[HEAD_BYTES..])?;
                if payload_len > 0 && !frame.carries_payload() {
                    return Err(Malformed("a payload on a frame that carries none"));
                }
                self.collected.clear();
                // A body can be large; an idle stream should not keep its memory.
                self.collected.shrink_to(1024);
                if frame.carries_payload() {
                    self.payload_left = Some(payload_len);
                }
                return Ok(Some(FramePart::Frame { frame, payload_len }));
            }
        }
        Ok(None)
    }

    /// Rest of the current payload. The caller may receive this much, or less, directly into its buffer
    /// without passing it through here; [`FrameDecoder::skip_payload`] then accounts for it.
    pub fn payload_left(&self) -> usize {
        self.payload_left.unwrap_or(0) as usize
    }

    /// Accounts for payload that did not pass through here.
    ///
    /// # Panics
    /// If it is more than the rest of the payload.
    pub fn skip_payload(&mut self, len: usize) {
        let left = self.payload_left();
        assert!(len <= left, "more payload skipped than the frame has");
        if len > 0 {
            self.payload_left = Some((left - len) as u32);
        }
    }

    fn next_payload<'a>(&mut self, left: u32, bytes: &mut &'a [u8]) -> Option<FramePart<'a>> {
        if left == 0 {
            self.payload_left = None;
            return Some(FramePart::PayloadEnd);
        }
        if bytes.is_empty() {
            return None;
        }
        let (now, rest) = bytes.split_at(bytes.len().min(left as usize));
        *bytes = rest;
        self.payload_left = Some(left - now.len() as u32);
        Some(FramePart::Payload(now))
    }

    /// Whether `len` bytes of the frame have been collected.
    fn collect(&mut self, len: usize, bytes: &mut &[u8]) -> bool {
        let wanted = len.saturating_sub(self.collected.len()).min(bytes.len());
        let (now, rest) = bytes.split_at(wanted);
        self.collected.extend_from_slice(now);
        *bytes = rest;
        self.collected.len() >= len
    }

    fn head(&self) -> Result<(u8, u32, u32), Malformed> {
        let number = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&self.collected[at..at + 4]);
            u32::from_le_bytes(four)
        };
        let (body_len, payload_len) = (number(4), number(8));
        if self.collected[1..4] != [0; 3] {
            return Err(Malformed("invalid head of a frame"));
        }
        if body_len > BODY_BYTES_MAX {
            return Err(Malformed("a frame exceeds the maximum size"));
        }
        if payload_len > PAYLOAD_BYTES_MAX {
            return Err(Malformed("a payload is larger than a chunk"));
        }
        Ok((self.collected[0], body_len, payload_len))
    }
}
