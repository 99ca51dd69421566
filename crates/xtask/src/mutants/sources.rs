//! A copy of the working tree in which mutants are applied. Cargo builds again what has a new time of change,
//! so that only files that differ are written.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::definitions::Mutant;

/// A copy of the files under version control, as they are in the working tree.
pub(crate) struct SourceCopy {
    folder: PathBuf,
}

impl SourceCopy {
    /// Makes `folder` a copy of these files below `root`, whatever is in it.
    pub(crate) fn update(root: &Path, files: &[String], folder: PathBuf) -> Result<SourceCopy, String> {
        let failed = |error: io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        let wanted: BTreeSet<PathBuf> = files.iter().map(|name| folder.join(name)).collect();
        let mut present = Vec::new();
        list_files(&folder, &mut present).map_err(failed)?;
        for path in present.iter().filter(|path| !wanted.contains(*path)) {
            fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        for name in files {
            copy_if_different(&root.join(name), &folder.join(name))
                .map_err(|error| format!("cannot copy {name} to {}: {error}", folder.display()))?;
        }
        Ok(SourceCopy { folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Does `action` while the copy is that mutant, and restores its files.
    pub(crate) fn with_mutant<T>(
        &self,
        mutant: &Mutant,
        action: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let failed = |file: &str, error: io::Error| format!("{}: {error}", self.folder.join(file).display());
        let mutated = mutant.mutate(&self.folder)?;
        let mut originals = Vec::new();
        for (file, text) in &mutated {
            let path = self.folder.join(file);
            let original = fs::read_to_string(&path).map_err(|error| failed(file, error))?;
            fs::write(&path, text).map_err(|error| failed(file, error))?;
            originals.push((*file, original));
        }
        let result = action();
        for (file, original) in originals {
            fs::write(self.folder.join(file), original).map_err(|error| failed(file, error))?;
        }
        result
    }
}

fn list_files(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => list_files(&entry.path(), found)?,
            false => found.push(entry.path()),
        }
    }
    Ok(())
}

fn copy_if_different(from: &Path, to: &Path) -> io::Result<()> {
    let is_same = fs::read(to).is_ok_and(|present| fs::read(from).is_ok_and(|wanted| present == wanted));
    if is_same {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).map(drop)
}
