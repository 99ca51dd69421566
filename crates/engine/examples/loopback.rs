//! Moves files between two engines in one process and prints the rate and the CPU time used.
//!
//! ```text
//! cargo run --release -p longhaul-engine --example loopback -- \
//!     DIR FILES SIZE [STREAMS [authenticated] [direct-io] [append-only]]
//! ```
//!
//! DIR decides what is measured: on tmpfs the engine, on a disk the disk as well. Also prints how far and why
//! the engine yielded the disk to other users.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

// Shares the helpers of the tests, of which it needs a part.
#[allow(dead_code)]
#[path = "../tests/engine/common/mod.rs"]
mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Deployment, content, wish};
use longhaul_engine::FetchFile;
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_storage::{DirectIo, PosixTuning};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, files, size, rest @ ..] = arguments.as_slice() else {
        println!("loopback DIR FILES SIZE [STREAMS [authenticated] [direct-io] [append-only]]");
        std::process::exit(2);
    };
    let files: u64 = files.parse().expect("a number of files");
    let size = longhaul_model::units::parse_bytes(size).expect("a size such as 64kB") as usize;
    let streams = rest.first().map_or(2, |streams| streams.parse().expect("a number of streams"));
    let home = tempfile::tempdir_in(Path::new(directory)).unwrap();
    let deployment = Deployment::at(home.path());
    let wishes = make_files(&home.path().join("alpha"), files, size);
    let says = |wanted: &str| rest.iter().any(|word| word == wanted);
    let clear = says("authenticated");
    let direct_io = if says("direct-io") { DirectIo::Always } else { DirectIo::default() };
    let tuning = |append_only| PosixTuning { append_only, direct_io, parallel: None };
    let change = |config: &mut longhaul_engine::Config| {
        config.streams_per_session = streams;
        if clear {
            config.data_security = longhaul_model::DataSecurity::Authenticated;
        }
    };
    let source = deployment.agent_with(1, vec![deployment.posix_in("alpha", tuning(false))], change);
    let target =
        deployment.agent_with(2, vec![deployment.posix_in("beta", tuning(says("append-only")))], change);

    let (begin, cpu) = (Instant::now(), cpu_seconds());
    for part in wishes.chunks(BATCH_ITEMS_MAX) {
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", part.to_vec()));
    }
    let done = AtomicBool::new(false);
    let (ends, least) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch(&[&source, &target], &done));
        let ends = target.finished(files as usize);
        done.store(true, Ordering::Relaxed);
        (ends, watch.join().unwrap())
    });
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    for end in &ends {
        if let Err(fault) = &end.result {
            println!("{}: {fault}", end.attempt);
        }
    }
    let bytes = (files as usize * size) as f64;
    let resent: u64 = ends.iter().map(|end| end.bytes_resent).sum();
    println!(
        "{files} files of {size} bytes: {:.0} MB/s, {:.0} files/s, {:.2} CPU s/GB (both ends), {seconds:.2} \
            s, {resent} bytes resent, at most {} buffers",
        bytes / seconds / 1e6,
        files as f64 / seconds,
        cpu / (bytes / 1e9),
        target.engine.snapshot().buffers_peak,
    );
    for (agent, share, reason) in least {
        println!("agent {agent} used {:.0} % of the disk for a while: {reason}", 100.0 * share);
    }
}

/// The lowest disk share of each agent, if it was below 1.
fn watch(agents: &[&common::Agent], done: &AtomicBool) -> Vec<(u64, f64, String)> {
    let mut least: Vec<(u64, f64, String)> = Vec::new();
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(200));
        for agent in agents {
            let number = agent.agent.0;
            for device in agent.engine.snapshot().devices {
                let known = least.iter().find(|known| known.0 == number).map_or(1.0, |known| known.1);
                if let Some(reason) = device.reason.filter(|_| device.share < known) {
                    least.retain(|known| known.0 != number);
                    least.push((number, device.share, reason));
                }
            }
        }
    }
    least
}

fn make_files(root: &Path, files: u64, size: usize) -> Vec<FetchFile> {
    let make = |number: u64| {
        let lfn = format!("d{}/f{number}", number / 1_000);
        let bytes = content(number % 7, size);
        let path = root.join(&lfn);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &bytes).unwrap();
        wish(number, &lfn, &bytes)
    };
    (0..files).map(make).collect()
}

/// CPU time of this process, user and system.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
