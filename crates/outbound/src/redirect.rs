//! Redirects and credentials by rule (RFC 9110, sections 15.4 and 11.6.2): how often and when a redirect is
//! followed, and to whom a credential goes.

use std::fmt;

use http::StatusCode;

/// Redirects of one request.
pub const REDIRECTS_MAX: usize = 8;

/// Whether a status sends the same request elsewhere.
pub fn keeps_method(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 307 | 308)
}

/// Scheme, host and port of a URL: who answers there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub is_secure: bool,
    /// In lower case, without brackets.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.is_secure { "https" } else { "http" }, self.host, self.port)
    }
}

/// The hosts that a credential may be sent to: the origin it was given for, and hosts that the configuration
/// names (`pool.example.org`, or `.example.org` for all below), over TLS.
#[derive(Clone, Debug)]
pub struct CredentialScope<'a> {
    pub origin: &'a Origin,
    pub hosts: &'a [String],
}

impl CredentialScope<'_> {
    pub fn contains(&self, other: &Origin) -> bool {
        let is_listed = |host: &String| match host.strip_prefix('.') {
            Some(_) => other.host.ends_with(host.as_str()),
            None => other.host == *host,
        };
        self.origin == other || (other.is_secure && self.hosts.iter().any(is_listed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(is_secure: bool, host: &str, port: u16) -> Origin {
        Origin { is_secure, host: host.into(), port }
    }

    #[test]
    fn credentials_go_to_their_origin_and_to_listed_hosts() {
        let own = origin(true, "a.example", 443);
        let hosts = ["pool.example".to_owned(), ".disk.example".to_owned()];
        let scope = CredentialScope { origin: &own, hosts: &hosts };
        for (other, may) in [
            (origin(true, "a.example", 443), true),
            (origin(true, "a.example", 8443), false),
            (origin(false, "a.example", 443), false),
            (origin(true, "pool.example", 1094), true),
            (origin(true, "x.pool.example", 443), false),
            (origin(true, "x.disk.example", 443), true),
            (origin(true, "disk.example", 443), false),
            (origin(true, "xdisk.example", 443), false),
            (origin(false, "pool.example", 80), false),
        ] {
            assert_eq!(scope.contains(&other), may, "{other:?}");
        }
    }

    #[test]
    fn only_those_that_keep_the_method_are_followed_for_all() {
        let follows = |status| keeps_method(StatusCode::from_u16(status).unwrap());
        assert!([301, 302, 307, 308].into_iter().all(follows));
        assert!(![200, 300, 303, 304, 401].into_iter().any(follows));
    }
}
