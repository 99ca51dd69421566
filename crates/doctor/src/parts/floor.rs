//! Bottleneck analysis of a disk-to-disk transfer: benchmarks each part on this host, and names the one that
//! limits.

use std::io;
use std::path::Path;

use serde::Serialize;

use super::disk::{self, DiskOptions};
use super::network::{Mode, NetworkOptions, NetworkRun, loopback};
use super::{Part, aead, checksum};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Floor {
    pub parts: Vec<Part>,
    pub cpus: usize,
    /// Sum over all parts and both ends.
    pub cpu_s_per_gb: f64,
    pub limits: Vec<Limit>,
    /// The lowest of `limits`.
    pub limited_by: String,
    pub gb_per_s_max: f64,
}

/// An upper bound of the whole transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    pub what: String,
    pub gb_per_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FloorOptions<'a> {
    /// Bytes through each part.
    pub bytes: u64,
    pub streams: u32,
    /// Directory for the disk benchmark; none skips it.
    pub directory: Option<&'a Path>,
    pub disk: DiskOptions,
    /// Rate of the real link, if known.
    pub link_bytes_per_s: Option<u64>,
}

/// Benchmarks each part and names the one that limits.
pub fn floor(options: &FloorOptions<'_>) -> io::Result<Floor> {
    let tcp = loopback(
        &NetworkOptions { bytes: options.bytes, streams: options.streams, mode: Mode::Plain },
        &|_| {},
    )?;
    let [seal, open] = aead::aes_128_gcm(options.bytes)?;
    let sum = checksum::crc32c(options.bytes);
    let disks = match options.directory {
        Some(directory) => {
            let [write, read] = disk::write_and_read(directory, &options.disk)?;
            Some((write, read))
        }
        None => None,
    };
    let cpus = std::thread::available_parallelism()?.get();
    Ok(conclude(Measured { tcp, seal, open, sum, disks }, cpus, options.link_bytes_per_s))
}

struct Measured {
    tcp: NetworkRun,
    seal: Part,
    open: Part,
    sum: Part,
    /// Write and read.
    disks: Option<(Part, Part)>,
}

fn conclude(measured: Measured, cpus: usize, link_bytes_per_s: Option<u64>) -> Floor {
    let Measured { tcp, seal, open, sum, disks } = measured;
    let (write_cpu, read_cpu) =
        disks.as_ref().map_or((0.0, 0.0), |(write, read)| (write.cpu_s_per_gb, read.cpu_s_per_gb));
    let source = read_cpu + sum.cpu_s_per_gb + seal.cpu_s_per_gb + tcp.sender_cpu_s_per_gb;
    let target = tcp.receiver_cpu_s_per_gb + open.cpu_s_per_gb + sum.cpu_s_per_gb + write_cpu;
    let cores = cpus as f64;
    let mut limits = Vec::new();
    let mut limit = |what: &str, gb_per_s: f64| limits.push(Limit { what: what.to_owned(), gb_per_s });
    if let Some((write, read)) = &disks {
        limit("disk write", write.gb_per_s);
        limit("disk read", read.gb_per_s);
    }
    if let Some(link) = link_bytes_per_s {
        limit("link", link as f64 / 1e9);
    }
    limit("CPU, both ends on this host", cores / (source + target).max(1e-9));
    limit("CPU, the source alone on such a host", cores / source.max(1e-9));
    limit("CPU, the target alone on such a host", cores / target.max(1e-9));
    let lowest = limits.iter().min_by(|a, b| a.gb_per_s.total_cmp(&b.gb_per_s)).cloned();
    let (limited_by, gb_per_s_max) = lowest.map_or_else(Default::default, |low| (low.what, low.gb_per_s));
    let mut parts = vec![Part { part: "tcp".into(), ..tcp.part }, seal, open, sum];
    if let Some((write, read)) = disks {
        parts.extend([read, write]);
    }
    Floor { parts, cpus, cpu_s_per_gb: source + target, limits, limited_by, gb_per_s_max }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::TimeSpent;
    use std::time::Duration;

    fn part(name: &str, gb_per_s: f64, cpu_s_per_gb: f64) -> Part {
        let spent = TimeSpent {
            wall: Duration::from_secs_f64(1.0 / gb_per_s),
            cpu: Duration::from_secs_f64(cpu_s_per_gb),
        };
        Part::new(name, "", 1_000_000_000, spent)
    }

    fn measured(write_gb_per_s: f64) -> Measured {
        let tcp = NetworkRun {
            part: part("network", 3.0, 0.5),
            streams: 1,
            mode: Mode::Plain,
            sender_cpu_s_per_gb: 0.2,
            receiver_cpu_s_per_gb: 0.3,
        };
        let disks = Some((part("disk write", write_gb_per_s, 0.2), part("disk read", 2.5, 0.1)));
        Measured {
            tcp,
            seal: part("seal", 3.0, 0.3),
            open: part("open", 3.0, 0.3),
            sum: part("crc32c", 15.0, 0.05),
            disks,
        }
    }

    #[test]
    fn the_slowest_part_is_named() {
        let slow_disk = conclude(measured(0.3), 2, None);
        assert_eq!(slow_disk.limited_by, "disk write");
        assert!((slow_disk.gb_per_s_max - 0.3).abs() < 1e-6);
        assert!((slow_disk.cpu_s_per_gb - 1.5).abs() < 1e-6);
        assert_eq!(conclude(measured(9.0), 2, None).limited_by, "CPU, both ends on this host");
        assert_eq!(conclude(measured(9.0), 64, Some(125_000_000)).limited_by, "link");
    }

    #[test]
    fn all_parts_are_benchmarked() {
        let directory = tempfile::tempdir().unwrap();
        let disk = DiskOptions { size_bytes: 2 << 20, ..DiskOptions::default() };
        let options = FloorOptions {
            bytes: 2 << 20,
            streams: 1,
            directory: Some(directory.path()),
            disk,
            link_bytes_per_s: None,
        };
        let floor = floor(&options).unwrap();
        let names: Vec<&str> = floor.parts.iter().map(|part| part.part.as_str()).collect();
        assert_eq!(names, ["tcp", "seal", "open", "crc32c", "disk read", "disk write"]);
        assert!(floor.parts.iter().all(|part| part.bytes == 2 << 20 && part.gb_per_s > 0.0));
    }
}
