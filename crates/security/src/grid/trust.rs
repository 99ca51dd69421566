//! Whom we believe: the authorities of a directory as they are now, and the check of a chain against them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use longhaul_model::{Fault, FaultCode, Timestamp};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, TrustAnchor};

use super::certificate::Certificate;
use super::directory::Directory;
use super::{GridIdentity, chain};

/// Of a file of certificates.
const AUTHORITY_FILE_BYTES_MAX: u64 = 1 << 20;

/// What to do about revocation lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revocation {
    /// An authority without a list in force issues nothing that counts.
    Require,
    /// An authority need not have a list; one that has expired stops it, as `Require` does.
    #[default]
    IfPresent,
    Ignore,
}

/// Where trust comes from.
#[derive(Clone, Debug)]
pub struct GridSettings {
    /// Authorities, their policies and revocation lists: usually `/etc/grid-security/certificates`.
    pub directory: PathBuf,
    pub revocation: Revocation,
}

/// What a look at the directories found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    pub changed: bool,
    pub authorities: usize,
    /// What is wrong with which file, and what needs attention soon; for logs.
    pub problems: Vec<String>,
}

/// Authorities of the grid, reloaded while in use.
#[derive(Debug)]
pub struct GridTrust {
    settings: GridSettings,
    files: Mutex<Files>,
    trusted: RwLock<Arc<Trusted>>,
}

#[derive(Debug)]
struct Files {
    authorities: Directory<Content>,
}

/// What a file of the directory of authorities holds.
#[derive(Debug)]
enum Content {
    Authorities(Vec<CertificateDer<'static>>),
}

impl GridTrust {
    /// Fails if the directory cannot be read or holds no authority.
    pub fn load(settings: GridSettings, now: Timestamp) -> Result<Self, Fault> {
        let files = Files { authorities: Directory::new() };
        let trust =
            GridTrust { settings, files: Mutex::new(files), trusted: RwLock::new(Arc::new(Trusted::default())) };
        if trust.reload(now)?.authorities == 0 {
            let detail = format!("{} holds no certificate of an authority", trust.settings.directory.display());
            return Err(Fault::new(FaultCode::StateDirectory, detail));
        }
        Ok(trust)
    }

    /// Looks whether files have changed, and takes over what has. What was in force stays if this fails.
    pub fn reload(&self, _now: Timestamp) -> Result<Reloaded, Fault> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = files.authorities.refresh(&self.settings.directory, &size_max, &read)?;
        if changed {
            let trusted = Arc::new(Trusted::from_files(&files));
            *self.trusted.write().unwrap_or_else(PoisonError::into_inner) = trusted;
        }
        let trusted = self.trusted();
        let problems = files.authorities.problems().map(str::to_owned).collect();
        Ok(Reloaded { changed, authorities: trusted.authorities.len(), problems })
    }

    /// Who holds the key of the first certificate; the others are in any order, with or without the root.
    pub fn verify_chain(&self, shown: &[CertificateDer<'_>], now: Timestamp) -> Result<GridIdentity, Fault> {
        let trusted = self.trusted();
        let sent = chain::parse(shown)?;
        let rsa_bits = sent.first().and_then(Certificate::rsa_bits);
        let verified = chain::verify(sent, &trusted, now)?;
        let line = |name: super::name::Name<'_>| {
            name.one_line().map_err(|why| chain::refused(format!("a name in the chain is malformed: {why}")))
        };
        Ok(GridIdentity {
            subject: line(verified.end_entity.subject)?,
            issuer: line(verified.end_entity.issuer)?,
            proxies: verified.proxies.len(),
            limited: verified.limited,
            fqans: Vec::new(),
            fqan_problem: None,
            not_after: verified.not_after,
            rsa_bits,
            chain_pem: shown.iter().map(|der| crate::text::to_pem("CERTIFICATE", der)).collect(),
        })
    }

    fn trusted(&self) -> Arc<Trusted> {
        self.trusted.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What one state of the directories says. Never changed, only replaced.
#[derive(Debug, Default)]
pub(super) struct Trusted {
    authorities: Vec<Authority>,
    anchors: Vec<TrustAnchor<'static>>,
}

#[derive(Debug)]
struct Authority {
    der: CertificateDer<'static>,
    /// Its own issuer, so that chains may end here.
    root: bool,
}

impl Trusted {
    fn from_files(files: &Files) -> Self {
        let mut seen = BTreeSet::new();
        let mut trusted = Trusted::default();
        for (_, content) in files.authorities.contents() {
            let Content::Authorities(certificates) = &**content;
            for der in certificates {
                if seen.insert(der.to_vec()) {
                    trusted.add(der);
                }
            }
        }
        trusted
    }

    fn add(&mut self, der: &CertificateDer<'static>) {
        let Ok(certificate) = Certificate::parse(der) else { return };
        let root = certificate.subject == certificate.issuer;
        if root {
            let Ok(anchor) = webpki::anchor_from_trusted_cert(der) else { return };
            self.anchors.push(anchor.to_owned());
        }
        self.authorities.push(Authority { der: der.clone(), root });
    }

    pub(super) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    pub(super) fn intermediates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.authorities.iter().filter(|authority| !authority.root).map(|authority| &authority.der)
    }
}

/// Files of interest: `HASH.0` and so on, `NAME.pem`.
fn size_max(name: &str) -> Option<u64> {
    let (_, extension) = name.rsplit_once('.')?;
    let hashed = extension.len() == 1 && extension.bytes().all(|byte| byte.is_ascii_digit());
    (hashed || extension == "pem").then_some(AUTHORITY_FILE_BYTES_MAX)
}

fn read(_name: &str, bytes: &[u8]) -> Result<Content, String> {
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        let certificate = certificate.map_err(|error| format!("is no PEM: {error}"))?;
        let parsed = Certificate::parse(&certificate).map_err(|why| format!("holds a malformed certificate: {why}"))?;
        if parsed.subject == parsed.issuer {
            webpki::anchor_from_trusted_cert(&certificate)
                .map_err(|error| format!("holds a certificate that cannot be used: {error}"))?;
        }
        drop(parsed);
        certificates.push(certificate);
    }
    if certificates.is_empty() {
        return Err("holds no certificate".into());
    }
    Ok(Content::Authorities(certificates))
}
