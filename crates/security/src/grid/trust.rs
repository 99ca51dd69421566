//! Grid trust: verifies certificate chains (RFC 5280, RFC 3820) against the present authorities, with a cache
//! of verified chains.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use longhaul_model::{Fault, FaultCode, Timestamp};
use parking_lot::{Mutex, RwLock};
use rustls::pki_types::CertificateDer;

use super::certificate::Certificate;
use super::files::{Files, GridSettings, ReloadReport};
use super::trust_store::{TrustStore, one_line_name};
use super::{GridIdentity, chain, voms};

/// Cached chains: clients send the same one with every call.
const CACHED_CHAINS_MAX: usize = 4_096;
/// How long a cached chain is accepted without verification.
const CACHED_CHAIN_TTL: Duration = Duration::from_secs(600);

/// Authorities of the grid, reloaded while in use.
#[derive(Debug)]
pub struct GridTrust {
    settings: GridSettings,
    files: Mutex<Files>,
    trusted: RwLock<Arc<TrustStore>>,
    verified: Mutex<HashMap<[u8; 32], CachedIdentity>>,
}

#[derive(Debug)]
struct CachedIdentity {
    identity: Arc<GridIdentity>,
    /// What it was verified against.
    generation: u64,
    from: Timestamp,
    until: Timestamp,
}

impl GridTrust {
    /// Fails if a directory cannot be read or that of authorities holds none.
    pub fn load(settings: GridSettings, now: Timestamp) -> Result<Self, Fault> {
        let trust = GridTrust {
            settings,
            files: Mutex::new(Files::new()),
            trusted: RwLock::new(Arc::new(TrustStore::default())),
            verified: Mutex::new(HashMap::new()),
        };
        if trust.reload(now)?.authorities == 0 {
            let detail =
                format!("{} holds no certificate of an authority", trust.settings.directory.display());
            return Err(Fault::new(FaultCode::StateDirectory, detail));
        }
        Ok(trust)
    }

    /// Reloads changed files. If that fails, the former state stays in force.
    pub fn reload(&self, now: Timestamp) -> Result<ReloadReport, Fault> {
        let mut files = self.files.lock();
        let changed = files.refresh(&self.settings)?;
        if changed {
            let generation = self.trusted().generation + 1;
            let trusted = Arc::new(TrustStore::from_files(&files, &self.settings, generation));
            *self.trusted.write() = trusted;
        }
        let trusted = self.trusted();
        let mut problems = files.problems();
        problems.extend(trusted.problems.iter().cloned());
        problems.extend(trusted.lists_that_expire(now));
        Ok(ReloadReport { changed, authorities: trusted.authorities().len(), problems })
    }

    /// Verifies a chain and returns the identity of its first certificate; the others come in any order, with
    /// or without the root.
    pub fn verify_chain(
        &self,
        shown: &[CertificateDer<'_>],
        now: Timestamp,
    ) -> Result<Arc<GridIdentity>, Fault> {
        let trusted = self.trusted();
        let key = chain_digest(shown);
        if let Some(identity) = self.cached(&key, trusted.generation, now) {
            return Ok(identity);
        }
        let (identity, until) = verify(shown, &trusted, now)?;
        let identity = Arc::new(identity);
        let mut verified = self.verified.lock();
        if verified.len() >= CACHED_CHAINS_MAX {
            verified.clear();
        }
        let until = until.min(now + CACHED_CHAIN_TTL);
        let remembered =
            CachedIdentity { identity: identity.clone(), generation: trusted.generation, from: now, until };
        verified.insert(key, remembered);
        Ok(identity)
    }

    /// The certificates of the authorities, PEM: for clients that talk to servers of the grid.
    pub fn authorities_pem(&self) -> String {
        let trusted = self.trusted();
        trusted.authorities().map(|der| crate::text::to_pem("CERTIFICATE", der)).collect()
    }

    fn cached(&self, key: &[u8; 32], generation: u64, now: Timestamp) -> Option<Arc<GridIdentity>> {
        let verified = self.verified.lock();
        let found = verified.get(key)?;
        let counts = found.generation == generation && (found.from..=found.until).contains(&now);
        counts.then(|| found.identity.clone())
    }

    fn trusted(&self) -> Arc<TrustStore> {
        self.trusted.read().clone()
    }
}

/// Verifies a chain; returns its identity, and until when the result may be cached.
fn verify(
    shown: &[CertificateDer<'_>],
    trusted: &TrustStore,
    now: Timestamp,
) -> Result<(GridIdentity, Timestamp), Fault> {
    let sent = chain::parse(shown)?;
    let rsa_bits = sent.first().and_then(Certificate::rsa_bits);
    let verified = chain::verify(sent, trusted, now)?;
    let attributes = voms::attributes(&verified.proxies, &verified.end_entity, trusted, now);
    let until = attributes.not_after.map_or(verified.recheck, |ends| ends.min(verified.recheck));
    let identity = GridIdentity {
        subject: one_line_name(verified.end_entity.subject)?,
        issuer: one_line_name(verified.end_entity.issuer)?,
        proxies: verified.proxies.len(),
        limited: verified.limited,
        fqans: attributes.fqans,
        fqan_problem: attributes.problem,
        not_after: verified.not_after,
        rsa_bits,
        chain_pem: shown.iter().map(|der| crate::text::to_pem("CERTIFICATE", der)).collect(),
    };
    Ok((identity, until))
}

fn chain_digest(shown: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for der in shown {
        context.update(&(der.len() as u64).to_be_bytes());
        context.update(der);
    }
    crate::text::as_32(context.finish())
}
