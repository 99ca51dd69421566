//! `[agent.storages.server]`: the server that holds a storage of kind `webdav` or `s3`.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use longhaul_model::address::IpNetwork;
use longhaul_model::{Fault, FaultCode, StorageKind};
use longhaul_security::{read_private, read_secret};
use longhaul_storage_remote::{
    Credential, RefreshResult, RefreshingToken, Remote, RemoteConfig, RemoteStorage, RemoteStorageOptions,
    RemoteUrl, S3Keys, SpaceReport, TokenRefresher, Trust,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use zeroize::Zeroizing;

use super::StorageConfig;

/// Maximum number of allowed networks.
const NETWORKS_MAX: usize = 1_000;
/// What storages without regions take.
const REGION: &str = "us-east-1";

/// A server of files, and how the agent identifies itself there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The collection that is the storage's root, `https://host:port/path`; or a bucket with a prefix of
    /// keys, `s3s://host:port/bucket/prefix`.
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
    /// Access key of a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_key: Option<String>,
    /// File with the secret of the access key and nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// Region of a bucket; storages without regions take the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Whether the bucket is a part of the host's name (`s3s://bucket.host/prefix`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bucket_in_host: bool,
    /// PEM files with the authorities by which the server is believed; none: those of the system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<PathBuf>,
    /// Loopback, link-local and private networks in which the server may be; all public ones are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_networks: Vec<String>,
    /// Hosts to which credentials go along when the server redirects there (`.example.org`: all below it).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub redirect_hosts: Vec<String>,
    /// Whether the server is asked to copy between itself and the servers of other storages, and gives them
    /// access to its files; none: where it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub third_party: Option<bool>,
    /// Whether names that differ only in case are one name there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub case_insensitive: bool,
    /// Longest name of a file or directory there, in bytes; none: 255.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes_max: Option<u8>,
    /// Bytes that the storage may hold, where neither the server (RFC 4331) nor a report tells what is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Address of a document in which the site reports the space of its storages (WLCG Storage Resource
    /// Reporting).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space_report: Option<String>,
    /// Name or path of the storage's share in that report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space_share: Option<String>,
}

