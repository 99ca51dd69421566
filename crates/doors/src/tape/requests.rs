//! JSON requests of the Tape REST API: bounded, and parsed strictly where a mistake could mean another file.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use longhaul_model::StorageName;
use longhaul_model::percent::encode_path;
use longhaul_model::units::printable;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::RequestedFile;
use crate::answer::{Outcome, Refusal};
use crate::request::RequestPath;

/// Bytes of one body: ten thousand names of usual length, with their metadata.
pub(crate) const BODY_BYTES_MAX: usize = 4 << 20;
/// Files of one request.
pub(crate) const FILES_MAX: usize = 10_000;
/// Bytes of metadata of one file: FTS accepts no more.
pub(crate) const METADATA_BYTES_MAX: usize = 1_024;
/// The key for metadata that is meant for all sites.
const ALL_SITES: &str = "default";
const DAY_S: i64 = 86_400;

/// The files of a new request, each once: with the longest time that was asked for it, and the last that was
/// said of it.
pub(crate) fn parse_stage(body: &[u8], storage: &StorageName, site: &str) -> Outcome<Vec<RequestedFile>> {
    #[derive(Deserialize)]
    struct StageBody {
        files: Vec<One>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct One {
        path: String,
        disk_lifetime: Option<String>,
        targeted_metadata: Option<Map<String, Value>>,
    }
    let asked: StageBody = read(body, "{\"files\": [{\"path\": \"/…\", \"diskLifetime\": \"PT48H\"}]}")?;
    check_count(asked.files.len())?;
    let mut files: Vec<RequestedFile> = Vec::with_capacity(asked.files.len());
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for one in asked.files {
        let path = path(&one.path, storage).map_err(Refusal::bad)?;
        let said = |why: String| Refusal::bad(format!("{}: {why}", printable(&one.path)));
        let lifetime = one.disk_lifetime.as_deref().map(lifetime).transpose().map_err(said)?.flatten();
        let metadata =
            one.targeted_metadata.map(|all| metadata(all, site)).transpose().map_err(said)?.flatten();
        match places.get(&path).and_then(|place| files.get_mut(*place)) {
            Some(known) => {
                known.lifetime = known.lifetime.max(lifetime);
                known.metadata = metadata.or(known.metadata.take());
            }
            None => {
                places.insert(path.clone(), files.len());
                files.push(RequestedFile { path, lifetime, metadata });
            }
        }
    }
    Ok(files)
}

/// Paths as they were written: what is wrong with one of them may be an answer.
pub(crate) fn paths(body: &[u8]) -> Outcome<Vec<String>> {
    #[derive(Deserialize)]
    struct PathsBody {
        paths: Vec<String>,
    }
    let asked: PathsBody = read(body, "{\"paths\": [\"/…\"]}")?;
    check_count(asked.paths.len())?;
    Ok(asked.paths)
}

fn read<T: for<'a> Deserialize<'a>>(body: &[u8], expected: &str) -> Outcome<T> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::bad(format!("the body is not of the form {expected}: {}", printable(&error.to_string())))
    })
}

fn check_count(files: usize) -> Outcome<()> {
    match files {
        0 => Err(Refusal::bad("the request names no file")),
        1..=FILES_MAX => Ok(()),
        _ => {
            let text =
                format!("the request names {files} files, {FILES_MAX} are taken: make several requests");
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text))
        }
    }
}

/// The path of a file beneath the root. It is written as it is, not as in a URL; slashes may be doubled.
pub(crate) fn path(text: &str, storage: &StorageName) -> Result<String, String> {
    let wrong = |why: &str| format!("{}: {why}", printable(text));
    if !text.starts_with('/') {
        return Err(wrong("the path does not begin with /"));
    }
    let place = RequestPath::parse(&encode_path(text)).map_err(|refusal| wrong(&refusal.text))?;
    if place.is_root() || place.slash {
        return Err(wrong("this is no path of a file"));
    }
    place.pfn(storage).map_err(|refusal| wrong(&refusal.text))?;
    Ok(place.path)
}

/// `PT48H`, `P7D`, as ISO 8601 has it; a month is 30 days, a year 365. None: nothing, which is what is usual
/// here.
fn lifetime(text: &str) -> Result<Option<Duration>, String> {
    let wrong =
        || format!("diskLifetime is {}, a duration such as PT48H or P7D is expected", printable(text));
    let span: jiff::Span = text.trim().parse().map_err(|_| wrong())?;
    if span.is_negative() {
        return Err(wrong());
    }
    let days = i64::from(span.get_years()) * 365 + i64::from(span.get_months()) * 30;
    let days = days + i64::from(span.get_weeks()) * 7 + i64::from(span.get_days());
    let seconds = days
        .saturating_mul(DAY_S)
        .saturating_add(i64::from(span.get_hours()).saturating_mul(3_600))
        .saturating_add(span.get_minutes().saturating_mul(60))
        .saturating_add(span.get_seconds());
    Ok(u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs))
}

