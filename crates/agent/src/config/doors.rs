//! `[[agent.doors]]`: which storages are open to outside clients, where, and to whom.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_doors::{Limits, Subjects};
use longhaul_model::StorageName;
use longhaul_model::address::IpNetwork;
use longhaul_security::bearer::{IssuerRule, TokenSettings, TokenTrust};
use serde::{Deserialize, Serialize};

/// Maximum number of doors of one agent.
pub const DOORS_MAX: usize = 64;
/// Tolerance for clock differences to token issuers.
const TOKEN_LEEWAY: Duration = Duration::from_secs(60);
/// Upper bound of the setting `connections`.
const CONNECTIONS_MAX: usize = 100_000;
/// Upper bound of the setting `transfers`.
const TRANSFERS_MAX: usize = 1_000;

/// One `[[agent.doors]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoorConfig {
    /// One of the agent's storages. Paths in URLs are paths beneath its root.
    pub storage: StorageName,
    pub listen: Vec<SocketAddr>,
    /// The host's certificate with its chain, and its key. Required: the agent's own names no host, so no
    /// client could verify the door by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Authorities of people's certificates. Empty: the deployment's.
    #[serde(default)]
    pub client_authorities: Vec<PathBuf>,
    /// PEM files with what those authorities have revoked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_revocation_lists: Vec<PathBuf>,
    /// A directory of the grid's authorities, with their policies and revocation lists: their users come with
    /// certificates and proxies. None: `client_authorities` count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_dir: Option<PathBuf>,
    /// The VOMS directory with the attribute authorities; without it attributes in proxies do not count.
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
    pub third_party_allow: Vec<IpNetwork>,
    #[serde(default = "default_connections")]
    pub connections: usize,
    /// Concurrent transfers.
    #[serde(default = "default_transfers")]
    pub transfers: usize,
}

/// One right and who has it.
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
    /// Staging files from tape; includes reading.
    Stage,
    /// Writing; includes reading and staging.
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
        if self.certificate.is_none() {
            return Err(self.lacks_certificate());
        }
        if !self.client_revocation_lists.is_empty() && self.client_authorities.is_empty() {
            return Err(format!(
                "door of {name}: client_revocation_lists are of the authorities in client_authorities, which \
                    is empty; a trust_dir has its own"
            ));
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
            if let Some(bad) = rule.voms.iter().find(|fqan| !is_fqan(fqan)) {
                return Err(format!(
                    "door of {name}: {bad:?} is no attribute, such as /atlas/prod or /atlas/Role=production"
                ));
            }
            for subject in &rule.subjects {
                let like = matches!(parse_subject(subject)?, Subjects::Like(_));
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

    /// Why a door without a certificate is not opened.
    pub(crate) fn lacks_certificate(&self) -> String {
        format!(
            "door of {}: it has no certificate, and the agent's own names no host, so that no client could \
                verify it: set certificate and key to PEM files of this host",
            self.storage
        )
    }

    pub(crate) fn limits(&self) -> Limits {
        let connections_of_address = (self.connections / 2).max(1);
        Limits {
            connections: self.connections,
            connections_of_address,
            transfers: self.transfers,
            ..Limits::default()
        }
    }

    pub(crate) fn token_settings(&self) -> TokenSettings {
        let rule =
            |issuer: &DoorIssuer| IssuerRule { issuer: issuer.url.clone(), vo: None, required_scope: None };
        // Clients request tokens for the host name or for the URL.
        let names = || self.names.iter().flat_map(|name| [name.clone(), format!("https://{name}")]);
        TokenSettings {
            issuers: self.issuers.iter().map(rule).collect(),
            audiences: if self.audiences.is_empty() { names().collect() } else { self.audiences.clone() },
            leeway: TOKEN_LEEWAY,
        }
    }
}

/// Whether it is a VOMS attribute (FQAN): `/vo`, groups below it, and perhaps a role.
fn is_fqan(text: &str) -> bool {
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

pub(crate) fn parse_subject(text: &str) -> Result<Subjects, String> {
    match text {
        "*" => Ok(Subjects::Certified),
        text if text.starts_with('/') => Ok(Subjects::named([text])),
        text => text.parse().map(Subjects::Like),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(more: &str) -> Result<DoorConfig, String> {
        door_of(&format!("certificate = 'c'\nkey = 'k'\n{more}"))
    }

    fn door_of(more: &str) -> Result<DoorConfig, String> {
        let text = format!("storage = 'alpha'\nlisten = ['127.0.0.1:0']\n{more}");
        let config: DoorConfig = toml::from_str(&text).map_err(|error| error.to_string())?;
        config.check(&["alpha".parse().unwrap()]).map(|()| config)
    }

    #[test]
    fn a_minimal_door_is_closed_to_everybody() {
        let config = door("").unwrap();
        assert!(!config.anonymous_read && config.allow.is_empty() && config.tokens.is_none());
        assert!(config.make_parents && !config.delete_trees);
        assert_eq!(toml::from_str::<DoorConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn a_door_that_no_client_could_verify_is_not_opened() {
        for (more, why) in [
            ("", "set certificate and key"),
            ("anonymous_read = true\ntrust_dir = 't'", "set certificate and key"),
            ("key = 'k'", "come together"),
            ("certificate = 'c'", "come together"),
        ] {
            let refusal = door_of(more).unwrap_err();
            assert!(refusal.starts_with("door of alpha: ") && refusal.contains(why), "{more}: {refusal}");
        }
        assert!(door_of("certificate = 'c'\nkey = 'k'").is_ok());
    }

    #[test]
    fn mistakes_are_reported() {
        for (more, why) in [
            ("issuers = [{ url = 'http://iam' }]", "no issuer"),
            ("issuers = [{ url = 'https://iam' }, { url = 'https://iam/' }]", "twice"),
            ("issuers = [{ url = 'https://iam', below = '../x' }]", "no path"),
            ("transfers = 0", "transfers is 0"),
            ("[[allow]]\nmay = 'read'", "either subjects, or voms, or a grid_map"),
            ("[[allow]]\nmay = 'read'\nvoms = ['/atlas']", "without voms_dir"),
            ("trust_dir = 't'\nclient_authorities = ['c']", "either trust_dir or"),
            ("voms_dir = 'v'", "trust_dir lets in"),
            ("client_revocation_lists = ['r']", "client_authorities, which is empty"),
            ("trust_dir = 't'\nclient_revocation_lists = ['r']", "a trust_dir has its own"),
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
}
