//! Streams that are there before a session wants them: those that the source dials, since it cannot be
//! dialled (both sides), and those that the receiver dials ahead of its first files.
//!
//! The source keeps so many streams open to the receiver. The receiver uses one as if it had dialled it, when
//! a session with that source wants a stream and knows no address.

mod offering;
mod parked;
mod preconnect;

pub use offering::Offer;
pub(crate) use offering::Offering;
pub(crate) use parked::{ParkedStreams, no_stream_offered};
pub(crate) use preconnect::Preconnect;