/// The metadata for this site, else for all sites.
fn metadata(mut all: Map<String, Value>, site: &str) -> Result<Option<String>, String> {
    let Some(own) = all.remove(site).or_else(|| all.remove(ALL_SITES)) else { return Ok(None) };
    let text = own.to_string();
    if text.len() > METADATA_BYTES_MAX {
        return Err(format!("targetedMetadata has {} bytes, {METADATA_BYTES_MAX} are taken", text.len()));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn storage() -> StorageName {
        "alpha".parse().unwrap()
    }

    fn wants(body: &str) -> Outcome<Vec<RequestedFile>> {
        parse_stage(body.as_bytes(), &storage(), "SITE_A")
    }

    #[test]
    fn a_request_of_the_reference_is_understood() {
        let files = wants(
            r#"{"files":[{"path":"/vo/run7/a.dat","diskLifetime":"PT48H"},
                 {"path":"//vo/run7//b.dat","targetedMetadata":{"SITE_A":{"activity":"reprocessing"},"B":1}},
                 {"path":"/vo/run7/a.dat","diskLifetime":"P7D",
                  "targetedMetadata":{"default":{"n":1}},"more":0},
                 {"path":"/vo/run7/a.dat","diskLifetime":"PT0S"}]}"#,
        );
        let file = |path: &str, lifetime: Option<u64>, metadata: Option<&str>| RequestedFile {
            path: path.into(),
            lifetime: lifetime.map(Duration::from_secs),
            metadata: metadata.map(str::to_owned),
        };
        let expected = [
            file("vo/run7/a.dat", Some(7 * 86_400), Some("{\"n\":1}")),
            file("vo/run7/b.dat", None, Some("{\"activity\":\"reprocessing\"}")),
        ];
        assert_eq!(files.unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (body, why) in [
            ("", "not of the form"),
            ("[]", "not of the form"),
            (r#"{"files":[]}"#, "names no file"),
            (r#"{"files":[{}]}"#, "missing field `path`"),
            (r#"{"files":[{"path":"a"}]}"#, "a: the path does not begin with /"),
            (r#"{"files":[{"path":"/"}]}"#, "no path of a file"),
            (r#"{"files":[{"path":"/a/"}]}"#, "no path of a file"),
            (r#"{"files":[{"path":"/a/../b"}]}"#, "a component . or .."),
            (r#"{"files":[{"path":"/a\nb"}]}"#, "control character"),
            (r#"{"files":[{"path":"/a","diskLifetime":"48"}]}"#, "PT48H or P7D is expected"),
            (r#"{"files":[{"path":"/a","diskLifetime":"-PT1H"}]}"#, "PT48H or P7D is expected"),
        ] {
            let refusal = wants(body).unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{body}");
            assert!(refusal.text.contains(why), "{body}: {}", refusal.text);
        }
        let large = format!(
            r#"{{"files":[{{"path":"/a","targetedMetadata":{{"SITE_A":"{}"}}}}]}}"#,
            "x".repeat(1_100)
        );
        assert!(wants(&large).unwrap_err().text.contains("/a: targetedMetadata has 1102 bytes"));
        let many = vec![r#"{"path":"/a"}"#; FILES_MAX + 1].join(",");
        let refusal = wants(&format!("{{\"files\":[{many}]}}")).unwrap_err();
        assert_eq!(refusal.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(refusal.text.contains("make several requests"), "{}", refusal.text);
    }

    #[test]
    fn names_stand_for_themselves() {
        assert_eq!(path("/a b/c%20d+é", &storage()), Ok("a b/c%20d+é".to_owned()));
        assert!(path(&format!("/{}", "x".repeat(1_100)), &storage()).is_err());
    }

    proptest! {
        #[test]
        fn no_body_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (parse_stage(&bytes, &storage(), "SITE_A"), paths(&bytes));
        }

        /// Whatever is taken is a file beneath the root, and means the same when it is written again.
        #[test]
        fn what_is_taken_is_a_file(text in "(/|\\.|a|%2e|%2f|é|\\\\|\u{0}| ){0,12}",
            life in "-?P?[0-9YMWDTHS.]{0,12}") {
            let body = serde_json::json!({ "files": [{ "path": text, "diskLifetime": life }] }).to_string();
            let Ok(files) = wants(&body) else { return Ok(()) };
            let path = &files[0].path;
            prop_assert!(!path.is_empty() && !path.starts_with('/')
                && !path.split('/').any(|part| part == ".."));
            prop_assert_eq!(&super::path(&format!("/{path}"), &storage()).unwrap(), path);
            prop_assert!(files[0].lifetime.is_none_or(|lifetime| !lifetime.is_zero()));
        }

        #[test]
        fn durations_have_their_length(days in 0i64..4_000, hours in 0i64..100, minutes in 0i64..100) {
            let expected = days * DAY_S + hours * 3_600 + minutes * 60;
            let found = lifetime(&format!("P{days}DT{hours}H{minutes}M")).unwrap();
            prop_assert_eq!(found.map_or(0, |found| found.as_secs()), expected as u64);
        }
    }
}
