//! Retries of requests that do the same twice: how often, after which answers, and after what wait. A server
//! that names a time (`Retry-After`, RFC 9110, section 10.2.3) is obeyed within bounds.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use longhaul_model::Backoff;

/// How often a request is sent, and after what it is sent again.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The first one counts.
    pub tries: u32,
    /// Statuses that tell of passing trouble.
    pub statuses: &'static [u16],
    /// Nobody could be connected to: the request was not sent.
    pub unreachable: bool,
    /// The connection broke: nobody knows what became of the request.
    pub lost: bool,
    /// No answer came in time: nobody knows that either.
    pub timed_out: bool,
    pub backoff: Backoff,
    /// The longest time that a server may ask for; a longer one counts as this.
    pub retry_after_max: Duration,
}

impl RetryPolicy {
    pub fn is_transient(&self, status: StatusCode) -> bool {
        self.statuses.contains(&status.as_u16())
    }

    /// The wait after so many failed tries; `asked` is what the server said, `random` is in 0..1.
    pub fn delay(&self, tries: u32, asked: Option<Duration>, random: f64) -> Duration {
        let asked = asked.unwrap_or_default().min(self.retry_after_max);
        self.backoff.delay(tries, random).max(asked)
    }
}

/// The seconds that an answer asks to wait. Dates, the other form, are rare and need two clocks that agree:
/// ignored.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use longhaul_model::Jitter;

    #[test]
    fn a_server_is_obeyed_within_bounds() {
        let policy = RetryPolicy {
            tries: 3,
            statuses: &[429, 503],
            unreachable: true,
            lost: false,
            timed_out: false,
            backoff: Backoff {
                first: Duration::from_secs(1),
                max: Duration::from_secs(60),
                jitter: Jitter::None,
            },
            retry_after_max: Duration::from_secs(10),
        };
        assert!(policy.is_transient(StatusCode::SERVICE_UNAVAILABLE));
        assert!(!policy.is_transient(StatusCode::NOT_FOUND));
        let mut headers = HeaderMap::new();
        assert_eq!(policy.delay(2, retry_after(&headers), 0.0).as_secs(), 2);
        for (text, seconds) in
            [("5", 5), (" 1 ", 2), ("86400", 10), ("Fri, 31 Dec 1999 23:59:59 GMT", 2), ("-1", 2)]
        {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            assert_eq!(policy.delay(2, retry_after(&headers), 0.0).as_secs(), seconds, "{text}");
        }
    }
}
