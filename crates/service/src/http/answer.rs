//! Answers and problems as HTTP.

use axum::body::Body;
use axum::response::Response;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use longhaul_api::Problem;
use longhaul_model::IncidentId;
use serde::Serialize;

use crate::operations::bad_request;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a handler gives back.
pub struct Answer {
    pub status: StatusCode,
    pub content: Content,
    pub headers: HeaderMap,
}

pub enum Content {
    None,
    Json(Vec<u8>),
    Text(String),
    Stream(Body),
}

impl Answer {
    pub fn nothing() -> Self {
        Answer { status: StatusCode::NO_CONTENT, content: Content::None, headers: HeaderMap::new() }
    }

    /// `status` is replaced by that of the route.
    pub fn json(value: &impl Serialize) -> Result<Self, Problem> {
        let text = serde_json::to_vec(value)
            .map_err(|error| bad_request(format!("the reply has no JSON: {error}")))?;
        Ok(Answer { status: StatusCode::OK, content: Content::Json(text), headers: HeaderMap::new() })
    }

    pub fn text(text: String) -> Self {
        Answer { status: StatusCode::OK, content: Content::Text(text), headers: HeaderMap::new() }
    }

    pub fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.append(name, value);
        }
        self
    }

    pub fn into_response(self) -> Response {
        let (kind, body) = match self.content {
            Content::None => (None, Body::empty()),
            Content::Json(text) => (Some("application/json"), Body::from(text)),
            Content::Text(text) => (Some("text/plain; version=0.0.4; charset=utf-8"), Body::from(text)),
            Content::Stream(body) => (Some("text/event-stream"), body),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        set(response.headers_mut(), header::CACHE_CONTROL, "no-store");
        if let Some(kind) = kind {
            set(response.headers_mut(), header::CONTENT_TYPE, kind);
        }
        response
    }
}

/// A problem, with the id under which its log line is found.
pub fn problem_response(mut problem: Problem, incident: IncidentId) -> Response {
    problem.instance = Some(incident);
    let retry_after =
        problem.retry_after_s.and_then(|seconds| HeaderValue::from_str(&seconds.to_string()).ok());
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = Response::new(Body::from(serde_json::to_vec(&problem).unwrap_or_default()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    set(headers, header::CONTENT_TYPE, "application/problem+json");
    set(headers, header::CACHE_CONTROL, "no-store");
    if let Some(value) = retry_after {
        headers.insert(header::RETRY_AFTER, value);
    }
    match status {
        StatusCode::UNAUTHORIZED => set(headers, header::WWW_AUTHENTICATE, "Bearer realm=\"longhaul\""),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::INSUFFICIENT_STORAGE => {
            set(headers, header::RETRY_AFTER, "5")
        }
        // What is left of the body is not worth reading.
        StatusCode::PAYLOAD_TOO_LARGE => set(headers, header::CONNECTION, "close"),
        _ => {}
    }
    response
}

/// On every answer, pages included.
pub fn finish(response: &mut Response, incident: IncidentId) {
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&incident.to_string()) {
        headers.insert(REQUEST_ID, value);
    }
    set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(headers, header::REFERRER_POLICY, "same-origin");
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &'static str) {
    headers.entry(name).or_insert(HeaderValue::from_static(value));
}
