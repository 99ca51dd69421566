//! Configuration of remote providers: endpoint, credentials, and the terms of each protocol.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode};
use longhaul_security::{
    ForeignServerTrust, foreign_client_tls, foreign_client_tls_with_certificate, read_private,
};
use serde::Deserialize;

use super::{Common, Reader, split};
use crate::circuits::nsi::NsiConfig;
use crate::circuits::remote::{Caller, Trust};
use crate::circuits::rest::{OscarsConfig, SenseConfig, vlans};

/// Bytes of names and addresses.
const TEXT_BYTES_MAX: usize = 1_000;
/// Hold times of providers are two minutes, of which half is ours.
const HOLD_S: f64 = 60.0;
const TOKEN_PATH: &str = "/auth/realms/StackV/protocol/openid-connect/token";

/// How a provider is reached, and the authorities that identify it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    /// Authorities in PEM; none: those of the system.
    pub(crate) authorities: Option<PathBuf>,
    /// Our client certificate and its key, in PEM.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// Timeout of an answer.
    pub(crate) answer: Option<Duration>,
    /// All of its addresses are in clear text, so that nobody is believed to be anybody.
    pub(crate) is_clear: bool,
}

impl Access {
    pub(in crate::circuits) fn caller(&self) -> Result<Caller, Fault> {
        Ok(Caller::new(self.tls()?, self.answer))
    }

    fn tls(&self) -> Result<Trust, Fault> {
        if self.is_clear {
            return foreign_client_tls(ForeignServerTrust::Anyone);
        }
        let authorities = longhaul_outbound::read_authorities(self.authorities.as_deref())?;
        let trust = ForeignServerTrust::Authorities(&authorities);
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return foreign_client_tls(trust);
        };
        let read = |path: &PathBuf| {
            read_private(path)
                .map_err(|error| Fault::new(FaultCode::BadRequest, error.to_string()).with_source(error))
        };
        let (chain, key) = (read(certificate)?, read(key)?);
        foreign_client_tls_with_certificate(trust, &chain, &key)
    }
}

/// Settings of access that all remote providers share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileAccess {
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    answer_s: Option<f64>,
}

