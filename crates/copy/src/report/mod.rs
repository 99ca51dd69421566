//! Reports of a copy: fdtcp's reportfile, the same as JSON, and fdtcp's exit codes.
//!
//! The text format has one line per file, `SOURCE TARGET STATUS TEXT…`, with names as in the copyjobfile,
//! since readers match lines by the pair and ignore what they do not know (here a line that begins with `#`).
//! It is written to a temporary file beside its path and renamed when it is complete, even if nothing could
//! be started, so that a reader never sees half of it and never waits in vain.
//!
//! Memory does not grow with the number of files. Start with [`Report::create`]; [`BatchReport`] makes sure
//! that every pair of a batch has its line.

mod exit;
mod outcome;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use serde::Serialize;

use crate::batch::{Batch, EndpointSpec, quoted};
pub use exit::FdtcpExit;
pub use outcome::{Outcome, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    Text,
    Json,
}

impl ReportFormat {
    /// Chosen by the file extension.
    pub fn from_path(path: &Path) -> ReportFormat {
        let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        if is_json { ReportFormat::Json } else { ReportFormat::Text }
    }
}

/// A report that is being written.
pub struct Report {
    path: PathBuf,
    /// The temporary file beside `path`, until the end.
    partial: PathBuf,
    file: Option<BufWriter<File>>,
    format: ReportFormat,
    totals: Totals,
    has_secret: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub ok: u64,
    pub error: u64,
    pub exists: u64,
    pub permission: u64,
    /// Bytes of files that are complete at the target.
    pub bytes: u64,
}

impl Totals {
    pub fn files(&self) -> u64 {
        self.ok + self.error + self.exists + self.permission
    }

    fn add(&mut self, outcome: &Outcome) {
        match outcome.status {
            Status::Ok => self.ok += 1,
            Status::Error => self.error += 1,
            Status::Exists => self.exists += 1,
            Status::Permission => self.permission += 1,
        }
        if outcome.status == Status::Ok {
            self.bytes = self.bytes.saturating_add(outcome.bytes);
        }
    }
}

/// How a copy ended as a whole.
#[derive(Clone, Debug)]
pub struct CopyResult<'a> {
    pub exit_code: u8,
    /// What prevented or interrupted the copy.
    pub fault: Option<&'a Fault>,
}

#[derive(Serialize)]
struct Row<'a> {
    source: &'a str,
    target: &'a str,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

