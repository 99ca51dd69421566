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
mod calibration;
mod change;
mod change_point;
mod concurrency_curve;
mod ewma;
pub mod exchange;
mod forecast_combiner;
mod goodput_meter;
mod knowledge;
pub mod mapping;
mod observation;
mod path_state;
mod rate_history;
mod startup_cost;
mod topology;
mod window_aggregator;

pub use calibration::ForecastQuality;
pub use change::{CauseLocation, Change, ChangeScope, Evidence, RouteChange, Shift};
pub use ewma::{FastEwma, RATE_BYTES_PER_S_ASSUMED};
pub use knowledge::{
    AttemptEnd, Backlog, Basis, Bottleneck, Estimate, Forecast, IntakeRate, Knowledge, LINKS_MAX, Link,
    LinkReport, PathReport, RateSummary, WHAT_IF_FILE_BYTES, WHAT_IF_FILES_MAX, WHAT_IF_QUERIES_MAX,
    WhatIfAnswer, WhatIfQuery, Work,
};
pub use observation::{
    CLOCK_AHEAD_MAX, Endpoint, HOPS_MAX, Mapping, Metric, OBSERVATION_AGE_MAX, Observation, ObservationError,
    ObservationId, Origin, PathSelector, REORDERING_MAX, SenderLimit, Subject,
};
pub use rate_history::Bin;
pub use topology::{Locality, RegionId};
