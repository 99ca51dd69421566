//! Files change their pool: from one that is drained to the best of the others.
//!
//! The copy is read back and compared before it gets the name in its new pool, and only then does the old one
//! go: a reader finds the one or the other at any time. If the agent ends between the two, both are there,
//! and the next pass compares them. Whoever wants the name meanwhile, to delete or replace the file, gets it
//! at once.

use std::ops::ControlFlow;

use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Hasher, Pfn, PoolState};

use super::PooledStorage;
use super::pool::{DrainStatus, Pool, PoolFile};
use super::reserved_names::ReservedName;
use crate::{Commit, SourceFile, Storage, TargetFile, TempName, Visit};

/// Bytes that are read and written at once.
const COPY_BYTES: usize = 1 << 20;
/// Files that one look at a pool finds.
const LISTED_MAX: usize = 1_000;

/// What became of a file that was to leave its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocation {
    /// It lies in another pool now.
    Moved,
    /// It is not there any more.
    Gone,
    /// Somebody else wants its name, or it has changed: later.
    Busy,
}

impl PooledStorage {
    /// The names of the pools that are drained.
    pub fn draining(&self) -> Vec<&str> {
        let draining = self.pools.iter().filter(|pool| pool.state == PoolState::Draining);
        draining.map(|pool| pool.name.as_str()).collect()
    }