const ACCESS: &[&str] = &["authorities", "certificate", "key", "answer_s"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nsi {
    url: Option<String>,
    provider_nsa: Option<String>,
    discovery: Option<String>,
    requester_nsa: String,
    source_stp: String,
    target_stp: String,
    listen: Option<SocketAddr>,
    reply_to: Option<String>,
    hold_s: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Oscars {
    url: String,
    username: Option<String>,
    password_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    #[serde(default)]
    bearer: bool,
    source_port: String,
    target_port: String,
    vlans: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sense {
    url: String,
    token_url: Option<String>,
    client_id: String,
    client_secret_file: PathBuf,
    username: String,
    password_file: PathBuf,
    source_uri: String,
    target_uri: String,
    vlans: Option<String>,
}

impl Reader<'_> {
    /// A name that goes into a document: printable, and not without end.
    fn text(&self, name: &str, value: String) -> Result<String, Fault> {
        let sound = !value.is_empty()
            && value.len() <= TEXT_BYTES_MAX
            && value.bytes().all(|byte| byte.is_ascii_graphic());
        match sound {
            true => Ok(value),
            false => Err(self.wrong(format!("{name} is to be a name without spaces, not {value:?}"))),
        }
    }

    fn vlans(&self, value: String) -> Result<String, Fault> {
        match vlans(&value)
            .is_some_and(|all| !all.is_empty() && all.iter().all(|vlan| (1..4095).contains(vlan)))
        {
            true => Ok(value),
            false => {
                Err(self
                    .wrong(format!("vlans are numbers from 1 to 4094 like 1780-1787,1790, not {value:?}")))
            }
        }
    }

    fn url(&self, name: &str, value: String) -> Result<String, Fault> {
        let value = self.text(name, value)?;
        let parsed = value.parse::<http::Uri>().ok();
        let has_host = parsed.is_some_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let begins = value.starts_with("https://") || value.starts_with("http://");
        match begins && has_host && !value.contains('@') {
            true => Ok(value),
            false => {
                Err(self.wrong(format!("{name} is to be an address like https://host/path, not {value:?}")))
            }
        }
    }

    fn access(&self, file: FileAccess, urls: &[Option<&String>]) -> Result<Access, Fault> {
        if file.certificate.is_some() != file.key.is_some() {
            return Err(self.wrong("certificate and key come together"));
        }
        let answer = file.answer_s.map(|value| self.seconds("answer_s", value)).transpose()?;
        let is_clear = urls.iter().flatten().all(|url| url.starts_with("http://"));
        Ok(Access {
            authorities: file.authorities,
            certificate: file.certificate,
            key: file.key,
            answer,
            is_clear,
        })
    }

    pub(super) fn nsi(&self, common: &Common, rest: toml::Table) -> Result<NsiConfig, Fault> {
        let (access, rest) = split(rest, ACCESS);
        let (file, access): (Nsi, FileAccess) = (self.part(rest)?, self.part(access)?);
        let url = |name: &str, value: Option<String>| value.map(|value| self.url(name, value)).transpose();
        let known = file.url.is_some() && file.provider_nsa.is_some();
        if known == file.discovery.is_some() {
            return Err(self.wrong("either url and provider_nsa say where the provider is, or discovery"));
        }
        Ok(NsiConfig {
            access: self.access(access, &[file.url.as_ref(), file.discovery.as_ref()])?,
            url: url("url", file.url)?,
            provider_nsa: file.provider_nsa.map(|value| self.text("provider_nsa", value)).transpose()?,
            discovery: url("discovery", file.discovery)?,
            requester_nsa: self.text("requester_nsa", file.requester_nsa)?,
            source_stp: self.text("source_stp", file.source_stp)?,
            target_stp: self.text("target_stp", file.target_stp)?,
            listen: file.listen,
            reply_to: url("reply_to", file.reply_to)?,
            hold: self.seconds("hold_s", file.hold_s.unwrap_or(HOLD_S))?,
            ends: self.ends(common)?,
        })
    }

    pub(super) fn oscars(&self, common: &Common, rest: toml::Table) -> Result<OscarsConfig, Fault> {
        let (access, rest) = split(rest, ACCESS);
        let (file, access): (Oscars, FileAccess) = (self.part(rest)?, self.part(access)?);
        let secret = match (&file.username, file.password_file, file.token_file) {
            (Some(_), Some(password), None) => password,
            (None, None, Some(token)) => token,
            _ => return Err(self.wrong("either username and password_file say who we are, or token_file")),
        };
        let port = |name: &str, value: String| {
            let value = self.text(name, value)?;
            match value.split_once(':').is_some_and(|(device, port)| !device.is_empty() && !port.is_empty()) {
                true => Ok(value),
                false => Err(self.wrong(format!("{name} is device:port, not {value:?}"))),
            }
        };
        Ok(OscarsConfig {
            access: self.access(access, &[Some(&file.url)])?,
            url: self.url("url", file.url)?.trim_end_matches('/').to_owned(),
            username: file.username,
            secret,
            is_bearer: file.bearer,
            source_port: port("source_port", file.source_port)?,
            target_port: port("target_port", file.target_port)?,
            vlans: self.vlans(file.vlans)?,
            ends: self.ends(common)?,
        })
    }

    pub(super) fn sense(&self, common: &Common, rest: toml::Table) -> Result<SenseConfig, Fault> {
        let (access, rest) = split(rest, ACCESS);
        let (file, access): (Sense, FileAccess) = (self.part(rest)?, self.part(access)?);
        let url = self.url("url", file.url)?.trim_end_matches('/').to_owned();
        let token_url = match file.token_url {
            Some(url) => self.url("token_url", url)?,
            // The same host, unless something else is said.
            None => {
                let host = url.find("://").and_then(|at| url[at + 3..].find('/').map(|end| at + 3 + end));
                format!("{}{TOKEN_PATH}", &url[..host.unwrap_or(url.len())])
            }
        };
        Ok(SenseConfig {
            access: self.access(access, &[Some(&url), Some(&token_url)])?,
            url,
            token_url,
            client_id: self.text("client_id", file.client_id)?,
            client_secret: file.client_secret_file,
            username: self.text("username", file.username)?,
            password: file.password_file,
            source_uri: self.text("source_uri", file.source_uri)?,
            target_uri: self.text("target_uri", file.target_uri)?,
            vlans: file.vlans.map_or(Ok("any".to_owned()), |value| self.vlans(value))?,
            ends: self.ends(common)?,
        })
    }
}
