//! Errors as FTS's clients read them.

use std::fmt;

use longhaul_model::FaultCode;
use serde_json::{Value, json};

use crate::Problem;

/// An HTTP error as FTS writes it. The client shows the text for 400 to 405 and turns 419 and 503 into advice
/// of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Text for people, and for software that compares it.
    pub message: String,
}

impl Refusal {
    /// An error with any status.
    pub fn new(status: u16, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into() }
    }

    /// Status 400: the request is invalid.
    pub fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(400, message)
    }

    /// Status 400 for a request that cannot be parsed.
    pub fn malformed(what: impl fmt::Display) -> Refusal {
        Refusal::bad(format!("Malformed request: {what}"))
    }

    /// Status 403: the caller lacks the right.
    pub fn forbidden(message: impl Into<String>) -> Refusal {
        Refusal::new(403, message)
    }

    /// Status 404: the object does not exist.
    pub fn missing(message: impl Into<String>) -> Refusal {
        Refusal::new(404, message)
    }

    /// Status and title, such as `404 Not Found`; software compares these texts.
    pub fn status_line(&self) -> String {
        format!("{} {}", self.status, title(self.status))
    }

    /// The body of the reply.
    pub fn body(&self) -> Value {
        json!({ "status": self.status_line(), "message": self.message })
    }
}

/// Delay after a limit of jobs is reached: jobs end in minutes rather than in seconds.
const RETRY_AFTER_S: u32 = 60;

/// The native API decides about jobs by the same rules, and reports the same errors as problems.
impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let code = match refusal.status {
            401 => FaultCode::NotAuthenticated,
            403 => FaultCode::NotAllowed,
            404 => FaultCode::NotFound,
            409 => FaultCode::Conflict,
            413 => FaultCode::TooLarge,
            419 => FaultCode::NotAuthenticated,
            429 => FaultCode::Busy,
            400..500 => FaultCode::BadRequest,
            503 => FaultCode::Busy,
            _ => FaultCode::Internal,
        };
        let problem = Problem::new(code, code.title(), refusal.message);
        if refusal.status == 429 { problem.too_many(RETRY_AFTER_S) } else { problem }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status_line(), self.message)
    }
}

fn title(status: u16) -> &'static str {
    match status {
        200 => "Ok",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Request Entity Too Large",
        419 => "Authentication Timeout",
        424 => "Failed Dependency",
        503 => "Service Unavailable",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_as_fts_writes_it() {
        let refusal = Refusal::missing("No job with the id \"x\" has been found");
        assert_eq!(refusal.body()["status"], "404 Not Found");
        assert_eq!(refusal.body()["message"], "No job with the id \"x\" has been found");
        assert_eq!(Refusal::new(419, "").status_line(), "419 Authentication Timeout");
    }
}
