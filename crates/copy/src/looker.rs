//! What lies at a target before anything lands there. Looks, and never changes anything, so that a dry run uses it too.

use std::path::Path;

use longhaul_model::units::printable;
use longhaul_model::{Algorithm, Digest, Fault, FaultCode, Pfn};
use longhaul_storage::{FlushPolicy, NoLinks, Posix, PosixOptions, digest_file};
use rustix::fs::{self, FileType};
use rustix::io::Errno;

use crate::plan::{Existing, Meta};
use crate::protocol::{Entry, Kind, Relative};
use crate::site::{EXPORT, storage_name};
use crate::walk::MODE_BITS;

/// One read of a file whose digest is wanted.
pub(crate) const READ_BYTES: usize = 1 << 20;

pub(crate) struct Looker {
    beneath: NoLinks,
    storage: Posix,
}

impl Looker {
    /// None if there is no such directory: then nothing lies in it.
    pub(crate) fn open(root: &Path) -> Result<Option<Looker>, Fault> {
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
        Ok(Some(Looker { beneath, storage: Posix::open(options)? }))
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

    pub(crate) fn existing(&self, path: &str) -> Result<Existing, Fault> {
        let Some(stat) = self.stat(path)? else { return Ok(Existing::Missing) };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let entry = entry(Relative::parse(path)?, &stat);
                Existing::File(Meta { size: entry.size, mtime_ns: entry.mtime_ns, digest: None })
            }
            FileType::Directory => Existing::Directory,
            _ => Existing::Other,
        })
    }

    /// The same as a server tells it.
    pub(crate) fn describe(&self, path: &Relative) -> Result<Option<Entry>, Fault> {
        Ok(self.stat(path.as_str())?.map(|stat| entry(path.clone(), &stat)))
    }

    /// Reads a file.
    pub(crate) fn digest(
        &self,
        path: &str,
        algorithm: Algorithm,
        buffer: &mut [u8],
    ) -> Result<Digest, Fault> {
        let at = Pfn::new(storage_name(EXPORT), path)
            .map_err(|error| Fault::new(FaultCode::BadName, error.to_string()))?;
        let (digests, _) = digest_file(&self.storage, &at, [algorithm], buffer)?;
        digests.get(algorithm).ok_or_else(|| Fault::new(FaultCode::Internal, "a digest was not computed"))
    }
}

fn entry(path: Relative, stat: &fs::Stat) -> Entry {
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