impl Report {
    /// Opens the report, so that an unwritable path is noticed before any file is copied.
    pub fn create(path: &Path) -> Result<Report, Fault> {
        let name = path.file_name().ok_or_else(|| failed(path, &"has no file name"))?;
        let partial = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
        let open = || {
            // Left by a killed process with the same id.
            match std::fs::remove_file(&partial) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            OpenOptions::new().write(true).create_new(true).mode(0o666).open(&partial)
        };
        if path.is_dir() {
            return Err(failed(path, &"is a directory"));
        }
        let file = open().map_err(|error| failed(path, &error))?;
        let mut report = Report {
            path: path.to_owned(),
            partial,
            file: Some(BufWriter::new(file)),
            format: ReportFormat::from_path(path),
            totals: Totals::default(),
            has_secret: false,
        };
        if report.format == ReportFormat::Json {
            report.write(b"{\"version\":1,\"files\":[")?;
        }
        Ok(report)
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Adds one file; `source` and `target` as the user wrote them.
    pub fn add(&mut self, source: &str, target: &str, outcome: &Outcome) -> Result<(), Fault> {
        if !self.has_secret && [source, target].into_iter().any(has_secret) {
            self.has_secret = true;
            self.make_private()?;
        }
        let text = match self.format {
            ReportFormat::Text => {
                let text = printable(&outcome.text);
                format!("{} {} {} {text}\n", quoted(source), quoted(target), outcome.status.number())
            }
            ReportFormat::Json => {
                let comma = if self.totals.files() == 0 { "\n" } else { ",\n" };
                let row = serde_json::to_string(&Row { source, target, outcome });
                format!("{comma}{}", row.map_err(|error| failed(&self.path, &error))?)
            }
        };
        self.totals.add(outcome);
        self.write(text.as_bytes())
    }

    /// Completes the report and renames it to its path.
    pub fn finish(mut self, ending: &CopyResult<'_>) -> Result<Totals, Fault> {
        match self.format {
            ReportFormat::Json => self.write_json_end(ending)?,
            ReportFormat::Text => {
                if let Some(fault) = ending.fault {
                    let line = format!("# {}: {}\n", fault.code, printable(&fault.to_string()));
                    self.write(line.as_bytes())?;
                }
            }
        }
        let Some(file) = self.file.take() else { return Ok(self.totals) };
        let complete = || {
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            std::fs::rename(&self.partial, &self.path)
        };
        let completed = complete().map_err(|error| failed(&self.path, &error));
        if completed.is_err() {
            let _ = std::fs::remove_file(&self.partial);
        }
        completed.map(|()| self.totals)
    }

    fn write_json_end(&mut self, ending: &CopyResult<'_>) -> Result<(), Fault> {
        #[derive(Serialize)]
        struct End<'a> {
            totals: Totals,
            exit_code: u8,
            fault: Option<&'a Fault>,
        }
        let end = End { totals: self.totals, exit_code: ending.exit_code, fault: ending.fault };
        let text = serde_json::to_string(&end).map_err(|error| failed(&self.path, &error))?;
        // The rest of the object that `create` began.
        let rest = text.strip_prefix('{').unwrap_or(&text);
        self.write(format!("\n],{rest}\n").as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(|error| failed(&self.path, &error))
    }

    /// Whoever reads a URL with its secret can use it.
    fn make_private(&mut self) -> Result<(), Fault> {
        let Some(file) = &self.file else { return Ok(()) };
        let hidden = file.get_ref().set_permissions(Permissions::from_mode(0o600));
        hidden.map_err(|error| failed(&self.path, &error))
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

fn has_secret(text: &str) -> bool {
    text.starts_with("lh://") && EndpointSpec::Url(text.to_owned()).holds_secret()
}

fn failed(path: &Path, why: &dyn std::fmt::Display) -> Fault {
    let path = printable(&path.to_string_lossy());
    Fault::new(FaultCode::BadRequest, format!("cannot write the report {path}: {why}"))
}

/// A report with exactly one line for each pair of a batch, and one for each bad line that has two words.
pub struct BatchReport<'a> {
    report: Report,
    batch: &'a Batch,
    is_reported: Vec<bool>,
}

impl<'a> BatchReport<'a> {
    pub fn create(path: &Path, batch: &'a Batch) -> Result<BatchReport<'a>, Fault> {
        let mut report = Report::create(path)?;
        for bad in &batch.bad {
            if let Some((source, target)) = &bad.words {
                report.add(source, target, &Outcome::failed(FaultCode::BadRequest, bad.to_string()))?;
            }
        }
        Ok(BatchReport { report, is_reported: vec![false; batch.pairs.len()], batch })
    }

    /// Adds the pair at `index`; only its first outcome counts.
    ///
    /// # Panics
    /// If the batch has no such pair.
    pub fn add(&mut self, index: usize, outcome: &Outcome) -> Result<(), Fault> {
        if std::mem::replace(&mut self.is_reported[index], true) {
            return Ok(());
        }
        let pair = &self.batch.pairs[index];
        self.report.add(&pair.source.to_string(), &pair.target.to_string(), outcome)
    }

    /// Adds every pair without an outcome as ended by the copy's fault, and completes the report.
    pub fn finish(mut self, ending: &CopyResult<'_>) -> Result<Totals, Fault> {
        let otherwise = match ending.fault {
            Some(fault) => Outcome::from_fault(fault),
            None => Outcome::failed(FaultCode::Interrupted, "not started".to_owned()),
        };
        for index in 0..self.is_reported.len() {
            self.add(index, &otherwise)?;
        }
        self.report.finish(ending)
    }
}
