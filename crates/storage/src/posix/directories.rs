//! The directory tree of a posix storage.
//!
//! Look-ups follow links that stay beneath the root, as reads do; changes follow none, as writes do.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use longhaul_model::{Blame, Fault, FaultCode, Pfn};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{self, Errno};

use super::Posix;
use super::fault::{Role, fault};
use super::fault_injector::Syscall;
use super::names::NamePage;
use super::rooted_tree::split;
use super::work::case_variant_of;
use crate::Identity;
use crate::directories::{Directories, Entry, Listing};

impl Directories for Posix {
    fn stat_entry(&self, path: &str) -> Result<Option<Entry>, Fault> {
        if path.is_empty() {
            let failed = |errno| fault(Role::Read, errno, format_args!("the root of {}", self.name));
            let stat = fs::fstat(self.rooted_tree.root()).map_err(failed)?;
            return Ok(Some(Entry {
                name: String::new(),
                is_directory: true,
                identity: Identity::from(&stat),
                real_path: None,
            }));
        }
        self.entry_at(path)
    }

    fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Listing, Fault> {
        let failed = |errno| fault(Role::Read, errno, format_args!("listing {}:{path}", self.name));
        let real = match path {
            "" => Vec::new(),
            path => self.find(&self.pfn(path)?)?.ok_or_else(|| failed(Errno::NOENT))?.0,
        };
        let opened = self.rooted_tree.open(&real, OFlags::RDONLY | OFlags::DIRECTORY);
        let directory = opened.map_err(failed)?;
        // A name that is not a valid path cannot be requested either.
        let hidden = |name: &[u8]| {
            let inside = join(path, name);
            self.rooted_tree.is_reserved(&join_bytes(&real, name))
                || inside.is_none_or(|at| self.pfn(&at).is_err())
        };
        let page = NamePage::read(&directory, after.map(str::as_bytes), limit, hidden).map_err(failed)?;
        let mut entries = Vec::with_capacity(page.names.len());
        for name in page.names.iter().rev() {
            let Ok(name) = std::str::from_utf8(name) else { continue };
            entries.extend(self.entry_in(&directory, path, name));
        }
        let more_after = page.more_after.and_then(|name| String::from_utf8(name).ok());
        Ok(Listing { entries, more_after, real_path: real_path(path, &real)? })
    }

    fn make_directory(&self, at: &Pfn) -> Result<(), Fault> {
        let work = self.work()?;
        let (parent, name, directory) = self.parent_for_writing(at)?;
        let failed = |errno| fault(Role::Write, errno, format_args!("making {at}"));
        self.refuse_case_variant_in(&directory, name, at)?;
        let made = self.fault_injector.before(Syscall::MakeDirectory, &String::from_utf8_lossy(name));
        made.and_then(|()| fs::mkdirat(&directory, name, Mode::from_raw_mode(0o777))).map_err(failed)?;
        self.flusher.note_created(at.path().as_bytes());
        self.flusher.flush_names(&work, &self.rooted_tree, &BTreeSet::from([parent.to_vec()]))
    }

    fn remove_directory(&self, at: &Pfn) -> Result<(), Fault> {
        self.work()?;
        let (_, name, directory) = self.parent_for_writing(at)?;
        match fs::unlinkat(&directory, name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                Err(Fault::new(FaultCode::Conflict, format!("{at} is not empty")))
            }
            Err(Errno::NOENT) => Err(Fault::new(FaultCode::SourceMissing, at.to_string())),
            Err(errno) => Err(fault(Role::Write, errno, format_args!("removing {at}"))),
        }
    }

    fn remove_file(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.work()?;
        let failed = |errno| fault(Role::Write, errno, format_args!("deleting {at}"));
        let (parent, name) = split(self.path_for_writing(at)?);
        let opened = self.rooted_tree.open(parent, OFlags::PATH | OFlags::DIRECTORY);
        let found = opened.and_then(|directory| {
            let stat = fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok((directory, stat))
        });
        let (directory, stat) = match found {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            found => found.map_err(failed)?,
        };
        let found = match FileType::from_raw_mode(stat.st_mode) {
            // Its version is its target's, as where it is shown.
            FileType::Symlink => match self.find(at)? {
                Some((_, target)) => Identity::from(&target),
                None => return Ok(()),
            },
            _ => Identity::from(&stat),
        };
        if found != *expected {
            let detail = format!("{at} is {found}, not {expected} (size:mtime:inode), and stays");
            return Err(Fault::new(FaultCode::Conflict, detail));
        }
        match fs::unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    fn rename(&self, from: &Pfn, to: &Pfn, replaces: Option<&Identity>) -> Result<(), Fault> {
        let work = self.work()?;
        let (old_parent, old_name, old_directory) = self.parent_for_writing(from)?;
        let (new_parent, new_name, new_directory) = self.parent_for_writing(to)?;
        let failed = |errno| fault(Role::Write, errno, format_args!("naming {from} {to}"));
        self.refuse_case_variant_in(&new_directory, new_name, to)?;
        if let Some(expected) = replaces {
            let found = fs::statat(&new_directory, new_name, AtFlags::SYMLINK_NOFOLLOW);
            match found {
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno)),
                Ok(found) if Identity::from(&found) == *expected => {}
                Ok(_) => {
                    let detail = format!("{to} is not what it was when its replacement began, and stays");
                    return Err(Fault::new(FaultCode::NameClash, detail));
                }
            }
        }
        let shown = String::from_utf8_lossy(old_name);
        let renamed = match replaces {
            Some(_) => self
                .fault_injector
                .before(Syscall::Replace, &shown)
                .and_then(|()| fs::renameat(&old_directory, old_name, &new_directory, new_name)),
            None => self
                .fault_injector
                .before(Syscall::Rename, &shown)
                .and_then(|()| {
                    let flags = RenameFlags::NOREPLACE;
                    fs::renameat_with(&old_directory, old_name, &new_directory, new_name, flags)
                })
                .or_else(|errno| match errno {
                    Errno::INVAL | Errno::NOSYS => {
                        rename_by_looking(&old_directory, old_name, &new_directory, new_name)
                    }
                    errno => Err(errno),
                }),
        };
        match renamed {
            Err(Errno::NOENT) => return Err(Fault::new(FaultCode::SourceMissing, from.to_string())),
            Err(Errno::INVAL) => {
                return Err(Fault::new(FaultCode::Conflict, format!("{to} lies in {from} itself")));
            }
            done => done.map_err(failed)?,
        }
        let touched = BTreeSet::from([old_parent.to_vec(), new_parent.to_vec()]);
        self.flusher.flush_names(&work, &self.rooted_tree, &touched)
    }
}

