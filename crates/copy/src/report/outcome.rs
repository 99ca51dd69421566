//! The outcome of one file in a report.

use longhaul_model::{Blame, Digest, Fault, FaultCode};
use serde::{Serialize, Serializer};

/// Status codes as srmcp and fdtcp number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok,
    Error,
    Exists,
    Permission,
}

impl Status {
    pub fn number(self) -> u8 {
        match self {
            Status::Ok => 0,
            Status::Error => 1,
            Status::Exists => 2,
            Status::Permission => 3,
        }
    }

    fn from_code(code: FaultCode) -> Status {
        match code {
            FaultCode::NameClash | FaultCode::CaseTwin | FaultCode::AlreadyExists => Status::Exists,
            FaultCode::TargetReadOnly => Status::Permission,
            code if code.blame() == Blame::Credential => Status::Permission,
            _ => Status::Error,
        }
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.number())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub status: Status,
    /// Fault code, if the file failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<FaultCode>,
    pub text: String,
    /// Bytes that are complete at the target.
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// How the file was verified, in the words of the copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<String>,
}

impl Outcome {
    pub fn ok(text: impl Into<String>, bytes: u64) -> Outcome {
        Outcome { status: Status::Ok, code: None, text: text.into(), bytes, digest: None, verified: None }
    }

    pub fn verified(mut self, how: impl Into<String>, digest: Option<Digest>) -> Outcome {
        self.verified = Some(how.into());
        self.digest = digest;
        self
    }

    pub fn failed(code: FaultCode, text: String) -> Outcome {
        let status = Status::from_code(code);
        Outcome { status, code: Some(code), text, bytes: 0, digest: None, verified: None }
    }

    pub fn from_fault(fault: &Fault) -> Outcome {
        Outcome::failed(fault.code, fault.to_string())
    }
}
