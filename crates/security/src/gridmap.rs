//! Grid-map files (the Globus Toolkit's `grid-mapfile`): which local accounts a subject may use. Parsed
//! strictly: every bad line is reported with its number, and the good ones still count.
//!
//! Not here: whether an account exists, and whether anybody may be mapped to it (`copy::accounts`).
//!
//! A line is a distinguished name, perhaps roles of a virtual organisation, then accounts separated by
//! commas:
//!
//! ```text
//! # comment
//! "/C=UK/O=eScience/CN=jane doe" jdoe,prodadm
//! "/C=UK/O=eScience/CN=jane doe" "/cms/Role=production" cmsprod
//! "/cms/Role=production/Capability=NULL" .cmspool
//! * "/atlas" .atlas
//! longhaul://grid/agent/beta/01JD3QW longhaul
//! ```
//!
//! A name with blanks has to be quoted; `\"`, `\\` and `\xHH` stand for bytes in quotes, `\/` and `\+` for
//! those in the value of an attribute. `*` is any subject, and an account that begins with a dot is a pool of
//! accounts. A subject may also be an identity of Longhaul's.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::grid::canonical;

/// Bytes of a file; larger ones are no map.
pub const MAP_BYTES_MAX: usize = 8 << 20;
/// How an identity of Longhaul begins, where a subject is expected.
const IDENTITY: &str = "longhaul://";
/// Bytes of a line; longer ones are bad.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Words of a line: a subject, roles, accounts.
const WORDS_MAX: usize = 64;
/// Bytes of an account name, by generous limits of Unix systems.
const ACCOUNT_BYTES_MAX: usize = 64;

/// One good line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub line: usize,
    /// A distinguished name, a role for everyone who has it, or `*`.
    pub subject: String,
    pub roles: Vec<String>,
    /// At least one; the first is the default.
    pub accounts: Vec<String>,
}

/// A problem of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadLine {
    pub line: usize,
    pub why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GridMap {
    pub entries: Vec<Entry>,
    pub bad: Vec<BadLine>,
    /// Lines without effect, since an earlier one is for the same subject and roles.
    pub shadowed: Vec<BadLine>,
}

/// Communities of users by their subjects, from a map whose accounts are communities, as FTS has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommunityMap(BTreeMap<String, String>);

impl CommunityMap {
    /// Lines for roles and for everybody say nothing about a subject; the first line of a subject counts.
    pub fn new(map: &GridMap) -> Self {
        let mut communities = BTreeMap::new();
        for entry in map.entries.iter().filter(|entry| entry.roles.is_empty() && entry.subject != "*") {
            if let Some(account) = entry.accounts.first() {
                let community = account.strip_prefix('.').unwrap_or(account).to_owned();
                communities.entry(canonical(&entry.subject)).or_insert(community);
            }
        }
        CommunityMap(communities)
    }

    /// The community of a certificate's subject in the one-line form; attribute names may have any usual
    /// spelling.
    pub fn community_of(&self, subject: &str) -> Option<&str> {
        self.0.get(&canonical(subject)).map(String::as_str)
    }
}

/// Parses a file. Never fails: problems are in the result.
pub fn parse(bytes: &[u8]) -> GridMap {
    let mut map = GridMap::default();
    let mut first: BTreeMap<(String, Vec<String>), (usize, Vec<String>)> = BTreeMap::new();
    for (place, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line_number = place + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match entry(line_number, line) {
            Ok(None) => {}
            Err(why) => map.bad.push(BadLine { line: line_number, why }),
            Ok(Some(entry)) => {
                let key = (canonical(&entry.subject), entry.roles.clone());
                if let Some((earlier, accounts)) = first.get(&key) {
                    let differs = if *accounts == entry.accounts { "repeats" } else { "contradicts" };
                    let why = format!("{differs} line {earlier}, which counts");
                    map.shadowed.push(BadLine { line: line_number, why });
                } else {
                    first.insert(key, (line_number, entry.accounts.clone()));
                }
                map.entries.push(entry);
            }
        }
    }
    map
}

