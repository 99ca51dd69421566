//! The program's configuration: one TOML file, overridden by the environment, overridden by options. Each
//! crate declares its section as a type with defaults; here they are combined.

pub mod file;
pub mod layers;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use layers::{Layers, Origin};

use crate::failure::Failure;

/// The configuration file, unless `--config` or `LONGHAUL_CONFIG` names another.
pub const SYSTEM_FILE: &str = "/etc/longhaul/longhaul.toml";
/// Default state directory of an agent.
const AGENT_STATE: &str = "/var/lib/longhaul/agent";
/// Name of the client profile that `service init` writes and `--dir` reads.
pub const PROFILE: &str = "client.toml";

/// Value of [`ClientConfig::ca`] for a service that shows a certificate of an authority that this machine
/// knows.
pub const SYSTEM_AUTHORITIES: &str = "system";

/// How commands connect to the service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    pub url: String,
    /// API token; secret.
    pub token: String,
    /// CA of the deployment: a PEM file, or `sha256:` and its fingerprint; or [`SYSTEM_AUTHORITIES`].
    pub ca: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    pub level: String,
    /// `json` or `human`.
    pub form: String,
    /// Log file; empty for standard error.
    pub file: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { level: "info".into(), form: "json".into(), file: String::new() }
    }
}

/// Default values of all sections.
pub fn defaults() -> Value {
    json!({
        "service": longhaul_service::Config::default(),
        "agent": longhaul_agent::Config::new(AGENT_STATE, Vec::new()),
        "client": ClientConfig::default(),
        "log": LogConfig::default(),
    })
}

/// Files in ascending precedence: the profile of `login`, then the configuration file; `--dir` overrides
/// both.
pub struct Files {
    pub config: Option<PathBuf>,
    pub state: Option<PathBuf>,
}

impl Files {
    /// Loads all files and the environment. Files that the user named must exist; the others may.
    pub fn load(&self) -> Result<Layers, Failure> {
        let mut layers = Layers::new(&defaults());
        if let Some(path) = user_profile() {
            add(&mut layers, &path, false)?;
        }
        let named = self.config.clone().or_else(|| std::env::var_os("LONGHAUL_CONFIG").map(PathBuf::from));
        match named {
            Some(path) => add(&mut layers, &path, true)?,
            None => add(&mut layers, Path::new(SYSTEM_FILE), false)?,
        }
        layers.add_environment(|name| std::env::var(name).ok())?;
        if let Some(state) = &self.state {
            // `--dir` selects that deployment, whatever the environment says.
            let within = [state.join(PROFILE), state.join("service").join(PROFILE)];
            let path = within.iter().find(|path| path.exists()).unwrap_or(&within[0]);
            add(&mut layers, path, true)?;
        }
        Ok(layers)
    }
}

fn add(layers: &mut Layers, path: &Path, must_exist: bool) -> Result<(), Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => layers.add_file(path, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => Ok(()),
        Err(error) => Err(Failure::file("reading", path, &error)),
    }
}

/// The profile that `login` writes, `~/.config/longhaul/client.toml`.
pub fn user_profile() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(base.join("longhaul").join(PROFILE))
}
