//! Frames: the messages between the two ends of a stream, and their layout.
//!
//! A frame is a fixed head of [`HEAD_BYTES`], a structured body and, for data, a raw payload:
//!
//! ```text
//! kind u8 │ 0 u8 │ 0 u16 │ body length u32 │ payload length u32 │ body │ payload
//! ```
//!
//! All numbers are little-endian. The first frame of a stream states its purpose:
//!
//! ```text
//! Hello      the dialler fetches:           Welcome, then the frames of each role at any time
//! OpenCalls  the dialler makes calls:       Welcome, then Call and Answer (remote procedure calls)
//! Offer      the dialler is a source:       the listener sends Hello when it likes, as if it had dialled
//! ```

use std::sync::Arc;

use longhaul_model::{AttemptId, Fault, Lfn, Mark, StorageName, TransferId};

use crate::identity::SourceIdentity;
use crate::path::PathReport;
use crate::version::VersionRange;

mod decode;
mod encode;

/// Kind, three zero bytes, length of the body, length of the payload.
pub const HEAD_BYTES: usize = 12;

/// Identifies a session: everything two agents exchange. It outlives its streams; the receiver chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

/// The secret that admits a stream to a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JoinKey(pub [u8; 32]);

impl std::fmt::Debug for JoinKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinKey(…)")
    }
}

/// Number of a manifest within a session, assigned by the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u32);

/// Number of a file within a session, assigned by the receiver across all manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u32);

/// Number of a request within a stream, assigned by the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// First frame of a stream on which the dialler fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol versions that the dialler speaks.
    pub versions: VersionRange,
    /// Session that the stream joins; the first stream creates it.
    pub session: SessionId,
    /// Admits the stream to the session.
    pub key: JoinKey,
}

/// The source's reply to the first frame of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Version that the source chose, used from here on.
    pub version: u16,
    /// Changes when the source has lost the session's state: then the manifests have to be sent again.
    pub incarnation: u64,
}

/// One part of a manifest. Only the first part carries the permit; the parts follow each other on one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Batch that the part belongs to.
    pub batch: BatchId,
    /// Number of this part's first file; the others follow consecutively.
    pub first: FileNumber,
    /// Signed permit for all files of the batch; in its first part only.
    pub permit: Option<Arc<str>>,
    /// Storage that holds the files at the source.
    pub storage: StorageName,
    /// Whether the manifest is complete with this part.
    pub last_part: bool,
    /// Files of the part, numbered consecutively.
    pub files: Vec<ManifestFile>,
}

/// A file as the source is asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFile {
    /// Attempt that the permit names.
    pub attempt: AttemptId,
    /// Named in the source's log.
    pub transfer: TransferId,
    /// Logical name of the file.
    pub lfn: Lfn,
    /// Registered size, in bytes.
    pub size: u64,
}

/// Describes the payload: one chunk of a file. `offset` is a multiple of the chunk size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    /// Request that the chunk answers.
    pub request: RequestId,
    /// File that the chunk belongs to.
    pub file: FileNumber,
    /// Offset of the chunk in the file, in bytes.
    pub offset: u64,
    /// CRC-32C of the payload.
    pub crc32c: u32,
    /// Identity of the source file when it was opened for this read.
    pub identity: SourceIdentity,
}

/// Describes the payload: whole small files, concatenated in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackHead {
    /// Request that the pack answers.
    pub request: RequestId,
    /// One entry per requested file, in the order of the request.
    pub entries: Vec<PackEntry>,
}

/// One file of a pack: its size and checksum, or why it could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackEntry {
    /// The whole file, in the payload.
    Whole {
        /// Number of the file.
        file: FileNumber,
        /// Bytes of the payload that are this file's.
        size: u32,
        /// CRC-32C of these bytes.
        crc32c: u32,
        /// Identity of the source file when it was opened.
        identity: SourceIdentity,
    },
    /// The file could not be read; it takes no payload.
    Fault {
        /// Number of the file.
        file: FileNumber,
        /// Why it could not be read.
        fault: Fault,
    },
}

impl PackEntry {
    /// The file that the entry is about.
    pub fn file(&self) -> FileNumber {
        match self {
            PackEntry::Whole { file, .. } | PackEntry::Fault { file, .. } => *file,
        }
    }
}

