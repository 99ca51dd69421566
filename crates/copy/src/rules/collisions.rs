//! Detects sources that claim the same target name, or a file where another needs a directory.
//!
//! It keeps 96 bits of hash per path instead of the path: at most 71 MB. Two paths of one copy whose hashes
//! collide would be refused wrongly; with two million paths the odds are one in 10^16.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Lfn};

/// Paths that can be checked. Only copies of several sources with names in common need it.
pub const COLLISIONS_MAX: usize = 2_000_000;

type PathHash = [u32; 3];

/// The source's number, and in the lowest bit whether it is a directory: 16 bytes with the hash, twice that
/// as an enum.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NameClaim(u32);

impl NameClaim {
    fn file(by: u32) -> NameClaim {
        NameClaim(by << 1)
    }

    fn directory(by: u32) -> NameClaim {
        NameClaim(by << 1 | 1)
    }

    fn by(self) -> u32 {
        self.0 >> 1
    }

    fn is_directory(self) -> bool {
        self.0 & 1 == 1
    }

    fn kind_text(self) -> &'static str {
        if self.is_directory() { "a directory" } else { "a file" }
    }
}

/// Names claimed so far.
pub struct Collisions {
    claims: HashMap<PathHash, NameClaim>,
    paths_max: usize,
}

impl Default for Collisions {
    fn default() -> Self {
        Collisions { claims: HashMap::new(), paths_max: COLLISIONS_MAX }
    }
}

impl Collisions {
    /// Claims `path` for a file of source number `by`. `sources` are the sources' names, for the message.
    pub fn claim_file(&mut self, path: &Lfn, by: u32, sources: &[impl AsRef<str>]) -> Result<(), Fault> {
        self.claim_parents(path, by, sources)?;
        match self.entry(path.as_str())? {
            Entry::Vacant(free) => {
                free.insert(NameClaim::file(by));
                Ok(())
            }
            Entry::Occupied(taken) => Err(clash(path.shown(), NameClaim::file(by), *taken.get(), sources)),
        }
    }

    /// Claims `path` for a directory, which several sources may share.
    pub fn claim_directory(&mut self, path: &Lfn, by: u32, sources: &[impl AsRef<str>]) -> Result<(), Fault> {
        self.claim_parents(path, by, sources)?;
        self.claim_shared_directory(path.as_str(), by, sources)
    }

    fn claim_parents(&mut self, path: &Lfn, by: u32, sources: &[impl AsRef<str>]) -> Result<(), Fault> {
        let text = path.as_str();
        text.match_indices('/')
            .try_for_each(|(slash, _)| self.claim_shared_directory(&text[..slash], by, sources))
    }

    fn claim_shared_directory(
        &mut self,
        directory: &str,
        by: u32,
        sources: &[impl AsRef<str>],
    ) -> Result<(), Fault> {
        match self.entry(directory)? {
            Entry::Vacant(free) => {
                free.insert(NameClaim::directory(by));
                Ok(())
            }
            Entry::Occupied(taken) if taken.get().is_directory() => Ok(()),
            Entry::Occupied(taken) => {
                Err(clash(printable(directory), NameClaim::directory(by), *taken.get(), sources))
            }
        }
    }

    fn entry(&mut self, path: &str) -> Result<Entry<'_, PathHash, NameClaim>, Fault> {
        if self.claims.len() >= self.paths_max {
            let text = format!(
                "more than {} files in sources that share names: copy the sources one by one",
                self.paths_max
            );
            return Err(Fault::new(FaultCode::TooLarge, text));
        }
        Ok(self.claims.entry(path_hash(path)))
    }
}

fn path_hash(path: &str) -> PathHash {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, path).hash(&mut hasher);
        hasher.finish()
    };
    let (one, other) = (half(0), half(1));
    [one as u32, (one >> 32) as u32, other as u32]
}

fn clash(path: String, new: NameClaim, old: NameClaim, sources: &[impl AsRef<str>]) -> Fault {
    let name =
        |taken: NameClaim| sources.get(taken.by() as usize).map_or("a source", |source| source.as_ref());
    let (first, second) = (name(old), name(new));
    let text = if old.kind_text() == new.kind_text() {
        format!("{first} and {second} both have {} for {path}", new.kind_text())
    } else {
        format!("{path} is {} from {first} and {} from {second}", old.kind_text(), new.kind_text())
    };
    Fault::new(FaultCode::NameClash, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    const SOURCES: [&str; 2] = ["one/", "two/"];

    fn lfn(text: &str) -> Lfn {
        text.parse().unwrap()
    }

    #[test]
    fn both_are_named() {
        let mut names = Collisions::default();
        names.claim_file(&lfn("a/f"), 0, &SOURCES).unwrap();
        names.claim_file(&lfn("a/g"), 1, &SOURCES).unwrap();
        names.claim_directory(&lfn("a"), 1, &SOURCES).unwrap();
        let said = names.claim_file(&lfn("a/f"), 1, &SOURCES).unwrap_err().detail;
        assert_eq!(said, "one/ and two/ both have a file for a/f");
        let said = names.claim_file(&lfn("a"), 1, &SOURCES).unwrap_err().detail;
        assert_eq!(said, "a is a directory from one/ and a file from two/");
        let said = names.claim_file(&lfn("a/f/x"), 1, &SOURCES).unwrap_err().detail;
        assert_eq!(said, "a/f is a file from one/ and a directory from two/");
        assert!(names.claim_directory(&lfn("a/g"), 0, &SOURCES).is_err());
    }

    #[test]
    fn memory_is_bounded() {
        let mut names = Collisions { claims: HashMap::new(), paths_max: 3 };
        names.claim_file(&lfn("a/b/f"), 0, &SOURCES).unwrap();
        assert_eq!(names.claim_file(&lfn("a/b/g"), 0, &SOURCES).unwrap_err().code, FaultCode::TooLarge);
    }

    proptest! {
        /// Files that were all claimed fit into one tree.
        #[test]
        fn claimed_names_fit_in_one_tree(paths in proptest::collection::vec("[ab](/[ab]){0,3}", 1..12)) {
            let mut names = Collisions::default();
            let mut tree: BTreeMap<String, bool> = BTreeMap::new();
            for path in &paths {
                let parents: Vec<&str> = path.match_indices('/').map(|(slash, _)| &path[..slash]).collect();
                let no_file_above = parents.iter().all(|parent| tree.get(*parent) != Some(&true));
                let free = !tree.contains_key(path) && no_file_above;
                // A refused path may have claimed its parents; so does the model.
                for parent in &parents {
                    if tree.get(*parent) == Some(&true) {
                        break;
                    }
                    tree.insert((*parent).to_owned(), false);
                }
                prop_assert_eq!(names.claim_file(&lfn(path), 0, &SOURCES).is_ok(), free, "{}", path);
                if free {
                    tree.insert(path.clone(), true);
                }
            }
        }
    }
}
