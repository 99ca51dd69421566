//! Macaroons from storages: a client certificate cannot be passed on, so the storage is asked for a token for
//! one file, one direction and the time of one copy, which the storage at the other end shows. dCache,
//! XRootD, StoRM and DPM issue them.
//!
//! A storage that issues none is not asked again for a while, and the copy goes on without.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::exchange::Payload;
use crate::failure::Failure;
use crate::order::{Credential, Mode};
use crate::remote::Remote;
use crate::webdav::Resource;

const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Bytes of a macaroon: what fits into a header anywhere.
const MACAROON_BYTES_MAX: usize = 8 << 10;
/// A copy may wait at the storage before it begins; longer ones than a day are not given anywhere.
const VALIDITY_MARGIN: Duration = Duration::from_secs(600);
const VALIDITY_MAX: Duration = Duration::from_secs(86_400);

#[derive(Deserialize)]
struct MacaroonReply {
    macaroon: String,
}

impl Remote {
    /// For the active side of a copy, to be shown to the passive one, which this client must reach. None
    /// where a certificate is not the credential, or nothing is given: whether the copy can do without, it
    /// tells itself.
    pub(crate) async fn macaroon(
        &self,
        mode: Mode,
        source: Resource<'_>,
        target: Resource<'_>,
        lasts: Duration,
    ) -> Option<Zeroizing<String>> {
        let (active, passive) = match mode {
            Mode::Pull => (target, source),
            Mode::Push => (source, target),
            Mode::Stream => return None,
        };
        let certified = matches!(passive.credential, Credential::Certificate { .. });
        if !active.url.is_secure() || !certified {
            return None;
        }
        self.file_macaroon(mode, passive, lasts).await
    }

    /// For one file of a storage, to be shown by whoever copies it. None where nothing is given, or not over
    /// TLS.
    pub(crate) async fn file_macaroon(
        &self,
        mode: Mode,
        file: Resource<'_>,
        lasts: Duration,
    ) -> Option<Zeroizing<String>> {
        let origin = file.url.origin().to_string();
        if !file.url.is_secure() || self.without_macaroons.contains(&origin) {
            return None;
        }
        match self.ask_macaroon(mode, file, lasts).await {
            Ok(Some(given)) => Some(given),
            Ok(None) => {
                self.without_macaroons.add(origin);
                None
            }
            Err(failure) => {
                tracing::debug!(storage = %file.url.authority(), "no macaroon: {}", failure.text);
                None
            }
        }
    }

    async fn ask_macaroon(
        &self,
        mode: Mode,
        file: Resource<'_>,
        lasts: Duration,
    ) -> Result<Option<Zeroizing<String>>, Failure> {
        let mut call = self.call(Method::POST, file);
        call = call
            .header("content-type", "application/macaroon-request")?
            .header("accept", "application/json")?;
        call.payload = Payload::Bytes(Bytes::from(request_document(mode, lasts)));
        let answer = self.exchange.send(call).await?;
        let status = answer.status;
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
            return Err(answer.into_failure("POST").await);
        }
        let body = answer.bytes(ANSWER_BYTES_MAX, self.config.times.answer).await;
        if !status.is_success() {
            return Ok(None);
        }
        let body = Zeroizing::new(body?.to_vec());
        Ok(parse_reply(&body))
    }
}

/// The request for a macaroon. Validity is an ISO 8601 duration in whole minutes, which all servers read.
fn request_document(mode: Mode, lasts: Duration) -> String {
    // What FTS asks for, so what storages are set up to give: where it is written, also to replace.
    let activities = match mode {
        Mode::Pull | Mode::Stream => "DOWNLOAD,LIST",
        Mode::Push => "MANAGE,UPLOAD,DELETE,LIST",
    };
    let minutes = lasts.saturating_add(VALIDITY_MARGIN).min(VALIDITY_MAX).as_secs().div_ceil(60);
    format!(r#"{{"caveats":["activity:{activities}"],"validity":"PT{minutes}M"}}"#)
}

/// XRootD does not say that it is JSON, so what it looks like decides.
fn parse_reply(body: &[u8]) -> Option<Zeroizing<String>> {
    let MacaroonReply { macaroon } = serde_json::from_slice(body).ok()?;
    let macaroon = Zeroizing::new(macaroon);
    fits_header(&macaroon).then_some(macaroon)
}

/// Whether a token can be shown in a header.
pub(crate) fn fits_header(token: &str) -> bool {
    !token.is_empty()
        && token.len() <= MACAROON_BYTES_MAX
        && token.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wish_is_for_one_direction_and_some_time() {
        let pull = request_document(Mode::Pull, Duration::from_secs(3_601));
        assert_eq!(pull, r#"{"caveats":["activity:DOWNLOAD,LIST"],"validity":"PT71M"}"#);
        let push = request_document(Mode::Push, Duration::MAX);
        assert_eq!(push, r#"{"caveats":["activity:MANAGE,UPLOAD,DELETE,LIST"],"validity":"PT1440M"}"#);
    }

    #[test]
    fn answers_of_each_kind_are_read() {
        let dcache =
            r#"{"macaroon":"MDAx","uri":{"target":"https://a/b","baseWithMacaroon":"https://a?authz=MDAx"}}"#;
        for (answer, macaroon) in [
            (dcache, Some("MDAx")),
            (r#"{"macaroon":"MDAx", "expires_in":60}"#, Some("MDAx")),
            (r#"{"macaroon":"a b"}"#, None),
            (r#"{"macaroon":"a\r\nb"}"#, None),
            (r#"{"macaroon":""}"#, None),
            (r#"{"macaroon":7}"#, None),
            (r#"{"other":"x"}"#, None),
            ("<html>", None),
            ("", None),
        ] {
            let read = parse_reply(answer.as_bytes());
            assert_eq!(read.as_ref().map(|text| text.as_str()), macaroon, "{answer}");
        }
        let long = format!(r#"{{"macaroon":"{}"}}"#, "x".repeat(MACAROON_BYTES_MAX + 1));
        assert!(parse_reply(long.as_bytes()).is_none());
    }

    proptest! {
        #[test]
        fn no_answer_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_reply(&bytes);
        }
    }
}
