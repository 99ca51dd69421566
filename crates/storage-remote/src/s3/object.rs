//! Requests about one S3 object: PUT, and the operations of a multipart upload.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use longhaul_model::hex;
use longhaul_model::{Algorithm, Digest, Hasher};
use longhaul_outbound::RetryPolicy;

use super::answer::{self, BYTES_MAX, ListedPart};
use crate::checksum::{Checksum, read_value};
use crate::config::Times;
use crate::exchange::{Answer, Call, Exchange, Payload};
use crate::failure::{Failure, Kind};
use crate::order::Credential;
use crate::remote::Remote;
use crate::retry::{BACKOFF, RETRY_AFTER_MAX};
use crate::upload::Upload;
use crate::url::RemoteUrl;
use crate::webdav::Resource;

/// Statuses of passing trouble.
const TRANSIENT_STATUSES: &[u16] = &[408, 429, 500, 502, 503, 504];
/// The slowest upload rate that is still waited for.
const SLOWEST_BYTES_PER_S: u64 = 64 << 10;
/// Pages of a list of parts: ten thousand parts, a thousand a page.
const LISTS_MAX: usize = 16;

pub(crate) struct Object {
    exchange: Arc<Exchange>,
    url: RemoteUrl,
    credential: Credential,
    times: Times,
}

/// An uploaded part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(super) number: u32,
    pub(super) etag: String,
    /// The storage's MD5 equals ours.
    pub(super) confirmed: bool,
}

pub(crate) enum UploadEnd {
    Done,
    /// The upload no longer exists.
    Gone,
}

impl Remote {
    pub(crate) fn object(&self, place: Resource<'_>) -> Object {
        Object {
            exchange: self.exchange.clone(),
            url: place.url.clone(),
            credential: place.credential.clone(),
            times: self.config.times,
        }
    }
}

/// When a request is sent again: after passing trouble, and, if it may, when its outcome is unknown.
pub(super) fn retry_policy(repeats: bool) -> RetryPolicy {
    RetryPolicy {
        tries: 5,
        statuses: TRANSIENT_STATUSES,
        unreachable: true,
        lost: repeats,
        timed_out: repeats,
        backoff: BACKOFF,
        retry_after_max: RETRY_AFTER_MAX,
    }
}

/// One request, which can be sent several times.
struct ObjectRequest<'a> {
    what: &'a str,
    method: Method,
    query: &'a [(&'a str, &'a str)],
    headers: &'a [(&'static str, &'a str)],
    body: Option<Bytes>,
    /// Whether it may be sent again when its outcome is unknown.
    repeats: bool,
}

impl Object {
    /// Any answer that is no passing trouble.
    async fn send(&self, ask: &ObjectRequest<'_>) -> Result<Answer, Failure> {
        let url = if ask.query.is_empty() { self.url.clone() } else { self.url.asking(ask.query) };
        let sent = ask.body.as_ref().map_or(0, |body| body.len() as u64);
        let within = self.times.progress + Duration::from_secs(sent / SLOWEST_BYTES_PER_S);
        let policy = retry_policy(ask.repeats);
        let call = || {
            let mut call = Call::new(ask.method.clone(), &url, &self.credential, within);
            for (name, value) in ask.headers {
                call = call.header(name, value)?;
            }
            call.payload = ask.body.clone().map_or(Payload::None, Payload::Bytes);
            Ok(call)
        };
        let answer = self.exchange.send_with_retries(&policy, ask.what, call).await?;
        if policy.is_transient(answer.status) { Err(answer.into_failure(ask.what).await) } else { Ok(answer) }
    }

    async fn document<T>(
        &self,
        what: &str,
        answer: Answer,
        read: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let document = answer.bytes(BYTES_MAX, self.times.checksum).await?;
        read(&document)
            .map_err(|why| Failure::new(Kind::Malformed, format!("{what} {}: the answer: {why}", self.url)))
    }

    /// All of it at once; says whether the storage has confirmed what it got.
    pub(crate) async fn put(&self, body: Bytes, replaces: bool) -> Result<bool, Failure> {
        let md5 = md5(&body);
        let sum = STANDARD.encode(md5.value());
        let plain = [("content-md5", sum.as_str()), ("content-type", "application/octet-stream")];
        let mut ask = ObjectRequest {
            what: "PUT",
            method: Method::PUT,
            query: &[],
            headers: &[plain[0], plain[1], ("if-none-match", "*")],
            body: Some(body),
            repeats: replaces,
        };
        if replaces {
            ask.headers = &plain;
        }
        let mut answer = self.send(&ask).await?;
        if answer.status == StatusCode::NOT_IMPLEMENTED && !replaces {
            answer.finish().await;
            ask.headers = &plain;
            answer = self.send(&ask).await?;
        }
        let answer = self.placed(answer, "PUT").await?;
        let confirmed = tells(&answer.headers, &md5);
        answer.finish().await;
        Ok(confirmed)
    }

