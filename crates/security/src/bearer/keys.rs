//! JSON Web Key Sets (RFC 7517): the keys that an issuer publishes.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use longhaul_model::{Fault, FaultCode};
use serde::Deserialize;

use super::jwt::Algorithm;
use crate::text;

/// Bytes of a key set.
pub const KEYS_BYTES_MAX: usize = 256 << 10;
/// Keys of one set: an issuer has two or three.
const KEYS_MAX: usize = 64;
/// Bytes of the exponent of an RSA key.
const EXPONENT_BYTES_MAX: usize = 8;

#[derive(Debug)]
pub(super) struct Key {
    pub(super) kid: Option<String>,
    /// The only algorithm for which the issuer allows it.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// Uncompressed point.
    P256(Vec<u8>),
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Entry {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Key {
    /// Whether `signature` over `message` is by this key and this method. The kind of the key has to be that
    /// of the method.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if self.algorithm.as_deref().is_some_and(|only| Algorithm::parse(only) != Some(algorithm)) {
            return false;
        }
        match (&self.material, algorithm) {
            (Material::Rsa { modulus, exponent }, Algorithm::Rs256) => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok()
            }
            (Material::Rsa { modulus, exponent }, Algorithm::Ps256) => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&RSA_PSS_2048_8192_SHA256, message, signature).is_ok()
            }
            (Material::P256(point), Algorithm::Es256) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

/// The usable keys of a set. Others are left out, as the standard asks: sets hold keys of kinds to come, and
/// for encryption.
pub(super) fn parse(document: &[u8]) -> Result<Vec<Key>, Fault> {
    let wrong = |why: String| Fault::new(FaultCode::ProtocolError, format!("the issuer's keys: {why}"));
    if document.len() > KEYS_BYTES_MAX {
        return Err(wrong(format!("more than {KEYS_BYTES_MAX} bytes")));
    }
    let document: Document =
        serde_json::from_slice(document).map_err(|error| wrong(error.to_string()).with_source(error))?;
    if document.keys.len() > KEYS_MAX {
        return Err(wrong(format!("{} keys, {KEYS_MAX} are accepted", document.keys.len())));
    }
    let keys: Vec<Key> = document
        .keys
        .into_iter()
        .filter_map(|value| serde_json::from_value(value).ok())
        .filter_map(key)
        .collect();
    if keys.is_empty() {
        return Err(wrong("none is an RSA key of 2048 bits or more, or a P-256 key, for signatures".into()));
    }
    Ok(keys)
}

fn key(entry: Entry) -> Option<Key> {
    if entry.purpose.is_some_and(|purpose| purpose != "sig") {
        return None;
    }
    let part = |text: Option<String>| text::from_base64(text?.trim_end_matches('='));
    let material = match entry.kty.as_str() {
        "RSA" => {
            let (modulus, exponent) = (part(entry.n)?, part(entry.e)?);
            if exponent.len() > EXPONENT_BYTES_MAX || !is_usable(&modulus, &exponent) {
                return None;
            }
            Material::Rsa { modulus, exponent }
        }
        "EC" if entry.crv.as_deref() == Some("P-256") => {
            let (x, y) = (part(entry.x)?, part(entry.y)?);
            if x.len() != 32 || y.len() != 32 {
                return None;
            }
            let point = [&[4], &x[..], &y[..]].concat();
            ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).ok()?;
            Material::P256(point)
        }
        _ => return None,
    };
    Some(Key { kid: entry.kid, algorithm: entry.alg, material })
}

/// 2048 to 8192 bits, odd.
fn is_usable(modulus: &[u8], exponent: &[u8]) -> bool {
    let modulus = modulus.iter().position(|&byte| byte != 0).map(|start| &modulus[start..]).unwrap_or(&[]);
    let Some(first) = modulus.first() else { return false };
    let bits = modulus.len() * 8 - first.leading_zeros() as usize;
    (2048..=8192).contains(&bits) && exponent.last().is_some_and(|last| last & 1 == 1) && exponent != [1]
}
