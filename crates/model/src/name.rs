//! Names, valid by construction.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fault::{Fault, FaultCode};
use crate::limits::{COMPONENT_BYTES_MAX, LFN_BYTES_MAX};
use crate::syntax::Syntax;
use crate::units::printable;

/// Why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} \"{shown}\": {why}")]
pub struct NameError {
    /// Kind of name that was expected, such as "site name".
    pub kind: &'static str,
    /// The text, shortened and escaped for display.
    pub shown: String,
    /// The rule that it breaks.
    pub why: String,
}

impl NameError {
    fn new(kind: &'static str, text: &str, why: impl Into<String>) -> Self {
        let mut shown: String = text.chars().take(120).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        NameError { kind, shown: printable(&shown), why: why.into() }
    }
}

impl From<NameError> for Fault {
    fn from(error: NameError) -> Fault {
        Fault::new(FaultCode::BadName, error.to_string()).with_source(error)
    }
}

/// Checks a relative path: components of 1 to 255 bytes, none of them `.` or `..`.
fn check_path(kind: &'static str, text: &str) -> Result<(), NameError> {
    let fail = |why: String| Err(NameError::new(kind, text, why));
    if text.is_empty() {
        return fail("is empty".into());
    }
    if text.len() > LFN_BYTES_MAX {
        return fail(format!("has {} bytes, the limit is {LFN_BYTES_MAX}", text.len()));
    }
    if text.contains('\0') {
        return fail("contains a NUL byte".into());
    }
    if text.starts_with('/') {
        return fail("is absolute: leave out the leading /".into());
    }
    for component in text.split('/') {
        match component {
            "" => return fail("has an empty component (// or a trailing /)".into()),
            "." | ".." => return fail(format!("has a component {component}, which names another place")),
            _ if component.len() > COMPONENT_BYTES_MAX => {
                return fail(format!(
                    "has a component of {} bytes, the limit is {COMPONENT_BYTES_MAX}",
                    component.len()
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

macro_rules! text_type {
    ($name:ident) => {
        impl $name {
            /// The name as text, unescaped.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::parse(text)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

/// Logical file name: a relative path in UTF-8, never normalised, unique in a catalog. Newlines and other
/// control characters are allowed; display it with [`Lfn::shown`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lfn(Arc<str>);
text_type!(Lfn);

impl Lfn {
    /// Parses a relative path.
    ///
    /// # Errors
    /// The rule that the path breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_path("LFN", text)?;
        Ok(Lfn(text.into()))
    }

    /// The name with control characters escaped, for terminals, logs and pages.
    pub fn shown(&self) -> String {
        printable(&self.0)
    }
}

/// Physical file name: the path of a replica in one storage, relative to the storage's root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pfn {
    /// The storage that holds the replica.
    pub storage: StorageName,
    path: PfnPath,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PfnPath(Arc<str>);
text_type!(PfnPath);

impl PfnPath {
    fn parse(text: &str) -> Result<Self, NameError> {
        check_path("PFN", text)?;
        Ok(PfnPath(text.into()))
    }
}

impl Pfn {
    /// A PFN from a relative path.
    ///
    /// # Errors
    /// The rule that the path breaks.
    pub fn new(storage: StorageName, path: &str) -> Result<Self, NameError> {
        Ok(Pfn { storage, path: PfnPath::parse(path)? })
    }

    /// The path relative to the storage's root, without `.`, `..` or empty components.
    pub fn path(&self) -> &str {
        self.path.as_str()
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.storage, printable(self.path()))
    }
}

/// Most characters of a word.
const WORD_CHARS_MAX: usize = 64;
/// What joins the parts of a word.
const WORD_SEPARATORS: [char; 3] = ['-', '_', '.'];
/// Most characters of the name of a dataset.
const DATASET_CHARS_MAX: usize = 250;

fn check_word(kind: &'static str, text: &str) -> Result<(), NameError> {
    let first = text.bytes().next();
    if first.is_none_or(|c| !c.is_ascii_alphanumeric()) {
        return Err(NameError::new(kind, text, "has to begin with a letter or a digit"));
    }
    if text.len() > WORD_CHARS_MAX {
        return Err(NameError::new(kind, text, format!("has more than {WORD_CHARS_MAX} characters")));
    }
    match text.bytes().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))) {
        Some(_) => Err(NameError::new(kind, text, "has characters other than letters, digits, - _ and .")),
        None => Ok(()),
    }
}

macro_rules! word_type {
    ($($(#[$doc:meta])* $name:ident, $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);
        text_type!($name);
        impl $name {
            /// How it is written.
            pub const SYNTAX: Syntax =
                Syntax { pattern: "^[A-Za-z0-9][A-Za-z0-9._-]*$", chars_max: WORD_CHARS_MAX };

            /// Parses a name: 1 to 64 ASCII letters, digits, `-`, `_` and `.`, the first a letter or digit.
            ///
            /// # Errors
            /// The rule that the name breaks.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                check_word($kind, text)?;
                Ok($name(text.into()))
            }
        }
    )*};
}

word_type! {
    /// Administrative domain with people, policy, agents and storages.
    SiteName, "site name";
    /// Storage of a site; unique in a deployment. A site's first storage has the site's name.
    StorageName, "storage name";
    /// Group of sites, such as a continent or a country.
    RegionName, "region name";
    /// Tenant of the deployment: the grid's virtual organisation (VO).
    CommunityName, "community name";
    /// Named class of work within a community.
    ActivityName, "activity name";
}

impl StorageName {
    /// Whether the name follows from the site's: it is the same, or begins with it and a `-`, `_` or `.`.
    pub fn named_after(&self, site: &SiteName) -> bool {
        let rest = self.0.strip_prefix(site.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(WORD_SEPARATORS))
    }

    /// The names of all sites that it would be named after, longest first.
    pub fn eponyms(&self) -> impl Iterator<Item = SiteName> + '_ {
        let ends = self.0.rmatch_indices(WORD_SEPARATORS).map(|(end, _)| end);
        // A part of a word that begins as the word does is a word.
        std::iter::once(self.0.len()).chain(ends).map(|end| SiteName(Arc::from(&self.0[..end])))
    }
}

/// Name of a dataset: one or more words joined by `/`, such as `higgs/run7-aod`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatasetName(Arc<str>);
text_type!(DatasetName);

impl DatasetName {
    /// How it is written.
    pub const SYNTAX: Syntax = Syntax {
        pattern: "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._-]{0,63})*$",
        chars_max: DATASET_CHARS_MAX,
    };

    /// Parses a dataset name of at most 250 characters.
    ///
    /// # Errors
    /// The rule that the name breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.len() > DATASET_CHARS_MAX {
            let why = format!("has more than {DATASET_CHARS_MAX} characters");
            return Err(NameError::new("dataset name", text, why));
        }
        for word in text.split('/') {
            check_word("dataset name", word)
                .map_err(|error| NameError::new("dataset name", text, error.why))?;
        }
        Ok(DatasetName(text.into()))
    }
}

/// Name of a block: `dataset#part`, such as `higgs/run7-aod#0001`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName(Arc<str>);
text_type!(BlockName);

impl BlockName {
    /// How it is written.
    pub const SYNTAX: Syntax = Syntax {
        pattern: "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._-]{0,63})*\
            #[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        chars_max: DATASET_CHARS_MAX + 1 + WORD_CHARS_MAX,
    };

    /// Parses `dataset#part`.
    ///
    /// # Errors
    /// The rule that the name breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let Some((dataset, part)) = text.split_once('#') else {
            return Err(NameError::new("block name", text, "has no # between dataset and block"));
        };
        DatasetName::parse(dataset)
            .and_then(|_| check_word("block name", part))
            .map_err(|error| NameError::new("block name", text, error.why))?;
        Ok(BlockName(text.into()))
    }

    /// The `number`-th automatically created block of `dataset`, counted from 1.
    pub fn numbered(dataset: &DatasetName, number: u64) -> Self {
        BlockName(format!("{dataset}#{number:04}").into())
    }

    /// The dataset that the block belongs to.
    pub fn dataset(&self) -> DatasetName {
        DatasetName(self.0.split('#').next().unwrap_or_default().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lfn_rules() {
        for good in ["a", "a/b", "new\nline", "ünï/cödé", "...", "..a", "a b", "-x", "a\\b"] {
            assert_eq!(good.parse::<Lfn>().unwrap().as_str(), good);
        }
        let long = "x".repeat(256);
        let deep = "y/".repeat(600) + "z";
        for bad in ["", "/a", "a/", "a//b", ".", "a/./b", "../a", "a/..", "a\0b", &long, &deep] {
            let error = bad.parse::<Lfn>().unwrap_err();
            assert!(!error.why.is_empty() && error.shown.len() < 400, "{error}");
        }
    }

    #[test]
    fn words() {
        assert!(SiteName::parse("T2_CH-x.1").is_ok());
        for bad in ["", "-a", ".a", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(SiteName::parse(bad).is_err(), "{bad:?}");
        }
        assert!(DatasetName::parse("higgs/run7-aod").is_ok());
        assert!(DatasetName::parse("higgs//aod").is_err());
        let block = BlockName::numbered(&"a/b".parse().unwrap(), 7);
        assert_eq!(block.as_str(), "a/b#0007");
        assert_eq!(block.dataset().as_str(), "a/b");
        assert!(BlockName::parse("a/b").is_err());
    }

    fn fits(syntax: Syntax, text: &str) -> bool {
        text.chars().count() <= syntax.chars_max
            && regex_lite::Regex::new(syntax.pattern).unwrap().is_match(text)
    }

    #[test]
    fn the_syntax_is_what_the_parser_takes() {
        for text in ["a", "T2_CH-x.1", "", "-a", ".a", "a b", "ä", "a\n", &"x".repeat(64), &"x".repeat(65)] {
            assert_eq!(fits(SiteName::SYNTAX, text), SiteName::parse(text).is_ok(), "{text:?}");
            for name in [text.to_owned(), format!("a/{text}"), format!("{text}/a"), "/a".into(), "a/".into()]
            {
                assert_eq!(fits(DatasetName::SYNTAX, &name), DatasetName::parse(&name).is_ok(), "{name:?}");
            }
        }
        for chars in [250, 251] {
            let name = format!("{}{}", "abcdefghi/".repeat(24), "x".repeat(chars - 240));
            assert_eq!(fits(DatasetName::SYNTAX, &name), chars == 250);
            assert_eq!(DatasetName::parse(&name).is_ok(), chars == 250);
        }
    }

    #[test]
    fn a_storage_is_named_after_its_site() {
        let storage: StorageName = "cern-eos_1".parse().unwrap();
        let after = |site: &str| storage.named_after(&site.parse().unwrap());
        assert!(["cern-eos_1", "cern-eos", "cern"].into_iter().all(after));
        assert!(!["cern-eos_12", "cern-", "cern-eo", "cer", "CERN", "eos_1"].into_iter().any(after));
        let eponyms: Vec<SiteName> = storage.eponyms().collect();
        assert_eq!(eponyms, ["cern-eos_1", "cern-eos", "cern"].map(|site| site.parse().unwrap()));
    }

    proptest! {
        #[test]
        fn the_eponyms_are_the_sites_that_it_is_named_after(
            name in "[a-b][a-b._-]{0,9}", other in "[a-b][a-b._-]{0,9}", end in 1..=10_usize
        ) {
            let storage = StorageName::parse(&name).unwrap();
            let eponyms: Vec<SiteName> = storage.eponyms().collect();
            prop_assert!(eponyms.iter().all(|site| storage.named_after(site)));
            prop_assert!(eponyms.windows(2).all(|pair| pair[0].as_str().len() > pair[1].as_str().len()));
            for site in [other.as_str(), &name[..end.min(name.len())]] {
                let site = SiteName::parse(site).unwrap();
                prop_assert_eq!(storage.named_after(&site), eponyms.contains(&site));
            }
        }

        #[test]
        fn the_syntax_is_what_the_parser_takes_of_any_text(text in "[a-zA-Z0-9._/é -]{0,70}|\\PC{0,8}") {
            prop_assert_eq!(fits(StorageName::SYNTAX, &text), StorageName::parse(&text).is_ok());
            prop_assert_eq!(fits(DatasetName::SYNTAX, &text), DatasetName::parse(&text).is_ok());
        }

        /// Promise 9: no accepted name leaves the directory it is joined to.
        #[test]
        fn an_lfn_never_leaves_its_root(text in ".{0,40}|([./a]{1,3}/){0,5}[./a]{1,3}") {
            if let Ok(lfn) = Lfn::parse(&text) {
                prop_assert!(std::path::Path::new(lfn.as_str()).components()
                    .all(|c| matches!(c, std::path::Component::Normal(_))));
                prop_assert!(!lfn.shown().chars().any(char::is_control));
            }
        }
    }
}
