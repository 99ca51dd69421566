//! Every route of FTS's API, as one list: what is not in it is not answered, and tests go through it.

use http::Method;
use longhaul_api::fts::Refusal;

use super::request::FtsRequest;

/// Method and path; `{}` is any word, `GET` also answers `HEAD`.
pub const ROUTES: &[(&str, &str)] = &[
    ("GET", "/"),
    ("GET", "/whoami"),
    ("GET", "/whoami/certificate"),
    ("GET", "/delegation/{}"),
    ("DELETE", "/delegation/{}"),
    ("GET", "/delegation/{}/request"),
    ("PUT", "/delegation/{}/credential"),
    ("POST", "/delegation/{}/credential"),
    ("POST", "/delegation/{}/voms"),
    ("GET", "/jobs"),
    ("POST", "/jobs"),
    ("PUT", "/jobs"),
    ("DELETE", "/jobs/all"),
    ("DELETE", "/jobs/vo/{}"),
    ("GET", "/jobs/{}"),
    ("POST", "/jobs/{}"),
    ("DELETE", "/jobs/{}"),
    ("GET", "/jobs/{}/files"),
    ("DELETE", "/jobs/{}/files/{}"),
    ("GET", "/jobs/{}/files/{}/retries"),
    ("GET", "/jobs/{}/dm"),
    ("GET", "/jobs/{}/{}"),
    ("GET", "/files"),
    ("GET", "/archive"),
    ("GET", "/archive/{}"),
    ("GET", "/archive/{}/{}"),
    ("GET", "/ban/se"),
    ("POST", "/ban/se"),
    ("DELETE", "/ban/se"),
    ("GET", "/ban/dn"),
    ("POST", "/ban/dn"),
    ("DELETE", "/ban/dn"),
    ("GET", "/status/hosts"),
    ("POST", "/admin/force-start"),
    ("GET", "/config"),
    ("GET", "/config/audit"),
    ("POST", "/config/drain"),
    ("GET", "/config/global"),
    ("POST", "/config/global"),
    ("DELETE", "/config/global"),
    ("GET", "/config/links"),
    ("POST", "/config/links"),
    ("GET", "/config/links/{}"),
    ("DELETE", "/config/links/{}"),
    ("GET", "/config/shares"),
    ("POST", "/config/shares"),
    ("DELETE", "/config/shares"),
    ("GET", "/config/se"),
    ("POST", "/config/se"),
    ("DELETE", "/config/se"),
    ("GET", "/config/authorize"),
    ("POST", "/config/authorize"),
    ("DELETE", "/config/authorize"),
    ("GET", "/config/activity_shares"),
    ("POST", "/config/activity_shares"),
    ("GET", "/config/activity_shares/{}"),
    ("DELETE", "/config/activity_shares/{}"),
    ("GET", "/config/cloud_storage"),
    ("POST", "/config/cloud_storage"),
    ("GET", "/config/cloud_storage/{}"),
    ("POST", "/config/cloud_storage/{}"),
    ("DELETE", "/config/cloud_storage/{}"),
    ("DELETE", "/config/cloud_storage/{}/{}"),
    ("GET", "/optimizer"),
    ("GET", "/optimizer/evolution"),
    ("GET", "/optimizer/current"),
    ("POST", "/optimizer/current"),
    ("GET", "/autocomplete/dn"),
    ("GET", "/autocomplete/vo"),
    ("GET", "/autocomplete/source"),
    ("GET", "/autocomplete/destination"),
    ("GET", "/autocomplete/storage"),
    ("GET", "/dm/list"),
    ("GET", "/dm/stat"),
    ("POST", "/dm/mkdir"),
    ("POST", "/dm/unlink"),
    ("POST", "/dm/rmdir"),
    ("POST", "/dm/rename"),
    ("GET", "/api-docs/schema/submit"),
    ("GET", "/fts3/ftsmon"),
    ("GET", "/fts3/ftsmon/lead.js"),
];

fn fits(pattern: &str, words: &[String]) -> bool {
    let mut wanted = pattern.split('/').filter(|word| !word.is_empty());
    let all = words.iter().all(|word| wanted.next().is_some_and(|wanted| wanted == "{}" || wanted == word));
    all && wanted.next().is_none()
}

/// Whether there is an answer for it at all.
pub fn check(ask: &FtsRequest) -> Result<(), Refusal> {
    let method = if ask.method == Method::HEAD { "GET" } else { ask.method.as_str() };
    let of_path = || ROUTES.iter().filter(|(_, pattern)| fits(pattern, &ask.path));
    if of_path().any(|(known, _)| *known == method) { Ok(()) } else { Err(refused(ask)) }
}

/// What a request is called in the log of decisions: one of a bounded number of names.
pub fn name(method: &Method, path: &[String]) -> String {
    let word = if method == Method::HEAD { "GET" } else { method.as_str() };
    // The one with fewer words left open is meant.
    let fitting = ROUTES.iter().filter(|(known, pattern)| *known == word && fits(pattern, path));
    match fitting.min_by_key(|(_, pattern)| pattern.matches("{}").count()) {
        Some((_, pattern)) => format!("fts {word} {pattern}"),
        None => "fts".to_owned(),
    }
}

/// The path may be one for another method.
pub fn refused(ask: &FtsRequest) -> Refusal {
    if ROUTES.iter().any(|(_, pattern)| fits(pattern, &ask.path)) {
        Refusal::new(405, "The method is not allowed for the requested URL.")
    } else {
        Refusal::missing("The requested URL was not found on the server.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fit_word_by_word() {
        let words = |path: &str| -> Vec<String> {
            path.split('/').filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        for (pattern, path, fit) in [
            ("/", "/", true),
            ("/", "/jobs", false),
            ("/jobs/{}", "/jobs/a,b", true),
            ("/jobs/{}", "/jobs", false),
            ("/jobs/{}", "/jobs/a/files", false),
            ("/jobs/vo/{}", "/jobs/vo/atlas", true),
            ("/jobs/vo/{}", "/jobs/a/b", false),
        ] {
            assert_eq!(fits(pattern, &words(path)), fit, "{pattern} {path}");
        }
        let mut once: Vec<_> = ROUTES.to_vec();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), ROUTES.len());
    }
}
