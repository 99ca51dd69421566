//! Per-account work directories, `.longhaul/as-UID`, which root makes in an export that none of the accounts
//! owns.
//!
//! Root works in a directory that others may write to, so it follows no link and changes nothing that it has
//! not just made: a link or somebody else's directory in the way is an error and cannot redirect root's
//! writes.

use std::path::Path;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use rustix::fd::OwnedFd;
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::{self, Errno};

use super::Account;
use crate::walk::WORK_DIRECTORY;

/// Mode of `.longhaul` itself: names are not secret, and each account's own directory is private.
const MODE_SHARED: u32 = 0o755;
const MODE_PRIVATE: u32 = 0o700;

/// Makes the work directory of an account beneath an export's root.
pub fn prepare_work(root: &Path, account: &Account) -> Result<(), Fault> {
    let shown = printable(&root.to_string_lossy());
    let failed = |errno: Errno| {
        let why = match errno {
            Errno::LOOP | Errno::NOTDIR => "something else has this name".to_owned(),
            Errno::PERM => "it belongs to somebody else".to_owned(),
            errno => std::io::Error::from(errno).to_string(),
        };
        let detail = format!(
            "cannot prepare the work directory of {} in {shown}/{WORK_DIRECTORY}: {why}",
            account.name
        );
        Fault::new(FaultCode::StateDirectory, detail)
    };
    prepare(root, account).map_err(failed)
}

fn prepare(root: &Path, account: &Account) -> io::Result<()> {
    let root = fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let work = make_dir(&root, WORK_DIRECTORY, MODE_SHARED)?;
    let stat = fs::fstat(&work)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
        return Err(Errno::PERM);
    }
    // The umask of the parent process may have cleared bits.
    fs::fchmod(&work, Mode::from_raw_mode(MODE_SHARED))?;
    let own = make_dir(&work, &work_dir_name(account.uid), MODE_PRIVATE)?;
    let owner = fs::fstat(&own)?.st_uid;
    if owner == account.uid {
        return Ok(());
    }
    if owner != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    fs::fchown(&own, Some(Uid::from_raw(account.uid)), Some(Gid::from_raw(account.gid)))
}

/// Removes an account's work directory, unless it still holds state that a copy could resume from.
pub fn remove_work(root: &Path, account: &Account) {
    let removed = || -> io::Result<()> {
        let root = fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let work = open_dir(&root, WORK_DIRECTORY)?;
        let _ = open_dir(&work, &work_dir_name(account.uid))
            .and_then(|own| fs::unlinkat(own, "temps", AtFlags::REMOVEDIR));
        fs::unlinkat(&work, work_dir_name(account.uid), AtFlags::REMOVEDIR)?;
        fs::unlinkat(&root, WORK_DIRECTORY, AtFlags::REMOVEDIR)
    };
    // Not an error: another account or an interrupted copy may still need it.
    let _ = removed();
}

pub(crate) fn work_dir_name(uid: u32) -> String {
    format!("as-{uid}")
}

fn open_dir(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(directory, name, flags, Mode::empty())
}

fn make_dir(directory: &OwnedFd, name: &str, mode: u32) -> io::Result<OwnedFd> {
    match fs::mkdirat(directory, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => open_dir(directory, name),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn me() -> Account {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Account { name: "me".into(), uid, gid, groups: vec![], home: "/".into() }
    }

    #[test]
    fn makes_it_once_and_takes_it_away() {
        let place = tempfile::tempdir().unwrap();
        prepare_work(place.path(), &me()).unwrap();
        prepare_work(place.path(), &me()).unwrap();
        let own = place.path().join(WORK_DIRECTORY).join(work_dir_name(me().uid));
        let made = own.metadata().unwrap();
        assert_eq!((made.uid(), made.permissions().mode() & 0o777), (me().uid, MODE_PRIVATE));
        std::fs::write(own.join("left"), "x").unwrap();
        remove_work(place.path(), &me());
        assert!(own.exists(), "it still holds a file");
        std::fs::remove_file(own.join("left")).unwrap();
        remove_work(place.path(), &me());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn follows_no_link_and_takes_over_nothing() {
        let place = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), place.path().join(WORK_DIRECTORY)).unwrap();
        assert!(prepare_work(place.path(), &me()).unwrap_err().detail.contains("something else"));
        std::fs::remove_file(place.path().join(WORK_DIRECTORY)).unwrap();
        let work = place.path().join(WORK_DIRECTORY);
        std::fs::create_dir(&work).unwrap();
        symlink(elsewhere.path(), work.join(work_dir_name(me().uid))).unwrap();
        assert!(prepare_work(place.path(), &me()).is_err());
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        std::fs::remove_file(work.join(work_dir_name(me().uid))).unwrap();
        std::fs::set_permissions(&work, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(prepare_work(place.path(), &me()).unwrap_err().detail.contains("somebody else"));
    }
}
