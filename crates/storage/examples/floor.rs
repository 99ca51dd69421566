//! Benchmark of the lower bound for committing small files: writes a group, flushes once, renames all,
//! flushes once, and repeats. It uses plain system calls and not the adapter, so that other benchmarks can
//! report their share of this bound. Prints one line of JSON.
//!
//! `cargo run --release -p longhaul-storage --example floor -- DIRECTORY [FILES [SIZE]]`

use std::error::Error;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_model::units::parse_bytes;
use rustix::fs::{self, Mode, OFlags, RenameFlags};

/// Files between two flushes.
const GROUP_FILES: u64 = 1_000;
const FILES: u64 = 10_000;
const SIZE: &str = "64KB";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: floor DIRECTORY [FILES [SIZE]]";
    let directory = PathBuf::from(arguments.next().ok_or(usage)?);
    let files: u64 = arguments.next().map_or(Ok(FILES), |text| text.parse())?;
    let size = parse_bytes(&arguments.next().unwrap_or_else(|| SIZE.to_owned()))?;

    let inside = directory.join(format!("longhaul-floor-{}", std::process::id()));
    std::fs::create_dir(&inside)?;
    let measured = measure(&inside, files, size);
    // Also after an error: the files may have filled the disk.
    let removed = std::fs::remove_dir_all(&inside);
    let seconds = measured?.as_secs_f64();
    removed?;

    let files_per_s = files as f64 / seconds;
    let mb_per_s = files_per_s * size as f64 / 1e6;
    writeln!(
        std::io::stdout(),
        "{{\"files\":{files},\"size_bytes\":{size},\"group_files\":{GROUP_FILES},\"seconds\":{seconds:.3},\
         \"files_per_s\":{files_per_s:.1},\"mb_per_s\":{mb_per_s:.1}}}"
    )?;
    Ok(())
}

fn measure(inside: &Path, files: u64, size: u64) -> Result<Duration, Box<dyn Error>> {
    let temporary = make(inside, "temporary")?;
    let named = make(inside, "named")?;
    let mut bytes = noise(usize::try_from(size)?);
    // Earlier writes of other processes should not count.
    fs::syncfs(&named)?;
    let began = Instant::now();
    let mut next = 0;
    while next < files {
        let group = next..files.min(next + GROUP_FILES);
        for number in group.clone() {
            let stamp = number.to_le_bytes();
            let len = stamp.len().min(bytes.len());
            bytes[..len].copy_from_slice(&stamp[..len]);
            write(&temporary, &number.to_string(), &bytes)?;
        }
        fs::syncfs(&named)?;
        for number in group.clone() {
            let name = number.to_string();
            fs::renameat_with(&temporary, &name, &named, &name, RenameFlags::NOREPLACE)?;
        }
        fs::syncfs(&named)?;
        next = group.end;
    }
    Ok(began.elapsed())
}

fn make(inside: &Path, name: &str) -> Result<OwnedFd, Box<dyn Error>> {
    let path = inside.join(name);
    std::fs::create_dir(&path)?;
    Ok(fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn write(directory: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(fs::openat(directory, name, flags, Mode::from_raw_mode(0o666))?);
    file.write_all(bytes)?;
    Ok(())
}

/// Incompressible, unique bytes (xorshift64, Marsaglia 2003).
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}
