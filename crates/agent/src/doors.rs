//! Doors: which of the agent's storages are open to outside clients, and to whom. Opened with the agent,
//! closed with it; files of certificates, tokens and maps are read again when they change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_doors::{
    Access, Door, Grant, Issued, Limits, May, Outgoing, Renewer, Rights, Settings, Subjects, TapeEnd,
    TokenVerifier, Users, VOMS, Verified, read_tokens,
};
use longhaul_gateways::issuers::Issuers;
use longhaul_model::{Fault, FaultCode, SiteName, StorageName, Timestamp};
use longhaul_security::bearer::{Audience, IssuerRule, TokenSettings, TokenTrust};
use longhaul_security::grid::{GridSettings, GridTrust};
use longhaul_security::{
    Allow, ClientIdentity, Credentials, OutsideTrust, client_of, door_grid_tls, door_server_tls, gridmap,
    outside_client_tls, read_private, secret_hash,
};
use longhaul_storage::Storage;
use rustls::CommonState;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::agent::blocking;
use crate::clock::ServiceClock;
use crate::decided::{AtDoor, Decided};
use crate::tape::Tapes;

/// Most doors of one agent.
pub const DOORS_MAX: usize = 64;
/// Between looks whether certificates, tokens and maps have changed.
const RENEW_EVERY: Duration = Duration::from_secs(60);
/// For clocks that are behind those of issuers of tokens.
const LEEWAY: Duration = Duration::from_secs(60);
/// A bundle of a grid's authorities has some hundred kilobytes.
const AUTHORITIES_BYTES_MAX: u64 = 16 << 20;
/// Where systems keep the authorities of the web.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
const CONNECTIONS_MAX: usize = 100_000;
const TRANSFERS_MAX: usize = 1_000;

/// One `[[agent.doors]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoorConfig {
    /// One of the agent's storages. Paths in URLs are paths beneath its root.
    pub storage: StorageName,
    pub listen: Vec<SocketAddr>,
    /// The host's certificate with its chain, and its key. None: the agent's own, which only programs that
    /// trust the deployment's authority accept, and no browser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Authorities of people's certificates. Empty: the deployment's.
    #[serde(default)]
    pub client_authorities: Vec<PathBuf>,
    /// A directory of the grid's authorities, with their policies and revocation lists: their users come with
    /// certificates and proxies. None: `client_authorities` count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_dir: Option<PathBuf>,
    /// What says who speaks for virtual organisations; without it attributes in proxies do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voms_dir: Option<PathBuf>,
    /// Further names of this door, as `host` or `host:port`.
    #[serde(default)]
    pub names: Vec<String>,
    /// A file of lines `read|stage|write PATH TOKEN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<PathBuf>,
    /// Issuers whose tokens count by their scopes.
    #[serde(default)]
    pub issuers: Vec<DoorIssuer>,
    /// What the door is called in tokens. Empty: its names.
    #[serde(default)]
    pub audiences: Vec<String>,
    /// Authorities of the issuers' servers. None: the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_authorities: Option<PathBuf>,
    /// Everybody may read everything.
    #[serde(default)]
    pub anonymous_read: bool,
    #[serde(default)]
    pub allow: Vec<DoorRule>,
    /// Missing directories of a new file are made.
    #[serde(default = "yes")]
    pub make_parents: bool,
    /// Deleting a directory deletes what is in it.
    #[serde(default)]
    pub delete_trees: bool,
    /// Whether clients may have files copied between this door and another server.
    #[serde(default = "yes")]
    pub third_party: bool,
    /// Authorities of those servers. Empty: the system's.
    #[serde(default)]
    pub third_party_authorities: Vec<PathBuf>,
    /// Addresses and networks that are dialled for this though they are not public.
    #[serde(default)]
    pub third_party_allow: Vec<Allow>,
    #[serde(default = "default_connections")]
    pub connections: usize,
    /// Files on their way at once.
    #[serde(default = "default_transfers")]
    pub transfers: usize,
}

