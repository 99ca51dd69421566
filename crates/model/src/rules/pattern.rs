//! One pattern, and the replacement of what it matches. Matching takes time proportional to pattern times
//! name (a finite automaton, as in Thompson 1968): no pattern is catastrophic. Perl features that need a
//! backtracking engine (look-around, back-references) are refused.

use std::fmt;
use std::sync::OnceLock;

use regex_lite::{Captures, Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Length of a pattern or a result as written, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Size of a compiled pattern, in bytes: bounds the cost per byte of a name.
const COMPILED_BYTES_MAX: usize = 64 << 10;
/// Depth of nested groups.
const NESTED_MAX: u32 = 20;

/// A regular expression, compiled on first use, so that stored rules can be read even if they are invalid.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Pattern {
    text: String,
    ready: OnceLock<Result<Regex, String>>,
}

impl Pattern {
    /// A pattern that is not checked yet.
    pub fn new(text: impl Into<String>) -> Self {
        Pattern { text: text.into(), ready: OnceLock::new() }
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The compiled pattern.
    ///
    /// # Errors
    /// Why it does not compile, for people.
    pub(super) fn regex(&self) -> Result<&Regex, &str> {
        self.ready.get_or_init(|| compile(&self.text)).as_ref().map_err(String::as_str)
    }

    /// Number of groups, which `$1` to `$9` refer to.
    pub(super) fn groups(&self) -> Result<usize, &str> {
        self.regex().map(|regex| regex.captures_len() - 1)
    }
}

fn compile(text: &str) -> Result<Regex, String> {
    if text.len() > PATTERN_BYTES_MAX {
        return Err(format!("it has {} bytes, the limit is {PATTERN_BYTES_MAX}", text.len()));
    }
    let regex = RegexBuilder::new(text).size_limit(COMPILED_BYTES_MAX).nest_limit(NESTED_MAX).build();
    regex.map_err(|error| error.to_string())
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Pattern::new(text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.text
    }
}

/// An element of a result.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    Character(char),
    /// The text that the group with this number matched.
    Group(usize),
}

/// The elements of a result, or what is wrong with it. As in Perl, `$1` and `${1}` stand for a group, and a
/// backslash escapes punctuation; `\1` is a group too. Everything else that Perl would expand (variables,
/// `\n`) is refused.
pub(super) fn pieces(result: &str) -> impl Iterator<Item = Result<Piece, String>> + '_ {
    let mut rest = result.chars();
    std::iter::from_fn(move || {
        let piece = match rest.next()? {
            '$' => group(&mut rest),
            '\\' => match rest.next() {
                Some(digit @ '1'..='9') => Ok(Piece::Group(number(digit))),
                Some(other) if !other.is_alphanumeric() => Ok(Piece::Character(other)),
                Some(other) => Err(format!("\\{} has no meaning in a result", other.escape_debug())),
                None => Err("it ends with a backslash".into()),
            },
            other => Ok(Piece::Character(other)),
        };
        Some(piece)
    })
}

fn group(rest: &mut std::str::Chars<'_>) -> Result<Piece, String> {
    let wrong = || "after $ one digit from 1 to 9 is expected; \\$ stands for the character".to_owned();
    match rest.next() {
        Some(digit @ '1'..='9') if !rest.as_str().starts_with(|c: char| c.is_ascii_digit()) => {
            Ok(Piece::Group(number(digit)))
        }
        Some('{') => match (rest.next(), rest.next()) {
            (Some(digit @ '1'..='9'), Some('}')) => Ok(Piece::Group(number(digit))),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

fn number(digit: char) -> usize {
    digit as usize - '0' as usize
}

/// `name` with the first match replaced; the rest of it stays, as with Perl's `s///`. None without a match.
///
/// # Errors
/// What is wrong with pattern or result, or that the name would exceed `bytes_max`.
pub(super) fn replace(
    pattern: &Pattern,
    result: &str,
    name: &str,
    bytes_max: usize,
) -> Result<Option<String>, String> {
    let Some(found) = pattern.regex()?.captures(name) else { return Ok(None) };
    let Some(whole) = found.get(0) else { return Ok(None) };
    let mut replaced = name[..whole.start()].to_owned();
    for piece in pieces(result) {
        match piece? {
            Piece::Character(one) => replaced.push(one),
            Piece::Group(number) => replaced.push_str(of_group(&found, number)),
        }
        if replaced.len() > bytes_max {
            return Err(format!("a name becomes longer than {bytes_max} bytes"));
        }
    }
    replaced.push_str(&name[whole.end()..]);
    Ok(Some(replaced))
}

/// The text of a group; empty if it took no part in the match.
fn of_group<'a>(found: &Captures<'a>, number: usize) -> &'a str {
    found.get(number).map_or("", |group| group.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn replaced(pattern: &str, result: &str, name: &str) -> Result<Option<String>, String> {
        replace(&Pattern::new(pattern), result, name, 100)
    }

    #[test]
    fn what_is_found_is_replaced_and_the_rest_stays() {
        let some = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(replaced("/+(.*)", "/pool/$1", "///a/b"), some("/pool/a/b"));
        assert_eq!(replaced("b", "x", "abcb"), some("axcb"));
        assert_eq!(replaced(r".*\?SFN=(.*)", "$1", "srm://h/m?SFN=/a"), some("/a"));
        assert_eq!(replaced("(a)|(b)", "${1}-\\2\\$", "b"), some("-b$"));
        assert_eq!(replaced("^x", "", "ax"), Ok(None));
    }

    #[test]
    fn what_cannot_be_is_told() {
        let why = |pattern: &str, result: &str| replaced(pattern, result, "abc").unwrap_err();
        assert!(why("(?=a)b", "").contains("look-around"), "{}", why("(?=a)b", ""));
        assert!(why(r"(a)\1", "").contains("backreference"), "{}", why(r"(a)\1", ""));
        assert!(why("(", "").contains("group"));
        assert!(why(&"a".repeat(2_000), "").contains("it has 2000 bytes, the limit is 1024"));
        assert!(why("(a{1000}){1000}", "").contains("size limit"), "{}", why("(a{1000}){1000}", ""));
        assert!(why(&format!("{}a{}", "(".repeat(40), ")".repeat(40)), "").contains("nest"));
        assert!(
            why("a", "$x").contains("after $ one digit") && why("a", "$12").contains("after $ one digit")
        );
        assert!(why("a", "\\n").contains("\\n has no meaning") && why("a", "\\").contains("backslash"));
        assert!(why("(.*)", &"$1".repeat(40)).contains("longer than 100 bytes"));
    }

    #[test]
    fn no_pattern_is_catastrophic() {
        // With an engine that goes back, this takes longer than the universe is old.
        let name = format!("{}!", "a".repeat(2_000));
        assert_eq!(replace(&Pattern::new("^(a+)+$"), "$1", &name, 4_096), Ok(None));
        assert_eq!(replace(&Pattern::new("^(a|a?)+b"), "$1", &name, 4_096), Ok(None));
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(pattern in r"[ab.*+?()|\[\]{}\\$^0-9]{0,20}", result in r"[a$\\{}0-9]{0,10}",
            name in "[ab/\n]{0,20}") {
            if let Ok(Some(name)) = replaced(&pattern, &result, &name) {
                prop_assert!(name.len() <= 120);
            }
        }
    }
}
