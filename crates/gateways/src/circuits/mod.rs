//! Providers of circuits, each behind the same interface, and the keeper that carries out what [`longhaul_circuits`]
//! decides: books before requests, use before give-back.
//!
//! Not here: when a circuit is worth asking for (`circuits`), and how streams move onto it (`engine`, by way of
//! [`Streams`]).

mod config;
mod fixed;
mod keeper;
mod streams;

use longhaul_circuits::{Event, RequestKey, Wish};
use longhaul_model::Timestamp;

pub use config::{CircuitConfig, FILE_BYTES_MAX, FixedConfig};
pub use keeper::{Clock, Health, Keeper, Place, Traffic};
pub use streams::{Streams, Ways};

/// One link's side of a provider. Nothing here waits: answers come as news.
trait Provider: Send {
    fn request(&mut self, wish: &Wish, now: Timestamp);

    /// Also of what it never granted. Told by [`Event::Gone`] when nothing is held any more.
    fn tear_down(&mut self, key: RequestKey, now: Timestamp);

    /// What is held under names of ours is wanted, as [`Event::Listed`]; from one that keeps no such list nothing comes.
    fn list(&mut self, now: Timestamp);

    /// What has happened by now.
    fn news(&mut self, now: Timestamp) -> Vec<Event>;

    /// When there is more, if that is known.
    fn next_news(&self) -> Option<Timestamp>;
}
