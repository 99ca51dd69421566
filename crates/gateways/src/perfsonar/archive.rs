//! Reads the results that an archive received since a time, in either form, bounded in time, size and number.
//!
//! Start with [`Archive::open`] and [`Archive::read`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, LOCATION, USER_AGENT};
use http::uri::{Authority, Scheme};
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use longhaul_model::units::{self, printable};
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_outbound::{self as outbound, AddressPolicy, HttpClient};
use longhaul_security::{ForeignServerTrust, explain_io, foreign_client_tls, tls_fault};
use serde_json::{Value, json};

use super::{Harvest, PAGE_BYTES_MAX, documents, esmond, mesh};

/// Archives get results late and repeat them; what was begun this long before the last result is asked for
/// again.
pub const OVERLAP: Duration = Duration::from_secs(15 * 60);
/// Items of one page.
pub const PAGE_ITEMS: usize = 1_000;
/// Pages of one list in one reading.
const PAGES_MAX: usize = 50;
/// Series asked for in one reading of an esmond archive, one after another.
const SERIES_MAX: usize = 2_000;
/// One answer, from connecting to its last byte; and a whole reading.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
const READING_TIME_MAX: Duration = Duration::from_secs(240);

/// The form of an archive's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Esmond,
    OpenSearch,
    /// No archive but a pSConfig template: who should be heard of.
    Mesh,
}

impl Kind {
    pub const ALL: &'static [Kind] = &[Kind::Esmond, Kind::OpenSearch, Kind::Mesh];

    pub fn word(self) -> &'static str {
        match self {
            Kind::Esmond => "esmond",
            Kind::OpenSearch => "opensearch",
            Kind::Mesh => "mesh",
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Kind::ALL.iter().copied().find(|kind| kind.word() == text);
        found.ok_or_else(|| format!("{} is neither esmond, opensearch nor mesh", printable(text)))
    }
}

/// Address of an archive, and the authorities that identify it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// esmond: up to and with `/archive/`. OpenSearch: up to where `/pscheduler_…` follows. Mesh: the
    /// template.
    pub url: String,
    pub kind: Kind,
    /// Whether the server's certificate is checked.
    pub verify: bool,
    /// Authorities in PEM; none: those of the system.
    pub authorities: Option<PathBuf>,
}

/// An archive, ready to be asked.
#[derive(Clone)]
pub struct Archive {
    http: HttpClient<Full<Bytes>>,
    scheme: Scheme,
    authority: Authority,
    /// Without a slash at its end.
    path: String,
    kind: Kind,
}

/// The result of one reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    pub harvest: Harvest,
    /// Questions that were asked.
    pub requests: u64,
    /// There was more than one reading takes; the rest is lost to us.
    pub cut: bool,
}

impl Archive {
    pub fn open(settings: &Settings) -> Result<Archive, Fault> {
        let (scheme, authority, path) = parts(&settings.url)?;
        let tls = if scheme == Scheme::HTTP || !settings.verify {
            foreign_client_tls(ForeignServerTrust::Anyone)?
        } else {
            foreign_client_tls(ForeignServerTrust::Authorities(&longhaul_outbound::read_authorities(
                settings.authorities.as_deref(),
            )?))?
        };
        Ok(Archive {
            http: outbound::client(tls, AddressPolicy::Anywhere),
            scheme,
            authority,
            path,
            kind: settings.kind,
        })
    }

    /// Everything that began at or after `since`.
    pub async fn read(&self, since: Timestamp, now: Timestamp) -> Result<Reading, Fault> {
        let reading = async {
            match self.kind {
                Kind::Esmond => self.read_esmond(since, now).await,
                Kind::OpenSearch => self.read_documents(since).await,
                Kind::Mesh => Ok(Reading::default()),
            }
        };
        tokio::time::timeout(READING_TIME_MAX, reading).await.unwrap_or_else(|_| {
            let detail = format!("{}: not read within {} s", self.authority, READING_TIME_MAX.as_secs());
            Err(Fault::new(FaultCode::Stalled, detail))
        })
    }

    /// The template of a mesh.
    pub async fn read_mesh(&self) -> Result<mesh::Mesh, Fault> {
        let (_, body) = self.get(&self.path).await?;
        mesh::read(&body)
    }