/// One right, and whom it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoorRule {
    /// `/DC=org/CN=name` exactly, `longhaul://DEPLOYMENT/agent/SITE/AGENTID` with `*` for any part, or `*`
    /// for everybody with a certificate that is believed.
    #[serde(default)]
    pub subjects: Vec<String>,
    /// `/atlas/prod`, which groups below it imply, or `/atlas/Role=production`: attributes of virtual
    /// organisations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub voms: Vec<String>,
    /// Everybody whom this map names by subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid_map: Option<PathBuf>,
    pub may: DoorRight,
    /// The directory it is for; empty: all.
    #[serde(default)]
    pub below: String,
}

/// One issuer of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoorIssuer {
    /// `https://iam.example.org/`, as in its tokens.
    pub url: String,
    /// The directory that the paths in its scopes begin at; empty: all.
    #[serde(default)]
    pub below: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DoorRight {
    Read,
    /// Having files brought from tape; reading as well.
    Stage,
    /// Reading and staging as well.
    Write,
}

fn yes() -> bool {
    true
}

fn default_connections() -> usize {
    Limits::default().connections
}

fn default_transfers() -> usize {
    Limits::default().transfers
}

impl DoorConfig {
    pub(crate) fn check(&self, storages: &[StorageName]) -> Result<(), String> {
        let name = &self.storage;
        if !storages.contains(name) {
            return Err(format!("door of {name}: there is no storage of this name"));
        }
        if self.listen.is_empty() {
            return Err(format!("door of {name}: listen is empty: give an address, such as \"[::]:2880\""));
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err(format!("door of {name}: certificate and key come together"));
        }
        let bounds = [
            ("connections", self.connections, CONNECTIONS_MAX),
            ("transfers", self.transfers, TRANSFERS_MAX),
        ];
        for (what, value, most) in bounds {
            if value == 0 || value > most {
                return Err(format!("door of {name}: {what} is {value}; 1 to {most} is possible"));
            }
        }
        if self.trust_dir.is_some() && !self.client_authorities.is_empty() {
            return Err(format!(
                "door of {name}: either trust_dir or client_authorities say whom it believes"
            ));
        }
        if self.voms_dir.is_some() && self.trust_dir.is_none() {
            return Err(format!(
                "door of {name}: voms_dir is about users of the grid, whom trust_dir lets in"
            ));
        }
        let belows = self.allow.iter().map(|rule| &rule.below);
        for below in belows.chain(self.issuers.iter().map(|issuer| &issuer.below)) {
            let below = below.trim_matches('/');
            if !below.is_empty() && longhaul_model::Pfn::new(name.clone(), below).is_err() {
                return Err(format!("door of {name}: below is no path beneath the root"));
            }
        }
        if !self.issuers.is_empty() {
            TokenTrust::new(self.token_settings())
                .map_err(|fault| format!("door of {name}: {}", fault.detail))?;
        }
        for rule in &self.allow {
            let kinds = [!rule.subjects.is_empty(), !rule.voms.is_empty(), rule.grid_map.is_some()];
            if kinds.iter().filter(|kind| **kind).count() != 1 {
                return Err(format!("door of {name}: a rule has either subjects, or voms, or a grid_map"));
            }
            if !rule.voms.is_empty() && self.voms_dir.is_none() {
                return Err(format!("door of {name}: attributes do not count without voms_dir"));
            }
            if let Some(bad) = rule.voms.iter().find(|fqan| !is_attribute(fqan)) {
                return Err(format!(
                    "door of {name}: {bad:?} is no attribute, such as /atlas/prod or /atlas/Role=production"
                ));
            }
            for subject in &rule.subjects {
                let like = matches!(read_subject(subject)?, Subjects::Like(_));
                if like && !self.client_authorities.is_empty() {
                    return Err(format!(
                        "door of {name}: longhaul:// subjects cannot be told for sure where \
                            client_authorities are \
                         believed as well: open a second door for them"
                    ));
                }
            }
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        let connections_of_address = (self.connections / 2).max(1);
        Limits {
            connections: self.connections,
            connections_of_address,
            transfers: self.transfers,
            ..Limits::default()
        }
    }

    /// For copies with other servers; none if they are switched off.
    fn outgoing(&self) -> Result<Option<Arc<Outgoing>>, Fault> {
        if !self.third_party {
            return Ok(None);
        }
        let mut read = Read::default();
        let mut authorities = String::new();
        for path in &self.third_party_authorities {
            authorities.push_str(&read.large(path)?);
        }
        if self.third_party_authorities.is_empty() {
            let Some(system) = SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists()) else {
                tracing::warn!(
                    storage = %self.storage,
                    "no authorities are installed on this host, so the door makes no third-party copies: \
                        name some in third_party_authorities"
                );
                return Ok(None);
            };
            authorities = read.large(system)?;
        }
        let tls = outside_client_tls(OutsideTrust::Authorities(&authorities))?;
        Ok(Some(Arc::new(Outgoing { tls, allow: self.third_party_allow.clone() })))
    }

