//! `[agent.mover]`: whether the agent streams copies between foreign storages, and what it may reach.

use std::path::PathBuf;

use longhaul_model::address::IpNetwork;
use serde::{Deserialize, Serialize};

/// Upper bound of concurrent copies.
const FILES_MAX: u32 = 1_000;
/// Maximum number of allowed networks.
const NETWORKS_MAX: usize = 1_000;

/// Settings of the foreign mover; off unless the site enables it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForeignMoverConfig {
    /// Concurrent copies; 0: none are made.
    pub files: u32,
    /// Rate limit of all copies together; none: the site's limits.
    pub bytes_per_s: Option<u64>,
    /// Loopback, link-local and private networks whose storages may be used; all public ones may.
    pub allow_networks: Vec<String>,
    /// PEM files with the authorities that storages are believed by; none: those of the system.
    pub authorities: Vec<PathBuf>,
}

impl ForeignMoverConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.files > FILES_MAX {
            return Err(format!("mover.files is {}, the most is {FILES_MAX}", self.files));
        }
        if self.bytes_per_s == Some(0) {
            return Err("mover.bytes_per_s is 0: set mover.files to 0 if nothing shall be moved".into());
        }
        if self.allow_networks.len() > NETWORKS_MAX {
            return Err(format!("mover.allow_networks holds {NETWORKS_MAX} entries at most"));
        }
        self.networks().map(drop)
    }

    pub(crate) fn networks(&self) -> Result<Vec<IpNetwork>, String> {
        let parse = |text: &String| text.parse().map_err(|error| format!("mover.allow_networks: {error}"));
        self.allow_networks.iter().map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let with = |text: &str| toml::from_str::<ForeignMoverConfig>(text).unwrap().check();
        assert_eq!(with(""), Ok(()));
        assert!(with("files = 1001").unwrap_err().contains("mover.files"));
        assert!(with("bytes_per_s = 0").unwrap_err().contains("mover.bytes_per_s"));
        assert!(with("allow_networks = [\"10.0.0.0/99\"]").unwrap_err().contains("mover.allow_networks"));
        assert_eq!(with("allow_networks = [\"10.0.0.0/8\", \"::1\"]"), Ok(()));
    }
}
