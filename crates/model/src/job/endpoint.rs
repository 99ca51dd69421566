//! Endpoints of job files by URL, and the id space that the scheduler keeps for jobs.

/// The bit that marks ids of job storages, sites, files and queues, so that they never equal an id of the
/// catalog: row ids count from one, and stamped ids reach this bit in 2089.
pub const JOBS_HALF: u64 = 1 << 62;

/// Whether an id of the scheduler belongs to jobs.
pub fn of_jobs(id: u64) -> bool {
    id & JOBS_HALF != 0
}

/// Scheme, host and port of a URL; no port if it is the scheme's default.
fn authority(url: &str) -> Option<(String, String, Option<u16>)> {
    let (scheme, rest) = url.trim().split_once("://")?;
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    if scheme.is_empty() || !scheme.chars().all(letters) {
        return None;
    }
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let bracket = place.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match place[bracket..].split_once(':') {
        Some((rest, port)) => (&place[..bracket + rest.len()], Some(port)),
        None => (place, None),
    };
    let port = match port {
        Some("") | None => None,
        Some(digits) => Some(digits.parse::<u16>().ok()?),
    };
    if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return None;
    }
    let scheme = scheme.to_ascii_lowercase();
    let usual = match scheme.as_str() {
        "http" | "dav" | "s3" => Some(80),
        "https" | "davs" | "s3s" => Some(443),
        "root" | "xroot" => Some(1094),
        _ => None,
    };
    Some((scheme, host.to_ascii_lowercase(), port.filter(|port| usual != Some(*port))))
}

/// The storage element of a URL in FTS's sense: scheme and host, without the port.
pub fn storage_element(url: &str) -> Option<String> {
    authority(url).map(|(scheme, host, _)| format!("{scheme}://{host}"))
}

/// The server of a URL; two ports of one host are two endpoints.
pub fn end_point(url: &str) -> Option<String> {
    authority(url).map(|(scheme, host, port)| match port {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_url_has_a_storage_element_and_an_end_point() {
        for (url, element, end) in [
            ("davs://A.example.org:443/d/f1", "davs://a.example.org", "davs://a.example.org"),
            ("https://a:8443/x?y=http://b:1", "https://a", "https://a:8443"),
            ("https://me:pw@a/x", "https://a", "https://a"),
            ("https://[::1]:9/x", "https://[::1]", "https://[::1]:9"),
            ("http://[::1]", "http://[::1]", "http://[::1]"),
            ("HTTPS://a:/x", "https://a", "https://a"),
        ] {
            assert_eq!(storage_element(url).as_deref(), Some(element), "{url}");
            assert_eq!(end_point(url).as_deref(), Some(end), "{url}");
        }
        for bad in [
            "",
            "a/b",
            "://a/b",
            "https:///x",
            "https://a:99999/",
            "ht tp://a/",
            "https://:80/x",
            "https://a b/",
            "http://::",
            "https://::1/x",
        ] {
            assert_eq!(end_point(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "(https?://)?[\\PC]{0,40}") {
            let end = end_point(&text);
            prop_assert_eq!(end.is_some(), storage_element(&text).is_some());
            if let Some(end) = end {
                prop_assert_eq!(end_point(&end), Some(end.clone()));
            }
        }
    }
}