    fn token_settings(&self) -> TokenSettings {
        let rule =
            |issuer: &DoorIssuer| IssuerRule { issuer: issuer.url.clone(), vo: None, required_scope: None };
        // Clients ask for tokens for the host, or for the address.
        let names = || self.names.iter().flat_map(|name| [name.clone(), format!("https://{name}")]);
        TokenSettings {
            issuers: self.issuers.iter().map(rule).collect(),
            audiences: if self.audiences.is_empty() { names().collect() } else { self.audiences.clone() },
            leeway: LEEWAY,
        }
    }

    fn issuers(&self) -> Result<Option<Issuers>, Fault> {
        if self.issuers.is_empty() {
            return Ok(None);
        }
        let trust = Arc::new(TokenTrust::new(self.token_settings())?);
        Issuers::open(trust, self.issuer_authorities.as_deref()).map(Some)
    }

    fn users(&self, now: Timestamp) -> Result<Option<GridTrust>, Fault> {
        let Some(directory) = &self.trust_dir else { return Ok(None) };
        let hosts = self.names.iter().map(|name| name.split(':').next().unwrap_or(name).to_owned());
        let settings = GridSettings {
            voms_directory: self.voms_dir.clone(),
            hosts: hosts.collect(),
            ..GridSettings::new(directory)
        };
        GridTrust::load(settings, now).map(Some)
    }

    /// The directory of each issuer.
    fn areas(&self) -> BTreeMap<String, String> {
        let area = |issuer: &DoorIssuer| (issuer.url.clone(), issuer.below.trim_matches('/').to_owned());
        self.issuers.iter().map(area).collect()
    }

    /// Reads everything that may change while the door is open.
    fn access(&self, own: &Credentials) -> Result<(Access, [u8; 32]), Fault> {
        let mut read = Read::default();
        let (certificate, key) = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => (read.text(certificate)?, read.text(key)?),
            _ => (own.certificate_pem.clone(), own.key_pem.clone()),
        };
        read.seen.push_str(&certificate);
        let mut authorities = Vec::new();
        for path in &self.client_authorities {
            authorities.push(read.large(path)?);
        }
        let identities = authorities.is_empty();
        if identities {
            authorities.push(own.ca_pem.clone());
        }
        let authorities: Vec<&str> = authorities.iter().map(String::as_str).collect();
        let tls = match &self.trust_dir {
            Some(_) => door_grid_tls(&certificate, &key, own)?,
            None => door_server_tls(&certificate, &key, &authorities)?,
        };
        let mut rights = Rights { anonymous: self.anonymous_read.then(String::new), ..Rights::default() };
        for rule in &self.allow {
            let may = match rule.may {
                DoorRight::Read => May::Read,
                DoorRight::Stage => May::Stage,
                DoorRight::Write => May::Write,
            };
            let grant = Grant { may, below: rule.below.trim_matches('/').to_owned() };
            for subject in &rule.subjects {
                let whom = read_subject(subject).map_err(|why| Fault::new(FaultCode::BadRequest, why))?;
                rights.subjects.push((whom, grant.clone()));
            }
            if !rule.voms.is_empty() {
                let whom = Subjects::Voms(rule.voms.iter().cloned().collect());
                rights.subjects.push((whom, grant.clone()));
            }
            if let Some(path) = &rule.grid_map {
                let text = read.large(path)?;
                rights.subjects.push((Subjects::Named(named_in(path, &text)), grant));
            }
        }
        if let Some(path) = &self.tokens {
            read.text(path)?;
            rights.tokens =
                read_tokens(path).map_err(|error| Fault::new(FaultCode::BadRequest, error.to_string()))?;
        }
        Ok((Access { tls, identities, rights }, secret_hash(&read.seen)))
    }
}

