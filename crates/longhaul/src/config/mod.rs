//! The settings of the whole program: one TOML file, overridden by the environment, overridden by options.
//! Each room declares its own section as a type with defaults; here they are only put together.

pub mod file;
pub mod layers;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use layers::{Layers, Origin};

use crate::failure::Failure;

/// Read if no `--config` and no `LONGHAUL_CONFIG` names another.
pub const SYSTEM_FILE: &str = "/etc/longhaul/longhaul.toml";
/// Where an agent lives unless told otherwise.
const AGENT_STATE: &str = "/var/lib/longhaul/agent";
/// Where `service init` leaves, and `--dir` looks for, what a command needs to connect.
pub const PROFILE: &str = "client.toml";

/// How commands reach the service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    pub url: String,
    /// Secret.
    pub token: String,
    /// A PEM file with the deployment's CA, or `sha256:` and its fingerprint.
    pub ca: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    pub level: String,
    /// `json` or `human`.
    pub form: String,
    /// Empty: standard error.
    pub file: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { level: "info".into(), form: "json".into(), file: String::new() }
    }
}

/// What every section looks like when nothing is set.
pub fn defaults() -> Value {
    json!({
        "service": longhaul_service::Config::default(),
        "agent": longhaul_agent::Config::new(AGENT_STATE, Vec::new()),
        "client": ClientConfig::default(),
        "log": LogConfig::default(),
    })
}

/// Files, lowest first: the profile of `login`, then the configuration file; `--dir` goes above both.
pub struct Files {
    pub config: Option<PathBuf>,
    pub state: Option<PathBuf>,
}

impl Files {
    /// Settings of all files and the environment. Files that the user named must exist; the others may.
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
            // The option means that deployment, whatever the environment says.
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

/// `~/.config/longhaul/client.toml`, written by `login`.
pub fn user_profile() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(base.join("longhaul").join(PROFILE))
}
