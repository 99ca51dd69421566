//! Third-party copies (HTTP-TPC): one storage is asked to pull from, or to push to, the other, and reports
//! progress.
//!
//! The status line says nothing about success: only the last line of the body does, and a body without one is
//! a failure. Closing the connection cancels the copy.

use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::exchange::{TRANSFER_AUTHORIZATION, bearer, now};
use crate::failure::{Failure, Kind, sanitized};
use crate::markers::{Markers, Outcome};
use crate::order::{Credential, Mode};
use crate::remote::Remote;
use crate::s3::presigned;
use crate::stream::{Progress, SEVERAL_BYTES_MIN};
use crate::webdav::{Resource, method};

/// Options of a third-party copy.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// How long a URL has to be good that opens a file of S3, or a macaroon.
    pub(crate) lasts: Duration,
    pub(crate) overwrite: bool,
    pub(crate) streams: u16,
    pub(crate) size: u64,
    pub(crate) scitag: Option<u32>,
}

impl Remote {
    /// Asks the active storage to copy; this client must be one that reaches it. `macaroon`: what the passive
    /// storage has given for this copy, see [`Remote::macaroon`].
    ///
    /// # Panics
    /// If the mode is none of the two that let storages copy.
    pub(crate) async fn third_party(
        &self,
        mode: Mode,
        source: Resource<'_>,
        target: Resource<'_>,
        macaroon: Option<Zeroizing<String>>,
        terms: Terms,
        progress: Progress<'_>,
    ) -> Result<(), Failure> {
        let (active, passive, header, meant) = match mode {
            Mode::Pull => (target, source, "source", Method::GET),
            Mode::Push => (source, target, "destination", Method::PUT),
            Mode::Stream => unreachable!("streams go through us"),
        };
        let other = match passive.credential {
            // Good for this file and this direction; the keys stay here.
            Credential::S3(keys) => presigned(keys, &meant, passive.url, terms.lasts, now()).whole(),
            _ => passive.url.whole(),
        };
        let mut call = self.call(method("COPY"), active);
        call = call
            .header(header, &other)?
            .header("overwrite", if terms.overwrite { "T" } else { "F" })?
            .header("credential", "none")?
            // We compare ourselves, and a source without digests is no reason to refuse.
            .header("requirechecksumverification", "false")?
            .header("accept", "text/perf-marker-stream, text/plain")?;
        // XRootD fails over an empty file when it is asked for several; and for several it asks `HEAD` first,
        // for which a URL that is signed for `GET` is no good.
        let several = mode == Mode::Pull && terms.streams > 1 && !passive.url.is_s3();
        if several && terms.size >= SEVERAL_BYTES_MIN {
            call = call.header("x-number-of-streams", &terms.streams.to_string())?;
        }
        // The active side passes it on to the other.
        if let Some(scitag) = terms.scitag {
            call = call.header("scitag", &scitag.to_string())?;
        }
        if let Some(token) = passive_token(active, passive).await?.or(macaroon) {
            call.headers.insert(TRANSFER_AUTHORIZATION, bearer(&token)?);
        }
        let answer = self.exchange.send(call).await?;
        if mode == Mode::Pull && answer.status == StatusCode::NOT_FOUND {
            answer.finish().await;
            // What is missing at the source is told in the answer's body. This one takes it for a copy of
            // what is to be made.
            let text = format!("COPY {} (pull): 404 Not Found: it pulls nothing", active.url);
            return Err(Failure::new(Kind::Status(StatusCode::METHOD_NOT_ALLOWED), text));
        }
        let mut answer = answer.ok("COPY").await?;
        // A server that copies within itself has nothing more to say (RFC 4918, section 9.8.5).
        let within_one = active.url.origin() == passive.url.origin()
            && matches!(answer.status, StatusCode::CREATED | StatusCode::NO_CONTENT);
        let mut is_silent = true;
        let times = self.config.times;
        let mut markers = Markers::default();
        let mut last = (0, Instant::now());
        while let Some(data) = answer.data(times.stall).await? {
            is_silent &= data.is_empty();
            markers.feed(&data);
            if markers.outcome().is_some() {
                break;
            }
            let moved = markers.bytes();
            if moved != last.0 {
                last = (moved, Instant::now());
                progress(moved.min(terms.size));
            }
            // All bytes are there, but the storage may still compute a checksum.
            let patience = if moved >= terms.size { times.checksum } else { times.progress };
            if last.1.elapsed() >= patience {
                let text = format!(
                    "COPY {}: Operation timed out: {moved} of {} bytes for {} s",
                    active.url,
                    terms.size,
                    patience.as_secs()
                );
                return Err(Failure::new(Kind::TimedOut, text));
            }
        }
        let url = active.url;
        let blocks = markers.blocks();
        match markers.end() {
            Some(Outcome::Success) => {
                answer.finish().await;
                Ok(())
            }
            Some(Outcome::Failure { text, status }) => {
                answer.finish().await;
                let status = status.and_then(|status| StatusCode::from_u16(status).ok());
                let kind = status.map_or(Kind::Told, Kind::Status);
                Err(Failure::new(kind, format!("COPY {url} ({mode}): {}", sanitized(&text))))
            }
            None if within_one && is_silent => Ok(()),
            None => {
                let text = format!(
                    "COPY {url} ({mode}): it ended after {blocks} markers without saying how it went"
                );
                Err(Failure::new(Kind::Lost, text))
            }
        }
    }
}

/// The token that the active party shall show. It is sent, and shown, over TLS only.
async fn passive_token(
    active: Resource<'_>,
    passive: Resource<'_>,
) -> Result<Option<Zeroizing<String>>, Failure> {
    let secure = active.url.is_secure() && passive.url.is_secure();
    match passive.credential {
        Credential::Bearer(token) if secure => Ok(Some(token.clone())),
        Credential::Refreshing(token) if secure => Ok(Some(token.current().await)),
        Credential::Bearer(_) | Credential::Refreshing(_) => {
            let text = format!("{}: a token is handed on over TLS only: use https or davs", passive.url);
            Err(Failure::new(Kind::Refused, text))
        }
        Credential::None | Credential::Certificate { .. } | Credential::S3(_) => Ok(None),
    }
}

/// Whether the other direction, or we, may succeed where this failed: only what lies between the two, or what
/// one of them does not do. Never what is the same for all: a file that is not there, one that is damaged, a
/// full target.
pub(crate) fn another_way_may_help(failure: &Failure) -> bool {
    match failure.kind {
        Kind::Status(status) => matches!(status.as_u16(), 400 | 401 | 403 | 405 | 501 | 502 | 504),
        Kind::Refused => false,
        Kind::Told => {
            let text = failure.text.to_ascii_lowercase();
            let between = [
                "connect",
                "resolve",
                "refused",
                "timed out",
                "timeout",
                "unreachable",
                "tls",
                "ssl",
                "certificate",
                "no route",
                "not supported",
                "unsupported",
                "credential",
                "authoriz",
                "permission",
            ];
            between.iter().any(|word| text.contains(word)) && !text.contains("checksum")
        }
        // Nobody knows what became of it, so its name is left alone and the other way takes its own.
        Kind::TimedOut | Kind::Lost => true,
        // Who made something else of it than a copy between two servers.
        Kind::NotThere => true,
        _ => false,
    }
}
