//! Group commit (Gray and Reuter, 1993): set attributes, flush data, rename, flush names, in this order
//! (promises 1 and 4).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::{self, Errno};

use super::Posix;
use super::fault::{Role, fault};
use super::fault_injector::Syscall;
use super::rooted_tree::{components, split};
use super::work::{WorkDirectory, case_variant_of};
use crate::{Commit, Identity, MODE_BITS, TempName};

/// A deletion may prune a directory between its creation and the rename into it.
const PRUNE_RETRIES_MAX: usize = 64;
const NANOSECONDS: i64 = 1_000_000_000;

pub(super) fn commit(posix: &Posix, work: &WorkDirectory, batch: &[Commit]) -> Vec<Result<(), Fault>> {
    let ready = |item| admit(posix, work, item).and_then(|()| set_attributes(posix, work, item));
    let mut results: Vec<Result<(), Fault>> = batch.iter().map(ready).collect();
    flush_data(posix, work, batch, &mut results);

    let mut touched = BTreeSet::new();
    rename_all(posix, work, batch, &mut results, &mut touched);

    if !touched.is_empty()
        && let Err(lost) = posix.flusher.flush_names(work, &posix.rooted_tree, &touched)
    {
        // Some may exist and stay; none is known to be durable.
        results.iter_mut().filter(|result| result.is_ok()).for_each(|result| *result = Err(lost.clone()));
    }
    for (item, result) in batch.iter().zip(&results) {
        if result.is_ok() {
            posix.flusher.end(&item.temp);
        }
    }
    results
}

/// Whether `item` may be committed at all.
fn admit(posix: &Posix, work: &WorkDirectory, item: &Commit) -> Result<(), Fault> {
    posix.path_for_writing(&item.target)?;
    if posix.flusher.was_put(item) {
        return Ok(());
    }
    let found = work
        .stat(&item.temp)
        .map_err(|errno| fault(Role::Write, errno, format_args!("the temporary file of {}", item.target)))?;
    match found {
        Some(identity) if identity.size == item.size => Ok(()),
        found => {
            let has = found.map_or("is gone".to_owned(), |identity| format!("has {} bytes", identity.size));
            let detail = format!("the temporary file of {} {has}, not {}", item.target, item.size);
            Err(Fault::new(FaultCode::TargetWrite, detail))
        }
    }
}

