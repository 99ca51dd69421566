//! A grid's authorities, users and proxies, written byte by byte, so that a test can make what no library
//! would.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_security::grid::{GridSettings, GridTrust};
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub const NOW: Timestamp = Timestamp(1_780_000_000_000_000);
pub const DAY: Duration = Duration::from_secs(86_400);

/// For what others compare with the system's clock: rustls, and programs.
pub fn clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    Timestamp(since.as_micros() as i64)
}

pub const INHERIT_ALL: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 21, 1];
pub const INDEPENDENT: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 21, 2];
pub const LIMITED: &[u64] = &[1, 3, 6, 1, 4, 1, 3536, 1, 1, 1, 9];

pub fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    let length = content.len();
    match length {
        0..=0x7f => bytes.push(length as u8),
        0x80..=0xff => bytes.extend([0x81, length as u8]),
        _ => bytes.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    bytes.extend_from_slice(content);
    bytes
}

pub fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x30, &parts.concat())
}

pub fn oid(numbers: &[u64]) -> Vec<u8> {
    let mut content = Vec::new();
    let first = numbers[0] * 40 + numbers[1];
    for number in std::iter::once(&first).chain(&numbers[2..]) {
        let mut digits = vec![(number & 0x7f) as u8];
        let mut rest = number >> 7;
        while rest > 0 {
            digits.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        digits.reverse();
        content.extend(digits);
    }
    tlv(0x06, &content)
}

pub fn integer(value: u64) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let start = bytes.iter().position(|&byte| byte != 0).unwrap_or(7);
    let mut content = bytes[start..].to_vec();
    if content[0] & 0x80 != 0 {
        content.insert(0, 0);
    }
    tlv(0x02, &content)
}

pub fn boolean(value: bool) -> Vec<u8> {
    tlv(0x01, &[if value { 0xff } else { 0 }])
}

pub fn bits(content: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], content].concat())
}

pub fn time(at: Timestamp) -> Vec<u8> {
    let digits: String = at.to_string().chars().filter(char::is_ascii_digit).take(14).collect();
    tlv(0x18, format!("{digits}Z").as_bytes())
}

/// `/DC=org/CN=alice` as a name; a slash within a value is written `\\/`.
pub fn name(line: &str) -> Vec<u8> {
    const SLASH: &str = "\u{1}";
    let mut parts = Vec::new();
    for part in line.replace("\\/", SLASH).split('/').skip(1) {
        let (kind, value) = part.split_once('=').unwrap();
        let value = value.replace(SLASH, "/");
        let (kind, tag): (&[u64], u8) = match kind {
            "DC" => (&[0, 9, 2342, 19200300, 100, 1, 25], 0x16),
            "C" => (&[2, 5, 4, 6], 0x13),
            "O" => (&[2, 5, 4, 10], 0x0c),
            "OU" => (&[2, 5, 4, 11], 0x0c),
            "CN" => (&[2, 5, 4, 3], 0x0c),
            other => panic!("no such attribute: {other}"),
        };
        parts.push(tlv(0x31, &sequence(&[oid(kind), tlv(tag, value.as_bytes())])));
    }
    sequence(&parts)
}

pub fn extension(id: &[u64], critical: bool, value: Vec<u8>) -> Vec<u8> {
    let mut parts = vec![oid(id)];
    if critical {
        parts.push(boolean(true));
    }
    parts.push(tlv(0x04, &value));
    sequence(&parts)
}

pub fn basic_constraints(authority: bool) -> Vec<u8> {
    let inside = if authority { vec![boolean(true)] } else { vec![] };
    extension(&[2, 5, 29, 19], true, sequence(&inside))
}

pub fn key_usage(first: u8) -> Vec<u8> {
    extension(&[2, 5, 29, 15], true, tlv(0x03, &[first.trailing_zeros().min(7) as u8, first]))
}

/// proxyCertInfo of RFC 3820.
pub fn proxy_info(policy: &[u64], path_length: Option<u64>) -> Vec<u8> {
    let mut parts: Vec<Vec<u8>> = path_length.into_iter().map(integer).collect();
    parts.push(sequence(&[oid(policy)]));
    extension(&[1, 3, 6, 1, 5, 5, 7, 1, 14], true, sequence(&parts))
}

pub fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine;
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Holder {
    pub der: Vec<u8>,
    pub key: Arc<KeyPair>,
    pub subject: String,
    pub serial: u64,
}

impl Holder {
    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.der)
    }

    pub fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from(self.der.clone())
    }

    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }

    /// A draft with this holder as issuer.
    pub fn issues(&self, subject: &str) -> Draft {
        Draft {
            subject: subject.into(),
            issuer: self.subject.clone(),
            signer: self.key.clone(),
            serial: 7,
            not_before: NOW - DAY,
            not_after: NOW + 300 * DAY,
            extensions: Vec::new(),
            key: None,
        }
    }

    /// A proxy as `voms-proxy-init -rfc` makes it.
    pub fn proxy(&self) -> Draft {
        self.proxy_of(INHERIT_ALL, None)
    }

    pub fn proxy_of(&self, policy: &[u64], path_length: Option<u64>) -> Draft {
        let mut draft = self.issues(&format!("{}/CN=1234567", self.subject));
        draft.not_after = NOW + DAY / 2;
        draft.extensions = vec![key_usage(0xa0), proxy_info(policy, path_length)];
        draft
    }
}

