//! What an administrator can set, with units in the names. The binary merges file, environment and options
//! into one [`Config`]; nothing here reads any of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_control::staging::config::StagingConfig;
use longhaul_identity::{FtsConfig, LoginConfig};
use longhaul_jobs::JobsConfig;
use longhaul_model::Fault;
use longhaul_model::FaultCode;
use longhaul_netops::{ArchiveConfig, CircuitsConfig};
use longhaul_scheduler::Strategy;
use serde::{Deserialize, Serialize};

use crate::database::DatabaseConfig;
use crate::marking::MarkingConfig;
use crate::messages::MessagesConfig;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Holds the database if it is SQLite's, the CA and the keys; made with mode 0700.
    pub state_dir: PathBuf,
    /// Where agents and people connect with TLS.
    pub listen: Vec<SocketAddr>,
    /// A plain HTTP listener for browsers on this machine; only a loopback address is accepted. None: no such
    /// listener.
    pub http: Option<SocketAddr>,
    /// How others reach the service; written into join tokens. Empty: `https://` and the first listening
    /// address.
    pub public_url: String,
    /// PEM file of a certificate and its chain, of an authority that people and programs know. They see it
    /// instead of the deployment's own.
    pub host_certificate: Option<PathBuf>,
    /// PEM file of its key, which nobody else may read.
    pub host_key: Option<PathBuf>,
    /// Further host names and addresses that the service's certificate shall carry.
    pub names: Vec<String>,
    /// Name of the deployment, in every certificate. Chosen once, at `init`.
    pub deployment: String,
    /// Where the catalog is kept.
    pub database: DatabaseConfig,
    /// A lease not begun within this many seconds must not begin.
    pub lease_s: u32,
    /// Agents report at least this often.
    pub report_every_ms: u32,
    /// An agent of a shared storage that is silent for this many seconds is fenced by another one, which
    /// takes over what it held.
    pub fence_after_s: u32,
    /// Finished transfers older than this many days are forgotten.
    pub history_days: u32,
    /// Finished transfers beyond this number are forgotten, oldest first.
    pub history_rows: u64,
    /// Seconds between two checks of the state's invariants by itself, at low priority; 0: none.
    pub check_every_s: u32,
    /// A copy verified longer ago than this many days does not count as a good one; 0: its age does not
    /// matter.
    pub copies_verified_within_days: u32,
    /// Where everything is recorded that the scheduler hears and decides; none: nowhere.
    pub record_dir: Option<PathBuf>,
    /// All recordings there together; the oldest go.
    pub record_bytes: u64,
    /// Seconds between two peers that an agent is asked to look at; 0: none.
    pub probe_every_s: u32,
    /// How sources are chosen where neither a subscription nor its target says: `best`, or one of FTS3's
    /// nine.
    pub strategy: String,
    /// Whether leases that wait behind a link that became slow are asked back where another source is much
    /// sooner.
    pub ask_back: bool,
    /// Whether tests of links decide which of them carry production: after one that was not good a link
    /// carries test transfers only, until one is.
    pub links_by_tests: bool,
    /// Archives of measurements to read, and meshes to watch.
    pub perfsonar: Vec<ArchiveConfig>,
    /// How people log in to the pages, beside tokens and local accounts.
    pub login: LoginConfig,
    /// The FTS3 REST API.
    pub fts: FtsConfig,
    /// Copies between URLs, as users of FTS submit them.
    pub jobs: JobsConfig,
    /// Files that subscriptions want from tape.
    pub staging: StagingConfig,
    /// Circuits: who decides about them, and when one pays.
    pub circuits: CircuitsConfig,
    /// Which work is marked on the network.
    pub marking: MarkingConfig,
    /// Brokers that are told what happens to jobs.
    pub messages: MessagesConfig,
    pub limits: HttpLimits,
}

/// Bounds of each listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpLimits {
    /// Connections of one listener at a time. A quarter is for handshakes under way and a quarter for agents;
    /// one address has at most an eighth. Further ones are closed.
    pub connections: u32,
    /// A JSON body.
    pub body_bytes: u64,
    /// An uploaded manifest.
    pub manifest_bytes: u64,
    /// The head of a request must have come, and a TLS handshake must have ended, within this time.
    pub head_ms: u32,
    /// A peer that neither sends nor takes a byte of a message under way for this long is dropped.
    pub stall_ms: u32,
    /// The longest that a work poll is held open.
    pub poll_ms: u32,
    /// Blocking operations at a time; further requests wait for `wait_ms`, then are told that it is busy.
    pub operations: u32,
    pub wait_ms: u32,
    /// Listeners of the event stream at a time.
    pub event_streams: u32,
    /// Requests of one user a second, on average; twice as many at once. 0: no limit.
    pub user_requests_per_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            state_dir: PathBuf::from("/var/lib/longhaul/service"),
            listen: vec![SocketAddr::from(([0, 0, 0, 0], 8443))],
            http: None,
            public_url: String::new(),
            host_certificate: None,
            host_key: None,
            names: Vec::new(),
            deployment: "longhaul".to_owned(),
            database: DatabaseConfig::default(),
            lease_s: 600,
            report_every_ms: 1_000,
            fence_after_s: 60,
            history_days: 30,
            history_rows: 2_000_000,
            check_every_s: 86_400,
            // Catalogs of earlier releases do not know when their copies were verified, and not every site
            // reads its files again each year: who does, says so.
            copies_verified_within_days: 0,
            record_dir: None,
            record_bytes: 4_000_000_000,
            probe_every_s: 10,
            strategy: "best".to_owned(),
            ask_back: false,
            links_by_tests: false,
            perfsonar: Vec::new(),
            login: LoginConfig::default(),
            fts: FtsConfig::default(),
            jobs: JobsConfig::default(),
            staging: StagingConfig::default(),
            circuits: CircuitsConfig::default(),
            marking: MarkingConfig::default(),
            messages: MessagesConfig::default(),
            limits: HttpLimits::default(),
        }
    }
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            connections: 4_096,
            body_bytes: longhaul_model::limits::BODY_BYTES_MAX as u64,
            manifest_bytes: 2 << 30,
            head_ms: 10_000,
            stall_ms: 30_000,
            poll_ms: 30_000,
            operations: 16,
            wait_ms: 20_000,
            event_streams: 1_000,
            // More than one user gets from two cores with the fastest of requests: it stops who runs wild,
            // not who works.
            user_requests_per_s: 5_000,
        }
    }
}

