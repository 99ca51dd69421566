//! What an administrator can set about the FTS3 API.

use std::path::PathBuf;
use std::time::Duration;

use longhaul_api::fts::{Level, Levels};
use longhaul_model::{CommunityName, Fault, FaultCode};
use longhaul_security::MappingCalloutSettings;
use longhaul_security::grid::same_subject;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FtsConfig {
    /// What API tokens, certificates and other tokens stand for. Whoever is not named has what their own
    /// credential says, and API tokens that are not named only what their role gives them.
    pub people: Vec<FtsPerson>,
    /// Communities that are served; empty: all.
    pub communities: Vec<CommunityName>,
    /// Longest metadata of a job or a file, as JSON.
    pub metadata_bytes: u32,
    /// Ended jobs are listed in the archive after this many days.
    pub archive_days: u32,
    /// Hosts of pages elsewhere that may call, as `host:port`.
    pub origins: Vec<String>,
    /// Whether a job is refused while another file is on its way to the same target.
    pub check_duplicates: bool,
    /// Authorities whose users may come with certificates and proxies; without it only the deployment's own
    /// certificates are known.
    pub trust_dir: Option<PathBuf>,
    /// What says who speaks for virtual organisations; without it attributes in proxies do not count.
    pub voms_dir: Option<PathBuf>,
    /// Communities of subjects, as lines of a grid-map file.
    pub community_map: Option<PathBuf>,
    /// A program, by its whole path, and its first arguments: it is asked for the community of a subject that
    /// neither its proxy nor the map tells. Empty: such a subject is a community of its own.
    pub mapping_command: Vec<String>,
    /// How long it may take.
    pub mapping_seconds: u32,
    /// How long what it said counts.
    pub mapping_kept_seconds: u32,
    /// Issuers whose tokens are accepted; none: only API tokens are.
    pub issuers: Vec<FtsIssuer>,
    /// What this service is called in tokens (`aud`). None: the names by which it is reached.
    pub audiences: Vec<String>,
    /// A PEM file with the authorities that issuers' servers are believed by; none: those of the system.
    pub issuer_authorities: Option<PathBuf>,
}

/// An issuer of tokens, as `https://iam.example.org/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FtsIssuer {
    pub url: String,
    /// Communities it speaks for. None: those of the groups in its tokens, whatever they are called.
    #[serde(default)]
    pub community: Option<CommunityName>,
    /// Without this scope a token does not open this service.
    #[serde(default)]
    pub scope: Option<String>,
    /// What this service is there, to exchange and refresh tokens of jobs. None: they are used as they came.
    #[serde(default)]
    pub client_id: Option<String>,
    /// Holds the client's secret and nothing else.
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
}

/// Somebody, by the name of an API token, a certificate's subject, or `SUB=…, ISS=…` of another issuer's
/// token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FtsPerson {
    pub name: String,
    pub community: CommunityName,
    #[serde(default = "of_community")]
    pub transfer: Reach,
    #[serde(default)]
    pub config: Reach,
    #[serde(default)]
    pub datamanagement: Reach,
    #[serde(default)]
    pub admin: Reach,
}

fn of_community() -> Reach {
    Reach::Community
}

/// How far a right reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    #[default]
    None,
    Own,
    Community,
    All,
}

impl Reach {
    pub fn level(self) -> Option<Level> {
        match self {
            Reach::None => None,
            Reach::Own => Some(Level::Own),
            Reach::Community => Some(Level::Vo),
            Reach::All => Some(Level::All),
        }
    }
}

impl Default for FtsConfig {
    fn default() -> Self {
        FtsConfig {
            people: Vec::new(),
            communities: Vec::new(),
            metadata_bytes: 1_024,
            archive_days: 7,
            origins: Vec::new(),
            check_duplicates: false,
            trust_dir: None,
            voms_dir: None,
            community_map: None,
            mapping_command: Vec::new(),
            mapping_seconds: 5,
            mapping_kept_seconds: 600,
            issuers: Vec::new(),
            audiences: Vec::new(),
            issuer_authorities: None,
        }
    }
}

