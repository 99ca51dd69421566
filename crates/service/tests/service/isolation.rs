//! Every route of FTS's API as everybody: nobody, a community's own people, another community by API token,
//! by certificate and by an issuer's token, those who may configure, and the administrator. Routes come from
//! the service's own list, so that none is forgotten.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::people::{Authority, Holder};
use crate::world::{World, until};
use longhaul_api::native::{TokenCreate, TokenCreated};
use longhaul_api::routes;
use longhaul_identity::{FtsIssuer, FtsPerson, Reach};
use longhaul_security::{ForeignServerTrust, foreign_client_tls_with_certificate};
use longhaul_service::{Config, FTS_ROUTES};
use longhaul_testkit::http::{self, Response};
use longhaul_testkit::{CertificateAuthority, TokenSigner, server_tls};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

const PEOPLE: [(&str, &str, Reach); 4] = [
    ("alice", "testvo", Reach::None),
    ("bob", "othervo", Reach::None),
    ("carol", "testvo", Reach::None),
    ("manager", "testvo", Reach::All),
];

/// Nobody, those of another community, one of alice's, who may configure, and the administrator; then tokens
/// that are confined beyond their role, see [`CONFINED`].
const ASKERS: [&str; 11] = [
    "nobody",
    "bob",
    "certificate",
    "issuer",
    "carol",
    "manager",
    "admin",
    "reader",
    "outsider",
    "member",
    "operator",
];

/// Name, role, scope and community of a token.
type Confined = (&'static str, &'static str, Option<&'static str>, Option<&'static str>);

/// A viewer of jobs of alice's community, administrators of another community and of hers, and one for jobs
/// alone.
const CONFINED: [Confined; 4] = [
    ("reader", "viewer", Some("jobs:read"), Some("testvo")),
    ("outsider", "admin", None, Some("othervo")),
    ("member", "admin", None, Some("testvo")),
    ("operator", "admin", Some("jobs"), None),
];

