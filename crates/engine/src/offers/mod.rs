//! Streams that the source dials, for sources that cannot be dialled: both sides.
//!
//! The source keeps so many streams open to the receiver. The receiver uses one as if it had dialled it, when a
//! session with that source wants a stream and knows no address.

mod give;
mod take;

pub use give::Offer;
pub(crate) use give::Offering;
pub(crate) use take::{Offers, none_came};
