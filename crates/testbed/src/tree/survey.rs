//! What a tree holds: what must arrive elsewhere, and what is left out and why.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Where a storage keeps what is not yet a file, unless told otherwise.
const WORK: &str = ".longhaul";

/// As the kernel's.
const LINKS_MAX: usize = 40;

/// Bytes of a file, by size and hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Content {
    pub size: u64,
    pub hash: [u8; 32],
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes {:02x}{:02x}{:02x}", self.size, self.hash[0], self.hash[1], self.hash[2])
    }
}

/// Paths are bytes relative to the root.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub files: BTreeMap<Vec<u8>, Content>,
    /// Reasons as the API spells them.
    pub left_out: BTreeMap<Vec<u8>, &'static str>,
}

impl Survey {
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|content| content.size).sum()
    }

    /// How many were left out, by reason.
    pub fn reasons(&self) -> BTreeMap<String, u64> {
        let mut reasons = BTreeMap::new();
        for reason in self.left_out.values() {
            *reasons.entry((*reason).to_owned()).or_default() += 1;
        }
        reasons
    }
}

/// Reads a file to its end.
pub fn content_of(path: &Path) -> io::Result<Content> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    let mut size = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Content { size, hash: *hasher.finalize().as_bytes() }),
            read => {
                hasher.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
}

/// A source tree by DESIGN section 8: links to files inside the tree are files; links leading out, devices,
/// sockets, named pipes and names that are not UTF-8 are left out; so are empty directories.
pub fn survey(root: &Path) -> Survey {
    let root = fs::canonicalize(root).expect("the tree is there");
    let mut survey = Survey::default();
    let mut todo = vec![PathBuf::new()];
    while let Some(directory) = todo.pop() {
        let entries = fs::read_dir(root.join(&directory)).expect("a directory that can be read");
        let names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        if names.is_empty() && !directory.as_os_str().is_empty() {
            survey.left_out.insert(bytes(&directory), "empty-directory");
        }
        for name in names {
            let path = directory.join(&name);
            if path == Path::new(WORK) {
                continue;
            }
            match entry_kind(&root, &path) {
                EntryKind::Directory => todo.push(path),
                EntryKind::File => {
                    let content = content_of(&root.join(&path)).expect("a file that can be read");
                    survey.files.insert(bytes(&path), content);
                }
                EntryKind::LeftOut(reason) => {
                    survey.left_out.insert(bytes(&path), reason);
                }
            }
        }
    }
    survey
}

enum EntryKind {
    Directory,
    File,
    LeftOut(&'static str),
}

fn entry_kind(root: &Path, path: &Path) -> EntryKind {
    let full = root.join(path);
    if path.file_name().is_some_and(|name| name.to_str().is_none()) {
        return EntryKind::LeftOut("not-utf8");
    }
    let kind = fs::symlink_metadata(&full).expect("it was listed").file_type();
    if kind.is_dir() {
        return EntryKind::Directory;
    }
    if kind.is_symlink() {
        return match resolve(root, path) {
            End::Out => EntryKind::LeftOut("link-leads-out"),
            End::Nothing => EntryKind::LeftOut("broken-link"),
            End::At(real) => match fs::symlink_metadata(root.join(real)).expect("it resolves").file_type() {
                kind if kind.is_dir() => EntryKind::LeftOut("link-leads-out"),
                kind => special(kind),
            },
        };
    }
    special(kind)
}

/// Where a link ends.
enum End {
    /// The way leaves the tree, if only to come back: what lies outside is nobody's business here.
    Out,
    Nothing,
    /// Relative to the root, without links.
    At(PathBuf),
}

/// Follows links step by step, since the kernel would follow them out of the tree and back in.
fn resolve(root: &Path, path: &Path) -> End {
    let mut at = PathBuf::new();
    let mut todo: Vec<OsString> = path.iter().rev().map(OsString::from).collect();
    let mut links = 0;
    while let Some(name) = todo.pop() {
        if name == ".." {
            if !at.pop() {
                return End::Out;
            }
            continue;
        }
        let next = at.join(&name);
        let Ok(kind) = fs::symlink_metadata(root.join(&next)) else { return End::Nothing };
        if !kind.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return End::Nothing;
        }
        let target = fs::read_link(root.join(&next)).expect("it is a link");
        let target = match (target.is_absolute(), target.strip_prefix(root)) {
            (true, Ok(inside)) => {
                at = PathBuf::new();
                inside.to_owned()
            }
            (true, Err(_)) => return End::Out,
            (false, _) => target,
        };
        todo.extend(target.iter().rev().filter(|part| *part != ".").map(OsString::from));
    }
    End::At(at)
}

fn special(kind: fs::FileType) -> EntryKind {
    if kind.is_file() {
        EntryKind::File
    } else if kind.is_fifo() {
        EntryKind::LeftOut("fifo")
    } else if kind.is_socket() {
        EntryKind::LeftOut("socket")
    } else {
        EntryKind::LeftOut("device")
    }
}

/// What lies under final names at a target: everything but the work directory `.longhaul`.
///
/// # Panics
/// If there is anything but files and directories: we never make such a thing.
pub fn stored(root: &Path) -> BTreeMap<Vec<u8>, Content> {
    names(root)
        .into_iter()
        .filter_map(|path| Some((bytes(&path), content_of(&root.join(&path)).ok()?)))
        .collect()
}

/// Final names only. What vanishes while it is listed is not there.
pub(crate) fn names(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(directory) = todo.pop() {
        let Ok(entries) = fs::read_dir(root.join(&directory)) else { continue };
        for entry in entries.flatten() {
            let path = directory.join(entry.file_name());
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && path != Path::new(WORK) {
                todo.push(path);
            } else if kind.is_file() {
                found.push(path);
            } else {
                assert!(kind.is_dir(), "{} is neither file nor directory", path.display());
            }
        }
    }
    found
}

pub(crate) fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

pub(crate) fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()))
}