fn entry(number: usize, line: &[u8]) -> Result<Option<Entry>, String> {
    if line.len() > LINE_BYTES_MAX {
        return Err(format!("has more than {LINE_BYTES_MAX} bytes"));
    }
    let line = std::str::from_utf8(line).map_err(|_| "is not UTF-8".to_owned())?;
    let text = line.strip_prefix('\u{feff}').unwrap_or(line).trim();
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    let mut words = words(text)?.into_iter();
    let subject = words.next().ok_or("is empty")?;
    let mut rest: Vec<Word> = words.collect();
    let is_subject =
        subject.text == "*" || subject.text.starts_with('/') || subject.text.starts_with(IDENTITY);
    if !is_subject {
        let hint = if subject.quoted { "" } else { ", or its quotes are missing" };
        return Err(format!("begins with {:?}, which is no subject (/C=…){hint}", subject.text));
    }
    let Some(last) = rest.pop() else { return Err("names no account".into()) };
    if last.text.starts_with('/') {
        return Err("names no account after the subject; a subject with blanks needs quotes".into());
    }
    let roles: Vec<String> = rest
        .into_iter()
        // An empty role in quotes says "no role" in maps of the dCache kind.
        .filter(|word| !(word.quoted && word.text.is_empty()))
        .map(|word| if word.text.starts_with('/') { Ok(word.text) } else { Err(unexpected(&word)) })
        .collect::<Result<_, _>>()?;
    let accounts: Vec<String> = last.text.split(',').map(|name| name.trim().to_owned()).collect();
    if let Some(bad) = accounts.iter().find(|name| !is_account(name)) {
        return Err(format!("{bad:?} is no account name"));
    }
    Ok(Some(Entry { line: number, subject: subject.text, roles, accounts }))
}

fn unexpected(word: &Word) -> String {
    let hint = if word.quoted {
        ""
    } else {
        "; a subject with blanks needs quotes, accounts are separated by commas"
    };
    format!("{:?} is neither a role (/vo/Role=…) nor the last word{hint}", word.text)
}

/// As Linux allows them, and a leading dot for a pool.
fn is_account(name: &str) -> bool {
    let name = name.strip_prefix('.').unwrap_or(name);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
    begins && name.len() <= ACCOUNT_BYTES_MAX && name.chars().all(fits)
}

struct Word {
    text: String,
    quoted: bool,
}

fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if words.len() == WORDS_MAX {
            return Err(format!("has more than {WORDS_MAX} words"));
        }
        if let Some(inside) = rest.strip_prefix('"') {
            let (word, after) = quoted(inside)?;
            if after.starts_with(|c: char| !c.is_whitespace()) {
                return Err("has something right after a closing quote".into());
            }
            words.push(Word { text: word, quoted: true });
            rest = after.trim_start();
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let word = &rest[..end];
            if word.contains('"') {
                return Err("has a quote within a word".into());
            }
            if word.starts_with('#') {
                break;
            }
            words.push(Word { text: word.to_owned(), quoted: false });
            rest = rest[end..].trim_start();
        }
    }
    if let Some(word) = words.iter().find(|word| word.text.chars().any(char::is_control)) {
        return Err(format!("{:?} has a control character", word.text));
    }
    Ok(words)
}

