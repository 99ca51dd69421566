//! Options of a copy. They travel to a server for a third-party copy.

use std::net::IpAddr;

use longhaul_model::{TrafficClass, Verification};
use serde::{Deserialize, Serialize};

use crate::filter::{Action, FilterError, Filters, PATTERN_CHARS_MAX, RULES_MAX};

/// Memory budget of the engine. Three eighths of it may be in flight at once, which fills 1 Gbit/s over 200
/// ms; an end uses one direction, so with streams, lists and the program itself it stays below 64 MB.
pub const MEMORY_BYTES: u64 = 72 << 20;
/// The engine does not work with less.
const MEMORY_BYTES_MIN: u64 = 8 << 20;
/// As many streams as an engine serves to one peer without starving others.
pub const STREAMS_MAX: usize = 64;
const PARALLEL_FILES_MAX: usize = 20_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Copy directories with their contents.
    pub recursive: bool,
    /// Skip files that are newer at the target.
    pub update: bool,
    /// Compare contents instead of size and time.
    pub checksum: bool,
    pub verification: Verification,
    /// Rate limit in bytes per second.
    pub limit: Option<u64>,
    /// Traffic class relative to other traffic.
    #[serde(default, skip_serializing_if = "is_bulk")]
    pub class: TrafficClass,
    /// In the order given: whether to include, and the pattern.
    pub filters: Vec<(bool, String)>,
    /// Streams per session; none lets the engine decide.
    pub streams: Option<usize>,
    pub parallel_files: Option<usize>,
    /// Local addresses from which streams are opened, all of them at once; empty leaves it to the system.
    /// Never sent to a server.
    #[serde(skip)]
    pub bind: Vec<IpAddr>,
    pub memory_bytes: u64,
    /// Report what would be done, and do nothing.
    pub dry_run: bool,
}

/// The default class is not sent, since older servers reject unknown fields.
pub(crate) fn is_bulk(class: &TrafficClass) -> bool {
    *class == TrafficClass::Bulk
}

impl Default for Options {
    fn default() -> Self {
        Options {
            recursive: false,
            update: false,
            checksum: false,
            verification: Verification::EndToEnd,
            limit: None,
            class: TrafficClass::default(),
            filters: Vec::new(),
            streams: None,
            parallel_files: None,
            bind: Vec::new(),
            memory_bytes: MEMORY_BYTES,
            dry_run: false,
        }
    }
}

impl Options {
    pub fn filters(&self) -> Result<Filters, FilterError> {
        let action = |include| if include { Action::Include } else { Action::Exclude };
        Filters::parse(self.filters.iter().map(|(include, pattern)| (action(*include), pattern.as_str())))
    }

    /// Checks bounds, for options from a peer or the command line.
    pub fn check(&self) -> Result<(), String> {
        if self.filters.len() > RULES_MAX {
            return Err(format!("{} patterns; the limit is {RULES_MAX}", self.filters.len()));
        }
        if let Some((_, long)) = self.filters.iter().find(|(_, text)| text.len() > 4 * PATTERN_CHARS_MAX) {
            return Err(format!("a pattern of {} bytes", long.len()));
        }
        if self.streams.is_some_and(|streams| streams == 0 || streams > STREAMS_MAX) {
            return Err(format!("streams must be 1 to {STREAMS_MAX}"));
        }
        if self.parallel_files.is_some_and(|files| files == 0 || files > PARALLEL_FILES_MAX) {
            return Err(format!("parallel files must be 1 to {PARALLEL_FILES_MAX}"));
        }
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return Err(format!("{} bytes of memory; the minimum is {MEMORY_BYTES_MIN}", self.memory_bytes));
        }
        if self.limit == Some(0) {
            return Err("the rate limit must be more than 0".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold() {
        assert_eq!(Options::default().check(), Ok(()));
        for bad in [
            Options { streams: Some(0), ..Options::default() },
            Options { streams: Some(STREAMS_MAX + 1), ..Options::default() },
            Options { parallel_files: Some(0), ..Options::default() },
            Options { memory_bytes: 1, ..Options::default() },
            Options { limit: Some(0), ..Options::default() },
            Options { filters: vec![(true, "x".repeat(5_000))], ..Options::default() },
            Options { filters: vec![(true, "x".into()); RULES_MAX + 1], ..Options::default() },
        ] {
            assert!(bad.check().is_err(), "{:?}", bad.streams);
        }
    }
}
