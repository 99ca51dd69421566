//! Include and exclude filters in the manner of rsync.
//!
//! Rules are tried in order; the first match decides, and what matches no rule is included. An excluded
//! directory is not entered, so nothing in it can be included again.
//!
//! | in a pattern | matches |
//! | --- | --- |
//! | `*` | any characters but `/` |
//! | `**` | any characters |
//! | `?` | one character but `/` |
//! | `[a-z]`, `[!a-z]`, `[[:digit:]]` | one character of the class, or not of it; never `/` |
//! | `\x` | the character x itself |
//! | `/` at the beginning | anchors the pattern at the root of the transfer |
//! | `/` at the end | directories only |
//! | `/***` at the end | the directory and everything in it |
//!
//! A pattern that contains `/` or `**` is matched against the whole path, from the beginning of any component
//! unless it is anchored; any other against the last component alone. Unlike rsync, a backslash always
//! escapes, even where no wildcard follows: one rule instead of two.
//!
//! Not here: reading directories ([`crate::walk`]). Start with [`Filters::parse`].

mod glob;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};

use glob::Glob;

/// Patterns of one transfer; each entry is matched against all of them in the worst case.
pub const RULES_MAX: usize = 10_000;
/// Characters of one pattern: as many as a path may have bytes.
pub const PATTERN_CHARS_MAX: usize = longhaul_model::limits::LFN_BYTES_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Include,
    Exclude,
}

/// An invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern \"{shown}\" (number {number}), character {position}: {why}")]
pub struct FilterError {
    /// The pattern, escaped for display.
    pub shown: String,
    /// Index of the pattern among those given, from 1.
    pub number: usize,
    /// Position in the pattern, in characters from 1.
    pub position: usize,
    pub why: &'static str,
}

impl From<FilterError> for Fault {
    fn from(error: FilterError) -> Fault {
        Fault::new(FaultCode::BadRequest, error.to_string()).with_source(error)
    }
}

/// Rules in order. The default has none and includes everything.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    action: Action,
    directories_only: bool,
    /// Matched against the last path component only.
    last_component: bool,
    glob: Glob,
}

impl Filters {
    pub fn parse<'a>(rules: impl IntoIterator<Item = (Action, &'a str)>) -> Result<Filters, FilterError> {
        let mut filters = Filters::default();
        for (place, (action, pattern)) in rules.into_iter().enumerate() {
            let fail = |position: usize, why| FilterError {
                shown: printable(&pattern.chars().take(120).collect::<String>()),
                number: place + 1,
                position,
                why,
            };
            if place >= RULES_MAX {
                return Err(fail(1, "there are more than 10,000 patterns"));
            }
            if pattern.chars().count() > PATTERN_CHARS_MAX {
                return Err(fail(
                    PATTERN_CHARS_MAX + 1,
                    "is longer than the longest path (1,024 characters)",
                ));
            }
            filters.add(action, pattern).map_err(|(position, why)| fail(position, why))?;
        }
        Ok(filters)
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn add(&mut self, action: Action, pattern: &str) -> Result<(), (usize, &'static str)> {
        if let Some(directory) = pattern.strip_suffix("/***") {
            // Two rules: one for the directory itself, one for its contents.
            self.rules.push(Rule::parse(action, &format!("{directory}/"))?);
            self.rules.push(Rule::parse(action, &format!("{directory}/**"))?);
        } else {
            self.rules.push(Rule::parse(action, pattern)?);
        }
        Ok(())
    }

    /// Whether the rules include this entry, given that its parent directories are included. `path` is
    /// relative to the root of the transfer.
    pub fn includes(&self, path: &str, is_directory: bool) -> bool {
        let last = path.rsplit('/').next().unwrap_or(path);
        let first_fit = self.rules.iter().find(|rule| {
            (is_directory || !rule.directories_only)
                && rule.glob.matches(if rule.last_component { last } else { path })
        });
        first_fit.is_none_or(|rule| rule.action == Action::Include)
    }

    /// Whether the rules include a path that was not reached by walking: its parent directories are checked
    /// too.
    pub fn includes_path(&self, path: &str, is_directory: bool) -> bool {
        if self.rules.is_empty() {
            return true;
        }
        let mut parents = path.match_indices('/').map(|(slash, _)| &path[..slash]);
        parents.all(|parent| self.includes(parent, true)) && self.includes(path, is_directory)
    }
}

impl Rule {
    fn parse(action: Action, pattern: &str) -> Result<Rule, (usize, &'static str)> {
        let chars: Vec<char> = pattern.chars().collect();
        let mut body = chars.as_slice();
        let mut before = 0;
        let anchored = body.first() == Some(&'/');
        if anchored {
            body = &body[1..];
            before = 1;
        }
        let directories_only = ends_in_slash(body);
        if directories_only {
            body = &body[..body.len() - 1];
        }
        if body.is_empty() {
            return Err((1, "is empty"));
        }
        if body[0] == '/' || ends_in_slash(body) {
            let position = if body[0] == '/' { before + 1 } else { before + body.len() };
            return Err((position, "// matches nothing: no path has an empty component"));
        }
        let (glob, spans) = Glob::parse(body).map_err(|(place, why)| (before + place + 1, why))?;
        let last_component = !anchored && !spans;
        let glob = if anchored || last_component { glob } else { glob.beginning_anywhere() };
        Ok(Rule { action, directories_only, last_component, glob })
    }
}

