//! Streams opened before a session needs them (reverse connections): offered by a source that cannot be
//! dialled, or preconnected by the receiver before its first files.
//!
//! The source keeps a number of streams open to the receiver. The receiver uses one as if it had dialled it
//! when a session with that source needs a stream and knows no address.

mod offering;
mod parked;
mod preconnect;

pub use offering::Offer;
pub(crate) use offering::Offering;
pub(crate) use parked::{ParkedStreams, no_stream_offered};
pub(crate) use preconnect::Preconnect;