/// The word up to the closing quote, and what follows it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    loop {
        match rest {
            [] => return Err("has a quote that is not closed".into()),
            [b'"', after @ ..] => {
                let word =
                    String::from_utf8(bytes).map_err(|_| "has escapes that are not UTF-8".to_owned())?;
                return Ok((word, &text[text.len() - after.len()..]));
            }
            [b'\\', b'x' | b'X', high, low, after @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                let byte = digit(*high) << 4 | digit(*low);
                // It is in a value: as it stands it would begin the next attribute.
                if matches!(byte, b'/' | b'+') {
                    bytes.push(b'\\');
                }
                bytes.push(byte);
                rest = after;
            }
            [b'\\', byte @ (b'"' | b'\\'), after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
            // As names of certificates are written.
            [b'\\', byte @ (b'/' | b'+'), after @ ..] => {
                bytes.extend([b'\\', *byte]);
                rest = after;
            }
            [b'\\', ..] => {
                let known = "\\\", \\\\, \\/, \\+ and \\xHH are known";
                return Err(format!("has a backslash that escapes nothing ({known})"));
            }
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bad(text: &str) -> String {
        let map = parse(text.as_bytes());
        assert!(map.entries.is_empty(), "{text}: {map:?}");
        map.bad.into_iter().next().unwrap_or_else(|| panic!("{text} was accepted")).why
    }

    #[test]
    fn reads_what_sites_write() {
        let map = parse(
            b"# map of the site\r\n\n\"/C=UK/O=eScience/CN=jane doe\" jdoe,prodadm\r\n\
              \"/DC=ch/CN=robot\" \"/cms/Role=production\" cmsprod\n\
              \"/DC=ch/CN=robot\" /cms/Role=pilot/Capability=NULL cmspilot # by hand\n\
              \"/cms/Role=production/Capability=NULL\" .cmspool\n* \"/atlas\" .atlas\n/DC=ch/CN=plain plain\n\
              \"/CN=Ren\\xC3\\xA9 \\\"x\\\"\" rene\n\"/CN=a\" \"\" a\n\
              longhaul://grid/agent/beta/1 beta\n",
        );
        assert_eq!(map.bad, []);
        assert_eq!(map.shadowed, []);
        fn words(list: &[String]) -> Vec<&str> {
            list.iter().map(String::as_str).collect()
        }
        let all: Vec<(usize, &str, Vec<&str>, Vec<&str>)> = map
            .entries
            .iter()
            .map(|entry| (entry.line, entry.subject.as_str(), words(&entry.roles), words(&entry.accounts)))
            .collect();
        assert_eq!(
            all,
            [
                (3, "/C=UK/O=eScience/CN=jane doe", vec![], vec!["jdoe", "prodadm"]),
                (4, "/DC=ch/CN=robot", vec!["/cms/Role=production"], vec!["cmsprod"]),
                (5, "/DC=ch/CN=robot", vec!["/cms/Role=pilot/Capability=NULL"], vec!["cmspilot"]),
                (6, "/cms/Role=production/Capability=NULL", vec![], vec![".cmspool"]),
                (7, "*", vec!["/atlas"], vec![".atlas"]),
                (8, "/DC=ch/CN=plain", vec![], vec!["plain"]),
                (9, "/CN=René \"x\"", vec![], vec!["rene"]),
                (10, "/CN=a", vec![], vec!["a"]),
                (11, "longhaul://grid/agent/beta/1", vec![], vec!["beta"]),
            ]
        );
    }

    #[test]
    fn bad_lines_say_why() {
        for (text, why) in [
            ("\"/CN=a", "not closed"),
            ("\"/CN=a\"", "no account"),
            ("\"/CN=a\"bob", "closing quote"),
            ("/C=UK/CN=jane doe jdoe", "blanks needs quotes"),
            ("\"/CN=a\" /cms/Role=x", "no account"),
            ("\"/CN=a\" bob alice", "separated by commas"),
            ("\"/CN=a\" bob,", "no account name"),
            ("\"/CN=a\" ../bob", "no account name"),
            ("\"/CN=a\" b;rm", "no account name"),
            ("jane jdoe", "quotes are missing"),
            ("http://x a", "no subject"),
            ("\"CN=a\" a", "no subject"),
            ("\"/CN=\\q\" a", "escapes nothing"),
            ("\"/CN=\\xff\" a", "not UTF-8"),
            ("\"/CN=\\x00\" a", "control character"),
        ] {
            assert!(bad(text).contains(why), "{text}: {}", bad(text));
        }
        assert!(parse(b"\xff\xfe").bad[0].why.contains("UTF-8"));
        assert_eq!(parse(&[b'a'; LINE_BYTES_MAX + 1]).bad.len(), 1);
    }

    #[test]
    fn good_lines_around_bad_ones_count_and_later_twins_do_not() {
        let map = parse(b"\"/CN=a\" one\nnonsense\n\"/CN=a\" two\n\"/CN=a\" one\n\"/CN=b\" b\n");
        assert_eq!(map.bad.iter().map(|bad| bad.line).collect::<Vec<_>>(), [2]);
        assert_eq!(map.entries.len(), 4);
        assert_eq!(map.shadowed.len(), 2);
        assert!(map.shadowed[0].why.contains("contradicts line 1"));
        assert!(map.shadowed[1].why.contains("repeats line 1"));
    }

    #[test]
    fn communities_are_found_by_subject() {
        let map = parse(
            b"\"/DC=org/CN=alice\" atlas,other\n\"/C=CH/Email=a@b\" .cms\n\"/DC=org/CN=alice\" lhcb\n\
              \"/DC=org/CN=bob\" \"/x/Role=y\" x\n\"/cms\" cmsrole\n* \"/a\" a\n",
        );
        let communities = CommunityMap::new(&map);
        assert_eq!(communities.community_of("/DC=org/CN=alice"), Some("atlas"));
        assert_eq!(communities.community_of("/C=CH/emailAddress=a@b"), Some("cms"));
        assert_eq!(communities.community_of("/DC=org/CN=bob"), None);
        assert_eq!(communities.community_of("*"), None);
    }

    #[test]
    fn a_slash_in_a_value_maps_nobody_else() {
        let map = parse(
            b"\"/DC=org/DC=example\\/CN=alice\" forger\n\"/DC=org/CN=host/a.example\" host\n\
              \"/DC=org/O=x\\x2FCN=b\" bytes\n\"/DC=org/CN=host\\/a.example\" later\n",
        );
        assert_eq!((map.bad, map.shadowed.len()), (vec![], 1));
        let communities = CommunityMap::new(&parse(
            b"\"/DC=org/DC=example/CN=alice\" atlas\n\"/DC=org/CN=host/a.example\" hosts\n\
              \"/DC=org/O=x\\x2FCN=b\" bytes\n",
        ));
        assert_eq!(communities.community_of("/DC=org/DC=example\\/CN=alice"), None);
        assert_eq!(communities.community_of("/DC=org/DC=example/CN=alice"), Some("atlas"));
        assert_eq!(communities.community_of("/DC=org/CN=host\\/a.example"), Some("hosts"));
        assert_eq!(communities.community_of("/DC=org/O=x/CN=b"), None);
        assert_eq!(communities.community_of("/DC=org/O=x\\/CN=b"), Some("bytes"));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let map = parse(&bytes);
            let lines = bytes.split(|&byte| byte == b'\n').count();
            prop_assert!(map.entries.len() + map.bad.len() <= lines);
        }

        #[test]
        fn nothing_like_a_map_panics(text in "([\"/*\\\\#a=x, .\n\t0é]|/CN=){0,60}") {
            for entry in parse(text.as_bytes()).entries {
                prop_assert!(!entry.accounts.is_empty()
                    && entry.accounts.iter().all(|name| is_account(name)));
            }
        }

        #[test]
        fn what_is_written_is_read(
            subject in "/[ -~é]{1,40}", roles in proptest::collection::vec("/[a-z]{1,8}(/Role=[a-z]{1,8})?",
                0..3),
            accounts in proptest::collection::vec("\\.?[a-z_][a-z0-9_-]{0,20}", 1..4),
        ) {
            let escaped = subject.replace('\\', "\\\\").replace('"', "\\\"");
            let roles_text: String = roles.iter().map(|role| format!("\"{role}\" ")).collect();
            let line = format!("\"{escaped}\" {roles_text}{}\n", accounts.join(","));
            let map = parse(line.as_bytes());
            prop_assert_eq!(&map.bad, &vec![], "{}", line);
            prop_assert_eq!(&map.entries, &vec![Entry { line: 1, subject, roles, accounts }]);
        }
    }
}
