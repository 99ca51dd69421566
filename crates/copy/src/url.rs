//! Endpoints on the command line: `lh://SECRET@host:port[,host:port…]/path`, `@FILE[/path]`, `user@host:DIR`,
//! or a local path.
//!
//! The path of a URL is literal, without percent-encoding: people append it by hand. Errors never repeat a
//! URL, since it contains a secret.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use longhaul_model::limits::LFN_BYTES_MAX;
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use longhaul_security::SharedSecret;
use zeroize::Zeroizing;

pub const SCHEME: &str = "lh://";
/// Addresses of one server: several interfaces with two families each.
pub const ADDRESSES_MAX: usize = 16;
/// The limit for host names (RFC 1035).
const HOST_BYTES_MAX: usize = 253;
/// Scheme, secret, addresses and path, each of the largest size.
pub const URL_BYTES_MAX: usize = 8 + 43 + ADDRESSES_MAX * (HOST_BYTES_MAX + 8) + LFN_BYTES_MAX;

/// A server that exports one directory, with all that is needed for mutual authentication.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    pub secret: SharedSecret,
    /// `host:port`, in order of preference.
    pub addresses: Vec<String>,
}

/// A path as typed: a trailing slash means the contents of a directory, not the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePath {
    /// Relative to the exported root; empty is the root itself.
    pub path: String,
    pub contents: bool,
}

/// One endpoint of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Local(PathBuf),
    Server {
        url: ServerUrl,
        path: RemotePath,
    },
    /// A directory on a host where a server is started over ssh.
    Ssh {
        login: String,
        /// The directory, relative to the remote home directory.
        directory: String,
    },
}

impl ServerUrl {
    /// The whole URL, including the secret.
    pub fn reveal(&self, path: &str) -> Zeroizing<String> {
        Zeroizing::new(format!("{SCHEME}{}@{}/{path}", *self.secret.reveal(), self.addresses.join(",")))
    }

    /// The first address, without the secret.
    pub fn shown(&self) -> String {
        printable(self.addresses.first().map_or("", String::as_str))
    }

    /// Hosts without ports, for what must not change when a server restarts.
    pub fn hosts(&self) -> Vec<&str> {
        self.addresses.iter().filter_map(|address| Some(address.rsplit_once(':')?.0)).collect()
    }

    /// Parses `lh://SECRET@host:port,…[/path]`.
    pub fn parse(text: &str) -> Result<(ServerUrl, RemotePath), Fault> {
        let wrong = |why: &str| Err(Fault::new(FaultCode::BadRequest, format!("the URL {why}")));
        if text.len() > URL_BYTES_MAX {
            return wrong(&format!("has {} bytes; the limit is {URL_BYTES_MAX}", text.len()));
        }
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return wrong("does not begin with lh://");
        };
        let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
        let Some((secret, addresses)) = server.split_once('@') else {
            return wrong("has no secret: use lh://SECRET@host:port/path as `longhaul serve` printed it");
        };
        let secret = secret.parse().map_err(|error| {
            Fault::new(FaultCode::BadRequest, format!("the URL's {error}")).with_source(error)
        })?;
        let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
        if addresses.len() > ADDRESSES_MAX {
            return wrong(&format!("has {} addresses; the limit is {ADDRESSES_MAX}", addresses.len()));
        }
        for address in &addresses {
            check_address(address)?;
        }
        Ok((ServerUrl { secret, addresses }, path.parse()?))
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl({:?}, secret hidden)", self.addresses)
    }
}

impl RemotePath {
    pub fn root() -> Self {
        RemotePath { path: String::new(), contents: true }
    }

    pub fn join(&self, more: &RemotePath) -> RemotePath {
        if more.path.is_empty() {
            return RemotePath { path: self.path.clone(), contents: self.contents || more.contents };
        }
        let slash = if self.path.is_empty() { "" } else { "/" };
        RemotePath { path: format!("{}{slash}{}", self.path, more.path), contents: more.contents }
    }
}

impl FromStr for RemotePath {
    type Err = Fault;
    fn from_str(text: &str) -> Result<Self, Fault> {
        let mut names = Vec::new();
        for name in text.split('/') {
            match name {
                "" | "." => {}
                ".." => {
                    let detail = "a path in a URL must not contain ..: a server shows nothing above its root";
                    return Err(Fault::new(FaultCode::BadName, detail));
                }
                name => names.push(name),
            }
        }
        let path = names.join("/");
        if !path.is_empty() {
            longhaul_model::Lfn::parse(&path)
                .map_err(|error| Fault::new(FaultCode::BadName, format!("the URL's path {}", error.why)))?;
        }
        let contents = path.is_empty() || text.ends_with('/') || text.ends_with("/.");
        Ok(RemotePath { path, contents })
    }
}

