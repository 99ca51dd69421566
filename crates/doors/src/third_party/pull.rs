//! Pull mode: the file is fetched from the remote side, compared with its digests, and committed.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use longhaul_model::DigestSet;
use longhaul_storage::Identity;

use super::CopyOptions;
use super::client::{Remote, RemoteResponse};
use super::error::CopyError;
use super::markers::Progress;
use crate::answer::{Outcome, Refusal};
use crate::digests::claimed;
use crate::put::{Batch, Incoming, may_replace};
use crate::request::RequestPath;
use crate::rights::GrantedRights;
use crate::serve::{DoorContext, blocking};

/// All that can be computed here, the cheap ones first.
const WANT_DIGEST: &str = "adler32, crc32c;q=0.9, sha-256;q=0.5, md5;q=0.3";
const WANT_REPR_DIGEST: &str = "adler=10, crc32c=9, sha-256=5, md5=3";

/// Size, digests and version of the source, as the remote side reports them.
#[derive(Default)]
struct SourceInfo {
    size: Option<u64>,
    digests: DigestSet,
    etag: Option<HeaderValue>,
}

pub(super) async fn pull(
    shared: Arc<DoorContext>,
    place: RequestPath,
    remote: Remote,
    terms: CopyOptions,
    (found, overwrite, granted): (Option<Identity>, bool, GrantedRights),
    progress: Progress,
) -> Result<(), CopyError> {
    let before = head_source(&remote).await?;
    let mut more = digest_requests();
    more.extend(before.etag.clone().map(|etag| (header::IF_MATCH, etag)));
    let heard = remote.send(Method::GET, &more, |_| {}).await?;
    if heard.url.path().ends_with('/') {
        return Err(CopyError::SourceIsDirectory);
    }
    if heard.response.status() != http::StatusCode::OK {
        return Err(remote.refused(heard).await);
    }
    let now = source_info(heard.response.headers())?;
    let mut digests = before.digests;
    if let Some((first, then)) = digests.contradiction(&now.digests) {
        return Err(CopyError::DigestChanged { first, then });
    }
    now.digests.iter().for_each(|digest| digests.insert(*digest));
    if digests.is_empty() && terms.must_verify {
        return Err(CopyError::SourceWithoutDigest);
    }
    let size = match (before.size, now.size) {
        (Some(first), Some(then)) if first != then => {
            return Err(CopyError::SizeChanged { first, then });
        }
        (before, now) => now.or(before),
    };
    let verified = !digests.is_empty();
    let mut incoming = {
        let (shared, place) = (shared.clone(), place.clone());
        blocking(move || Incoming::begin(&shared, &place, size, digests, found)).await?
    };
    receive(&remote, heard, &mut incoming, size, &progress, || shared.check_token(&granted)).await?;
    let at = place.path.clone();
    let finish = move || {
        shared.check_token(&granted)?;
        incoming.finish(|found| match found {
            Some(_) if !overwrite => Err(Refusal::bad("something came to the destination meanwhile")),
            found => may_replace(&granted, &at, found),
        })
    };
    blocking(finish).await?;
    let path = longhaul_model::units::printable(&place.path);
    tracing::info!(path, bytes = progress.bytes(), verified, "third-party copy pulled");
    Ok(())
}

async fn receive(
    remote: &Remote,
    heard: RemoteResponse,
    incoming: &mut Incoming,
    size: Option<u64>,
    progress: &Progress,
    may_go_on: impl Fn() -> Outcome<()>,
) -> Result<(), CopyError> {
    let mut body = heard.response.into_body();
    let mut batch = Batch::default();
    while let Some(bytes) = remote.next(&mut body).await? {
        may_go_on()?;
        progress.add(bytes.len() as u64);
        if size.is_some_and(|size| progress.bytes() > size) {
            return Err(CopyError::TooManyBytes);
        }
        batch.add(bytes);
        if batch.is_full() {
            incoming.take(std::mem::take(&mut batch)).await?;
        }
    }
    incoming.take(batch).await?;
    incoming.written().await?;
    match size {
        Some(size) if size != incoming.taken => Err(CopyError::Truncated { received: incoming.taken, size }),
        _ => Ok(()),
    }
}

/// Some servers have digests on HEAD only. One that knows no HEAD may still send the file.
async fn head_source(remote: &Remote) -> Result<SourceInfo, CopyError> {
    let heard = remote.send(Method::HEAD, &digest_requests(), |_| {}).await?;
    match heard.response.status().as_u16() {
        200 => source_info(heard.response.headers()),
        405 | 501 => Ok(SourceInfo::default()),
        _ => Err(remote.refused(heard).await),
    }
}

fn digest_requests() -> Vec<(HeaderName, HeaderValue)> {
    vec![
        (HeaderName::from_static("want-digest"), HeaderValue::from_static(WANT_DIGEST)),
        (HeaderName::from_static("want-repr-digest"), HeaderValue::from_static(WANT_REPR_DIGEST)),
        (header::ACCEPT_ENCODING, HeaderValue::from_static("identity")),
    ]
}

fn source_info(headers: &HeaderMap) -> Result<SourceInfo, CopyError> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err(CopyError::SourceEncoded);
    }
    let size = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let etag = headers.get(header::ETAG).filter(|etag| etag.as_bytes().starts_with(b"\"")).cloned();
    Ok(SourceInfo { size, digests: claimed(headers)?, etag })
}
