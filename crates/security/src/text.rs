//! Base64 (RFC 4648), PEM (RFC 7468), SHA-256, and the rule for deployment names.

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use longhaul_model::hex;

use crate::SecurityError;

pub(crate) fn to_base64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

pub(crate) fn to_pem(label: &str, der: &[u8]) -> String {
    const LINE: usize = 64;
    let body = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    // Base64 is ASCII: every place is one between characters.
    for start in (0..body.len()).step_by(LINE) {
        pem.push_str(&body[start..body.len().min(start + LINE)]);
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

pub(crate) fn from_hex_32(text: &str) -> Option<[u8; 32]> {
    let mut value = [0; 32];
    hex::decode_into(text, &mut value).map(|()| value)
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    as_32(digest::digest(&digest::SHA256, bytes))
}

pub(crate) fn as_32(digest: digest::Digest) -> [u8; 32] {
    let mut value = [0; 32];
    value.copy_from_slice(digest.as_ref());
    value
}

/// A deployment's name stands in URIs and certificates, so it is a word: letters, digits, `-`, `_`, `.`, at
/// most 64.
pub(crate) fn check_deployment(text: &str) -> Result<(), SecurityError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let why = match text.bytes().next() {
        None => "is empty",
        Some(first) if !first.is_ascii_alphanumeric() => "has to begin with a letter or a digit",
        _ if text.len() > 64 => "has more than 64 characters",
        _ if !text.bytes().all(fits) => "has characters other than letters, digits, - _ and .",
        _ => return Ok(()),
    };
    let shown = longhaul_model::units::printable(&text.chars().take(80).collect::<String>());
    Err(SecurityError::Name { what: "deployment name", shown, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_survive_their_text_forms(bytes in any::<[u8; 32]>()) {
            prop_assert_eq!(from_hex_32(&hex::encode(&bytes)), Some(bytes));
            prop_assert_eq!(from_base64(&to_base64(&bytes)), Some(bytes.to_vec()));
        }

        #[test]
        fn foreign_text_is_refused_quietly(text in ".{0,80}") {
            let _ = from_base64(&text);
            if let Some(value) = from_hex_32(&text) {
                prop_assert_eq!(hex::encode(&value), text.to_lowercase());
            }
        }
    }

    #[test]
    fn deployment_names_are_words() {
        assert!(check_deployment("tier0.export-2").is_ok());
        for bad in ["", "-a", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(check_deployment(bad).is_err(), "{bad:?}");
        }
    }
}
