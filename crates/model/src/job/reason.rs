//! Texts of FTS that other software matches verbatim: never edit them.

use crate::{Blame, Fault, FaultCode};

/// Reason of a job with failed files.
pub const FILES_FAILED: &str =
    "One or more files failed. Please have a look at the details for more information";
/// Reason of a job that its user cancelled.
pub const CANCELED_BY_USER: &str = "Job canceled by the user";
/// Reason of a file that was cancelled while it was transferred.
pub const TRANSFER_CANCELED: &str = "Transfer canceled";
/// Reason of a job without files.
pub const EMPTY_JOB: &str = "The job was empty";
/// Reason of a job that exceeded its time in the queue.
pub const TOO_LONG_IN_QUEUE: &str =
    "Job has been canceled because it stayed in the queue for too long (max-time-in-queue timeout)";

/// Reason of a file whose staging timed out.
pub const STAGING_TOO_LONG: &str = "STAGING [110] bring-online timeout has been exceeded";
/// Reason of a file whose archiving timed out.
pub const ARCHIVING_TOO_LONG: &str = "ARCHIVING [110] archive timeout has been exceeded";
/// Reason of a replica that failed while it was archived.
pub const ARCHIVING_OF_REPLICAS: &str = "Archive monitoring failed in a multiple replica job";

/// Maximum length of a reason, in bytes: FTS's database column.
pub const REASON_BYTES: usize = 2048;

/// `SCOPE [errno] text`, FTS's format of a file's reason: which side is to blame, an errno value, and what
/// happened.
pub fn reason(fault: &Fault) -> String {
    let scope = match fault.blame {
        Blame::Source => "SOURCE",
        Blame::Target => "DESTINATION",
        Blame::Network | Blame::Credential => "TRANSFER",
        Blame::Request | Blame::Ourselves => "GENERAL_FAILURE",
    };
    let text = if fault.detail.is_empty() { fault.code.title() } else { &fault.detail };
    // A text that already has a scope, from a server or mover, is kept.
    let said = SCOPES.iter().any(|scope| text.strip_prefix(scope).is_some_and(|rest| rest.starts_with(" [")));
    if said { text.to_owned() } else { format!("{scope} [{}] {text}", errno(fault.code)) }
}

/// Blame, errno value and text of a reason; none if the reason has no known scope.
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

// Errno values of Linux, and texts, by which FTS decides; in its order.
const EPERM: u16 = 1;
const ENOENT: u16 = 2;
const E2BIG: u16 = 7;
const EACCES: u16 = 13;
const EFAULT: u16 = 14;
const EEXIST: u16 = 17;
const ENOTDIR: u16 = 20;
const EISDIR: u16 = 21;
const EFBIG: u16 = 27;
const ENOSPC: u16 = 28;
const EROFS: u16 = 30;
const ENAMETOOLONG: u16 = 36;
const EPROTONOSUPPORT: u16 = 93;
const TIMED_OUT: u16 = 110;
const CANCELED: u16 = 125;

const TRANSIENT_TEXTS: &[&str] = &[
    "performance marker",
    "Name or service not known",
    "Connection timed out",
    "end-of-file was reached",
    "end of file occurred",
    "SRM_INTERNAL_ERROR",
    "was forcefully killed",
    "operation timeout",
];
const PERMANENT_TEXTS: &[&str] = &[
    "proxy expired",
    "with an error 550 File not found",
    "File exists and overwrite",
    "No such file or directory",
    "SRM_INVALID_PATH",
    "The certificate has expired",
    "The available CRL has expired",
    "SRM Authentication failed",
    "SRM_DUPLICATION_ERROR",
    "SRM_AUTHENTICATION_FAILURE",
    "SRM_NO_FREE_SPACE",
    "digest too big for rsa key",
    "Can not determine address of local host",
    "Permission denied",
    "System error in write into HDFS",
    "File exists",
    "checksum do not match",
    "CHECKSUM MISMATCH",
    "The source file is not ONLINE",
];
const SOURCE_NEVER: &[u16] = &[ENOENT, EPERM, EACCES, EISDIR, ENAMETOOLONG, E2BIG, ENOTDIR, EPROTONOSUPPORT];
const TARGET_NEVER: &[u16] =
    &[EPERM, EACCES, EISDIR, E2BIG, EROFS, EFAULT, ENAMETOOLONG, EPROTONOSUPPORT, EEXIST];
const OTHERS_NEVER: &[u16] = &[ENOSPC, EPERM, EACCES, EEXIST, EFBIG, EROFS, ENAMETOOLONG, EPROTONOSUPPORT];

/// The errno value of Linux that comes closest to the code.
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