    /// The name of the upload that begins.
    pub(crate) async fn begin(&self) -> Result<String, Failure> {
        let what = "POST (begin an upload)";
        let answer = self
            .send(&ObjectRequest {
                what,
                method: Method::POST,
                query: &[("uploads", "")],
                headers: &[("content-type", "application/octet-stream")],
                body: Some(Bytes::new()),
                repeats: false,
            })
            .await?;
        self.document(what, answer.ok(what).await?, answer::upload_id).await
    }

    pub(super) async fn part(
        &self,
        upload: &str,
        number: u32,
        body: Bytes,
        md5: &Digest,
    ) -> Result<Part, Failure> {
        let (text, sum) = (number.to_string(), STANDARD.encode(md5.value()));
        let ask = ObjectRequest {
            what: "PUT (a part)",
            method: Method::PUT,
            query: &[("partNumber", &text), ("uploadId", upload)],
            headers: &[("content-md5", &sum)],
            body: Some(body),
            repeats: true,
        };
        let answer = self.send(&ask).await?.ok("PUT (a part)").await?;
        let confirmed = tells(&answer.headers, md5);
        let etag = answer.header("etag").map(str::to_owned);
        answer.finish().await;
        let etag = etag.ok_or_else(|| self.without_etag(number))?;
        Ok(Part { number, etag, confirmed })
    }

    /// A part whose bytes come as it is sent, and so can be sent once only.
    pub(crate) async fn stream_part(&self, upload: &str, number: u32, body: Upload) -> Result<Part, Failure> {
        let what = "PUT (a part)";
        let url = self.url.asking(&[("partNumber", &number.to_string()), ("uploadId", upload)]);
        let mut call = Call::new(Method::PUT, &url, &self.credential, self.times.progress);
        call.payload = Payload::Upload(body);
        let answer = self.exchange.send(call).await?.ok(what).await?;
        let etag = answer.header("etag").map(str::to_owned);
        answer.finish().await;
        match etag {
            Some(etag) => Ok(Part { number, etag, confirmed: false }),
            None => Err(self.without_etag(number)),
        }
    }

    fn without_etag(&self, number: u32) -> Failure {
        Failure::new(Kind::Malformed, format!("PUT {}: part {number}: the answer has no ETag", self.url))
    }

    /// The parts of an upload that was begun before; none if there is no such upload.
    pub(super) async fn list(&self, upload: &str) -> Result<Option<Vec<ListedPart>>, Failure> {
        let what = "GET (the parts of an upload)";
        let (mut parts, mut after) = (Vec::new(), 0_u32);
        for _ in 0..LISTS_MAX {
            let marker = after.to_string();
            let mut query = vec![("uploadId", upload)];
            if after > 0 {
                query.push(("part-number-marker", &marker));
            }
            let ask = ObjectRequest {
                what,
                method: Method::GET,
                query: &query,
                headers: &[],
                body: None,
                repeats: true,
            };
            let answer = self.send(&ask).await?;
            if answer.status == StatusCode::NOT_FOUND {
                answer.finish().await;
                return Ok(None);
            }
            let listed = self.document(what, answer.ok(what).await?, answer::listed).await?;
            parts.extend(listed.parts);
            match listed.more_after {
                Some(next) if next > after => after = next,
                _ => break,
            }
        }
        Ok(Some(parts))
    }

    /// Makes a file of the parts: only now it has its name.
    pub(crate) async fn complete(
        &self,
        upload: &str,
        parts: &[Part],
        replaces: bool,
    ) -> Result<UploadEnd, Failure> {
        let what = "POST (complete an upload)";
        let one = |part: &Part| {
            let etag = part.etag.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            format!("<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag></Part>", part.number)
        };
        let list: String = parts.iter().map(one).collect();
        let body = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
        let plain = [("content-type", "application/xml")];
        let mut ask = ObjectRequest {
            what,
            method: Method::POST,
            query: &[("uploadId", upload)],
            headers: &[plain[0], ("if-none-match", "*")],
            body: Some(Bytes::from(body)),
            repeats: true,
        };
        if replaces {
            ask.headers = &plain;
        }
        let mut answer = self.send(&ask).await?;
        if answer.status == StatusCode::NOT_IMPLEMENTED && !replaces {
            answer.finish().await;
            ask.headers = &plain;
            answer = self.send(&ask).await?;
        }
        if answer.status == StatusCode::NOT_FOUND {
            answer.finish().await;
            return Ok(UploadEnd::Gone);
        }
        let answer = self.placed(answer, what).await?;
        let document = answer.bytes(BYTES_MAX, self.times.checksum).await?;
        // It may say 200 first and find trouble then.
        if let Some((kind, text)) = answer::refusal(StatusCode::INTERNAL_SERVER_ERROR, &document) {
            return Err(Failure::new(kind, format!("{what} {}: {text}", self.url)));
        }
        answer::completed(&document).map_err(|why| {
            Failure::new(Kind::Malformed, format!("{what} {}: the answer: {why}", self.url))
        })?;
        Ok(UploadEnd::Done)
    }