/// A remote procedure call. Its meaning is up to the caller and the callee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Assigned by the caller.
    pub number: u32,
    /// At most [`crate::limits::CALL_BYTES_MAX`].
    pub body: Vec<u8>,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of the call.
    pub number: u32,
    /// A fault says that the call reached nobody.
    pub body: Result<Vec<u8>, Fault>,
}

/// Every message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First frame of a stream on which the dialler fetches.
    Hello(Hello),
    /// The source's reply to the first frame.
    Welcome(Welcome),
    /// A part of a manifest.
    Manifest(Manifest),
    /// The source has checked the permit of a batch.
    ManifestAnswer {
        /// Batch that the permit belongs to.
        batch: BatchId,
        /// Why the batch is refused; none if it is accepted.
        fault: Option<Fault>,
    },
    /// The receiver is done with all files of a batch.
    Forget {
        /// Batch that the source may forget.
        batch: BatchId,
    },
    /// Requests `len` bytes from `offset` on, both at chunk boundaries (or the end of the file).
    Request {
        /// Number chosen by the receiver.
        request: RequestId,
        /// File to read.
        file: FileNumber,
        /// First byte wanted.
        offset: u64,
        /// Number of bytes wanted.
        len: u64,
    },
    /// A [`Frame::Request`] for what is not held already, as `If-None-Match` of HTTP (RFC 9110 section
    /// 13.1.2): the answer to a chunk whose checksum is the one given is [`Frame::Unchanged`] instead of its
    /// bytes.
    RequestIfChanged {
        /// Number chosen by the receiver.
        request: RequestId,
        /// File to read.
        file: FileNumber,
        /// First byte wanted.
        offset: u64,
        /// Number of bytes wanted.
        len: u64,
        /// CRC-32C of each chunk of the extent as the receiver holds it; none of a chunk that it lacks.
        held_crc32c: Vec<Option<u32>>,
    },
    /// Requests whole small files in one payload.
    RequestPack {
        /// Number chosen by the receiver.
        request: RequestId,
        /// Files to read, in this order.
        files: Vec<FileNumber>,
    },
    /// One chunk, as its payload.
    Data(ChunkHead),
    /// One chunk that the receiver holds as it is at the source: the head of a [`Frame::Data`] without
    /// payload.
    Unchanged(ChunkHead),
    /// Whole small files, as its payload.
    PackData(PackHead),
    /// Ends a request: nothing more of this file will come.
    FileFault {
        /// Request that ends.
        request: RequestId,
        /// File that could not be read.
        file: FileNumber,
        /// Why it could not be read.
        fault: Fault,
    },
    /// Keepalive: asks for a `Pong` with the same number.
    Ping {
        /// Number to repeat.
        number: u64,
    },
    /// Reply to a `Ping`.
    Pong {
        /// Number of the `Ping`.
        number: u64,
    },
    /// Closes the stream, with a fault unless it is simply done.
    Goodbye {
        /// Why the stream is closed; none if its work is done.
        fault: Option<Fault>,
    },
    /// First frame of a stream for calls.
    OpenCalls {
        /// Protocol versions that the dialler speaks.
        versions: VersionRange,
    },
    /// A remote procedure call.
    Call(Call),
    /// The reply to a call.
    Answer(Answer),
    /// Statistics of the stream from the source's kernel, about once a second while data flows.
    Report(PathReport),
    /// First frame of a stream that the listener may use to fetch.
    Offer {
        /// Protocol versions that the dialler speaks.
        versions: VersionRange,
    },
    /// How the receiver wants the packets of this stream marked.
    Mark(Mark),
    /// The receiver's path has reserved bandwidth: the source sends no faster on this stream. Whole IP
    /// packets count; zero means unlimited.
    Pace {
        /// Bytes per second; 0 for no limit.
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
    pub(crate) const REQUEST_IF_CHANGED: u8 = 21;
    pub(crate) const UNCHANGED: u8 = 22;
}

/// Starts every stream, so that other protocols are refused at once.
pub(crate) const MAGIC: [u8; 4] = *b"LHDP";

#[cfg(test)]
mod tests;
