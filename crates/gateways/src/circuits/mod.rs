//! Providers of circuits, each behind the same interface, and the driver that carries out what
//! [`longhaul_circuits`] decides: books before requests, use before give-back.
//!
//! Not here: when a circuit is worth asking for (`circuits`), and how streams move onto it (`engine`, by way
//! of [`Streams`]).

mod config;
mod driver;
mod fixed;
mod nsi;
#[cfg(any(test, feature = "testing"))]
pub mod rehearsal;
mod remote;
mod rest;
mod streams;

use std::path::Path;
use std::sync::Arc;

use longhaul_circuits::{CircuitRequest, Event, RequestKey};
use longhaul_model::{Fault, Timestamp};

pub use config::{Access, CircuitConfig, FILE_BYTES_MAX, FixedConfig, ProviderConfig};
pub use driver::{CircuitContext, Clock, Health, ProviderDriver, Traffic};
pub use nsi::NsiConfig;
pub use rest::{OscarsConfig, SenseConfig};
pub use streams::{CircuitPath, StreamPaths, Streams};

/// Called by a provider, on a thread of its own, when it has news.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// One link's side of a provider. Nothing here waits: answers come as news.
pub trait Provider: Send {
    fn request(&mut self, wish: &CircuitRequest, now: Timestamp);

    /// Also of what it never granted. Told by [`Event::TornDown`] when nothing is held any more.
    fn tear_down(&mut self, key: RequestKey, now: Timestamp);

    /// What is held under names of ours is wanted, as [`Event::Listed`]; from one that keeps no such list
    /// nothing comes.
    fn list(&mut self, now: Timestamp);

    /// Events up to now.
    fn news(&mut self, now: Timestamp) -> Vec<Event>;

    /// When there is more, if that is known.
    fn next_news(&self) -> Option<Timestamp>;
}

/// The provider of the link's circuits. What it calls our requests is kept beside the book.
pub fn open(config: &CircuitConfig, link: &str, book: &Path, wake: Wake) -> Result<Box<dyn Provider>, Fault> {
    let ground = || remote::Ground::new(book.with_extension("names.json"), wake);
    match &config.provider {
        ProviderConfig::Static(config) => Ok(Box::new(fixed::Fixed::new(config.clone()))),
        ProviderConfig::Nsi(config) => nsi::open(config, link, ground()?, config.access.caller()?),
        ProviderConfig::Oscars(config) => rest::open_oscars(config, link, ground()?, config.access.caller()?),
        ProviderConfig::Sense(config) => rest::open_sense(config, link, ground()?, config.access.caller()?),
    }
}
