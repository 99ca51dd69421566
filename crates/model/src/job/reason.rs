//! The texts that software beside FTS matches: kept to the letter.

use crate::{Blame, Fault, FaultCode};

pub const FILES_FAILED: &str =
    "One or more files failed. Please have a look at the details for more information";
pub const CANCELED_BY_USER: &str = "Job canceled by the user";
pub const TRANSFER_CANCELED: &str = "Transfer canceled";
pub const EMPTY_JOB: &str = "The job was empty";
pub const TOO_LONG_IN_QUEUE: &str =
    "Job has been canceled because it stayed in the queue for too long (max-time-in-queue timeout)";

/// A reason is no longer than that.
pub const REASON_BYTES: usize = 2048;

/// `SCOPE [errno] text`, as it stands with a file: whose turn it is, by which number, and what happened.
pub fn reason(fault: &Fault) -> String {
    let scope = match fault.blame {
        Blame::Source => "SOURCE",
        Blame::Target => "DESTINATION",
        Blame::Network | Blame::Credential => "TRANSFER",
        Blame::Request | Blame::Ourselves => "GENERAL_FAILURE",
    };
    let text = if fault.detail.is_empty() { fault.code.title() } else { &fault.detail };
    // Who knew better has said so.
    let said = SCOPES.iter().any(|scope| text.strip_prefix(scope).is_some_and(|rest| rest.starts_with(" [")));
    if said { text.to_owned() } else { format!("{scope} [{}] {text}", errno(fault.code)) }
}

const SCOPES: [&str; 4] = ["SOURCE", "DESTINATION", "TRANSFER", "GENERAL_FAILURE"];

/// The number of Linux that says most nearly the same.
pub fn errno(code: FaultCode) -> u16 {
    use FaultCode::*;
    match code {
        NotAllowed => 1,
        SourceMissing | NotFound | NoSource => 2,
        SourceUnreadable | TargetWrite | Corrupted | WrongDigest | SourceChanged => 5,
        Busy | Interrupted | LeaseExpired => 11,
        NameClash | CaseTwin | AlreadyExists => 17,
        BadRequest | BadName | SourceTruncated => 22,
        TargetFull | NoSpaceForRequest => 28,
        TargetReadOnly => 30,
        NameTooLong => 36,
        ProtocolError | VersionMismatch => 70,
        ConnectionLost => 104,
        Stalled => 110,
        Unreachable => 113,
        Cancelled => 125,
        other => match other.blame() {
            Blame::Credential => 13,
            _ => 70,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_scope_number_and_text() {
        let exists = "Destination file exists and overwrite is not enabled";
        for (fault, text) in [
            (Fault::new(FaultCode::NameClash, exists), format!("DESTINATION [17] {exists}")),
            (
                Fault::new(FaultCode::SourceMissing, "HTTP 404 : File not found"),
                "SOURCE [2] HTTP 404 : File not found".into(),
            ),
            (Fault::new(FaultCode::Stalled, ""), "TRANSFER [110] no byte arrived for too long".into()),
            (
                Fault::new(FaultCode::Cancelled, "Transfer canceled").blaming(Blame::Ourselves),
                "GENERAL_FAILURE [125] Transfer canceled".into(),
            ),
            (Fault::new(FaultCode::Stalled, "SOURCE [110] slow"), "SOURCE [110] slow".into()),
            (Fault::new(FaultCode::Internal, "x"), "GENERAL_FAILURE [70] x".into()),
        ] {
            assert_eq!(reason(&fault), text);
        }
    }

    #[test]
    fn every_code_has_a_number() {
        for &code in FaultCode::ALL {
            assert!((1..=133).contains(&errno(code)), "{code}");
        }
    }
}
