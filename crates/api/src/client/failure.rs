//! Turns failures between the client and the service into problems with a next step.

use std::error::Error;
use std::io;
use std::time::Duration;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, json};
use rustls::{AlertDescription, CertificateError, OtherError};

use super::REPLY_BYTES_MAX;
use super::body::SourceError;
use crate::Problem;

/// Characters shown of a reply that is not a problem document.
const SHOWN_CHARACTERS: usize = 200;

/// The problem if no reply came.
pub(super) fn request_problem(base: &str, error: &hyper_util::client::legacy::Error) -> Problem {
    if let Some(SourceError(cause)) = find(error) {
        return Problem::new(
            FaultCode::BadRequest,
            "what is to be uploaded cannot be read",
            cause.to_string(),
        )
        .with_remedy("check the file");
    }
    if let Some(tls) = find(error) {
        return tls_problem(base, tls);
    }
    let detail = format!("{base}: {}", deepest(error));
    if error.is_connect() {
        return Problem::new(FaultCode::Unreachable, "the service cannot be reached", detail)
            .with_remedy("is the service running at that address? start it with: longhaul service run");
    }
    Problem::new(FaultCode::ConnectionLost, "the connection to the service broke", detail)
        .with_remedy("repeat the request; see with `longhaul status` whether it took effect")
}

/// The problem if a reply began and did not end.
pub(super) fn body_problem(error: &(dyn Error + 'static)) -> Problem {
    if error.is::<http_body_util::LengthLimitError>() {
        let detail = format!("more than {REPLY_BYTES_MAX} bytes");
        return Problem::new(FaultCode::ProtocolError, "the reply is too large", detail)
            .with_remedy("ask for smaller pages");
    }
    Problem::new(FaultCode::ConnectionLost, "the connection broke within the reply", deepest(error))
        .with_remedy("repeat the request; see with `longhaul status` whether it took effect")
}

/// The problem if the time limit passed.
pub(super) fn timed_out(base: &str, after: Duration) -> Problem {
    let detail = format!("{base}: no complete answer within {} s", after.as_secs_f64());
    Problem::new(FaultCode::Stalled, "the service does not answer", detail)
        .with_remedy("see the service's log, and whether its disk is full or slow")
}

/// The problem in a reply without success.
pub(super) fn reply_problem(status: u16, body: &[u8]) -> Problem {
    if let Ok(problem) = json::from_slice::<Problem>(body) {
        return problem;
    }
    // From a newer service with codes unknown here, or from something in between.
    let document: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| document.get(name).and_then(|value| value.as_str());
    let detail = text("detail").map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    let detail = printable(&detail.chars().take(SHOWN_CHARACTERS).collect::<String>());
    let title = text("title").map_or_else(|| format!("the answer has the HTTP status {status}"), printable);
    let mut problem = Problem::new(code_of(status), title, detail);
    if let Some(remedy) = text("remedy") {
        problem.remedy = printable(remedy);
    }
    problem.status = status;
    problem
}

fn code_of(status: u16) -> FaultCode {
    match status {
        401 => FaultCode::NotAuthenticated,
        403 => FaultCode::NotAllowed,
        404 => FaultCode::NotFound,
        409 => FaultCode::Conflict,
        413 => FaultCode::TooLarge,
        426 => FaultCode::VersionMismatch,
        429 | 502..=504 => FaultCode::Busy,
        400..=499 => FaultCode::BadRequest,
        _ => FaultCode::Internal,
    }
}

/// The problem if the TLS handshake failed. `security` explains the handshakes of servers; a client of the
/// service meets only these.
fn tls_problem(base: &str, error: &rustls::Error) -> Problem {
    use rustls::Error::*;
    let (code, detail) = match error {
        InvalidCertificate(CertificateError::Other(OtherError(cause))) => match cause.downcast_ref::<Fault>()
        {
            Some(fault) => (fault.code, fault.detail.clone()),
            None => (FaultCode::NotAuthenticated, cause.to_string()),
        },
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => (
            FaultCode::ForeignDeployment,
            "its certificate is not from the authority trusted here".to_owned(),
        ),
        InvalidCertificate(
            reason @ (CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
            | CertificateError::Expired
            | CertificateError::ExpiredContext { .. }),
        ) => return clock_problem(base, reason),
        AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            (FaultCode::ForeignDeployment, "it does not know the authority of our certificate".to_owned())
        }
        AlertReceived(alert) => {
            (FaultCode::NotAuthenticated, format!("it refused the connection: {alert:?}"))
        }
        InvalidMessage(_) => {
            let problem =
                Problem::new(FaultCode::Unreachable, "no TLS is spoken at this address", base.to_owned());
            return problem
                .with_remedy("check the port; for the plain page of a demo begin the address with http://");
        }
        other => (FaultCode::NotAuthenticated, other.to_string()),
    };
    let problem = Problem::new(code, code.title(), format!("{base}: {detail}"));
    match error {
        // The credential is not the matter, and neither is an agent's identity.
        InvalidCertificate(_) => problem.with_remedy(
            "check that the address and the authority are those of the same service: --ca FILE, as `longhaul \
                service init` printed it",
        ),
        _ => problem,
    }
}

