//! JSON replies of the Tape REST API, in the form of its reference. Times are seconds since 1970.

use http::{Response, StatusCode, header};
use longhaul_model::{Locality, Timestamp};
use serde_json::{Value, json};

use super::{Report, ReportedFile, StageState};
use crate::answer::{Answer, Refusal, set};
use crate::body::Body;

pub(super) fn json(status: StatusCode, value: &Value) -> Answer {
    typed(status, value, "application/json")
}

fn typed(status: StatusCode, value: &Value, kind: &str) -> Answer {
    let mut answer = Response::new(Body::from(value.to_string()));
    *answer.status_mut() = status;
    set(answer.headers_mut(), header::CONTENT_TYPE, kind);
    answer
}

/// A refusal in the form that clients of this API read.
pub(crate) fn problem(refusal: Refusal) -> Answer {
    let Refusal { status, text, headers } = refusal;
    let title = status.canonical_reason().unwrap_or("refused");
    let value = json!({ "title": title, "detail": text, "status": status.as_u16() });
    let mut answer = typed(status, &value, "application/problem+json");
    for (name, value) in &headers {
        answer.headers_mut().insert(name.clone(), value.clone());
    }
    answer
}

pub(super) fn well_known(site: &str, base: &str) -> Value {
    let endpoint = json!({ "uri": base, "version": "v1", "metadata": {} });
    json!({ "sitename": site, "description": "a storage of Longhaul on tape", "endpoints": [endpoint] })
}

pub(super) fn created(id: &str) -> Value {
    json!({ "requestId": id })
}

pub(super) fn report(id: &str, report: &Report) -> Value {
    let mut value = json!({ "id": id, "createdAt": seconds(report.created) });
    if let Some(started) = report.started {
        value["startedAt"] = json!(seconds(started));
    }
    if let Some(last) = ended(report) {
        value["completedAt"] = json!(seconds(last));
    }
    value["files"] = report.files.iter().map(file).collect();
    value
}

/// When the last file came or was given up; none while one is waited for.
fn ended(report: &Report) -> Option<Timestamp> {
    let ends: Option<Vec<Timestamp>> = report.files.iter().map(|file| file.finished).collect();
    ends?.into_iter().max()
}

fn file(file: &ReportedFile) -> Value {
    let state = match file.state {
        StageState::Submitted => "SUBMITTED",
        StageState::Started => "STARTED",
        StageState::Completed => "COMPLETED",
        StageState::Failed => "FAILED",
        StageState::Cancelled => "CANCELLED",
    };
    let mut value = json!({ "path": format!("/{}", file.path), "state": state, "onDisk": file.pinned });
    for (name, at) in [("startedAt", file.started), ("finishedAt", file.finished)] {
        if let Some(at) = at {
            value[name] = json!(seconds(at));
        }
    }
    if let Some(error) = &file.error {
        value["error"] = json!(error);
    }
    value
}

fn seconds(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

/// `asked` as the client wrote them.
pub(super) fn archive_info(
    asked: &[String],
    located: impl Iterator<Item = Result<Locality, String>>,
) -> Value {
    let one = |(path, at): (&String, Result<Locality, String>)| match at {
        // Clients read an error as the end: that nobody can say now is none.
        Ok(Locality::None) => json!({ "path": path, "error": "file does not exist" }),
        Ok(at) => json!({ "path": path, "locality": at.word() }),
        Err(why) => json!({ "path": path, "error": why }),
    };
    asked.iter().zip(located).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_those_of_the_reference() {
        let at = Timestamp::from_seconds;
        let one = |path: &str, state, finished, error: Option<&str>| ReportedFile {
            path: path.into(),
            state,
            pinned: state == StageState::Completed,
            started: Some(at(1_760_000_031)),
            finished,
            error: error.map(str::to_owned),
        };
        let mut told = Report {
            created: at(1_760_000_000),
            started: Some(at(1_760_000_031)),
            files: vec![
                one("vo/a.dat", StageState::Completed, Some(at(1_760_000_400)), None),
                one("vo/b.dat", StageState::Failed, Some(at(1_760_000_410)), Some("no such volume")),
                one("vo/c.dat", StageState::Started, None, None),
            ],
        };
        let expected = json!({ "id": "7c1f", "createdAt": 1_760_000_000, "startedAt": 1_760_000_031,
            "files": [
            { "path": "/vo/a.dat", "state": "COMPLETED", "onDisk": true, "startedAt": 1_760_000_031,
                "finishedAt": 1_760_000_400 },
            { "path": "/vo/b.dat", "state": "FAILED", "onDisk": false, "error": "no such volume",
                "startedAt": 1_760_000_031,
              "finishedAt": 1_760_000_410 },
            { "path": "/vo/c.dat", "state": "STARTED", "onDisk": false, "startedAt": 1_760_000_031 }] });
        assert_eq!(report("7c1f", &told), expected);
        told.files.pop();
        assert_eq!(report("7c1f", &told)["completedAt"], json!(1_760_000_410));
    }

    #[test]
    fn of_each_file_is_told_where_it_is_or_what_is_wrong() {
        let asked = ["/a", "/zz", "/b", "x"].map(str::to_owned);
        let located = [
            Ok(Locality::DiskAndTape),
            Ok(Locality::None),
            Ok(Locality::Unavailable),
            Err("x: the path does not begin with /".to_owned()),
        ];
        let expected = json!([{ "path": "/a", "locality": "DISK_AND_TAPE" }, { "path": "/zz", "error": "file \
            does not exist" },
            { "path": "/b", "locality": "UNAVAILABLE" }, { "path": "x", "error": "x: the path does not begin \
                with /" }]);
        assert_eq!(archive_info(&asked, located.into_iter()), expected);
    }
}
