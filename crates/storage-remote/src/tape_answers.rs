//! Answers of tape systems. Implementations differ: some report a state, some whether the file is on disk;
//! localities have older names. All of them are understood, within bounds.

use longhaul_model::Locality;
use serde::Deserialize;
use serde_json::Value;

use crate::failure::sanitized;

/// Bytes of one answer: a bulk of long names.
pub(crate) const BYTES_MAX: usize = 8 << 20;
/// Files of one answer; no request has more.
const FILES_MAX: usize = 20_000;
const ENDPOINTS_MAX: usize = 64;
/// Bytes of the id that a tape system gives a request.
const ID_BYTES_MAX: usize = 200;

/// Where a file of a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageState {
    Waiting,
    OnDisk,
    Failed,
    /// Cancelled, by us or at the storage.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedFile {
    pub path: String,
    pub state: StageState,
    /// The storage's error text.
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveInfo {
    pub path: String,
    /// Where it lies, or why nobody can say.
    pub at: Result<Locality, String>,
}

/// One place that a storage names in its well-known document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) uri: String,
    pub(crate) site: String,
}

/// The first of version 1; a storage without one does not speak what we speak.
pub(crate) fn endpoint(document: &[u8]) -> Result<Endpoint, String> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(default)]
        sitename: Value,
        #[serde(default)]
        endpoints: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        uri: Value,
        #[serde(default)]
        version: Value,
    }
    let document: Document = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    let site = document.sitename.as_str().unwrap_or_default().to_owned();
    let first = |one: &One| {
        let version = one.version.as_str().unwrap_or_default().trim_start_matches(['v', 'V']);
        (version == "1" || version.starts_with("1.")).then(|| one.uri.as_str().map(str::to_owned))?
    };
    let uri = document.endpoints.iter().take(ENDPOINTS_MAX).find_map(first);
    Ok(Endpoint { uri: uri.ok_or("it names no endpoint of version v1")?, site })
}

