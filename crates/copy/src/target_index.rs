//! Index of what exists at a target before anything is written. Read-only, so that a dry run uses it too.

use std::path::Path;
use std::time::{Duration, Instant};

use longhaul_model::units::printable;
use longhaul_model::{Algorithm, Digest, Fault, FaultCode, Pfn};
use longhaul_storage::{FlushPolicy, NoLinks, Posix, PosixOptions, digest_file};
use parking_lot::Mutex;
use rustix::fs::{self, Dir, FileType, OFlags};
use rustix::io::Errno;

use crate::protocol::{Entry, Kind, RelativePath};
use crate::rules::{FileMeta, TargetEntry};
use crate::site::{EXPORT, storage_name};
use crate::walk::beneath::split;
use crate::walk::{MODE_BITS, WORK_DIRECTORY};

/// Bytes per read of a file whose digest is computed.
pub(crate) const DIGEST_READ_BYTES: usize = 1 << 20;

/// How long a directory found empty is assumed to stay empty: most copies go into empty directories, and a
/// `stat` per file costs as much as opening it. A file that appears meanwhile is not replaced: the copy of
/// that name fails.
const EMPTY_DIR_CACHE_TTL: Duration = Duration::from_secs(10);

pub(crate) struct TargetIndex {
    beneath: NoLinks,
    storage: Posix,
    last_dir: Mutex<Option<ScannedDir>>,
}

/// The most recently scanned directory.
struct ScannedDir {
    path: Vec<u8>,
    scanned_at: Instant,
    is_empty: bool,
}

impl TargetIndex {
    /// Opens the index; none if there is no such directory and so nothing in it.
    pub(crate) fn open(root: &Path) -> Result<Option<TargetIndex>, Fault> {
        let beneath = match NoLinks::open_root(root) {
            Ok(beneath) => beneath,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(&root.to_string_lossy(), errno)),
        };
        let options = PosixOptions {
            name: storage_name(EXPORT),
            root: root.to_owned(),
            work: None,
            writable: false,
            flush: FlushPolicy::None,
        };
        Ok(Some(TargetIndex { beneath, storage: Posix::open(options)?, last_dir: Mutex::default() }))
    }

    fn stat(&self, path: &str) -> Result<Option<fs::Stat>, Fault> {
        match self.beneath.stat(path.as_bytes()) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(Errno::LOOP) => {
                let detail = format!("a directory on the way to {} is a link", printable(path));
                Err(Fault::new(FaultCode::TargetWrite, detail))
            }
            Err(errno) => Err(failed(path, errno)),
        }
    }

    pub(crate) fn existing(&self, path: &str) -> Result<TargetEntry, Fault> {
        self.existing_at(path, Instant::now())
    }

    fn existing_at(&self, path: &str, now: Instant) -> Result<TargetEntry, Fault> {
        if self.is_empty_dir(split(path.as_bytes()).0, now) {
            return Ok(TargetEntry::Missing);
        }
        let Some(stat) = self.stat(path)? else { return Ok(TargetEntry::Missing) };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let entry = entry(RelativePath::parse(path)?, &stat);
                TargetEntry::File(FileMeta { size: entry.size, mtime_ns: entry.mtime_ns, digest: None })
            }
            FileType::Directory => TargetEntry::Directory,
            _ => TargetEntry::Other,
        })
    }

    /// Whether the directory is missing, or empty but for our own work directory.
    fn is_empty_dir(&self, path: &[u8], now: Instant) -> bool {
        let mut seen = self.last_dir.lock();
        if let Some(seen) = &*seen
            && seen.path == path
            && now.saturating_duration_since(seen.scanned_at) < EMPTY_DIR_CACHE_TTL
        {
            return seen.is_empty;
        }
        let is_vacant = match self.beneath.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => Dir::read_from(&directory).is_ok_and(|entries| holds_only_ours(entries, path)),
            Err(errno) => errno == Errno::NOENT,
        };
        *seen = Some(ScannedDir { path: path.to_vec(), scanned_at: now, is_empty: is_vacant });
        is_vacant
    }

    /// Describes a path as a server's listing does.
    pub(crate) fn describe(&self, path: &RelativePath) -> Result<Option<Entry>, Fault> {
        Ok(self.stat(path.as_str())?.map(|stat| entry(path.clone(), &stat)))
    }

    /// Computes a file's digest.
    pub(crate) fn digest(
        &self,
        path: &str,
        algorithm: Algorithm,
        buffer: &mut [u8],
    ) -> Result<Digest, Fault> {
        let at = Pfn::new(storage_name(EXPORT), path)?;
        let (digests, _) = digest_file(&self.storage, &at, [algorithm], buffer)?;
        digests.get(algorithm).ok_or_else(|| Fault::new(FaultCode::Internal, "a digest was not computed"))
    }
}

fn holds_only_ours(mut entries: Dir, path: &[u8]) -> bool {
    entries.all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name().to_bytes();
            matches!(name, b"." | b"..") || path.is_empty() && name == WORK_DIRECTORY.as_bytes()
        })
    })
}

fn entry(path: RelativePath, stat: &fs::Stat) -> Entry {
    let mtime_ns = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    let (kind, note) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => (Kind::File, ""),
        FileType::Directory => (Kind::Directory, ""),
        FileType::Symlink => (Kind::LeftOut, "a link"),
        _ => (Kind::LeftOut, "a device, pipe or socket"),
    };
    Entry {
        path,
        kind,
        size: stat.st_size.max(0) as u64,
        mtime_ns: mtime_ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64,
        mode: stat.st_mode & MODE_BITS,
        note: note.to_owned(),
    }
}

fn failed(path: &str, errno: Errno) -> Fault {
    let detail = format!("{}: {}", printable(path), std::io::Error::from(errno));
    Fault::new(FaultCode::TargetWrite, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_is_scanned_once_in_a_while() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join(WORK_DIRECTORY)).unwrap();
        std::fs::create_dir(place.path().join("sub")).unwrap();
        let looker = TargetIndex::open(&place.path().join("sub")).unwrap().unwrap();
        let root = TargetIndex::open(place.path()).unwrap().unwrap();
        let begun = Instant::now();
        assert_eq!(looker.existing_at("a", begun).unwrap(), TargetEntry::Missing);
        assert_eq!(looker.existing_at("none/a", begun).unwrap(), TargetEntry::Missing);
        assert_eq!(root.existing_at("sub", begun).unwrap(), TargetEntry::Directory, "the root is not empty");
        std::fs::write(place.path().join("sub/a"), "x").unwrap();
        let is_file = |existing| matches!(existing, TargetEntry::File(_));
        assert!(is_file(looker.existing_at("a", begun).unwrap()), "another directory was scanned since");
        std::fs::remove_file(place.path().join("sub/a")).unwrap();
        assert_eq!(looker.existing_at("a", begun + EMPTY_DIR_CACHE_TTL).unwrap(), TargetEntry::Missing);
        std::fs::write(place.path().join("sub/a"), "x").unwrap();
        let soon = begun + EMPTY_DIR_CACHE_TTL + EMPTY_DIR_CACHE_TTL / 2;
        assert_eq!(looker.existing_at("a", soon).unwrap(), TargetEntry::Missing, "it was empty a moment ago");
        assert!(is_file(looker.existing_at("a", soon + EMPTY_DIR_CACHE_TTL).unwrap()));
    }

    #[test]
    fn our_work_directory_does_not_count() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join(WORK_DIRECTORY)).unwrap();
        let root = TargetIndex::open(place.path()).unwrap().unwrap();
        assert!(root.is_empty_dir(b"", Instant::now()));
    }
}
