//! Digest cache of a scan, so that a scan that was killed reads nothing twice.
//!
//! One file per scan, removed when it ends: records (`record_log`) of path, identity and digests, appended as
//! files are done. Not flushed: a power cut costs some reading. In memory only 16 bytes per file of an
//! earlier run.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use longhaul_model::{Algorithm, DigestSet, Pfn, TaskId};
use longhaul_storage::Identity;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::record_log::RecordLog;

pub(crate) struct ScanCache {
    log: Mutex<RecordLog>,
    path: PathBuf,
    /// (hash of path and identity, offset of the line), sorted.
    index: Vec<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
struct CacheRecord {
    path: String,
    identity: String,
    digests: DigestSet,
}

impl ScanCache {
    pub(crate) fn open(directory: &Path, task: TaskId) -> io::Result<ScanCache> {
        let path = directory.join(task.to_string());
        let mut index = Vec::new();
        let opened = RecordLog::open(&path, |offset, payload| {
            // A record of another version is ignored.
            if let Ok(line) = serde_json::from_slice::<CacheRecord>(payload) {
                index.push((key(&line.path, &line.identity), offset));
            }
            Ok(())
        })?;
        index.sort_unstable();
        Ok(ScanCache { log: Mutex::new(opened.log), path, index })
    }

    /// Digests of exactly this version of the file by all of these algorithms, if an earlier run made them.
    pub(crate) fn find(&self, at: &Pfn, identity: &Identity, algorithms: &[Algorithm]) -> Option<DigestSet> {
        let identity = identity.to_string();
        let key = key(at.path(), &identity);
        let first = self.index.partition_point(|&(hash, _)| hash < key);
        for &(_, offset) in self.index[first..].iter().take_while(|&&(hash, _)| hash == key) {
            let payload = self.log.lock().read_at(offset).ok()??;
            let line: CacheRecord = serde_json::from_slice(&payload).ok()?;
            let complete = algorithms.iter().all(|&algorithm| line.digests.get(algorithm).is_some());
            if line.path == at.path() && line.identity == identity && complete {
                return Some(
                    line.digests
                        .iter()
                        .filter(|digest| algorithms.contains(&digest.algorithm()))
                        .copied()
                        .collect(),
                );
            }
        }
        None
    }

    pub(crate) fn add(&self, at: &Pfn, identity: &Identity, digests: &DigestSet) -> io::Result<()> {
        let line =
            CacheRecord { path: at.path().into(), identity: identity.to_string(), digests: digests.clone() };
        self.log.lock().append(&[serde_json::to_vec(&line)?], false)
    }

    pub(crate) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the cache of a scan");
        }
    }
}

/// Removes caches of scans that are not wanted any more.
pub(crate) fn remove_stale_caches(directory: &Path, wanted: &[TaskId]) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let wanted =
            entry.file_name().to_str().is_some_and(|name| wanted.iter().any(|task| task.to_string() == name));
        if !wanted {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn key(path: &str, identity: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (path, identity).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_same_version_only() {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| Pfn::new("s".parse().unwrap(), path).unwrap();
        let identity = |mtime_ns| Identity { size: 3, mtime_ns, inode: 9 };
        let digests: DigestSet = "adler32:00000002,crc32c:00000003".parse().unwrap();
        let cache = ScanCache::open(directory.path(), TaskId(1)).unwrap();
        cache.add(&at("new\nline"), &identity(1), &digests).unwrap();
        drop(cache);

        let cache = ScanCache::open(directory.path(), TaskId(1)).unwrap();
        let both = [Algorithm::Adler32, Algorithm::Crc32c];
        assert_eq!(cache.find(&at("new\nline"), &identity(1), &both), Some(digests));
        assert_eq!(
            cache.find(&at("new\nline"), &identity(1), &both[..1]).unwrap().to_string(),
            "adler32:00000002"
        );
        assert_eq!(cache.find(&at("new\nline"), &identity(2), &both), None);
        assert_eq!(cache.find(&at("newline"), &identity(1), &both), None);
        assert_eq!(cache.find(&at("new\nline"), &identity(1), &[Algorithm::Md5]), None);
    }

    #[test]
    fn caches_of_ended_scans_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        for task in [1, 2] {
            ScanCache::open(directory.path(), TaskId(task)).unwrap();
        }
        remove_stale_caches(directory.path(), &[TaskId(2)]).unwrap();
        assert!(!directory.path().join(TaskId(1).to_string()).exists());
        assert!(directory.path().join(TaskId(2).to_string()).exists());
        ScanCache::open(directory.path(), TaskId(2)).unwrap().remove();
        assert!(!directory.path().join(TaskId(2).to_string()).exists());
    }
}
