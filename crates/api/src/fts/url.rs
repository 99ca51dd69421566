//! URLs of files: checks as FTS makes them, and their storage elements.

use longhaul_model::job::storage_element;
use longhaul_model::units::printable;

use super::{Refusal, UrlNames};

/// Longest URL, as in FTS.
pub const URL_BYTES_MAX: usize = 1_100;

/// Schemes of URLs between which files are copied.
pub const SCHEMES: [&str; 6] = ["https", "davs", "http", "dav", "s3s", "s3"];

fn invalid(what: impl std::fmt::Display) -> Refusal {
    Refusal::bad(format!("Invalid value within the request: {what}"))
}

/// Trims and checks a URL; returns it with its storage element. A URL whose scheme is not served is mapped to
/// one that is, if its host has name rules for that; `target` is where the file goes.
pub fn served(given: &str, names: &UrlNames, target: &str) -> Result<(String, String), Refusal> {
    let url = given.trim();
    let foreign = is_foreign(url).then(|| storage_element(url)).flatten();
    let Some(element) = foreign.filter(|_| url.len() <= URL_BYTES_MAX) else { return check(url) };
    if names.are_elsewhere() {
        return Ok((url.to_owned(), element));
    }
    let scheme = element.split("://").next().unwrap_or_default();
    match names.map(url, target, |mapped| check(mapped).ok()) {
        Ok(Some(mapped)) => Ok(mapped),
        Ok(None) => check(url),
        Err(why) => Err(not_served(scheme, url, &format!("; {why}"))),
    }
}

/// Whether the URL names a host under a scheme that is not served.
fn is_foreign(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once(':') else { return false };
    let scheme = scheme.to_ascii_lowercase();
    rest.starts_with("//") && scheme != "file" && !SCHEMES.contains(&scheme.as_str())
}

fn not_served(scheme: &str, url: &str, more: &str) -> Refusal {
    let known = SCHEMES.join(", ");
    invalid(format!("{scheme} is no scheme that is served ({}): known are {known}{more}", shown(url)))
}

fn shown(url: &str) -> String {
    printable(&url.chars().take(200).collect::<String>())
}

/// Trims and checks a URL of a served scheme; returns it with its storage element.
pub fn check(given: &str) -> Result<(String, String), Refusal> {
    let url = given.trim();
    let shown = || self::shown(url);
    if url.len() > URL_BYTES_MAX {
        return Err(invalid(format!("a URL is longer than {URL_BYTES_MAX} bytes: {}…", shown())));
    }
    if url.chars().any(|c| c.is_control()) {
        return Err(invalid(format!("control characters in a URL: {}", shown())));
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(invalid(format!("Missing scheme ({})", shown())));
    };
    let scheme = scheme.to_ascii_lowercase();
    if scheme.is_empty() || scheme.contains('/') {
        return Err(invalid(format!("Missing scheme ({})", shown())));
    }
    if scheme == "file" {
        return Err(invalid(format!("Can not transfer local files ({})", shown())));
    }
    if !SCHEMES.contains(&scheme.as_str()) {
        return Err(not_served(&scheme, url, ""));
    }
    let element = storage_element(url).filter(|_| rest.starts_with("//"));
    let element = element.ok_or_else(|| invalid(format!("Missing host ({})", shown())))?;
    let after = rest.trim_start_matches("//");
    let path = after.find(['/', '?', '#']).map_or("", |at| &after[at..]);
    if path.is_empty() || path == "/" {
        return Err(invalid(format!("Missing path ({})", shown())));
    }
    Ok((url.to_owned(), element))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(url: &str) -> String {
        check(url).unwrap_err().message
    }

    #[test]
    fn urls_are_checked_as_fts_does() {
        let (url, element) = check("  davs://A.example.org:443/d/f \n").unwrap();
        assert_eq!(
            (url.as_str(), element.as_str()),
            ("davs://A.example.org:443/d/f", "davs://a.example.org")
        );
        assert!(check("https://a/?file=x").is_ok());
        assert!(text("/data/x").starts_with("Invalid value within the request: Missing scheme"));
        assert!(text("nothing").contains("Missing scheme") && text("").contains("Missing scheme"));
        assert!(text("file:///x").contains("Can not transfer local files"));
        assert!(text("https:///x").contains("Missing host") && text("https:/x").contains("Missing host"));
        assert!(text("https://a/").contains("Missing path") && text("https://a").contains("Missing path"));
        assert!(text("srm://a/x").contains("known are https, davs"));
        assert!(text(&format!("https://a/{}", "x".repeat(URL_BYTES_MAX))).contains("longer than 1100"));
        assert!(text("https://a/x\ny").contains("control characters"));
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "(https?:/?/?)?[\\PC]{0,60}") {
            if let Ok((url, element)) = check(&text) {
                prop_assert!(url.len() <= URL_BYTES_MAX && element.contains("://"));
            }
        }
    }
}
