//! Group commit: set attributes, flush data, rename, flush names, in this order (promises 1 and 4).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::{self, Errno};

use super::Posix;
use super::beneath::{components, split};
use super::fault::{Role, fault};
use super::seam::Call;
use super::work::{Work, twin_of};
use crate::{Commit, Identity, MODE_BITS, TempName};

/// A deletion may prune a directory between our making it and our renaming into it.
const PRUNED_TRIES: usize = 64;
const NANOSECONDS: i64 = 1_000_000_000;

pub(super) fn commit(posix: &Posix, work: &Work, batch: &[Commit]) -> Vec<Result<(), Fault>> {
    let ready = |item| admit(posix, work, item).and_then(|()| adorn(posix, work, item));
    let mut results: Vec<Result<(), Fault>> = batch.iter().map(ready).collect();
    flush_data(posix, work, batch, &mut results);

    let mut touched = BTreeSet::new();
    place_all(posix, work, batch, &mut results, &mut touched);

    if !touched.is_empty()
        && let Err(lost) = posix.flusher.flush_names(work, &posix.beneath, &touched)
    {
        // Some may be there and stay; none is known to.
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
fn admit(posix: &Posix, work: &Work, item: &Commit) -> Result<(), Fault> {
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

/// Sets what is to be set, while nobody sees the file.
fn adorn(posix: &Posix, work: &Work, item: &Commit) -> Result<(), Fault> {
    if !item.sets_attributes() || posix.flusher.was_put(item) {
        return Ok(());
    }
    let set = || {
        posix.seam.before(Call::SetAttributes, item.temp.as_str())?;
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

/// The time of the last modification, and no other.
pub(super) fn times(mtime_ns: i64) -> Timestamps {
    let unchanged = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
    let last_modification =
        Timespec { tv_sec: mtime_ns.div_euclid(NANOSECONDS), tv_nsec: mtime_ns.rem_euclid(NANOSECONDS) as _ };
    Timestamps { last_access: unchanged, last_modification }
}

fn flush_data(posix: &Posix, work: &Work, batch: &[Commit], results: &mut [Result<(), Fault>]) {
    let admitted: Vec<usize> = (0..batch.len()).filter(|&at| results[at].is_ok()).collect();
    let items: Vec<&Commit> = admitted.iter().map(|&at| &batch[at]).collect();
    for (at, result) in admitted.into_iter().zip(posix.flusher.flush_data(work, &items)) {
        results[at] = result;
    }
}

/// Renames everything that is flushed, directory by directory, so that one of them is open at a time.
fn place_all(
    posix: &Posix,
    work: &Work,
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
        results[at] = place(posix, work, item, parent, name, &mut open, touched);
    }
}

fn place<'a>(
    posix: &Posix,
    work: &Work,
    item: &Commit,
    parent: &'a [u8],
    name: &[u8],
    open: &mut Option<(&'a [u8], OwnedFd)>,
    touched: &mut BTreeSet<Vec<u8>>,
) -> Result<(), Fault> {
    let failed = |errno| fault(Role::Write, errno, format_args!("naming {}", item.target));
    for _ in 0..PRUNED_TRIES {
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
                    let directory = posix.beneath.open(parent, OFlags::RDONLY | OFlags::DIRECTORY);
                    refuse_twin(&directory.map_err(failed)?, name, item)?;
                }
                return Err(failed(Errno::EXIST));
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::NOENT))
}

/// Takes the name from the file that may be replaced, and from no other. Rejected: exchanging the two names
/// and looking at what came out, which leaves no moment for another to come in between, but after a crash the
/// old file under the temporary name, where the journal says that bytes of the new one are.
fn replace(
    posix: &Posix,
    work: &Work,
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
        let listed = posix.beneath.open(parent, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        refuse_twin(&listed, name, item)?;
    }
    // A link may be what is to be replaced: itself, never what it leads to.
    if Some(Identity::from(&found)) != item.replaces {
        let detail = format!("{} is not what it was when its replacement began, and stays", item.target);
        return Err(Fault::new(FaultCode::NameClash, detail));
    }
    let temp = item.temp.as_str();
    let renamed = posix.seam.before(Call::Replace, temp);
    Ok(renamed.and_then(|()| fs::renameat(work.temps_directory(), temp, directory, name)))
}

fn rename(posix: &Posix, work: &Work, temp: &TempName, directory: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let temps = work.temps_directory();
    let renamed = posix
        .seam
        .before(Call::Rename, temp.as_str())
        .and_then(|()| fs::renameat_with(temps, temp.as_str(), directory, name, RenameFlags::NOREPLACE));
    match renamed {
        // The file system cannot rename without replacing: a second name, then one less. A crash between
        // the two leaves a temporary name for a complete file, which `reopen` notices.
        Err(Errno::INVAL | Errno::NOSYS) => {
            posix.seam.before(Call::Link, temp.as_str())?;
            fs::linkat(temps, temp.as_str(), directory, name, AtFlags::empty())?;
            fs::unlinkat(temps, temp.as_str(), AtFlags::empty())
        }
        done => done,
    }
}

/// Opens the directory, making what is missing of it. No link is followed on the way. None if a part of it
/// was pruned meanwhile.
fn make_parent(
    posix: &Posix,
    work: &Work,
    item: &Commit,
    parent: &[u8],
    touched: &mut BTreeSet<Vec<u8>>,
) -> Result<Option<OwnedFd>, Fault> {
    let failed = |errno| fault(Role::Write, errno, format_args!("making the directory of {}", item.target));
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    if !work.case_insensitive {
        match posix.beneath.open(parent, flags) {
            Err(Errno::NOENT) => {}
            done => return done.map(Some).map_err(failed),
        }
    }
    let mut at = posix.beneath.open(b"", OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
    let mut path: Vec<u8> = Vec::new();
    for name in components(parent) {
        let made = posix
            .seam
            .before(Call::MakeDirectory, &String::from_utf8_lossy(name))
            .and_then(|()| fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)));
        match made {
            Ok(()) => {
                touched.insert(path.clone());
                let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                posix.flusher.made(&[&path, slash, name].concat());
            }
            Err(Errno::EXIST) if work.case_insensitive => refuse_twin(&at, name, item)?,
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
        // A directory that we may write but not list serves as well, unless case matters.
        Err(Errno::ACCESS) => fs::openat(&directory, name, flags | OFlags::PATH, Mode::empty()),
        done => done,
    }
}

/// On a storage that ignores case: an error if `name` is taken by a name that is spelled differently.
fn refuse_twin(directory: &OwnedFd, name: &[u8], item: &Commit) -> Result<(), Fault> {
    let twin = twin_of(directory, name).map_err(|errno| {
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
