//! The work directory: temporary files on the storage's own file system, and the properties detected there.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use longhaul_model::{Fault, FaultCode};
use rustix::fs::{self, AtFlags, Dir, Mode, OFlags};
use rustix::io::{self, Errno};

use super::FlushPolicy;
use super::fault::{Role, fault};
use super::fencing;
use super::rooted_tree::RootedTree;
use crate::{Identity, TempName, WriterId};

/// In the storage's root unless another directory is configured.
pub(super) const WORK_DIRECTORY: &str = ".longhaul";
pub(super) const TEMPS: &str = "temps";
/// Private to this program.
const PRIVATE: u32 = 0o700;
/// File systems whose `syncfs` writes all data, names and the disk's own cache, and reports errors: ext2 to
/// ext4, XFS, Btrfs, F2FS, and tmpfs, where there is nothing to lose. On others (FUSE does nothing at all)
/// every file is flushed by itself.
const SYNCFS_FILE_SYSTEMS: [fs::FsWord; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// Before this version `syncfs` hid write-back errors.
const SYNCFS_ERRORS_SINCE: (u32, u32) = (5, 8);

pub(super) struct WorkDirectory {
    temps: OwnedFd,
    /// Open since before the first write, because `syncfs` reports errors that came after the descriptor was
    /// opened.
    pub(super) flush_handle: OwnedFd,
    pub(super) flushed_as_a_whole: bool,
    pub(super) case_insensitive: bool,
}

/// The access mode of a temporary file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenMode {
    Read,
    Write,
    /// Append-only file systems accept no other mode for writing.
    Append,
}

impl OpenMode {
    fn flags(self) -> OFlags {
        match self {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::Append => OFlags::WRONLY | OFlags::APPEND,
        }
    }
}

impl WorkDirectory {
    /// Creates the directory if it is missing, and checks that files can be renamed from it into the root.
    /// The temporary files of a writer that shares the root have a directory of their own, which is not
    /// created here: where it is missing, another writer has fenced this one.
    pub(super) fn prepare(
        rooted_tree: &RootedTree,
        elsewhere: Option<&Path>,
        writer: Option<WriterId>,
        policy: FlushPolicy,
    ) -> Result<WorkDirectory, Fault> {
        let shown = elsewhere.map_or_else(|| PathBuf::from(WORK_DIRECTORY), Path::to_path_buf);
        let failed =
            |errno| fault(Role::Write, errno, format_args!("the work directory {}", shown.display()));
        let directory = match elsewhere {
            Some(path) => make_elsewhere(path),
            None => make_inside(rooted_tree),
        }
        .map_err(failed)?;
        let here = fs::fstat(&directory).map_err(failed)?.st_dev;
        let root = fs::fstat(rooted_tree.root()).map_err(failed)?.st_dev;
        if here != root {
            let detail = format!(
                "the work directory {} lies on another file system than the storage's root, and files cannot \
                 be renamed from one to the other: choose one on the same",
                shown.display()
            );
            return Err(Fault::new(FaultCode::StateDirectory, detail));
        }
        let temps = match writer {
            None => make_and_open(&directory, TEMPS).map_err(failed)?,
            Some(writer) => fencing::open_temps(&directory, writer)?,
        };
        if policy != FlushPolicy::None {
            // The journal refers to these names.
            let parent = match elsewhere {
                Some(_) => fs::openat(&directory, "..", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()),
                None => rooted_tree.open(b"", OFlags::RDONLY | OFlags::DIRECTORY),
            };
            fs::fsync(&directory).and_then(|()| fs::fsync(parent?)).map_err(failed)?;
        }
        let kind = fs::fstatfs(&directory).map_err(failed)?.f_type;
        Ok(WorkDirectory {
            case_insensitive: names_lose_case(&temps).map_err(failed)?,
            flushed_as_a_whole: SYNCFS_FILE_SYSTEMS.contains(&kind) && kernel_tells_errors(),
            temps,
            flush_handle: directory,
        })
    }

