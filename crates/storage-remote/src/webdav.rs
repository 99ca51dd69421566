//! WebDAV operations on one storage: HEAD, PROPFIND, MKCOL, MOVE, DELETE.

use bytes::Bytes;
use http::header::ETAG;
use http::{Method, StatusCode};
use longhaul_model::Algorithm;
use longhaul_model::percent::decode_lenient;
use longhaul_outbound::RetryPolicy;

use crate::checksum::{read_checksum, wanted};
use crate::exchange::{Answer, Call, Payload};
use crate::failure::{Failure, Kind};
use crate::multistatus::{self, Member, Quota};
use crate::order::{Credential, Entry, Stat};
use crate::remote::Remote;
use crate::retry::{BACKOFF, RETRY_AFTER_MAX};
use crate::s3::told_checksum;
use crate::space_report::REPORT_BYTES_MAX;
use crate::url::RemoteUrl;

/// A file or collection, and the credential for it.
#[derive(Clone, Copy)]
pub(crate) struct Resource<'a> {
    pub(crate) url: &'a RemoteUrl,
    pub(crate) credential: &'a Credential,
}

impl<'a> Resource<'a> {
    pub(crate) fn at(self, url: &'a RemoteUrl) -> Resource<'a> {
        Resource { url, ..self }
    }
}

/// Reads change nothing, so they are sent again after a failure of the server. Busy ones lose connections
/// now and then, those of their own (XRootD 5.5 answers 500 then) and ours, and a copy should not fail for
/// that. A server that was silent for the whole time is not asked again, and dialling tries two connections
/// by itself.
const READ_RETRIES: RetryPolicy = RetryPolicy {
    tries: 3,
    statuses: &[500, 502],
    unreachable: false,
    lost: true,
    timed_out: false,
    backoff: BACKOFF,
    retry_after_max: RETRY_AFTER_MAX,
};

/// A method that HTTP itself has no name for.
pub(crate) fn method(name: &'static str) -> Method {
    // The names here are words; only an empty one or one with signs would be refused.
    Method::from_bytes(name.as_bytes()).unwrap_or(Method::OPTIONS)
}

/// The outcome of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenameOutcome {
    Done,
    /// Something has the name, and was to stay.
    Exists,
}

