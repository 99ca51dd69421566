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

/// Creates the file (mode 0600) unless it is there, and takes it from others if it is.
pub fn create_private(path: &Path) -> Result<(), SecurityError> {
    let create = || match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    };
    create().map_err(|source| SecurityError::File { what: "cannot create", path: path.into(), source })?;
    restrict_to_owner(path).map(drop)
}

/// Takes all rights at a file or directory from everybody but its owner. Returns whether others had any;
/// false if nothing is there.
pub fn restrict_to_owner(path: &Path) -> Result<bool, SecurityError> {
    let restrict = || {
        let mode = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            found => found?.permissions().mode(),
        };
        let is_open = mode & 0o077 != 0;
        if is_open {
            fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))?;
        }
        Ok(is_open)
    };
    restrict().map_err(|source| SecurityError::File {
        what: "others can use it, and their rights cannot be taken: chmod go= it; at",
        path: path.into(),
        source,
    })
}

/// Refuses a directory for keys that others can read.
pub fn check_private_directory(path: &Path) -> Result<(), SecurityError> {
    let check = || {
        let mode = fs::metadata(path)?.permissions().mode() & 0o777;
        if mode & 0o077 == 0 {
            return Ok(());
        }
        let why = format!("others can read it (mode {mode:o}): chmod 700 it, it holds keys");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    };
    check().map_err(|source| SecurityError::File {
        what: "cannot use the directory",
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

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_others_could_use_is_taken_from_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("catalog");
        assert!(!restrict_to_owner(&path).unwrap(), "nothing is there");
        create_private(&path).unwrap();
        assert_eq!((mode(&path), restrict_to_owner(&path).unwrap()), (0o600, false));
        for open in [0o644, 0o660, 0o602] {
            fs::write(&path, "content").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(open)).unwrap();
            create_private(&path).unwrap();
            assert_eq!((mode(&path), fs::read_to_string(&path).unwrap()), (0o600, "content".to_owned()));
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(restrict_to_owner(directory.path()).unwrap());
        assert_eq!(mode(directory.path()), 0o700);
    }

    #[test]
    fn a_directory_of_keys_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        for (mode, is_private) in [(0o700, true), (0o755, false), (0o710, false), (0o702, false)] {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            let checked = check_private_directory(directory.path());
            assert_eq!(checked.is_ok(), is_private, "{mode:o}");
            if let Err(error) = checked {
                let detail = longhaul_model::Fault::from(error).detail;
                assert!(detail.contains(&format!("(mode {mode:o}): chmod 700 it")), "{detail}");
            }
        }
        assert!(check_private_directory(&directory.path().join("absent")).is_err());
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
