//! Permits: signed capabilities. With each batch of leases the service signs which files of which source the
//! target may read, so that a source trusts a peer with no more than these files.
//!
//! Text form: `lhp1.` payload `.` signature, both base64url; the payload is JSON. Ed25519 (RFC 8032) signs
//! everything before the second dot, the version included.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, ParsedPublicKey};
use longhaul_model::units::printable;
use longhaul_model::{AgentId, AttemptId, Fault, FaultCode, Lfn, StorageName, Timestamp};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use crate::{SecurityError, constant_time_eq, text};

/// Version prefix of the text form.
const PREFIX: &str = "lhp1.";
/// Bytes of a permit. The longest names give about 500.
const PERMIT_BYTES_MAX: usize = 2048;

/// The right of one agent to read listed files of another, as a batch of leases carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    pub deployment: String,
    pub target_agent: AgentId,
    pub source_agent: AgentId,
    pub source_storage: StorageName,
    /// [`list_digest`] of the batch.
    pub list_digest: [u8; 32],
    /// After this no transfer may begin; running ones finish.
    pub expires: Timestamp,
}

/// The signed content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {
    deployment: String,
    target: AgentId,
    source: AgentId,
    storage: StorageName,
    list: String,
    expires_us: i64,
}

impl Permit {
    /// Checks that this permit is for exactly this deployment, these agents, this storage and this list,
    /// after its signature. `source` is the agent that checks, `target` the peer.
    pub fn covers(
        &self,
        deployment: &str,
        source: AgentId,
        target: AgentId,
        storage: &StorageName,
        list_digest: &[u8; 32],
    ) -> Result<(), Fault> {
        if self.deployment != deployment {
            return refuse("it is of another deployment".to_owned());
        }
        if self.target_agent != target {
            return refuse(format!("it is for the agent {}, {target} shows it", self.target_agent));
        }
        if self.source_agent != source {
            return refuse(format!("it is for files of the agent {}, this is {source}", self.source_agent));
        }
        if self.source_storage != *storage {
            return refuse(format!("it is for the storage {}, {storage} is asked for", self.source_storage));
        }
        if !constant_time_eq(&self.list_digest, list_digest) {
            return refuse("it is for another list of files".to_owned());
        }
        Ok(())
    }

    pub(crate) fn sign_with(&self, key: &Ed25519KeyPair) -> Arc<str> {
        let payload = serde_json::json!({
            "deployment": self.deployment,
            "target": self.target_agent.to_string(),
            "source": self.source_agent.to_string(),
            "storage": self.source_storage.as_str(),
            "list": text::to_base64(&self.list_digest),
            "expires_us": self.expires.as_micros(),
        });
        let mut sealed = format!("{PREFIX}{}", text::to_base64(payload.to_string().as_bytes()));
        let signature = key.sign(sealed.as_bytes());
        sealed.push('.');
        sealed.push_str(&text::to_base64(signature.as_ref()));
        assert!(sealed.len() <= PERMIT_BYTES_MAX, "a permit longer than any source accepts");
        sealed.into()
    }
}

/// Digest of a batch's files in order: attempt, name and size of each.
pub fn list_digest<'a>(files: impl Iterator<Item = (AttemptId, &'a Lfn, u64)>) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"longhaul permit list 1\0");
    for (attempt, lfn, size) in files {
        context.update(&attempt.0.to_be_bytes());
        context.update(&size.to_be_bytes());
        // Length-prefixed, so that no two lists have the same bytes.
        context.update(&(lfn.as_str().len() as u64).to_be_bytes());
        context.update(lfn.as_str().as_bytes());
    }
    text::as_32(context.finish())
}

/// Verifies permits at a source, with the key that it got when it joined.
#[derive(Clone)]
pub struct PermitVerifier {
    key: ParsedPublicKey,
}

