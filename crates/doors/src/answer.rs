//! Answers and refusals of HTTP, and the status for each fault code.

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use longhaul_model::{Fault, FaultCode};

use crate::body::Body;

pub(crate) type Answer = Response<Body>;

/// A request that is not fulfilled: its status, and a line for the person behind the client.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
    pub(crate) headers: HeaderMap,
}

pub(crate) type Outcome<T = Answer> = Result<T, Refusal>;

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Refusal { status, text: text.into(), headers: HeaderMap::new() }
    }

    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, text)
    }

    pub(crate) fn with(mut self, name: HeaderName, value: &str) -> Self {
        set(&mut self.headers, name, value);
        self
    }

    pub(crate) fn into_answer(self) -> Answer {
        let mut text = self.text;
        text.push('\n');
        let mut answer = Response::new(Body::from(text));
        *answer.status_mut() = self.status;
        *answer.headers_mut() = self.headers;
        set(answer.headers_mut(), header::CONTENT_TYPE, "text/plain; charset=utf-8");
        answer
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        let status = match fault.code {
            FaultCode::NotFound | FaultCode::SourceMissing => StatusCode::NOT_FOUND,
            FaultCode::BadRequest | FaultCode::NameTooLong => StatusCode::BAD_REQUEST,
            FaultCode::BadName
            | FaultCode::TargetReadOnly
            | FaultCode::SourceUnreadable
            | FaultCode::NotAllowed => StatusCode::FORBIDDEN,
            FaultCode::NameClash
            | FaultCode::Conflict
            | FaultCode::CaseTwin
            | FaultCode::AlreadyExists
            | FaultCode::OnTape => StatusCode::CONFLICT,
            FaultCode::NotAuthenticated => StatusCode::UNAUTHORIZED,
            FaultCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            FaultCode::TargetFull => StatusCode::INSUFFICIENT_STORAGE,
            FaultCode::Busy => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal::new(status, format!("{fault} ({}); {}", fault.code, fault.code.next_step()))
    }
}

pub(crate) fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    answer
}

/// Values of ours are always valid; one that is not is left out rather than sent half.
pub(crate) fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