    /// Whether something answers there in the expected form, and with how much: one question.
    pub async fn check(&self, now: Timestamp) -> Result<String, Fault> {
        match self.kind {
            Kind::Esmond => {
                let (_, body) =
                    self.get(&format!("{}/?time-range=86400&limit={PAGE_ITEMS}", self.path)).await?;
                let found = esmond::tests(&body)?;
                let more = if found.items >= PAGE_ITEMS { " or more" } else { "" };
                let tests = if found.items == 1 { "test" } else { "tests" };
                Ok(format!("{}{more} {tests} with results of the last day", found.items))
            }
            Kind::OpenSearch => {
                let since = now - Duration::from_secs(86_400);
                let page = self.search("throughput", since, None, 100).await?;
                let found = page.map_or(0, |page| page.hits);
                let more = if found >= 100 { " or more" } else { "" };
                let tests = if found == 1 { "test" } else { "tests" };
                Ok(format!("{found}{more} throughput {tests} of the last day"))
            }
            Kind::Mesh => {
                let mesh = self.read_mesh().await?;
                let pairs = units::plural(mesh.expected.len() as u64, "pair", "pairs");
                Ok(format!("{pairs} that should have results"))
            }
        }
    }

    async fn read_esmond(&self, since: Timestamp, now: Timestamp) -> Result<Reading, Fault> {
        let mut reading = Reading::default();
        let (from, until) = (since.as_micros().max(0) / 1_000_000, now.as_micros().max(0) / 1_000_000 + 1);
        let window = format!("time-start={from}&time-end={until}");
        for page in 0.. {
            if page >= PAGES_MAX {
                reading.cut = true;
                break;
            }
            let offset = page * PAGE_ITEMS;
            let (_, body) =
                self.get(&format!("{}/?{window}&limit={PAGE_ITEMS}&offset={offset}", self.path)).await?;
            reading.requests += 1;
            let found = esmond::tests(&body)?;
            reading.harvest.refused += found.refused;
            if let Some(fault) = found.first_fault {
                reading.harvest.first_fault.get_or_insert(fault);
            }
            for test in &found.tests {
                self.read_series(test, since, &window, &mut reading).await?;
            }
            if found.items < PAGE_ITEMS {
                break;
            }
        }
        Ok(reading)
    }

    async fn read_series(
        &self,
        test: &esmond::Metadata,
        since: Timestamp,
        window: &str,
        reading: &mut Reading,
    ) -> Result<(), Fault> {
        let mut series = BTreeMap::new();
        let fresh = |kind: &&esmond::EventType| {
            esmond::WANTED.contains(&kind.name.as_str())
                && kind.updated.is_none_or(|updated| updated >= since)
        };
        for kind in test.event_types.iter().filter(fresh) {
            if reading.requests >= (SERIES_MAX + PAGES_MAX) as u64 {
                reading.cut = true;
                break;
            }
            // Only this archive is asked, whatever it says about where its values are.
            let plain = kind.base_uri.starts_with('/')
                && !kind.base_uri.starts_with("//")
                && !kind.base_uri.contains(['?', '#', ' ']);
            if !plain {
                reading.harvest.refused += 1;
                continue;
            }
            let (_, body) = self.get(&format!("{}?{window}", kind.base_uri)).await?;
            reading.requests += 1;
            let (points, refused) = esmond::series(&body)?;
            reading.harvest.refused += refused;
            series.insert(kind.name.clone(), points);
        }
        reading.harvest.merge(esmond::join(test, &series));
        Ok(())
    }

    async fn read_documents(&self, since: Timestamp) -> Result<Reading, Fault> {
        let mut reading = Reading::default();
        for test in documents::WANTED {
            let mut after = None;
            for page in 0.. {
                if page >= PAGES_MAX {
                    reading.cut = true;
                    break;
                }
                let found = self.search(test, since, after.take(), PAGE_ITEMS).await?;
                reading.requests += 1;
                let Some(found) = found else { break };
                reading.harvest.merge(found.harvest);
                after = found.after;
                if found.hits < PAGE_ITEMS || after.is_none() {
                    break;
                }
            }
        }
        Ok(reading)
    }

    /// None if there is no index for this type of test.
    async fn search(
        &self,
        test: &str,
        since: Timestamp,
        after: Option<Vec<Value>>,
        size: usize,
    ) -> Result<Option<documents::Page>, Fault> {
        let mut question = json!({
            "size": size,
            "sort": [{"pscheduler.start_time": "asc"}, {"_id": "asc"}],
            "query": {"bool": {"filter": [{"range": {"pscheduler.start_time": {"gte": since.to_string()}}}]}},
        });
        if let Some(after) = after {
            question["search_after"] = after.into();
        }
        let target = format!("{}/pscheduler_{test}/_search", self.path);
        let (status, body) = self.send(Method::POST, &target, question.to_string()).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.expect_success(status, &target)?;
        documents::page(&body).map(Some)
    }

    async fn get(&self, target: &str) -> Result<(StatusCode, Bytes), Fault> {
        let (status, body) = self.send(Method::GET, target, String::new()).await?;
        self.expect_success(status, target)?;
        Ok((status, body))
    }