impl PermitVerifier {
    pub fn new(permit_key_pem: &str) -> Result<Self, SecurityError> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(permit_key_pem.as_bytes())
            .map_err(|error| SecurityError::unusable("permit key", error))?;
        let key = ParsedPublicKey::new(&ED25519, &der)
            .map_err(|error| SecurityError::unusable("permit key", error))?;
        Ok(PermitVerifier { key })
    }

    /// Verifies signature, form and expiry. The caller then checks what it permits ([`Permit::covers`]).
    pub fn verify(&self, text: &str, now: Timestamp) -> Result<Permit, Fault> {
        if text.len() > PERMIT_BYTES_MAX {
            return refuse(format!("it has {} bytes, the limit is {PERMIT_BYTES_MAX}", text.len()));
        }
        let Some((signed, signature)) =
            text.rsplit_once('.').filter(|(signed, _)| signed.starts_with(PREFIX))
        else {
            return refuse("it does not have the form of a permit".to_owned());
        };
        let good = text::from_base64(signature)
            .is_some_and(|signature| self.key.verify_sig(signed.as_bytes(), &signature).is_ok());
        if !good {
            return refuse("its signature is not from this deployment's service".to_owned());
        }
        let Some(permit) = parse_payload(&signed[PREFIX.len()..]) else {
            return refuse(
                "its contents are not understood: the service is newer than this agent".to_owned(),
            );
        };
        if now >= permit.expires {
            return refuse(format!("it expired at {}, it is {now}", permit.expires));
        }
        Ok(permit)
    }
}

impl fmt::Debug for PermitVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitVerifier")
    }
}

fn parse_payload(payload: &str) -> Option<Permit> {
    let payload: Payload = serde_json::from_slice(&text::from_base64(payload)?).ok()?;
    Some(Permit {
        deployment: payload.deployment,
        target_agent: payload.target,
        source_agent: payload.source,
        source_storage: payload.storage,
        list_digest: text::from_base64(&payload.list)?.try_into().ok()?,
        expires: Timestamp(payload.expires_us),
    })
}

