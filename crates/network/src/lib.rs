//! What we believe about links: observations of our own transfers in, estimates with spread out. Pure: time
//! is an argument.
//!
//! A link is measured as a whole: bytes that arrived in a stretch of time in which it had work, whatever the
//! number of files, so that many small files in parallel and one large file give the same number. Beliefs are
//! kept in logarithms (rates are heavy-tailed), fade with time, and fall back on those of the link's ends,
//! then of all links, then on [`ASSUMED_BYTES_PER_S`].
//!
//! Not here: what to do about it (`scheduler`). Start with [`Knowledge`]; one measurement is a
//! `meter::Meter`, one belief a [`Belief`]. What a path needs of its hosts is [`advice`].

pub mod advice;
mod belief;
mod bins;
mod blend;
mod calibrate;
mod change;
mod curve;
mod detect;
pub mod exchange;
mod gather;
mod knowledge;
pub mod mapping;
mod meter;
mod observation;
mod overhead;
mod path;
mod places;

pub use belief::{ASSUMED_BYTES_PER_S, Belief};
pub use bins::Bin;
pub use calibrate::Quality;
pub use change::{Affected, Change, Evidence, Location, Rerouted, Shift};
pub use knowledge::{
    Ahead, Basis, Bottleneck, Brief, End, Estimate, FILE_BYTES, Forecast, Knowledge, LINKS_MAX, Link,
    LinkReport, MORE_MAX, Pace, PathReport, QUESTIONS_MAX, Questions, WhatIf, Work,
};
pub use observation::{
    DISORDER, FUTURE, HOPS_MAX, Limit, Mapping, OLDEST, Observation, ObservationId, Origin, Place, Refused,
    Seen, Subject, Way,
};
pub use places::{Home, RegionId};
