//! Diagnostics: examines a host, a peer and the path between them, and benchmarks their parts; findings come
//! with remedies.
//!
//! Nothing here changes a setting. [`facts::HostFacts`] is read from `/proc` and `/sys`, under a root that
//! tests replace; `checks` turn facts into [`Finding`]s without reading anything else; `parts` are
//! micro-benchmarks. Agents use [`probe`] to monitor the paths to their peers.
//!
//! Not here: the command line and how findings are shown (`longhaul`), the arithmetic of windows and streams
//! (`network::advice`). Start with [`examine`]; [`tune`] and [`parts`] stand alone.

mod checks;
mod examine;
pub mod facts;
mod finding;
pub mod parts;
mod peer;
pub mod probe;
mod sys;
pub mod tune;

pub use examine::{Examination, ExaminationRequest, FigureSource, PathOverrides, ReferencePath, examine};
pub use finding::{Finding, Group, Severity};
pub use peer::{Peer, PeerError};
