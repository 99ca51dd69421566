//! Files with secrets: mode 0600, and replaced atomically (write to a temporary file, flush, rename).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use crate::SecurityError;

/// The largest file of this kind: a PEM chain or key has a few kilobytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Writes `path` with mode 0600 through a temporary file in the same directory: flushed, renamed, directory
/// flushed.
pub fn write_private(path: &Path, contents: &[u8]) -> Result<(), SecurityError> {
    replace(path, contents).map_err(|source| SecurityError::File {
        what: "cannot write",
        path: path.into(),
        source,
    })
}

/// Reads a small text file.
pub fn read_private(path: &Path) -> Result<String, SecurityError> {
    let read = || bounded(File::open(path)?);
    read().map_err(|source| SecurityError::File { what: "cannot read", path: path.into(), source })
}

/// Reads a secret that a person put there, without surrounding white space. Refuses a file that others may
/// read.
pub fn read_secret(path: &Path) -> Result<Zeroizing<String>, SecurityError> {
    let read = || {
        let file = File::open(path)?;
        let mode = file.metadata()?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let why = format!("others may read it (mode {mode:o}): chmod 600");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let text = Zeroizing::new(bounded(file)?);
        Ok(Zeroizing::new(text.trim().to_owned()))
    };
    read().map_err(|source| SecurityError::File { what: "cannot read", path: path.into(), source })
}

fn bounded(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too large for a key or certificate"));
    }
    Ok(text)
}

/// Creates `path` (mode 0700) and its parents.
pub(crate) fn make_private_directory(path: &Path) -> Result<(), SecurityError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| SecurityError::File {
        what: "cannot make the directory",
        path: path.into(),
        source,
    })
}

fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let directory = match path.parent().ok_or(io::ErrorKind::InvalidInput)? {
        // A bare file name is in the current directory.
        here if here.as_os_str().is_empty() => Path::new("."),
        directory => directory,
    };
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".new");
    let temporary = directory.join(temporary);
    // The leftover of a killed predecessor is worthless. `create_new` then ensures that no other file or link
    // is used.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_replaced_atomically() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        write_private(&path, b"one").unwrap();
        fs::write(directory.path().join(".key.pem.new"), "left by a killed process").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(read_private(&path).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn a_bare_name_is_in_the_current_directory() {
        let name = format!("private-{}", std::process::id());
        write_private(Path::new(&name), b"x").unwrap();
        assert_eq!(read_private(Path::new(&name)).unwrap(), "x");
        fs::remove_file(&name).unwrap();
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        write_private(&path, b" s3cret\n").unwrap();
        assert_eq!(*read_secret(&path).unwrap(), "s3cret");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let said = longhaul_model::Fault::from(read_secret(&path).unwrap_err()).detail;
        assert!(said.contains("secret") && said.contains("(mode 640): chmod 600"), "{said}");
    }

    #[test]
    fn refuses_what_is_too_large_and_names_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("big");
        fs::write(&path, vec![b'x'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(read_private(&path).unwrap_err().to_string().contains("big"));
        assert!(read_private(&directory.path().join("absent")).unwrap_err().to_string().contains("absent"));
    }
}
