//! The directory tree of several pools. A directory may be in any number of them; it is made in one, and the
//! others get it with the first file that they hold below it.

use longhaul_model::{Blame, Fault, FaultCode, Pfn, PoolState};

use super::PooledStorage;
use super::pool::at_target;
use crate::{Directories, Entry, Identity, Listing};

impl PooledStorage {
    fn pfn(&self, path: &str) -> Result<Pfn, Fault> {
        Pfn::new(self.name.clone(), path).map_err(Fault::from)
    }

    /// The pools in service that have an entry at the path. One that cannot tell counts as having none.
    ///
    /// # Errors
    /// `BadName` for a path that cannot be one.
    pub(super) fn holders(&self, path: &str) -> Result<Vec<(usize, Entry)>, Fault> {
        let mut holders = Vec::new();
        for (place, storage) in self.serving() {
            let Some(tree) = storage.directories() else { continue };
            match tree.stat_entry(path) {
                Ok(found) => holders.extend(found.map(|entry| (place, entry))),
                Err(fault) if fault.blame == Blame::Request => return Err(fault),
                Err(_) => {}
            }
        }
        Ok(holders)
    }

    /// Whether no pool has a file where the path has a directory.
    pub(super) fn is_below_directories(&self, path: &str) -> Result<bool, Fault> {
        let mut inner = path;
        while let Some((parent, _)) = inner.rsplit_once('/') {
            let holders = self.holders(parent)?;
            if let Some((_, entry)) = holders.first() {
                return Ok(entry.is_directory);
            }
            inner = parent;
        }
        Ok(true)
    }

    /// Does something with the tree of a pool.
    fn in_tree<T>(
        &self,
        place: usize,
        work: impl FnOnce(&dyn Directories) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let storage = self.pools[place].storage().map_err(at_target)?;
        let tree = storage.directories();
        work(tree.ok_or_else(|| Fault::new(FaultCode::Internal, "a pool is no tree"))?)
    }

    /// Fails unless the directory that the path lies in is there.
    fn check_parent(&self, at: &Pfn) -> Result<(), Fault> {
        let parent = parent_of(at.path());
        if parent.is_empty() || self.holders(parent)?.first().is_some_and(|(_, entry)| entry.is_directory) {
            return Ok(());
        }
        let detail = format!("the directory that {at} should lie in is not there");
        Err(Fault::new(FaultCode::Conflict, detail))
    }

    /// Makes the directories of a path in one pool, as others have them.
    fn make_parents(&self, place: usize, path: &str) -> Result<(), Fault> {
        let make = |tree: &dyn Directories, directory: &str| match tree.stat_entry(directory)? {
            None => tree.make_directory(&self.pfn(directory)?),
            Some(_) => Ok(()),
        };
        let mut directories = path.match_indices('/').map(|(end, _)| &path[..end]);
        self.in_tree(place, |tree| directories.try_for_each(|directory| make(tree, directory)))
    }

    /// Renames what each of the pools has, over what it has under the other name; all of them, or none.
    fn rename_in(
        &self,
        places: &[usize],
        (from, to): (&Pfn, &Pfn),
        replaced: &[(usize, Entry)],
    ) -> Result<(), Fault> {
        for (number, place) in places.iter().enumerate() {
            let over = replaced.iter().find(|(other, _)| other == place).map(|(_, entry)| &entry.identity);
            let renamed = self
                .make_parents(*place, to.path())
                .and_then(|()| self.in_tree(*place, |tree| tree.rename(from, to, over)));
            if let Err(fault) = renamed {
                for done in &places[..number] {
                    let back = self.in_tree(*done, |tree| tree.rename(to, from, None));
                    if let Err(other) = back {
                        tracing::error!(storage = %self.name, pool = self.pools[*done].name, %from, %to,
                            fault = %other.chain(), "a name that could not be changed in all pools \
                            is changed in this one");
                    }
                }
                return Err(fault);
            }
        }
        Ok(())
    }
}

