//! What people type and write for `longhaul copy`: URLs, batch files, filters.

use std::path::Path;

use longhaul_copy::batch::{self, Format};
use longhaul_copy::filter::{Action, Filters};
use longhaul_copy::url::{RemotePath, SCHEME, ServerUrl};

/// The secret in a URL to which fuzzed text is appended.
const SECRET: &str = "ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1-f4CBgoM";

pub fn urls(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if text.contains(&SECRET[..8]) {
        // It would be shown as the name of a host.
        return;
    }
    if let Ok(path) = text.parse::<RemotePath>() {
        assert_beneath(&path);
    }
    for text in [text.to_owned(), format!("{SCHEME}{SECRET}@{text}")] {
        match ServerUrl::parse(&text) {
            Ok((url, path)) => {
                assert_beneath(&path);
                let told = format!("{url:?} {} {}", url.shown(), url.hosts().join(","));
                assert!(!told.contains(SECRET), "a secret is shown");
                let again = ServerUrl::parse(&url.reveal(&path.path));
                assert!(again.is_ok_and(|(same, there)| same == url && there.path == path.path));
            }
            Err(fault) => assert!(!fault.detail.contains(SECRET), "an error repeats a secret"),
        }
    }
}

fn assert_beneath(path: &RemotePath) {
    let beneath = path.path.split('/').all(|name| !matches!(name, "" | "." | ".."));
    assert!((path.path.is_empty() || beneath) && !path.path.contains('\0'), "{path:?}");
}

/// A batch that is read, written and read holds the same pairs.
pub fn batches(bytes: &[u8]) {
    let place = Path::new("batch");
    for format in [Format::Copyjob, Format::FromFile] {
        let Ok(batch) = batch::parse(bytes, place, format, &|_| Ok(())) else { continue };
        for bad in &batch.bad {
            assert!(
                bad.line > 0 && bad.column > 0 && !bad.to_string().chars().any(char::is_control),
                "{bad}"
            );
        }
        let printed = batch::print(&batch.pairs, format);
        let again = batch::parse(printed.as_bytes(), place, format, &|_| Ok(())).unwrap_or_default();
        assert!(again.bad.is_empty(), "{:?}", again.bad);
        let ends = |batch: &batch::Batch| -> Vec<_> {
            batch.pairs.iter().map(|pair| (pair.source.clone(), pair.target.clone())).collect()
        };
        assert_eq!(ends(&again), ends(&batch), "{printed:?}");
    }
}

/// Lines of rules, the last line a path: an answer for every path, in a time that does not explode.
pub fn filters(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (rules, path) = text.rsplit_once('\n').unwrap_or(("", text));
    let rules = rules.split('\n').map(|rule| match rule.strip_prefix('+') {
        Some(rule) => (Action::Include, rule),
        None => (Action::Exclude, rule),
    });
    match Filters::parse(rules) {
        Ok(filters) => {
            for is_directory in [false, true] {
                let included = filters.includes_path(path, is_directory);
                let parents = path.match_indices('/').map(|(slash, _)| &path[..slash]);
                let reached = parents.clone().all(|parent| filters.includes(parent, true));
                assert_eq!(included, filters.is_empty() || (reached && filters.includes(path, is_directory)));
            }
        }
        Err(error) => assert!(!error.to_string().chars().any(char::is_control), "{error}"),
    }
}
