//! Checks certificates, keys and grid-map files that the caller names.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use longhaul_model::Timestamp;
use longhaul_model::units::{duration, plural, printable};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::disk::error_text;
use crate::finding::{Finding, Group};
use longhaul_security::gridmap;

/// Largest file read; a large site's map has some ten thousand lines.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Bad lines shown one by one.
const BAD_LINES_SHOWN_MAX: usize = 10;
/// Days before expiry at which a certificate is reported.
const EXPIRY_WARNING_DAYS: u64 = 14;
const DAY_S: u64 = 86_400;

/// Checks one certificate.
pub(crate) fn check_certificate(group: Group, check: &str, der: &[u8], now: Timestamp) -> Finding {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return Finding::problem(group, check, "the certificate is malformed").remedy("ask for a new one");
    };
    let validity = certificate.validity();
    let begins = Timestamp::from_seconds(validity.not_before.timestamp());
    let ends = Timestamp::from_seconds(validity.not_after.timestamp());
    let name = |name: &x509_parser::x509::X509Name<'_>| printable(&name.to_string());
    let names = alternative_names(&certificate);
    let subject = match name(certificate.subject()) {
        empty if empty.is_empty() => "(no subject)".to_owned(),
        subject => subject,
    };
    let who = format!("{subject}{names}, issued by {}", name(certificate.issuer()));
    let remedy = "renew it (an agent of ours does so by itself while it runs)";
    if ends <= now {
        let since = duration(now.since(ends));
        return Finding::problem(group, check, format!("expired {since} ago ({ends}): {who}"))
            .costs("every peer refuses it")
            .remedy(remedy);
    }
    if begins > now {
        let until = duration(begins.since(now));
        return Finding::problem(group, check, format!("valid in {until} only ({begins}): {who}"))
            .costs("every peer refuses it until then")
            .remedy("set the clock of this host, or wait");
    }
    let left = ends.since(now);
    let found = format!("valid {} more: {who}", duration(left));
    if left.as_secs() < EXPIRY_WARNING_DAYS * DAY_S
        && ends.since(begins).as_secs() > 3 * EXPIRY_WARNING_DAYS * DAY_S
    {
        return Finding::advice(group, check, found).costs("transfers end with it").remedy(remedy);
    }
    Finding::ok(group, check, found)
}

fn alternative_names(certificate: &X509Certificate<'_>) -> String {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return String::new() };
    let all: Vec<String> = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name)
            | x509_parser::extensions::GeneralName::URI(name) => Some(printable(name)),
            _ => None,
        })
        .take(4)
        .collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

/// Checks a certificate file, perhaps with its chain, and its key.
pub(crate) fn check_key_pair(
    certificate_file: Option<&Path>,
    key_file: Option<&Path>,
    now: Timestamp,
) -> Vec<Finding> {
    let mut all = Vec::new();
    let chain = certificate_file.and_then(|path| match chain(path) {
        Ok(chain) => {
            all.extend(chain_findings(path, &chain, now));
            Some(chain)
        }
        Err(why) => {
            all.push(unusable("certificate", path, &why));
            None
        }
    });
    let Some(path) = key_file else { return all };
    let key = read(path).map_err(|error| error_text(&error)).and_then(|pem| {
        PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|_| "holds no private key in PEM (or an encrypted one)".into())
    });
    match key {
        Ok(key) => {
            all.extend(permissions(path));
            if let (Some(chain), Some(certificate_file)) = (chain, certificate_file) {
                all.push(keys_match(certificate_file, chain, path, &key));
            }
        }
        Err(why) => all.push(unusable("key", path, &why)),
    }
    all
}

fn printable_path(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn unusable(what: &str, path: &Path, why: &str) -> Finding {
    Finding::problem(Group::Credentials, what, format!("{}: {why}", printable_path(path)))
        .costs("it cannot be used")
        .remedy(format!("give a PEM file with a {what} that you may read"))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than 64 MiB"));
    }
    Ok(bytes)
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(path).map_err(|error| error_text(&error))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err("holds no certificate in PEM".into()),
        Err(_) => Err("its PEM is damaged".into()),
    }
}

