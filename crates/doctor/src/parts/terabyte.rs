//! Virtual terabyte: generated, checksummed, sealed, sent, opened, verified and discarded in memory:
//! everything that a transfer does except disk I/O, at any size.

use std::io;

use serde::Serialize;

use super::network::{Mode, NetworkOptions, NetworkRun, loopback};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Terabyte {
    #[serde(flatten)]
    pub run: NetworkRun,
    /// Seconds for a whole terabyte at this rate.
    pub terabyte_s: f64,
    pub cpu_s_per_terabyte: f64,
}

/// Runs the benchmark; fails unless every chunk arrives intact and in its place.
pub fn terabyte(bytes: u64, streams: u32, progress: &(dyn Fn(u64) + Sync)) -> io::Result<Terabyte> {
    let run = loopback(&NetworkOptions { bytes, streams, mode: Mode::Checked }, progress)?;
    Ok(Terabyte { terabyte_s: 1e3 / run.part.gb_per_s, cpu_s_per_terabyte: run.part.cpu_s_per_gb * 1e3, run })
}
