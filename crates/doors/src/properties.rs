//! Properties of the clients' own (RFC 4918, section 4): names and values that a door keeps and does not
//! understand.
//!
//! They belong to a path at this door and are kept in a directory of the agent's, a file for each path that
//! has any, read when the door opens. They go where a client of the door copies or moves a file, and end when
//! it is deleted here, or made anew. What others do to the tree is not seen: what they delete has its
//! properties until somebody looks.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use http::StatusCode;
use longhaul_model::{Fault, FaultCode};
use longhaul_security::write_private;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::answer::{Outcome, Refusal};
use crate::request::is_within;
use crate::xml::Name;

/// Bytes of the dead properties of one path, names and values.
const BYTES_OF_PATH_MAX: usize = 64 << 10;
/// Bytes of all dead properties of a door: they are held in memory.
const BYTES_MAX: usize = 16 << 20;
const ENDING: &str = ".json";

/// Elements by property name, as they are sent in an answer.
pub(crate) type DeadProperties = BTreeMap<Name, String>;

/// A property to set to this element, or to remove.
pub(crate) type Edit = (Name, Option<String>);

pub(crate) struct Properties {
    /// None: they end with the door.
    directory: Option<PathBuf>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_path: BTreeMap<String, PathProperties>,
    bytes: usize,
    next_file: u64,
}

struct PathProperties {
    own: DeadProperties,
    file: u64,
}

/// One file.
#[derive(Serialize, Deserialize)]
struct StoredFile {
    path: String,
    /// Namespace, name and element.
    properties: Vec<(String, String, String)>,
}

fn bytes_of(path: &str, own: &DeadProperties) -> usize {
    let each = |(name, element): (&Name, &String)| name.space.len() + name.local.len() + element.len();
    path.len() + own.iter().map(each).sum::<usize>()
}

fn full(why: String) -> Refusal {
    Refusal::new(StatusCode::INSUFFICIENT_STORAGE, why)
}

impl Properties {
    pub(crate) fn open(directory: Option<PathBuf>) -> Result<Properties, Fault> {
        let mut table = Table::default();
        if let Some(directory) = &directory {
            let failed = |error: std::io::Error| {
                Fault::new(FaultCode::Internal, format!("{}: {error}", directory.display()))
                    .with_source(error)
            };
            fs::create_dir_all(directory).map_err(failed)?;
            for entry in fs::read_dir(directory).map_err(failed)? {
                table.read(&entry.map_err(failed)?.path());
            }
        }
        Ok(Properties { directory, table: Mutex::new(table) })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    pub(crate) fn get(&self, path: &str) -> DeadProperties {
        self.table().by_path.get(path).map(|kept| kept.own.clone()).unwrap_or_default()
    }

    /// All of the edits, in their order, or none.
    pub(crate) fn change(&self, path: &str, edits: Vec<Edit>) -> Outcome<()> {
        let mut table = self.table();
        let mut own = table.by_path.get(path).map(|kept| kept.own.clone()).unwrap_or_default();
        for (name, element) in edits {
            match element {
                Some(element) => drop(own.insert(name, element)),
                None => drop(own.remove(&name)),
            }
        }
        self.put(&mut table, path, own)
    }

    /// Drops the properties of a path that was deleted or made anew.
    pub(crate) fn remove_all(&self, path: &str) {
        let mut table = self.table();
        for path in table.within(path) {
            self.remove(&mut table, &path);
        }
    }

    /// Gives a copied or moved path the properties of its source.
    pub(crate) fn copy(&self, from: &str, to: &str, shallow: bool) -> Outcome<()> {
        let mut table = self.table();
        let all = table.within(from);
        for path in all.into_iter().filter(|path| !shallow || path == from) {
            let Some(own) = table.by_path.get(&path).map(|kept| kept.own.clone()) else { continue };
            self.put(&mut table, &format!("{to}{}", &path[from.len()..]), own)?;
        }
        Ok(())
    }

    fn put(&self, table: &mut Table, path: &str, own: DeadProperties) -> Outcome<()> {
        if own.is_empty() {
            self.remove(table, path);
            return Ok(());
        }
        let before = table.by_path.get(path).map_or(0, |kept| bytes_of(path, &kept.own));
        let bytes = bytes_of(path, &own);
        if bytes > BYTES_OF_PATH_MAX {
            return Err(full(format!("its properties would have more than {BYTES_OF_PATH_MAX} bytes")));
        }
        if table.bytes - before + bytes > BYTES_MAX {
            return Err(full(format!("properties at this door would have more than {BYTES_MAX} bytes")));
        }
        let file = table.by_path.get(path).map_or(table.next_file, |kept| kept.file);
        self.store(path, &own, file)?;
        table.next_file = table.next_file.max(file + 1);
        table.bytes = table.bytes - before + bytes;
        table.by_path.insert(path.to_owned(), PathProperties { own, file });
        Ok(())
    }

    fn store(&self, path: &str, own: &DeadProperties, file: u64) -> Result<(), Fault> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let each =
            |(name, element): (&Name, &String)| (name.space.clone(), name.local.clone(), element.clone());
        let stored = StoredFile { path: path.to_owned(), properties: own.iter().map(each).collect() };
        let failed =
            |why: String| Fault::new(FaultCode::Internal, format!("properties cannot be kept: {why}"));
        let text =
            serde_json::to_vec(&stored).map_err(|error| failed(error.to_string()).with_source(error))?;
        let file = directory.join(format!("{file}{ENDING}"));
        write_private(&file, &text).map_err(|error| failed(error.to_string()).with_source(error))
    }

