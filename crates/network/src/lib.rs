//! What we believe about links: observations of our own transfers in, estimates with spread out. Pure: time is an
//! argument.
//!
//! Not here: what to do about it (`scheduler`). Start with [`Knowledge`].

mod knowledge;

pub use knowledge::{Basis, Estimate, Knowledge, Link};