    /// Forgets an upload and its parts. That there is none is fine.
    pub(crate) async fn abort(&self, upload: &str) -> Result<(), Failure> {
        let what = "DELETE (an upload)";
        let ask = ObjectRequest {
            what,
            method: Method::DELETE,
            query: &[("uploadId", upload)],
            headers: &[],
            body: None,
            repeats: true,
        };
        let answer = self.send(&ask).await?;
        if answer.status == StatusCode::NOT_FOUND {
            answer.finish().await;
            return Ok(());
        }
        answer.ok(what).await?.finish().await;
        Ok(())
    }

    /// A precondition that failed means that the object exists, if nothing may be replaced.
    async fn placed(&self, answer: Answer, what: &str) -> Result<Answer, Failure> {
        if matches!(answer.status, StatusCode::PRECONDITION_FAILED) {
            answer.finish().await;
            return Err(Failure::new(Kind::Exists, "Destination file exists and overwrite is not enabled"));
        }
        answer.ok(what).await
    }
}

fn md5(bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new([Algorithm::Md5]);
    hasher.update(bytes);
    // It was asked for, so it is there.
    hasher.finish().get(Algorithm::Md5).unwrap_or_else(|| Digest::new(Algorithm::Md5, &[0; 16]))
}

/// Whether an ETag is that MD5, as it is of all that is neither encrypted by a key service nor made of parts.
pub(super) fn is_md5(etag: &str, md5: &Digest) -> bool {
    etag.trim().trim_matches('"').eq_ignore_ascii_case(&hex::encode(md5.value()))
}

fn tells(headers: &HeaderMap, md5: &Digest) -> bool {
    headers.get("etag").and_then(|etag| etag.to_str().ok()).is_some_and(|etag| is_md5(etag, md5))
}

/// The checksum of a whole object, if a head tells it.
pub(crate) fn told_checksum(headers: &HeaderMap, wanted: Algorithm) -> Option<Checksum> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let whole = !text("x-amz-checksum-type").is_some_and(|kind| kind.eq_ignore_ascii_case("COMPOSITE"));
    let named = match wanted {
        Algorithm::Crc32c => text("x-amz-checksum-crc32c"),
        Algorithm::Sha256 => text("x-amz-checksum-sha256"),
        Algorithm::Md5 => {
            let theirs = text("x-amz-server-side-encryption").is_some_and(|kind| kind.starts_with("aws:"))
                || text("x-amz-server-side-encryption-customer-algorithm").is_some();
            let etag = text("etag")?.trim_matches('"');
            let plain = etag.len() == 32 && etag.bytes().all(|byte| byte.is_ascii_hexdigit());
            return if plain && !theirs { read_value(etag, Algorithm::Md5) } else { None };
        }
        _ => None,
    };
    // For a multipart upload it is a digest of digests, followed by their number.
    let value = named.filter(|value| whole && !value.contains('-'))?;
    read_value(value, wanted).filter(|_| value.ends_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn only_what_is_of_the_whole_is_told() {
        let md5 = "\"d41d8cd98f00b204e9800998ecf8427e\"";
        assert!(told_checksum(&headers(&[("etag", md5)]), Algorithm::Md5).is_some());
        assert_eq!(
            told_checksum(&headers(&[("etag", "\"d41d8cd98f00b204e9800998ecf8427e-2\"")]), Algorithm::Md5),
            None
        );
        let encrypted = [("etag", md5), ("x-amz-server-side-encryption", "aws:kms")];
        assert_eq!(told_checksum(&headers(&encrypted), Algorithm::Md5), None);
        let sum = told_checksum(&headers(&[("x-amz-checksum-crc32c", "ChssPQ==")]), Algorithm::Crc32c);
        assert_eq!(sum.unwrap().hex(), "0a1b2c3d");
        assert_eq!(
            told_checksum(&headers(&[("x-amz-checksum-crc32c", "ChssPQ==-3")]), Algorithm::Crc32c),
            None
        );
        let composite = [("x-amz-checksum-crc32c", "ChssPQ=="), ("x-amz-checksum-type", "COMPOSITE")];
        assert_eq!(told_checksum(&headers(&composite), Algorithm::Crc32c), None);
        assert_eq!(told_checksum(&headers(&[("etag", md5)]), Algorithm::Adler32), None);
    }
}