/// `/vo`, groups below it, and a role at the end.
fn is_attribute(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('/') else { return false };
    let (groups, role) = match rest.split_once("/Role=") {
        Some((groups, role)) => (groups, Some(role)),
        None => (rest, None),
    };
    let named = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    groups.split('/').all(named) && role.is_none_or(named)
}

/// Users of the grid at a door.
struct DoorUsers {
    trust: GridTrust,
    /// An agent's certificate has to be of this one.
    deployment: String,
    clock: ServiceClock,
    /// What was wrong with the files when it was told last.
    told: Mutex<Vec<String>>,
}

impl DoorUsers {
    /// Takes over what has changed in the files; what cannot be read stays as it was.
    fn reload(&self) {
        let problems = match self.trust.reload(self.clock.now()) {
            Ok(looked) => looked.problems,
            Err(fault) => vec![fault.to_string()],
        };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in problems.iter().filter(|problem| !told.contains(problem)) {
            tracing::warn!("users of the grid at a door: {problem}");
        }
        *told = problems;
    }
}

impl Users for DoorUsers {
    fn names(&self, connection: &CommonState) -> Result<Vec<String>, Fault> {
        let client = client_of(connection, &self.deployment, Some(&self.trust), self.clock.now())?;
        Ok(match client {
            None => Vec::new(),
            Some(ClientIdentity::Agent(agent)) => vec![agent.to_string()],
            Some(ClientIdentity::Grid(user)) => {
                if let Some(problem) = &user.fqan_problem {
                    tracing::info!(subject = user.subject, problem, "attributes of a client do not count");
                }
                let attributes = user.fqans.iter().map(|fqan| format!("{VOMS}{fqan}"));
                std::iter::once(user.subject.clone()).chain(attributes).collect()
            }
        })
    }
}

/// The issuers of a door's tokens.
struct DoorIssuers {
    issuers: Issuers,
    clock: ServiceClock,
}

impl DoorIssuers {
    /// Asks for their keys again when these get old.
    async fn refresh_on(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        while !stopped_within(RENEW_EVERY, &mut stop).await {
            for (issuer, fault) in self.issuers.refresh(self.clock.now()).await {
                tracing::warn!(issuer, %fault, "an issuer of tokens does not tell its keys");
            }
        }
    }
}

impl TokenVerifier for DoorIssuers {
    fn verify<'a>(&'a self, token: &'a str) -> Verified<'a> {
        Box::pin(self.issuers.verify(token, Audience::Ours, self.clock.now()))
    }
}

/// What was read, to see whether it has changed.
#[derive(Default)]
struct Read {
    seen: String,
}

impl Read {
    fn text(&mut self, path: &Path) -> Result<String, Fault> {
        let text = read_private(path)?;
        self.seen.push_str(&text);
        Ok(text)
    }

