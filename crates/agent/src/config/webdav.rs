//! `[agent.storages.server]`: the WebDAV server that holds a storage of kind `webdav`.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use longhaul_model::address::IpNetwork;
use longhaul_model::{Fault, FaultCode};
use longhaul_storage_remote::{
    Credential, RefreshResult, RefreshingToken, Remote, RemoteConfig, RemoteUrl, TokenRefresher, Trust,
    WebDavOptions, WebDavStorage,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use zeroize::Zeroizing;

use super::StorageConfig;

/// Maximum number of allowed networks.
const NETWORKS_MAX: usize = 1_000;

/// A WebDAV server, and how the agent identifies itself there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebDavConfig {
    /// The collection that is the storage's root, `https://host:port/path`.
    pub url: String,
    /// File with a bearer token, read again when the server refuses the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// PEM file with a certificate and the certificates of its issuers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_file: Option<PathBuf>,
    /// PEM file with the certificate's key; by default it is in the certificate's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// PEM files with the authorities by which the server is believed; none: those of the system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<PathBuf>,
    /// Loopback, link-local and private networks in which the server may be; all public ones are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_networks: Vec<String>,
    /// Hosts to which credentials go along when the server redirects there (`.example.org`: all below it).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub redirect_hosts: Vec<String>,
    /// Whether names that differ only in case are one name there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub case_insensitive: bool,
    /// Longest name of a file or directory there, in bytes; none: 255.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes_max: Option<u8>,
    /// Bytes that the storage may hold, for a server that tells no quota (RFC 4331).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
}

impl WebDavConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        let url = RemoteUrl::parse(&self.url).map_err(|fault| fault.detail)?;
        if url.is_s3() {
            return Err("url: a WebDAV server is reached by https or davs".into());
        }
        if self.token_file.is_some() && !url.is_secure() {
            return Err("url: a token is sent over TLS only: use https or davs".into());
        }
        if self.token_file.is_some() && self.certificate_file.is_some() {
            return Err("token_file and certificate_file: choose one of them".into());
        }
        if self.key_file.is_some() && self.certificate_file.is_none() {
            return Err("key_file needs certificate_file".into());
        }
        if self.allow_networks.len() > NETWORKS_MAX {
            return Err(format!("allow_networks holds {NETWORKS_MAX} entries at most"));
        }
        self.networks().map(drop)
    }

    fn networks(&self) -> Result<Vec<IpNetwork>, String> {
        let parse = |text: &String| text.parse().map_err(|error| format!("allow_networks: {error}"));
        self.allow_networks.iter().map(parse).collect()
    }

    fn credential(&self) -> Result<Credential, Fault> {
        if let Some(path) = &self.token_file {
            let token = read_secret(path)?;
            return Ok(Credential::Refreshing(RefreshingToken::new(
                trimmed(&token),
                TokenFile(path.clone()),
            )));
        }
        let Some(path) = &self.certificate_file else { return Ok(Credential::None) };
        let chain_pem = read_secret(path)?;
        let key_pem = match &self.key_file {
            Some(path) => read_secret(path)?,
            None => chain_pem.clone(),
        };
        Ok(Credential::Certificate { chain_pem, key_pem })
    }
}

impl StorageConfig {
    /// Opens a storage of kind `webdav`; nothing is asked of its server. To be called within a runtime.
    pub(crate) fn open_webdav(&self) -> Result<WebDavStorage, Fault> {
        let wrong = |why: String| Fault::new(FaultCode::BadRequest, format!("storage {}: {why}", self.name));
        let server = self.server.as_ref().ok_or_else(|| wrong("server is missing".into()))?;
        let trust = match server.authorities.is_empty() {
            true => Trust::System,
            false => Trust::Files(server.authorities.clone()),
        };
        let config = RemoteConfig {
            trust,
            allow: server.networks().map_err(wrong)?,
            redirect_hosts: server.redirect_hosts.clone(),
            ..RemoteConfig::default()
        };
        let options = WebDavOptions {
            name: self.name.clone(),
            url: server.url.clone(),
            credential: server.credential()?,
            writable: self.writable,
            case_insensitive: server.case_insensitive,
            name_bytes_max: server.name_bytes_max.unwrap_or(u8::MAX).into(),
            parallel: (self.parallel > 0).then_some(self.parallel),
            capacity_bytes: server.capacity_bytes,
        };
        WebDavStorage::open(Arc::new(Remote::new(config)?), options, Handle::current())
    }
}

/// A token that somebody else renews in its file.
struct TokenFile(PathBuf);

impl TokenRefresher for TokenFile {
    fn renew<'a>(
        &'a self,
        token: &'a str,
        refused: bool,
    ) -> Pin<Box<dyn Future<Output = RefreshResult> + Send + 'a>> {
        Box::pin(async move {
            let path = self.0.clone();
            let read = tokio::task::spawn_blocking(move || read_secret(&path)).await;
            let text = read.map_err(|error| error.to_string())?.map_err(|fault| fault.detail)?;
            let fresh = trimmed(&text);
            match fresh.as_str() != token {
                true => Ok(Some(fresh)),
                false if refused => Err(format!("{} still holds the refused token", self.0.display())),
                false => Ok(None),
            }
        })
    }
}

fn trimmed(text: &str) -> Zeroizing<String> {
    Zeroizing::new(text.trim().to_owned())
}

fn read_secret(path: &std::path::Path) -> Result<Zeroizing<String>, Fault> {
    let read = std::fs::read_to_string(path).map(Zeroizing::new);
    read.map_err(|error| {
        Fault::new(FaultCode::BadRequest, format!("{}: {error}", path.display())).with_source(error)
    })
}