impl Remote {
    pub(crate) fn call<'a>(&self, method: Method, place: Resource<'a>) -> Call<'a> {
        Call::new(method, place.url, place.credential, self.config.times.answer)
    }

    /// A file by HEAD, with the checksum if it is asked for and told. None: there is nothing.
    pub(crate) async fn head(
        &self,
        place: Resource<'_>,
        checksum: Option<Algorithm>,
    ) -> Result<Option<Stat>, Failure> {
        let question = || {
            let mut call = self.call(Method::HEAD, place);
            if place.url.is_s3() {
                // It keeps what it knows, and computes nothing.
                call = call.header("x-amz-checksum-mode", "ENABLED")?;
            } else if let Some((plain, structured)) = checksum.and_then(wanted) {
                call = call.header("want-digest", plain)?.header("want-repr-digest", &structured)?;
                call.within = self.config.times.checksum;
            }
            Ok(call)
        };
        let answer = self.exchange.send_with_retries(&READ_RETRIES, "HEAD", question).await?;
        match answer.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                answer.finish().await;
                Ok(None)
            }
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
                if place.url.is_s3() {
                    return Err(answer.into_failure("HEAD").await);
                }
                answer.finish().await;
                self.find(place, checksum).await
            }
            // XRootD without checksums refuses the question, not the file.
            StatusCode::FORBIDDEN if checksum.is_some() && !place.url.is_s3() => {
                answer.finish().await;
                Box::pin(self.head(place, None)).await
            }
            status if status.is_success() => {
                let Some(size) = answer.length() else {
                    answer.finish().await;
                    return self.find(place, checksum).await;
                };
                let stat = stat_of(&answer, size, checksum);
                answer.finish().await;
                Ok(Some(stat))
            }
            _ => Err(answer.into_failure("HEAD").await),
        }
    }

    /// The same by PROPFIND, which knows collections.
    pub(crate) async fn find(
        &self,
        place: Resource<'_>,
        checksum: Option<Algorithm>,
    ) -> Result<Option<Stat>, Failure> {
        let Some(members) = self.propfind(place, "0").await? else { return Ok(None) };
        let Some(member) = members.into_iter().find(|member| member.found) else { return Ok(None) };
        let checksum = checksum.and_then(|wanted| member.checksum(wanted));
        Ok(Some(Stat { checksum, ranges: true, ..member.stat }))
    }

    /// The quota of a collection (RFC 4331), as far as the server tells it.
    pub(crate) async fn quota(&self, place: Resource<'_>) -> Result<Quota, Failure> {
        let found = match self.propfind_of(place, "0", multistatus::QUOTA_REQUEST).await {
            Ok(found) => found,
            // A server that knows no PROPFIND tells no quota.
            Err(Failure { kind: Kind::Status(status), .. }) if matches!(status.as_u16(), 405 | 501) => None,
            Err(failure) => return Err(failure),
        };
        Ok(found
            .and_then(|members| members.into_iter().next())
            .map(|member| member.quota)
            .unwrap_or_default())
    }

    /// A report of the space of storages (SRR).
    pub(crate) async fn storage_report(&self, place: Resource<'_>) -> Result<Bytes, Failure> {
        let answer = self.exchange.send(self.call(Method::GET, place)).await?.ok("GET").await?;
        answer.bytes(REPORT_BYTES_MAX, self.config.times.stall).await
    }

    async fn propfind(&self, place: Resource<'_>, depth: &str) -> Result<Option<Vec<Member>>, Failure> {
        self.propfind_of(place, depth, multistatus::REQUEST).await
    }

    async fn propfind_of(
        &self,
        place: Resource<'_>,
        depth: &str,
        properties: &'static str,
    ) -> Result<Option<Vec<Member>>, Failure> {
        let Some(answer) = self.answer_to_propfind(place, depth, properties).await? else { return Ok(None) };
        let url = answer.url.clone();
        let document = answer.bytes(multistatus::BYTES_MAX, self.config.times.stall).await?;
        let members = multistatus::read(&document)
            .map_err(|why| Failure::new(Kind::Malformed, format!("PROPFIND {url}: the answer: {why}")))?;
        Ok(Some(members))
    }

    /// A multistatus that is still to be read. None: there is nothing.
    async fn answer_to_propfind(
        &self,
        place: Resource<'_>,
        depth: &str,
        properties: &'static str,
    ) -> Result<Option<Answer>, Failure> {
        let question = || {
            let call = self.call(method("PROPFIND"), place).header("depth", depth)?;
            let mut call = call.header("content-type", "application/xml")?;
            call.payload = Payload::Bytes(Bytes::from_static(properties.as_bytes()));
            Ok(call)
        };
        let answer = self.exchange.send_with_retries(&READ_RETRIES, "PROPFIND", question).await?;
        if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            answer.finish().await;
            return Ok(None);
        }
        if answer.status != StatusCode::MULTI_STATUS {
            return Err(answer.into_failure("PROPFIND").await);
        }
        Ok(Some(answer))
    }

    /// The members of a collection; never what is below them.
    pub(crate) async fn members(&self, place: Resource<'_>) -> Result<Vec<Entry>, Failure> {
        let members = self.propfind(place, "1").await?.ok_or_else(|| no_collection(place.url))?;
        let own = decode_lenient(place.url.path());
        let entry = |member: Member| {
            let name = member.name_in(&own).filter(|_| member.found)?;
            Some(Entry { name, stat: Stat { ranges: true, ..member.stat } })
        };
        Ok(members.into_iter().filter_map(entry).collect())
    }

    /// The answer that lists a collection, for collections of any size. It is to be read soon.
    pub(crate) async fn listing_of(&self, place: Resource<'_>) -> Result<Answer, Failure> {
        let answer = self.answer_to_propfind(place, "1", multistatus::REQUEST).await?;
        answer.ok_or_else(|| no_collection(place.url))
    }

    /// One collection. Its parent has to be there; that it is there itself is fine.
    pub(crate) async fn make_collection(&self, place: Resource<'_>) -> Result<(), Failure> {
        let call = self.call(method("MKCOL"), place);
        let answer = self.exchange.send(call).await?;
        if answer.status.is_success() || answer.status == StatusCode::METHOD_NOT_ALLOWED {
            answer.finish().await;
            return Ok(());
        }
        Err(answer.into_failure("MKCOL").await)
    }

    /// All collections above a file, from the first missing one down.
    pub(crate) async fn make_parents(&self, file: Resource<'_>) -> Result<(), Failure> {
        // Buckets have names with slashes, and no collections.
        if file.url.is_s3() {
            return Ok(());
        }
        let mut missing = Vec::new();
        let mut next = file.url.parent();
        while let Some(above) = next.take().filter(|above| above.path() != "/") {
            if self.seen.contains(&above.to_string()) {
                break;
            }
            match self.is_there(file.at(&above)).await {
                Ok(true) => {
                    self.seen.add(above.to_string());
                    break;
                }
                Ok(false) => {}
                // Where we may not look we may not make either, or need not: then the copy itself tells.
                Err(failure) if matches!(failure.kind, Kind::Status(_)) => break,
                Err(failure) => return Err(failure),
            }
            next = above.parent();
            missing.push(above);
        }
        for collection in missing.iter().rev() {
            if let Err(failure) = self.make_collection(file.at(collection)).await {
                // Another request made it in this moment: then Apache answers 403.
                if !self.is_there(file.at(collection)).await.unwrap_or(false) {
                    return Err(failure);
                }
            }
            self.seen.add(collection.to_string());
        }
        Ok(())
    }

    /// By PROPFIND; of a server that does not know it, by HEAD, where any answer but "not found" says that
    /// there is something.
    async fn is_there(&self, place: Resource<'_>) -> Result<bool, Failure> {
        match self.find(place, None).await {
            Ok(found) => Ok(found.is_some()),
            Err(Failure { kind: Kind::Status(status), .. }) if matches!(status.as_u16(), 405 | 501) => {
                let answer = self.exchange.send(self.call(Method::HEAD, place)).await?;
                let there = !matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::GONE);
                answer.finish().await;
                Ok(there)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Deletes a file; with an ETag, only while it has that. Says whether there was one.
    pub(crate) async fn delete(&self, place: Resource<'_>, etag: Option<&str>) -> Result<bool, Failure> {
        let mut call = self.call(Method::DELETE, place);
        if let Some(etag) = etag {
            call = call.header("if-match", etag)?;
        }
        let answer = self.exchange.send(call).await?;
        if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            answer.finish().await;
            return Ok(false);
        }
        answer.ok("DELETE").await?.finish().await;
        Ok(true)
    }

    /// Gives a file another name of the same storage.
    pub(crate) async fn move_to(
        &self,
        from: Resource<'_>,
        to: &RemoteUrl,
        overwrite: bool,
    ) -> Result<RenameOutcome, Failure> {
        self.move_to_spelled(from, to.whole().as_bytes(), overwrite).await
    }

    /// As [`Remote::move_to`], with the URL of the new name as the server wants to read it.
    pub(crate) async fn move_to_spelled(
        &self,
        from: Resource<'_>,
        to: &[u8],
        overwrite: bool,
    ) -> Result<RenameOutcome, Failure> {
        let call = self.call(method("MOVE"), from).header_bytes("destination", to)?;
        let call = call.header("overwrite", if overwrite { "T" } else { "F" })?;
        let answer = self.exchange.send(call).await?;
        if answer.status == StatusCode::PRECONDITION_FAILED {
            answer.finish().await;
            return Ok(RenameOutcome::Exists);
        }
        answer.ok("MOVE").await?.finish().await;
        Ok(RenameOutcome::Done)
    }
}

fn no_collection(url: &RemoteUrl) -> Failure {
    let text = format!("PROPFIND {url}: there is no such collection");
    Failure::new(Kind::Status(StatusCode::NOT_FOUND), text)
}

fn stat_of(answer: &Answer, size: u64, checksum: Option<Algorithm>) -> Stat {
    let text = |name: &str| answer.header(name).map(str::to_owned);
    Stat {
        size,
        is_collection: answer.header("content-type").is_some_and(|kind| kind.contains("unix-directory")),
        etag: text(ETAG.as_str()),
        modified: text("last-modified"),
        ranges: answer.header("accept-ranges").is_none_or(|units| units.contains("bytes")),
        checksum: checksum.and_then(|wanted| match answer.url.is_s3() {
            true => told_checksum(&answer.headers, wanted),
            false => read_checksum(&answer.headers, wanted),
        }),
    }
}