fn refuse<T>(why: String) -> Result<T, Fault> {
    Err(Fault::new(FaultCode::PermitRefused, printable(&why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;
    use proptest::prelude::*;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp(1_780_000_000_000_000);

    fn authority() -> Authority {
        let directory = tempfile::tempdir().unwrap();
        Authority::create(directory.path(), "tier0", NOW).unwrap()
    }

    fn permit() -> Permit {
        Permit {
            deployment: "tier0".into(),
            target_agent: AgentId(1),
            source_agent: AgentId(2),
            source_storage: "alpha".parse().unwrap(),
            list_digest: [7; 32],
            expires: NOW + Duration::from_micros(600_000_001),
        }
    }

    fn reason(result: Result<Permit, Fault>) -> String {
        let fault = result.unwrap_err();
        assert_eq!(fault.code, FaultCode::PermitRefused);
        fault.detail
    }

    /// Promise 9: a source serves nothing that the service has not permitted.
    #[test]
    fn a_signed_permit_is_understood_and_a_late_one_refused() {
        let authority = authority();
        let verifier = PermitVerifier::new(&authority.permit_key_pem()).unwrap();
        let text = authority.sign_permit(&permit());
        assert_eq!(verifier.verify(&text, NOW).unwrap(), permit());
        assert!(reason(verifier.verify(&text, permit().expires)).contains("expired"));
    }

    #[test]
    fn forged_and_foreign_permits_are_refused() {
        let authority = authority();
        let verifier = PermitVerifier::new(&authority.permit_key_pem()).unwrap();
        let text = authority.sign_permit(&permit());
        let (signed, signature) = text.rsplit_once('.').unwrap();
        let altered = Permit { list_digest: [8; 32], ..permit() };
        let other_text = authority.sign_permit(&altered);
        let (other_signed, _) = other_text.rsplit_once('.').unwrap();
        for forged in [format!("{other_signed}.{signature}"), format!("{signed}."), format!("{text}A")] {
            assert!(reason(verifier.verify(&forged, NOW)).contains("signature"), "{forged}");
        }
        let directory = tempfile::tempdir().unwrap();
        let foreign = Authority::create(directory.path(), "tier0", NOW).unwrap();
        assert!(reason(verifier.verify(&foreign.sign_permit(&permit()), NOW)).contains("signature"));
        assert!(reason(verifier.verify(&"x".repeat(100_000), NOW)).contains("limit"));
        assert!(reason(verifier.verify("", NOW)).contains("form"));
    }

    #[test]
    fn a_permit_is_for_two_agents_one_storage_and_one_list() {
        let permit = permit();
        let (one, two) = (AgentId(1), AgentId(2));
        let alpha: StorageName = "alpha".parse().unwrap();
        let beta: StorageName = "beta".parse().unwrap();
        assert!(permit.covers("tier0", two, one, &alpha, &[7; 32]).is_ok());
        for (refused, word) in [
            (permit.covers("tier1", two, one, &alpha, &[7; 32]), "another deployment"),
            (permit.covers("tier0", two, AgentId(3), &alpha, &[7; 32]), "shows it"),
            (permit.covers("tier0", AgentId(3), one, &alpha, &[7; 32]), "this is"),
            (permit.covers("tier0", two, one, &beta, &[7; 32]), "storage"),
            (permit.covers("tier0", two, one, &alpha, &[9; 32]), "list"),
        ] {
            let fault = refused.unwrap_err();
            assert!(fault.code == FaultCode::PermitRefused && fault.detail.contains(word), "{fault}");
        }
    }

    #[test]
    fn every_part_of_a_list_counts() {
        let (a, ab, b): (Lfn, Lfn, Lfn) = ("a".parse().unwrap(), "ab".parse().unwrap(), "b".parse().unwrap());
        let lists: &[&[(u64, &Lfn, u64)]] = &[
            &[],
            &[(1, &a, 5)],
            &[(2, &a, 5)],
            &[(1, &b, 5)],
            &[(1, &a, 6)],
            &[(1, &ab, 5)],
            &[(1, &a, 5), (2, &b, 5)],
            &[(2, &b, 5), (1, &a, 5)],
        ];
        let digests: std::collections::BTreeSet<_> = lists
            .iter()
            .map(|list| list_digest(list.iter().map(|&(attempt, lfn, size)| (AttemptId(attempt), lfn, size))))
            .collect();
        assert_eq!(digests.len(), lists.len());
    }

    #[test]
    fn refuses_what_is_no_key() {
        let authority = authority();
        for bad in ["", "garbage", authority.ca_pem()] {
            assert!(PermitVerifier::new(bad).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64 * ProptestConfig::default().cases / 256))]

        #[test]
        fn foreign_text_is_refused(text in "(lhp1\\.)?[A-Za-z0-9_.-]{0,300}|.{0,50}") {
            let verifier = PermitVerifier::new(&authority().permit_key_pem()).unwrap();
            prop_assert_eq!(verifier.verify(&text, NOW).unwrap_err().code, FaultCode::PermitRefused);
        }

        #[test]
        fn no_changed_byte_goes_unnoticed(place in any::<prop::sample::Index>(), byte in b'!'..b'~') {
            let authority = authority();
            let verifier = PermitVerifier::new(&authority.permit_key_pem()).unwrap();
            let good = authority.sign_permit(&permit());
            let mut changed = good.as_bytes().to_vec();
            let place = place.index(changed.len());
            changed[place] = byte;
            let changed = String::from_utf8(changed).unwrap();
            prop_assert_eq!(verifier.verify(&changed, NOW).is_ok(), *changed == *good);
        }

        #[test]
        fn payloads_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_payload(&text::to_base64(&bytes));
            let _ = parse_payload(&String::from_utf8_lossy(&bytes));
        }
    }
}