impl HttpLimits {
    pub fn wait(&self) -> Duration {
        Duration::from_millis(u64::from(self.wait_ms))
    }

    pub fn stall(&self) -> Duration {
        Duration::from_millis(u64::from(self.stall_ms))
    }

    pub fn head(&self) -> Duration {
        Duration::from_millis(u64::from(self.head_ms))
    }
}

impl Config {
    /// What would only fail later, told at the start.
    /// Copies verified longer ago do not count as good ones.
    pub fn verified_within_us(&self) -> Option<u64> {
        let days = Some(self.copies_verified_within_days).filter(|&days| days > 0);
        days.map(|days| u64::from(days) * 86_400_000_000)
    }

    pub fn check(&self) -> Result<(), Fault> {
        let bad = |detail: String| Err(Fault::new(FaultCode::BadRequest, detail));
        if self.listen.is_empty() {
            return bad("service.listen names no address: agents and people could not connect".into());
        }
        if let Some(http) = self.http
            && !http.ip().is_loopback()
        {
            return bad(format!(
                "service.http is {http}: plain HTTP is served on a loopback address only, such as \
                    127.0.0.1:8080"
            ));
        }
        if !self.public_url.is_empty() && !self.public_url.starts_with("https://") {
            return bad(format!("service.public_url is {:?}: it must begin with https://", self.public_url));
        }
        if self.host_certificate.is_some() != self.host_key.is_some() {
            let detail =
                "service.host_certificate and service.host_key belong together: one of them is missing";
            return bad(detail.into());
        }
        longhaul_model::SiteName::parse(&self.deployment).map_err(|error| {
            Fault::new(FaultCode::BadRequest, format!("service.deployment: {error}")).with_source(error)
        })?;
        for (name, value) in [
            ("lease_s", self.lease_s),
            ("report_every_ms", self.report_every_ms),
            ("fence_after_s", self.fence_after_s),
            ("limits.connections", self.limits.connections),
            ("limits.head_ms", self.limits.head_ms),
            ("limits.stall_ms", self.limits.stall_ms),
            ("limits.poll_ms", self.limits.poll_ms),
            ("limits.operations", self.limits.operations),
        ] {
            if value == 0 {
                return bad(format!("service.{name} is 0: it must be positive"));
            }
        }
        self.database.check()?;
        self.strategy()?;
        self.login.check()?;
        if !self.login.certificates.is_empty() && self.fts.trust_dir.is_none() {
            return bad("service.login.certificates: none counts without service.fts.trust_dir".into());
        }
        self.fts.check()?;
        self.jobs.check()?;
        self.staging.check().or_else(|why| bad(format!("service.{why}")))?;
        self.circuits.check()?;
        self.marking.table()?;
        self.messages.check()?;
        self.perfsonar.iter().try_for_each(ArchiveConfig::check)
    }

    pub(crate) fn strategy(&self) -> Result<Strategy, Fault> {
        let parsed = self.strategy.parse::<Strategy>();
        parsed.map_err(|error| {
            Fault::new(FaultCode::BadRequest, format!("service.strategy: {error}")).with_source(error)
        })
    }

    pub fn lease(&self) -> Duration {
        Duration::from_secs(u64::from(self.lease_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_only() {
        let mut config = Config { http: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..Config::default() };
        assert!(config.check().is_ok());
        config.http = Some(SocketAddr::from(([192, 0, 2, 1], 80)));
        assert!(config.check().unwrap_err().detail.contains("loopback"));
    }

    #[test]
    fn an_unknown_strategy_is_told_with_those_that_are_known() {
        let config = Config { strategy: "fastest".into(), ..Config::default() };
        let detail = config.check().unwrap_err().detail;
        assert!(detail.starts_with("service.strategy:") && detail.contains("orderly"), "{detail}");
    }

    #[test]
    fn unknown_settings_are_refused() {
        let error = serde_json::from_str::<Config>(r#"{"lisen":[]}"#).unwrap_err();
        assert!(error.to_string().contains("lisen"));
        assert!(serde_json::from_str::<Config>(r#"{"listen":[]}"#).unwrap().check().is_err());
    }
}
