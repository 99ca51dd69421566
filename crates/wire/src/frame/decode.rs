//! Decodes frames. Total: any bytes yield a frame or an error, and a decoded frame is within the limits.

use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{
    AttemptId, Blame, Dscp, Fault, FaultCode, Lfn, Mark, Retry, SciTag, StorageName, TransferId,
};

use super::{
    Answer, BatchId, Call, ChunkHead, FileNumber, Frame, Hello, JoinKey, MAGIC, Manifest, ManifestFile,
    PackEntry, PackHead, RequestId, SessionId, Welcome, kind,
};
use crate::codec::{FieldReader, Malformed};
use crate::identity::SourceIdentity;
use crate::limits::{
    CALL_BYTES_MAX, FAULT_BYTES_MAX, MANIFEST_PART_FILES_MAX, PACK_FILES_MAX, PERMIT_BYTES_MAX,
};
use crate::path::PathReport;
use crate::version::VersionRange;

impl Frame {
    /// Decodes kind and body; the payload follows separately.
    ///
    /// # Errors
    /// The kind is unknown, the body is malformed, or a limit is exceeded.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Frame, Malformed> {
        let mut from = FieldReader::new(body);
        let frame = read_body(kind, &mut from)?;
        from.finish()?;
        Ok(frame)
    }
}

fn read_body(kind: u8, from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    Ok(match kind {
        kind::HELLO => read_hello(from)?,
        kind::WELCOME => Frame::Welcome(Welcome { version: from.u16()?, incarnation: from.u64()? }),
        kind::MANIFEST => read_manifest(from)?,
        kind::MANIFEST_ANSWER => {
            Frame::ManifestAnswer { batch: BatchId(from.u32()?), fault: read_optional_fault(from)? }
        }
        kind::FORGET => Frame::Forget { batch: BatchId(from.u32()?) },
        kind::REQUEST => {
            let (request, file, offset, len) = read_extent(from)?;
            Frame::Request { request, file, offset, len }
        }
        kind::REQUEST_IF_CHANGED => read_request_if_changed(from)?,
        kind::REQUEST_PACK => read_request_pack(from)?,
        kind::DATA => Frame::Data(read_chunk_head(from)?),
        kind::UNCHANGED => Frame::Unchanged(read_chunk_head(from)?),
        kind::PACK_DATA => read_pack(from)?,
        kind::FILE_FAULT => Frame::FileFault {
            request: RequestId(from.u32()?),
            file: FileNumber(from.u32()?),
            fault: read_fault(from)?,
        },
        kind::PING => Frame::Ping { number: from.u64()? },
        kind::PONG => Frame::Pong { number: from.u64()? },
        kind::GOODBYE => Frame::Goodbye { fault: read_optional_fault(from)? },
        kind::OPEN_CALLS => Frame::OpenCalls { versions: read_versions(from)? },
        kind::CALL => Frame::Call(Call { number: from.u32()?, body: read_call_body(from)? }),
        kind::ANSWER => read_answer(from)?,
        kind::REPORT => read_report(from)?,
        kind::OFFER => Frame::Offer { versions: read_versions(from)? },
        kind::MARK => read_mark(from)?,
        kind::PACE => Frame::Pace { bytes_per_s: from.u64()? },
        _ => return Err(Malformed("unknown kind of frame")),
    })
}

fn read_hello(from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    Ok(Frame::Hello(Hello {
        versions: read_versions(from)?,
        session: SessionId(from.array()?),
        key: JoinKey(from.array()?),
    }))
}

fn read_versions(from: &mut FieldReader<'_>) -> Result<VersionRange, Malformed> {
    if from.array()? != MAGIC {
        return Err(Malformed("the stream does not speak this protocol"));
    }
    Ok(VersionRange { oldest: from.u16()?, newest: from.u16()? })
}

fn read_report(from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    let mut time = || from.u64().map(Duration::from_micros);
    let (interval, round_trip) = (time()?, time()?);
    let (busy, receiver_limited, buffer_limited) = (time()?, time()?, time()?);
    Ok(Frame::Report(PathReport {
        interval,
        round_trip,
        delivery_rate: from.u64()?,
        acked_bytes: from.u64()?,
        segments: from.u32()?,
        retransmits: from.u32()?,
        busy,
        receiver_limited,
        buffer_limited,
        rate_based: match from.u8()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed("unknown flags in a report")),
        },
    }))
}

fn read_mark(from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    let scitag = match from.u16()? {
        0 => None,
        number => {
            Some(SciTag::from_number(number.into()).map_err(|_| Malformed("invalid SciTag in a mark"))?)
        }
    };
    let dscp = match from.u8()? {
        u8::MAX => None,
        point => Some(Dscp::new(point).map_err(|_| Malformed("invalid DSCP in a mark"))?),
    };
    Ok(Frame::Mark(Mark { scitag, dscp }))
}

fn read_answer(from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    let number = from.u32()?;
    let body = match read_optional_fault(from)? {
        Some(fault) => Err(fault),
        None => Ok(read_call_body(from)?),
    };
    Ok(Frame::Answer(Answer { number, body }))
}

fn read_call_body(from: &mut FieldReader<'_>) -> Result<Vec<u8>, Malformed> {
    let body = from.rest();
    if body.len() > CALL_BYTES_MAX {
        return Err(Malformed("a call or an answer is too long"));
    }
    Ok(body.to_vec())
}