/// A certificate to be.
#[derive(Clone)]
pub struct Draft {
    pub subject: String,
    pub issuer: String,
    pub signer: Arc<KeyPair>,
    pub serial: u64,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub extensions: Vec<Vec<u8>>,
    pub key: Option<Arc<KeyPair>>,
}

impl Draft {
    pub fn with(mut self, extension: Vec<u8>) -> Self {
        self.extensions.push(extension);
        self
    }

    pub fn serial(mut self, serial: u64) -> Self {
        self.serial = serial;
        self
    }

    pub fn until(mut self, at: Timestamp) -> Self {
        self.not_after = at;
        self
    }

    pub fn key(mut self, key: &Arc<KeyPair>) -> Self {
        self.key = Some(key.clone());
        self
    }

    pub fn sign(self) -> Holder {
        let key = self.key.unwrap_or_else(ec_key);
        let mut body = vec![
            tlv(0xa0, &integer(2)),
            integer(self.serial),
            algorithm(&self.signer),
            name(&self.issuer),
            sequence(&[time(self.not_before), time(self.not_after)]),
            name(&self.subject),
            key.subject_public_key_info(),
        ];
        if !self.extensions.is_empty() {
            body.push(tlv(0xa3, &sequence(&self.extensions)));
        }
        let der = signed(sequence(&body), &self.signer);
        Holder { der, key, subject: self.subject, serial: self.serial }
    }
}

pub fn signed(body: Vec<u8>, signer: &KeyPair) -> Vec<u8> {
    let signature = signer.sign(&body).unwrap();
    sequence(&[body, algorithm(signer), bits(&signature)])
}

pub fn algorithm(signer: &KeyPair) -> Vec<u8> {
    if signer.algorithm() == &rcgen::PKCS_RSA_SHA256 {
        return sequence(&[oid(&[1, 2, 840, 113549, 1, 1, 11]), tlv(0x05, &[])]);
    }
    sequence(&[oid(&[1, 2, 840, 10045, 4, 3, 2])])
}

pub fn ec_key() -> Arc<KeyPair> {
    Arc::new(KeyPair::generate().unwrap())
}

pub fn rsa_key() -> Arc<KeyPair> {
    Arc::new(KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap())
}

/// A self-signed authority.
pub fn authority(subject: &str) -> Holder {
    authority_with(subject, ec_key())
}

pub fn authority_with(subject: &str, key: Arc<KeyPair>) -> Holder {
    Draft {
        subject: subject.into(),
        issuer: subject.into(),
        signer: key.clone(),
        serial: 1,
        not_before: NOW - 3000 * DAY,
        not_after: NOW + 3000 * DAY,
        extensions: vec![basic_constraints(true), key_usage(0x06)],
        key: Some(key),
    }
    .sign()
}

/// A revocation list of `issuer`.
pub fn revocation_list(issuer: &Holder, serials: &[u64], from: Timestamp, until: Timestamp) -> Vec<u8> {
    let entries: Vec<Vec<u8>> =
        serials.iter().map(|&serial| sequence(&[integer(serial), time(from)])).collect();
    let mut body = vec![integer(1), algorithm(&issuer.key), name(&issuer.subject), time(from), time(until)];
    if !entries.is_empty() {
        body.push(sequence(&entries));
    }
    signed(sequence(&body), &issuer.key)
}

pub const CA: &str = "/DC=org/DC=example/CN=Example CA";
pub const ALICE: &str = "/DC=org/DC=example/OU=Users/CN=alice";

/// One authority, one user, and a directory that trusts the authority.
pub struct Grid {
    pub directory: tempfile::TempDir,
    pub ca: Holder,
    pub alice: Holder,
}

impl Grid {
    pub fn new() -> Self {
        Self::with_keys(ec_key(), ec_key())
    }

    pub fn with_keys(ca: Arc<KeyPair>, alice: Arc<KeyPair>) -> Self {
        let ca = authority_with(CA, ca);
        let alice = ca.issues(ALICE).with(basic_constraints(false)).with(key_usage(0xa0)).key(&alice).sign();
        let grid = Grid { directory: tempfile::tempdir().unwrap(), ca, alice };
        grid.write("11111111.0", grid.ca.pem());
        grid
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn settings(&self) -> GridSettings {
        GridSettings::new(self.path())
    }

    pub fn trust(&self) -> GridTrust {
        GridTrust::load(self.settings(), NOW).unwrap()
    }
}

pub fn chain(holders: &[&Holder]) -> Vec<CertificateDer<'static>> {
    holders.iter().map(|holder| holder.certificate()).collect()
}
