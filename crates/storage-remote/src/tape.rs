//! Client of the WLCG Tape REST API: stage, poll, cancel, release, and archive state. A storage names its
//! endpoint in a well-known document.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http::header::LOCATION;
use http::{Method, StatusCode};
use longhaul_model::percent::decode_lenient;
use longhaul_model::{Fault, Locality};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::exchange::{Answer, Payload};
use crate::failure::{Failure, Kind, Scope};
use crate::order::{Credential, End};
use crate::remote::Remote;
use crate::tape_answers::{self, ArchiveInfo, BYTES_MAX, StagedFile};
use crate::url::RemoteUrl;
use crate::webdav::Resource;

const WELL_KNOWN: &str = "/.well-known/wlcg-tape-rest-api";
/// Bytes of the well-known document.
const DOCUMENT_BYTES_MAX: usize = 64 << 10;
/// A place that was told is believed so long.
const TAPE_API_TTL: Duration = Duration::from_secs(3_600);
const TAPE_APIS_MAX: usize = 4_096;

/// Where the tape system of a storage is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapeApi {
    pub base: String,
    /// By which what is meant for this site alone is marked.
    pub site: String,
}

/// One file to be brought to disk.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFile {
    pub path: String,
    /// How long it shall stay there.
    pub pin: Duration,
    /// The user's metadata for the tape system, by site.
    pub metadata: Option<Map<String, Value>>,
}

/// Endpoints found at storages.
#[derive(Default)]
pub(crate) struct TapeApis(Mutex<HashMap<String, (TapeApi, Instant)>>);

impl TapeApis {
    fn get(&self, origin: &str) -> Option<TapeApi> {
        let known = self.0.lock();
        known.get(origin).filter(|(_, since)| since.elapsed() < TAPE_API_TTL).map(|(api, _)| api.clone())
    }

    fn put(&self, origin: String, api: TapeApi) {
        let mut known = self.0.lock();
        if known.len() >= TAPE_APIS_MAX {
            known.clear();
        }
        known.insert(origin, (api, Instant::now()));
    }
}

/// A name of a file by which it is known again: servers add and drop slashes.
pub fn plain_path(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.fold(String::new(), |plain, part| plain + "/" + part)
}

impl Remote {
    /// The path of a file, as tape systems name it.
    pub fn tape_path(url: &str) -> Result<String, Fault> {
        let url = RemoteUrl::parse(url)?;
        String::from_utf8(decode_lenient(url.path())).map_err(|_| {
            let text = format!("{url}: its path is no text, so no tape system can be asked for it");
            Failure::new(Kind::Order, text).at(Scope::Staging)
        })
    }

    /// Where the tape system is asked for this file.
    pub async fn staging_api(&self, end: &End) -> Result<TapeApi, Fault> {
        self.api(end, Scope::Staging).await
    }

    /// Where the tape system is asked whether it has this file.
    pub async fn archiving_api(&self, end: &End) -> Result<TapeApi, Fault> {
        self.api(end, Scope::Archiving).await
    }

    async fn api(&self, end: &End, scope: Scope) -> Result<TapeApi, Fault> {
        let url = RemoteUrl::parse(&end.url)?;
        let place = Resource { url: &url, credential: &end.credential };
        self.api_of(place).await.map_err(|failure| failure.at(scope))
    }

    async fn api_of(&self, place: Resource<'_>) -> Result<TapeApi, Failure> {
        let origin = place.url.origin().to_string();
        if let Some(known) = self.tape_apis.get(&origin) {
            return Ok(known);
        }
        let api = self.discover(place.url, place.credential).await?;
        self.tape_apis.put(origin, api.clone());
        Ok(api)
    }