impl Posix {
    fn pfn(&self, path: &str) -> Result<Pfn, Fault> {
        Pfn::new(self.name.clone(), path).map_err(Fault::from)
    }

    /// The entry of a name in an open directory; none if it is gone or hidden.
    fn entry_in(&self, directory: &OwnedFd, path: &str, name: &str) -> Option<Entry> {
        let stat = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return entry(name.to_owned(), &stat);
        }
        self.entry_at(&join(path, name.as_bytes())?).ok()?
    }

    /// The entry that a path leads to; none if there is none, or nothing to be shown.
    fn entry_at(&self, path: &str) -> Result<Option<Entry>, Fault> {
        let Some((real, stat)) = self.find(&self.pfn(path)?)? else { return Ok(None) };
        let (_, name) = split(path.as_bytes());
        let found = entry(String::from_utf8_lossy(name).into_owned(), &stat);
        let real_path = real_path(path, &real)?;
        Ok(found.map(|found| Entry { real_path, ..found }))
    }

    /// The parent directory of `at`, reached without links, and the name in it.
    fn parent_for_writing<'a>(&self, at: &'a Pfn) -> Result<(&'a [u8], &'a [u8], OwnedFd), Fault> {
        let (parent, name) = split(self.path_for_writing(at)?);
        match self.rooted_tree.open(parent, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => Ok((parent, name, directory)),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let detail = format!("the directory that {at} should lie in is not there");
                Err(Fault::new(FaultCode::Conflict, detail))
            }
            Err(errno) => Err(fault(Role::Write, errno, format_args!("the directory of {at}"))),
        }
    }

    fn refuse_case_variant_in(&self, directory: &OwnedFd, name: &[u8], at: &Pfn) -> Result<(), Fault> {
        if !self.case_insensitive() || fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
            return Ok(());
        }
        let twin = case_variant_of(directory, name)
            .map_err(|errno| fault(Role::Read, errno, at).blaming(Blame::Target))?;
        match twin {
            None => Ok(()),
            Some(_) => Err(Fault::new(FaultCode::CaseTwin, at.to_string())),
        }
    }
}

/// For file systems without `RENAME_NOREPLACE`: racy between the look-up and the rename.
fn rename_by_looking(
    old_directory: &OwnedFd,
    old_name: &[u8],
    new_directory: &OwnedFd,
    new_name: &[u8],
) -> io::Result<()> {
    match fs::statat(new_directory, new_name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => fs::renameat(old_directory, old_name, new_directory, new_name),
        Err(errno) => Err(errno),
    }
}

fn entry(name: String, stat: &fs::Stat) -> Option<Entry> {
    let is_directory = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => true,
        FileType::RegularFile => false,
        _ => return None,
    };
    Some(Entry { name, is_directory, identity: Identity::from(stat), real_path: None })
}

/// The path that was reached instead of `path`.
fn real_path(path: &str, real: &[u8]) -> Result<Option<String>, Fault> {
    if real == path.as_bytes() {
        return Ok(None);
    }
    let real = String::from_utf8(real.to_vec()).map_err(|error| {
        let detail = format!("{path} is or contains a link to a name that is not UTF-8");
        Fault::new(FaultCode::SourceUnreadable, detail).with_source(error)
    })?;
    Ok(Some(real))
}

fn join(path: &str, name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    Some(if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") })
}

fn join_bytes(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}