/// Method, path (JOB and FILE are alice's), body, and the status for nobody, for another community, for
/// carol, for the manager, for the administrator.
type Case = (&'static str, &'static str, &'static str, [u16; 5]);

const ALL: [u16; 5] = [200; 5];
const KNOWN: [u16; 5] = [401, 200, 200, 200, 200];
/// Something is missing, which is found when it is known who asks.
const ASKED: [u16; 5] = [401, 400, 400, 400, 400];
const OWNER_ONLY: [u16; 5] = [401, 403, 200, 200, 200];
const CONFIG: [u16; 5] = [401, 403, 403, 200, 200];
const CONFIG_WRONG: [u16; 5] = [401, 403, 403, 400, 400];
const CONFIG_NONE: [u16; 5] = [401, 403, 403, 404, 404];
const NOT_THEIRS: [u16; 5] = [401, 403, 403, 403, 403];
const ROOT: [u16; 5] = [401, 403, 403, 403, 200];

const MATRIX: &[Case] = &[
    ("GET", "/", "", ALL),
    ("GET", "/whoami", "", ALL),
    ("GET", "/whoami/certificate", "", [403; 5]),
    ("GET", "/delegation/0000000000000000", "", NOT_THEIRS),
    ("DELETE", "/delegation/0000000000000000", "", NOT_THEIRS),
    ("GET", "/delegation/0000000000000000/request", "", NOT_THEIRS),
    ("PUT", "/delegation/0000000000000000/credential", "x", NOT_THEIRS),
    ("POST", "/delegation/0000000000000000/credential", "x", NOT_THEIRS),
    ("POST", "/delegation/0000000000000000/voms", "[]", NOT_THEIRS),
    ("GET", "/jobs", "", KNOWN),
    ("POST", "/jobs", "{}", ASKED),
    ("PUT", "/jobs", "{}", ASKED),
    ("GET", "/jobs/JOB", "", OWNER_ONLY),
    ("GET", "/jobs/JOB,JOB", "", [401, 207, 200, 200, 200]),
    ("GET", "/jobs/JOB/files", "", OWNER_ONLY),
    ("GET", "/jobs/JOB/files/FILE/retries", "", OWNER_ONLY),
    ("GET", "/jobs/JOB/dm", "", OWNER_ONLY),
    ("GET", "/jobs/JOB/job_state", "", OWNER_ONLY),
    ("POST", "/jobs/JOB", r#"{"params":{"priority":4}}"#, OWNER_ONLY),
    ("POST", "/jobs/JOB,JOB", r#"{"params":{"priority":4}}"#, [401, 207, 200, 200, 200]),
    ("DELETE", "/jobs/JOB/files/FILE", "", OWNER_ONLY),
    ("DELETE", "/jobs/JOB", "", OWNER_ONLY),
    ("DELETE", "/jobs/JOB,JOB", "", [401, 207, 200, 200, 200]),
    ("DELETE", "/jobs/vo/nothing", "", ROOT),
    ("DELETE", "/jobs/all", "", ROOT),
    ("GET", "/files", "", KNOWN),
    ("GET", "/archive", "", KNOWN),
    ("GET", "/archive/JOB", "", [401, 403, 404, 404, 404]),
    ("GET", "/archive/JOB/job_state", "", [401, 403, 404, 404, 404]),
    ("GET", "/ban/se", "", CONFIG),
    ("POST", "/ban/se", "{}", CONFIG_WRONG),
    ("DELETE", "/ban/se", "", CONFIG_WRONG),
    ("GET", "/ban/dn", "", CONFIG),
    ("POST", "/ban/dn", "{}", CONFIG_WRONG),
    ("DELETE", "/ban/dn", "", CONFIG_WRONG),
    ("GET", "/status/hosts", "", CONFIG),
    ("POST", "/admin/force-start", "[]", ROOT),
    ("GET", "/config", "", CONFIG),
    ("GET", "/config/audit", "", CONFIG),
    ("POST", "/config/drain", "{}", CONFIG_WRONG),
    ("GET", "/config/global", "", CONFIG),
    ("POST", "/config/global", r#"{"x":1}"#, CONFIG_WRONG),
    ("DELETE", "/config/global", "", CONFIG_WRONG),
    ("GET", "/config/links", "", CONFIG),
    ("POST", "/config/links", "{}", CONFIG_WRONG),
    ("GET", "/config/links/none", "", CONFIG_NONE),
    ("DELETE", "/config/links/none", "", CONFIG_NONE),
    ("GET", "/config/shares", "", CONFIG),
    ("POST", "/config/shares", "{}", CONFIG_WRONG),
    ("DELETE", "/config/shares", "", CONFIG_WRONG),
    ("GET", "/config/se", "", CONFIG),
    ("POST", "/config/se", r#"{"x":1}"#, CONFIG_WRONG),
    ("DELETE", "/config/se", "", CONFIG_WRONG),
    ("GET", "/config/authorize", "", CONFIG),
    ("POST", "/config/authorize", "{}", CONFIG_WRONG),
    ("DELETE", "/config/authorize", "", CONFIG_WRONG),
    ("GET", "/config/activity_shares", "", CONFIG),
    ("POST", "/config/activity_shares", "{}", CONFIG_WRONG),
    ("GET", "/config/activity_shares/none", "", CONFIG_NONE),
    ("DELETE", "/config/activity_shares/none", "", [401, 403, 403, 204, 204]),
    ("GET", "/config/cloud_storage", "", CONFIG),
    ("POST", "/config/cloud_storage", "{}", CONFIG_WRONG),
    ("GET", "/config/cloud_storage/none", "", CONFIG_NONE),
    ("POST", "/config/cloud_storage/none", "{}", CONFIG_WRONG),
    ("DELETE", "/config/cloud_storage/none", "", CONFIG_NONE),
    ("DELETE", "/config/cloud_storage/none/vo", "", CONFIG_NONE),
    ("GET", "/optimizer", "", KNOWN),
    ("GET", "/optimizer/evolution", "", KNOWN),
    ("GET", "/optimizer/current", "", KNOWN),
    ("POST", "/optimizer/current", "{}", CONFIG_WRONG),
    ("GET", "/autocomplete/dn", "", CONFIG),
    ("GET", "/autocomplete/vo", "", CONFIG),
    ("GET", "/autocomplete/source", "", CONFIG),
    ("GET", "/autocomplete/destination", "", CONFIG),
    ("GET", "/autocomplete/storage", "", CONFIG),
    ("GET", "/dm/list", "", ASKED),
    ("GET", "/dm/stat", "", ASKED),
    ("POST", "/dm/mkdir", "{}", ASKED),
    ("POST", "/dm/unlink", "{}", ASKED),
    ("POST", "/dm/rmdir", "{}", ASKED),
    ("POST", "/dm/rename", "{}", ASKED),
    ("GET", "/api-docs/schema/submit", "", ALL),
    ("GET", "/fts3/ftsmon", "", ALL),
    ("GET", "/fts3/ftsmon/lead.js", "", ALL),
];

/// What is another for who comes with a certificate.
const CERTIFICATES: &[(&str, &str, u16)] = &[("GET", "/whoami/certificate", 200)];

fn fits(pattern: &str, path: &str) -> bool {
    let [pattern, path] =
        [pattern, path].map(|text| text.split('/').filter(|word| !word.is_empty()).collect::<Vec<_>>());
    pattern.len() == path.len()
        && pattern.iter().zip(&path).all(|(wanted, word)| *wanted == "{}" || wanted == word)
}

/// The routes that no case is of: the first route that a path fits is the one that it is of.
fn uncovered() -> Vec<(&'static str, &'static str)> {
    let of = |method: &str, path: &str| {
        // A route with fewer words left open is meant first, as the service does.
        let mut fitting: Vec<_> =
            FTS_ROUTES.iter().filter(|(known, pattern)| *known == method && fits(pattern, path)).collect();
        fitting.sort_by_key(|(_, pattern)| pattern.matches("{}").count());
        fitting.first().map(|route| **route)
    };
    let covered: Vec<_> = MATRIX.iter().filter_map(|(method, path, ..)| of(method, path)).collect();
    assert_eq!(covered.len(), MATRIX.len(), "each case is of a route");
    FTS_ROUTES.iter().copied().filter(|route| !covered.contains(route)).collect()
}

/// An issuer of tokens, as far as its keys are asked for.
pub struct Issuer {
    pub url: String,
    authority: std::path::PathBuf,
    signer: Arc<TokenSigner>,
    listener: Option<std::net::TcpListener>,
    tls: Arc<ServerConfig>,
}

pub fn openssl(words: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    use std::process::Stdio;
    let mut command = Command::new("openssl");
    let child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child.spawn().expect("openssl runs");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert!(ran.status.success(), "openssl {words:?}");
    ran.stdout
}

impl Issuer {
    pub fn new(folder: &Path) -> Issuer {
        let issued = CertificateAuthority::new("issuer");
        let authority = folder.join("issuer-ca.pem");
        fs::write(&authority, &issued.ca_pem).unwrap();
        let tls = server_tls(&issued.issue("issuer", &["localhost"]));
        let (listener, port) = http::listen();
        let url = format!("https://localhost:{port}/");
        Issuer { url, authority, signer: Arc::new(TokenSigner::new()), listener: Some(listener), tls }
    }

    /// Its tokens count there, for the audience that [`Issuer::token`] names.
    pub fn is_trusted_by(&self, config: &mut Config) {
        config.fts.audiences = vec!["fts-of-the-test".into()];
        config.fts.issuer_authorities = Some(self.authority.clone());
        config.fts.issuers = vec![FtsIssuer {
            url: self.url.clone(),
            community: None,
            scope: None,
            client_id: None,
            client_secret_file: None,
        }];
    }

    pub fn serve(&mut self) {
        let listener = self.listener.take().unwrap();
        let document = json!({ "issuer": self.url, "jwks_uri": format!("{}jwk", self.url) });
        let signer = self.signer.clone();
        http::serve(listener, Some(self.tls.clone()), move |request| match request.path() {
            "/jwk" => Response::json(200, &signer.key_set("k1")),
            _ => Response::json(200, &document),
        });
    }

    pub fn token(&self, group: &str) -> String {
        let now = seconds();
        let claims = json!({
            "iss": self.url, "sub": "eve", "aud": "fts-of-the-test",
            "exp": now + 3_600, "nbf": now - 10, "iat": now - 10,
            "scope": "fts openid", "wlcg.ver": "1.0", "wlcg.groups": [group], "jti": "1",
        });
        self.signer.sign_with(&json!({ "alg": "ES256", "kid": "k1", "typ": "JWT" }), &claims)
    }
}

fn seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// A storage that takes connections and never says a word.
async fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
    (listener, url)
}

/// A service with people of each kind.
pub struct Play {
    pub world: World,
    pub tokens: BTreeMap<String, String>,
    certificate: Arc<ClientConfig>,
    storage: String,
    files: u32,
    _silent: TcpListener,
    issuer: Issuer,
    folder: tempfile::TempDir,
}

impl Play {
    pub async fn new() -> Play {
        Play::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Play {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "authority");
        let mut issuer = Issuer::new(folder.path());
        issuer.serve();
        let world = World::with(|config| {
            config.jobs.allow_networks = vec!["127.0.0.0/8".into()];
            config.fts.trust_dir = Some(authority.trusted());
            config.fts.people = PEOPLE.map(person).to_vec();
            issuer.is_trusted_by(config);
            change(config);
        })
        .await;
        let mut tokens = BTreeMap::from([
            ("admin".to_owned(), world.admin_token.clone()),
            ("issuer".to_owned(), issuer.token("/othergroup")),
        ]);
        for (name, ..) in PEOPLE {
            let create = TokenCreate { name: name.into(), role: "viewer".into(), ..TokenCreate::default() };
            let made: TokenCreated =
                world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
            tokens.insert(name.to_owned(), made.token);
        }
        for (name, role, scope, community) in CONFINED {
            let create = TokenCreate {
                name: name.into(),
                role: role.into(),
                scopes: scope.into_iter().map(str::to_owned).collect(),
                community: community.map(|name| name.parse().unwrap()),
                ..TokenCreate::default()
            };
            let made: TokenCreated =
                world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
            tokens.insert(name.to_owned(), made.token);
        }
        let certificate = shown(&world, &authority.user("dora"));
        let (silent, storage) = silent().await;
        Play { world, tokens, certificate, storage, files: 0, _silent: silent, issuer, folder }
    }

    pub async fn request(&self, who: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let token = self
            .tokens
            .get(who)
            .map(|token| format!("Authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        let secure = who == "certificate";
        let port = if secure { self.world.address().port() } else { self.world.http_address().port() };
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n{token}Content-Type: \
                application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if secure {
            return exchange_by(&self.world, self.certificate.clone(), &text).await;
        }
        exchange(TcpStream::connect(self.world.http_address()).await.unwrap(), &text).await
    }

    /// A token of a member of this group.
    pub fn token(&self, group: &str) -> String {
        self.issuer.token(group)
    }

    /// Takes connections and says nothing.
    pub fn storage(&self) -> &str {
        &self.storage
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub async fn ended(&self, who: &str, job: &str) {
        until("the end of a job", async || {
            let (_, state) = self.request(who, "GET", &format!("/jobs/{job}/job_state"), "").await;
            let ended =
                ["FINISHED", "FAILED", "FINISHEDDIRTY", "CANCELED"].contains(&state.trim_matches('"'));
            ended.then_some(()).ok_or(state)
        })
        .await;
    }

    /// A job of that person, and its file.
    pub async fn job_of(&mut self, who: &str) -> (String, u64) {
        self.files += 1;
        let url = |side: &str| format!("{}/{side}/{}", self.storage, self.files);
        let body =
            json!({ "files": [{ "sources": [url("from")], "destinations": [url("to")] }] }).to_string();
        let (status, answer) = self.request(who, "POST", "/jobs", &body).await;
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let id = answer["job_id"].as_str().unwrap().to_owned();
        let (_, files) = self.request(who, "GET", &format!("/jobs/{id}/files"), "").await;
        let files: Value = serde_json::from_str(&files).unwrap();
        (id, files[0]["file_id"].as_u64().unwrap())
    }

    async fn state(&self, job: &str) -> String {
        let (_, answer) = self.request("alice", "GET", &format!("/jobs/{job}/job_state"), "").await;
        answer.trim_matches('"').to_owned()
    }
}

fn person((name, community, config): (&str, &str, Reach)) -> FtsPerson {
    FtsPerson {
        name: name.into(),
        community: community.parse().unwrap(),
        transfer: Reach::Community,
        config,
        datamanagement: Reach::None,
        admin: Reach::None,
    }
}

/// For a client with that certificate.
pub fn shown(world: &World, holder: &Holder) -> Arc<ClientConfig> {
    let [chain, key] = [&holder.certificate, &holder.key].map(|file| fs::read_to_string(file).unwrap());
    foreign_client_tls_with_certificate(ForeignServerTrust::Authorities(&world.ca_pem), &chain, &key).unwrap()
}

/// A request with a client's certificate.
pub async fn exchange_by(world: &World, client: Arc<ClientConfig>, request: &str) -> (u16, String) {
    let stream = TcpStream::connect(world.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    exchange(TlsConnector::from(client).connect(name, stream).await.unwrap(), request).await
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    // A server may end TLS with the connection.
    let _ = stream.read_to_end(&mut reply).await;
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request}: {reply:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn wanted(who: &str, case: &Case) -> u16 {
    let (method, path, _, statuses) = case;
    let special = CERTIFICATES.iter().find(|(of, at, _)| of == method && at == path);
    match (who, special) {
        ("certificate", Some((.., status))) => *status,
        ("nobody", _) => statuses[0],
        ("bob" | "certificate" | "issuer", _) => statuses[1],
        ("carol", _) => statuses[2],
        ("manager", _) => statuses[3],
        ("admin", _) => statuses[4],
        _ => wanted_of_confined(who, method, path, statuses),
    }
}

/// The role's rights, less what the token takes away.
fn wanted_of_confined(who: &str, method: &str, path: &str, statuses: &[u16; 5]) -> u16 {
    let changes = method != "GET";
    let first = path.split('/').nth(1).unwrap_or_default();
    let steers = ["ban", "config", "status", "admin", "autocomplete"].contains(&first)
        || first == "optimizer" && changes;
    match who {
        _ if steers => 403,
        "reader" if changes => 403,
        "reader" | "member" => statuses[2],
        "outsider" => statuses[1],
        _ => statuses[4],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_as_everybody() {
    assert_eq!(uncovered(), [], "routes without a case");
    let mut play = Play::new().await;
    let mut wrong = Vec::new();
    for case in MATRIX {
        let (method, path, body, _) = case;
        for who in ASKERS {
            let (job, file) =
                if path.contains("JOB") { play.job_of("alice").await } else { (String::new(), 0) };
            let asked = path.replace("JOB", &job).replace("FILE", &file.to_string());
            let (status, answer) = play.request(who, method, &asked, body).await;
            let expected = wanted(who, case);
            if status != expected {
                wrong.push(format!("{method} {path} as {who}: {status}, not {expected}: {answer:.200}"));
            }
            if status >= 400 && serde_json::from_str::<Value>(&answer).is_err() {
                wrong.push(format!("{method} {path} as {who}: a refusal that is no JSON: {answer:.200}"));
            }
            let foreign = ["nobody", "bob", "certificate", "issuer", "outsider"].contains(&who);
            if foreign && !job.is_empty() {
                if status == 200 && answer.contains(&job) {
                    wrong.push(format!("{method} {path} as {who}: shows a job of another community"));
                }
                let state = play.state(&job).await;
                if state == "CANCELED" {
                    wrong.push(format!("{method} {path} as {who}: ended a job of another community"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // Lists show nobody what is another's, whatever they ask for.
    let (job, _) = play.job_of("alice").await;
    for who in ["bob", "certificate", "issuer", "outsider"] {
        for path in [
            "/jobs",
            "/jobs?vo_name=testvo",
            "/jobs?limit=500",
            "/files",
            "/files?vo_name=testvo",
            "/archive",
        ] {
            let (_, answer) = play.request(who, "GET", path, "").await;
            assert!(!answer.contains(&job), "{path} as {who}: {answer}");
        }
    }
    for who in ["carol", "reader", "member", "operator"] {
        assert!(play.request(who, "GET", "/jobs", "").await.1.contains(&job), "{who}");
    }
    play.world.assert_sound().await;
    play.world.stop().await;
}

/// What is theirs is done, what is another's is refused, in one answer.
#[tokio::test(flavor = "multi_thread")]
async fn mixed_lists_do_what_may_be_done() {
    let mut play = Play::new().await;
    for who in ["bob", "issuer", "outsider"] {
        let ((theirs, _), (own, _)) = (play.job_of("alice").await, play.job_of(who).await);
        let both = format!("/jobs/{theirs},{own}");
        let change = r#"{"params":{"priority":5}}"#;
        let before = play.request("alice", "GET", &format!("/jobs/{theirs}/priority"), "").await;
        for (method, body) in [("GET", ""), ("POST", change), ("DELETE", "")] {
            let (status, answer) = play.request(who, method, &both, body).await;
            assert_eq!(status, 207, "{method} as {who}: {answer}");
            let entries: Vec<Value> = serde_json::from_str(&answer).unwrap();
            let of = |job: &str| entries.iter().find(|entry| entry["job_id"] == job).unwrap();
            assert_eq!(of(&own)["http_status"], "200 Ok", "{method} as {who}: {answer}");
            assert_eq!(of(&theirs)["http_status"], "403 Forbidden", "{method} as {who}: {answer}");
            assert!(of(&theirs).get("user_dn").is_none(), "{answer}");
        }
        assert_eq!(play.request("alice", "GET", &format!("/jobs/{theirs}/priority"), "").await, before);
        assert_ne!(play.state(&theirs).await, "CANCELED");
        let (_, state) = play.request(who, "GET", &format!("/jobs/{own}/job_state"), "").await;
        assert_eq!(state, "\"CANCELED\"");
    }
    play.world.stop().await;
}
