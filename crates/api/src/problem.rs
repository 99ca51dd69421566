//! Errors of the API: problem details (RFC 9457), extended by a code, the next step and an id.

use longhaul_model::{Cause, ErrorChain, Fault, FaultCode, IncidentId};
use serde::{Deserialize, Serialize};

/// An error for a person or a program, in four parts: what, why, what next, and an id to quote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Problem {
    /// Type of the error, such as `urn:longhaul:error:E1002`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What went wrong, in plain words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Why, with the particulars.
    pub detail: String,
    /// Stable code of the error, such as `E1002`.
    #[schema(value_type = String)]
    pub code: FaultCode,
    /// What to do next.
    pub remedy: String,
    /// Seconds to wait before another try, for the statuses 429 and 503; the same as `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
    /// Id that finds the log lines of this error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::formats::IncidentId>)]
    pub instance: Option<IncidentId>,
    #[serde(skip)]
    cause: Cause,
}

impl Problem {
    /// A problem with the status and next step that belong to the code.
    pub fn new(code: FaultCode, title: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem {
            kind: format!("urn:longhaul:error:{code}"),
            title: title.into(),
            status: status_of(code),
            detail: detail.into(),
            code,
            remedy: code.next_step().to_owned(),
            retry_after_s: None,
            instance: None,
            cause: Cause::default(),
        }
    }

    /// Replaces the next step.
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Keeps the error that caused the problem, for the logs of this process.
    pub fn with_source(mut self, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Cause::new(error);
        self
    }

    /// Turns the problem into a 429 reply that allows another try after so many seconds, at least 1.
    pub fn too_many(self, retry_after_s: u32) -> Self {
        Problem { status: 429, retry_after_s: Some(retry_after_s.max(1)), ..self }
    }

    /// Turns the problem into a 422 reply: the request is well-formed, but what it says cannot be done
    /// (RFC 9110, section 15.5.21), such as a deadline that has passed.
    pub fn unprocessable(self) -> Self {
        Problem { status: 422, title: "the request makes no sense as it stands".to_owned(), ..self }
    }

    /// The detail and the causes known to this process, for its logs.
    pub fn detail_chain(&self) -> ErrorChain<'_> {
        ErrorChain::with_head(&self.detail, self.cause.as_source())
    }

    /// Exit code of a command that fails with this problem (`docs/reference/exit-codes.md`).
    pub fn exit_code(&self) -> u8 {
        match self.code {
            FaultCode::NotFound => 3,
            code if (4000..5000).contains(&code.number()) => 4,
            FaultCode::WrongDigest => 10,
            code if code.retry() != longhaul_model::Retry::Never => 5,
            FaultCode::BadRequest | FaultCode::BadName | FaultCode::BadManifest | FaultCode::TooLarge => 2,
            _ => 6,
        }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let cause = fault.cause().clone();
        Problem { cause, ..Problem::new(fault.code, fault.code.title(), fault.detail) }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.title, self.detail)
    }
}

impl std::error::Error for Problem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_source()
    }
}

/// HTTP status of a code.
pub fn status_of(code: FaultCode) -> u16 {
    use FaultCode::*;
    match code {
        BadRequest | BadName | BadManifest => 400,
        NotAuthenticated | JoinTokenUsed | JoinTokenExpired => 401,
        NotAllowed | ForeignDeployment | StaleIncarnation | PermitRefused => 403,
        NotFound => 404,
        AlreadyExists | Conflict | LastReplica | NameClash | CaseTwin => 409,
        TooLarge => 413,
        VersionMismatch => 426,
        Busy => 503,
        NoSpaceForRequest | TargetFull => 507,
        code if code.number() >= 9000 => 500,
        _ => 422,
    }
}
