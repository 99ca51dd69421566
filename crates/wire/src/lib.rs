//! The data-plane protocol: frames, manifest, the two session state machines, journal records.
//!
//! *Participants*: a receiver (the target's agent), which decides everything, and a source, which answers.
//! *Goals*: many files at once over streams that may die at any time, no round trip per file, memory bounded
//! by construction, every chunk checked, no byte of a changed source mixed in.
//! *Not here*: sockets, TLS, buffers, files, threads, clocks. Time is an argument: a [`std::time::Duration`]
//! since any fixed start for time-outs (it never jumps), a `Timestamp` for the expiry of leases.
//!
//! Start with [`Frame`], then [`Receiver`] and [`Source`]: feed them frames with `handle_…`, then take what
//! they want done with `poll_output`. [`journal`] is what the receiver writes down so that progress survives.

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
pub mod token_bucket;
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
pub use token_bucket::TokenBucket;
pub use version::{STREAM_OPTIONS_SINCE, VERSIONS, VersionRange};

#[cfg(test)]
mod virtual_streams;
