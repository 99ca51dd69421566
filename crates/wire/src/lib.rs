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

pub mod congestion;
pub mod coverage;
pub mod disk;
pub mod firefly;
pub mod frame;
pub mod health;
pub mod identity;
pub mod journal;
pub mod limits;
pub mod meter;
pub mod pace;
pub mod path;
pub mod reader;
pub mod receiver;
pub mod scavenger;
pub mod source;
pub mod splitter;
pub mod version;

pub use coverage::Coverage;
pub use frame::{
    Answer, BatchId, Call, ChunkHead, FileNumber, Frame, Hello, JoinKey, Manifest, ManifestFile, PackEntry,
    PackHead, RequestId, SessionId, Welcome,
};
pub use identity::{FileKey, SourceIdentity};
pub use pace::Pace;
pub use path::{Cause, Limit, PathReport};
pub use receiver::{
    Budget, NewBatch, NewFile, OriginNumber, PackedFile, Receiver, Replica, StreamNumber, Wanted,
};
pub use source::Source;
pub use splitter::{Piece, Splitter};
pub use version::{VERSIONS, VersionRange, WISHES_FROM};

#[cfg(test)]
mod virtual_streams;