/// Sets the attributes while the file is still hidden.
fn set_attributes(posix: &Posix, work: &WorkDirectory, item: &Commit) -> Result<(), Fault> {
    if !item.sets_attributes() || posix.flusher.was_put(item) {
        return Ok(());
    }
    let set = || {
        posix.fault_injector.before(Syscall::SetAttributes, item.temp.as_str())?;
        let (temps, temp) = (work.temps_directory(), item.temp.as_str());
        if let Some(mtime_ns) = item.mtime_ns {
            fs::utimensat(temps, temp, &times(mtime_ns), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        item.mode.map_or(Ok(()), |mode| {
            fs::chmodat(temps, temp, Mode::from_raw_mode(mode & MODE_BITS), AtFlags::empty())
        })
    };
    set().map_err(|errno| {
        fault(Role::Write, errno, format_args!("setting time and permissions of {}", item.target))
    })
}

/// Sets only the modification time.
pub(super) fn times(mtime_ns: i64) -> Timestamps {
    let unchanged = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
    let last_modification =
        Timespec { tv_sec: mtime_ns.div_euclid(NANOSECONDS), tv_nsec: mtime_ns.rem_euclid(NANOSECONDS) as _ };
    Timestamps { last_access: unchanged, last_modification }
}

fn flush_data(posix: &Posix, work: &WorkDirectory, batch: &[Commit], results: &mut [Result<(), Fault>]) {
    let admitted: Vec<usize> = (0..batch.len()).filter(|&at| results[at].is_ok()).collect();
    let items: Vec<&Commit> = admitted.iter().map(|&at| &batch[at]).collect();
    for (at, result) in admitted.into_iter().zip(posix.flusher.flush_data(work, &items)) {
        results[at] = result;
    }
}

/// Renames all flushed files, directory by directory, so that only one directory is open at a time.
fn rename_all(
    posix: &Posix,
    work: &WorkDirectory,
    batch: &[Commit],
    results: &mut [Result<(), Fault>],
    touched: &mut BTreeSet<Vec<u8>>,
) {
    let mut order: Vec<usize> = (0..batch.len()).filter(|&at| results[at].is_ok()).collect();
    order.sort_by_key(|&at| split(batch[at].target.path().as_bytes()).0);
    let mut open: Option<(&[u8], OwnedFd)> = None;
    for at in order {
        let item = &batch[at];
        let (parent, name) = split(item.target.path().as_bytes());
        results[at] = rename_into_place(posix, work, item, parent, name, &mut open, touched);
    }
}

fn rename_into_place<'a>(
    posix: &Posix,
    work: &WorkDirectory,
    item: &Commit,
    parent: &'a [u8],
    name: &[u8],
    open: &mut Option<(&'a [u8], OwnedFd)>,
    touched: &mut BTreeSet<Vec<u8>>,
) -> Result<(), Fault> {
    let failed = |errno| fault(Role::Write, errno, format_args!("naming {}", item.target));
    for _ in 0..PRUNE_RETRIES_MAX {
        if open.as_ref().is_none_or(|(path, _)| *path != parent) {
            *open = make_parent(posix, work, item, parent, touched)?.map(|directory| (parent, directory));
        }
        let Some((_, directory)) = open else { continue };
        let named = match item.replaces {
            Some(_) => replace(posix, work, item, directory, name, parent)?,
            None => rename(posix, work, &item.temp, directory, name),
        };
        match named {
            Ok(()) => {
                touched.insert(parent.to_vec());
                return Ok(());
            }
            Err(Errno::NOENT) => match work.stat(&item.temp) {
                Ok(Some(_)) => *open = None,
                gone => return Err(failed(gone.err().unwrap_or(Errno::NOENT))),
            },
            Err(Errno::EXIST) => {
                if work.case_insensitive {
                    let directory = posix.rooted_tree.open(parent, OFlags::RDONLY | OFlags::DIRECTORY);
                    refuse_case_variant(&directory.map_err(failed)?, name, item)?;
                }
                return Err(failed(Errno::EXIST));
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::NOENT))
}

/// Replaces the expected file and no other. Rejected: exchanging the two names (`RENAME_EXCHANGE`) and
/// checking the result, which closes the race with other writers, but after a crash leaves the old file under
/// the temporary name, where the journal expects bytes of the new one.
fn replace(
    posix: &Posix,
    work: &WorkDirectory,
    item: &Commit,
    directory: &OwnedFd,
    name: &[u8],
    parent: &[u8],
) -> Result<io::Result<()>, Fault> {
    let failed = |errno| fault(Role::Write, errno, format_args!("naming {}", item.target));
    let found = match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => {
            return Ok(rename(posix, work, &item.temp, directory, name));
        }
        found => found.map_err(failed)?,
    };
    if work.case_insensitive {
        let listed = posix.rooted_tree.open(parent, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        refuse_case_variant(&listed, name, item)?;
    }
    // The replaced entry may be a link: the link itself, never its target.
    if Some(Identity::from(&found)) != item.replaces {
        let detail = format!("{} is not what it was when its replacement began, and stays", item.target);
        return Err(Fault::new(FaultCode::NameClash, detail));
    }
    let temp = item.temp.as_str();
    let renamed = posix.fault_injector.before(Syscall::Replace, temp);
    Ok(renamed.and_then(|()| fs::renameat(work.temps_directory(), temp, directory, name)))
}

fn rename(
    posix: &Posix,
    work: &WorkDirectory,
    temp: &TempName,
    directory: &OwnedFd,
    name: &[u8],
) -> io::Result<()> {
    let temps = work.temps_directory();
    let renamed = posix
        .fault_injector
        .before(Syscall::Rename, temp.as_str())
        .and_then(|()| fs::renameat_with(temps, temp.as_str(), directory, name, RenameFlags::NOREPLACE));
    match renamed {
        // The file system has no `RENAME_NOREPLACE`: link, then unlink. A crash between the two leaves a
        // temporary name for a complete file, which `reopen` detects.
        Err(Errno::INVAL | Errno::NOSYS) => {
            posix.fault_injector.before(Syscall::Link, temp.as_str())?;
            fs::linkat(temps, temp.as_str(), directory, name, AtFlags::empty())?;
            fs::unlinkat(temps, temp.as_str(), AtFlags::empty())
        }
        done => done,
    }
}

/// Opens the directory and creates its missing components, without following links. None if a part of it was
/// pruned meanwhile.
fn make_parent(
    posix: &Posix,
    work: &WorkDirectory,
    item: &Commit,
    parent: &[u8],
    touched: &mut BTreeSet<Vec<u8>>,
) -> Result<Option<OwnedFd>, Fault> {
    let failed = |errno| fault(Role::Write, errno, format_args!("making the directory of {}", item.target));
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    if !work.case_insensitive {
        match posix.rooted_tree.open(parent, flags) {
            Err(Errno::NOENT) => {}
            done => return done.map(Some).map_err(failed),
        }
    }
    let mut at = posix.rooted_tree.open(b"", OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
    let mut path: Vec<u8> = Vec::new();
    for name in components(parent) {
        let made = posix
            .fault_injector
            .before(Syscall::MakeDirectory, &String::from_utf8_lossy(name))
            .and_then(|()| fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)));
        match made {
            Ok(()) => {
                touched.insert(path.clone());
                let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                posix.flusher.note_created(&[&path, slash, name].concat());
            }
            Err(Errno::EXIST) if work.case_insensitive => refuse_case_variant(&at, name, item)?,
            Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        at = match step_into(&at, name) {
            Err(Errno::NOENT) => return Ok(None),
            entered => entered.map_err(failed)?,
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    Ok(Some(at))
}

fn step_into(directory: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match fs::openat(&directory, name, flags | OFlags::RDONLY, Mode::empty()) {
        // A directory that is writable but not readable suffices, unless case matters.
        Err(Errno::ACCESS) => fs::openat(&directory, name, flags | OFlags::PATH, Mode::empty()),
        done => done,
    }
}

/// On a case-insensitive storage: an error if `name` is taken by a different spelling.
fn refuse_case_variant(directory: &OwnedFd, name: &[u8], item: &Commit) -> Result<(), Fault> {
    let twin = case_variant_of(directory, name).map_err(|errno| {
        fault(Role::Write, errno, format_args!("listing the directory of {}", item.target))
    })?;
    match twin {
        None => Ok(()),
        Some(twin) => {
            let twin = printable(&String::from_utf8_lossy(&twin));
            let detail = format!("{} meets \"{twin}\", which is there already", item.target);
            Err(Fault::new(FaultCode::CaseTwin, detail))
        }
    }
}