/// By this host's clock the service's certificate is not valid now: one of the two is wrong, and logging in
/// again helps neither.
fn clock_problem(base: &str, reason: &CertificateError) -> Problem {
    let code = FaultCode::ClockSkew;
    let detail = format!("{base}: by this host's clock its certificate is not valid: {reason}");
    Problem::new(code, code.title(), detail).with_remedy(
        "compare the clock of this host with the true time and set it (NTP); if it is right, the service's \
            certificate is out of date: see its log",
    )
}

type Cause<'e> = &'e (dyn Error + 'static);

/// An error and its causes. I/O errors hide from `source()` what they wrap, so they are unwrapped on the way.
fn causes<'e>(error: Cause<'e>) -> impl Iterator<Item = Cause<'e>> {
    fn inner<'e>(error: Cause<'e>) -> Option<Cause<'e>> {
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        }
    }
    std::iter::successors(Some(error), |error| inner(*error))
}

fn find<'e, T: Error + 'static>(error: Cause<'e>) -> Option<&'e T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn deepest(error: Cause<'_>) -> String {
    printable(&causes(error).last().map(|error| error.to_string()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::Error::{AlertReceived, InvalidCertificate};

    #[test]
    fn a_problem_document_comes_through_whole() {
        let sent = Problem::new(FaultCode::NotFound, "there is no such dataset", "higgs/run7");
        let body = serde_json::to_vec(&sent).unwrap();
        assert_eq!(reply_problem(404, &body), sent);
    }

    #[test]
    fn a_newer_code_keeps_its_words() {
        let body = br#"{"code":"E7777","title":"t","detail":"d","remedy":"r","status":409}"#;
        let problem = reply_problem(409, body);
        assert_eq!((problem.code, problem.status), (FaultCode::Conflict, 409));
        assert_eq!((&*problem.title, &*problem.detail, &*problem.remedy), ("t", "d", "r"));
    }

    #[test]
    fn a_proxy_page_is_shown_in_part_and_escaped() {
        let problem = reply_problem(502, format!("<html>\x1b[2J{}", "x".repeat(5_000)).as_bytes());
        assert_eq!(problem.code, FaultCode::Busy);
        assert!(problem.detail.len() < 300 && !problem.detail.contains('\x1b'));
    }

    #[test]
    fn a_foreign_deployment_is_named_as_such() {
        let ours = Fault::new(FaultCode::ForeignDeployment, "the peer belongs to the deployment b");
        let inside = InvalidCertificate(CertificateError::Other(OtherError(std::sync::Arc::new(ours))));
        for error in [
            inside,
            InvalidCertificate(CertificateError::UnknownIssuer),
            AlertReceived(AlertDescription::UnknownCA),
        ] {
            let problem = tls_problem("https://a", &error);
            assert_eq!((problem.code, problem.exit_code()), (FaultCode::ForeignDeployment, 4));
            assert!(problem.detail.contains("https://a"));
            // Only to an agent does it matter who knows its own certificate.
            let next = if matches!(error, AlertReceived(_)) { "longhaul agent join" } else { "--ca" };
            assert!(problem.remedy.contains(next), "{}", problem.remedy);
        }
        let nested = io::Error::other(io::Error::other(AlertReceived(AlertDescription::CertificateExpired)));
        let tls: &rustls::Error = find(&nested).unwrap();
        assert_eq!(tls_problem("https://a", tls).code, FaultCode::NotAuthenticated);
    }

    #[test]
    fn a_wrong_clock_is_no_missing_login() {
        for reason in [CertificateError::Expired, CertificateError::NotValidYet] {
            let problem = tls_problem("https://a", &InvalidCertificate(reason));
            assert_eq!((problem.code, problem.exit_code()), (FaultCode::ClockSkew, 4));
            let remedy = &problem.remedy;
            assert!(remedy.contains("clock") && !remedy.contains("log in"), "{remedy}");
        }
    }

    proptest! {
        #[test]
        fn any_reply_makes_a_problem(status in 400u16..600, body in prop::collection::vec(any::<u8>(),
            0..100)) {
            let problem = reply_problem(status, &body);
            prop_assert!(problem.exit_code() != 0);
        }
    }
}
