//! Registration by a manifest: one JSON object a line, all or nothing.
//!
//! The upload is first written to a nameless file, so that a slow sender never holds the catalog's only
//! writer, and its size never is in memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};

use longhaul_api::Problem;
use longhaul_api::native::{ChangeKind, ManifestLine, Registered};
use longhaul_api::rights;
use longhaul_catalog::{ManifestError, NewFile};
use longhaul_control::brain::Input;
use longhaul_identity::{Belonging, Caller};
use longhaul_model::limits::{FILE_BYTES_MAX, MANIFEST_LINE_BYTES_MAX};
use longhaul_model::{BlockName, DatasetName, Fault, FaultCode, NameError, StorageName, json};

use super::{Operations, add_problem};
use longhaul_scheduler::Event;

/// Read from the spool at a time.
const READ_BYTES: usize = 1 << 20;

impl Operations {
    /// A file without a name in the state directory: it is gone with the process, however that ends.
    pub(crate) fn spool(&self) -> Result<File, Problem> {
        tempfile::tempfile_in(&self.shared.config.state_dir).map_err(|error| spool_problem(&error))
    }

    /// Refuses who may not register files of the dataset, or say that the storage has them: before their
    /// manifest is received.
    pub(crate) fn may_add_files(
        &self,
        caller: &Caller,
        name: &DatasetName,
        storage: Option<&StorageName>,
    ) -> Result<(), Problem> {
        let dataset = self.dataset_row(name)?;
        caller.check(&rights::DATASET_ADD_FILES, &[Belonging::Data(&dataset.community)])?;
        storage.map_or(Ok(()), |storage| self.check_storage(caller, &rights::REPLICA_REGISTER, storage))
    }

    /// Registers what the manifest lists. With `storage` the files are taken to be there already.
    pub fn dataset_add_files(
        &self,
        caller: &Caller,
        name: &DatasetName,
        storage: Option<&StorageName>,
        mut manifest: File,
    ) -> Result<Registered, Problem> {
        self.may_add_files(caller, name, storage)?;
        let dataset = self.dataset_row(name)?;
        let storage = storage.map(|storage| self.storage_row(storage)).transpose()?;
        manifest.seek(SeekFrom::Start(0)).map_err(|error| spool_problem(&error))?;
        let mut lines = Lines::new(BufReader::with_capacity(READ_BYTES, manifest), name.clone());
        let now = self.now();
        let at = storage.as_ref().map(|storage| storage.id);
        let added =
            self.shared.kernel.catalog.add_files(dataset.id, &mut lines, at, now).map_err(add_problem)?;
        tracing::info!(dataset = %name, files = added.files_added, known = added.files_known, "registered by \
            manifest");
        let complete =
            added.complete.iter().map(|&(block, storage)| Event::BlockComplete { block, storage }).collect();
        self.shared.kernel.notify_scheduler(Input::Events(complete));
        self.shared.kernel.announce_demands(&added.demands);
        self.shared.kernel.notify_scheduler(Input::Demands { now: added.demands, gone: Vec::new() });
        self.shared.kernel.changes.touch(ChangeKind::Dataset, name, now);
        Ok(Registered {
            files_added: added.files_added,
            bytes_added: added.bytes_added,
            files_known: added.files_known,
        })
    }
}

pub(crate) fn spool_problem(error: &std::io::Error) -> Problem {
    let mut problem =
        Problem::from(Fault::new(FaultCode::StateDirectory, format!("the upload cannot be kept: {error}")));
    problem.status = 507;
    problem
}