    /// Where a file lies; none where the storage has no tape system that could be asked.
    pub(crate) async fn locality(&self, place: Resource<'_>) -> Result<Option<Locality>, Failure> {
        let origin = place.url.origin().to_string();
        if place.url.is_s3() || self.without_tape.contains(&origin) {
            return Ok(None);
        }
        let api = match self.api_of(place).await {
            Ok(api) => api,
            Err(failure) if failure.kind == Kind::Status(StatusCode::NOT_IMPLEMENTED) => {
                self.without_tape.add(origin);
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let unnamed = || Failure::new(Kind::Order, format!("{}: its path is no text", place.url));
        let path = String::from_utf8(decode_lenient(place.url.path())).map_err(|_| unnamed())?;
        let base = End::new(api.base, place.credential.clone());
        let told = self.localities(&base, std::slice::from_ref(&path)).await?;
        let of_it = told.into_iter().find(|one| plain_path(&one.path) == plain_path(&path));
        let said = of_it.map_or_else(|| Err("it says nothing of this file".to_owned()), |one| one.at);
        let text = |why| format!("{}: its tape system does not say where it lies: {why}", place.url);
        said.map(Some).map_err(|why| Failure::new(Kind::Told, text(why)))
    }

    async fn discover(&self, file: &RemoteUrl, credential: &Credential) -> Result<TapeApi, Failure> {
        let text = format!("{}{WELL_KNOWN}", file.origin());
        let url = RemoteUrl::parse(&text).map_err(|fault| Failure::of_fault(&fault))?;
        let call = self.call(Method::GET, Resource { url: &url, credential });
        let answer = self.exchange.send(call).await?;
        let none = [
            StatusCode::NOT_FOUND,
            StatusCode::GONE,
            StatusCode::METHOD_NOT_ALLOWED,
            StatusCode::NOT_IMPLEMENTED,
        ];
        if none.contains(&answer.status) {
            let text = format!("GET {url}: {}: this storage offers no Tape REST API", answer.status);
            answer.finish().await;
            return Err(Failure::new(Kind::Status(StatusCode::NOT_IMPLEMENTED), text));
        }
        let document = answer.ok("GET").await?.bytes(DOCUMENT_BYTES_MAX, self.config.times.stall).await?;
        let malformed = |why: String| Failure::new(Kind::Malformed, format!("GET {url}: the answer: {why}"));
        let found = tape_answers::endpoint(&document).map_err(malformed)?;
        let base = RemoteUrl::parse(&found.uri).map_err(|fault| Failure::of_fault(&fault))?;
        if !may_be_led(file, &base) {
            let text = format!(
                "{url} names {base}: credentials go along to hosts of the same domain only, and never from \
                    https to http"
            );
            return Err(Failure::new(Kind::Refused, text));
        }
        Ok(TapeApi { base: base.to_string().trim_end_matches('/').to_owned(), site: found.site })
    }

    /// Asks for files; gives the id of the request.
    pub async fn stage(&self, base: &End, files: &[StageFile]) -> Result<String, Fault> {
        let one = |file: &StageFile| {
            let mut one =
                json!({ "path": file.path, "diskLifetime": format!("PT{}S", file.pin.as_secs().max(1)) });
            if let Some(metadata) = &file.metadata {
                one["targetedMetadata"] = Value::Object(metadata.clone());
            }
            one
        };
        let body = json!({ "files": files.iter().map(one).collect::<Vec<_>>() });
        let asked = async {
            let answer = self.send(base, Method::POST, "stage", Some(body)).await?.ok("POST").await?;
            let (url, location) = (answer.url.clone(), answer.header(LOCATION.as_str()).map(str::to_owned));
            let body = answer.bytes(DOCUMENT_BYTES_MAX, self.config.times.stall).await?;
            tape_answers::request_id(&body, location.as_deref())
                .map_err(|why| Failure::new(Kind::Malformed, format!("POST {url}: the answer: {why}")))
        };
        asked.await.map_err(|failure: Failure| failure.at(Scope::Staging))
    }

    /// How far the files of a request are; none if the tape system does not know it.
    pub async fn stage_report(&self, base: &End, request: &str) -> Result<Option<Vec<StagedFile>>, Fault> {
        let asked = async {
            let answer = self.send(base, Method::GET, &format!("stage/{request}"), None).await?;
            if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
                answer.finish().await;
                return Ok(None);
            }
            let answer = answer.ok("GET").await?;
            let url = answer.url.clone();
            let body = answer.bytes(BYTES_MAX, self.config.times.stall).await?;
            let malformed = |why| Failure::new(Kind::Malformed, format!("GET {url}: the answer: {why}"));
            tape_answers::report(&body).map(Some).map_err(malformed)
        };
        asked.await.map_err(|failure: Failure| failure.at(Scope::Staging))
    }

    /// Some files of a request are wanted no more.
    pub async fn stage_cancel(&self, base: &End, request: &str, paths: &[String]) -> Result<(), Fault> {
        let place = format!("stage/{request}/cancel");
        self.done(base, Method::POST, &place, Some(json!({ "paths": paths }))).await
    }

    /// Ends a request with all that is left of it.
    pub async fn stage_end(&self, base: &End, request: &str) -> Result<(), Fault> {
        self.done(base, Method::DELETE, &format!("stage/{request}"), None).await
    }

    /// Files of a request need not stay on disk any longer.
    pub async fn release(&self, base: &End, request: &str, paths: &[String]) -> Result<(), Fault> {
        let place = format!("release/{request}");
        self.done(base, Method::POST, &place, Some(json!({ "paths": paths }))).await
    }

    /// Where files lie.
    pub async fn archive_info(&self, base: &End, paths: &[String]) -> Result<Vec<ArchiveInfo>, Fault> {
        self.localities(base, paths).await.map_err(|failure| failure.at(Scope::Archiving))
    }

    async fn localities(&self, base: &End, paths: &[String]) -> Result<Vec<ArchiveInfo>, Failure> {
        let body = Some(json!({ "paths": paths }));
        let answer = self.send(base, Method::POST, "archiveinfo", body).await?.ok("POST").await?;
        let url = answer.url.clone();
        let body = answer.bytes(BYTES_MAX, self.config.times.stall).await?;
        tape_answers::archive_info(&body)
            .map_err(|why| Failure::new(Kind::Malformed, format!("POST {url}: the answer: {why}")))
    }

    /// Any success will do, and so will the request being gone.
    async fn done(&self, base: &End, method: Method, place: &str, body: Option<Value>) -> Result<(), Fault> {
        let word = if method == Method::DELETE { "DELETE" } else { "POST" };
        let asked = async {
            let answer = self.send(base, method, place, body).await?;
            if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
                answer.finish().await;
                return Ok(());
            }
            answer.ok(word).await?.finish().await;
            Ok(())
        };
        asked.await.map_err(|failure: Failure| failure.at(Scope::Staging))
    }

