//! PROPFIND answers (multistatus), read within bounds on size and members. The server is not trusted.

use std::io::BufRead;

use longhaul_model::Algorithm;
use longhaul_model::percent::decode_lenient;

use crate::checksum::{Checksum, read_value};
use crate::order::Stat;
use crate::xml;

/// Bytes of a document that is held as a whole.
pub(crate) const BYTES_MAX: usize = 16 << 20;
/// Members of a collection that are held with all that is told of them.
pub(crate) const MEMBERS_MAX: usize = 50_000;
const DAV: &str = "DAV:";

/// The properties that are requested.
pub(crate) const REQUEST: &str = concat!(
    r#"<?xml version="1.0" encoding="utf-8"?>"#,
    "\n",
    r#"<D:propfind xmlns:D="DAV:" xmlns:C="http://www.dcache.org/2013/webdav"><D:prop><D:resourcetype/>"#,
    r#"<D:getcontentlength/><D:getlastmodified/><D:getetag/><C:Checksums/></D:prop></D:propfind>"#,
);

/// The properties of a quota (RFC 4331), which servers tell only when they are asked for by name.
pub(crate) const QUOTA_REQUEST: &str = concat!(
    r#"<?xml version="1.0" encoding="utf-8"?>"#,
    "\n",
    r#"<D:propfind xmlns:D="DAV:"><D:prop><D:quota-available-bytes/><D:quota-used-bytes/></D:prop>"#,
    "</D:propfind>",
);

/// What a collection may still take and what it holds (RFC 4331). None: not told, or told as a negative
/// number, by which some servers mean "unknown" or "unlimited".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) available_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
}

/// One `response`: whose it is, as a decoded path, and what it says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Member {
    pub(crate) path: Vec<u8>,
    pub(crate) stat: Stat,
    /// Has a property with status 200, or no properties at all.
    pub(crate) found: bool,
    /// All that were told.
    pub(crate) checksums: Vec<Checksum>,
    pub(crate) quota: Quota,
}

/// The elements that matter here.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tag {
    Response,
    Href,
    Propstat,
    Status,
    Prop,
    ResourceType,
    Collection,
    Length,
    Modified,
    Etag,
    Checksums,
    QuotaAvailable,
    QuotaUsed,
    Other,
}

fn tag(namespace: &str, local: &str) -> Tag {
    if namespace != DAV {
        // dCache tells several in one, StoRM one.
        return if !namespace.is_empty() && (local == "Checksums" || local == "Checksum") {
            Tag::Checksums
        } else {
            Tag::Other
        };
    }
    match local {
        "response" => Tag::Response,
        "href" => Tag::Href,
        "propstat" => Tag::Propstat,
        "status" => Tag::Status,
        "prop" => Tag::Prop,
        "resourcetype" => Tag::ResourceType,
        "collection" => Tag::Collection,
        "getcontentlength" => Tag::Length,
        "getlastmodified" => Tag::Modified,
        "getetag" => Tag::Etag,
        "quota-available-bytes" => Tag::QuotaAvailable,
        "quota-used-bytes" => Tag::QuotaUsed,
        _ => Tag::Other,
    }
}

/// # Errors
/// The error is fit to be shown.
pub(crate) fn read(document: &[u8]) -> Result<Vec<Member>, String> {
    let mut members = Vec::new();
    read_each(document, BYTES_MAX as u64, &mut |member| {
        if members.len() >= MEMBERS_MAX {
            return Err(format!("it has more than {MEMBERS_MAX} members"));
        }
        members.push(member);
        Ok(())
    })?;
    Ok(members)
}

/// Reads a document as it comes, and gives each member away. An error of `each` ends it.
///
/// # Errors
/// The error is fit to be shown.
pub(crate) fn read_each(
    document: impl BufRead,
    bytes_max: u64,
    each: &mut dyn FnMut(Member) -> Result<(), String>,
) -> Result<(), String> {
    let mut reading = Reading {
        each,
        open: Vec::new(),
        member: Member::default(),
        stat: Stat::default(),
        checksums: Vec::new(),
        quota: Quota::default(),
        ok: None,
        propstats: 0,
    };
    xml::walk(document, bytes_max, &mut reading)
}

struct Reading<'a> {
    each: &'a mut dyn FnMut(Member) -> Result<(), String>,
    open: Vec<Tag>,
    member: Member,
    /// The properties of one `propstat`, until its status is known.
    stat: Stat,
    checksums: Vec<Checksum>,
    quota: Quota,
    ok: Option<bool>,
    propstats: usize,
}

