//! Encodes frames.

use longhaul_model::{Fault, Mark};

use super::{ChunkHead, Frame, HEAD_BYTES, MAGIC, Manifest, PackEntry, PackHead, kind};
use crate::codec::PutField;
use crate::limits::{BODY_BYTES_MAX, FAULT_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::path::PathReport;
use crate::version::VersionRange;

impl Frame {
    /// Encodes head and body; the caller sends `payload_len` bytes of payload after them.
    ///
    /// # Panics
    /// If the frame exceeds a limit of the protocol. Frames are built within the limits.
    pub fn encode(&self, payload_len: u32) -> Vec<u8> {
        assert!(payload_len <= PAYLOAD_BYTES_MAX, "a payload is at most one chunk");
        assert!(payload_len == 0 || self.carries_payload(), "only data has a payload");
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[0] = self.put_body(&mut bytes);
        let body_len = bytes.len() - HEAD_BYTES;
        assert!(body_len <= BODY_BYTES_MAX as usize, "a body of {body_len} bytes exceeds the limit");
        bytes[4..8].copy_from_slice(&(body_len as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&payload_len.to_le_bytes());
        bytes
    }

    fn put_body(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Frame::Hello(hello) => {
                put_versions(hello.versions, out);
                out.put(&hello.session.0);
                out.put(&hello.key.0);
                kind::HELLO
            }
            Frame::Welcome(welcome) => {
                out.put_u16(welcome.version);
                out.put_u64(welcome.incarnation);
                kind::WELCOME
            }
            Frame::Manifest(manifest) => {
                put_manifest(manifest, out);
                kind::MANIFEST
            }
            Frame::ManifestAnswer { batch, fault } => {
                out.put_u32(batch.0);
                put_optional_fault(fault.as_ref(), out);
                kind::MANIFEST_ANSWER
            }
            Frame::Forget { batch } => {
                out.put_u32(batch.0);
                kind::FORGET
            }
            Frame::Request { request, file, offset, len } => {
                out.put_u32(request.0);
                out.put_u32(file.0);
                out.put_u64(*offset);
                out.put_u64(*len);
                kind::REQUEST
            }
            Frame::RequestIfChanged { request, file, offset, len, held_crc32c } => {
                out.put_u32(request.0);
                out.put_u32(file.0);
                out.put_u64(*offset);
                out.put_u64(*len);
                for held in held_crc32c {
                    out.put(&[u8::from(held.is_some())]);
                    out.put_u32(held.unwrap_or(0));
                }
                kind::REQUEST_IF_CHANGED
            }
            Frame::RequestPack { request, files } => {
                out.put_u32(request.0);
                out.put_u16(files.len() as u16);
                files.iter().for_each(|file| out.put_u32(file.0));
                kind::REQUEST_PACK
            }
            Frame::Data(head) => {
                put_chunk_head(head, out);
                kind::DATA
            }
            Frame::Unchanged(head) => {
                put_chunk_head(head, out);
                kind::UNCHANGED
            }
            Frame::PackData(head) => {
                put_pack(head, out);
                kind::PACK_DATA
            }
            Frame::FileFault { request, file, fault } => {
                out.put_u32(request.0);
                out.put_u32(file.0);
                put_fault(fault, out);
                kind::FILE_FAULT
            }
            Frame::Ping { number } => {
                out.put_u64(*number);
                kind::PING
            }
            Frame::Pong { number } => {
                out.put_u64(*number);
                kind::PONG
            }
            Frame::Goodbye { fault } => {
                put_optional_fault(fault.as_ref(), out);
                kind::GOODBYE
            }
            Frame::OpenCalls { versions } => {
                put_versions(*versions, out);
                kind::OPEN_CALLS
            }
            Frame::Call(call) => {
                out.put_u32(call.number);
                out.put(&call.body);
                kind::CALL
            }
            Frame::Answer(answer) => {
                out.put_u32(answer.number);
                put_optional_fault(answer.body.as_ref().err(), out);
                answer.body.iter().for_each(|body| out.put(body));
                kind::ANSWER
            }
            Frame::Report(report) => {
                put_report(report, out);
                kind::REPORT
            }
            Frame::Offer { versions } => {
                put_versions(*versions, out);
                kind::OFFER
            }
            Frame::Pace { bytes_per_s } => {
                out.put_u64(*bytes_per_s);
                kind::PACE
            }
            Frame::Mark(mark) => {
                put_mark(*mark, out);
                kind::MARK
            }
        }
    }
}

fn put_chunk_head(head: &ChunkHead, out: &mut Vec<u8>) {
    out.put_u32(head.request.0);
    out.put_u32(head.file.0);
    out.put_u64(head.offset);
    out.put_u32(head.crc32c);
    head.identity.put(out);
}

/// Every opening frame begins with magic and versions.
fn put_versions(versions: VersionRange, out: &mut Vec<u8>) {
    out.put(&MAGIC);
    out.put_u16(versions.oldest);
    out.put_u16(versions.newest);
}

/// Zero means no SciTag; 255 means no DSCP.
fn put_mark(mark: Mark, out: &mut Vec<u8>) {
    out.put_u16(mark.scitag.map_or(0, |scitag| scitag.number()));
    out.put_u8(mark.dscp.map_or(u8::MAX, |dscp| dscp.point()));
}

fn put_report(report: &PathReport, out: &mut Vec<u8>) {
    for time in
        [report.interval, report.round_trip, report.busy, report.receiver_limited, report.buffer_limited]
    {
        out.put_u64(time.as_micros().try_into().unwrap_or(u64::MAX));
    }
    out.put_u64(report.delivery_rate);
    out.put_u64(report.acked_bytes);
    out.put_u32(report.segments);
    out.put_u32(report.retransmits);
    out.put_u8(u8::from(report.rate_based));
}

fn put_manifest(manifest: &Manifest, out: &mut Vec<u8>) {
    out.put_u32(manifest.batch.0);
    out.put_u32(manifest.first.0);
    out.put_u8(u8::from(manifest.last_part) | u8::from(manifest.permit.is_some()) << 1);
    if let Some(permit) = &manifest.permit {
        out.put_text(permit);
    }
    out.put_text(manifest.storage.as_str());
    out.put_u16(manifest.files.len() as u16);
    for file in &manifest.files {
        out.put_u64(file.attempt.0);
        out.put_u64(file.transfer.0);
        out.put_u64(file.size);
        out.put_text(file.lfn.as_str());
    }
}

fn put_pack(head: &PackHead, out: &mut Vec<u8>) {
    out.put_u32(head.request.0);
    out.put_u16(head.entries.len() as u16);
    for entry in &head.entries {
        out.put_u32(entry.file().0);
        match entry {
            PackEntry::Whole { size, crc32c, identity, .. } => {
                out.put_u8(0);
                out.put_u32(*size);
                out.put_u32(*crc32c);
                identity.put(out);
            }
            PackEntry::Fault { fault, .. } => {
                out.put_u8(1);
                put_fault(fault, out);
            }
        }
    }
}

fn put_optional_fault(fault: Option<&Fault>, out: &mut Vec<u8>) {
    out.put_u8(u8::from(fault.is_some()));
    if let Some(fault) = fault {
        put_fault(fault, out);
    }
}

fn put_fault(fault: &Fault, out: &mut Vec<u8>) {
    out.put_u16(fault.code.number());
    out.put_text(fault.blame.word());
    out.put_u8(fault.retry as u8);
    // `Fault::new` bounds the detail, but its field is public.
    let cut =
        (0..=fault.detail.len().min(FAULT_BYTES_MAX)).rev().find(|&at| fault.detail.is_char_boundary(at));
    out.put_text(&fault.detail[..cut.unwrap_or(0)]);
}
