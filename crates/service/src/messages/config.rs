//! What an administrator can set about messages.

use std::path::PathBuf;
use std::time::Duration;

use longhaul_api::fts::MessageKind;
use longhaul_gateways::brokers::{Broker, Login, LoginFiles, Protocol};
use longhaul_model::{Fault, FaultCode};
use serde::{Deserialize, Serialize};

/// Below it a spool would drop what a short absence of a broker leaves.
const SPOOL_BYTES_MIN: u64 = 16 << 20;
const NAME_BYTES_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MessagesConfig {
    /// The name under which messages come; empty: the host of `public_url`.
    pub alias: String,
    /// Said as `fqdn`; empty: not said.
    pub fqdn: String,
    /// Users are named.
    pub users: bool,
    /// What waits for brokers on disk; the oldest go beyond it.
    pub spool_bytes: u64,
    /// Nobody wants a message later, neither from us nor from a broker.
    pub expire_hours: u32,
    pub start: String,
    pub complete: String,
    pub state: String,
    pub queue_state: String,
    pub stomp: StompConfig,
    pub nats: NatsConfig,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StompConfig {
    /// One after the other until one takes us; none: no messages by STOMP.
    pub brokers: Vec<String>,
    /// Topics, otherwise queues.
    pub topics: bool,
    pub user: String,
    pub password_file: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub authorities: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsConfig {
    pub servers: Vec<String>,
    /// A stream of the server stores each message and says so.
    pub jetstream: bool,
    pub user: String,
    pub password_file: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub authorities: Option<PathBuf>,
}

impl Default for MessagesConfig {
    fn default() -> Self {
        let name = |kind: MessageKind| format!("transfer.fts_monitoring_{}", kind.word());
        MessagesConfig {
            alias: String::new(),
            fqdn: String::new(),
            users: false,
            spool_bytes: 4_000_000_000,
            expire_hours: 24,
            start: name(MessageKind::Start),
            complete: name(MessageKind::Complete),
            state: name(MessageKind::State),
            queue_state: name(MessageKind::QueueState),
            stomp: StompConfig::default(),
            nats: NatsConfig::default(),
        }
    }
}

impl Default for StompConfig {
    fn default() -> Self {
        StompConfig {
            brokers: Vec::new(),
            topics: true,
            user: String::new(),
            password_file: None,
            certificate: None,
            key: None,
            authorities: None,
        }
    }
}

/// One transport to brokers (STOMP or NATS), ready for use.
#[derive(Clone)]
pub struct Transport {
    /// Name in files, metrics and logs.
    pub name: &'static str,
    pub brokers: Vec<Broker>,
    pub login: Login,
    pub confirmed: bool,
    /// Prefix of the names of topics and subjects.
    pub prefix: &'static str,
}

impl MessagesConfig {
    pub fn is_wanted(&self) -> bool {
        !self.stomp.brokers.is_empty() || !self.nats.servers.is_empty()
    }

    /// Finds at the start what would fail later, unreadable files too.
    pub fn check(&self) -> Result<(), Fault> {
        if !self.is_wanted() {
            return Ok(());
        }
        for (key, name) in MessageKind::ALL.map(|kind| (kind.word(), self.destination(kind))) {
            let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            let whole = name.split('.').all(|part| !part.is_empty());
            if name.len() > NAME_BYTES_MAX || !whole || !name.chars().all(letters) {
                let text = format!(
                    "{key} is {name:?}: letters, digits, - and _ are expected, in parts with dots between"
                );
                return Err(about(Fault::new(FaultCode::BadRequest, text)));
            }
        }
        if self.spool_bytes < SPOOL_BYTES_MIN {
            let text = format!("spool_bytes is {}: at least {SPOOL_BYTES_MIN}", self.spool_bytes);
            return Err(about(Fault::new(FaultCode::BadRequest, text)));
        }
        if self.expire_hours == 0 {
            let text = "expire_hours is 0: it must be positive";
            return Err(about(Fault::new(FaultCode::BadRequest, text)));
        }
        self.ways().map(drop)
    }

    pub fn expire(&self) -> Duration {
        Duration::from_secs(u64::from(self.expire_hours) * 3_600)
    }

    pub fn ways(&self) -> Result<Vec<Transport>, Fault> {
        let mut ways = Vec::new();
        if !self.stomp.brokers.is_empty() {
            let stomp = &self.stomp;
            let files = LoginFiles {
                user: stomp.user.clone(),
                password_file: stomp.password_file.clone(),
                certificate: stomp.certificate.clone(),
                key: stomp.key.clone(),
                authorities: stomp.authorities.clone(),
            };
            let (brokers, login) = place(&stomp.brokers, Protocol::Stomp, "stomp.brokers", &files)?;
            let prefix = if stomp.topics { "/topic/" } else { "/queue/" };
            ways.push(Transport { name: "stomp", brokers, login, confirmed: true, prefix });
        }
        if !self.nats.servers.is_empty() {
            let nats = &self.nats;
            let files = LoginFiles {
                user: nats.user.clone(),
                password_file: nats.password_file.clone(),
                certificate: nats.certificate.clone(),
                key: nats.key.clone(),
                authorities: nats.authorities.clone(),
            };
            let (brokers, login) = place(&nats.servers, Protocol::Nats, "nats.servers", &files)?;
            ways.push(Transport { name: "nats", brokers, login, confirmed: nats.jetstream, prefix: "" });
        }
        Ok(ways)
    }

    /// Where messages of a kind go, without what says topic or queue.
    pub fn destination(&self, kind: MessageKind) -> &str {
        match kind {
            MessageKind::Start => &self.start,
            MessageKind::Complete => &self.complete,
            MessageKind::State => &self.state,
            MessageKind::QueueState => &self.queue_state,
        }
    }
}

fn place(
    urls: &[String],
    protocol: Protocol,
    key: &str,
    files: &LoginFiles,
) -> Result<(Vec<Broker>, Login), Fault> {
    let mut brokers = Vec::new();
    for url in urls {
        let broker = Broker::parse(url).map_err(about)?;
        if broker.protocol != protocol {
            let text = format!("{key} has {url:?}, which is the other protocol");
            return Err(about(Fault::new(FaultCode::BadRequest, text)));
        }
        brokers.push(broker);
    }
    let tls = brokers.iter().any(|broker| broker.tls);
    if !tls && files.certificate.is_some() {
        let text = format!(
            "{key} names no broker with TLS, and there is a certificate to show: use stomps:// or tls://"
        );
        return Err(about(Fault::new(FaultCode::BadRequest, text)));
    }
    let login = Login::read(files, tls).map_err(about)?;
    Ok((brokers, login))
}

fn about(fault: Fault) -> Fault {
    Fault::new(fault.code, format!("service.messages: {}", fault.detail)).with_source(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stomp(brokers: &[&str]) -> MessagesConfig {
        let brokers = brokers.iter().map(|url| (*url).to_owned()).collect();
        MessagesConfig {
            stomp: StompConfig { brokers, ..StompConfig::default() },
            ..MessagesConfig::default()
        }
    }

    #[test]
    fn wrong_settings_are_told_with_what_is_expected() {
        assert!(MessagesConfig::default().check().is_ok() && stomp(&["stomp://a:1"]).check().is_ok());
        let at_a = || stomp(&["stomp://a:1"]);
        let absent = Some(PathBuf::from("/absent/file"));
        for (config, word) in [
            (stomp(&["nats://a:1"]), "other protocol"),
            (stomp(&["stomp://u:p@a:1"]), "own settings"),
            (MessagesConfig { spool_bytes: 7, ..at_a() }, "spool_bytes"),
            (MessagesConfig { expire_hours: 0, ..at_a() }, "expire_hours"),
            (MessagesConfig { state: "a b".into(), ..at_a() }, "state is"),
            (MessagesConfig { complete: "a..b".into(), ..at_a() }, "complete is"),
            (
                MessagesConfig {
                    stomp: StompConfig { password_file: absent.clone(), ..at_a().stomp },
                    ..at_a()
                },
                "/absent/file",
            ),
            (
                MessagesConfig { stomp: StompConfig { certificate: absent, ..at_a().stomp }, ..at_a() },
                "stomps://",
            ),
        ] {
            let detail = config.check().unwrap_err().detail;
            assert!(detail.starts_with("service.messages: ") && detail.contains(word), "{detail}");
        }
    }

    #[test]
    fn names_are_those_of_fts() {
        let config = stomp(&["stomp://a"]);
        assert_eq!(config.destination(MessageKind::Complete), "transfer.fts_monitoring_complete");
        assert_eq!(config.ways().unwrap()[0].prefix, "/topic/");
    }
}
