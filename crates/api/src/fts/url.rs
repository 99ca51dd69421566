//! URLs of files: what FTS refuses about them, and what it calls their storage.

use longhaul_model::job::storage_element;
use longhaul_model::units::printable;

use super::Refusal;

/// FTS's own bound.
pub const URL_BYTES_MAX: usize = 1_100;

/// What files are copied between.
pub const SCHEMES: [&str; 6] = ["https", "davs", "http", "dav", "s3s", "s3"];

fn invalid(what: impl std::fmt::Display) -> Refusal {
    Refusal::bad(format!("Invalid value within the request: {what}"))
}

/// A URL without the blanks around it, and its storage element.
pub fn check(given: &str) -> Result<(String, String), Refusal> {
    let url = given.trim();
    let shown = || printable(&url.chars().take(200).collect::<String>());
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
        let known = SCHEMES.join(", ");
        return Err(invalid(format!(
            "{scheme} is no scheme that is served ({}): known are {known}",
            shown()
        )));
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
