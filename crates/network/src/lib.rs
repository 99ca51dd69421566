//! What we believe about links: observations of transfers and probes in, estimates with their spread out.
//! Pure: the time is an argument.
//!
//! A link is measured as a whole: the bytes that arrived while it had work, whatever the number of files, so
//! that many small files in parallel and one large file give the same number. Rates are heavy-tailed, so
//! beliefs are exponentially weighted moving averages of log(rate). A link that was never measured gets its
//! estimate by shrinkage (empirical Bayes): from its two ends, then its regions, then all links, then
//! [`RATE_BYTES_PER_S_ASSUMED`].
//!
//!  Mechanism | Module |
//! ---|---|
//!  exponentially weighted moving average (EWMA) of log(rate) | `ewma` |
//!  change-point detection (two-sided CUSUM) | `change_point` |
//!  prediction intervals by online quantile tracking | `calibration` |
//!  forecast combination by recursive least squares | `forecast_combiner` |
//!  hierarchical prior with shrinkage | `knowledge::prior` |
//!  TCP throughput models, bandwidth-delay product | `advice` |
//!
//! Not here: what to do about it (`scheduler`). Start with [`Knowledge`]; [`FastEwma`] is one belief, and
//! [`advice`] says which host settings a path needs.

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

pub use calibration::{ForecastQuality, SizeDecadeQuality};
pub use change::{CauseLocation, Change, ChangeScope, Evidence, RouteChange, Shift};
pub use ewma::{FastEwma, RATE_BYTES_PER_S_ASSUMED};
pub use knowledge::{
    AttemptEnd, Backlog, Basis, Bottleneck, Estimate, Forecast, IntakeRate, Knowledge, LINKS_MAX, Link,
    LinkReport, OwnLimits, PathReport, RateSummary, WHAT_IF_FILE_BYTES, WHAT_IF_QUERIES_MAX, WhatIfAnswer,
    WhatIfQuery, Work,
};
pub use observation::{
    CLOCK_AHEAD_MAX, Endpoint, HOPS_MAX, Mapping, Metric, OBSERVATION_AGE_MAX, Observation, ObservationError,
    ObservationId, Origin, PathSelector, REORDERING_MAX, SenderLimit, Subject,
};
pub use rate_history::Bin;
pub use topology::{Locality, RegionId};
