//! `longhaul digest`: digests of local files, to pass on to people who copy them.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use longhaul_model::units::printable;
use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Hasher};
use serde::Serialize;

use super::Context;
use crate::failure::{Exit, Failure};
use crate::table::{Cell, Table, left, path, right};

const READ_BYTES: usize = 1 << 20;

#[derive(Debug, Args)]
pub struct DigestArgs {
    /// Files to read
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Digests to compute: adler32, crc32c, blake3, sha256, md5
    #[arg(long = "digests", value_name = "LIST", value_delimiter = ',', default_value = "blake3")]
    algorithms: Vec<Algorithm>,
}

#[derive(Debug, Serialize)]
struct FileDigests {
    path: String,
    bytes: u64,
    digests: DigestSet,
}

/// Stops at the first unreadable file.
pub fn run(context: &Context, args: DigestArgs) -> Result<Exit, Failure> {
    let all: Result<Vec<FileDigests>, Fault> =
        args.files.iter().map(|file| digest_file(file, &args.algorithms)).collect();
    let remedy = "check the path, and who may read the file";
    let all = all.map_err(|fault| Failure::from(fault).with_remedy(remedy))?;
    context.output.table(&all, |all| {
        let mut table = Table::new([left("digests"), right("size"), path("path")]);
        for one in all {
            table.row([Cell::text(one.digests.to_string()), Cell::bytes(one.bytes), Cell::text(&one.path)]);
        }
        table
    })?;
    Ok(Exit::Ok)
}

fn digest_file(file: &Path, algorithms: &[Algorithm]) -> Result<FileDigests, Fault> {
    let shown = printable(&file.to_string_lossy());
    let failed = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => FaultCode::NotFound,
            _ => FaultCode::SourceUnreadable,
        };
        Fault::new(code, format!("{shown}: {error}")).with_source(error)
    };
    let mut open = File::open(file).map_err(failed)?;
    let mut hasher = Hasher::new(algorithms.iter().copied());
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    loop {
        match open.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                hasher.update(&buffer[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(FileDigests { path: file.to_string_lossy().into_owned(), bytes, digests: hasher.finish() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_and_names_what_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f");
        std::fs::write(&file, b"123456789").unwrap();
        let found = digest_file(&file, &[Algorithm::Crc32c, Algorithm::Blake3]).unwrap();
        assert_eq!(found.bytes, 9);
        let text = found.digests.to_string();
        assert!(text.starts_with("crc32c:e3069283,blake3:b7d65b48420d1033cb2595293263b6f7"), "{text}");
        let fault = digest_file(&directory.path().join("gone"), &[Algorithm::Blake3]).unwrap_err();
        assert!(fault.code == FaultCode::NotFound && fault.detail.contains("gone"), "{fault}");
        assert_eq!(
            digest_file(directory.path(), &[Algorithm::Blake3]).unwrap_err().code,
            FaultCode::SourceUnreadable
        );
    }
}
