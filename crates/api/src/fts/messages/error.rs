//! The error of an attempt as messages have it: text, number, scope, phase.

use longhaul_model::job::{TRANSFER_CANCELED, parse_reason};

use super::Outcome;

const ERROR_BYTES_MAX: usize = 1_024;
/// Linux's number for "Operation canceled".
const CANCELED: u16 = 125;
const NAME_CLASH: u16 = 17;

pub(super) struct ErrorShown {
    pub(super) text: String,
    pub(super) number: u16,
    pub(super) scope: String,
    pub(super) phase: &'static str,
    pub(super) category: String,
}

impl ErrorShown {
    pub(super) fn classify(outcome: Outcome, reason: &str) -> ErrorShown {
        if outcome == Outcome::Ok {
            let nothing = String::new;
            return ErrorShown {
                text: nothing(),
                number: 0,
                scope: nothing(),
                phase: "",
                category: nothing(),
            };
        }
        let (scope, number, text) = match (parse_reason(reason), reason.split_once(' ')) {
            (Some((_, number, text)), Some((scope, _))) => (scope, number, text),
            _ if outcome == Outcome::Abort => {
                ("GENERAL_FAILURE", CANCELED, filled(reason, TRANSFER_CANCELED))
            }
            _ => ("GENERAL_FAILURE", 70, reason),
        };
        ErrorShown {
            text: plain(text),
            number,
            scope: scope.to_owned(),
            phase: phase(scope, number, text),
            category: category(number),
        }
    }
}

fn filled<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// Reduces a text to printable ASCII without quotes, no longer than consumers have room for.
fn plain(text: &str) -> String {
    let plain = text.chars().map(|c| match c {
        '"' | '\'' => ' ',
        c if c.is_ascii_graphic() || c == ' ' => c,
        '\n' | '\r' | '\t' => ' ',
        _ => '?',
    });
    plain.take(ERROR_BYTES_MAX).collect()
}

fn phase(scope: &str, number: u16, text: &str) -> &'static str {
    let compared = text.contains("do not match") || text.contains("size mismatch");
    match scope {
        "GENERAL_FAILURE" => "TRANSFER_SERVICE",
        "TRANSFER" => "TRANSFER",
        _ if compared => "TRANSFER_FINALIZATION",
        "SOURCE" => "TRANSFER_PREPARATION",
        _ if number == NAME_CLASH => "TRANSFER_PREPARATION",
        _ => "TRANSFER",
    }
}

/// Linux's text for an error number, in capitals and with underscores.
fn category(number: u16) -> String {
    let word = match number {
        1 => "OPERATION_NOT_PERMITTED",
        2 => "NO_SUCH_FILE_OR_DIRECTORY",
        5 => "INPUT/OUTPUT_ERROR",
        11 => "RESOURCE_TEMPORARILY_UNAVAILABLE",
        13 => "PERMISSION_DENIED",
        17 => "FILE_EXISTS",
        22 => "INVALID_ARGUMENT",
        28 => "NO_SPACE_LEFT_ON_DEVICE",
        30 => "READ-ONLY_FILE_SYSTEM",
        36 => "FILE_NAME_TOO_LONG",
        70 => "COMMUNICATION_ERROR_ON_SEND",
        104 => "CONNECTION_RESET_BY_PEER",
        110 => "CONNECTION_TIMED_OUT",
        111 => "CONNECTION_REFUSED",
        113 => "NO_ROUTE_TO_HOST",
        CANCELED => "OPERATION_CANCELED",
        other => return format!("UNKNOWN_ERROR_{other}"),
    };
    word.to_owned()
}
