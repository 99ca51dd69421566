//! URLs of remote files: parsing, sending, and showing them without what follows `?`, where storages and
//! users put credentials.

use std::fmt;

use longhaul_model::percent;
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use longhaul_outbound::Origin;

use crate::s3::canonical_query;

/// Longer paths are refused.
const PATH_BYTES_MAX: usize = 4 << 10;
const URL_BYTES_MAX: usize = 8 << 10;
const HOST_BYTES_MAX: usize = 255;
/// Schemes of the URLs of a copy.
pub const SCHEMES: &[&str] = &["https", "davs", "http", "dav", "s3s", "s3"];

/// An absolute URL over HTTP.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteUrl {
    secure: bool,
    /// An object of a storage that speaks S3.
    s3: bool,
    /// Lower case; IPv6 addresses without brackets.
    host: String,
    port: u16,
    /// Percent-encoded, begins with `/`.
    path: String,
    query: Option<String>,
}

impl RemoteUrl {
    pub fn parse(text: &str) -> Result<RemoteUrl, Fault> {
        let refuse = |why: &str| {
            let shown: String = text.split(['?', '#']).next().unwrap_or_default().chars().take(120).collect();
            // Nothing before an @ is repeated: it may be a password.
            let shown = shown.rsplit('@').next().unwrap_or_default();
            Err(Fault::new(FaultCode::BadRequest, format!("the URL {}: {why}", printable(shown))))
        };
        if text.len() > URL_BYTES_MAX {
            return refuse("it is too long");
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return refuse("it has no scheme; https, davs, http, dav, s3s and s3 are accepted");
        };
        let (secure, s3) = match scheme.to_ascii_lowercase().as_str() {
            "https" | "davs" => (true, false),
            "http" | "dav" => (false, false),
            "s3s" => (true, true),
            "s3" => (false, true),
            _ => {
                return refuse(
                    "this scheme is not spoken here; https, davs, http, dav, s3s and s3 are accepted",
                );
            }
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if authority.contains('@') {
            return refuse("a user name in it is not accepted");
        }
        if rest.contains('#') {
            return refuse("a fragment (#) in it is not accepted");
        }
        let Some((host, port)) = host_and_port(authority, secure) else {
            return refuse("its host or port is malformed");
        };
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        if s3 && query.is_some() {
            return refuse("a query (?) in the URL of an S3 object is not accepted: it is signed here");
        }
        let path = if path.is_empty() { "/" } else { path };
        let path = if s3 {
            percent::encode_path(percent::decode_lenient(path))
        } else {
            percent::encode_target(path)
        };
        if let Err(why) = check_path(&path) {
            return refuse(why);
        }
        Ok(RemoteUrl { secure, s3, host, port, path, query: query.map(percent::encode_target) })
    }

    /// Where a redirect leads to; never from https to http.
    pub(crate) fn redirected(&self, location: &str) -> Result<RemoteUrl, Fault> {
        let scheme = if self.secure { "https" } else { "http" };
        let next = if location.contains("://") {
            RemoteUrl::parse(location)?
        } else if let Some(rest) = location.strip_prefix("//") {
            RemoteUrl::parse(&format!("{scheme}://{rest}"))?
        } else if location.starts_with('/') {
            RemoteUrl::parse(&format!("{scheme}://{}{location}", self.authority()))?
        } else {
            let detail = format!("{self} redirects to a relative name");
            return Err(Fault::new(FaultCode::ProtocolError, detail));
        };
        if self.secure && !next.secure {
            let detail = format!("{self} redirects to {next}: from https to http none is followed");
            return Err(Fault::new(FaultCode::NotAllowed, detail));
        }
        Ok(next)
    }

    pub fn is_secure(&self) -> bool {
        self.secure
    }

    pub fn is_s3(&self) -> bool {
        self.s3
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The same with this query, as S3 signs it.
    pub(crate) fn asking(&self, pairs: &[(&str, &str)]) -> RemoteUrl {
        RemoteUrl { query: Some(canonical_query(pairs)), ..self.clone() }
    }

    /// Host and port as in the `Host` header: the port only where it is not the scheme's default.
    pub(crate) fn authority(&self) -> String {
        let host = bracketed(&self.host);
        let usual = if self.secure { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }

    /// Path and query, for the request line.
    pub(crate) fn request_target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// The whole URL with its query, for another server that is to use it.
    pub(crate) fn whole(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.request_target())
    }

    /// As [`RemoteUrl::whole`], with nothing percent-encoded, for servers that take escapes literally. It has
    /// a query, if only an empty one: XRootD cuts blanks and bytes beyond ASCII off the end of a header.
    pub(crate) fn whole_decoded(&self) -> Vec<u8> {
        let scheme = if self.secure { "https" } else { "http" };
        let mut whole = format!("{scheme}://{}", self.authority()).into_bytes();
        whole.extend(percent::decode_lenient(&self.path));
        whole.push(b'?');
        whole.extend(self.query.iter().flat_map(|query| query.bytes()));
        whole
    }

    /// Scheme, host and port: what may see the same credentials.
    pub(crate) fn origin(&self) -> Origin {
        Origin { is_secure: self.secure, host: self.host.clone(), port: self.port }
    }

    /// The same path at another port.
    pub(crate) fn at_port(&self, port: u16) -> RemoteUrl {
        RemoteUrl { port, ..self.clone() }
    }

    /// Whether both name one file of one server, as far as names tell.
    pub(crate) fn is_same_file(&self, other: &RemoteUrl) -> bool {
        let plain = |url: &RemoteUrl| {
            percent::decode_lenient(&url.path)
                .split(|&byte| byte == b'/')
                .filter(|part| !part.is_empty())
                .map(<[u8]>::to_vec)
                .collect::<Vec<_>>()
        };
        self.host == other.host && self.port == other.port && plain(self) == plain(other)
    }

    /// The collection that it is in, with a slash at its end; nothing above the root.
    pub(crate) fn parent(&self) -> Option<RemoteUrl> {
        let path = self.path.trim_end_matches('/');
        let end = path.rfind('/')?;
        Some(RemoteUrl { path: format!("{}/", path[..end].trim_end_matches('/')), ..self.clone() })
    }

    /// A file or collection below this collection, by its decoded path.
    pub(crate) fn below(&self, path: &str) -> Result<RemoteUrl, Fault> {
        let encoded = format!("{}/{}", self.path.trim_end_matches('/'), percent::encode_path(path));
        match check_path(&encoded) {
            Ok(()) => Ok(RemoteUrl { path: encoded, ..self.clone() }),
            Err(why) => Err(Fault::new(FaultCode::BadName, format!("{}: in a URL {why}", printable(path)))),
        }
    }

    /// The bucket of an S3 URL, and what all keys below the URL begin with: empty, or with a slash at its
    /// end. None: it names no bucket.
    pub(crate) fn split_bucket(&self, path_style: bool) -> Option<(RemoteUrl, String)> {
        let path = String::from_utf8(percent::decode_lenient(&self.path)).ok()?;
        let mut names = path.split('/').filter(|name| !name.is_empty());
        let bucket = match path_style {
            true => format!("/{}", percent::encode_component(names.next()?)),
            false => "/".to_owned(),
        };
        let prefix: String = names.flat_map(|name| [name, "/"]).collect();
        self.s3.then(|| (RemoteUrl { path: bucket, ..self.clone() }, prefix))
    }

    /// The same as the name of a collection, with a slash at its end.
    pub(crate) fn as_collection(&self) -> RemoteUrl {
        RemoteUrl { path: format!("{}/", self.path.trim_end_matches('/')), ..self.clone() }
    }

    /// The same without a slash at its end.
    pub(crate) fn without_slash(&self) -> RemoteUrl {
        RemoteUrl { path: self.path.trim_end_matches('/').to_owned(), ..self.clone() }
    }

    /// Another name beside it, of characters that need no encoding.
    pub(crate) fn sibling(&self, name: &str) -> Option<RemoteUrl> {
        let end = self.path.rfind('/')?;
        Some(RemoteUrl { path: format!("{}/{name}", &self.path[..end]), ..self.clone() })
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.s3, self.secure) {
            (true, true) => "s3s",
            (true, false) => "s3",
            (false, true) => "https",
            (false, false) => "http",
        };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

/// A name, an IPv4 address, or an IPv6 address without brackets.
pub fn is_host(text: &str) -> bool {
    !text.contains('[')
        && host_and_port(&bracketed(text), true).is_some_and(|(host, _)| host.len() == text.len())
}

/// The URL with another host in it; scheme, port, path and what follows them stay letter by letter. None if
/// it is no URL that could be copied, or names an object of S3, whose keys are for its host.
pub fn on_host(url: &str, host: &str) -> Option<String> {
    RemoteUrl::parse(url).ok().filter(|url| !url.is_s3())?;
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let own = authority.find(']').map_or_else(|| authority.find(':'), |end| Some(end + 1));
    let after = own.unwrap_or(authority.len());
    is_host(host).then(|| format!("{scheme}://{}{}", bracketed(host), &rest[after..]))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

impl fmt::Debug for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

fn host_and_port(authority: &str, secure: bool) -> Option<(String, u16)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (host, port)
    } else {
        let end = authority.find(':').unwrap_or(authority.len());
        let (host, port) = authority.split_at(end);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if host.is_empty() || !host.bytes().all(plain) {
            return None;
        }
        (host, port)
    };
    let port = match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
        None if port.is_empty() => {
            if secure {
                443
            } else {
                80
            }
        }
        None => return None,
    };
    (host.len() <= HOST_BYTES_MAX && port > 0).then(|| (host.to_ascii_lowercase(), port))
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.len() > PATH_BYTES_MAX {
        return Err("its path is too long");
    }
    for segment in path.split('/') {
        let bytes = percent::decode_lenient(segment);
        if bytes.iter().any(|byte| *byte < 0x20 || *byte == 0x7f) {
            return Err("its path holds control characters");
        }
        if bytes.contains(&b'/') {
            return Err("its path holds an encoded slash");
        }
        if bytes == b".." || bytes == b"." {
            return Err("its path holds . or .. as a name");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_accepted_is_sent_as_it_was_written() {
        for (text, whole, shown) in [
            ("https://A.example", "https://a.example/", "https://a.example/"),
            ("davs://a.example:443/x y", "https://a.example/x%20y", "https://a.example/x%20y"),
            (
                "dav://a:8080//x//ü?authz=secret",
                "http://a:8080//x//%C3%BC?authz=secret",
                "http://a:8080//x//%C3%BC",
            ),
            (
                "https://[2001:DB8::1]:1094/x%2e",
                "https://[2001:db8::1]:1094/x%2e",
                "https://[2001:db8::1]:1094/x%2e",
            ),
            (
                "s3s://b.a.example:443/x+y=%2b%7e",
                "https://b.a.example/x%2By%3D%2B~",
                "s3s://b.a.example/x%2By%3D%2B~",
            ),
            ("s3://a:9000/b//x", "http://a:9000/b//x", "s3://a:9000/b//x"),
        ] {
            let url = RemoteUrl::parse(text).unwrap();
            assert_eq!(url.whole(), whole);
            assert_eq!(url.to_string(), shown);
        }
    }

    #[test]
    fn names_below_a_collection_are_encoded() {
        let root = RemoteUrl::parse("https://a/x/?t=1").unwrap();
        let below = |path: &str| root.below(path);
        assert_eq!(below("d e/ü=%").unwrap().whole(), "https://a/x/d%20e/%C3%BC%3D%25?t=1");
        assert_eq!(below("d e/ü").unwrap().whole_decoded(), "https://a/x/d e/ü?t=1".as_bytes());
        assert_eq!(RemoteUrl::parse("https://a/b c").unwrap().whole_decoded(), b"https://a/b c?");
        for refused in ["a\nb", "a/../b", "."] {
            assert_eq!(below(refused).unwrap_err().code, FaultCode::BadName, "{refused:?}");
        }
    }

    #[test]
    fn a_bucket_and_its_prefix_are_told_apart() {
        let split = |url: &str, path_style| {
            let (bucket, prefix) = RemoteUrl::parse(url).unwrap().split_bucket(path_style)?;
            Some((bucket.to_string(), prefix))
        };
        let expected = |bucket: &str, prefix: &str| Some((bucket.to_owned(), prefix.to_owned()));
        assert_eq!(split("s3s://a/b/c%20d/", true), expected("s3s://a/b", "c d/"));
        assert_eq!(split("s3s://a/b", true), expected("s3s://a/b", ""));
        assert_eq!(split("s3s://b.a/c", false), expected("s3s://b.a/", "c/"));
        assert_eq!(split("s3s://b.a", false), expected("s3s://b.a/", ""));
        assert_eq!((split("s3s://a", true), split("https://a/b", true)), (None, None));
    }

    #[test]
    fn another_host_leaves_all_else_as_it_was() {
        for (url, host, expected) in [
            ("https://a.example/x", "b.example", Some("https://b.example/x")),
            ("davs://A:1094//x y?q=a:b", "10.77.1.2", Some("davs://10.77.1.2:1094//x y?q=a:b")),
            ("https://a:8443", "2001:db8::2", Some("https://[2001:db8::2]:8443")),
            ("http://[2001:db8::1]:80/x", "b", Some("http://b:80/x")),
            ("http://[2001:db8::1]/x", "2001:db8::2", Some("http://[2001:db8::2]/x")),
            ("https://a?x=/", "b", Some("https://b?x=/")),
            ("https://a/x", "b:9", None),
            ("https://a/x", "[2001:db8::2]", None),
            ("https://a/x", "b/y", None),
            ("https://a/x", "", None),
            ("s3s://a/b/x", "b", None),
            ("https://me@a/x", "b", None),
        ] {
            assert_eq!(on_host(url, host).as_deref(), expected, "{url} {host}");
        }
    }

    #[test]
    fn what_is_dangerous_is_refused() {
        for text in [
            "",
            "/etc/passwd",
            "file:///etc/passwd",
            "root://a//x",
            "gopher://a/x",
            "https://",
            "https:///x",
            "https://user:secret@a/x",
            "https://a:0/x",
            "https://a:99999/x",
            "https://a:8x/x",
            "https://[::1/x",
            "https://[nonsense]/x",
            "https://a b/x",
            "https://a/../x",
            "https://a/%2e%2E/x",
            "https://a/x%2fy",
            "https://a/x%00",
            "https://a/x\r\nHost: b",
            "https://a/x#y",
            "s3s://a/b/x?versionId=secret",
        ] {
            let fault = RemoteUrl::parse(text).unwrap_err();
            assert!(!fault.detail.contains("secret"), "{fault}");
        }
        assert!(RemoteUrl::parse(&format!("https://a/{}", "x".repeat(5_000))).is_err());
    }

    #[test]
    fn redirects_never_leave_tls() {
        let url = RemoteUrl::parse("https://a/x?y").unwrap();
        assert_eq!(url.redirected("/z").unwrap().whole(), "https://a/z");
        assert_eq!(url.redirected("//b:8443/z?t=1").unwrap().whole(), "https://b:8443/z?t=1");
        assert_eq!(url.redirected("http://a/x").unwrap_err().code, FaultCode::NotAllowed);
        assert!(url.redirected("file:///etc/passwd").is_err());
        assert!(url.redirected("z").is_err());
        let plain = RemoteUrl::parse("http://a/x").unwrap();
        assert!(plain.redirected("https://a/x").unwrap().is_secure());
    }

    #[test]
    fn neighbours_are_found() {
        let url = RemoteUrl::parse("https://a/x/y/z%20z?t").unwrap();
        assert_eq!(url.parent().unwrap().path(), "/x/y/");
        assert_eq!(url.parent().unwrap().parent().unwrap().path(), "/x/");
        assert_eq!(url.sibling(".t").unwrap().path(), "/x/y/.t");
        assert!(RemoteUrl::parse("https://a/").unwrap().parent().is_none());
        let same = RemoteUrl::parse("davs://A:443//x/y/z z").unwrap();
        assert!(url.is_same_file(&same));
        assert!(!url.is_same_file(&url.parent().unwrap()));
    }

    proptest! {
        #[test]
        fn nothing_upsets_it(text in "(https|davs|http)?(://)?.{0,80}") {
            if let Ok(url) = RemoteUrl::parse(&text) {
                let again = RemoteUrl::parse(&url.whole()).unwrap();
                prop_assert_eq!(again.whole(), url.whole());
                prop_assert!(url.whole().bytes().all(|byte| byte > 0x20 && byte < 0x7f));
            }
        }

        #[test]
        fn another_host_is_all_that_changes(text in "(https|davs|http)://.{0,80}",
            host in "[a-z:.0-9]{1,12}") {
            if let Some(moved) = on_host(&text, &host) {
                let (before, after) = (RemoteUrl::parse(&text).unwrap(), RemoteUrl::parse(&moved).unwrap());
                prop_assert_eq!(after.host(), host);
                prop_assert_eq!(after.port(), before.port());
                prop_assert_eq!(after.request_target(), before.request_target());
            }
        }
    }
}