impl FtsConfig {
    pub fn check(&self) -> Result<(), Fault> {
        let mut names: Vec<&str> = self.people.iter().map(|person| person.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let detail = format!("service.fts.people names {:?} twice", pair[0]);
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        for issuer in &self.issuers {
            if issuer.client_id.is_some() != issuer.client_secret_file.is_some() {
                let detail = format!(
                    "service.fts.issuers, {}: client_id and client_secret_file come together",
                    issuer.url
                );
                return Err(Fault::new(FaultCode::BadRequest, detail));
            }
        }
        if let Some(mapping) = self.mapping() {
            let wrong =
                |why| Fault::new(FaultCode::BadRequest, format!("service.fts.mapping_command: {why}"));
            mapping.check().map_err(wrong)?;
        }
        let about_users = [
            ("voms_dir", self.voms_dir.is_some()),
            ("community_map", self.community_map.is_some()),
            ("mapping_command", !self.mapping_command.is_empty()),
        ];
        if let (None, Some((name, _))) = (&self.trust_dir, about_users.iter().find(|(_, said)| *said)) {
            let detail = format!(
                "service.fts.{name} is about certificates of users, and none count without \
                    service.fts.trust_dir"
            );
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        Ok(())
    }

    /// The mapping command, asked about subjects that nothing else maps.
    pub fn mapping(&self) -> Option<MappingCalloutSettings> {
        (!self.mapping_command.is_empty()).then(|| MappingCalloutSettings {
            command: self.mapping_command.clone(),
            time_limit: Duration::from_secs(self.mapping_seconds.into()),
            cache_ttl: Duration::from_secs(self.mapping_kept_seconds.into()),
        })
    }

    pub fn person(&self, name: &str) -> Option<&FtsPerson> {
        self.people.iter().find(|person| same_subject(&person.name, name))
    }

    pub fn serves(&self, vo: &str) -> bool {
        self.communities.is_empty() || self.communities.iter().any(|name| name.as_str() == vo)
    }
}

impl FtsPerson {
    pub fn levels(&self) -> Levels {
        let of = [
            ("transfer", self.transfer.level()),
            ("deleg", Some(Level::Own)),
            ("config", self.config.level().or(self.admin.level().filter(|level| *level == Level::All))),
            ("datamanagement", self.datamanagement.level()),
            ("admin", self.admin.level()),
        ];
        of.into_iter().filter_map(|(operation, level)| Some((operation.to_owned(), level?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_has_what_is_written_and_is_named_once() {
        let text = r#"{"people":[{"name":"alice","community":"atlas","admin":"all"}]}"#;
        let mut config: FtsConfig = serde_json::from_str(text).unwrap();
        let levels = config.person("alice").unwrap().levels();
        assert_eq!((levels["transfer"], levels["config"]), (Level::Vo, Level::All));
        assert!(!levels.contains_key("datamanagement") && config.person("bob").is_none());
        assert!(config.check().is_ok() && config.serves("cms"));
        config.people.push(config.people[0].clone());
        assert!(config.check().unwrap_err().detail.contains("\"alice\" twice"));
        config.people.pop();
        config.community_map = Some("map".into());
        assert!(config.check().unwrap_err().detail.contains("service.fts.trust_dir"));
        config.trust_dir = Some("certificates".into());
        assert!(config.check().is_ok());
        config.mapping_command = vec!["map-user".into()];
        assert!(
            config.check().unwrap_err().detail.contains("mapping_command: it begins with the whole path")
        );
        config.mapping_command = vec!["/usr/bin/map-user".into()];
        assert!(config.check().is_ok());
        config.communities = vec!["atlas".parse().unwrap()];
        assert!(config.serves("atlas") && !config.serves("cms"));
    }
}
