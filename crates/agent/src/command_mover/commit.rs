//! Verifies and commits files that a command has written: all bytes are read again, and only a file with the
//! catalog's digest gets its final name. Blocking.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use longhaul_engine::{FetchFile, Success};
use longhaul_model::{Blame, DigestSet, Fault, FaultCode, Hasher, Pfn, Verification};
use longhaul_storage::{Commit, Identity, Storage, TempName};
use rustix::fs::OFlags;

use crate::attempt_temps::AttemptTemps;
use crate::stop::StopFlag;
use crate::tasks::digest;

/// Bytes of one read: large enough that the call costs nothing beside the hashing.
const BUFFER_BYTES: usize = 1 << 20;

/// Removes temporary files of an earlier run: each attempt starts over.
pub(super) fn remove_stale_temps(storage: &dyn Storage, own: &AttemptTemps) -> Result<(), Fault> {
    let temps = storage.temps()?;
    temps.iter().filter(|temp| own.contains(temp)).try_for_each(|temp| storage.remove_temp(temp))
}

/// What is there under a file's final name.
pub(super) enum PresentFile {
    None,
    Right(Success),
    /// It is expected to be damaged, and is: it may be replaced.
    Damaged(Identity),
}

/// Finds the file under its final name; anything else there is a fault, unless it may be replaced.
pub(super) fn find_present(
    storage: &dyn Storage,
    at: &Pfn,
    file: &FetchFile,
    stop: &StopFlag,
) -> Result<PresentFile, Fault> {
    let here = |fault: Fault| fault.blaming(Blame::Target);
    let Some(found) = storage.stat(at).map_err(here)? else { return Ok(PresentFile::None) };
    match compare_present(storage, at, file, &found, stop) {
        Ok(success) => Ok(PresentFile::Right(success)),
        Err(_) if file.replaces_damaged => Ok(PresentFile::Damaged(found)),
        Err(fault) => Err(fault),
    }
}

fn compare_present(
    storage: &dyn Storage,
    at: &Pfn,
    file: &FetchFile,
    found: &Identity,
    stop: &StopFlag,
) -> Result<Success, Fault> {
    let here = |fault: Fault| fault.blaming(Blame::Target);
    let clash = |why: String| Err(Fault::new(FaultCode::NameClash, format!("{at}: {why}")));
    if found.size != file.size {
        return clash(format!("it has {} bytes, {} are expected", found.size, file.size));
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    let (digests, _) =
        digest::digest(storage, at, file.digests.algorithms(), &mut buffer, stop).map_err(here)?;
    if let Some((wanted, is)) = file.digests.contradiction(&digests) {
        return clash(format!("it has {is}, {wanted} is expected"));
    }
    storage.flush_present(std::slice::from_ref(at)).map_err(here)?;
    Ok(Success { digests, verification: Verification::Readback, already_there: true })
}

/// A file that the command claims to have written.
pub(super) struct WrittenFile<'a> {
    pub(super) file: &'a FetchFile,
    pub(super) temp: &'a TempName,
    pub(super) at: &'a Pfn,
    pub(super) replaces: Option<Identity>,
}

/// Verifies all files and commits the right ones. One result each, in order.
pub(super) fn verify_and_commit(
    storage: &dyn Storage,
    arrived: &[WrittenFile<'_>],
    stop: &StopFlag,
) -> Vec<Result<Success, Fault>> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let read: Vec<_> = arrived.iter().map(|one| verify_written(storage, one, &mut buffer, stop)).collect();
    let right: Vec<&WrittenFile<'_>> =
        arrived.iter().zip(&read).filter(|(_, read)| read.is_ok()).map(|(one, _)| one).collect();
    let commit = |one: &&WrittenFile<'_>| Commit {
        replaces: one.replaces.clone(),
        ..Commit::new(one.temp.clone(), one.at.clone(), one.file.size)
    };
    let commits: Vec<Commit> = right.iter().map(commit).collect();
    let mut committed = storage.commit(&commits).into_iter();
    let results = arrived.iter().zip(read).map(|(one, read)| {
        let (digests, identity) = read?;
        committed.next().unwrap_or_else(|| Err(Fault::new(FaultCode::Internal, "a commit has no result")))?;
        check_unchanged(storage, one, &identity)?;
        Ok(Success { digests, verification: Verification::Readback, already_there: false })
    });
    results.collect()
}

