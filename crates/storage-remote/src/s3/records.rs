//! Records of unfinished multipart uploads, on disk, so that a later process can resume them. An upload
//! without a record belongs to somebody else and is left alone.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use longhaul_model::hex;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

const RECORD_BYTES_MAX: u64 = 16 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The object's URL, as it is shown.
    pub(super) url: String,
    pub(super) upload: String,
    pub(super) size: u64,
    pub(super) part_bytes: u64,
}

/// A folder of records, one file each, and the objects that are being written by this process.
pub(crate) struct Records {
    folder: Option<PathBuf>,
    busy: Mutex<HashSet<String>>,
}

/// Exclusive use of the record of one object.
pub(crate) struct RecordLease {
    records: Arc<Records>,
    url: String,
    file: PathBuf,
}

impl Records {
    pub(crate) fn new(folder: Option<PathBuf>) -> Records {
        Records { folder, busy: Mutex::default() }
    }

    /// None: nothing is recorded here, or another copy writes the same object.
    pub(super) fn hold(self: &Arc<Self>, url: &str) -> Option<RecordLease> {
        let folder = self.folder.as_ref()?;
        let mut busy = self.busy.lock();
        if !busy.insert(url.to_owned()) {
            return None;
        }
        let name = hex::encode(digest::digest(&digest::SHA256, url.as_bytes()).as_ref());
        let file = folder.join(format!("{}.json", name.get(..32).unwrap_or(&name)));
        Some(RecordLease { records: self.clone(), url: url.to_owned(), file })
    }
}

impl RecordLease {
    /// The upload of an earlier process. A record that cannot be read is none.
    pub(super) fn read(&self) -> Option<Record> {
        let found = std::fs::metadata(&self.file).ok()?;
        if found.len() > RECORD_BYTES_MAX {
            return None;
        }
        let record: Record = serde_json::from_slice(&std::fs::read(&self.file).ok()?).ok()?;
        (record.url == self.url).then_some(record)
    }

    /// Without a record a killed process leaves parts that nobody goes on with; that is no reason not to send
    /// a file.
    pub(super) fn write(&self, record: &Record) {
        if let Err(error) = store(&self.file, record) {
            tracing::warn!(file = %self.file.display(), %error, "an upload is not recorded: it cannot go on \
                after a restart");
        }
    }

    pub(super) fn forget(&self) {
        if let Err(error) = std::fs::remove_file(&self.file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(file = %self.file.display(), %error, "the record of an upload stays");
        }
    }
}

impl Drop for RecordLease {
    fn drop(&mut self) {
        self.records.busy.lock().remove(&self.url);
    }
}

fn store(file: &Path, record: &Record) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let new = file.with_extension("new");
    let mut writing = std::fs::File::create(&new)?;
    writing.write_all(&serde_json::to_vec(record)?)?;
    writing.sync_all()?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_by_who_comes_after() {
        let folder = tempfile::tempdir().unwrap();
        let records = || Arc::new(Records::new(Some(folder.path().join("below"))));
        let record = Record { url: "s3s://h/b/k".into(), upload: "u".into(), size: 7, part_bytes: 5 };
        let (first, second) = (records(), records());
        let held = first.hold(&record.url).unwrap();
        assert_eq!(held.read(), None);
        held.write(&record);
        assert!(first.hold(&record.url).is_none(), "one writes an object at a time");
        drop(held);
        let held = second.hold(&record.url).unwrap();
        assert_eq!(held.read(), Some(record));
        assert_eq!(second.hold("s3s://h/b/other").unwrap().read(), None);
        held.forget();
        held.forget();
        assert_eq!(held.read(), None);
        assert!(Arc::new(Records::new(None)).hold("s3s://h/b/k").is_none());
    }
}