    async fn send(
        &self,
        base: &End,
        method: Method,
        place: &str,
        body: Option<Value>,
    ) -> Result<Answer, Failure> {
        let text = format!("{}/{place}", base.url.trim_end_matches('/'));
        let url = RemoteUrl::parse(&text).map_err(|fault| Failure::of_fault(&fault))?;
        let mut call = self.call(method, Resource { url: &url, credential: &base.credential });
        call = call.header("accept", "application/json")?;
        if let Some(body) = body {
            call = call.header("content-type", "application/json")?;
            call.payload = Payload::Bytes(Bytes::from(body.to_string()));
        }
        self.exchange.send(call).await
    }
}

/// Whether what a storage says of where its tape system is may be followed with its users' credentials.
fn may_be_led(storage: &RemoteUrl, base: &RemoteUrl) -> bool {
    if storage.is_secure() && !base.is_secure() {
        return false;
    }
    let domain = |url: &RemoteUrl| {
        let (_, domain) = url.host().split_once('.')?;
        let is_name = domain.contains('.') && url.host().parse::<std::net::IpAddr>().is_err();
        is_name.then(|| domain.to_owned())
    };
    storage.host() == base.host() || domain(storage).is_some_and(|of| domain(base) == Some(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> RemoteUrl {
        RemoteUrl::parse(text).unwrap()
    }

    #[test]
    fn a_tape_system_is_at_its_own_site() {
        for (storage, base, may) in [
            ("https://door.a.example:2880/x", "https://door.a.example:3880/api", true),
            ("https://door.a.example/x", "https://front.a.example/api", true),
            ("https://door.a.example/x", "https://evil.example/api", false),
            ("https://door.a.example/x", "http://door.a.example/api", false),
            ("https://a.example/x", "https://b.example/api", false),
            ("https://192.0.2.1/x", "https://193.0.2.1/api", false),
            ("http://127.0.0.1:1/x", "http://127.0.0.1:2/api", true),
        ] {
            assert_eq!(may_be_led(&url(storage), &url(base)), may, "{storage} {base}");
        }
    }

    #[test]
    fn names_are_the_same_whatever_their_slashes() {
        assert_eq!(["/a/b", "a//b/", "//a/b"].map(plain_path), ["/a/b"; 3].map(str::to_owned));
        assert_ne!(plain_path("/ab"), plain_path("/a/b"));
        assert_eq!(Remote::tape_path("davs://h:1/a/b%20c?x=y").unwrap(), "/a/b c");
    }
}
