//! Two sets of files, name by name and byte by byte.

use std::collections::BTreeMap;
use std::path::Path;

use super::survey::{Content, stored};

/// Names shown of each kind of difference.
const SHOWN_PER_KIND_MAX: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub missing: Vec<String>,
    pub extra: Vec<String>,
    pub different: Vec<String>,
}

impl Difference {
    pub fn is_none(&self) -> bool {
        *self == Difference::default()
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (kind, names) in
            [("missing", &self.missing), ("extra", &self.extra), ("different", &self.different)]
        {
            writeln!(
                f,
                "{} {kind}: {}",
                names.len(),
                names.iter().take(SHOWN_PER_KIND_MAX).cloned().collect::<Vec<_>>().join("   ")
            )?;
        }
        Ok(())
    }
}

pub fn compare(expected: &BTreeMap<Vec<u8>, Content>, found: &BTreeMap<Vec<u8>, Content>) -> Difference {
    let mut difference = Difference::default();
    for (name, content) in expected {
        match found.get(name) {
            None => difference.missing.push(name.escape_ascii().to_string()),
            Some(other) if other != content => {
                difference
                    .different
                    .push(format!("{} ({other:?} instead of {content:?})", name.escape_ascii()));
            }
            Some(_) => {}
        }
    }
    let extra = found.keys().filter(|name| !expected.contains_key(*name));
    difference.extra = extra.map(|name| name.escape_ascii().to_string()).collect();
    difference
}

/// The storage at `root` holds exactly these files, below `prefix` (empty, or ending in `/`).
#[track_caller]
pub fn assert_same(expected: &BTreeMap<Vec<u8>, Content>, root: &Path, prefix: &str) {
    let expected: BTreeMap<Vec<u8>, Content> =
        expected.iter().map(|(name, content)| ([prefix.as_bytes(), name].concat(), *content)).collect();
    let difference = compare(&expected, &stored(root));
    assert!(difference.is_none(), "{} is not as it should be\n{difference}", root.display());
}

#[cfg(test)]
mod tests {
    use super::super::{add_odd, make, survey};
    use super::*;
    use crate::Random;
    use std::fs;

    #[test]
    fn each_kind_of_difference_is_found() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for root in [one.path(), two.path()] {
            make(root, 20, 100_000, &mut Random::new(1));
        }
        let files = survey(one.path()).files;
        assert_same(&files, two.path(), "");
        let names: Vec<_> = files.keys().map(|name| super::super::survey::path(name)).collect();
        fs::remove_file(two.path().join(&names[0])).unwrap();
        let mut bytes = fs::read(two.path().join(&names[5])).unwrap();
        bytes.push(0);
        fs::write(two.path().join(&names[5]), bytes).unwrap();
        fs::write(two.path().join("more"), b"x").unwrap();
        let difference = compare(&files, &stored(two.path()));
        assert_eq!(
            (difference.missing.len(), difference.extra.len(), difference.different.len()),
            (1, 1, 1),
            "{difference}"
        );
    }

    #[test]
    fn odd_trees_are_surveyed_as_the_design_says() {
        let root = tempfile::tempdir().unwrap();
        let odd = add_odd(root.path());
        let survey = survey(root.path());
        for reason in ["link-leads-out", "broken-link", "fifo", "socket", "not-utf8", "empty-directory"] {
            assert!(survey.reasons().contains_key(reason), "{reason}: {:?}", survey.reasons());
        }
        assert_eq!(survey.files.len(), odd, "links to files inside count");
    }
}
