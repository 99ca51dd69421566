//! Passwords of local accounts, hashed with Argon2id (RFC 9106) and stored as PHC strings, which name their
//! parameters.
//!
//! Not here: login throttling ([`crate::LoginThrottle`]), and how many are hashed at a time, which callers
//! bound: each hash takes 19 MiB and some 30 ms. A password is the bytes that were typed, without
//! normalisation.

use std::sync::LazyLock;

use argon2::{Algorithm, Argon2, Params, PasswordHash, PasswordHasher, PasswordVerifier, Version};
use longhaul_model::limits::{PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN};
use longhaul_model::{Fault, FaultCode};

use crate::authority::random_bytes;
use crate::new_secret;

/// Argon2's memory. OWASP's Password Storage Cheat Sheet (2025) asks for at least m = 19 MiB, t = 2, p = 1.
/// Hashes with other parameters are renewed at the next login.
const ARGON2_MEMORY_KIB: u32 = 19 * 1024;
/// Argon2's passes (t).
const ARGON2_PASSES: u32 = 2;
/// Argon2's lanes (p).
const ARGON2_LANES: u32 = 1;
/// Stored hashes that need more memory were not made here.
const ARGON2_MEMORY_KIB_MAX: u32 = 256 * 1024;
/// Stored hashes that need more passes were not made here.
const ARGON2_PASSES_MAX: u32 = 64;
/// Bytes of salt, as RFC 9106 recommends.
const SALT_BYTES: usize = 16;

/// The result of checking a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordVerdict {
    Wrong,
    Right,
    /// Right, but its hash must be renewed: its parameters are outdated.
    Outdated,
}

/// Checks whether a text is acceptable as a password.
pub fn check_new_password(name: &str, password: &str) -> Result<(), Fault> {
    let refuse = |why: String| Err(Fault::new(FaultCode::BadRequest, format!("the password {why}")));
    let chars = password.chars().count();
    if chars < PASSWORD_CHARS_MIN {
        return refuse(format!(
            "has {chars} characters: {PASSWORD_CHARS_MIN} or more are needed, such as four words with spaces"
        ));
    }
    if password.len() > PASSWORD_BYTES_MAX {
        return refuse(format!("has more than {PASSWORD_BYTES_MAX} bytes"));
    }
    if password.contains(char::is_control) {
        return refuse("has a character that cannot be typed into a form".into());
    }
    let small = password.to_lowercase();
    let repeats = |unit: &str| !unit.is_empty() && small.replace(unit, "").is_empty();
    if repeats(&name.to_lowercase())
        || small.chars().next().is_some_and(|first| repeats(first.encode_utf8(&mut [0; 4])))
    {
        return refuse("is the account's name or one character again and again".into());
    }
    Ok(())
}

/// The hash to store of a password.
pub fn hash_password(password: &str) -> Result<String, Fault> {
    let salt = random_bytes::<SALT_BYTES>();
    let hash = current_hasher()?.hash_password_with_salt(password.as_bytes(), &salt).map_err(failed)?;
    Ok(hash.to_string())
}

/// Checks a password against a stored hash. None (no such account) takes the same work and is wrong.
pub fn verify_password(kept: Option<&str>, password: &str) -> Result<PasswordVerdict, Fault> {
    /// The hash of a password that nobody has.
    static NOBODY: LazyLock<Result<String, Fault>> = LazyLock::new(|| hash_password(&new_secret("")));
    let nobody = NOBODY.as_ref().map_err(Clone::clone)?;
    let hash = PasswordHash::new(kept.unwrap_or(nobody)).map_err(failed)?;
    let params = Params::try_from(&hash).map_err(failed)?;
    if params.m_cost() > ARGON2_MEMORY_KIB_MAX || params.t_cost() > ARGON2_PASSES_MAX {
        return Err(failed("it asks for more work than any that was made here"));
    }
    // Longer ones were never accepted: hashing their beginning takes as long.
    let tried = password.as_bytes();
    let tried = &tried[..tried.len().min(PASSWORD_BYTES_MAX + 1)];
    let matches = current_hasher()?.verify_password(tried, &hash).is_ok();
    Ok(match (kept, matches) {
        (Some(_), true) if is_current(&hash, &params) => PasswordVerdict::Right,
        (Some(_), true) => PasswordVerdict::Outdated,
        _ => PasswordVerdict::Wrong,
    })
}

