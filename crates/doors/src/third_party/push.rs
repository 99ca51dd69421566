//! Push mode: the file is sent to the remote side, whose copy is then compared by size and digest.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use longhaul_model::Algorithm;
use longhaul_outbound::expect_continue;
use longhaul_storage::SourceFile;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::CopyOptions;
use super::client::{Remote, RequestBody};
use super::error::{Cleanup, CopyError, Mismatch};
use super::markers::Progress;
use crate::body::{FileBody, StreamCheck};
use crate::digests::{Want, claimed};
use crate::get::digests;
use crate::request::RequestPath;
use crate::serve::DoorContext;

/// A server that says neither "continue" nor anything else by then does not know the question.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn push(
    (shared, place, may_go_on): (Arc<DoorContext>, RequestPath, StreamCheck),
    file: Arc<dyn SourceFile>,
    remote: Remote,
    terms: CopyOptions,
    overwrite: bool,
    (progress, turn): (Progress, OwnedSemaphorePermit),
) -> Result<(), CopyError> {
    let identity = file.identity();
    let mut more = vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
    if !overwrite {
        more.push((header::IF_NONE_MATCH, HeaderValue::from_static("*")));
    }
    let turn = Arc::new(turn);
    let heard = remote
        .send(Method::PUT, &more, |request| {
            let (buffers, range) = (shared.buffers.clone(), (0, identity.size));
            let body = FileBody::new(file.clone(), buffers, range, turn.clone(), may_go_on.clone());
            send_when_wanted(request, body, progress.clone());
        })
        .await?;
    if !heard.response.status().is_success() {
        return Err(remote.refused(heard).await);
    }
    let etag = heard.response.headers().get(header::ETAG).cloned();
    compare(&shared, &place, &identity, &remote, terms, etag).await?;
    let path = longhaul_model::units::printable(&place.path);
    tracing::info!(path, bytes = progress.bytes(), "third-party copy pushed");
    Ok(())
}

/// What the other side has now. A file that is wrong is removed only if it says to be the version that was
/// sent.
async fn compare(
    shared: &Arc<DoorContext>,
    place: &RequestPath,
    identity: &longhaul_storage::Identity,
    remote: &Remote,
    terms: CopyOptions,
    etag: Option<HeaderValue>,
) -> Result<(), CopyError> {
    let wants = [
        (
            HeaderName::from_static("want-digest"),
            HeaderValue::from_static("adler32, crc32c;q=0.9, md5;q=0.3"),
        ),
        (HeaderName::from_static("want-repr-digest"), HeaderValue::from_static("adler=10, sha-256=5, md5=3")),
    ];
    let heard = remote.send(Method::HEAD, &wants, |_| {}).await?;
    if !heard.response.status().is_success() {
        if terms.must_verify {
            return Err(remote.refused(heard).await);
        }
        // A right to write does not imply one to read.
        return Ok(());
    }
    let headers = heard.response.headers();
    let theirs = claimed(headers)?;
    let length: Option<u64> =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut wrong = length
        .filter(|length| *length != identity.size)
        .map(|theirs| Mismatch::Size { theirs, sent: identity.size });
    let algorithm: Option<Algorithm> = theirs.algorithms().next();
    if let (None, Some(algorithm)) = (&wrong, algorithm) {
        let want = Want { old: Some(algorithm), new: None };
        let ours = digests(shared, place, identity, want).await?;
        wrong = ours.contradiction(&theirs).map(|(sent, theirs)| Mismatch::Digest { sent, theirs });
    }
    let Some(mismatch) = wrong else {
        return match algorithm {
            None if terms.must_verify => Err(CopyError::TargetWithoutDigest),
            _ => Ok(()),
        };
    };
    let Some(etag) = etag else {
        return Err(CopyError::Mismatch { mismatch, cleanup: Cleanup::NotTried });
    };
    let removed = remote.send(Method::DELETE, &[(header::IF_MATCH, etag)], |_| {}).await;
    let is_removed = removed.is_ok_and(|heard| heard.response.status().is_success());
    let cleanup = if is_removed { Cleanup::Removed } else { Cleanup::Failed };
    Err(CopyError::Mismatch { mismatch, cleanup })
}

fn send_when_wanted(request: &mut Request<RequestBody>, body: FileBody, progress: Progress) {
    let (open, mut opened) = watch::channel(false);
    let waits = expect_continue(request, body.left(), move || {
        open.send_replace(true);
    });
    let gate = async move {
        let _ = tokio::time::timeout(CONTINUE_TIMEOUT, async {
            // The other end goes with the request; then there is nothing to wait for.
            if opened.wait_for(|open| *open).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
        .await;
    };
    let gate: Option<Pin<Box<dyn Future<Output = ()> + Send>>> =
        if waits { Some(Box::pin(gate)) } else { None };
    *request.body_mut() = GatedBody { gate, body, progress }.boxed_unsync();
}

/// A file that waits until it is asked for.
struct GatedBody {
    gate: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    body: FileBody,
    progress: Progress,
}

impl hyper::body::Body for GatedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(gate) = &mut self.gate {
            if gate.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.gate = None;
        }
        let piece = self.body.poll(context);
        if let Poll::Ready(Some(Ok(bytes))) = &piece {
            self.progress.add(bytes.len() as u64);
        }
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.left())
    }
}
