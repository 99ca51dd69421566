//! Paths and destinations of requests, parsed strictly and once.

use http::{HeaderMap, Request, StatusCode, Uri};
use longhaul_model::percent;
use longhaul_model::{Pfn, StorageName};

use crate::answer::{Outcome, Refusal};

/// Longer paths are no names of files (a name has at most 1,024 bytes, each up to three characters here).
const PATH_BYTES_MAX: usize = 4 << 10;

/// A place in the storage, as a client names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestPath {
    /// Relative to the root, which is the empty path.
    pub(crate) path: String,
    /// Whether it was written as a directory's.
    pub(crate) slash: bool,
}

impl RequestPath {
    pub(crate) fn from_request<T>(request: &Request<T>) -> Outcome<RequestPath> {
        match request.uri().path() {
            // A request about the server as a whole.
            "*" => Ok(RequestPath { path: String::new(), slash: true }),
            path => RequestPath::parse(path),
        }
    }

    /// Decodes once; what could mean another place in another program is refused, not repaired.
    pub(crate) fn parse(raw: &str) -> Outcome<RequestPath> {
        if raw.len() > PATH_BYTES_MAX {
            let text = format!("the path has more than {PATH_BYTES_MAX} bytes");
            return Err(Refusal::new(StatusCode::URI_TOO_LONG, text));
        }
        if !raw.starts_with('/') {
            return Err(Refusal::bad("the path does not begin with /"));
        }
        let mut components = Vec::new();
        for component in raw.split('/').filter(|component| !component.is_empty()) {
            let name = percent::decode(component)
                .ok_or_else(|| Refusal::bad("the path is not percent-encoded UTF-8"))?;
            if name.is_empty() || name.contains(['/', '\\']) || name.chars().any(char::is_control) {
                return Err(Refusal::bad(
                    "the path has a component with a slash, backslash or control character",
                ));
            }
            if matches!(name.as_str(), "." | "..") {
                return Err(Refusal::bad("the path has a component . or .."));
            }
            components.push(name);
        }
        Ok(RequestPath { path: components.join("/"), slash: raw.ends_with('/') })
    }

    pub(crate) fn is_root(&self) -> bool {
        self.path.is_empty()
    }

    pub(crate) fn pfn(&self, storage: &StorageName) -> Outcome<Pfn> {
        Pfn::new(storage.clone(), &self.path).map_err(|error| Refusal::bad(error.to_string()))
    }

    pub(crate) fn parent(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    pub(crate) fn is_within(&self, other: &RequestPath) -> bool {
        is_within(&self.path, &other.path)
    }
}

/// Compares whole components: `a/b` is within `a`, `ab` is not. Everything is within the root.
pub(crate) fn is_within(path: &str, directory: &str) -> bool {
    directory.is_empty()
        || path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The one value of a header; twice is an attempt to be understood in two ways.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Outcome<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(Refusal::bad(format!("the header {name} is given twice")));
    }
    let text = |value: &'a http::HeaderValue| {
        value.to_str().map_err(|_| Refusal::bad(format!("the header {name} is not plain text")))
    };
    value.map(text).transpose()
}

/// `Overwrite: T` is the default.
pub(crate) fn may_overwrite(headers: &HeaderMap) -> Outcome<bool> {
    match single(headers, "overwrite")?.map(str::trim) {
        None | Some("T" | "t") => Ok(true),
        Some("F" | "f") => Ok(false),
        Some(_) => Err(Refusal::bad("the header Overwrite is T or F")),
    }
}

/// Where the header `Destination` points.
#[derive(Debug)]
pub(crate) enum Destination {
    Here(RequestPath),
    Elsewhere,
}

/// A destination is here if it has no host, the host that the request was sent to, or one of the door's
/// `names`.
pub(crate) fn destination(text: &str, headers: &HeaderMap, names: &[String]) -> Outcome<Destination> {
    if text.starts_with('/') && !text.starts_with("//") {
        let uri: Uri = text.parse().map_err(|_| Refusal::bad("the header Destination is no URL"))?;
        return Ok(Destination::Here(RequestPath::parse(uri.path())?));
    }
    let uri: Uri = text.parse().map_err(|_| Refusal::bad("the header Destination is no URL"))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(Refusal::bad("the header Destination is no absolute URL"));
    };
    let host = single(headers, "host")?.unwrap_or_default();
    let is_ours = |name: &str| with_port(name).eq_ignore_ascii_case(&with_port(authority.as_str()));
    let secure = matches!(scheme, "https" | "davs");
    if secure && (is_ours(host) || names.iter().any(|name| is_ours(name))) {
        return Ok(Destination::Here(RequestPath::parse(uri.path())?));
    }
    Ok(Destination::Elsewhere)
}

fn with_port(authority: &str) -> String {
    let has_port =
        authority.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|c| c.is_ascii_digit()));
    if has_port { authority.to_owned() } else { format!("{authority}:443") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::percent::encode_path;
    use proptest::prelude::*;

    #[test]
    fn paths_mean_one_place() {
        let place = |raw: &str| RequestPath::parse(raw).map(|place| (place.path, place.slash)).ok();
        assert_eq!(place("/"), Some((String::new(), true)));
        assert_eq!(place("/a//b/"), Some(("a/b".into(), true)));
        assert_eq!(place("/a%20b/%c3%a9"), Some(("a b/é".into(), false)));
        for bad in [
            "a",
            "/../x",
            "/a/%2e%2e/b",
            "/a%2Fb",
            "/a%2fb",
            "/a%00",
            "/a%0a",
            "/a%5cb",
            "/%",
            "/%4",
            "/%zz",
            "/%ff",
            "/./a",
            "/%2E",
        ] {
            assert!(RequestPath::parse(bad).is_err(), "{bad}");
        }
        assert!(RequestPath::parse(&format!("/{}", "x".repeat(5_000))).is_err());
    }

    #[test]
    fn destinations_are_here_or_elsewhere() {
        let mut headers = HeaderMap::new();
        headers.insert("host", "door:8443".parse().unwrap());
        let names = ["alias.example".to_owned()];
        let here = |text: &str| match destination(text, &headers, &names) {
            Ok(Destination::Here(place)) => Some(place.path),
            _ => None,
        };
        assert_eq!(here("https://door:8443/a/b"), Some("a/b".into()));
        assert_eq!(here("https://DOOR:8443/a%20b?x=y"), Some("a b".into()));
        assert_eq!(here("https://alias.example/a"), Some("a".into()));
        assert_eq!(here("/a"), Some("a".into()));
        for other in [
            "https://door/a",
            "https://door:1/a",
            "http://door:8443/a",
            "file:///etc/passwd",
            "//door:8443/a",
        ] {
            assert_eq!(here(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_path_leads_out(raw in "(/|%2e|%2E|\\.|%2f|%5c|a|%c3%a9|%00|\\\\){0,12}") {
            if let Ok(place) = RequestPath::parse(&raw) {
                prop_assert!(place.is_root() || place.pfn(&"s".parse().unwrap()).is_ok(), "{}", place.path);
                prop_assert!(!place.path.split('/').any(|component| component == ".."));
            }
        }

        #[test]
        fn names_survive_their_urls(path in "[^/\\\\\\p{Cc}]{1,20}(/[^/\\\\\\p{Cc}]{1,20}){0,3}") {
            prop_assume!(!path.split('/').any(|component| matches!(component, "." | "..")));
            prop_assert_eq!(RequestPath::parse(&format!("/{}", encode_path(&path))).unwrap().path, path);
        }
    }
}
