//! Moves files between two engines in one process and prints the rate and the CPU time that it took.
//!
//! `cargo run --release -p longhaul-engine --example loopback -- DIR FILES SIZE [STREAMS] [authenticated]`
//!
//! DIR decides what is measured: on tmpfs the engine, on a disk the disk as well.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::time::Instant;

use common::{Deployment, content, wish};
use longhaul_engine::FetchFile;
use longhaul_model::limits::BATCH_ITEMS_MAX;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, files, size, rest @ ..] = arguments.as_slice() else {
        println!("loopback DIR FILES SIZE [STREAMS] [authenticated]");
        std::process::exit(2);
    };
    let files: u64 = files.parse().expect("a number of files");
    let size = longhaul_model::units::parse_bytes(size).expect("a size such as 64kB") as usize;
    let streams = rest.first().map_or(2, |streams| streams.parse().expect("a number of streams"));
    let home = tempfile::tempdir_in(Path::new(directory)).unwrap();
    let deployment = Deployment::at(home.path());
    let wishes = make_files(&home.path().join("alpha"), files, size);
    let clear = rest.get(1).is_some_and(|word| word == "authenticated");
    let change = |config: &mut longhaul_engine::Config| {
        config.streams_per_session = streams;
        if clear {
            config.data_security = longhaul_model::DataSecurity::Authenticated;
        }
    };
    let source = deployment.agent_with(1, vec![deployment.posix("alpha")], change);
    let target = deployment.agent_with(2, vec![deployment.posix("beta")], change);

    let (begin, cpu) = (Instant::now(), cpu_seconds());
    for part in wishes.chunks(BATCH_ITEMS_MAX) {
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", part.to_vec()));
    }
    let ends = target.finished(files as usize);
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    for end in &ends {
        if let Err(fault) = &end.result {
            println!("{}: {fault}", end.attempt);
        }
    }
    let bytes = (files as usize * size) as f64;
    let resent: u64 = ends.iter().map(|end| end.bytes_resent).sum();
    println!(
        "{files} files of {size} bytes: {:.0} MB/s, {:.0} files/s, {:.2} CPU s/GB (both ends), {seconds:.2} s, {resent} bytes resent, at most {} buffers",
        bytes / seconds / 1e6,
        files as f64 / seconds,
        cpu / (bytes / 1e9),
        target.engine.snapshot().buffers_peak,
    );
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