impl xml::Visit for Reading<'_> {
    fn begin(&mut self, namespace: &str, local: &str) -> Result<(), String> {
        let tag = tag(namespace, local);
        match tag {
            Tag::Response => {
                self.member = Member::default();
                self.propstats = 0;
                self.ok = None;
            }
            Tag::Propstat => {
                (self.stat, self.ok) = (Stat::default(), None);
                self.checksums.clear();
                self.quota = Quota::default();
                self.propstats += 1;
            }
            _ => {}
        }
        self.open.push(tag);
        Ok(())
    }

    fn end(&mut self, text: &str) -> Result<(), String> {
        let tag = self.open.pop().unwrap_or(Tag::Other);
        let within = self.open.last().copied();
        let text = if tag == Tag::Href { xml::without_layout(text) } else { text.trim() };
        match (tag, within) {
            (Tag::Href, Some(Tag::Response)) => self.member.path = path_of(text),
            (Tag::Status, Some(Tag::Propstat | Tag::Response)) => {
                self.ok =
                    Some(text.split_ascii_whitespace().nth(1).is_some_and(|code| code.starts_with('2')));
            }
            (Tag::Collection, Some(Tag::ResourceType)) => self.stat.is_collection = true,
            (Tag::Length, Some(Tag::Prop)) => {
                // Collections have none, or an empty one.
                self.stat.size = if text.is_empty() {
                    0
                } else {
                    text.parse().map_err(|_| "a length in it is no number".to_owned())?
                };
            }
            (Tag::Modified, Some(Tag::Prop)) => self.stat.modified = some(text),
            (Tag::Etag, Some(Tag::Prop)) => self.stat.etag = some(text),
            (Tag::Checksums, Some(Tag::Prop)) => self.checksums = checksums(text),
            (Tag::QuotaAvailable, Some(Tag::Prop)) => self.quota.available_bytes = octets(text),
            (Tag::QuotaUsed, Some(Tag::Prop)) => self.quota.used_bytes = octets(text),
            (Tag::Propstat, _) if self.ok != Some(false) => {
                self.member.quota = std::mem::take(&mut self.quota);
                self.member.stat = std::mem::take(&mut self.stat);
                self.member.checksums = std::mem::take(&mut self.checksums);
                self.member.found = true;
            }
            (Tag::Response, _) => {
                self.member.found |= self.propstats == 0 && self.ok != Some(false);
                (self.each)(std::mem::take(&mut self.member))?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Not a negative number, nor one that was made of a negative one.
fn octets(text: &str) -> Option<u64> {
    text.trim().parse::<i64>().ok().and_then(|octets| u64::try_from(octets).ok())
}

/// `adler32=0a1b2c3d;md5=…`, or with commas.
fn checksums(text: &str) -> Vec<Checksum> {
    let one = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let unknown: Checksum = name.trim().parse().ok()?;
        read_value(value.trim(), unknown.algorithm)
    };
    text.split([',', ';']).take(8).filter_map(one).collect()
}

/// An absolute path or a whole URL; decoded once.
fn path_of(href: &str) -> Vec<u8> {
    let path = match href.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => href,
    };
    decode_lenient(path.split(['?', '#']).next().unwrap_or_default())
}

impl Member {
    pub(crate) fn checksum(&self, wanted: Algorithm) -> Option<Checksum> {
        self.checksums.iter().find(|checksum| checksum.algorithm == wanted).cloned()
    }

    /// Its name if it is directly in the collection of this decoded path; none for the collection itself, and
    /// for what is somewhere else and was not asked for.
    pub(crate) fn name_in(&self, collection: &[u8]) -> Option<String> {
        fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
            path.split(|&byte| byte == b'/').filter(|segment| !segment.is_empty())
        }
        let mut own = segments(&self.path);
        let is_below = segments(collection).all(|segment| own.next() == Some(segment));
        (is_below && own.count() == 1).then(|| self.name())?
    }

    /// Its last segment; none if it is no name that a member of a collection can have.
    pub(crate) fn name(&self) -> Option<String> {
        let path = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        let last = path.rsplit(|&byte| byte == b'/').next()?;
        let name = String::from_utf8(last.to_vec()).ok()?;
        let sound =
            !name.is_empty() && name != "." && name != ".." && !name.contains(|c: char| c.is_control());
        sound.then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const XROOTD: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<D:multistatus xmlns:D="DAV:" xmlns:ns1="http://apache.org/dav/props/" xmlns:ns0="DAV:">
<D:response xmlns:lp1="DAV:" xmlns:lp2="http://apache.org/dav/props/" xmlns:lp3="LCGDM:">
<D:href>//data/a%20b&amp;c</D:href>
<D:propstat>
<D:prop>
<lp1:getcontentlength>42</lp1:getcontentlength>
<lp1:getlastmodified>Mon, 12 Feb 2024 10:00:00 GMT</lp1:getlastmodified>
<lp1:resourcetype/>
</D:prop>
<D:status>HTTP/1.1 200 OK</D:status>
</D:propstat>
<D:propstat><D:prop><D:getetag/></D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>
</D:response>
<D:response><D:href>https://a.example/data/dir/</D:href><D:propstat><D:prop>
<D:resourcetype><D:collection/></D:resourcetype>
<C:Checksums
  xmlns:C="http://www.dcache.org/2013/webdav">md5=1B2M2Y8AsgTpgAmY7PhCfg==,adler32=0a1b2c3d</C:Checksums>
</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>
</D:multistatus>"#;

    #[test]
    fn what_servers_send_is_understood() {
        let members = read(XROOTD.as_bytes()).unwrap();
        assert_eq!(members.len(), 2);
        assert_eq!(members[0].name().unwrap(), "a b&c");
        assert_eq!((members[0].stat.size, members[0].stat.is_collection), (42, false));
        assert!(members[0].found && members[0].stat.modified.is_some());
        assert_eq!((members[1].name().unwrap().as_str(), members[1].stat.is_collection), ("dir", true));
        assert_eq!(members[1].checksum(Algorithm::Adler32).unwrap().to_string(), "ADLER32:0a1b2c3d");
    }

    #[test]
    fn blanks_of_a_name_stay_and_those_of_the_layout_do_not() {
        for (href, path) in
            [("/a/ ", "/a/ "), ("\n  /a/b\n ", "/a/b"), ("/a/b \n", "/a/b"), ("/a/%20", "/a/ "), (" \n", "")]
        {
            let document = format!("<m xmlns='DAV:'><response><href>{href}</href></response></m>");
            assert_eq!(read(document.as_bytes()).unwrap()[0].path, path.as_bytes(), "{href:?}");
        }
    }

    #[test]
    fn quotas_are_octets_or_unknown() {
        let quota = |available: &str, status: &str| {
            let document = format!(
                "<m xmlns='DAV:'><response><href>/</href><propstat><prop><quota-available-bytes>{available}\
                 </quota-available-bytes><quota-used-bytes>7</quota-used-bytes></prop><status>HTTP/1.1 \
                 {status}</status></propstat></response></m>"
            );
            let member = &read(document.as_bytes()).unwrap()[0];
            (member.quota.available_bytes, member.quota.used_bytes)
        };
        assert_eq!(quota(" 12 ", "200 OK"), (Some(12), Some(7)));
        // ownCloud: unlimited, as a number and as the same number without its sign.
        for unknown in ["-3", "18446744073709551613", "", "many"] {
            assert_eq!(quota(unknown, "200 OK"), (None, Some(7)), "{unknown}");
        }
        assert_eq!(quota("12", "404 Not Found"), (None, None));
    }

    #[test]
    fn bombs_are_refused() {
        let bomb = r#"<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><x>&b;</x>"#;
        assert!(read(bomb.as_bytes()).unwrap_err().contains("document type"));
        assert!(read(b"<x>&b;</x>").unwrap_err().contains("entity"));
        let deep = "<a>".repeat(40);
        assert!(read(deep.as_bytes()).unwrap_err().contains("nested"));
        let long = format!("<a>{}</a>", "x".repeat(9_000));
        assert!(read(long.as_bytes()).unwrap_err().contains("bytes"));
        let many = format!("<a xmlns='DAV:'>{}</a>", "<response/>".repeat(MEMBERS_MAX + 1));
        assert!(read(many.as_bytes()).unwrap_err().contains("members"));
        let attributes: String = (0..40).map(|n| format!(" a{n}=''")).collect();
        assert!(read(format!("<a{attributes}/>").as_bytes()).unwrap_err().contains("attributes"));
        assert!(read(b"<a>").is_err());
        assert!(read(b"<a></b>").is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for path in ["/a/..", "/a/.", "/", "", "/a/x\n"] {
            assert_eq!(Member { path: path.into(), ..Member::default() }.name(), None, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_upsets_it(document in prop::collection::vec(
            prop::sample::select(vec!["<D:response>", "</D:response>", "<D:href>", "</D:href>", "/a%2e",
                "&amp;", "&#x41;", "<D:propstat>",
                "</D:propstat>", "<D:prop/>", "<!--", "-->", "<![CDATA[", "]]>", "<", ">", "\u{0}", "ü",
                    "<D:status>HTTP/1.1 200", "</D:status>"]), 0..40)) {
            let whole = format!("<D:multistatus xmlns:D='DAV:'>{}</D:multistatus>", document.concat());
            let _ = read(whole.as_bytes());
            let _ = read(document.concat().as_bytes());
        }
    }
}
