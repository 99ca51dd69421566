//! Streams that are there before a session wants them: those that the source dials, since it cannot be
//! dialled (both sides), and those that the receiver dials ahead of its first files.
//!
//! The source keeps so many streams open to the receiver. The receiver uses one as if it had dialled it, when
//! a session with that source wants a stream and knows no address.

mod ahead;
mod give;
mod take;

pub(crate) use ahead::Ahead;
pub use give::Offer;
pub(crate) use give::Offering;
pub(crate) use take::{Offers, none_came};