fn chain_findings(path: &Path, chain: &[CertificateDer<'static>], now: Timestamp) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for (place, der) in chain.iter().enumerate() {
        let check =
            if place == 0 { "certificate".to_owned() } else { format!("certificate, issuer {place}") };
        all.push(check_certificate(Group::Credentials, &check, der, now));
    }
    let parsed: Vec<X509Certificate<'_>> =
        chain.iter().filter_map(|der| X509Certificate::from_der(der).ok()).map(|(_, one)| one).collect();
    let broken = parsed.windows(2).position(|pair| pair[0].issuer() != pair[1].subject());
    if let Some(place) = broken {
        let found =
            format!("{}: certificate {} is not issued by the one after it", printable_path(path), place + 1);
        all.push(
            Finding::problem(Group::Credentials, "certificate chain", found)
                .costs("peers that know only the root refuse it")
                .remedy("put the certificates in order: the host's own first, each followed by its issuer"),
        );
    }
    all
}

fn permissions(path: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(path).ok()?.mode() & 0o777;
    let found = format!("{} has mode {mode:04o}", printable_path(path));
    Some(if mode & 0o077 == 0 {
        Finding::ok(Group::Credentials, "key file", found)
    } else {
        Finding::problem(Group::Credentials, "key file", found)
            .costs("others on this host can take this host's identity; grid software refuses such a key")
            .remedy(format!("chmod 600 {}", printable_path(path)))
    })
}

fn keys_match(
    certificate_file: &Path,
    chain: Vec<CertificateDer<'static>>,
    key_file: &Path,
    key: &PrivateKeyDer<'static>,
) -> Finding {
    let check = "key and certificate";
    let (certificate_file, key_file) = (printable_path(certificate_file), printable_path(key_file));
    let Ok(key) = rustls::crypto::aws_lc_rs::sign::any_supported_type(key) else {
        return Finding::problem(
            Group::Credentials,
            check,
            format!("{key_file} holds a key of an unsupported kind"),
        )
        .remedy("make a key of the kind ECDSA P-256, Ed25519 or RSA (2048 bits or more)");
    };
    match rustls::sign::CertifiedKey::new(chain, key).keys_match() {
        Ok(()) => Finding::ok(Group::Credentials, check, "belong together"),
        Err(_) => Finding::problem(
            Group::Credentials,
            check,
            format!("{key_file} is not the key of {certificate_file}"),
        )
        .costs("no handshake succeeds")
        .remedy("find the key that the certificate was asked for with, or ask for a new certificate"),
    }
}

/// Checks a grid-map file; every bad line is reported with its number.
pub(crate) fn check_grid_map(path: &Path) -> Vec<Finding> {
    let name = printable_path(path);
    let bytes = match read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            return vec![
                Finding::problem(Group::Credentials, "grid-map", format!("{name}: {}", error_text(&error)))
                    .costs("nobody is mapped to an account")
                    .remedy("name a file that exists and that the agent may read"),
            ];
        }
    };
    let map = gridmap::parse(&bytes);
    let lines = plural(map.entries.len() as u64, "line maps", "lines map");
    let found = format!("{name}: {lines} subjects to accounts");
    let mut all = vec![if map.entries.is_empty() {
        Finding::problem(Group::Credentials, "grid-map", found)
            .costs("nobody is mapped to an account")
            .remedy("add lines such as: \"/C=UK/O=eScience/CN=jane doe\" jdoe")
    } else {
        Finding::ok(Group::Credentials, "grid-map", found)
    }];
    let more = |list: &[gridmap::BadLine]| list.len().saturating_sub(BAD_LINES_SHOWN_MAX);
    for bad in map.bad.iter().take(BAD_LINES_SHOWN_MAX) {
        all.push(
            Finding::problem(Group::Credentials, "grid-map", format!("{name}:{}: {}", bad.line, bad.why))
                .costs("whoever it is for is refused")
                .remedy(format!("correct line {} of {name}", bad.line)),
        );
    }
    for twin in map.shadowed.iter().take(BAD_LINES_SHOWN_MAX) {
        all.push(
            Finding::advice(Group::Credentials, "grid-map", format!("{name}:{}: {}", twin.line, twin.why))
                .costs("it has no effect")
                .remedy(format!("remove line {} of {name}, or the earlier one", twin.line)),
        );
    }
    if more(&map.bad) + more(&map.shadowed) > 0 {
        let found =
            format!("{name}: {} bad lines more, {} without effect", more(&map.bad), more(&map.shadowed));
        all.push(Finding::advice(Group::Credentials, "grid-map", found).remedy("correct those shown first"));
    }
    all
}