    fn large(&mut self, path: &Path) -> Result<String, Fault> {
        let failed = |why: String| Fault::new(FaultCode::BadRequest, format!("{}: {why}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
        if size > AUTHORITIES_BYTES_MAX {
            return Err(failed(format!("it has more than {AUTHORITIES_BYTES_MAX} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        self.seen.push_str(&text);
        Ok(text)
    }
}

fn read_subject(text: &str) -> Result<Subjects, String> {
    match text {
        "*" => Ok(Subjects::Certified),
        text if text.starts_with('/') => Ok(Subjects::Named(BTreeSet::from([text.to_owned()]))),
        text => text.parse().map(Subjects::Like),
    }
}

/// Only lines for a subject alone: roles are not known here.
fn named_in(path: &Path, text: &str) -> BTreeSet<String> {
    let map = gridmap::parse(text.as_bytes());
    for bad in &map.bad {
        tracing::warn!(file = %path.display(), line = bad.line, why = bad.why, "a line of the grid-map does \
            not count");
    }
    let alone = map.entries.into_iter().filter(|entry| entry.roles.is_empty() && entry.subject != "*");
    alone.map(|entry| entry.subject).collect()
}

/// The doors of an agent, checked and read, not open yet.
pub(crate) struct Doors {
    configs: Vec<Prepared>,
    deployment: String,
    owner: [u8; 8],
    /// A directory for each door, for what clients say of their files.
    properties: PathBuf,
}

struct Prepared {
    config: DoorConfig,
    storage: Arc<dyn Storage>,
    access: Access,
    outgoing: Option<Arc<Outgoing>>,
    issuers: Option<Issuers>,
    users: Option<GridTrust>,
    tape: Option<TapeEnd>,
    /// Hash of what the access was read from.
    seen: [u8; 32],
}

impl Doors {
    pub(crate) fn prepare(
        configs: &[DoorConfig],
        storages: &[Arc<dyn Storage>],
        own: &Credentials,
        agent: u64,
        properties: PathBuf,
        now: Timestamp,
    ) -> Result<Doors, Fault> {
        let mut prepared = Vec::new();
        for config in configs {
            let found = storages.iter().find(|storage| *storage.name() == config.storage);
            let storage =
                found.ok_or_else(|| Fault::new(FaultCode::BadRequest, "a door without a storage"))?;
            let (access, seen) = config.access(own)?;
            let (outgoing, issuers, users) = (config.outgoing()?, config.issuers()?, config.users(now)?);
            prepared.push(Prepared {
                config: config.clone(),
                storage: storage.clone(),
                access,
                outgoing,
                issuers,
                users,
                tape: None,
                seen,
            });
        }
        // What the agent's engine puts into a work directory begins with another mark.
        let mut owner = [0; 8];
        owner.copy_from_slice(&secret_hash(&format!("doors of {agent}"))[..8]);
        let deployment = own.identity()?.deployment().to_owned();
        Ok(Doors { configs: prepared, deployment, owner, properties })
    }

    /// Those of storages on tape speak of it.
    pub(crate) fn on_tape(&mut self, tapes: &Tapes, site: &SiteName) {
        for door in &mut self.configs {
            let tape = tapes.of(&door.config.storage);
            door.tape = tape.map(|tape| TapeEnd { tape, site: site.to_string() });
        }
    }

    /// Opens them and serves until told to stop. Returns earlier only with what stands in the way.
    pub(crate) async fn run(
        self,
        credentials: impl Fn() -> Option<Credentials> + Send + Sync + 'static,
        clock: ServiceClock,
        decided: Arc<Decided>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Fault> {
        let mut open = JoinSet::new();
        let mut renewals = Vec::new();
        let mut doors_of: BTreeMap<StorageName, usize> = BTreeMap::new();
        for Prepared { config, storage, access, outgoing, issuers, users, tape, seen } in self.configs {
            // Two doors of one storage know nothing of each other.
            let number = doors_of.entry(config.storage.clone()).or_default();
            *number += 1;
            let directory = format!("{}.{number}", config.storage);
            let issuers = issuers.map(|issuers| Arc::new(DoorIssuers { issuers, clock: clock.clone() }));
            let issued = issuers
                .clone()
                .map(|issuers| Issued { verifier: issuers as Arc<dyn TokenVerifier>, areas: config.areas() });
            let users = users.map(|trust| {
                let (deployment, clock) = (self.deployment.clone(), clock.clone());
                Arc::new(DoorUsers { trust, deployment, clock, told: Mutex::default() })
            });
            let settings = Settings {
                storage,
                names: config.names.clone(),
                make_parents: config.make_parents,
                delete_trees: config.delete_trees,
                owner: self.owner,
                properties: Some(self.properties.join(directory)),
                outgoing,
                users: users.clone().map(|users| users as Arc<dyn Users>),
                issued,
                tape,
                witness: Some(Arc::new(AtDoor(decided.clone()))),
                limits: config.limits(),
            };
            let door = Door::open(settings, access, &config.listen).await?;
            tracing::info!(storage = %config.storage, addresses = ?door.addresses(), "door open");
            renewals.push(Renewal { config, renewer: door.renewer(), users, seen });
            open.spawn(door.run(stop.clone()));
            issuers.map(|issuers| open.spawn(issuers.refresh_on(stop.clone())));
        }
        while !stopped_within(RENEW_EVERY, &mut stop).await {
            if let Some(own) = credentials() {
                renewals = renew(renewals, own).await?;
            }
        }
        while open.join_next().await.is_some() {}
        Ok(())
    }
}

/// True at a stop.
async fn stopped_within(time: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => true,
        () = tokio::time::sleep(time) => false,
    }
}

/// What has to be read again for one door.
struct Renewal {
    config: DoorConfig,
    renewer: Renewer,
    users: Option<Arc<DoorUsers>>,
    /// Hash of what was read last.
    seen: [u8; 32],
}

/// What cannot be read stays as it was, and is told.
async fn renew(mut renewals: Vec<Renewal>, own: Credentials) -> Result<Vec<Renewal>, Fault> {
    blocking(move || {
        for Renewal { config, renewer, users, seen } in &mut renewals {
            users.iter().for_each(|users| users.reload());
            match config.access(&own) {
                Ok((_, now)) if now == *seen => {}
                Ok((access, now)) => {
                    tracing::info!(storage = %config.storage, "a door's certificates or rights have changed");
                    renewer.renew(access);
                    *seen = now;
                }
                Err(fault) => {
                    tracing::warn!(storage = %config.storage, %fault, "a door keeps its old certificates and \
                        rights")
                }
            }
        }
        Ok(renewals)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(more: &str) -> Result<DoorConfig, String> {
        let text = format!("storage = 'alpha'\nlisten = ['127.0.0.1:0']\n{more}");
        let config: DoorConfig = toml::from_str(&text).map_err(|error| error.to_string())?;
        config.check(&["alpha".parse().unwrap()]).map(|()| config)
    }

    #[test]
    fn a_short_door_is_closed_to_all() {
        let config = door("").unwrap();
        assert!(!config.anonymous_read && config.allow.is_empty() && config.tokens.is_none());
        assert!(config.make_parents && !config.delete_trees);
        assert_eq!(toml::from_str::<DoorConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn mistakes_are_told() {
        for (more, why) in [
            ("issuers = [{ url = 'http://iam' }]", "no issuer"),
            ("issuers = [{ url = 'https://iam' }, { url = 'https://iam/' }]", "twice"),
            ("issuers = [{ url = 'https://iam', below = '../x' }]", "no path"),
            ("key = 'k'", "come together"),
            ("transfers = 0", "transfers is 0"),
            ("[[allow]]\nmay = 'read'", "either subjects, or voms, or a grid_map"),
            ("[[allow]]\nmay = 'read'\nvoms = ['/atlas']", "without voms_dir"),
            ("trust_dir = 't'\nclient_authorities = ['c']", "either trust_dir or"),
            ("voms_dir = 'v'", "trust_dir lets in"),
            ("trust_dir = 't'\nvoms_dir = 'v'\n[[allow]]\nmay = 'read'\nvoms = ['atlas']", "no attribute"),
            ("[[allow]]\nmay = 'read'\nsubjects = ['alice']", "no subject"),
            ("[[allow]]\nmay = 'read'\nsubjects = ['*']\nbelow = '../x'", "no path"),
            ("[[allow]]\nmay = 'all'\nsubjects = ['*']", "unknown variant"),
            (
                "client_authorities = ['c']\n[[allow]]\nmay = 'read'\nsubjects = ['longhaul://*/agent/a/*']",
                "second door",
            ),
        ] {
            let told = door(more).unwrap_err();
            assert!(told.contains(why), "{more}: {told}");
        }
        let other = door("").unwrap().check(&["beta".parse().unwrap()]).unwrap_err();
        assert!(other.contains("no storage of this name"), "{other}");
    }

    #[test]
    fn maps_name_subjects_without_roles() {
        let text = "\"/CN=alice\" a\n\"/CN=bob\" \"/cms\" b\n* x\nnonsense\n";
        assert_eq!(named_in(Path::new("map"), text), BTreeSet::from(["/CN=alice".to_owned()]));
    }
}
