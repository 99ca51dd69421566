//! The header `If` (RFC 4918, section 10.4): which locks a client says it holds, and what has to be true for
//! its request.
//!
//! ```text
//! If: (<urn:token> ["etag"]) (Not <DAV:no-lock>)          of what the request is about
//! If: </a> (<urn:token>) </b> (["etag"])                  of what is named
//! ```
//!
//! One list of those in parentheses has to be true as a whole. Every token in it counts as shown, whatever
//! the lists say.

use http::HeaderMap;

use crate::answer::{Outcome, Refusal};
use crate::request::{Destination, destination, single};

/// Bytes of the whole header.
const BYTES_MAX: usize = 8 << 10;
const CONDITIONS_MAX: usize = 100;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct IfHeader {
    lists: Vec<List>,
}

#[derive(Debug, PartialEq, Eq)]
struct List {
    about: ConditionSubject,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ConditionSubject {
    TheRequest,
    Path(String),
    /// A resource of another server: no condition on it holds here.
    Elsewhere,
}

#[derive(Debug, PartialEq, Eq)]
struct Condition {
    not: bool,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Token(String),
    Tag(String),
}

/// The present state of resources, to evaluate conditions against.
pub(crate) trait ResourceState {
    /// Whether a lock with this token covers the path.
    fn is_locked(&self, path: &str, token: &str) -> bool;
    fn etag(&self, path: &str) -> Outcome<Option<String>>;
}

impl IfHeader {
    /// `names` are those of the door.
    pub(crate) fn parse(headers: &HeaderMap, names: &[String]) -> Outcome<IfHeader> {
        let Some(text) = single(headers, "if")? else { return Ok(IfHeader::default()) };
        if text.len() > BYTES_MAX {
            return Err(Refusal::bad(format!("the header If has more than {BYTES_MAX} bytes")));
        }
        let place = |url: &str| {
            Ok(match destination(url, headers, names)? {
                Destination::Here(place) => ConditionSubject::Path(place.path),
                Destination::Elsewhere => ConditionSubject::Elsewhere,
            })
        };
        parse(text, place)
    }

    pub(crate) fn tokens(&self) -> Vec<&str> {
        let all = self.lists.iter().flat_map(|list| &list.conditions);
        all.filter_map(|condition| match &condition.state {
            State::Token(token) => Some(token.as_str()),
            State::Tag(_) => None,
        })
        .collect()
    }