/// The id of a new request: in the body, else the end of the `Location`.
pub(crate) fn request_id(body: &[u8], location: Option<&str>) -> Result<String, String> {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let text = |name: &str| match &body[name] {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let last = || {
        let path = location?.split(['?', '#']).next()?.trim_end_matches('/');
        path.rsplit('/').next().filter(|part| !part.is_empty()).map(str::to_owned)
    };
    let id = text("requestId").or_else(|| text("id")).or_else(last).ok_or("it names no request")?;
    // It becomes a segment of a path.
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'?' | b'#' | b'%' | b'\\');
    let fits = (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(plain) && id != "." && id != "..";
    if fits { Ok(id) } else { Err("the id of its request cannot stand in a path".to_owned()) }
}

/// Files of a request; what is not understood of one leaves it waiting.
pub(crate) fn report(document: &[u8]) -> Result<Vec<StagedFile>, String> {
    #[derive(Deserialize)]
    struct Report {
        #[serde(default)]
        files: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        path: Value,
        #[serde(default)]
        state: Value,
        #[serde(default, rename = "onDisk")]
        on_disk: Value,
        #[serde(default)]
        error: Value,
    }
    let report: Report = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    let read = |one: One| {
        let error = one.error.as_str().filter(|text| !text.is_empty()).map(sanitized);
        let state = match one.state.as_str().unwrap_or_default().to_ascii_uppercase().as_str() {
            "COMPLETED" => StageState::OnDisk,
            "FAILED" => StageState::Failed,
            "CANCELLED" | "CANCELED" => StageState::Cancelled,
            "SUBMITTED" | "STARTED" => StageState::Waiting,
            _ if one.on_disk.as_bool() == Some(true) => StageState::OnDisk,
            _ if error.is_some() => StageState::Failed,
            _ => StageState::Waiting,
        };
        Some(StagedFile { path: one.path.as_str()?.to_owned(), state, error })
    };
    Ok(report.files.into_iter().take(FILES_MAX).filter_map(read).collect())
}

pub(crate) fn archive_info(document: &[u8]) -> Result<Vec<ArchiveInfo>, String> {
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        path: Value,
        #[serde(default)]
        locality: Value,
        #[serde(default)]
        error: Value,
    }
    let list: Vec<One> = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    let read = |one: One| {
        let at = match (one.locality.as_str(), one.error.as_str().filter(|text| !text.is_empty())) {
            (Some(word), _) if Locality::parse(word).is_some() => Ok(Locality::parse(word)?),
            (_, Some(error)) => Err(sanitized(error)),
            (Some(word), None) => Err(format!("it is said to be {}", sanitized(word))),
            (None, None) => Err("nothing is said of where it is".to_owned()),
        };
        Some(ArchiveInfo { path: one.path.as_str()?.to_owned(), at })
    };
    Ok(list.into_iter().take(FILES_MAX).filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_storage_says_where_its_tape_system_is() {
        let found = endpoint(
            br#"{"sitename":"SITE_A","description":"x","endpoints":[
                 {"uri":"https://a/api/v0","version":"v0"},
                 {"uri":"https://a:3880/api/v1/tape","version":"v1","metadata":{}}]}"#,
        );
        let expected = Endpoint { uri: "https://a:3880/api/v1/tape".into(), site: "SITE_A".into() };
        assert_eq!(found, Ok(expected));
        for bad in ["", "[]", "{}", r#"{"endpoints":[{"uri":7,"version":"v1"}]}"#, r#"{"endpoints":{}}"#] {
            assert!(endpoint(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_request_is_named_in_the_body_or_by_its_place() {
        assert_eq!(request_id(br#"{"requestId":"7c1f-2"}"#, None).as_deref(), Ok("7c1f-2"));
        assert_eq!(request_id(br#"{"id":12}"#, None).as_deref(), Ok("12"));
        assert_eq!(request_id(b"", Some("https://a/api/v1/tape/stage/77/?x")).as_deref(), Ok("77"));
        for bad in [r#"{"requestId":"../up"}"#, r#"{"requestId":".."}"#, r#"{"requestId":"a b"}"#, "{}"] {
            assert!(request_id(bad.as_bytes(), None).is_err(), "{bad}");
        }
    }

    /// As implementations write them: by state, by presence on disk, with times in seconds or milliseconds.
    #[test]
    fn reports_of_all_kinds_say_the_same() {
        let report = report(
            br#"{"id":"1","createdAt":1760000000,"files":[
                 {"path":"/a","state":"COMPLETED","onDisk":true,"finishedAt":1760000400},
                 {"path":"/b","onDisk":true,"finishedAt":1760000400000},
                 {"path":"/c","onDisk":false},
                 {"path":"/d","state":"FAILED","error":"no such volume"},
                 {"path":"/e","onDisk":false,"error":"gone"},
                 {"path":"/f","state":"STARTED","onDisk":false},
                 {"path":"/g","state":"CANCELLED"},
                 {"state":"COMPLETED"}]}"#,
        );
        let states: Vec<_> = report.unwrap().into_iter().map(|file| (file.path, file.state)).collect();
        use StageState::*;
        let expected = [
            ("/a", OnDisk),
            ("/b", OnDisk),
            ("/c", Waiting),
            ("/d", Failed),
            ("/e", Failed),
            ("/f", Waiting),
            ("/g", Cancelled),
        ];
        assert_eq!(states, expected.map(|(path, state)| (path.to_owned(), state)));
    }

    #[test]
    fn places_have_old_and_new_words() {
        let list = archive_info(
            br#"[{"path":"/a","locality":"DISK_AND_TAPE"},{"path":"/b","locality":"NEARLINE"},
                 {"path":"/c","locality":"ONLINE"},{"path":"/d","error":"file does not exist"},
                 {"path":"/e"}]"#,
        );
        let list = list.unwrap();
        let on_tape: Vec<bool> =
            list.iter().map(|one| one.at.as_ref().is_ok_and(|at| at.is_on_tape())).collect();
        assert_eq!(on_tape, [true, true, false, false, false]);
        assert_eq!(list[3].at, Err("file does not exist".into()));
    }

    proptest! {
        /// Whatever comes is an answer or none, and never more than was bounded.
        #[test]
        fn anything_can_be_answered(bytes in prop::collection::vec(any::<u8>(), 0..400), place in ".{0,80}") {
            let _ = endpoint(&bytes);
            let _ = report(&bytes);
            let _ = archive_info(&bytes);
            if let Ok(id) = request_id(&bytes, Some(&place)) {
                prop_assert!(id.len() <= ID_BYTES_MAX && !id.contains(['/', '?', '#', '%']));
            }
        }

        #[test]
        fn anything_in_the_right_form_too(
            path in ".{0,40}", state in "[A-Z]{0,12}", on_disk in any::<Option<bool>>(), error in ".{0,600}",
        ) {
            let one = serde_json::json!({ "path": path, "state": state, "locality": state, "onDisk": on_disk,
                "error": error });
            let report = report(serde_json::json!({ "files": [one] }).to_string().as_bytes()).unwrap();
            prop_assert_eq!(&report[0].path, &path);
            prop_assert!(report[0].error.as_ref().is_none_or(|text| text.len() <= 4_000));
            prop_assert_eq!(archive_info(serde_json::json!([one]).to_string().as_bytes()).unwrap().len(), 1);
        }
    }
}
