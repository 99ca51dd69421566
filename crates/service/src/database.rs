//! Where the catalog is: in a file of the state directory, or in a database of PostgreSQL.

use std::path::PathBuf;

use longhaul_catalog::{Catalog, PostgresConfig};
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::{
    ForeignServerTrust, create_private, foreign_client_tls, read_secret, restrict_to_owner,
};
use serde::{Deserialize, Serialize};

use crate::Config;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatabaseConfig {
    /// `postgresql://USER@HOST:PORT/NAME`; empty: SQLite, in the state directory.
    pub url: String,
    /// The user's password, in a file that nobody else can read.
    pub password_file: Option<PathBuf>,
    /// A PEM file with the authorities by which the server is believed; none: those of the system.
    pub ca_file: Option<PathBuf>,
}

impl DatabaseConfig {
    pub fn check(&self) -> Result<(), Fault> {
        if self.url.is_empty() {
            if self.password_file.is_some() || self.ca_file.is_some() {
                return Err(bad("url", "is empty: a password or authorities are for a server"));
            }
            return Ok(());
        }
        self.url.parse::<PostgresConfig>().map(drop).map_err(|error| bad("url", error))
    }

    /// With what it takes to get there.
    fn place(&self) -> Result<PostgresConfig, Fault> {
        let mut place: PostgresConfig = self.url.parse().map_err(|error| bad("url", error))?;
        if let Some(file) = &self.password_file {
            let password =
                read_secret(file).map_err(|error| bad("password_file", Fault::from(error).detail))?;
            place = place.with_password(&password);
        }
        if place.wants_tls() {
            let authorities = longhaul_gateways::read_authorities(self.ca_file.as_deref())?;
            place = place.with_tls(foreign_client_tls(ForeignServerTrust::Authorities(&authorities))?);
        }
        Ok(place)
    }
}

fn bad(key: &str, why: impl std::fmt::Display) -> Fault {
    Fault::new(FaultCode::BadRequest, format!("service.database.{key}: {why}"))
}

pub(crate) fn open(config: &Config, now: Timestamp) -> Result<Catalog, Fault> {
    if config.database.url.is_empty() {
        let path = config.state_dir.join("catalog.sqlite");
        create_private(&path)?;
        // SQLite makes these with the mode of the database; an earlier release left them open to others.
        for suffix in ["-wal", "-shm"] {
            restrict_to_owner(&config.state_dir.join(format!("catalog.sqlite{suffix}")))?;
        }
        return Ok(Catalog::open(&path, now)?);
    }
    Ok(Catalog::connect(&config.database.place()?, now)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(config: DatabaseConfig) -> String {
        config.check().map(|()| "good".to_owned()).unwrap_or_else(|fault| fault.detail.to_string())
    }

    #[test]
    fn what_cannot_be_reached_is_told_at_the_start() {
        let url = |url: &str| DatabaseConfig { url: url.into(), ..DatabaseConfig::default() };
        assert_eq!(said(DatabaseConfig::default()), "good");
        assert_eq!(said(url("postgresql://longhaul@db.site.example/catalog")), "good");
        assert!(
            said(url("postgresql://longhaul@db.site.example")).contains("service.database.url: it names no")
        );
        let lost = DatabaseConfig { password_file: Some("password".into()), ..DatabaseConfig::default() };
        assert!(said(lost).contains("for a server"));
    }

    #[test]
    fn a_password_is_read_from_a_file_of_ones_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "s3cret\n").unwrap();
        let config = DatabaseConfig {
            url: "postgresql://longhaul@127.0.0.1/catalog".into(),
            password_file: Some(file.path().into()),
            ca_file: None,
        };
        assert!(!format!("{:?}", config.place().unwrap()).contains("s3cret"));
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(file.path(), open).unwrap();
        assert!(config.place().unwrap_err().detail.contains("service.database.password_file"));
    }

    #[test]
    fn the_database_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let config = Config { state_dir: directory.path().into(), ..Config::default() };
        let now = Timestamp(1_780_000_000_000_000);
        let modes = || {
            let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
            let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
            names.map(mode).collect::<Vec<_>>()
        };
        let catalog = open(&config, now).unwrap();
        assert!(!modes().is_empty() && modes().iter().all(|mode| *mode == 0o600), "{:?}", modes());
        drop(catalog);
        // What an earlier release left behind.
        for name in ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"] {
            let path = directory.path().join(name);
            if path.exists() {
                std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
            }
        }
        let _catalog = open(&config, now).unwrap();
        assert!(modes().iter().all(|mode| *mode == 0o600), "{:?}", modes());
    }
}
