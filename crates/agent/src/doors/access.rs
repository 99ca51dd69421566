//! What a door reads from the files that its configuration names: certificates, authorities, rights, tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use longhaul_doors::{Access, Grant, Outgoing, Right, Rights, Subjects, read_tokens};
use longhaul_gateways::issuers::Issuers;
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::bearer::TokenTrust;
use longhaul_security::grid::{GridSettings, GridTrust};
use longhaul_security::{
    Credentials, ForeignServerTrust, door_grid_tls, door_server_tls, foreign_client_tls, gridmap,
    hash_secret, read_private,
};

use crate::config::doors::{DoorConfig, DoorIssuer, DoorRight, parse_subject};

/// Maximum size of a CA bundle; a grid's has some hundred kilobytes.
const AUTHORITIES_BYTES_MAX: u64 = 16 << 20;
/// Where systems keep their CA bundle.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

impl DoorConfig {
    /// TLS settings for third-party copies; none if they are disabled.
    pub(super) fn outgoing(&self) -> Result<Option<Arc<Outgoing>>, Fault> {
        if !self.third_party {
            return Ok(None);
        }
        let mut read = ConfigFiles::default();
        let mut authorities = String::new();
        for path in &self.third_party_authorities {
            authorities.push_str(&read.large(path)?);
        }
        if self.third_party_authorities.is_empty() {
            let Some(system) = SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists()) else {
                tracing::warn!(
                    storage = %self.storage,
                    "no authorities are installed on this host, so the door makes no third-party copies: \
                        name some in third_party_authorities"
                );
                return Ok(None);
            };
            authorities = read.large(system)?;
        }
        let tls = foreign_client_tls(ForeignServerTrust::Authorities(&authorities))?;
        Ok(Some(Arc::new(Outgoing { tls, allow: self.third_party_allow.clone() })))
    }

    pub(super) fn issuers(&self) -> Result<Option<Issuers>, Fault> {
        if self.issuers.is_empty() {
            return Ok(None);
        }
        let trust = Arc::new(TokenTrust::new(self.token_settings())?);
        Issuers::open(trust, self.issuer_authorities.as_deref()).map(Some)
    }

    pub(super) fn users(&self, now: Timestamp) -> Result<Option<GridTrust>, Fault> {
        let Some(directory) = &self.trust_dir else { return Ok(None) };
        let hosts = self.names.iter().map(|name| name.split(':').next().unwrap_or(name).to_owned());
        let settings = GridSettings {
            voms_directory: self.voms_dir.clone(),
            hosts: hosts.collect(),
            ..GridSettings::new(directory)
        };
        GridTrust::load(settings, now).map(Some)
    }

    /// The directory below which each issuer's scopes apply.
    pub(super) fn issuer_areas(&self) -> BTreeMap<String, String> {
        let area = |issuer: &DoorIssuer| (issuer.url.clone(), issuer.below.trim_matches('/').to_owned());
        self.issuers.iter().map(area).collect()
    }

    /// Reads everything that may change while the door is open, with a hash of it.
    pub(super) fn read_access(&self, own: &Credentials) -> Result<(Access, [u8; 32]), Fault> {
        let mut read = ConfigFiles::default();
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return Err(Fault::new(FaultCode::BadRequest, self.lacks_certificate()));
        };
        let (certificate, key) = (read.text(certificate)?, read.text(key)?);
        read.contents.push_str(&certificate);
        let mut authorities = Vec::new();
        for path in &self.client_authorities {
            authorities.push(read.large(path)?);
        }
        let identities = authorities.is_empty();
        if identities {
            authorities.push(own.ca_pem.clone());
        }
        let mut lists = Vec::new();
        for path in &self.client_revocation_lists {
            lists.push(read.large(path)?);
        }
        let [authorities, lists] =
            [&authorities, &lists].map(|texts| texts.iter().map(String::as_str).collect::<Vec<&str>>());
        let tls = match &self.trust_dir {
            Some(_) => door_grid_tls(&certificate, &key, own)?,
            None => door_server_tls(&certificate, &key, &authorities, &lists)?,
        };
        let mut rights = Rights { anonymous: self.anonymous_read.then(String::new), ..Rights::default() };
        for rule in &self.allow {
            let may = match rule.may {
                DoorRight::Read => Right::Read,
                DoorRight::Stage => Right::Stage,
                DoorRight::Write => Right::Write,
            };
            let grant = Grant { may, below: rule.below.trim_matches('/').to_owned() };
            for subject in &rule.subjects {
                let whom = parse_subject(subject).map_err(|why| Fault::new(FaultCode::BadRequest, why))?;
                rights.subjects.push((whom, grant.clone()));
            }
            if !rule.voms.is_empty() {
                let whom = Subjects::Voms(rule.voms.iter().cloned().collect());
                rights.subjects.push((whom, grant.clone()));
            }
            if let Some(path) = &rule.grid_map {
                let text = read.large(path)?;
                let subjects = grid_map_subjects(path, &text);
                rights.subjects.push((Subjects::named(subjects.iter().map(String::as_str)), grant));
            }
        }
        if let Some(path) = &self.tokens {
            read.text(path)?;
            rights.tokens = read_tokens(path)
                .map_err(|error| Fault::new(FaultCode::BadRequest, error.to_string()).with_source(error))?;
        }
        Ok((Access { tls, identities, rights }, hash_secret(&read.contents)))
    }
}

#[derive(Default)]
struct ConfigFiles {
    contents: String,
}

impl ConfigFiles {
    fn text(&mut self, path: &Path) -> Result<String, Fault> {
        let text = read_private(path)?;
        self.contents.push_str(&text);
        Ok(text)
    }

    fn large(&mut self, path: &Path) -> Result<String, Fault> {
        let failed = |why: String| Fault::new(FaultCode::BadRequest, format!("{}: {why}", path.display()));
        let size =
            std::fs::metadata(path).map_err(|error| failed(error.to_string()).with_source(error))?.len();
        if size > AUTHORITIES_BYTES_MAX {
            return Err(failed(format!("it has more than {AUTHORITIES_BYTES_MAX} bytes")));
        }
        let text =
            std::fs::read_to_string(path).map_err(|error| failed(error.to_string()).with_source(error))?;
        self.contents.push_str(&text);
        Ok(text)
    }
}

/// Subjects of a grid-map, from lines without a role: roles are not known here.
fn grid_map_subjects(path: &Path, text: &str) -> BTreeSet<String> {
    let map = gridmap::parse(text.as_bytes());
    for bad in &map.bad {
        tracing::warn!(file = %path.display(), line = bad.line, why = bad.why, "a line of the grid-map does \
            not count");
    }
    let alone = map.entries.into_iter().filter(|entry| entry.roles.is_empty() && entry.subject != "*");
    alone.map(|entry| entry.subject).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_name_subjects_without_roles() {
        let text = "\"/CN=alice\" a\n\"/CN=bob\" \"/cms\" b\n* x\nnonsense\n";
        assert_eq!(grid_map_subjects(Path::new("map"), text), BTreeSet::from(["/CN=alice".to_owned()]));
    }
}
