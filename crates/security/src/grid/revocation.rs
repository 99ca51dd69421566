//! Certificate revocation lists (RFC 5280 section 5).

use longhaul_model::Timestamp;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;

use super::certificate::{Extension, SignedData, extensions};
use super::der::{DerResult, INTEGER, Malformed, Reader, SEQUENCE, context, only};

/// Bytes of a file: lists of large authorities have some megabytes.
pub(super) const LIST_BYTES_MAX: u64 = 64 << 20;

/// 2.5.29.28
const DISTRIBUTION_POINT: &[u8] = &[0x55, 0x1d, 0x1c];

#[derive(Debug)]
pub(super) struct RevocationList {
    der: Vec<u8>,
    /// Name of the authority, as a certificate has it.
    pub(super) issuer: Vec<u8>,
    pub(super) this_update: Timestamp,
    pub(super) next_update: Option<Timestamp>,
    /// In order.
    serials: Vec<Box<[u8]>>,
}

impl RevocationList {
    /// PEM or DER.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let der = if bytes.first() == Some(&SEQUENCE) {
            bytes.to_vec()
        } else {
            let pem = CertificateRevocationListDer::from_pem_slice(bytes);
            pem.map_err(|error| format!("is neither PEM nor DER: {error}"))?.to_vec()
        };
        let (issuer, this_update, next_update, serials) =
            parse(&der).map_err(|why| format!("holds a malformed revocation list: {why}"))?;
        Ok(RevocationList { der, issuer, this_update, next_update, serials })
    }

    pub(super) fn is_signed_by(&self, key: &[u8]) -> bool {
        SignedData::parse(&self.der).is_ok_and(|signed| signed.verify(key).is_ok())
    }

    pub(super) fn revokes(&self, serial: &[u8]) -> bool {
        self.serials.binary_search_by(|revoked| (**revoked).cmp(serial)).is_ok()
    }
}

type Parts = (Vec<u8>, Timestamp, Option<Timestamp>, Vec<Box<[u8]>>);

fn parse(der: &[u8]) -> DerResult<Parts> {
    let signed = SignedData::parse(der)?;
    let mut parts = only(signed.message, SEQUENCE)?;
    let _version = parts.optional(INTEGER)?;
    if parts.expect(SEQUENCE)? != signed.algorithm {
        return Err(Malformed("it names two methods of signature"));
    }
    let issuer = parts.expect(SEQUENCE)?.to_vec();
    let this_update = parts.time()?;
    let mut after = parts;
    let next_update = match after.time() {
        Ok(time) => {
            parts = after;
            Some(time)
        }
        Err(_) => None,
    };
    let mut serials = match parts.optional(SEQUENCE)? {
        Some(entries) => revoked(Reader::new(entries))?,
        None => Vec::new(),
    };
    if let Some(list) = parts.optional(context(0))? {
        for extension in extensions(list)? {
            check_list_extension(&extension)?;
        }
    }
    parts.end()?;
    serials.sort_unstable();
    Ok((issuer, this_update, next_update, serials))
}

fn revoked(mut entries: Reader<'_>) -> DerResult<Vec<Box<[u8]>>> {
    let mut serials = Vec::new();
    while !entries.is_empty() {
        let mut entry = entries.open(SEQUENCE)?;
        serials.push(entry.expect(INTEGER)?.into());
        entry.time()?;
        if let Some(list) = entry.optional(SEQUENCE)? {
            let mut list = Reader::new(list);
            while !list.is_empty() {
                let mut extension = list.open(SEQUENCE)?;
                extension.expect(super::der::OID)?;
                // Of another issuer, say: the serial number would be another's.
                if extension.boolean()? {
                    return Err(Malformed("an entry has a condition that is not understood"));
                }
            }
        }
        entry.end()?;
    }
    Ok(serials)
}

/// Refuses partial lists (issuing distribution point): they must not be taken for complete ones.
fn check_list_extension(extension: &Extension<'_>) -> DerResult<()> {
    if !extension.critical {
        return Ok(());
    }
    if extension.oid != DISTRIBUTION_POINT {
        return Err(Malformed("it has a condition that is not understood"));
    }
    let mut fields = only(extension.value, SEQUENCE)?;
    while !fields.is_empty() {
        // Where it is published; all others say for what part it is.
        if fields.next()?.tag != context(0) {
            return Err(Malformed("it is about a part of the certificates only"));
        }
    }
    Ok(())
}