    /// Some files of a pool, in name order, but those for which `is_left` says so.
    ///
    /// # Errors
    /// The pool is out of service, or cannot be listed.
    pub fn files_in(&self, pool: &str, is_left: impl Fn(&Pfn) -> bool) -> Result<Vec<Pfn>, Fault> {
        let mut files = Vec::new();
        let storage = self.pool_named(pool)?.1.storage()?;
        storage.walk("", &mut |visit| {
            if let Visit::File { at, .. } = visit
                && !is_left(&at)
            {
                files.push(at);
            }
            match files.len() < LISTED_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok(files)
    }

    /// Moves a file out of a pool. `temp` is unused.
    ///
    /// # Errors
    /// The file cannot be read, no other pool takes it, or another pool has a different file of that name.
    pub fn relocate(&self, pool: &str, at: &Pfn, temp: &TempName) -> Result<Relocation, Fault> {
        let (from, pool) = self.pool_named(pool)?;
        let Some(name) = self.reserved.reserve_giving_way(at.path()) else { return Ok(Relocation::Busy) };
        let storage = pool.storage()?;
        let source = match storage.open(at) {
            Err(fault) if fault.code == FaultCode::SourceMissing => return Ok(Relocation::Gone),
            opened => opened?,
        };
        let done = match self.other_copy(at, from)? {
            Some(copy) => compare(at, (&*source, &*copy), &name)?,
            None => self.copy((&*source, at, temp), &name)?,
        };
        if !done {
            return Ok(Relocation::Busy);
        }
        storage.delete(at, &source.identity())?;
        Ok(Relocation::Moved)
    }

    /// Notes how far the draining of a pool is, for its status.
    pub fn note_drain(&self, pool: &str, status: DrainStatus) {
        if let Ok((_, pool)) = self.pool_named(pool) {
            *pool.drain.lock() = Some(status);
        }
    }

    fn pool_named(&self, name: &str) -> Result<(usize, &Pool), Fault> {
        let found = self.pools.iter().enumerate().find(|(_, pool)| pool.name == name);
        let missing = || Fault::new(FaultCode::NotFound, format!("{} has no pool {name}", self.name));
        found.map(|(place, pool)| (place, &**pool)).ok_or_else(missing)
    }

    /// What another pool has under this name.
    fn other_copy(&self, at: &Pfn, from: usize) -> Result<Option<Box<dyn SourceFile>>, Fault> {
        for (_, storage) in self.serving().filter(|(place, _)| *place != from) {
            if storage.stat(at)?.is_some() {
                return storage.open(at).map(Some);
            }
        }
        Ok(None)
    }

    /// Copies a file into the best pool; false if it has changed, or somebody wants its name.
    fn copy(
        &self,
        (source, at, temp): (&dyn SourceFile, &Pfn, &TempName),
        name: &ReservedName<'_>,
    ) -> Result<bool, Fault> {
        let identity = source.identity();
        let make = |storage: &dyn Storage| storage.create(temp, Some(at), identity.size);
        // Without the name: the pool that has the file is the one that it leaves.
        let (place, file) = self.place((temp, None, identity.size), make)?;
        let target = PoolFile::new(file, &self.pools[place], identity.size, self.clock.clone());
        let copied = copy_bytes(source, &target, name).and_then(|copied| match copied {
            true => self.commit_copy(
                place,
                Commit {
                    mtime_ns: Some(identity.mtime_ns),
                    ..Commit::new(temp.clone(), at.clone(), identity.size)
                },
            ),
            false => Ok(false),
        });
        if !matches!(copied, Ok(true)) {
            self.remove_temp(temp)?;
        }
        copied
    }

    fn commit_copy(&self, place: usize, item: Commit) -> Result<bool, Fault> {
        self.commit_in(place, &[&item]).into_iter().next().unwrap_or(Ok(())).map(|()| true)
    }
}

/// Copies and compares; false if the source has changed, or somebody wants its name.
fn copy_bytes(
    source: &dyn SourceFile,
    target: &dyn TargetFile,
    name: &ReservedName<'_>,
) -> Result<bool, Fault> {
    let mut buffer = vec![0; COPY_BYTES];
    let Some(read) = digest(source.identity().size, &mut buffer, name, |buffer, offset| {
        source.read_exact_at(buffer, offset)?;
        target.write_at(buffer, offset)
    })?
    else {
        return Ok(false);
    };
    target.flush()?;
    let written = digest(source.identity().size, &mut buffer, name, |buffer, offset| {
        match target.read_at(buffer, offset)? {
            read if read == buffer.len() => Ok(()),
            _ => Err(Fault::new(FaultCode::TargetWrite, "what was written is shorter than it was")),
        }
    })?;
    let Some(written) = written else { return Ok(false) };
    if written != read {
        return Err(Fault::new(FaultCode::TargetWrite, "what was written does not read back as it was"));
    }
    is_unchanged(source)
}

/// Whether two files are equal; an error if they are not.
fn compare(
    at: &Pfn,
    (one, other): (&dyn SourceFile, &dyn SourceFile),
    name: &ReservedName<'_>,
) -> Result<bool, Fault> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut of = |file: &dyn SourceFile| {
        digest(file.identity().size, &mut buffer, name, |buffer, offset| file.read_exact_at(buffer, offset))
    };
    let (Some(first), Some(second)) = (of(one)?, of(other)?) else { return Ok(false) };
    if first != second || one.identity().size != other.identity().size {
        let detail = format!("{at} is another file in another pool: delete the wrong one there");
        return Err(Fault::new(FaultCode::NameClash, detail));
    }
    is_unchanged(one)
}

fn is_unchanged(file: &dyn SourceFile) -> Result<bool, Fault> {
    Ok(file.identity_now()? == file.identity())
}

/// The digest of what passes by; none if somebody wants the name.
fn digest(
    size: u64,
    buffer: &mut [u8],
    name: &ReservedName<'_>,
    mut pass: impl FnMut(&mut [u8], u64) -> Result<(), Fault>,
) -> Result<Option<DigestSet>, Fault> {
    let mut hasher = Hasher::new([Algorithm::Blake3]);
    let mut offset = 0;
    while offset < size {
        if name.is_wanted() {
            return Ok(None);
        }
        let len = (size - offset).min(buffer.len() as u64) as usize;
        pass(&mut buffer[..len], offset)?;
        hasher.update(&buffer[..len]);
        offset += len as u64;
    }
    Ok(Some(hasher.finish()))
}
