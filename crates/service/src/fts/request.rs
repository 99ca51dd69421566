//! A request at one of FTS's paths, and its answer.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use longhaul_api::fts::{Parameters, Refusal};
use longhaul_identity::Person;
use longhaul_identity::Requester;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value};

use super::strict;

pub struct FtsRequest {
    pub method: Method,
    /// The words of the path, decoded, without empty ones.
    pub path: Vec<String>,
    pub query: Parameters,
    pub content_type: String,
    pub user_agent: String,
    /// The caller, and what it may do.
    pub person: Person,
    /// The caller as the audit log records it.
    pub requester: Arc<Mutex<Requester>>,
    pub body: Bytes,
}

impl FtsRequest {
    /// The body as JSON, by its content type or in spite of it, as FTS reads it.
    pub fn value(&self) -> Result<Value, Refusal> {
        let kind = self.content_type.trim();
        let json = strict::value;
        let text =
            || std::str::from_utf8(&self.body).map_err(|_| Refusal::bad("Badly formatted JSON request"));
        if kind == "application/json, application/x-www-form-urlencoded" {
            let decoded = longhaul_api::fts::decode(text()?);
            return json(decoded.ok_or_else(|| Refusal::bad("Badly formatted JSON request"))?.as_bytes());
        }
        if kind.starts_with("application/json") || self.method == Method::PUT {
            return json(&self.body);
        }
        if kind.starts_with("application/x-www-form-urlencoded") {
            let fields = Parameters::parse(text()?)?;
            return Ok(Value::Object(
                fields.0.into_iter().map(|(key, value)| (key, Value::from(value))).collect(),
            ));
        }
        Err(Refusal::bad("Expecting application/json or application/x-www-form-urlencoded"))
    }

    pub fn dictionary(&self) -> Result<Map<String, Value>, Refusal> {
        match self.value()? {
            Value::Object(object) => Ok(object),
            _ => Err(Refusal::bad("Expecting a dictionary")),
        }
    }
}

pub struct Reply {
    pub status: StatusCode,
    kind: &'static str,
    body: Vec<u8>,
    headers: Vec<(HeaderName, String)>,
}

impl Reply {
    pub fn json(value: &impl Serialize) -> Result<Reply, Refusal> {
        Reply::rendered(serde_json::to_vec(value))
    }

    /// A reply whose JSON was made elsewhere.
    pub fn rendered(json: serde_json::Result<Vec<u8>>) -> Result<Reply, Refusal> {
        let body = json.map_err(|error| Refusal::new(500, format!("the answer has no JSON: {error}")))?;
        Ok(Reply { status: StatusCode::OK, kind: "application/json", body, headers: Vec::new() })
    }

    pub fn text(kind: &'static str, text: impl Into<String>) -> Reply {
        Reply { status: StatusCode::OK, kind, body: text.into().into_bytes(), headers: Vec::new() }
    }

    pub fn nothing() -> Reply {
        Reply { status: StatusCode::NO_CONTENT, kind: "", body: Vec::new(), headers: Vec::new() }
    }

    pub fn with_status(mut self, status: StatusCode) -> Reply {
        self.status = status;
        self
    }

    pub fn with_header(mut self, name: HeaderName, value: &str) -> Reply {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Whether the answer refuses access to a single object of the request.
    pub fn is_refusal(&self) -> bool {
        matches!(self.status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED)
    }

    pub fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if !self.kind.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        }
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        response
    }
}

/// A refusal as an answer. HTTP has no name for the status `419`, but FTS's clients know it.
pub fn refused(refusal: &Refusal) -> Response {
    let reply = Reply::json(&refusal.body()).unwrap_or_else(|_| Reply::nothing());
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = reply.with_status(status).into_response();
    let headers = response.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"longhaul\""));
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        StatusCode::TOO_MANY_REQUESTS => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        StatusCode::PAYLOAD_TOO_LARGE => {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}
