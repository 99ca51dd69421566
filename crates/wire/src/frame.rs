//! Frames: what the two ends of a stream say to each other.
//!
//! A frame is a head of [`HEAD_BYTES`], a structured body and, for data, a raw payload:
//!
//! ```text
//! kind u8 │ 0 u8 │ 0 u16 │ body length u32 │ payload length u32 │ body │ payload
//! ```
//!
//! All numbers are little-endian. The first frame of a stream says what it is for:
//!
//! ```text
//! Hello      one end fetches from the other: Welcome, then the frames of each role at any time
//! OpenCalls  the dialler asks questions:     Welcome, then Call and Answer
//! Offer      the dialler is a source:        the listener says Hello whenever it likes, as if it had dialled
//! ```

use std::sync::Arc;

use longhaul_model::{AttemptId, Fault, Lfn, Mark, StorageName, TransferId};

use crate::identity::SourceIdentity;
use crate::path::PathReport;
use crate::version::VersionRange;

mod decode;
mod encode;

pub const HEAD_BYTES: usize = 12;

/// Everything two agents exchange; outlives its streams. Chosen by the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

/// Admits a stream to a session. A secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JoinKey(pub [u8; 32]);

impl std::fmt::Debug for JoinKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinKey(…)")
    }
}

/// One manifest, counted up by the receiver of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u32);

/// A file of a session, counted up by the receiver through all its manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u32);

/// Counted up by the receiver, for each stream on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub versions: VersionRange,
    pub session: SessionId,
    pub key: JoinKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub version: u16,
    /// Differs once the source has forgotten the session: then the manifests have to be sent again.
    pub incarnation: u64,
}

/// A part of a manifest. The permit stands in the first part, the parts follow each other on one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub batch: BatchId,
    /// Number of this part's first file; the others count up from it.
    pub first: FileNumber,
    pub permit: Option<Arc<str>>,
    pub storage: StorageName,
    pub last_part: bool,
    pub files: Vec<ManifestFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFile {
    pub attempt: AttemptId,
    /// For the source's log.
    pub transfer: TransferId,
    pub lfn: Lfn,
    pub size: u64,
}

/// Says what the payload is: one chunk of a file. `offset` is a multiple of the chunk size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    pub request: RequestId,
    pub file: FileNumber,
    pub offset: u64,
    pub crc32c: u32,
    /// As at the opening that these bytes were read from.
    pub identity: SourceIdentity,
}

/// Says what the payload is: whole small files, one after the other, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackHead {
    pub request: RequestId,
    pub entries: Vec<PackEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackEntry {
    Whole { file: FileNumber, size: u32, crc32c: u32, identity: SourceIdentity },
    Fault { file: FileNumber, fault: Fault },
}

impl PackEntry {
    pub fn file(&self) -> FileNumber {
        match self {
            PackEntry::Whole { file, .. } | PackEntry::Fault { file, .. } => *file,
        }
    }
}

/// A question that is not about bytes of files. What it means is a matter of those who ask and answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Counted up by who asks.
    pub number: u32,
    /// At most [`crate::limits::CALL_BYTES_MAX`].
    pub body: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Of the call.
    pub number: u32,
    /// The fault says that nobody could be asked.
    pub body: Result<Vec<u8>, Fault>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Hello(Hello),
    Welcome(Welcome),
    Manifest(Manifest),
    /// The source has checked the permit of a batch.
    ManifestAnswer {
        batch: BatchId,
        fault: Option<Fault>,
    },
    /// The receiver is done with all files of a batch.
    Forget {
        batch: BatchId,
    },
    /// `len` bytes from `offset` on, both at chunk borders (or the end of the file).
    Request {
        request: RequestId,
        file: FileNumber,
        offset: u64,
        len: u64,
    },
    RequestPack {
        request: RequestId,
        files: Vec<FileNumber>,
    },
    Data(ChunkHead),
    PackData(PackHead),
    /// Ends a request: nothing more of this file will come.
    FileFault {
        request: RequestId,
        file: FileNumber,
        fault: Fault,
    },
    Ping {
        number: u64,
    },
    Pong {
        number: u64,
    },
    /// The stream ends, with the reason if it is not just done.
    Goodbye {
        fault: Option<Fault>,
    },
    OpenCalls {
        versions: VersionRange,
    },
    Call(Call),
    Answer(Answer),
    /// What the source's kernel sees of the stream, about once a second while data flows.
    Report(PathReport),
    Offer {
        versions: VersionRange,
    },
    /// What the receiver wants the packets of this stream to bear.
    Mark(Mark),
    /// The receiver's way is booked for so much: the source sends no faster on this stream. IP packets are
    /// counted whole; zero is no bound.
    Pace {
        bytes_per_s: u64,
    },
}

impl Frame {
    /// Whether a payload follows the body.
    pub fn carries_payload(&self) -> bool {
        matches!(self, Frame::Data(_) | Frame::PackData(_))
    }
}

pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const WELCOME: u8 = 2;
    pub(crate) const MANIFEST: u8 = 3;
    pub(crate) const MANIFEST_ANSWER: u8 = 4;
    pub(crate) const FORGET: u8 = 5;
    pub(crate) const REQUEST: u8 = 6;
    pub(crate) const REQUEST_PACK: u8 = 7;
    pub(crate) const DATA: u8 = 8;
    pub(crate) const PACK_DATA: u8 = 9;
    pub(crate) const FILE_FAULT: u8 = 10;
    pub(crate) const PING: u8 = 11;
    pub(crate) const PONG: u8 = 12;
    pub(crate) const GOODBYE: u8 = 13;
    pub(crate) const OPEN_CALLS: u8 = 14;
    pub(crate) const CALL: u8 = 15;
    pub(crate) const ANSWER: u8 = 16;
    pub(crate) const OFFER: u8 = 17;
    pub(crate) const REPORT: u8 = 18;
    pub(crate) const MARK: u8 = 19;
    pub(crate) const PACE: u8 = 20;
}

/// First bytes of every stream.
pub(crate) const MAGIC: [u8; 4] = *b"LHDP";

#[cfg(test)]
mod tests;