fn read_manifest(from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    let batch = BatchId(from.u32()?);
    let first = FileNumber(from.u32()?);
    let flags = from.u8()?;
    if flags > 3 {
        return Err(Malformed("unknown flags in a manifest"));
    }
    let permit = if flags & 2 != 0 { Some(from.text(PERMIT_BYTES_MAX)?.into()) } else { None };
    let storage = StorageName::parse(from.text(64)?).map_err(|_| Malformed("invalid storage name"))?;
    let count = usize::from(from.u16()?);
    if count > MANIFEST_PART_FILES_MAX {
        return Err(Malformed("a part of a manifest has too many files"));
    }
    if first.0.checked_add(count as u32).is_none() {
        return Err(Malformed("file numbers overflow"));
    }
    let mut files = Vec::with_capacity(count);
    for _ in 0..count {
        files.push(ManifestFile {
            attempt: AttemptId(from.u64()?),
            transfer: TransferId(from.u64()?),
            size: from.u64()?,
            lfn: Lfn::parse(from.text(longhaul_model::limits::LFN_BYTES_MAX)?)
                .map_err(|_| Malformed("invalid file name"))?,
        });
        if files[files.len() - 1].size > longhaul_model::limits::FILE_BYTES_MAX {
            return Err(Malformed("a file exceeds the maximum size"));
        }
    }
    Ok(Frame::Manifest(Manifest { batch, first, permit, storage, last_part: flags & 1 != 0, files }))
}

fn read_chunk_head(from: &mut FieldReader<'_>) -> Result<ChunkHead, Malformed> {
    Ok(ChunkHead {
        request: RequestId(from.u32()?),
        file: FileNumber(from.u32()?),
        offset: from.u64()?,
        crc32c: from.u32()?,
        identity: SourceIdentity::read(from)?,
    })
}

fn read_request_if_changed(from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    let (request, file, offset, len) = read_extent(from)?;
    let mut held_crc32c = Vec::new();
    for _ in 0..len.div_ceil(u64::from(CHUNK_BYTES)) {
        let held = from.u8()?;
        let crc32c = from.u32()?;
        held_crc32c.push(match held {
            0 if crc32c == 0 => None,
            1 => Some(crc32c),
            _ => return Err(Malformed("unknown marker of a chunk that is held")),
        });
    }
    Ok(Frame::RequestIfChanged { request, file, offset, len, held_crc32c })
}

/// A run of chunks of one file, with the request for it.
fn read_extent(from: &mut FieldReader<'_>) -> Result<(RequestId, FileNumber, u64, u64), Malformed> {
    let (request, file) = (RequestId(from.u32()?), FileNumber(from.u32()?));
    let (offset, len) = (from.u64()?, from.u64()?);
    let most = u64::from(crate::limits::EXTENT_CHUNKS_MAX) * u64::from(CHUNK_BYTES);
    if len == 0 || len > most || offset % u64::from(CHUNK_BYTES) != 0 || offset.checked_add(len).is_none() {
        return Err(Malformed("an extent is not a run of chunks"));
    }
    Ok((request, file, offset, len))
}

fn read_request_pack(from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    let request = RequestId(from.u32()?);
    let count = usize::from(from.u16()?);
    if count == 0 || count > PACK_FILES_MAX {
        return Err(Malformed("a pack has no files or too many"));
    }
    let files = (0..count).map(|_| from.u32().map(FileNumber)).collect::<Result<_, _>>()?;
    Ok(Frame::RequestPack { request, files })
}

fn read_pack(from: &mut FieldReader<'_>) -> Result<Frame, Malformed> {
    let request = RequestId(from.u32()?);
    let count = usize::from(from.u16()?);
    if count == 0 || count > PACK_FILES_MAX {
        return Err(Malformed("a pack has no files or too many"));
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let file = FileNumber(from.u32()?);
        entries.push(match from.u8()? {
            0 => PackEntry::Whole {
                file,
                size: from.u32()?,
                crc32c: from.u32()?,
                identity: SourceIdentity::read(from)?,
            },
            1 => PackEntry::Fault { file, fault: read_fault(from)? },
            _ => return Err(Malformed("unknown kind of entry in a pack")),
        });
    }
    Ok(Frame::PackData(PackHead { request, entries }))
}

fn read_optional_fault(from: &mut FieldReader<'_>) -> Result<Option<Fault>, Malformed> {
    match from.u8()? {
        0 => Ok(None),
        1 => read_fault(from).map(Some),
        _ => Err(Malformed("invalid marker of an optional fault")),
    }
}

fn read_fault(from: &mut FieldReader<'_>) -> Result<Fault, Malformed> {
    let number = from.u16()?;
    let blame: Blame = from.text(32)?.parse().map_err(|_| Malformed("unknown blame in a fault"))?;
    let retry = match from.u8()? {
        0 => Retry::Now,
        1 => Retry::Later,
        2 => Retry::Never,
        _ => return Err(Malformed("unknown retry in a fault")),
    };
    let detail = from.text(FAULT_BYTES_MAX)?;
    // A newer peer may know more codes: its text says enough.
    let code =
        FaultCode::ALL.iter().copied().find(|code| code.number() == number).unwrap_or(FaultCode::Internal);
    Ok(Fault::new(code, detail).blaming(blame).retrying(retry))
}