/// Whether a retry may help, by the rules of FTS; the first rule that matches decides.
pub fn is_recoverable(reason: &str) -> bool {
    let says = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    let (scope, number) = match reason.split_once(" [") {
        Some((scope, rest)) => (scope, rest.split_once(']').and_then(|(number, _)| number.parse().ok())),
        None => ("", None),
    };
    let numbers: &[u16] = match scope {
        "SOURCE" => SOURCE_NEVER,
        "DESTINATION" => TARGET_NEVER,
        _ => OTHERS_NEVER,
    };
    match number {
        _ if says(TRANSIENT_TEXTS) => true,
        Some(TIMED_OUT) => true,
        Some(CANCELED) => false,
        _ if says(PERMANENT_TEXTS) => false,
        Some(number) => !numbers.contains(&number),
        None => true,
    }
}

/// The reason shown for a replica that is staged from tape, with the last failure of a replica on disk.
pub fn brought_from_tape(last: Option<&str>) -> String {
    let last = last.map(|last| format!(" (the last one failed: {last})")).unwrap_or_default();
    let mut text = format!("STAGING [61] no replica on disk is left{last}; this one is brought from tape");
    text.truncate(text.floor_char_boundary(REASON_BYTES));
    text
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

    /// The ordered list of the reference: texts that pass, two numbers, texts that last, numbers by scope.
    #[test]
    fn what_is_tried_again_is_what_fts_tries_again() {
        for (reason, again) in [
            // Texts of what passes win over numbers and over texts of what lasts.
            ("SOURCE [2] no performance marker for 180 s", true),
            ("DESTINATION [13] Name or service not known", true),
            ("TRANSFER [70] Connection timed out", true),
            ("TRANSFER [70] an end-of-file was reached", true),
            ("TRANSFER [28] an end of file occurred", true),
            ("SOURCE [2] SRM_INTERNAL_ERROR: Permission denied", true),
            ("TRANSFER [125] the process was forcefully killed", true),
            ("TRANSFER [17] operation timeout: File exists", true),
            // Then two numbers.
            ("SOURCE [110] Operation timed out", true),
            ("DESTINATION [110] Permission denied", true),
            ("GENERAL_FAILURE [125] Transfer canceled", false),
            ("TRANSFER [125] whatever", false),
            // Then texts of what lasts, whatever the number.
            ("TRANSFER [70] the proxy expired", false),
            ("TRANSFER [70] ended with an error 550 File not found", false),
            ("DESTINATION [70] Destination File exists and overwrite is not enabled", false),
            ("TRANSFER [70] No such file or directory", false),
            ("TRANSFER [70] SRM_INVALID_PATH", false),
            ("TRANSFER [70] The certificate has expired", false),
            ("TRANSFER [70] The available CRL has expired", false),
            ("TRANSFER [70] SRM Authentication failed", false),
            ("TRANSFER [70] SRM_DUPLICATION_ERROR", false),
            ("TRANSFER [70] SRM_AUTHENTICATION_FAILURE", false),
            ("TRANSFER [70] SRM_NO_FREE_SPACE", false),
            ("TRANSFER [70] digest too big for rsa key", false),
            ("TRANSFER [70] Can not determine address of local host", false),
            ("TRANSFER [70] Permission denied", false),
            ("TRANSFER [70] System error in write into HDFS", false),
            ("TRANSFER [70] File exists", false),
            ("TRANSFER [5] Source and destination ADLER32 checksum do not match (1 != 2)", false),
            ("TRANSFER [5] CHECKSUM MISMATCH", false),
            ("SOURCE [5] The source file is not ONLINE", false),
            // Letters count: only the text of before says what FTS says.
            ("TRANSFER [70] permission denied", true),
            // Then numbers, of each scope its own.
            ("SOURCE [2] gone", false),
            ("DESTINATION [2] gone", true),
            ("TRANSFER [2] gone", true),
            ("SOURCE [20] x", false),
            ("DESTINATION [20] x", true),
            ("SOURCE [17] x", true),
            ("DESTINATION [17] x", false),
            ("TRANSFER [17] x", false),
            ("SOURCE [28] x", true),
            ("DESTINATION [28] x", true),
            ("TRANSFER [28] x", false),
            ("SOURCE [30] x", true),
            ("DESTINATION [30] x", false),
            ("GENERAL_FAILURE [30] x", false),
            ("SOURCE [21] x", false),
            ("DESTINATION [21] x", false),
            ("TRANSFER [21] x", true),
            ("SOURCE [7] x", false),
            ("DESTINATION [7] x", false),
            ("TRANSFER [7] x", true),
            ("DESTINATION [14] x", false),
            ("SOURCE [14] x", true),
            ("TRANSFER [27] x", false),
            ("DESTINATION [27] x", true),
            // The rest may pass.
            ("TRANSFER [70] x", true),
            ("SOURCE [5] x", true),
            ("DESTINATION [22] Source and destination file size mismatch", true),
            ("no scope and no number", true),
            ("", true),
        ] {
            assert_eq!(is_recoverable(reason), again, "{reason:?}");
        }
        for scope in ["SOURCE", "DESTINATION", "TRANSFER"] {
            for number in [EPERM, EACCES, ENAMETOOLONG, EPROTONOSUPPORT] {
                assert!(!is_recoverable(&format!("{scope} [{number}] x")), "{scope} {number}");
            }
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