fn current_hasher() -> Result<Argon2<'static>, Fault> {
    let params = Params::new(ARGON2_MEMORY_KIB, ARGON2_PASSES, ARGON2_LANES, None).map_err(failed)?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

fn is_current(hash: &PasswordHash, params: &Params) -> bool {
    hash.algorithm == Algorithm::Argon2id.ident()
        && hash.version == Some(Version::V0x13.into())
        && (params.m_cost(), params.t_cost(), params.p_cost())
            == (ARGON2_MEMORY_KIB, ARGON2_PASSES, ARGON2_LANES)
}

/// The library's error texts hold nothing of the password.
fn failed(why: impl std::fmt::Display) -> Fault {
    Fault::new(FaultCode::Internal, format!("the hash of a password: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "correct horse battery staple";

    #[test]
    fn a_password_matches_its_own_hash_only() {
        let kept = hash_password(GOOD).unwrap();
        assert!(kept.starts_with("$argon2id$v=19$m=19456,t=2,p=1$") && !kept.contains("horse"), "{kept}");
        assert_eq!(verify_password(Some(&kept), GOOD).unwrap(), PasswordVerdict::Right);
        for wrong in ["", "Correct horse battery staple", "correct horse battery staple "] {
            assert_eq!(verify_password(Some(&kept), wrong).unwrap(), PasswordVerdict::Wrong, "{wrong:?}");
        }
        assert_ne!(hash_password(GOOD).unwrap(), kept, "each has salt of its own");
        assert_eq!(verify_password(None, GOOD).unwrap(), PasswordVerdict::Wrong);
        assert_eq!(verify_password(None, "").unwrap(), PasswordVerdict::Wrong);
        assert!(verify_password(Some("plain text"), "plain text").is_err());
    }

    #[test]
    fn hashes_by_other_parameters_are_understood_and_outdated() {
        let params = Params::new(1024, 1, 2, None).unwrap();
        let weak = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let kept = weak.hash_password_with_salt(GOOD.as_bytes(), b"0123456789abcdef").unwrap().to_string();
        assert_eq!(verify_password(Some(&kept), GOOD).unwrap(), PasswordVerdict::Outdated);
        assert_eq!(verify_password(Some(&kept), "another").unwrap(), PasswordVerdict::Wrong);
        let greedy = kept.replace("m=1024", "m=4294967295");
        assert!(verify_password(Some(&greedy), GOOD).unwrap_err().detail.contains("more work"));
    }

    #[test]
    fn short_and_repetitive_passwords_are_refused() {
        assert!(check_new_password("anna", GOOD).is_ok());
        assert!(check_new_password("anna", "fünfzehn Zeichen").is_ok());
        for (bad, why) in [
            ("fourteen chars".to_owned(), "14 characters"),
            ("x".repeat(20), "again and again"),
            ("AnnaannaAnnaanna".to_owned(), "again and again"),
            ("x y".repeat(400), "more than 1024 bytes"),
            (format!("{GOOD}\n"), "cannot be typed"),
        ] {
            let detail = check_new_password("anna", &bad).unwrap_err().detail;
            assert!(detail.contains(why) && !detail.contains(&bad), "{detail}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_or_is_quoted(name in ".{0,20}", password in ".{0,60}") {
            if let Err(fault) = check_new_password(&name, &password) {
                prop_assert!(password.len() < 8 || !fault.detail.contains(&password));
            }
            prop_assert!(PasswordHash::new(&password).is_err() || password.starts_with('$'));
        }
    }
}
