//! Protection of plain HTTP on a loopback address against DNS rebinding and cross-origin requests: the check
//! of `Host` and `Origin` (RFC 9110, RFC 6454).
//!
//! Without it a page of any web site could have the visitor's browser read and steer the service on the same
//! machine, either across origins or by rebinding its own name to 127.0.0.1.

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};

/// The `Host` must be one of `allowed` (`host:port`), and an `Origin`, if there is one, must be `http://` or
/// `https://` and one of them.
pub fn check_origin(host: Option<&str>, origin: Option<&str>, allowed: &[String]) -> Result<(), Fault> {
    let known = |name: &str| allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
    let refuse = |header: &str, value: &str| {
        let shown: String = value.chars().take(80).collect();
        let detail = format!("{header} is \"{}\"; allowed: {}", printable(&shown), allowed.join(", "));
        Err(Fault::new(FaultCode::NotAllowed, detail))
    };
    match host {
        Some(host) if known(host) => {}
        other => return refuse("Host", other.unwrap_or("")),
    }
    let Some(origin) = origin else { return Ok(()) };
    let name = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    match name {
        Some(name) if known(name) => Ok(()),
        _ => refuse("Origin", origin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_pages_get_through() {
        let allowed = ["127.0.0.1:8080".to_owned(), "localhost:8080".to_owned()];
        let check = |host, origin| check_origin(host, origin, &allowed);
        assert!(check(Some("127.0.0.1:8080"), None).is_ok());
        assert!(check(Some("LOCALHOST:8080"), Some("http://localhost:8080")).is_ok());
        for (host, origin) in [
            (None, None),
            (Some("rebound.example:8080"), None),
            (Some("127.0.0.1"), None),
            (Some("127.0.0.1:8080"), Some("https://evil.example")),
            (Some("127.0.0.1:8080"), Some("null")),
            (Some("127.0.0.1:8080"), Some("")),
            (Some("127.0.0.1:8080"), Some("http://127.0.0.1:8080.evil.example")),
            (Some("127.0.0.1:8080"), Some("ftp://127.0.0.1:8080")),
        ] {
            let fault = check(host, origin).unwrap_err();
            assert_eq!(fault.code, FaultCode::NotAllowed, "{host:?} {origin:?}");
        }
        assert!(!check(Some("a\x1b[2J"), None).unwrap_err().detail.contains('\x1b'));
    }
}
