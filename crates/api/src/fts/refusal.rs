//! Why a request is not fulfilled, as FTS's clients read it.

use std::fmt;

use longhaul_model::FaultCode;
use serde_json::{Value, json};

use crate::Problem;

/// An HTTP status and a text. The client shows the text for 400 to 405 and turns 419 and 503 into advice of
/// its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub message: String,
}

impl Refusal {
    pub fn new(status: u16, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into() }
    }

    pub fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(400, message)
    }

    pub fn malformed(what: impl fmt::Display) -> Refusal {
        Refusal::bad(format!("Malformed request: {what}"))
    }

    pub fn forbidden(message: impl Into<String>) -> Refusal {
        Refusal::new(403, message)
    }

    pub fn missing(message: impl Into<String>) -> Refusal {
        Refusal::new(404, message)
    }

    /// `404 Not Found`: software compares these strings.
    pub fn status_line(&self) -> String {
        format!("{} {}", self.status, title(self.status))
    }

    pub fn body(&self) -> Value {
        json!({ "status": self.status_line(), "message": self.message })
    }
}

/// For what is refused by its number: jobs end in minutes rather than in seconds.
const RETRY_AFTER_S: u32 = 60;

/// The same in the native API, where what is asked of jobs is decided by the same rules.
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
