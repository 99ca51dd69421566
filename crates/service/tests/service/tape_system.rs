//! A storage with a tape system behind it, as a state machine of its own: WebDAV for files on disk, and the
//! WLCG Tape REST API. It brings files when it is looked at, if it is not held; it fails as it is told, and
//! keeps a record.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct Stored {
    pub bytes: Bytes,
    pub on_disk: bool,
    pub on_tape: bool,
    /// Why it cannot be brought.
    pub broken: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Submitted,
    Started,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Default)]
pub struct Tapes {
    pub files: BTreeMap<String, Stored>,
    requests: BTreeMap<String, BTreeMap<String, Stage>>,
    /// Nothing comes while this is so.
    pub held: bool,
    /// So many stage requests are answered with 503 first.
    pub busy: u32,
    /// Bulks beyond this are refused with 413.
    pub most: Option<usize>,
    /// Files that were written go to tape at the second look, but for those of which these are parts of the
    /// name.
    pub never: Vec<String>,
    pub lost: Vec<String>,
    looks: BTreeMap<String, u32>,
    /// What came: bodies of stage requests, and what was asked of paths.
    pub staged: Vec<Value>,
    pub polls: u32,
    pub released: Vec<String>,
    pub cancelled: Vec<String>,
    pub ended: Vec<String>,
    /// Reads of files that were not on disk: each would have been a mount of its own.
    pub storms: u32,
    made: u32,
}

impl Tapes {
    pub fn forget_requests(&mut self) {
        self.requests.clear();
    }

    fn look_at(&mut self, id: &str) -> Option<Value> {
        self.polls += 1;
        let held = self.held;
        let files = self.requests.get_mut(id)?;
        let mut shown = Vec::new();
        for (path, stage) in files.iter_mut() {
            let stored = self.files.get_mut(path);
            let broken = match &stored {
                None => Some("file does not exist".to_owned()),
                Some(stored) => stored.broken.clone(),
            };
            if !held {
                *stage = match (*stage, &broken) {
                    (Stage::Submitted, _) => Stage::Started,
                    (Stage::Started, None) => Stage::Completed,
                    (Stage::Started, Some(_)) => Stage::Failed,
                    (stage, _) => stage,
                };
            }
            if *stage == Stage::Completed
                && let Some(stored) = stored
            {
                stored.on_disk = true;
            }
            let state = match stage {
                Stage::Submitted => "SUBMITTED",
                Stage::Started => "STARTED",
                Stage::Completed => "COMPLETED",
                Stage::Failed => "FAILED",
                Stage::Cancelled => "CANCELLED",
            };
            let mut one = json!({ "path": path, "state": state });
            if *stage == Stage::Failed {
                one["error"] = json!(broken);
            }
            shown.push(one);
        }
        Some(json!({ "id": id, "createdAt": 1_760_000_000, "files": shown }))
    }

    /// What the request knows of these; none if one of them is not its.
    fn of_request(&mut self, id: &str, body: &Value) -> Option<Vec<String>> {
        let paths: Vec<String> =
            body["paths"].as_array()?.iter().map(|path| path.as_str().unwrap().to_owned()).collect();
        let files = self.requests.get(id)?;
        paths.iter().all(|path| files.contains_key(path)).then_some(paths)
    }

    fn archive_info(&mut self, body: &Value) -> Value {
        let paths = body["paths"].as_array().cloned().unwrap_or_default();
        let one = |path: &Value| {
            let path = path.as_str().unwrap();
            let looks = self.looks.entry(path.to_owned()).or_default();
            *looks += 1;
            let Some(stored) = self.files.get_mut(path) else {
                return json!({ "path": path, "error": "file does not exist" });
            };
            let named = |parts: &[String]| parts.iter().any(|part| path.contains(part));
            if named(&self.lost) {
                return json!({ "path": path, "locality": "LOST" });
            }
            stored.on_tape |= *looks > 1 && !named(&self.never);
            let locality = match (stored.on_tape, stored.on_disk) {
                (true, true) => "DISK_AND_TAPE",
                (true, false) => "TAPE",
                (false, _) => "DISK",
            };
            json!({ "path": path, "locality": locality })
        };
        Value::Array(paths.iter().map(one).collect())
    }
}

#[derive(Clone)]
pub struct TapeStorage {
    pub url: String,
    tapes: Arc<Mutex<Tapes>>,
}

impl TapeStorage {
    pub async fn start() -> TapeStorage {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let storage = TapeStorage { url, tapes: Arc::default() };
        let router = Router::new().fallback(answer).with_state(storage.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        storage
    }

    pub fn tapes(&self) -> MutexGuard<'_, Tapes> {
        self.tapes.lock().unwrap()
    }

