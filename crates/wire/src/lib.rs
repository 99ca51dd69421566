//! The data-plane protocol: frames, manifests, the state machines of both ends of a session, journal records.
//!
//! *Participants*: a receiver (the target's agent), which makes all decisions, and a source, which answers.
//! *Goals*: many files at once over streams that may die at any time; no round trip per file; bounded memory
//! by credit-based flow control; every chunk verified; never a mix of two versions of a source file. *Not
//! here*: sockets, TLS, buffers, files, threads, clocks. Time is an argument: a [`std::time::Duration`] since
//! a fixed start for time-outs (it never jumps), a `Timestamp` for the expiry of leases.
//!
//! Start with [`Frame`], then [`Receiver`] and [`Source`]: feed them frames with `handle_…`, then carry out
//! the actions from `poll_output`. [`journal`] is the receiver's write-ahead log, so that progress survives a
//! crash.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod codec;
pub mod congestion;
pub mod coverage;
pub mod disk_throttle;
pub mod firefly;
pub mod frame;
pub mod frame_decoder;
pub mod identity;
pub mod journal;
pub mod keepalive;
pub mod limits;
pub mod path;
pub mod rate_meter;
pub mod receiver;
pub mod scavenger;
pub mod source;
pub mod version;

pub use coverage::Coverage;
pub use frame::{
    Answer, BatchId, Call, ChunkHead, FileNumber, Frame, Hello, JoinKey, Manifest, ManifestFile, PackEntry,
    PackHead, RequestId, SessionId, Welcome,
};
pub use frame_decoder::{FrameDecoder, FramePart};
pub use identity::{FileKey, SourceIdentity};
pub use path::{Bottleneck, BottleneckCause, PathReport};
pub use receiver::{
    Budget, NewBatch, NewFile, OriginNumber, PackedFile, Receiver, Replica, StreamNumber, Wanted,
};
pub use source::Source;
pub use version::{CONDITIONAL_REQUESTS_SINCE, STREAM_OPTIONS_SINCE, VERSIONS, VersionRange};

#[cfg(test)]
mod virtual_streams;