/// What is wrong with a line of a manifest.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error("cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("is longer than {MANIFEST_LINE_BYTES_MAX} bytes")]
    TooLong,
    // The parser's line number is that of this line alone, always 1.
    #[error("{}", .0.to_string().replace(" at line 1 column ", " at column "))]
    Json(#[source] serde_json::Error),
    #[error("a size of {0} bytes is more than any file can have")]
    FileTooLarge(u64),
    #[error("has no digest: what arrives could not be compared with anything")]
    NoDigest,
    #[error("{0}")]
    BlockName(#[source] NameError),
}

/// The files of a manifest, one by one; ends after the first error.
struct Lines<R> {
    reader: R,
    dataset: DatasetName,
    number: u64,
    buffer: Vec<u8>,
    failed: bool,
}

impl<R: BufRead> Lines<R> {
    fn new(reader: R, dataset: DatasetName) -> Self {
        Lines { reader, dataset, number: 0, buffer: Vec::new(), failed: false }
    }

    /// The next line without its end; none after the last.
    fn line(&mut self) -> Result<bool, LineError> {
        self.buffer.clear();
        let limit = MANIFEST_LINE_BYTES_MAX + 1;
        let mut bounded = std::io::Read::take(&mut self.reader, limit as u64);
        let read = bounded.read_until(b'\n', &mut self.buffer).map_err(LineError::Read)?;
        if read == 0 {
            return Ok(false);
        }
        self.number += 1;
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if read == limit {
            return Err(LineError::TooLong);
        }
        Ok(true)
    }

    fn file(&self) -> Result<NewFile, LineError> {
        let line: ManifestLine = json::from_slice(&self.buffer).map_err(LineError::Json)?;
        if line.size > FILE_BYTES_MAX {
            return Err(LineError::FileTooLarge(line.size));
        }
        if line.digests.is_empty() {
            return Err(LineError::NoDigest);
        }
        if let Some(block) = &line.block {
            BlockName::parse(&format!("{}#{block}", self.dataset)).map_err(LineError::BlockName)?;
        }
        Ok(NewFile {
            lfn: line.lfn,
            size: line.size,
            digests: line.digests,
            block: line.block,
            line: self.number,
        })
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<NewFile, ManifestError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let file = match self.line() {
            Ok(false) => return None,
            Ok(true) => self.file(),
            Err(error) => Err(error),
        };
        Some(file.map_err(|error| {
            self.failed = true;
            let fault = Fault::new(FaultCode::BadManifest, error.to_string()).with_source(error);
            ManifestError { line: self.number, fault }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(manifest: &[u8]) -> Vec<Result<NewFile, ManifestError>> {
        Lines::new(manifest, "d".parse().unwrap()).collect()
    }

    const GOOD: &str = r#"{"lfn":"a/b","size":3,"digests":["adler32:00620062"]}"#;

    #[test]
    fn a_good_line_is_a_file_with_its_number() {
        let files = read(format!("{GOOD}\n{GOOD}").as_bytes());
        assert_eq!(files.len(), 2);
        let second = files[1].as_ref().unwrap();
        assert_eq!((second.line, second.size, second.lfn.as_str()), (2, 3, "a/b"));
    }

    #[test]
    fn a_bad_line_is_named_and_ends_it() {
        let line = |what: &str| format!(r#"{{"lfn":{what},"size":3,"digests":["adler32:00620062"]}}"#);
        for (bad, why) in [
            (line(r#""/a""#), "LFN"),
            (line(r#""a/../b""#), "LFN"),
            (line(r#""""#), "LFN"),
            (line("7"), "string"),
            ("{".to_owned(), "EOF"),
            (String::new(), "EOF"),
            (r#"{"lfn":"a","size":-1,"digests":["adler32:00620062"]}"#.to_owned(), "integer"),
            (r#"{"lfn":"a","size":99999999999999999999,"digests":["adler32:00620062"]}"#.to_owned(), ""),
            (r#"{"lfn":"a","size":1,"digests":["adler32:xyz"]}"#.to_owned(), ""),
            (r#"{"lfn":"a","size":1,"digests":["adler32:00"]}"#.to_owned(), ""),
            (r#"{"lfn":"a","size":1,"digests":["adler32:00000000"]}"#.to_owned(), "belongs to no file"),
            (r#"{"lfn":"a","size":1,"digests":[]}"#.to_owned(), "no digest"),
            (r#"{"lfn":"a","size":1,"digests":["adler32:00620062"],"x":1}"#.to_owned(), "unknown field"),
            (r#"{"lfn":"a","size":1,"digests":["adler32:00620062"],"block":"a b"}"#.to_owned(), "block"),
            ("x".repeat(MANIFEST_LINE_BYTES_MAX + 1), "longer"),
        ] {
            let files = read(format!("{GOOD}\n{bad}\n{GOOD}\n").as_bytes());
            assert_eq!(files.len(), 2, "{bad}");
            let error = files[1].as_ref().unwrap_err();
            assert_eq!((error.line, error.fault.code), (2, FaultCode::BadManifest), "{bad}");
            assert!(error.fault.detail.contains(why), "{}", error.fault.detail);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_uploaded_ends(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            let files = read(&bytes);
            let errors = files.iter().filter(|file| file.is_err()).count();
            prop_assert!(errors <= 1 && files.len() <= bytes.len() + 1);
        }
    }
}