    /// A file that is on tape only.
    pub fn put(&self, path: &str) {
        let bytes = Bytes::from(format!("content of {path}"));
        let stored = Stored { bytes, on_tape: true, ..Stored::default() };
        self.tapes().files.insert(path.to_owned(), stored);
    }
}

fn status(status: StatusCode) -> Response {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

fn said(code: u16, value: &Value) -> Response {
    let answer = Response::builder().status(code).header("content-type", "application/json");
    answer.body(Body::from(value.to_string())).unwrap()
}

async fn answer(State(storage): State<TapeStorage>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 1 << 20).await else { return status(StatusCode::BAD_REQUEST) };
    if path == "/.well-known/wlcg-tape-rest-api" {
        let uri = format!("{}/api/v1/tape", storage.url);
        let endpoint = json!({ "uri": uri, "version": "v1", "metadata": {} });
        return said(200, &json!({ "sitename": "SITE_A", "description": "tests", "endpoints": [endpoint] }));
    }
    let mut tapes = storage.tapes();
    if let Some(place) = path.strip_prefix("/api/v1/tape/") {
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let parts: Vec<&str> = place.split('/').collect();
        return tape(&mut tapes, &head.method, &parts, &body);
    }
    webdav(&mut tapes, &head, &path, body)
}

fn tape(tapes: &mut Tapes, method: &Method, parts: &[&str], body: &Value) -> Response {
    match (method.as_str(), parts) {
        ("POST", ["stage"]) => {
            if let Some(left) = tapes.busy.checked_sub(1) {
                tapes.busy = left;
                return status(StatusCode::SERVICE_UNAVAILABLE);
            }
            let files = body["files"].as_array().cloned().unwrap_or_default();
            if tapes.most.is_some_and(|most| files.len() > most) {
                return status(StatusCode::PAYLOAD_TOO_LARGE);
            }
            tapes.staged.push(body.clone());
            tapes.made += 1;
            let id = format!("request-{}", tapes.made);
            let files =
                files.iter().map(|file| (file["path"].as_str().unwrap().to_owned(), Stage::Submitted));
            tapes.requests.insert(id.clone(), files.collect());
            said(201, &json!({ "requestId": id }))
        }
        ("GET", ["stage", id]) => match tapes.look_at(id) {
            Some(shown) => said(200, &shown),
            None => status(StatusCode::NOT_FOUND),
        },
        ("DELETE", ["stage", id]) => {
            tapes.ended.push((*id).to_owned());
            let there = tapes.requests.remove(*id).is_some();
            status(if there { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND })
        }
        ("POST", ["stage", id, "cancel"]) => {
            let Some(paths) = tapes.of_request(id, body) else { return status(StatusCode::BAD_REQUEST) };
            for path in &paths {
                tapes.requests.get_mut(*id).unwrap().insert(path.clone(), Stage::Cancelled);
            }
            tapes.cancelled.extend(paths);
            status(StatusCode::OK)
        }
        ("POST", ["release", id]) => {
            let Some(paths) = tapes.of_request(id, body) else { return status(StatusCode::BAD_REQUEST) };
            tapes.released.extend(paths);
            status(StatusCode::OK)
        }
        ("POST", ["archiveinfo"]) => said(200, &tapes.archive_info(body)),
        _ => status(StatusCode::NOT_FOUND),
    }
}

fn webdav(tapes: &mut Tapes, head: &http::request::Parts, path: &str, body: Bytes) -> Response {
    let stored = tapes.files.get(path).cloned();
    match (head.method.as_str(), stored) {
        ("HEAD", Some(stored)) => {
            let answer = Response::builder().header("content-length", stored.bytes.len());
            answer.body(Body::empty()).unwrap()
        }
        ("GET", Some(stored)) if stored.on_disk => Response::new(stored.bytes.into()),
        ("GET", Some(_)) => {
            tapes.storms += 1;
            status(StatusCode::INTERNAL_SERVER_ERROR)
        }
        ("PUT", _) => {
            let stored = Stored { bytes: body, on_disk: true, ..Stored::default() };
            tapes.files.insert(path.to_owned(), stored);
            status(StatusCode::CREATED)
        }
        ("MOVE", Some(stored)) => {
            let to: http::Uri = head.headers["destination"].to_str().unwrap().parse().unwrap();
            tapes.files.remove(path);
            tapes.files.insert(to.path().to_owned(), stored);
            status(StatusCode::CREATED)
        }
        ("DELETE", Some(_)) => {
            tapes.files.remove(path);
            status(StatusCode::NO_CONTENT)
        }
        ("MKCOL", _) => status(StatusCode::CREATED),
        ("HEAD" | "GET" | "MOVE" | "DELETE", None) => status(StatusCode::NOT_FOUND),
        _ => status(StatusCode::METHOD_NOT_ALLOWED),
    }
}