/// The digests of the temporary file, if they match the catalog's.
fn verify_written(
    storage: &dyn Storage,
    one: &WrittenFile<'_>,
    buffer: &mut [u8],
    stop: &StopFlag,
) -> Result<(DigestSet, Identity), Fault> {
    let lfn = one.file.lfn.shown();
    let untrue = |why: String| {
        Fault::new(FaultCode::MoverFailed, format!("the mover reported {lfn} as copied, but {why}"))
    };
    let path = storage.temp_path(one.temp).ok_or_else(|| untrue("its storage has no paths".into()))?;
    // The command may have put anything there: follow no link, wait for no pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(&path);
    let mut file =
        opened.map_err(|error| untrue(format!("{}: {error}", path.display())).with_source(error))?;
    let failed = |error: std::io::Error| {
        Fault::new(FaultCode::TargetWrite, format!("reading {lfn} again at {}: {error}", path.display()))
            .with_source(error)
    };
    let before = file.metadata().map_err(failed)?;
    if !before.is_file() || before.nlink() != 1 {
        return Err(untrue(format!("{} is no file of its own", path.display())));
    }
    if before.len() != one.file.size {
        return Err(untrue(format!("it has {} bytes, {} are registered", before.len(), one.file.size)));
    }
    let digests = hash(&mut file, one.file, buffer, stop).map_err(failed)?;
    let Some(digests) = digests else { return Err(Fault::new(FaultCode::Interrupted, lfn)) };
    let identity = |is: &std::fs::Metadata| Identity {
        size: is.len(),
        mtime_ns: is.mtime().saturating_mul(1_000_000_000).saturating_add(is.mtime_nsec()),
        inode: is.ino(),
    };
    let after = file.metadata().map_err(failed)?;
    if identity(&after) != identity(&before) {
        return Err(untrue("it changed while it was read: something still writes to it".into()));
    }
    if let Some((wanted, is)) = one.file.digests.contradiction(&digests) {
        let detail =
            format!("the mover reported {lfn} as copied: the bytes have {is}, {wanted} is registered");
        return Err(Fault::new(FaultCode::Corrupted, detail));
    }
    Ok((digests, identity(&after)))
}

/// None if told to stop.
fn hash(
    file: &mut File,
    of: &FetchFile,
    buffer: &mut [u8],
    stop: &StopFlag,
) -> std::io::Result<Option<DigestSet>> {
    let mut hasher = Hasher::new(of.digests.algorithms());
    // Bounded: a file may grow for ever.
    let mut left = of.size.saturating_add(1);
    while left > 0 {
        if stop.is_set() {
            return Ok(None);
        }
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = file.read(&mut buffer[..most])?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        left -= read as u64;
    }
    Ok(Some(hasher.finish()))
}

/// Checks that the committed file is the one that was read: a child of the command may have written in
/// between.
fn check_unchanged(storage: &dyn Storage, one: &WrittenFile<'_>, read: &Identity) -> Result<(), Fault> {
    let named = storage.stat(one.at).map_err(|fault| fault.blaming(Blame::Target))?;
    match named {
        Some(named) if named == *read => Ok(()),
        Some(named) => {
            storage.delete(one.at, &named)?;
            let detail =
                format!("{} changed after it was read: something still writes to it", one.file.lfn.shown());
            Err(Fault::new(FaultCode::MoverFailed, detail))
        }
        None => Err(Fault::new(FaultCode::TargetWrite, format!("{} is gone", one.at))),
    }
}