impl ServerConfig {
    pub(super) fn check(&self, kind: StorageKind) -> Result<(), String> {
        let url = RemoteUrl::parse(&self.url).map_err(|fault| fault.detail)?;
        if url.is_s3() != (kind == StorageKind::S3) {
            return Err("url: a WebDAV server is reached by https or davs, a bucket by s3s or s3".into());
        }
        if url.is_s3() {
            self.check_bucket()?;
        } else if self.access_key.is_some() || self.secret_file.is_some() || self.region.is_some() {
            return Err("access_key, secret_file and region belong to buckets".into());
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
        self.space_report()?;
        if self.allow_networks.len() > NETWORKS_MAX {
            return Err(format!("allow_networks holds {NETWORKS_MAX} entries at most"));
        }
        self.networks().map(drop)
    }

    fn check_bucket(&self) -> Result<(), String> {
        if self.access_key.is_none() || self.secret_file.is_none() {
            return Err("a bucket needs access_key and secret_file".into());
        }
        if self.token_file.is_some() || self.certificate_file.is_some() {
            return Err("a bucket knows keys only: leave out token_file and certificate_file".into());
        }
        if self.capacity_bytes.is_some() {
            return Err(
                "capacity_bytes: S3 does not tell how much is used, so that nothing follows from it".into()
            );
        }
        Ok(())
    }

    fn space_report(&self) -> Result<Option<SpaceReport>, String> {
        match (&self.space_report, &self.space_share) {
            (Some(url), Some(share)) => {
                let report = SpaceReport::new(url, share);
                report.map(Some).map_err(|fault| format!("space_report: {}", fault.detail))
            }
            (None, None) => Ok(None),
            _ => {
                Err("space_report and space_share belong together: an address, and a share in what is there"
                    .into())
            }
        }
    }

    fn networks(&self) -> Result<Vec<IpNetwork>, String> {
        let parse = |text: &String| text.parse().map_err(|error| format!("allow_networks: {error}"));
        self.allow_networks.iter().map(parse).collect()
    }

    fn credential(&self) -> Result<Credential, Fault> {
        if let Some(path) = &self.token_file {
            let token = RefreshingToken::new(read_secret(path)?, TokenFile(path.clone()));
            return Ok(Credential::Refreshing(token));
        }
        if let (Some(access_key), Some(path)) = (&self.access_key, &self.secret_file) {
            return Ok(Credential::S3(S3Keys {
                access_key: access_key.clone(),
                secret: read_secret(path)?,
                session_token: None,
                region: self.region.clone().unwrap_or_else(|| REGION.to_owned()),
            }));
        }
        let Some(path) = &self.certificate_file else { return Ok(Credential::None) };
        let (chain_pem, key_pem) = match &self.key_file {
            Some(key_file) => (Zeroizing::new(read_private(path)?), read_secret(key_file)?),
            None => (read_secret(path)?, read_secret(path)?),
        };
        Ok(Credential::Certificate { chain_pem, key_pem })
    }
}

impl StorageConfig {
    /// Opens a storage that a server holds; nothing is asked of it. To be called within a runtime.
    pub(crate) fn open_remote(&self) -> Result<RemoteStorage, Fault> {
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
        let options = RemoteStorageOptions {
            name: self.name.clone(),
            url: server.url.clone(),
            credential: server.credential()?,
            writable: self.writable,
            case_insensitive: server.case_insensitive,
            name_bytes_max: server.name_bytes_max.unwrap_or(u8::MAX).into(),
            parallel: (self.parallel > 0).then_some(self.parallel),
            capacity_bytes: server.capacity_bytes,
            space_report: server.space_report().map_err(wrong)?,
            path_style: !server.bucket_in_host,
        };
        RemoteStorage::open(Arc::new(Remote::new(config)?), options, Handle::current())
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
            let fresh = read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            match fresh.as_str() != token {
                true => Ok(Some(fresh)),
                false if refused => Err(format!("{} still holds the refused token", self.0.display())),
                false => Ok(None),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: StorageKind, text: &str) -> Result<(), String> {
        toml::from_str::<ServerConfig>(text).unwrap().check(kind)
    }

    #[test]
    fn a_servers_settings_fit_each_other() {
        let webdav = |text: &str| check(StorageKind::Webdav, text);
        assert_eq!(webdav("url = 'https://a.example/data'\ntoken_file = '/t'"), Ok(()));
        assert_eq!(webdav("url = 'http://[::1]:8080/'\nallow_networks = ['::1']"), Ok(()));
        for (text, why) in [
            ("", "scheme"),
            ("url = 's3s://a/b'", "by https or davs"),
            ("url = 'http://a/'\ntoken_file = '/t'", "over TLS only"),
            ("url = 'https://a/'\ntoken_file = '/t'\ncertificate_file = '/c'", "choose one"),
            ("url = 'https://a/'\nkey_file = '/k'", "needs certificate_file"),
            ("url = 'https://a/'\naccess_key = 'AKIA'", "belong to buckets"),
            ("url = 'https://a/'\nallow_networks = ['10.0.0.0/99']", "allow_networks"),
            ("url = 'https://a/'\nspace_report = 'https://a/srr'", "belong together"),
            ("url = 'https://a/'\nspace_share = 'DATA'", "belong together"),
            ("url = 'https://a/'\nspace_report = 's3://a/srr'\nspace_share = 'DATA'", "by https or http"),
        ] {
            assert!(webdav(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn a_bucket_has_keys_and_nothing_else() {
        let keys = "url = 's3s://a/b/c'\naccess_key = 'AKIA'\nsecret_file = '/s'\n";
        let bucket = |text: &str| check(StorageKind::S3, text);
        assert_eq!(bucket(keys), Ok(()));
        assert!(bucket("url = 's3s://a/b'").unwrap_err().contains("needs access_key"));
        assert!(bucket(&keys.replace("s3s", "https")).unwrap_err().contains("a bucket by s3s"));
        assert!(bucket(&format!("{keys}token_file = '/t'")).unwrap_err().contains("knows keys only"));
        assert!(bucket(&format!("{keys}capacity_bytes = 1")).unwrap_err().contains("capacity_bytes"));
        assert_eq!(bucket(&format!("{keys}space_report = 'https://a/srr'\nspace_share = 'DATA'")), Ok(()));
    }
}
