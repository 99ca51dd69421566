//! Benchmark of direct I/O on a disk, through the adapter: writes one large file in chunks, flushes and
//! commits it, then reads it with cold cache, alternately with and without the page cache. Prints one line of
//! JSON for each.
//!
//! `cargo run --release -p longhaul-storage --example direct -- DIRECTORY [SIZE [ROUNDS]]`

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_model::Pfn;
use longhaul_model::units::parse_bytes;
use longhaul_storage::{Commit, DirectIo, FlushPolicy, Posix, PosixOptions, PosixTuning, Storage, TempName};
use rustix::fs::{Advice, fadvise};

const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;
const SIZE: &str = "1GB";
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("usage: direct DIRECTORY [SIZE [ROUNDS]]")?);
    let size = parse_bytes(&arguments.next().unwrap_or_else(|| SIZE.to_owned()))?;
    let rounds: usize = arguments.next().map_or(Ok(ROUNDS), |text| text.parse())?;
    let inside = directory.join(format!("longhaul-direct-{}", std::process::id()));
    std::fs::create_dir(&inside)?;
    let measured = measure_all(&inside, size, rounds);
    // Also after an error: the file may have filled the disk.
    let removed = std::fs::remove_dir_all(&inside);
    measured?;
    Ok(removed?)
}

fn measure_all(inside: &Path, size: u64, rounds: usize) -> Result<(), Box<dyn Error>> {
    for round in 0..rounds {
        for direct in [false, true] {
            let root = inside.join(format!("{round}-{direct}"));
            std::fs::create_dir(&root)?;
            let (write, write_cpu, read, read_cpu) = measure(&root, size, direct)?;
            std::fs::remove_dir_all(&root)?;
            let rate = |time: Duration| size as f64 / 1e6 / time.as_secs_f64();
            let per_gb = |cpu: f64| cpu / (size as f64 / 1e9);
            writeln!(
                std::io::stdout(),
                "{{\"round\":{round},\"direct\":{direct},\
                 \"write_mb_per_s\":{:.0},\"write_cpu_s_per_gb\":{:.2},\
                 \"read_mb_per_s\":{:.0},\"read_cpu_s_per_gb\":{:.2}}}",
                rate(write),
                per_gb(write_cpu),
                rate(read),
                per_gb(read_cpu)
            )?;
        }
    }
    Ok(())
}

type Measured = (Duration, f64, Duration, f64);

fn measure(root: &Path, size: u64, direct_io: bool) -> Result<Measured, Box<dyn Error>> {
    let options = PosixOptions {
        name: "disk".parse()?,
        root: root.to_owned(),
        work: None,
        writable: true,
        flush: FlushPolicy::FileAndDirectory,
    };
    let direct_io = if direct_io { DirectIo::Always } else { DirectIo::Never };
    let posix = Posix::open_in(options, PosixTuning { direct_io, ..PosixTuning::default() })?;
    let (temp, at) = (TempName::from_bytes([1; 16]), Pfn::new("disk".parse()?, "file")?);
    let mut memory = vec![0x5a; CHUNK + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let chunk = &mut memory[start..start + CHUNK];

    let (began, cpu) = (Instant::now(), cpu_s()?);
    let file = posix.create(&temp, Some(&at), size)?;
    for offset in (0..size).step_by(CHUNK) {
        let len = (size - offset).min(CHUNK as u64) as usize;
        file.write_at(&chunk[..len], offset)?;
        let end = offset + len as u64;
        if end.is_multiple_of(8 << 20) {
            file.begin_writeback(end - (8 << 20), 8 << 20);
        }
    }
    drop(file);
    posix.commit(&[Commit::new(temp, at.clone(), size)]).remove(0)?;
    let (write, write_cpu) = (began.elapsed(), cpu_s()? - cpu);

    let pages = std::fs::File::open(root.join("file"))?;
    fadvise(&pages, 0, None, Advice::DontNeed)?;
    let (began, cpu) = (Instant::now(), cpu_s()?);
    let file = posix.open(&at)?;
    for offset in (0..size).step_by(CHUNK) {
        file.read_at(chunk, offset)?;
    }
    Ok((write, write_cpu, began.elapsed(), cpu_s()? - cpu))
}

/// User and system time of this process.
fn cpu_s() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks: Vec<u64> = after_name.split_ascii_whitespace().skip(11).take(2).flat_map(str::parse).collect();
    Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
}
