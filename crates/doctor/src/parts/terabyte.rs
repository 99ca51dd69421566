//! A virtual terabyte: made in memory, checked, sealed, sent, opened, checked, dropped. Everything that a
//! transfer does but the disks, at any size.

use std::io;

use serde::Serialize;

use super::network::{Mode, NetworkOptions, NetworkRun, loopback};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Terabyte {
    #[serde(flatten)]
    pub run: NetworkRun,
    /// How long a whole terabyte takes at this rate.
    pub terabyte_s: f64,
    pub cpu_s_per_terabyte: f64,
}

/// Every chunk that arrived had the right sum and stood in its place, or this fails.
pub fn terabyte(bytes: u64, streams: u32, progress: &(dyn Fn(u64) + Sync)) -> io::Result<Terabyte> {
    let run = loopback(&NetworkOptions { bytes, streams, mode: Mode::Checked }, progress)?;
    Ok(Terabyte { terabyte_s: 1e3 / run.part.gb_per_s, cpu_s_per_terabyte: run.part.cpu_s_per_gb * 1e3, run })
}
