//! The directories of IGTF authorities and of VOMS organisations, and how their files are parsed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use longhaul_model::{Fault, FaultCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::certificate::Certificate;
use super::directory::Directory;
use super::policy::{self, POLICY_BYTES_MAX, Rule};
use super::revocation::{LIST_BYTES_MAX, RevocationList};
use super::{lsc, voms};

/// Bytes of a file of certificates, at most.
const AUTHORITY_FILE_BYTES_MAX: u64 = 1 << 20;
/// Organisations with a directory.
const ORGANISATIONS_MAX: usize = 1_000;

/// How revocation lists are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revocation {
    /// Certificates of an authority without a valid list are refused.
    Require,
    /// An authority need not have a list; an expired one disables it, as with `Require`.
    #[default]
    IfPresent,
    Ignore,
}

/// Where the trust store is loaded from.
#[derive(Clone, Debug)]
pub struct GridSettings {
    /// Authorities, their policies and revocation lists: usually `/etc/grid-security/certificates`.
    pub directory: PathBuf,
    /// Which servers sign for virtual organisations: usually `/etc/grid-security/vomsdir`. None: no server
    /// does.
    pub voms_directory: Option<PathBuf>,
    pub revocation: Revocation,
    /// Refuse certificates of an authority without a signing policy or namespaces.
    pub require_policy: bool,
    /// Names of this service, for attributes that are for certain services only.
    pub hosts: Vec<String>,
}

impl GridSettings {
    /// The usual rules for a directory of authorities.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        GridSettings {
            directory: directory.into(),
            voms_directory: None,
            revocation: Revocation::default(),
            require_policy: false,
            hosts: Vec::new(),
        }
    }
}

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    pub changed: bool,
    pub authorities: usize,
    /// Problems of files, and what needs attention soon, for logs.
    pub problems: Vec<String>,
}

/// What a file of the directory of authorities holds.
#[derive(Debug)]
pub(super) enum AuthorityFile {
    Authorities(Vec<CertificateDer<'static>>),
    Revocations(RevocationList),
    SigningPolicy(Vec<Rule>),
    Namespaces(Vec<Rule>),
}

/// What a file of an organisation's directory holds.
#[derive(Debug)]
pub(super) enum VomsFile {
    Chains(Vec<Vec<String>>),
    Certificates(Vec<CertificateDer<'static>>),
}

#[derive(Debug)]
pub(super) struct Files {
    pub(super) authorities: Directory<AuthorityFile>,
    pub(super) organisations: BTreeMap<String, Directory<VomsFile>>,
}

impl Files {
    pub(super) fn new() -> Self {
        Files { authorities: Directory::new(), organisations: BTreeMap::new() }
    }

    /// Rereads all directories; returns whether anything changed.
    pub(super) fn refresh(&mut self, settings: &GridSettings) -> Result<bool, Fault> {
        let mut changed = self.authorities.refresh(&settings.directory, &size_max, &read)?;
        let Some(directory) = &settings.voms_directory else { return Ok(changed) };
        let found = organisations(directory)?;
        let before = self.organisations.len();
        self.organisations.retain(|vo, _| found.contains(vo));
        changed |= self.organisations.len() != before;
        for vo in found {
            let path = directory.join(&vo);
            let files = self.organisations.entry(vo).or_insert_with(|| {
                changed = true;
                Directory::new()
            });
            changed |= files.refresh(&path, &voms_size_max, &read_voms)?;
        }
        Ok(changed)
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.authorities.problems().map(str::to_owned).collect();
        for (vo, files) in &self.organisations {
            problems.extend(files.problems().map(|problem| format!("{vo}/{problem}")));
        }
        problems
    }
}

/// `12345678` of `12345678.r0`: files of one authority have it in common.
pub(super) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// Whether a file says something about an authority, rather than being it.
pub(super) fn is_about_an_authority(name: &str) -> bool {
    !matches!(kind(name), None | Some(Kind::Authorities))
}

enum Kind {
    Authorities,
    Revocations,
    SigningPolicy,
    Namespaces,
}

/// `HASH.0` and so on, `NAME.pem`; `HASH.r0`; `.signing_policy`; `.namespaces`.
fn kind(name: &str) -> Option<Kind> {
    let (_, extension) = name.rsplit_once('.')?;
    let digit = |text: &str| text.len() == 1 && text.bytes().all(|byte| byte.is_ascii_digit());
    match extension {
        "pem" => Some(Kind::Authorities),
        "signing_policy" => Some(Kind::SigningPolicy),
        "namespaces" => Some(Kind::Namespaces),
        number if digit(number) => Some(Kind::Authorities),
        list if list.strip_prefix('r').is_some_and(digit) => Some(Kind::Revocations),
        _ => None,
    }
}

fn size_max(name: &str) -> Option<u64> {
    Some(match kind(name)? {
        Kind::Authorities => AUTHORITY_FILE_BYTES_MAX,
        Kind::Revocations => LIST_BYTES_MAX,
        Kind::SigningPolicy | Kind::Namespaces => POLICY_BYTES_MAX,
    })
}

fn read(name: &str, bytes: &[u8]) -> Result<AuthorityFile, String> {
    match kind(name) {
        Some(Kind::Authorities) => certificates(bytes).map(AuthorityFile::Authorities),
        Some(Kind::Revocations) => RevocationList::read(bytes).map(AuthorityFile::Revocations),
        Some(Kind::SigningPolicy) => policy::signing_policy(bytes).map(AuthorityFile::SigningPolicy),
        Some(Kind::Namespaces) => policy::namespaces(bytes).map(AuthorityFile::Namespaces),
        None => Err("is of no known kind".into()),
    }
}

fn voms_size_max(name: &str) -> Option<u64> {
    match name.rsplit_once('.')?.1 {
        "lsc" => Some(lsc::LSC_BYTES_MAX),
        "pem" => Some(AUTHORITY_FILE_BYTES_MAX),
        _ => None,
    }
}

fn read_voms(name: &str, bytes: &[u8]) -> Result<VomsFile, String> {
    match name.ends_with(".lsc") {
        true => lsc::parse(bytes).map(VomsFile::Chains),
        false => certificates(bytes).map(VomsFile::Certificates),
    }
}

fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        let certificate = certificate.map_err(|error| format!("is no PEM: {error}"))?;
        Certificate::parse(&certificate).map_err(|why| format!("holds a malformed certificate: {why}"))?;
        certificates.push(certificate);
    }
    if certificates.is_empty() { Err("holds no certificate".into()) } else { Ok(certificates) }
}

/// Names of the directories of organisations.
fn organisations(directory: &Path) -> Result<BTreeSet<String>, Fault> {
    let failed = |error: std::io::Error| {
        Fault::new(
            FaultCode::StateDirectory,
            format!("cannot read the directory {}: {error}", directory.display()),
        )
        .with_source(error)
    };
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if voms::is_organisation(&name) && fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir())
        {
            if found.len() == ORGANISATIONS_MAX {
                let detail = format!("{} has more than {ORGANISATIONS_MAX} directories", directory.display());
                return Err(Fault::new(FaultCode::StateDirectory, detail));
            }
            found.insert(name);
        }
    }
    Ok(found)
}
