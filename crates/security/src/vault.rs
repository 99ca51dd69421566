//! Encryption at rest of users' delegated credentials, with a key outside the database: AES-256-GCM-SIV (RFC
//! 8452).
//!
//! Nonces are random, and the mode tolerates repeated ones. The purpose of a credential is authenticated with
//! it, so that one cannot replace another.

use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand;
use zeroize::{Zeroize, Zeroizing};

use crate::{SecurityError, private_files, text};

/// Version of the sealed format, its first byte.
const FORMAT_VERSION: u8 = 1;
/// Bytes of an AES-256 key.
const KEY_BYTES: usize = 32;
/// Prefix of a sealed text, where plain texts are stored too.
const SEALED_TEXT_PREFIX: &str = "sealed:";

/// Seals and unseals with the key.
pub struct Vault {
    key: LessSafeKey,
}

impl Vault {
    /// Opens the vault with the key in a file, which is created if missing.
    pub fn open(path: &Path) -> Result<Vault, SecurityError> {
        if !path.exists() {
            let mut key = Zeroizing::new([0; KEY_BYTES]);
            rand::fill(&mut *key).map_err(|_| unusable_key("there is no randomness"))?;
            private_files::write_private(path, Zeroizing::new(text::to_base64(&*key)).as_bytes())?;
        }
        let kept = Zeroizing::new(private_files::read_private(path)?);
        let key = text::from_base64(kept.trim()).map(Zeroizing::new).filter(|key| key.len() == KEY_BYTES);
        let key = key.ok_or_else(|| unusable_key(format!("{} is not one", path.display())))?;
        let key = UnboundKey::new(&AES_256_GCM_SIV, &key).map_err(|_| unusable_key("it is refused"))?;
        Ok(Vault { key: LessSafeKey::new(key) })
    }

    /// Encrypts a secret. `purpose` says whose it is and what for; unsealing needs the same text.
    pub fn seal(&self, purpose: &str, secret: &[u8]) -> Result<Vec<u8>, SecurityError> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(|_| unusable_key("there is no randomness"))?;
        let mut sealed = Vec::with_capacity(1 + NONCE_LEN + secret.len() + AES_256_GCM_SIV.tag_len());
        sealed.push(FORMAT_VERSION);
        sealed.extend_from_slice(&nonce);
        let mut body = secret.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(purpose.as_bytes()), &mut body);
        match tag {
            Ok(tag) => {
                sealed.extend_from_slice(&body);
                sealed.extend_from_slice(tag.as_ref());
                Ok(sealed)
            }
            Err(_) => {
                body.zeroize();
                Err(unusable_key("a credential cannot be sealed with it"))
            }
        }
    }

    pub fn unseal(&self, purpose: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SecurityError> {
        let opened = || -> Option<Zeroizing<Vec<u8>>> {
            let (&FORMAT_VERSION, rest) = sealed.split_first()? else { return None };
            let (nonce, body) = rest.split_at_checked(NONCE_LEN)?;
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut body = Zeroizing::new(body.to_vec());
            let length = self.key.open_in_place(nonce, Aad::from(purpose.as_bytes()), &mut body).ok()?.len();
            body.truncate(length);
            Some(body)
        };
        opened().ok_or_else(|| {
            unusable_key(
                "a credential does not open with it: it was sealed with another, or for another purpose",
            )
        })
    }

    /// Seals a text, as a text.
    pub fn seal_text(&self, purpose: &str, secret: &str) -> Result<String, SecurityError> {
        Ok(format!("{SEALED_TEXT_PREFIX}{}", text::to_base64(&self.seal(purpose, secret.as_bytes())?)))
    }

    pub fn unseal_text(&self, purpose: &str, sealed: &str) -> Result<Zeroizing<String>, SecurityError> {
        let bytes = sealed.strip_prefix(SEALED_TEXT_PREFIX).and_then(text::from_base64);
        let opened = self.unseal(purpose, &bytes.ok_or_else(|| unusable_key("a text is not sealed"))?)?;
        let text = std::str::from_utf8(&opened).map_err(|_| unusable_key("what was sealed is no text"))?;
        Ok(Zeroizing::new(text.to_owned()))
    }
}

fn unusable_key(why: impl ToString) -> SecurityError {
    SecurityError::unusable("key of the users' credentials", why)
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault() -> (tempfile::TempDir, Vault) {
        let folder = tempfile::tempdir().unwrap();
        let vault = Vault::open(&folder.path().join("key")).unwrap();
        (folder, vault)
    }

    #[test]
    fn sealed_secrets_unseal_and_reveal_nothing() {
        let (folder, vault) = vault();
        let sealed = vault.seal("proxy of anna", b"a secret of hers").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_ne!(sealed, vault.seal("proxy of anna", b"a secret of hers").unwrap());
        let again = Vault::open(&folder.path().join("key")).unwrap();
        assert_eq!(&**again.unseal("proxy of anna", &sealed).unwrap(), b"a secret of hers");
        let text = vault.seal_text("token", "ey.ey.x").unwrap();
        assert!(!text.contains("ey.ey") && text.starts_with(SEALED_TEXT_PREFIX));
        assert_eq!(&*again.unseal_text("token", &text).unwrap(), "ey.ey.x");
    }

    #[test]
    fn tampered_or_foreign_secrets_do_not_unseal() {
        let (_folder, vault) = vault();
        let sealed = vault.seal("proxy of anna", b"a secret of hers").unwrap();
        assert!(vault.unseal("proxy of bert", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut touched = sealed.clone();
            touched[at] ^= 1;
            assert!(vault.unseal("proxy of anna", &touched).is_err(), "byte {at}");
            assert!(vault.unseal("proxy of anna", &sealed[..at]).is_err(), "cut at {at}");
        }
        assert!(self::vault().1.unseal("proxy of anna", &sealed).is_err(), "another key");
        assert!(
            vault.unseal_text("token", "ey.ey.x").is_err() && vault.unseal_text("token", "sealed:!").is_err()
        );
    }

    #[test]
    fn a_file_that_is_no_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "too short").unwrap();
        assert!(Vault::open(&path).unwrap_err().to_string().contains("is not one"));
    }
}
