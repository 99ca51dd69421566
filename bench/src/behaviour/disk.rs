//! From disk to disk, with what the disk and the link can do measured in the same run.

use std::fs::File;
use std::path::Path;

use longhaul_doctor::parts::Part;
use longhaul_doctor::parts::disk::{DiskOptions, Flush, read, write};
use longhaul_testbed::wan::{Lab, PathConfig};
use rustix::fs::{Advice, fadvise};

use super::options::Options;
use super::report::{Bound, Figures, OURS, Session};
use super::scene::{Scene, Wish, bytes_below};
use crate::measure::make_files;
use crate::transfers::floor;
use crate::transfers::memory::Memory;
use crate::transfers::run::Failure;
use crate::transfers::trees;

pub(crate) const NAME: &str = "disk";
pub(crate) const WHAT: &str = "10 files (3 GB in all; 10 GB with `--scale 3.34`) from disk to disk at 20 ms, \
    no rate limit. Both ends share the disk of `--disk`, so \
     it is also measured reading and writing at once: the two together are what one disk gives a copy to \
     itself";
const FILES: usize = 10;
const FILE_BYTES: usize = 300_000_000;
const RTT_MS: f64 = 20.0;
const MTU: u32 = 9000;
const SHARE: f64 = 0.9;
const LIMITS: [&str; 3] = ["disk read", "disk write", "link"];

pub(crate) fn run(memory: &Memory, options: &Options, session: &mut Session) -> Result<(), String> {
    let lab = Lab::start(&[PathConfig::new(RTT_MS).mtu(MTU)])?;
    let folder = tempfile::tempdir_in(&options.disk)
        .map_err(|error| format!("{}: {error}", options.disk.display()))?;
    let scene = Scene::with_files(&lab, memory, folder.path())?;
    make_files(&scene.source, FILES, options.scaled(FILE_BYTES));
    let bytes = bytes_below(&scene.source)?;
    for _ in 0..options.rounds {
        forget(&scene.source)?;
        let moved = scene.pull(&Wish::default()).map(|moved| Figures::from_command(&moved, bytes));
        session.record(NAME, "", OURS, moved);
        limits(&lab, folder.path(), bytes, session);
    }
    let rates = LIMITS.map(|name| session.get(NAME, "", name)?.mb_per_s);
    let least =
        rates.into_iter().collect::<Option<Vec<f64>>>().and_then(|all| all.into_iter().reduce(f64::min));
    let ours = session.get(NAME, "", OURS).and_then(|figures| figures.mb_per_s);
    for (what, limit) in [
        ("MB/s over the least of disk read, disk write and link", least),
        (
            "MB/s over the disk reading and writing at once",
            session.get(NAME, "", BOTH).and_then(|f| f.mb_per_s),
        ),
    ] {
        let bound = limit.map_or(Bound::Missing, |_| Bound::AtLeast(SHARE));
        session.bar(NAME, what, ours.zip(limit).map(|(ours, limit)| ours / limit), bound);
    }
    Ok(())
}

const BOTH: &str = "disk read and write at once";

/// The disk alone and the link alone, with as many bytes as were moved.
fn limits(lab: &Lab, folder: &Path, bytes: u64, session: &mut Session) {
    let options = DiskOptions { size_bytes: bytes, flush: Flush::End, cold: true, ..DiskOptions::default() };
    let (one, other) = (folder.join("one"), folder.join("other"));
    let told = |part: std::io::Result<Part>| {
        let part = part.map_err(|error| Failure::Failed(error.to_string()))?;
        let rate = Figures::rate(part.gb_per_s * 1e3);
        Ok(Figures { cpu_s_per_gb: Some(part.cpu_s_per_gb), ..rate })
    };
    session.record(NAME, "", LIMITS[1], told(write(&one, &options)));
    session.record(NAME, "", LIMITS[0], told(read(&one, &options)));
    let both = std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(&one, &options));
        let written = write(&other, &options);
        let read = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let slower = |read: Part, written: Part| read.gb_per_s.min(written.gb_per_s) * 1e3;
        read.and_then(|read| Ok(Figures::rate(slower(read, written?))))
    });
    session.record(NAME, "", BOTH, both.map_err(|error| Failure::Failed(error.to_string())));
    let link = floor::tcp(lab).map(|tcp| Figures::rate(tcp.part.gb_per_s * 1e3));
    session.record(NAME, "", LIMITS[2], link.map_err(Failure::Failed));
    for path in [one, other] {
        let _ = std::fs::remove_file(path);
    }
}

/// Files as they are when nobody has read them for long: on the disk, and not in the kernel's memory.
fn forget(folder: &Path) -> Result<(), String> {
    for name in trees::names(folder)? {
        let drop = || {
            let file = File::open(folder.join(&name))?;
            file.sync_all()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
            Ok::<_, std::io::Error>(())
        };
        drop().map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}
