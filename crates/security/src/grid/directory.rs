//! A watched directory, as grids install authorities: changed files are reread, and a file's former content
//! stays in force while its new one cannot be parsed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};

/// Entries of one directory: grids have a few hundred authorities with up to ten files each.
const ENTRIES_MAX: usize = 20_000;

/// What the files of a directory were read as, by name.
#[derive(Debug)]
pub(super) struct Directory<T> {
    files: BTreeMap<String, CachedFile<T>>,
}

/// Identifies a version of a file by what changes when it is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Debug)]
struct CachedFile<T> {
    stamp: FileStamp,
    /// None if it never could be read.
    content: Option<Arc<T>>,
    problem: Option<String>,
}

/// How one file is read: by name and content, a text for people if it cannot be.
type ReadFile<'a, T> = &'a dyn Fn(&str, &[u8]) -> Result<T, String>;

impl<T> Directory<T> {
    pub(super) fn new() -> Self {
        Directory { files: BTreeMap::new() }
    }

    /// Looks at `directory` again. `wanted` gives the largest size of a file by its name, None for files of
    /// no interest. Returns whether anything is different now.
    pub(super) fn refresh(
        &mut self,
        directory: &Path,
        wanted: &dyn Fn(&str) -> Option<u64>,
        read: ReadFile<'_, T>,
    ) -> Result<bool, Fault> {
        let found = list(directory, wanted)?;
        let before = self.files.len();
        let names: BTreeSet<&str> = found.iter().map(|(name, _, _)| name.as_str()).collect();
        self.files.retain(|name, _| names.contains(name.as_str()));
        let mut changed = self.files.len() != before;
        for (name, stamp, bytes_max) in found {
            let old = self.files.get(&name);
            if old.is_some_and(|old| old.stamp == stamp) {
                continue;
            }
            changed = true;
            let previous = old.and_then(|old| old.content.clone());
            let held = match read_bounded(&directory.join(&name), bytes_max)
                .and_then(|bytes| read(&name, &bytes))
            {
                Ok(content) => CachedFile { stamp, content: Some(Arc::new(content)), problem: None },
                Err(why) => CachedFile { stamp, content: previous, problem: Some(format!("{name}: {why}")) },
            };
            self.files.insert(name, held);
        }
        Ok(changed)
    }

    pub(super) fn contents(&self) -> impl Iterator<Item = (&str, &Arc<T>)> {
        self.files.iter().filter_map(|(name, held)| Some((name.as_str(), held.content.as_ref()?)))
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = &str> {
        self.files.values().filter_map(|held| held.problem.as_deref())
    }

    /// The names of the files that cannot be read now.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter(|(_, held)| held.content.is_none()).map(|(name, _)| name.as_str())
    }
}

/// Names, stamps and largest sizes of the files of interest.
fn list(
    directory: &Path,
    wanted: &dyn Fn(&str) -> Option<u64>,
) -> Result<Vec<(String, FileStamp, u64)>, Fault> {
    let failed = |error: std::io::Error| {
        Fault::new(
            FaultCode::StateDirectory,
            format!("cannot read the directory {}: {error}", directory.display()),
        )
        .with_source(error)
    };
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        if names.len() == ENTRIES_MAX {
            let detail = format!("{} has more than {ENTRIES_MAX} entries", directory.display());
            return Err(Fault::new(FaultCode::StateDirectory, detail));
        }
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.insert(name);
        }
    }
    let mut found = Vec::new();
    for name in names {
        let Some(bytes_max) = wanted(&name) else { continue };
        // A link to nothing is as good as no file.
        let Ok(metadata) = fs::metadata(directory.join(&name)) else { continue };
        let stamp = FileStamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        };
        if metadata.is_file() {
            found.push((name, stamp, bytes_max));
        }
    }
    Ok(found)
}

fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("has more than {bytes_max} bytes"));
    }
    Ok(bytes)
}
