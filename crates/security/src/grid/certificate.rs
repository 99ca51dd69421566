//! X.509 certificates (RFC 5280) as far as grids need them, and the common form of signatures over
//! certificates, revocation lists and attribute certificates.

use longhaul_model::Timestamp;

use super::der::{
    BIT_STRING, DerResult, INTEGER, Malformed, OCTET_STRING, OID, Reader, SEQUENCE, context, only,
};
use super::name::Name;

/// Extensions of one certificate.
const EXTENSIONS_MAX: usize = 64;

pub(crate) mod oid {
    pub(crate) const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
    pub(crate) const SUBJECT_ALTERNATIVE: &[u8] = &[0x55, 0x1d, 0x11];
    pub(crate) const ISSUER_ALTERNATIVE: &[u8] = &[0x55, 0x1d, 0x12];
    pub(crate) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
    pub(crate) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
}

/// Signed data, its signature algorithm and signature.
#[derive(Clone, Copy)]
pub(crate) struct SignedData<'a> {
    pub(crate) message: &'a [u8],
    /// Content of the algorithm's identifier.
    pub(crate) algorithm: &'a [u8],
    signature: &'a [u8],
}

/// Why a signature is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadSignature {
    /// By another key, or over other bytes.
    Wrong,
    /// By a method or a key that is too weak or unknown: SHA-1, MD5, RSA below 2048 bits.
    Refused,
}

impl<'a> SignedData<'a> {
    pub(crate) fn parse(der: &'a [u8]) -> DerResult<Self> {
        let mut parts = only(der, SEQUENCE)?;
        let message = parts.element(SEQUENCE)?.raw;
        let algorithm = parts.expect(SEQUENCE)?;
        let signature = parts.bits()?;
        parts.end()?;
        Ok(SignedData { message, algorithm, signature })
    }

    /// Whether the holder of the key with this SubjectPublicKeyInfo signed it.
    pub(crate) fn verify(&self, key: &[u8]) -> Result<(), BadSignature> {
        let Ok((kind, bits)) = public_key(key) else { return Err(BadSignature::Refused) };
        let mut known = webpki::ALL_VERIFICATION_ALGS
            .iter()
            .filter(|method| method.signature_alg_id().as_ref() == self.algorithm)
            .filter(|method| method.public_key_alg_id().as_ref() == kind)
            .peekable();
        if known.peek().is_none() {
            return Err(BadSignature::Refused);
        }
        let verified =
            known.any(|method| method.verify_signature(bits, self.message, self.signature).is_ok());
        if verified { Ok(()) } else { Err(BadSignature::Wrong) }
    }
}

/// Content of the algorithm's identifier, and the key's bits, of a SubjectPublicKeyInfo.
pub(crate) fn public_key(key: &[u8]) -> DerResult<(&[u8], &[u8])> {
    let mut parts = only(key, SEQUENCE)?;
    let kind = parts.expect(SEQUENCE)?;
    let bits = parts.bits()?;
    parts.end()?;
    Ok((kind, bits))
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension<'a> {
    pub(crate) oid: &'a [u8],
    pub(crate) critical: bool,
    pub(crate) value: &'a [u8],
}

pub(crate) struct Certificate<'a> {
    pub(crate) der: &'a [u8],
    pub(crate) signed: SignedData<'a>,
    pub(crate) serial: &'a [u8],
    pub(crate) issuer: Name<'a>,
    pub(crate) subject: Name<'a>,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    /// SubjectPublicKeyInfo.
    pub(crate) key: &'a [u8],
    pub(crate) extensions: Vec<Extension<'a>>,
}

impl<'a> Certificate<'a> {
    pub(crate) fn parse(der: &'a [u8]) -> DerResult<Self> {
        let signed = SignedData::parse(der)?;
        let mut parts = only(signed.message, SEQUENCE)?;
        let _version = parts.optional(context(0))?;
        let serial = parts.expect(INTEGER)?;
        if parts.expect(SEQUENCE)? != signed.algorithm {
            return Err(Malformed("it names two methods of signature"));
        }
        let issuer = Name(parts.expect(SEQUENCE)?);
        let mut validity = parts.open(SEQUENCE)?;
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        validity.end()?;
        let subject = Name(parts.expect(SEQUENCE)?);
        let key = parts.element(SEQUENCE)?.raw;
        // Unique identifiers of issuer and subject, which nobody uses.
        for number in [1, 2] {
            parts.optional(super::der::context_primitive(number))?;
        }
        let extensions = match parts.optional(context(3))? {
            Some(list) => extensions(list)?,
            None => Vec::new(),
        };
        parts.end()?;
        Ok(Certificate { der, signed, serial, issuer, subject, not_before, not_after, key, extensions })
    }

    pub(crate) fn extension(&self, oid: &[u8]) -> Option<&Extension<'a>> {
        self.extensions.iter().find(|extension| extension.oid == oid)
    }

    /// Whether basic constraints say that it is an authority's.
    pub(crate) fn is_authority(&self) -> DerResult<bool> {
        let Some(extension) = self.extension(oid::BASIC_CONSTRAINTS) else { return Ok(false) };
        only(extension.value, SEQUENCE)?.boolean()
    }

    /// Bits of the key usage, the first in the highest bit; None: any use.
    pub(crate) fn key_usage(&self) -> DerResult<Option<u16>> {
        let Some(extension) = self.extension(oid::KEY_USAGE) else { return Ok(None) };
        match (Reader::new(extension.value)).expect(BIT_STRING)? {
            [0..=7, first] => Ok(Some(u16::from(*first) << 8)),
            [0..=7, first, second] => Ok(Some(u16::from(*first) << 8 | u16::from(*second))),
            _ => Err(Malformed("the key usage cannot be read")),
        }
    }

    /// Bits of an RSA key; None for others.
    pub(crate) fn rsa_bits(&self) -> Option<u32> {
        // 1.2.840.113549.1.1.1, NULL
        const RSA: &[u8] = &[0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
        let (kind, bits) = public_key(self.key).ok()?;
        if kind != RSA {
            return None;
        }
        let modulus = only(bits, SEQUENCE).ok()?.expect(INTEGER).ok()?;
        let modulus = modulus.strip_prefix(&[0]).unwrap_or(modulus);
        let bits = u32::try_from(modulus.len()).ok()? * 8;
        Some(bits - modulus.first()?.leading_zeros())
    }

    /// The subject for people.
    pub(crate) fn subject_text(&self) -> String {
        self.subject.one_line().unwrap_or_else(|_| "(an unreadable name)".into())
    }
}

/// The subject of a certificate in the one-line form; None if it has none, or it cannot be read.
pub(crate) fn subject_line(der: &[u8]) -> Option<String> {
    let line = Certificate::parse(der).ok()?.subject.one_line().ok()?;
    (!line.is_empty()).then_some(line)
}

pub(crate) fn extensions(list: &[u8]) -> DerResult<Vec<Extension<'_>>> {
    let mut all: Vec<Extension<'_>> = Vec::new();
    let mut list = only(list, SEQUENCE)?;
    while !list.is_empty() {
        if all.len() == EXTENSIONS_MAX {
            return Err(Malformed("it has too many extensions"));
        }
        let mut parts = list.open(SEQUENCE)?;
        let extension = Extension {
            oid: parts.expect(OID)?,
            critical: parts.boolean()?,
            value: parts.expect(OCTET_STRING)?,
        };
        parts.end()?;
        if all.iter().any(|other| other.oid == extension.oid) {
            return Err(Malformed("it has an extension twice"));
        }
        all.push(extension);
    }
    Ok(all)
}
