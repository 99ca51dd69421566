//! Remote procedure calls to a peer, over streams of their own.

mod client;
mod server;

pub(crate) use client::CallClient;
pub use client::Channel;
pub(crate) use server::{CallServer, CallStream, OpenCall};
