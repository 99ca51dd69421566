//! The texts that software beside FTS matches: kept to the letter.

use crate::{Blame, Fault, FaultCode};

pub const FILES_FAILED: &str =
    "One or more files failed. Please have a look at the details for more information";
pub const CANCELED_BY_USER: &str = "Job canceled by the user";
pub const TRANSFER_CANCELED: &str = "Transfer canceled";
pub const EMPTY_JOB: &str = "The job was empty";
pub const TOO_LONG_IN_QUEUE: &str =
    "Job has been canceled because it stayed in the queue for too long (max-time-in-queue timeout)";

pub const STAGING_TOO_LONG: &str = "STAGING [110] bring-online timeout has been exceeded";
pub const ARCHIVING_TOO_LONG: &str = "ARCHIVING [110] archive timeout has been exceeded";
pub const ARCHIVING_OF_REPLICAS: &str = "Archive monitoring failed in a multiple replica job";

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

/// Whose turn it is, the number and the text of a reason; none of one that names nobody.
pub fn parse_reason(reason: &str) -> Option<(Blame, u16, &str)> {
    let (scope, rest) = reason.split_once(" [")?;
    let (number, text) = rest.split_once("] ")?;
    let number = number.parse().ok()?;
    let blame = match scope {
        "SOURCE" | "STAGING" => Blame::Source,
        "DESTINATION" | "ARCHIVING" => Blame::Target,
        "TRANSFER" if number == errno(FaultCode::NotAuthenticated) => Blame::Credential,
        "TRANSFER" => Blame::Network,
        "GENERAL_FAILURE" => Blame::Ourselves,
        _ => return None,
    };
    Some((blame, number, text))
}

const SCOPES: [&str; 6] = ["SOURCE", "DESTINATION", "TRANSFER", "GENERAL_FAILURE", "STAGING", "ARCHIVING"];

/// The number of Linux that says most nearly the same.
pub fn errno(code: FaultCode) -> u16 {
    use FaultCode::*;
    match code {
        NotAllowed | HookRefused => 1,
        SourceMissing | NotFound | NoSource => 2,
        SourceUnreadable | TargetWrite | Corrupted | WrongDigest | SourceChanged => 5,
        Busy | Interrupted | LeaseExpired | OnTape => 11,
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
    fn what_names_nobody_is_no_reason_with_a_blame() {
        assert_eq!(
            parse_reason(STAGING_TOO_LONG).map(|(blame, number, _)| (blame, number)),
            Some((Blame::Source, 110))
        );
        assert_eq!(parse_reason(ARCHIVING_TOO_LONG).map(|(blame, ..)| blame), Some(Blame::Target));
        assert_eq!(parse_reason("SOURCE [2] no [file] there"), Some((Blame::Source, 2, "no [file] there")));
        for text in
            ["", CANCELED_BY_USER, "SOURCE [x] y", "ELSEWHERE [1] x", "SOURCE [99999] x", "SOURCE [1]"]
        {
            assert_eq!(parse_reason(text), None, "{text:?}");
        }
    }

    #[test]
    fn every_code_has_a_number() {
        for &code in FaultCode::ALL {
            let fault = Fault::new(code, "because");
            let written = reason(&fault);
            let (blame, number, text) = parse_reason(&written).unwrap();
            assert_eq!((number, text), (errno(code), "because"));
            // Scopes are fewer than those whose turn it can be.
            let coarse = [Blame::Network, Blame::Credential, Blame::Request].contains(&fault.blame);
            assert!(blame == fault.blame || coarse, "{code}: {blame}");
            assert!((1..=133).contains(&errno(code)), "{code}");
        }
    }
}
