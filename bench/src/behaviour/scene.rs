//! Two sides, files, and one copy of ours between them: what all cases of behaviour have in common.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_testbed::wan::{Lab, Side};

use crate::peers::longhaul::Data;
use crate::transfers::launch::{Stage, Words};
use crate::transfers::memory::Memory;
use crate::transfers::run::{Clocked, Failure, clocked};
use crate::transfers::trees;

/// No run of these cases needs as long, unless something hangs.
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) struct Scene<'a> {
    pub(crate) stage: Stage<'a>,
    pub(crate) far: String,
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    folder: PathBuf,
}

/// What is asked of one `longhaul copy`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    /// Flags of `copy`, separated by blanks.
    pub(crate) flags: String,
    /// Directories of the source, wanted one after another; all of the source if there are none.
    pub(crate) directories: Vec<String>,
}

impl Wish {
    pub(crate) fn flags(flags: impl Into<String>) -> Wish {
        Wish { flags: flags.into(), ..Wish::default() }
    }
}

impl<'a> Scene<'a> {
    /// Source and target lie in memory.
    pub(crate) fn new(lab: &'a Lab, memory: &Memory) -> Result<Scene<'a>, String> {
        Scene::with_files(lab, memory, memory.path())
    }

    /// Source and target lie below `files`; what programs need beside lies in memory.
    pub(crate) fn with_files(lab: &'a Lab, memory: &Memory, files: &Path) -> Result<Scene<'a>, String> {
        let stage = Stage::new(lab, memory.path().join("stage"))?;
        let far = lab.address(Side::Right, 0).to_string();
        let (source, target) = (files.join("source"), files.join("target"));
        let _ = fs::remove_dir_all(&source);
        Ok(Scene { stage, far, source, target, folder: memory.path().join("run") })
    }

    /// Copies from far to near, and compares what arrived when the clock has stopped.
    pub(crate) fn pull(&self, wish: &Wish) -> Result<Clocked, Failure> {
        self.prepare()?;
        let server = Data::Tls.server(&self.source, self.url(), &self.far);
        let moved = clocked(&self.stage, &server, || self.client(wish), LIMIT).and_then(|moved| {
            trees::compare(&self.source, &self.target).map_err(|why| format!("contents: {why}"))?;
            Ok(moved)
        });
        self.clear();
        moved
    }

    /// Empty folders for a run.
    pub(crate) fn prepare(&self) -> Result<(), String> {
        self.clear();
        for folder in [&self.target, &self.folder] {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        Ok(())
    }

    pub(crate) fn clear(&self) {
        for folder in [&self.target, &self.folder] {
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// The file with the server's URL.
    pub(crate) fn url(&self) -> PathBuf {
        self.folder.join("url")
    }

    pub(crate) fn client(&self, wish: &Wish) -> Result<Words, String> {
        let words = Data::Tls.words("copy").arg("--recursive").args(&wish.flags);
        let from = format!("@{}/", self.url().display());
        let to = self.target.to_string_lossy();
        if wish.directories.is_empty() {
            return Ok(words.arg(from).arg(to));
        }
        let pairs = self.folder.join("pairs");
        let line = |directory: &String| format!("{from}{directory}\t{to}/{directory}\n");
        let text: String = wish.directories.iter().map(line).collect();
        fs::write(&pairs, text).map_err(|error| format!("{}: {error}", pairs.display()))?;
        Ok(words.arg("--from-file").path(&pairs))
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        self.clear();
        let _ = fs::remove_dir_all(&self.source);
    }
}

/// Bytes of all files below a folder.
pub(crate) fn bytes_below(folder: &Path) -> Result<u64, String> {
    let size = |name: String| fs::metadata(folder.join(&name)).map(|data| data.len());
    let sizes = trees::names(folder)?.into_iter().map(size).collect::<Result<Vec<u64>, _>>();
    sizes.map(|sizes| sizes.iter().sum()).map_err(|error| format!("{}: {error}", folder.display()))
}