    pub(super) fn temps_directory(&self) -> &OwnedFd {
        &self.temps
    }

    /// Creates a new file. An older one of that name is unlinked and not truncated: a late writer of an
    /// earlier attempt, or a final name that a crash left linked to it, keeps its own bytes.
    pub(super) fn create(&self, temp: &TempName, mode: OpenMode) -> io::Result<OwnedFd> {
        let flags = mode.flags() | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let bits = Mode::from_raw_mode(0o666);
        match fs::openat(&self.temps, temp.as_str(), flags, bits) {
            Err(Errno::EXIST) => {
                self.remove(temp)?;
                fs::openat(&self.temps, temp.as_str(), flags, bits)
            }
            done => done,
        }
    }

    pub(super) fn reopen(&self, temp: &TempName, mode: OpenMode) -> io::Result<Option<OwnedFd>> {
        match self.open(temp, mode.flags()) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn open(&self, temp: &TempName, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(&self.temps, temp.as_str(), flags, Mode::empty())
    }

    pub(super) fn stat(&self, temp: &TempName) -> io::Result<Option<Identity>> {
        match fs::statat(&self.temps, temp.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Identity::from(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn remove(&self, temp: &TempName) -> io::Result<()> {
        match fs::unlinkat(&self.temps, temp.as_str(), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => done,
        }
    }

    pub(super) fn list(&self) -> io::Result<Vec<TempName>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.temps)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            names.extend(TempName::parse(&name));
        }
        names.sort_unstable();
        Ok(names)
    }
}

pub(super) fn make_inside(rooted_tree: &RootedTree) -> io::Result<OwnedFd> {
    make_and_open(rooted_tree.root(), WORK_DIRECTORY)
}

fn make_elsewhere(path: &Path) -> io::Result<OwnedFd> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(path);
    made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn make_and_open(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            match fs::mkdirat(directory, name, Mode::from_raw_mode(PRIVATE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            fs::openat(directory, name, flags, Mode::empty())
        }
        done => done,
    }
}

/// Detects case insensitivity: creates a file and looks it up in the other case.
fn names_lose_case(directory: &OwnedFd) -> io::Result<bool> {
    let name = format!("case-probe-{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(directory, name.as_str(), flags, Mode::from_raw_mode(0o600))?;
    let found = fs::statat(directory, name.to_uppercase(), AtFlags::SYMLINK_NOFOLLOW);
    let _ = fs::unlinkat(directory, name.as_str(), AtFlags::empty());
    match found {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The name in `directory` that collides with `name` on a case-insensitive (or Unicode-normalizing) storage:
/// none if `name` itself exists with this spelling.
pub(super) fn case_variant_of(directory: &OwnedFd, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut twin = None;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let found = entry.file_name().to_bytes();
        if found == name {
            return Ok(None);
        }
        if same_but_for_case(found, name) {
            twin = Some(found.to_vec());
        }
    }
    Ok(Some(twin.unwrap_or_default()))
}

fn same_but_for_case(one: &[u8], other: &[u8]) -> bool {
    let fold = |name: &[u8]| OsStr::from_bytes(name).to_string_lossy().to_lowercase();
    fold(one) == fold(other)
}

fn kernel_tells_errors() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    kernel_version(&release).is_some_and(|version| version >= SYNCFS_ERRORS_SINCE)
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions() {
        assert_eq!(kernel_version("6.18.44-x"), Some((6, 18)));
        assert_eq!(kernel_version("5.10\n"), Some((5, 10)));
        assert_eq!(kernel_version("garbage"), None);
    }

    #[test]
    fn case_variants_differ_only_in_case() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("Straße"), "").unwrap();
        let opened = fs::open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert_eq!(case_variant_of(&opened, "Straße".as_bytes()).unwrap(), None);
        assert_eq!(case_variant_of(&opened, "STRAßE".as_bytes()).unwrap(), Some("Straße".into()));
        assert_eq!(case_variant_of(&opened, b"other").unwrap(), Some(Vec::new()));
    }
}