    fn expect_success(&self, status: StatusCode, target: &str) -> Result<(), Fault> {
        if status.is_success() {
            return Ok(());
        }
        let code = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => FaultCode::NotAuthenticated,
            StatusCode::NOT_FOUND => FaultCode::NotFound,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => FaultCode::Busy,
            _ => FaultCode::ProtocolError,
        };
        let shown = target.split('?').next().unwrap_or_default();
        Err(Fault::new(code, format!("{}{shown} answered {status}", self.authority)))
    }

    async fn send(&self, method: Method, target: &str, body: String) -> Result<(StatusCode, Bytes), Fault> {
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(target)
            .build()
            .map_err(|error| {
                Fault::new(FaultCode::BadRequest, format!("{}: {error}", self.authority)).with_source(error)
            })?;
        let mut request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header(USER_AGENT, concat!("longhaul/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| {
            Fault::new(FaultCode::BadRequest, format!("{}: {error}", self.authority)).with_source(error)
        })?;
        let whole = async {
            let reply = self.http.request(request).await.map_err(|error| self.broken(error))?;
            let status = reply.status();
            if status.is_redirection() {
                let to = reply.headers().get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
                let detail = format!("{} redirects to {to}: give that address", self.authority);
                return Err(Fault::new(FaultCode::BadRequest, detail));
            }
            let body = Limited::new(reply.into_body(), PAGE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| {
                let detail = format!(
                    "{}: the answer cannot be read: {error} (at most {PAGE_BYTES_MAX} bytes are)",
                    self.authority
                );
                Fault::new(FaultCode::ConnectionLost, detail)
            })?;
            Ok((status, body.to_bytes()))
        };
        tokio::time::timeout(ANSWER_TIME_MAX, whole).await.unwrap_or_else(|_| {
            let detail = format!("{}: no answer within {} s", self.authority, ANSWER_TIME_MAX.as_secs());
            Err(Fault::new(FaultCode::Stalled, detail))
        })
    }

    fn broken(&self, error: hyper_util::client::legacy::Error) -> Fault {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        let mut found = None;
        while let Some(inner) = cause {
            let io = inner.downcast_ref::<std::io::Error>();
            if let Some(tls) = inner.downcast_ref::<rustls::Error>() {
                found = Some(outside_words(tls));
                break;
            }
            found = io.map(explain_io).or(found);
            // An error inside an `io::Error` is not its source.
            cause = match io.and_then(|io| io.get_ref()) {
                Some(inside) => Some(inside),
                None => inner.source(),
            };
        }
        match found {
            Some(fault) => {
                Fault::new(fault.code, format!("{}: {}", self.authority, fault.detail)).with_source(error)
            }
            None => {
                Fault::new(FaultCode::Unreachable, format!("{}: {error}", self.authority)).with_source(error)
            }
        }
    }
}

/// What is wrong with a certificate of somebody else's, and what to do about it here.
fn outside_words(error: &rustls::Error) -> Fault {
    match error {
        rustls::Error::InvalidCertificate(why) => Fault::new(
            FaultCode::NotAuthenticated,
            format!(
                "its certificate is not believed ({why}); name its authority with `authorities`, or set \
                    `verify = false`"
            ),
        ),
        other => tls_fault(other),
    }
}

fn parts(url: &str) -> Result<(Scheme, Authority, String), Fault> {
    let shown = printable(&url.chars().take(200).collect::<String>());
    let bad = |why: &str| Fault::new(FaultCode::BadRequest, format!("the archive's address {shown:?} {why}"));
    let parts = url.parse::<Uri>().map_err(|error| bad(&error.to_string()).with_source(error))?.into_parts();
    let path =
        parts.path_and_query.as_ref().map_or("", |target| target.path()).trim_end_matches('/').to_owned();
    if parts.path_and_query.as_ref().is_some_and(|target| target.query().is_some()) {
        return Err(bad("has a query"));
    }
    match (parts.scheme, parts.authority) {
        (Some(scheme), Some(authority)) if scheme == Scheme::HTTPS || scheme == Scheme::HTTP => {
            if authority.as_str().contains('@') {
                return Err(bad("holds a user name"));
            }
            Ok((scheme, authority, path))
        }
        _ => Err(bad("does not begin with https:// or http:// and a host")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_or_refused() {
        let (_, authority, path) = parts("https://ps.example:8443/esmond/perfsonar/archive/").unwrap();
        assert_eq!((authority.as_str(), path.as_str()), ("ps.example:8443", "/esmond/perfsonar/archive"));
        for bad in ["", "ps.example", "ftp://x", "https://me@x/", "https://x/?a=b", "https://x y/"] {
            assert!(parts(bad).unwrap_err().detail.contains("archive's address"), "{bad}");
        }
        assert!("Esmond".parse::<Kind>().unwrap_err().contains("opensearch"));
    }
}