impl Directories for PooledStorage {
    fn stat_entry(&self, path: &str) -> Result<Option<Entry>, Fault> {
        let mut unknown = None;
        for place in 0..self.pools.len() {
            match self.in_tree(place, |tree| tree.stat_entry(path)) {
                Ok(Some(entry)) => return Ok(Some(entry)),
                Ok(None) => {}
                Err(fault) => unknown = unknown.or(Some(fault)),
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Listing, Fault> {
        let mut pages = Vec::new();
        let mut missing = None;
        for place in 0..self.pools.len() {
            match self.in_tree(place, |tree| tree.list(path, after, limit)) {
                Ok(page) => pages.push(page),
                Err(fault) if fault.code == FaultCode::SourceMissing => missing = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        if let Some(fault) = missing.filter(|_| pages.is_empty()) {
            return Err(fault);
        }
        Ok(merge(pages, limit))
    }

    fn make_directory(&self, at: &Pfn) -> Result<(), Fault> {
        let clash = || Fault::new(FaultCode::NameClash, format!("{at} is there already"));
        let _name = self.reserved.reserve(at.path()).ok_or_else(clash)?;
        if !self.holders(at.path())?.is_empty() {
            return Err(clash());
        }
        self.check_parent(at)?;
        let mut open = (0..self.pools.len()).filter(|place| {
            let pool = &self.pools[*place];
            pool.state == PoolState::Open && pool.storage().is_ok()
        });
        let place = open.next().ok_or_else(|| self.takes_nothing())?;
        self.make_parents(place, at.path())?;
        self.in_tree(place, |tree| tree.make_directory(at))
    }

    fn remove_directory(&self, at: &Pfn) -> Result<(), Fault> {
        self.all_serve().map_err(at_target)?;
        let holders = self.holders(at.path())?;
        if holders.is_empty() {
            return Err(Fault::new(FaultCode::SourceMissing, at.to_string()));
        }
        if holders.iter().any(|(_, entry)| !entry.is_directory) {
            return Err(Fault::new(FaultCode::NameClash, format!("{at} is a file")));
        }
        for (place, _) in &holders {
            let page = self.in_tree(*place, |tree| tree.list(at.path(), None, 1))?;
            if !page.entries.is_empty() || page.more_after.is_some() {
                return Err(Fault::new(FaultCode::Conflict, format!("{at} is not empty")));
            }
        }
        for (place, _) in holders {
            match self.in_tree(place, |tree| tree.remove_directory(at)) {
                Err(fault) if fault.code == FaultCode::SourceMissing => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    fn remove_file(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        // Whoever moves it from pool to pool gives way.
        let _name = self.reserved.reserve(at.path());
        let holders = self.holders(at.path())?;
        if holders.is_empty() {
            return self.all_serve().map_err(at_target);
        }
        for (number, (place, entry)) in holders.iter().enumerate() {
            let version = if number == 0 { expected } else { &entry.identity };
            self.in_tree(*place, |tree| tree.remove_file(at, version))?;
        }
        Ok(())
    }

    /// A file changes its name in its pool, in one step. A directory does so pool by pool.
    fn rename(&self, from: &Pfn, to: &Pfn, replaces: Option<&Identity>) -> Result<(), Fault> {
        let clash = |what: &str| Fault::new(FaultCode::NameClash, format!("{to} {what}"));
        let busy = || clash("or the file itself is being changed");
        let _from = self.reserved.reserve(from.path()).ok_or_else(busy)?;
        let holders = self.holders(from.path())?;
        if holders.is_empty() {
            self.all_serve().map_err(at_target)?;
            return Err(Fault::new(FaultCode::SourceMissing, from.to_string()));
        }
        if to.path().starts_with(&format!("{}/", from.path())) {
            return Err(Fault::new(FaultCode::Conflict, format!("{to} lies in {from} itself")));
        }
        let _to = self.reserved.reserve(to.path()).ok_or_else(busy)?;
        let replaced = self.holders(to.path())?;
        if replaced.iter().any(|(_, entry)| entry.is_directory || replaces != Some(&entry.identity)) {
            return Err(clash("is there, and is not what is to be replaced"));
        }
        self.check_parent(to)?;
        let places: Vec<usize> = holders.iter().map(|(place, _)| *place).collect();
        self.rename_in(&places, (from, to), &replaced)?;
        for (place, entry) in replaced.iter().filter(|(place, _)| !places.contains(place)) {
            self.in_tree(*place, |tree| tree.remove_file(to, &entry.identity))?;
        }
        Ok(())
    }
}

/// The directory of a path; empty for the root.
fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// One page of what several have; what is in more than one is shown once. Names behind the end of any page
/// are not known yet.
fn merge(pages: Vec<Listing>, limit: usize) -> Listing {
    let known_to = pages.iter().filter_map(|page| page.more_after.clone()).min();
    let real_path = pages.iter().find_map(|page| page.real_path.clone());
    let mut entries: Vec<Entry> = pages.into_iter().flat_map(|page| page.entries).collect();
    entries.retain(|entry| known_to.as_ref().is_none_or(|end| entry.name <= *end));
    // Stable: of one name the first pool's entry comes first.
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    entries.dedup_by(|one, other| one.name == other.name);
    let more_after = match entries.len() > limit {
        true => {
            entries.truncate(limit);
            entries.last().map(|entry| entry.name.clone())
        }
        false => known_to,
    };
    Listing { entries, more_after, real_path }
}
