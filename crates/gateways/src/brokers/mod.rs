//! Brokers of messages: what is published reaches them by STOMP or by NATS, and is theirs when they have said
//! so.
//!
//! A session publishes in the order that it is given, and answers for all of a batch or for none: after a
//! fault what was not answered for is published again, so that a broker may get it twice and never not at
//! all. Not here: what is said, what waits on disk, when it is tried again (`service::messages`). Start with
//! [`Broker::parse`] and [`Session::open`].

pub mod nats;
pub mod stomp;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode};
use longhaul_outbound::{self as outbound, read_authorities};
use longhaul_security::{
    ForeignServerTrust, foreign_client_tls, foreign_client_tls_with_certificate, read_secret,
};
use rustls::ClientConfig;
use zeroize::Zeroizing;

/// A broker has taken what it was given, or greeted us, within this time.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Stomp,
    Nats,
}

/// The address of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    pub protocol: Protocol,
    pub host: String,
    pub port: u16,
    pub tls: bool,
}

impl Broker {
    /// `stomp://host:port`, `stomps://` with TLS, `nats://`, `tls://` for NATS with TLS.
    pub fn parse(url: &str) -> Result<Broker, Fault> {
        let bad = |why: &str| {
            let text = format!("{:?} names no broker: {why}", longhaul_model::units::printable(url));
            Err(Fault::new(FaultCode::BadRequest, text))
        };
        let Some((scheme, place)) = url.split_once("://") else {
            return bad("it begins with stomp://, stomps://, nats:// or tls://");
        };
        let (protocol, tls, usual) = match scheme {
            "stomp" => (Protocol::Stomp, false, 61_613),
            "stomps" => (Protocol::Stomp, true, 61_614),
            "nats" => (Protocol::Nats, false, 4_222),
            "tls" => (Protocol::Nats, true, 4_222),
            _ => return bad("the schemes are stomp, stomps, nats and tls"),
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = match place
            .rfind(']')
            .map_or(place.rfind(':'), |end| place[end..].find(':').map(|at| end + at))
        {
            Some(at) => (&place[..at], place[at + 1..].parse().ok()),
            None => (place, Some(usual)),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
        match port {
            _ if host.contains('@') || place.contains('@') => bad("a login stands in its own settings"),
            Some(port) if port > 0 && !host.is_empty() && host.chars().all(letters) => {
                Ok(Broker { protocol, host: host.to_owned(), port, tls })
            }
            _ => bad("after the scheme come a host and a port, and nothing else"),
        }
    }
}

impl std::fmt::Display for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Credentials of a client, and the authorities that it trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoginFiles {
    pub user: String,
    pub password_file: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// None: the authorities of the system.
    pub authorities: Option<PathBuf>,
}

/// The same, read.
#[derive(Clone)]
pub struct Login {
    pub(crate) user: String,
    pub(crate) password: Option<Zeroizing<String>>,
    tls: Option<Arc<ClientConfig>>,
}

impl Login {
    /// `tls`: whether any broker wants it.
    pub fn read(files: &LoginFiles, tls: bool) -> Result<Login, Fault> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map(Zeroizing::new).map_err(|error| {
                Fault::new(FaultCode::BadRequest, format!("{}: {error}", path.display())).with_source(error)
            })
        };
        let password = files.password_file.as_deref().map(read_secret).transpose();
        let password =
            password.map_err(|error| Fault::new(FaultCode::BadRequest, Fault::from(error).detail))?;
        let tls = match (tls, &files.certificate, &files.key) {
            (false, ..) => None,
            (true, None, None) => {
                let trust = read_authorities(files.authorities.as_deref())?;
                Some(foreign_client_tls(ForeignServerTrust::Authorities(&trust))?)
            }
            (true, Some(certificate), Some(key)) => {
                let trust = read_authorities(files.authorities.as_deref())?;
                let trust = ForeignServerTrust::Authorities(&trust);
                Some(foreign_client_tls_with_certificate(trust, &read(certificate)?, &read(key)?)?)
            }
            _ => {
                let text = "a certificate and its key belong together: name both, or none";
                return Err(Fault::new(FaultCode::BadRequest, text));
            }
        };
        Ok(Login { user: files.user.clone(), password, tls })
    }

    pub(crate) fn tls(&self) -> Result<Arc<ClientConfig>, Fault> {
        let missing = || Fault::new(FaultCode::Internal, "TLS is wanted, and was not prepared");
        self.tls.clone().ok_or_else(missing)
    }
}

/// A message to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// Its own, for ever: what comes twice can be told by it.
    pub number: u64,
    pub destination: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    /// The broker shall keep it over its own restarts.
    pub persistent: bool,
    /// Nobody wants it later, in milliseconds since 1970; 0: no end.
    pub expires_ms: i64,
}

