//! Where a PostgreSQL database is and how to connect to it: libpq connection strings, TLS, timeouts.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Config, NoTls};
use tokio_rustls::rustls::ClientConfig;

use super::BUSY_WAIT;
use super::tls::Tls;
use crate::sql::{DatabaseError, Session};

/// A server that vanished without closing its connections is noticed after this: `TCP_USER_TIMEOUT` of RFC
/// 5482.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle time before, and between, keep-alive probes: three of them fit into the timeout above.
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// A database, as `postgresql://USER@HOST:PORT/NAME` or in the words of libpq (`host=… user=… dbname=…`).
///
/// Connections to other machines use TLS unless the text says `sslmode=disable`.
#[derive(Clone)]
pub struct PostgresConfig {
    config: Config,
    tls: Option<Arc<ClientConfig>>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}; a database is named as postgresql://USER@HOST:PORT/NAME, its password in a file of its own")]
pub struct PostgresConfigError(String);

impl FromStr for PostgresConfig {
    type Err = PostgresConfigError;

    fn from_str(text: &str) -> Result<Self, PostgresConfigError> {
        // The driver's error texts do not repeat the input, which may hold a password.
        let mut config: Config = text.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            PostgresConfigError(cause.unwrap_or_else(|| error.to_string()))
        })?;
        if config.get_hosts().is_empty() {
            return Err(PostgresConfigError("it names no host".into()));
        }
        if config.get_password().is_some() {
            return Err(PostgresConfigError(
                "it contains a password, which anyone who sees it could read".into(),
            ));
        }
        if config.get_dbname().is_none() {
            return Err(PostgresConfigError("it names no database".into()));
        }
        if !text.contains("sslmode") {
            config.ssl_mode(if is_local(&config) { SslMode::Disable } else { SslMode::Require });
        }
        config.application_name("longhaul").connect_timeout(BUSY_WAIT);
        config
            .keepalives_idle(TCP_KEEPALIVE_INTERVAL)
            .keepalives_interval(TCP_KEEPALIVE_INTERVAL)
            .tcp_user_timeout(TCP_USER_TIMEOUT);
        Ok(PostgresConfig { config, tls: None })
    }
}

impl PostgresConfig {
    /// Adds the password, which is not part of the text.
    pub fn with_password(mut self, password: &str) -> Self {
        self.config.password(password);
        self
    }

    /// Sets the TLS configuration, with the authorities whose servers are trusted.
    pub fn with_tls(mut self, tls: Arc<ClientConfig>) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Whether connections use TLS, or may.
    pub fn wants_tls(&self) -> bool {
        self.config.get_ssl_mode() != SslMode::Disable
    }

    pub(super) fn connect(&self) -> Result<Session, DatabaseError> {
        match &self.tls {
            Some(tls) => Session::open(&self.config, Tls(tls.clone())),
            None => Session::open(&self.config, NoTls),
        }
    }
}

/// Whether the server is on this machine: a Unix socket or a loopback address.
fn is_local(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
    })
}

/// Leaves out the password.
impl fmt::Display for PostgresConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts = hosts.collect::<Vec<_>>().join(",");
        write!(out, "the database {} at {hosts}", self.config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_are_parsed_and_shown_without_the_password() {
        let place: PostgresConfig = "postgresql://longhaul@db.site.example:5433/catalog".parse().unwrap();
        let place = place.with_password("s3cret");
        assert_eq!(place.to_string(), "the database catalog at db.site.example");
        assert!(!format!("{place:?}").contains("s3cret"));
        for (bad, why) in [
            ("postgresql://user@/catalog", "no host"),
            ("host=localhost user=a", "no database"),
            ("postgresql://user:s3cret@host/catalog", "contains a password"),
            ("postgresql://a@b:port/c", "port"),
            ("mysql://a@b/c", ""),
        ] {
            let error = bad.parse::<PostgresConfig>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("postgresql://USER"), "{bad}: {error}");
        }
    }

    #[test]
    fn remote_servers_are_reached_by_tls() {
        let wants = |text: &str| text.parse::<PostgresConfig>().unwrap().wants_tls();
        assert!(wants("postgresql://a@db.site.example/c") && wants("postgresql://a@192.0.2.1/c"));
        assert!(!wants("postgresql://a@127.0.0.1/c") && !wants("postgresql://a@[::1]/c"));
        assert!(!wants("host=/run/postgresql user=a dbname=c"));
        assert!(!wants("postgresql://a@db.site.example/c?sslmode=disable"));
        assert!(wants("postgresql://a@localhost/c?sslmode=require"));
    }
}
