//! What a transfer costs at least on this machine, from its parts measured in the same round: TCP by our own
//! code between the two namespaces, AES-128-GCM at both ends, one read, one write of a new file, crc32c at
//! both ends.
//!
//! The rate of the floor is what two cores reach when they do nothing else, never wait and do not hinder each
//! other. They do, since they share caches and the way to memory: in the rows "both cores" each part but TCP,
//! which needs both ends, was measured on two threads at once. Not here: how the parts are measured
//! (`doctor::parts`). Other programs check them in `cases/floor.rs`.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use longhaul_doctor::parts::disk::{self, DiskOptions, Flush};
use longhaul_doctor::parts::network::{self, Mode, NetworkOptions, NetworkRun};
use longhaul_doctor::parts::{Part, aead, checksum};
use longhaul_testbed::wan::{Lab, Side};

use super::case::Case;
use super::run::{Failure, Measured};

/// Through each part; enough for a stable figure, and little beside the runs.
const BYTES: u64 = 1_000_000_000;
/// Both ends of every run share so many.
const CORES: usize = 2;

pub(crate) const NAMES: [&str; 4] =
    ["floor", "floor authenticated", "floor, both cores", "floor authenticated, both cores"];
/// Those of the names that stand for encrypted transfers.
pub(crate) const SEALED: [&str; 2] = [NAMES[0], NAMES[2]];

/// The floor stands beside large files on an unlimited LAN: elsewhere other things bind.
pub(crate) fn takes(case: &Case) -> bool {
    case.wan.is_none() && case.is_bulk()
}

pub(crate) struct Parts {
    pub(crate) tcp: NetworkRun,
    pub(crate) local: Local,
}

/// What needs no other end, on one thread.
pub(crate) struct Local {
    pub(crate) seal: Part,
    pub(crate) open: Part,
    pub(crate) crc32c: Part,
    pub(crate) read: Part,
    pub(crate) write: Part,
}

impl Local {
    fn measure(folder: &Path) -> Result<Local, String> {
        let told = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let [seal, open] = aead::aes_128_gcm(BYTES).map_err(|error| told("AES-128-GCM", error))?;
        let options =
            DiskOptions { size_bytes: BYTES, flush: Flush::End, cold: false, ..DiskOptions::default() };
        let [write, read] =
            disk::write_and_read(folder, &options).map_err(|error| told("writing and reading", error))?;
        Ok(Local { seal, open, crc32c: checksum::crc32c(BYTES), read, write })
    }

    /// On two threads at once; one of the two, since they do the same.
    fn measure_twice(folder: &Path) -> Result<Local, String> {
        let places = ["one", "other"].map(|name| folder.join(name));
        for place in &places {
            std::fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
        }
        let [one, _] = std::thread::scope(|scope| {
            let threads = places.each_ref().map(|place| scope.spawn(|| Local::measure(place)));
            threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        one
    }
}

pub(crate) fn parts(lab: &Lab, folder: &Path) -> Result<Parts, String> {
    Ok(Parts { tcp: tcp(lab)?, local: Local::measure(folder)? })
}

/// The server's side sends, as in our own runs.
pub(crate) fn tcp(lab: &Lab) -> Result<NetworkRun, String> {
    let told = |error: std::io::Error| format!("TCP of the floor: {error}");
    let address = SocketAddr::new(lab.address(Side::Left, 0).into(), 0);
    let listener = lab.inside(Side::Left, || TcpListener::bind(address))?.map_err(told)?;
    let address = listener.local_addr().map_err(told)?;
    let options = NetworkOptions { bytes: BYTES, streams: 1, mode: Mode::Plain };
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| lab.inside(Side::Left, || network::listen(&listener, &|_, _| true)));
        let sent = lab.inside(Side::Right, || network::connect(address, &options, &|_| {}))?.map_err(told);
        if sent.is_err() {
            // The listener still waits for its only stream.
            let _ = lab.inside(Side::Right, || std::net::TcpStream::connect(address));
        }
        let received = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        received.map_err(told)?;
        sent
    })
}

impl Parts {
    /// The floor of one of [`NAMES`], as if it had moved the case.
    pub(crate) fn as_run(&self, name: &str, case: &Case) -> Measured {
        let Local { seal, open, crc32c, read, write } = &self.local;
        let aead = if SEALED.contains(&name) { (seal.cpu_s_per_gb, open.cpu_s_per_gb) } else { (0.0, 0.0) };
        let sum = crc32c.cpu_s_per_gb;
        let source = read.cpu_s_per_gb + sum + aead.0 + self.tcp.sender_cpu_s_per_gb;
        let target = self.tcp.receiver_cpu_s_per_gb + aead.1 + sum + write.cpu_s_per_gb;
        let cores = std::thread::available_parallelism().map_or(CORES, std::num::NonZero::get).min(CORES);
        let gb = case.bytes() as f64 / 1e9;
        Measured {
            seconds: (source + target) * gb / cores as f64,
            bytes: case.bytes(),
            client_cpu: target * gb,
            server_cpu: source * gb,
            ..Measured::default()
        }
    }
}

/// One round of the floor, all names.
pub(crate) fn measure(lab: &Lab, folder: &Path, case: &Case) -> [Result<Measured, Failure>; 4] {
    let measured = parts(lab, folder).and_then(|alone| {
        let both = Parts { tcp: alone.tcp.clone(), local: Local::measure_twice(folder)? };
        Ok([(NAMES[0], &alone), (NAMES[1], &alone), (NAMES[2], &both), (NAMES[3], &both)]
            .map(|(name, parts)| Ok(parts.as_run(name, case))))
    });
    measured.unwrap_or_else(|why| NAMES.map(|_| Err(Failure::Failed(why.clone()))))
}

#[cfg(test)]
mod tests {
    use super::super::case::CASES;
    use super::*;

    fn part(cpu_s_per_gb: f64) -> Part {
        let (part, how) = (String::new(), String::new());
        Part { part, how, bytes: 1, seconds: 1.0, cpu_seconds: 1.0, gb_per_s: 1.0, cpu_s_per_gb }
    }

    #[test]
    fn the_floor_is_the_sum_of_its_parts() {
        let tcp = NetworkRun {
            part: part(0.5),
            streams: 1,
            mode: Mode::Plain,
            sender_cpu_s_per_gb: 0.2,
            receiver_cpu_s_per_gb: 0.3,
        };
        let local = Local {
            seal: part(0.25),
            open: part(0.26),
            crc32c: part(0.05),
            read: part(0.1),
            write: part(0.4),
        };
        let parts = Parts { tcp, local };
        let case = &CASES[0];
        assert_eq!(case.bytes(), 2_000_000_000);
        let sealed = parts.as_run(NAMES[0], case);
        assert!((sealed.cpu_s_per_gb() - 1.61).abs() < 1e-9, "{}", sealed.cpu_s_per_gb());
        let clear = parts.as_run(NAMES[1], case);
        assert!((clear.cpu_s_per_gb() - 1.10).abs() < 1e-9);
        // As many cores as there are, two at most, fully used.
        let cores = std::thread::available_parallelism().unwrap().get().min(2) as f64;
        assert!((clear.seconds - 2.2 / cores).abs() < 1e-9);
    }

    #[test]
    fn small_files_and_long_ways_have_other_limits() {
        let takes = |name| takes(CASES.iter().find(|case| case.name == name).unwrap());
        assert!(takes("lan-2g") && takes("lan-20x100m") && takes("lan-2g-mtu1500"));
        assert!(!takes("lan-5000x64k") && !takes("wan100-1g") && !takes("lan-1x64k"));
    }
}
