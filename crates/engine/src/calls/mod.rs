//! Calls: questions to a peer that are not about bytes of files, over a stream of their own.

mod client;
mod server;

pub(crate) use client::CallClient;
pub use client::Channel;
pub(crate) use server::{CallServer, CallStream, OpenCall};
