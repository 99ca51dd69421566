//! Micro-benchmarks of the parts of a transfer: disk, TCP, encryption at both ends, checksum. The rate of a
//! transfer can then be compared with the slowest of them ([`floor`]).
//!
//! CPU time is that of the working threads, so several measurements in one process do not mix.

pub mod aead;
pub mod checksum;
pub mod disk;
pub mod floor;
pub mod network;
pub mod terabyte;

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Chunk of the engine, the unit of all benchmarks here.
pub(crate) const CHUNK_BYTES: usize = longhaul_model::limits::CHUNK_BYTES as usize;

/// Result of one benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    pub part: String,
    /// Description of the method.
    pub how: String,
    pub bytes: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub gb_per_s: f64,
    pub cpu_s_per_gb: f64,
}

impl Part {
    pub(crate) fn new(part: impl Into<String>, how: impl Into<String>, bytes: u64, spent: TimeSpent) -> Part {
        // A clock that did not move measures nothing; a nanosecond keeps the quotient finite.
        let seconds = spent.wall.as_secs_f64().max(1e-9);
        let gb = bytes as f64 / 1e9;
        let cpu_seconds = spent.cpu.as_secs_f64();
        let cpu_s_per_gb = if gb > 0.0 { cpu_seconds / gb } else { 0.0 };
        Part {
            part: part.into(),
            how: how.into(),
            bytes,
            seconds,
            cpu_seconds,
            gb_per_s: gb / seconds,
            cpu_s_per_gb,
        }
    }
}

/// Wall-clock and CPU time of some work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeSpent {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

/// Times the calling thread.
pub(crate) struct Stopwatch {
    began: Instant,
    cpu_before: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { began: Instant::now(), cpu_before: thread_cpu() }
    }

    pub(crate) fn stop(&self) -> TimeSpent {
        TimeSpent { wall: self.began.elapsed(), cpu: thread_cpu().saturating_sub(self.cpu_before) }
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Incompressible, deterministic bytes (xorshift).
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