    /// Whether what it asks for is so; `path` is what the request is about.
    pub(crate) fn holds(&self, path: &str, now: &dyn ResourceState) -> Outcome<bool> {
        for list in &self.lists {
            if list.holds(path, now)? {
                return Ok(true);
            }
        }
        Ok(self.lists.is_empty())
    }
}

impl List {
    fn holds(&self, path: &str, now: &dyn ResourceState) -> Outcome<bool> {
        let path = match &self.about {
            ConditionSubject::TheRequest => path,
            ConditionSubject::Path(path) => path,
            ConditionSubject::Elsewhere => return Ok(false),
        };
        for condition in &self.conditions {
            let is = match &condition.state {
                State::Token(token) => now.is_locked(path, token),
                State::Tag(tag) => now.etag(path)?.is_some_and(|found| found == *tag),
            };
            if is == condition.not {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn parse(text: &str, place: impl Fn(&str) -> Outcome<ConditionSubject>) -> Outcome<IfHeader> {
    let wrong = || Refusal::bad("the header If is malformed");
    let mut rest = text.trim();
    let (mut lists, mut about, mut count) = (Vec::new(), None, 0);
    while !rest.is_empty() {
        if let Some(url) = rest.strip_prefix('<') {
            // Either everything is named, or nothing is.
            if about.is_none() && !lists.is_empty() {
                return Err(wrong());
            }
            let (url, after) = url.split_once('>').ok_or_else(wrong)?;
            about = Some(place(url)?);
            rest = after.trim_start();
        }
        let list = rest.strip_prefix('(').ok_or_else(wrong)?;
        let (conditions, after) = conditions(list).ok_or_else(wrong)?;
        count += conditions.len();
        if conditions.is_empty() || count > CONDITIONS_MAX {
            return Err(wrong());
        }
        lists.push(List { about: about.clone().unwrap_or(ConditionSubject::TheRequest), conditions });
        rest = after.trim_start();
    }
    if lists.is_empty() {
        return Err(wrong());
    }
    Ok(IfHeader { lists })
}

/// Up to the closing parenthesis, and what follows it.
fn conditions(mut rest: &str) -> Option<(Vec<Condition>, &str)> {
    let mut conditions = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(')') {
            return Some((conditions, after));
        }
        let word = rest.get(..3).filter(|word| word.eq_ignore_ascii_case("not"));
        let not = word.is_some();
        if not {
            rest = rest[3..].trim_start();
        }
        let state = if let Some(token) = rest.strip_prefix('<') {
            let (token, after) = token.split_once('>')?;
            rest = after;
            State::Token(token.to_owned())
        } else {
            // A tag may hold a bracket.
            let tag = rest.strip_prefix('[')?;
            let opening = tag.find('"')?;
            let closing = opening + 1 + tag[opening + 1..].find('"')?;
            rest = tag[closing + 1..].strip_prefix(']')?;
            State::Tag(tag[..=closing].to_owned())
        };
        conditions.push(Condition { not, state });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct World;

    impl ResourceState for World {
        fn is_locked(&self, path: &str, token: &str) -> bool {
            path == "a" && token == "urn:t"
        }
        fn etag(&self, path: &str) -> Outcome<Option<String>> {
            Ok((path == "a").then(|| "\"1]\"".to_owned()))
        }
    }

    fn read(text: &str) -> Outcome<IfHeader> {
        let mut headers = HeaderMap::new();
        headers.insert("host", "door:8443".parse().unwrap());
        headers.insert("if", text.parse().unwrap());
        IfHeader::parse(&headers, &[])
    }

    #[test]
    fn one_list_has_to_be_true_as_a_whole() {
        for (text, expected) in [
            ("(<urn:t>)", true),
            ("(<urn:x>)", false),
            ("(<urn:x>) (<urn:t>)", true),
            ("(<urn:t> [\"1]\"])", true),
            ("(<urn:t> [\"2\"])", false),
            ("(Not <urn:x>)", true),
            ("(not <urn:t>)", false),
            ("(<DAV:no-lock>)", false),
            ("(Not<DAV:no-lock>)", true),
            ("</b> (<urn:t>)", false),
            ("</b> (<urn:t>) <https://door:8443/a> (<urn:t>)", true),
            ("<https://elsewhere/a> (Not <urn:t>)", false),
            ("([W/\"1]\"])", false),
        ] {
            assert_eq!(read(text).unwrap().holds("a", &World).unwrap(), expected, "{text}");
        }
        assert!(IfHeader::default().holds("a", &World).unwrap());
        assert_eq!(read("(<urn:x> Not <urn:y>) ([\"1\"])").unwrap().tokens(), ["urn:x", "urn:y"]);
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bad in [
            "",
            "x",
            "(",
            "()",
            "(<urn:t>",
            "(<urn:t)",
            "<urn:t>",
            "</a>",
            "(<urn:t>) </a> (<urn:t>)",
            "([1])",
            "([\"1)",
            "(Not)",
            "(nope <urn:t>)",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read(&"(<a>)".repeat(101)).is_err());
        assert!(read(&format!("(<{}>)", "x".repeat(BYTES_MAX))).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(\\(|\\)|<|>|\\[|\\]|\"|Not|not|a| |/|W/){0,30}") {
            if let Ok(read) = read(&text) {
                let _ = read.holds("a", &World);
            }
        }
    }
}
