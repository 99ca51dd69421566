//! Calls: questions to a peer that are not about bytes of files, over a stream of their own.

mod answering;
mod channel;

pub(crate) use answering::{Answering, Calls, Open};
pub(crate) use channel::Calling;
pub use channel::Channel;
