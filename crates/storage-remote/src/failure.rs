//! Failures of requests to storages. A copy adds the end at which one happened (its scope), from which blame
//! and the reason in the form of FTS follow.

use http::StatusCode;
use longhaul_model::units::printable;
use longhaul_model::{Blame, Fault, FaultCode, Retry};

/// Texts of storages are cut there.
const SERVER_TEXT_CHARS_MAX: usize = 240;

/// The end of a copy at which a failure happened; its word is part of the reasons that other software reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Source,
    Target,
    Transfer,
    /// A source that is brought from tape.
    Staging,
    /// A target that goes to tape.
    Archiving,
}

impl Scope {
    fn word(self) -> &'static str {
        match self {
            Scope::Source => "SOURCE",
            Scope::Target => "DESTINATION",
            Scope::Transfer => "TRANSFER",
            Scope::Staging => "STAGING",
            Scope::Archiving => "ARCHIVING",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The order itself cannot be carried out.
    Order,
    /// An address, a redirect or a header that we do not go along with.
    Refused,
    /// Nobody can be connected to.
    Unreachable,
    /// The handshake failed.
    Tls,
    /// A storage does not believe our clock.
    Skewed,
    TimedOut,
    /// The connection broke.
    Lost,
    /// The storage answered this.
    Status(StatusCode),
    /// A third-party copy ended with a text that names no status, or without a result.
    Told,
    /// A copy was told to be done, and there is no file.
    NotThere,
    /// The answer cannot be used.
    Malformed,
    /// Not told, and nothing can be compared.
    NoChecksum,
    WrongChecksum,
    WrongSize,
    Exists,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Failure {
        Failure { kind, text: text.into() }
    }

    /// A malformed order, or a URL that is refused.
    pub(crate) fn of_fault(fault: &Fault) -> Failure {
        let kind = if fault.code == FaultCode::BadRequest { Kind::Order } else { Kind::Refused };
        Failure::new(kind, fault.detail.clone())
    }

    /// As the errno that FTS would name.
    fn errno(&self) -> i32 {
        match self.kind {
            Kind::Order | Kind::WrongSize => 22,
            Kind::Refused => 1,
            Kind::Skewed => 13,
            Kind::Unreachable => 113,
            Kind::Tls | Kind::Told | Kind::NotThere => 70,
            Kind::TimedOut => 110,
            Kind::Lost => 104,
            Kind::Malformed => 71,
            Kind::NoChecksum => 95,
            Kind::WrongChecksum => 5,
            Kind::Exists => 17,
            Kind::Cancelled => 125,
            Kind::Status(status) => match status.as_u16() {
                401 | 403 => 13,
                404 | 410 => 2,
                405 | 501 => 95,
                408 | 504 => 110,
                409 => 2,
                412 => 17,
                423 | 429 | 503 => 16,
                507 => 28,
                _ => 70,
            },
        }
    }

    fn code(&self, scope: Option<Scope>) -> FaultCode {
        let at_source = matches!(scope, Some(Scope::Source | Scope::Staging));
        let of_tape = matches!(scope, Some(Scope::Staging | Scope::Archiving));
        match self.kind {
            Kind::Order => FaultCode::BadRequest,
            Kind::Refused => FaultCode::NotAllowed,
            Kind::Unreachable => FaultCode::Unreachable,
            Kind::Tls => FaultCode::NotAuthenticated,
            Kind::Skewed => FaultCode::ClockSkew,
            Kind::TimedOut => FaultCode::Stalled,
            Kind::Lost | Kind::Told | Kind::NotThere => FaultCode::ConnectionLost,
            Kind::Malformed => FaultCode::ProtocolError,
            Kind::NoChecksum | Kind::WrongChecksum if at_source => FaultCode::WrongDigest,
            Kind::NoChecksum | Kind::WrongChecksum => FaultCode::Corrupted,
            Kind::WrongSize if at_source => FaultCode::SourceChanged,
            Kind::WrongSize => FaultCode::Corrupted,
            Kind::Exists => FaultCode::NameClash,
            Kind::Cancelled => FaultCode::Cancelled,
            Kind::Status(status) => match status.as_u16() {
                401 => FaultCode::NotAuthenticated,
                403 => FaultCode::NotAllowed,
                404 | 410 if !matches!(scope, Some(Scope::Target | Scope::Archiving)) => {
                    FaultCode::SourceMissing
                }
                408 | 504 => FaultCode::Stalled,
                412 => FaultCode::NameClash,
                413 if of_tape => FaultCode::TooLarge,
                423 | 429 | 503 => FaultCode::Busy,
                507 => FaultCode::TargetFull,
                _ if at_source => FaultCode::SourceUnreadable,
                _ => FaultCode::TargetWrite,
            },
        }
    }

    fn retry(&self, code: FaultCode) -> Retry {
        match self.kind {
            Kind::NoChecksum | Kind::Order => Retry::Never,
            Kind::Malformed | Kind::Tls => Retry::Later,
            // Rights and names change by the hand of people only; what a storage cannot do it will not learn.
            Kind::Status(status) if matches!(status.as_u16(), 405 | 501) => Retry::Never,
            _ => code.retry(),
        }
    }

    fn blame(&self, scope: Option<Scope>, code: FaultCode) -> Blame {
        let credential = matches!(code.blame(), Blame::Credential) && self.kind != Kind::Refused;
        match (self.kind, scope) {
            (Kind::Order | Kind::Refused | Kind::Cancelled, _) => Blame::Request,
            (Kind::Skewed, _) => Blame::Ourselves,
            _ if credential => Blame::Credential,
            (Kind::Unreachable | Kind::Lost | Kind::TimedOut, None | Some(Scope::Transfer)) => Blame::Network,
            (_, Some(Scope::Source | Scope::Staging)) => Blame::Source,
            (_, Some(Scope::Target | Scope::Archiving)) => Blame::Target,
            _ => code.blame(),
        }
    }

    /// The fault of an operation on one storage.
    pub(crate) fn fault(&self) -> Fault {
        let code = self.code(None);
        Fault::new(code, self.text.clone()).blaming(self.blame(None, code)).retrying(self.retry(code))
    }

    /// The fault of an operation on a storage that is the source or the target of a file. A credential there
    /// is the storage's own, so that one that is refused is the storage's trouble: files wait until it is
    /// renewed.
    pub(crate) fn in_storage(&self, scope: Scope) -> Fault {
        let code = match (self.code(Some(scope)), scope) {
            (code, _) if code.blame() != Blame::Credential || self.kind == Kind::Skewed => code,
            (_, Scope::Source | Scope::Staging) => FaultCode::SourceUnreadable,
            _ => FaultCode::TargetReadOnly,
        };
        let fault = Fault::new(code, self.text.clone());
        match code {
            FaultCode::SourceUnreadable | FaultCode::TargetReadOnly => fault,
            code => fault.blaming(self.blame(Some(scope), code)).retrying(self.retry(code)),
        }
    }

    /// The fault of a copy. Its detail is the reason as FTS writes it, `SCOPE [errno] text`.
    pub(crate) fn at(&self, scope: Scope) -> Fault {
        let code = self.code(Some(scope));
        let detail = format!("{} [{}] {}", scope.word(), self.errno(), self.text);
        Fault::new(code, detail).blaming(self.blame(Some(scope), code)).retrying(self.retry(code))
    }
}

/// A storage's own words, fit to be shown: one line, short, without what could be a credential.
pub(crate) fn sanitized(text: &str) -> String {
    let mut words = Vec::new();
    let mut hide = false;
    for word in text.split_whitespace() {
        let bearer = word.trim_matches(|c: char| !c.is_alphanumeric()).eq_ignore_ascii_case("bearer");
        // The query of a URL may hold tokens and capabilities.
        let shown = match word.split_once('?') {
            _ if hide => "…".to_owned(),
            Some((before, after)) if before.contains('/') && !after.is_empty() => format!("{before}?…"),
            _ => word.to_owned(),
        };
        hide = bearer;
        words.push(shown);
    }
    printable(&words.join(" ").chars().take(SERVER_TEXT_CHARS_MAX).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_read_as_those_of_fts() {
        let fault = Failure::new(Kind::Exists, "Destination file exists and overwrite is not enabled");
        let fault = fault.at(Scope::Target);
        assert_eq!(fault.detail, "DESTINATION [17] Destination file exists and overwrite is not enabled");
        assert_eq!((fault.blame, fault.retry), (Blame::Target, Retry::Never));
        let lost = Failure::new(Kind::TimedOut, "Operation timed out").at(Scope::Transfer);
        assert_eq!(lost.detail, "TRANSFER [110] Operation timed out");
        assert_eq!((lost.blame, lost.retry), (Blame::Network, Retry::Now));
        let missing = Failure::new(Kind::Status(StatusCode::NOT_FOUND), "x").at(Scope::Source);
        assert_eq!(missing.detail, "SOURCE [2] x");
        assert_eq!(missing.code, FaultCode::SourceMissing);
        let full = Failure::new(Kind::Status(StatusCode::INSUFFICIENT_STORAGE), "x").at(Scope::Target);
        assert_eq!((full.code, full.retry), (FaultCode::TargetFull, Retry::Later));
    }

    #[test]
    fn a_refused_credential_of_a_storage_is_its_own_trouble() {
        for kind in [Kind::Status(StatusCode::UNAUTHORIZED), Kind::Status(StatusCode::FORBIDDEN), Kind::Tls] {
            let at = |scope| Failure::new(kind, "x").in_storage(scope);
            let (source, target) = (at(Scope::Source), at(Scope::Target));
            assert_eq!(
                (source.code, source.blame, source.retry),
                (FaultCode::SourceUnreadable, Blame::Source, Retry::Later)
            );
            assert_eq!(
                (target.code, target.blame, target.retry),
                (FaultCode::TargetReadOnly, Blame::Target, Retry::Later)
            );
        }
        let full =
            Failure::new(Kind::Status(StatusCode::INSUFFICIENT_STORAGE), "x").in_storage(Scope::Target);
        assert_eq!((full.code, full.retry), (FaultCode::TargetFull, Retry::Later));
    }

    #[test]
    fn what_storages_say_is_cut_and_without_credentials() {
        assert_eq!(
            sanitized("no such file https://a/b?authz=SECRET\r\nAuthorization: Bearer SECRET why? because"),
            "no such file https://a/b?… Authorization: Bearer … why? because"
        );
        assert_eq!(sanitized(&"x".repeat(9_000)).len(), SERVER_TEXT_CHARS_MAX);
        assert!(!sanitized("a\u{1b}[2J").contains('\u{1b}'));
    }
}