impl fmt::Display for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.path.is_empty() { "/" } else { &self.path })
    }
}

impl Endpoint {
    /// Parses an endpoint. Reads URL files, so it may fail for more reasons than bad syntax.
    pub fn parse(text: &str) -> Result<Endpoint, Fault> {
        if text.is_empty() {
            return Err(Fault::new(FaultCode::BadRequest, "the source or target is empty"));
        }
        if text.starts_with(SCHEME) {
            let (url, path) = ServerUrl::parse(text)?;
            return Ok(Endpoint::Server { url, path });
        }
        if let Some(named) = text.strip_prefix('@') {
            return from_file(named);
        }
        // As with scp, a slash before the colon makes it a path; without a user it is a file name that
        // contains a colon.
        let first = text.split('/').next().unwrap_or_default();
        if let Some((login, _)) = first.split_once(':')
            && login.contains('@')
        {
            return ssh(login, &text[login.len() + 1..]);
        }
        Ok(Endpoint::Local(PathBuf::from(text)))
    }

    pub fn is_local(&self) -> bool {
        matches!(self, Endpoint::Local(_))
    }

    /// For display, without the secret.
    pub fn shown(&self) -> String {
        match self {
            Endpoint::Local(path) => printable(&path.to_string_lossy()),
            Endpoint::Server { url, path } => format!("{SCHEME}{}/{}", url.shown(), printable(&path.path)),
            Endpoint::Ssh { login, directory } => printable(&format!("{login}:{directory}")),
        }
    }
}

/// Reads the URL in a file: its first line, followed only by empty lines.
pub fn read_url_file(path: &Path) -> Result<(ServerUrl, RemotePath), Fault> {
    let shown = printable(&path.to_string_lossy());
    let mut text = Zeroizing::new(String::new());
    File::open(path).and_then(|file| file.take(URL_BYTES_MAX as u64 + 2).read_to_string(&mut text)).map_err(
        |error| {
            Fault::new(FaultCode::NotFound, format!("cannot read a URL from {shown}: {error}"))
                .with_source(error)
        },
    )?;
    ServerUrl::parse(text.trim_end()).map_err(|fault| {
        let detail = format!("{shown} must contain a URL and nothing else; {}", fault.detail);
        Fault::new(fault.code, detail)
    })
}

/// Parses `@FILE` or `@FILE/path`: the longest prefix that is a file.
fn from_file(named: &str) -> Result<Endpoint, Fault> {
    let ends = named.char_indices().filter(|(_, c)| *c == '/').map(|(at, _)| at);
    let mut ends: Vec<usize> = ends.chain([named.len()]).filter(|end| *end > 0).collect();
    ends.sort_unstable();
    let file = ends.into_iter().rev().find(|end| Path::new(&named[..*end]).is_file());
    let Some(end) = file else {
        let detail = format!("@{}: no part of this path is a file that contains a URL", printable(named));
        return Err(Fault::new(FaultCode::NotFound, detail));
    };
    let (url, base) = read_url_file(Path::new(&named[..end]))?;
    let rest = &named[end..];
    let path = if rest.is_empty() { base } else { base.join(&rest.parse()?) };
    Ok(Endpoint::Server { url, path })
}

fn ssh(login: &str, directory: &str) -> Result<Endpoint, Fault> {
    let (user, host) = login.split_once('@').unwrap_or_default();
    // A host or user that begins with a dash would be an option of ssh.
    let plain = |word: &str| {
        !word.is_empty()
            && !word.starts_with('-')
            && word
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.' | b'[' | b']'))
    };
    if !plain(user) || !plain(host) {
        let detail = format!("{} is not user@host", printable(login));
        return Err(Fault::new(FaultCode::BadRequest, detail));
    }
    let directory = if directory.is_empty() { "." } else { directory };
    Ok(Endpoint::Ssh { login: login.to_owned(), directory: directory.to_owned() })
}