/// Whether the last character is an unescaped slash.
fn ends_in_slash(chars: &[char]) -> bool {
    let Some(('/', rest)) = chars.split_last().map(|(last, rest)| (*last, rest)) else { return false };
    rest.iter().rev().take_while(|c| **c == '\\').count().is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filters(rules: &[&str]) -> Filters {
        Filters::parse(rules.iter().map(|rule| match rule.split_at(2) {
            ("+ ", pattern) => (Action::Include, pattern),
            ("- ", pattern) => (Action::Exclude, pattern),
            other => panic!("{other:?}"),
        }))
        .unwrap()
    }

    #[test]
    fn patterns_as_in_rsync() {
        for (pattern, fits, fits_not) in [
            ("*.o", &["a.o", "d/a.o", ".o"][..], &["a.oo", "a.o/b"][..]),
            ("core", &["core", "d/core"], &["score", "core/x", "d/cores"]),
            ("/core", &["core"], &["d/core"]),
            ("a/b", &["a/b", "x/a/b"], &["xa/b", "a/b/c", "a/x/b"]),
            ("/a/b", &["a/b"], &["x/a/b"]),
            ("a/*", &["a/b", "x/a/b"], &["a/b/c"]),
            ("a/**", &["a/b", "a/b/c", "x/a/b/c"], &["a", "xa/b"]),
            ("**.o", &["a.o", "d/e/a.o"], &["a.c"]),
            ("/a/**/z", &["a/b/z", "a/b/c/z"], &["a/z", "b/a/c/z"]),
            ("?", &["a", "d/é"], &["ab"]),
            ("[a-c]x", &["ax", "d/cx"], &["dx", "x"]),
            ("[!a-c]x", &["dx", "-x"], &["ax"]),
            ("[]]", &["]"], &["["]),
            ("[[:digit:]_]*", &["7", "_x"], &["x7"]),
            ("a\\*b", &["a*b"], &["axb"]),
            ("a[*]b", &["a*b"], &["axb"]),
            ("dir/***", &["dir/x", "dir/x/y"], &["dir", "dirx"]),
            ("*/x", &["a/x", "b/a/x"], &["x"]),
            ("ünï?", &["ünïx"], &["ünï"]),
        ] {
            let excluding = filters(&[&format!("- {pattern}")]);
            for path in fits {
                assert!(!excluding.includes(path, false), "{pattern} should match {path}");
            }
            for path in fits_not {
                assert!(excluding.includes(path, false), "{pattern} should not match {path}");
            }
        }
        assert!(!filters(&["- dir/***"]).includes("dir", true), "the directory itself");
        let directories = filters(&["- tmp/"]);
        assert!(directories.includes("tmp", false) && !directories.includes("a/tmp", true));
    }

    #[test]
    fn the_first_fit_wins_and_directories_bar_the_way() {
        let kept = filters(&["+ keep.log", "- *.log"]);
        assert!(kept.includes("d/keep.log", false) && !kept.includes("d/other.log", false));
        let late = filters(&["- *.log", "+ keep.log"]);
        assert!(!late.includes("keep.log", false));
        let only = filters(&["+ */", "+ *.c", "- *"]);
        assert!(only.includes_path("a/b/x.c", false) && !only.includes_path("a/b/x.o", false));
        let barred = filters(&["+ keep", "- cache/"]);
        assert!(!barred.includes_path("cache/keep", false), "an excluded directory is not entered");
        assert!(Filters::default().includes_path("any/thing", false));
    }

    #[test]
    fn errors_say_where() {
        for (pattern, position) in [
            ("", 1),
            ("/", 1),
            ("a//", 2),
            ("//a", 2),
            ("a[bc", 2),
            ("ab\\", 3),
            ("x[z-a]", 3),
            ("/x[z-a]", 4),
            ("[[:what:]]", 2),
        ] {
            let error = Filters::parse([(Action::Include, "ok"), (Action::Exclude, pattern)]).unwrap_err();
            assert_eq!((error.number, error.position), (2, position), "{error}");
            let fault = Fault::from(error);
            assert!(fault.detail.contains(&printable(pattern)), "{fault}");
        }
        let long = "x".repeat(PATTERN_CHARS_MAX + 1);
        assert!(Filters::parse([(Action::Exclude, long.as_str())]).is_err());
        assert!(Filters::parse((0..=RULES_MAX).map(|_| (Action::Exclude, "a"))).is_err());
    }

    proptest! {
        #[test]
        fn no_pattern_panics(
            pattern in ".{0,30}|[a\\[\\]!^:*?/\\\\-]{0,20}",
            path in "[^/\0]{1,8}(/[^/\0]{1,8}){0,3}",
        ) {
            if let Ok(filters) = Filters::parse([(Action::Exclude, pattern.as_str())]) {
                let _ = filters.includes_path(&path, false);
            }
        }

        /// A fully escaped name matches itself and nothing else.
        #[test]
        fn escaped_names_are_themselves(name in "[^/\0]{1,12}", other in "[^/\0]{1,12}") {
            let escaped: String = name.chars().flat_map(|c| ['\\', c]).collect();
            let filters = Filters::parse([(Action::Exclude, escaped.as_str())]).unwrap();
            prop_assert!(!filters.includes(&name, false));
            prop_assert_eq!(filters.includes(&other, false), name != other);
        }
    }
}
