//! One endpoint of a pair as written: a local path, a URL, or a file that holds a URL.

use std::fmt;

use longhaul_model::units::printable;

/// A source or target as written, before URL files are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointSpec {
    Local(String),
    /// `lh://SECRET@host:port/path`
    Url(String),
    /// `@FILE` or `@FILE/path`, without the `@`: the URL is read from the file.
    AtFile(String),
}

const FDT_UNSUPPORTED: &str = "fdt:// is an FDT daemon, whose protocol Longhaul does not speak: run \
    `longhaul serve DIR` on that host, and use the lh:// URL that it prints, or @FILE with that URL in the \
    file";

impl EndpointSpec {
    /// Parses one word. `check` returns what is wrong with an `lh://` URL, if anything.
    pub fn parse(text: &str, check: &dyn Fn(&str) -> Result<(), String>) -> Result<EndpointSpec, String> {
        if text.is_empty() {
            return Err("the name is empty".to_owned());
        }
        if let Some(file) = text.strip_prefix('@') {
            return match file {
                "" => Err("write the name of a file that holds a URL after @".to_owned()),
                file => Ok(EndpointSpec::AtFile(file.to_owned())),
            };
        }
        let Some((before, after)) = text.split_once(':') else {
            return Ok(EndpointSpec::Local(text.to_owned()));
        };
        if before.contains('/') {
            return Ok(EndpointSpec::Local(text.to_owned()));
        }
        match (before, after.starts_with("//")) {
            ("lh", true) => check(text).map(|()| EndpointSpec::Url(text.to_owned())),
            ("fdt", true) => Err(FDT_UNSUPPORTED.to_owned()),
            ("file", true) => Err("write the path itself, without file://".to_owned()),
            (scheme, true) => Err(format!("{}:// is not supported; use lh://", printable(scheme))),
            // As on the command line: without a user it is a file name that contains a colon.
            (name, false) if !name.contains('@') => Ok(EndpointSpec::Local(text.to_owned())),
            (host, false) => Err(format!(
                "a batch file cannot start a server over ssh on {}; put ./ before the name of a local file \
                    that contains a colon",
                printable(host.rsplit('@').next().unwrap_or(host))
            )),
        }
    }

    /// Host and port of a URL; none for a local path or a URL file.
    pub fn host_and_port(&self) -> Option<&str> {
        let EndpointSpec::Url(url) = self else { return None };
        let authority = url.strip_prefix("lh://")?.split('/').next()?;
        Some(authority.rsplit('@').next().unwrap_or(authority))
    }

    /// Whether the text contains a secret: whoever reads it could use it.
    pub fn holds_secret(&self) -> bool {
        let EndpointSpec::Url(url) = self else { return false };
        url.split('/').nth(2).is_some_and(|authority| authority.contains('@'))
    }

    /// For people and logs: without the secret, control characters escaped.
    pub fn shown(&self) -> String {
        match self {
            EndpointSpec::Url(url) if self.holds_secret() => {
                let rest = url.split_once('@').map_or("", |(_, rest)| rest);
                format!("lh://…@{}", printable(rest))
            }
            other => printable(&other.to_string()),
        }
    }
}

/// Prints the text as it was written.
impl fmt::Display for EndpointSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndpointSpec::Local(text) | EndpointSpec::Url(text) => f.write_str(text),
            EndpointSpec::AtFile(file) => write!(f, "@{file}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<EndpointSpec, String> {
        EndpointSpec::parse(text, &|url| if url.contains("bad") { Err("bad URL".to_owned()) } else { Ok(()) })
    }

    #[test]
    fn three_kinds() {
        assert_eq!(parse("a/b"), Ok(EndpointSpec::Local("a/b".into())));
        assert_eq!(parse("a:b"), Ok(EndpointSpec::Local("a:b".into())));
        assert_eq!(parse("./u@a:b"), Ok(EndpointSpec::Local("./u@a:b".into())));
        assert_eq!(parse("./a:b"), Ok(EndpointSpec::Local("./a:b".into())));
        assert_eq!(parse("/d/x://y"), Ok(EndpointSpec::Local("/d/x://y".into())));
        assert_eq!(parse("@url/sub"), Ok(EndpointSpec::AtFile("url/sub".into())));
        let url = parse("lh://s3cret@far.example:7000/a@b").unwrap();
        assert_eq!(url.host_and_port(), Some("far.example:7000"));
        assert_eq!(url.shown(), "lh://…@far.example:7000/a@b");
        assert!(url.holds_secret() && url.to_string().contains("s3cret"));
        let bare = parse("lh://far.example/a@b").unwrap();
        assert!(!bare.holds_secret());
        assert_eq!(
            (bare.host_and_port(), bare.shown().as_str()),
            (Some("far.example"), "lh://far.example/a@b")
        );
        assert_eq!(parse("a").unwrap().host_and_port(), None);
    }

    #[test]
    fn what_is_refused_says_what_to_write() {
        for (text, says) in [
            ("", "empty"),
            ("@", "holds a URL"),
            ("fdt://h:8444/x", "longhaul serve"),
            ("file:///x", "without file://"),
            ("https://h/x", "use lh://"),
            ("user@host:dir", "./"),
            ("lh://bad", "bad URL"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
        assert!(!parse("se\u{1b}cret@host:dir").unwrap_err().contains("cret@"));
        let several = parse("lh://s@h:1,[::1]:2/a").unwrap();
        assert_eq!(several.host_and_port(), Some("h:1,[::1]:2"));
    }

    proptest! {
        #[test]
        fn what_parses_prints_as_written(text in ".{0,20}|(lh://|@|fdt:)?[a-z@:/]{0,12}") {
            if let Ok(place) = parse(&text) {
                prop_assert_eq!(place.to_string(), text);
                prop_assert!(!place.shown().chars().any(char::is_control));
            }
        }
    }
}