fn check_address(address: &str) -> Result<(), Fault> {
    let wrong = |why: String| Err(Fault::new(FaultCode::BadRequest, format!("the URL's address {why}")));
    let Some((host, port)) = address.rsplit_once(':') else {
        return wrong(format!("\"{}\" has no port", printable(address)));
    };
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b':' | b'%');
    let colon = bare.contains(':') && bare.len() == host.len();
    if bare.is_empty() || bare.len() > HOST_BYTES_MAX || !bare.bytes().all(fits) || colon {
        return wrong(format!("\"{}\" is not a host (write an IPv6 address in brackets)", printable(host)));
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(()),
        _ => wrong(format!("\"{}\" needs a port between 1 and 65535", printable(address))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn server(text: &str) -> (ServerUrl, RemotePath) {
        match Endpoint::parse(text).unwrap() {
            Endpoint::Server { url, path } => (url, path),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn urls_round_trip() {
        let text = format!("{SCHEME}{SECRET}@far.example:7000,[fe80::1]:7000/a b/c%20d");
        let (url, path) = server(&text);
        assert_eq!(url.addresses, ["far.example:7000", "[fe80::1]:7000"]);
        assert_eq!((path.path.as_str(), path.contents), ("a b/c%20d", false));
        assert_eq!(url.reveal(&path.path).as_str(), text);
        assert_eq!(url.hosts(), ["far.example", "[fe80::1]"]);
        assert!(!format!("{url:?}").contains(SECRET) && !url.shown().contains(SECRET));
    }

    #[test]
    fn a_slash_at_the_end_means_the_contents() {
        let path = |text: &str| server(&format!("{SCHEME}{SECRET}@h:1{text}")).1;
        assert_eq!(path(""), RemotePath::root());
        assert_eq!(path("/"), RemotePath::root());
        assert_eq!(path("/a"), RemotePath { path: "a".into(), contents: false });
        assert_eq!(path("/./a//b/"), RemotePath { path: "a/b".into(), contents: true });
    }

    #[test]
    fn says_what_is_wrong_and_keeps_the_secret() {
        let near = &SECRET[1..];
        for (bad, why) in [
            (format!("{SCHEME}{near}@h:1/"), "cut off"),
            (format!("{SCHEME}h:1/"), "no secret"),
            (format!("{SCHEME}{SECRET}@h/"), "no port"),
            (format!("{SCHEME}{SECRET}@h:0/"), "port between"),
            (format!("{SCHEME}{SECRET}@:1/"), "not a host"),
            (format!("{SCHEME}{SECRET}@fe80::1:7000/"), "brackets"),
            (format!("{SCHEME}{SECRET}@h:1/a/../b"), ".."),
            (format!("{SCHEME}{SECRET}@{}/", vec!["h:1"; 17].join(",")), "17 addresses"),
            (format!("{SCHEME}{SECRET}@h:1/{}", "x".repeat(300)), "255"),
        ] {
            let fault = Endpoint::parse(&bad).unwrap_err();
            assert!(fault.detail.contains(why), "{}", fault.detail);
            assert!(!fault.detail.contains(near), "{}", fault.detail);
        }
    }

    #[test]
    fn a_file_stands_for_the_url_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("far.url");
        std::fs::write(&file, format!("{SCHEME}{SECRET}@h:1/data\n")).unwrap();
        let named = format!("@{}", file.display());
        assert_eq!(server(&named).1.path, "data");
        assert_eq!(server(&format!("{named}/")).1, RemotePath { path: "data".into(), contents: true });
        assert_eq!(server(&format!("{named}/run7/x")).1.path, "data/run7/x");
        assert!(Endpoint::parse(&format!("{named}x")).unwrap_err().detail.contains("no part"));
        std::fs::write(&file, "hello").unwrap();
        let fault = Endpoint::parse(&named).unwrap_err();
        assert!(fault.detail.contains("far.url") && fault.detail.contains("lh://"), "{}", fault.detail);
    }

    #[test]
    fn logins_and_local_paths_are_told_apart() {
        let ssh =
            |login: &str, directory: &str| Endpoint::Ssh { login: login.into(), directory: directory.into() };
        assert_eq!(Endpoint::parse("me@far:run7/").unwrap(), ssh("me@far", "run7/"));
        assert_eq!(Endpoint::parse("me@far:").unwrap(), ssh("me@far", "."));
        assert_eq!(Endpoint::parse("./me@far:run7").unwrap(), Endpoint::Local("./me@far:run7".into()));
        assert_eq!(Endpoint::parse("data:1").unwrap(), Endpoint::Local("data:1".into()));
        assert!(Endpoint::parse("me@-oProxyCommand=x:run7").is_err());
        assert!(Endpoint::parse("-x@far:run7").is_err());
    }

    proptest! {
        /// Promise 9: no path of a URL leaves the root.
        #[test]
        fn no_text_panics_or_leaves_the_root(text in "(lh://)?[A-Za-z@:/.,%\\[\\]]{0,80}|.{0,60}") {
            if let Ok((_, path)) = ServerUrl::parse(&text) {
                prop_assert!(!path.path.split('/').any(|name| name == ".." || name == "."));
                prop_assert!(!path.path.starts_with('/'));
            }
            let _ = text.parse::<RemotePath>();
        }

        #[test]
        fn every_path_comes_back(path in "[a-z .%@:]{1,9}(/[a-z .%@:]{1,9}){0,4}") {
            let text = format!("{SCHEME}{SECRET}@h:1/{path}");
            if let Ok((url, parsed)) = ServerUrl::parse(&text) {
                let again = url.reveal(&parsed.path);
                prop_assert_eq!(ServerUrl::parse(&again).unwrap().1.path, parsed.path);
            }
        }
    }
}