    fn remove(&self, table: &mut Table, path: &str) {
        let Some(kept) = table.by_path.remove(path) else { return };
        table.bytes -= bytes_of(path, &kept.own);
        let Some(directory) = &self.directory else { return };
        if let Err(error) = fs::remove_file(directory.join(format!("{}{ENDING}", kept.file))) {
            tracing::warn!(%error, "properties of what is gone come back with the next start");
        }
    }
}

impl Table {
    /// A file that cannot be read is left as it is, and told.
    fn read(&mut self, file: &Path) {
        let number = file.file_name().and_then(|name| name.to_str()?.strip_suffix(ENDING)?.parse().ok());
        let Some(number) = number else { return };
        self.next_file = self.next_file.max(number + 1);
        let read = || -> Result<StoredFile, std::io::Error> {
            if fs::metadata(file)?.len() > 8 * BYTES_OF_PATH_MAX as u64 {
                return Err(std::io::Error::other("larger than any that is written here"));
            }
            Ok(serde_json::from_slice(&fs::read(file)?)?)
        };
        match read() {
            Ok(StoredFile { path, properties }) => {
                let own: DeadProperties = properties
                    .into_iter()
                    .map(|(space, local, element)| (Name { space, local }, element))
                    .collect();
                self.bytes += bytes_of(&path, &own);
                self.by_path.insert(path, PathProperties { own, file: number });
            }
            Err(error) => tracing::warn!(file = %file.display(), %error, "properties cannot be read"),
        }
    }

    /// The path, and all below it, that have any.
    fn within(&self, path: &str) -> Vec<String> {
        let from = (Bound::Included(path), Bound::Unbounded);
        let found = self.by_path.range::<str, _>(from).map(|(found, _)| found);
        // Names between, such as `a.b` of `a` and `a/b`, belong to neighbours.
        found
            .take_while(|found| found.starts_with(path))
            .filter(|found| is_within(found, path))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(local: &str) -> Name {
        Name { space: "urn:x".into(), local: local.into() }
    }

    fn set(local: &str, value: &str) -> Edit {
        (name(local), Some(value.to_owned()))
    }

    #[test]
    fn they_follow_what_clients_do() {
        let properties = Properties::open(None).unwrap();
        for path in ["a", "a.b", "a/b", "a/b/c", "ab"] {
            properties.change(path, vec![set("p", path)]).unwrap();
        }
        properties.copy("a", "z", false).unwrap();
        assert_eq!(properties.get("z/b/c")[&name("p")], "a/b/c");
        properties.copy("a", "y", true).unwrap();
        assert!(properties.get("y/b").is_empty());
        properties.remove_all("a");
        for (path, left) in [("a", false), ("a/b", false), ("a/b/c", false), ("a.b", true), ("ab", true)] {
            assert_eq!(!properties.get(path).is_empty(), left, "{path}");
        }
        properties.change("ab", vec![(name("p"), None), (name("none"), None)]).unwrap();
        properties.remove_all("");
        let table = properties.table();
        assert_eq!((table.by_path.len(), table.bytes), (0, 0), "nothing is counted that is not there");
    }

    #[test]
    fn they_outlive_the_door() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Properties::open(Some(directory.path().join("properties"))).unwrap();
        let properties = open();
        properties.change("a/ü", vec![set("p", "1"), set("q", "2")]).unwrap();
        properties.change("a/ü", vec![set("p", "3")]).unwrap();
        properties.change("gone", vec![set("p", "1")]).unwrap();
        properties.remove_all("gone");
        drop(properties);
        fs::write(directory.path().join("properties/77.json"), "{").unwrap();
        let again = open();
        let own = again.get("a/ü");
        assert_eq!((own[&name("p")].as_str(), own[&name("q")].as_str()), ("3", "2"));
        assert!(again.get("gone").is_empty());
        again.change("new", vec![set("p", "1")]).unwrap();
        assert!(
            directory.path().join("properties/78.json").exists(),
            "what cannot be read is not written over"
        );
    }

    #[test]
    fn they_have_bounds_and_keep_what_was() {
        let properties = Properties::open(None).unwrap();
        properties.change("a", vec![set("p", "1")]).unwrap();
        let large = "x".repeat(BYTES_OF_PATH_MAX);
        let refused = properties.change("a", vec![set("p", "2"), set("q", &large)]).unwrap_err();
        assert_eq!(refused.status, StatusCode::INSUFFICIENT_STORAGE);
        assert_eq!(properties.get("a")[&name("p")], "1");
        let half = "x".repeat(BYTES_OF_PATH_MAX / 2);
        let taken =
            (0..2_000).take_while(|n| properties.change(&format!("{n}"), vec![set("p", &half)]).is_ok());
        assert!((500..520).contains(&taken.count()));
    }
}
