//! HTTP calls to providers, bounded in time and size. Answers are interpreted by the dialogue.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http::header::{DATE, USER_AGENT};
use http_body_util::{BodyExt, Full, Limited};
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_outbound::{self as outbound, AddressPolicy, HttpClient};
use longhaul_security::explain_io;
use rustls::ClientConfig;

use super::{Call, HttpAnswer};

/// From connecting to the last byte: some providers never answer some questions.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);
/// A list of a thousand reservations has about this.
const ANSWER_BYTES_MAX: usize = 4 << 20;

pub(crate) type Trust = Arc<ClientConfig>;

#[derive(Clone)]
pub(crate) struct Caller {
    http: HttpClient<Full<Bytes>>,
    within: Duration,
}

impl Caller {
    /// `within` none is the usual time an answer may take.
    pub(crate) fn new(tls: Trust, within: Option<Duration>) -> Caller {
        Caller {
            http: outbound::client(tls, AddressPolicy::Anywhere),
            within: within.unwrap_or(ANSWER_TIME_MAX),
        }
    }

    pub(crate) async fn call(&self, call: Call) -> Result<HttpAnswer, Fault> {
        let shown = call.url.split('?').next().unwrap_or_default().to_owned();
        let answer = tokio::time::timeout(self.within, self.answer(call, &shown)).await;
        answer.unwrap_or_else(|_| {
            let detail = format!("{shown}: no answer within {} s", self.within.as_secs_f64());
            Err(Fault::new(FaultCode::Stalled, detail))
        })
    }

    async fn answer(&self, call: Call, shown: &str) -> Result<HttpAnswer, Fault> {
        let malformed = |error: String| Fault::new(FaultCode::BadRequest, format!("{shown}: {error}"));
        let uri = call.url.parse::<Uri>().map_err(|error| malformed(error.to_string()).with_source(error))?;
        let mut request = http::Request::builder()
            .method(call.method)
            .uri(uri)
            .header(USER_AGENT, concat!("longhaul/", env!("CARGO_PKG_VERSION")));
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(Bytes::from(call.body)))
            .map_err(|error| malformed(error.to_string()).with_source(error))?;
        let reply = self.http.request(request).await.map_err(|error| broken(shown, error))?;
        let status = reply.status().as_u16();
        let date = reply.headers().get(DATE).and_then(|date| date.to_str().ok()).and_then(read_date);
        let body = Limited::new(reply.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| {
            let detail =
                format!("{shown}: the answer cannot be read: {error} (at most {ANSWER_BYTES_MAX} bytes are)");
            Fault::new(FaultCode::ProtocolError, detail)
        })?;
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Ok(HttpAnswer { status, date, body })
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that is still sent.
fn read_date(text: &str) -> Option<Timestamp> {
    let at = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(Timestamp(at.timestamp().as_microsecond()))
}

fn broken(shown: &str, error: hyper_util::client::legacy::Error) -> Fault {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    let mut found = None;
    while let Some(inner) = cause {
        let io = inner.downcast_ref::<std::io::Error>();
        found = io.map(explain_io).or(found);
        // An error inside an `io::Error` is not its source.
        cause = match io.and_then(|io| io.get_ref()) {
            Some(inside) => Some(inside),
            None => inner.source(),
        };
    }
    match found {
        Some(fault) => Fault::new(fault.code, format!("{shown}: {}", fault.detail)).with_source(error),
        None => Fault::new(FaultCode::Unreachable, format!("{shown}: {error}")).with_source(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_or_left() {
        assert_eq!(read_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Timestamp::from_seconds(784_111_777)));
        assert_eq!(read_date("yesterday"), None);
    }
}