/// A connection to a broker that has let us in.
pub enum Session {
    Stomp(stomp::Session),
    Nats(nats::Session),
}

impl Session {
    /// `confirmed`: by NATS, that a stream has stored each message.
    pub async fn open(broker: &Broker, login: &Login, confirmed: bool) -> Result<Session, Fault> {
        let opening = async {
            let stream = outbound::connect(&broker.host, broker.port).await?;
            match broker.protocol {
                Protocol::Stomp => {
                    let stream = if broker.tls {
                        outbound::connect_tls(stream, &broker.host, login.tls()?).await?
                    } else {
                        stream
                    };
                    stomp::Session::open(stream, &broker.host, login).await.map(Session::Stomp)
                }
                Protocol::Nats => {
                    nats::Session::open(stream, broker, login, confirmed).await.map(Session::Nats)
                }
            }
        };
        in_time(ANSWER_TIME_MAX, opening, "has not let us in").await
    }

    /// All of these are the broker's, when this returns well; which is to be within that time.
    pub async fn publish(&mut self, messages: &[OutgoingMessage], within: Duration) -> Result<(), Fault> {
        let what = "has not taken what it was sent";
        match self {
            Session::Stomp(session) => in_time(within, session.publish(messages), what).await,
            Session::Nats(session) => in_time(within, session.publish(messages), what).await,
        }
    }

    /// Keeps the connection alive; ends when it is lost. May be dropped at any time.
    pub async fn idle(&mut self) -> Fault {
        match self {
            Session::Stomp(session) => session.idle().await,
            Session::Nats(session) => session.idle().await,
        }
    }
}

async fn in_time<T>(
    within: Duration,
    work: impl Future<Output = Result<T, Fault>>,
    what: &str,
) -> Result<T, Fault> {
    match tokio::time::timeout(within, work).await {
        Ok(done) => done,
        Err(_) => {
            let text = format!("the broker {what} within {} s", within.as_secs());
            Err(Fault::new(FaultCode::Stalled, text))
        }
    }
}

/// A violation of the protocol by a broker.
pub(crate) fn broken(why: impl Into<String>) -> Fault {
    Fault::new(FaultCode::ProtocolError, why)
}

pub(crate) fn lost(error: std::io::Error) -> Fault {
    Fault::new(FaultCode::ConnectionLost, format!("the connection to the broker: {error}")).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_named_by_urls() {
        let broker =
            |url| Broker::parse(url).map(|broker| (broker.protocol, broker.host, broker.port, broker.tls));
        assert_eq!(
            broker("stomp://mq.example.org").unwrap(),
            (Protocol::Stomp, "mq.example.org".into(), 61_613, false)
        );
        assert_eq!(broker("stomps://[::1]:9/").unwrap(), (Protocol::Stomp, "::1".into(), 9, true));
        assert_eq!(broker("nats://[::1]").unwrap(), (Protocol::Nats, "::1".into(), 4_222, false));
        assert_eq!(broker("tls://a:1").unwrap(), (Protocol::Nats, "a".into(), 1, true));
        for bad in [
            "a:1",
            "http://a",
            "stomp://",
            "stomp://:1",
            "stomp://a:0",
            "stomp://a:x",
            "stomp://me:pw@a:1",
            "stomp://a/b",
        ] {
            let fault = broker(bad).unwrap_err();
            assert_eq!(fault.code, FaultCode::BadRequest, "{bad}");
        }
        assert!(broker("stomp://me:pw@a:1").unwrap_err().detail.contains("own settings"));
    }

    /// Lets us in and confirms nothing: that is a fault, and no confirmation.
    #[test]
    fn a_broker_that_never_confirms_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (url, says) in [
                ("stomp", &b"CONNECTED\nversion:1.2\n\n\0"[..]),
                ("nats", b"INFO {\"headers\":true}\r\nPONG\r\n"),
            ] {
                let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                let port = listener.local_addr().unwrap().port();
                let server = async {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    tokio::io::AsyncWriteExt::write_all(&mut stream, says).await.unwrap();
                    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.unwrap()
                };
                let client = async {
                    let broker = Broker::parse(&format!("{url}://127.0.0.1:{port}")).unwrap();
                    let login = Login::read(&LoginFiles::default(), false).unwrap();
                    let mut session = Session::open(&broker, &login, false).await.unwrap();
                    let message = OutgoingMessage {
                        number: 1,
                        destination: "a".into(),
                        headers: vec![],
                        body: "{} ".into(),
                        persistent: true,
                        expires_ms: 0,
                    };
                    session.publish(&[message], Duration::from_millis(50)).await.unwrap_err()
                };
                let (sent, fault) = tokio::join!(server, client);
                assert_eq!(fault.code, FaultCode::Stalled, "{url}: {fault}");
                assert!(sent > 50, "it was sent what it did not confirm");
            }
        });
    }
}
