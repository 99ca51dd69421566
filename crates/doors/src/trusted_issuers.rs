//! Bearer tokens of trusted issuers (WLCG profile, SciTokens): their scopes say what a holder may do, within
//! the directory that an administrator assigned to the issuer.
//!
//! Not here: whether a token is genuine. The keys of issuers and the clock are behind [`TokenVerifier`].

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use http::StatusCode;
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use longhaul_security::bearer::{Scopes, StorageAction, TokenIdentity};

use crate::answer::{Outcome, Refusal};
use crate::request::is_within;
use crate::rights::{Action, not_authenticated};

/// The future of a verification.
pub type VerifyFuture<'a> = Pin<Box<dyn Future<Output = Result<TokenIdentity, Fault>> + Send + 'a>>;

pub trait TokenVerifier: Send + Sync {
    /// The holder of a token that is genuine, valid now, and meant for this door.
    fn verify<'a>(&'a self, token: &'a str) -> VerifyFuture<'a>;
}

/// The issuers that count.
#[derive(Clone)]
pub struct TrustedIssuers {
    pub verifier: Arc<dyn TokenVerifier>,
    /// Issuer, as [`TokenIdentity`] has it, and the directory that the paths of its scopes begin at; the
    /// empty path is the storage's root.
    pub areas: BTreeMap<String, String>,
}

/// What one verified token allows.
#[derive(Clone, Debug)]
pub(crate) struct TokenScope {
    scopes: Scopes,
    area: String,
}

impl TrustedIssuers {
    /// The scope of a token and the identity of its holder.
    pub(crate) async fn verify(&self, token: &str) -> Outcome<(TokenScope, String)> {
        let identity = self.verifier.verify(token).await.map_err(refused)?;
        let who = printable(&format!("{} of {}", identity.subject, identity.issuer)).to_string();
        // An issuer that is believed has a directory, or nothing.
        let Some(area) = self.areas.get(&identity.issuer) else {
            return Err(not_authenticated("this issuer has no directory here", Some("invalid_token")));
        };
        Ok((TokenScope { scopes: identity.scopes, area: area.clone() }, who))
    }
}

impl TokenScope {
    pub(crate) fn allows(&self, action: Action, path: &str) -> bool {
        if !is_within(path, &self.area) {
            return false;
        }
        let inner = path[self.area.len()..].trim_matches('/');
        // A scope for the directory `/a/` holds for `/a` too where that can be nothing but the directory
        // itself, or is only looked at.
        let directory = if inner.is_empty() { "/".to_owned() } else { format!("/{inner}/") };
        let file = format!("/{inner}");
        match action {
            Action::Look => self.scopes.allows(StorageAction::Stat, &directory),
            Action::List => self.scopes.allows(StorageAction::Read, &directory),
            Action::Read => self.scopes.allows(StorageAction::Read, &file),
            Action::Create => self.scopes.allows(StorageAction::Create, &file),
            Action::Change => self.scopes.allows(StorageAction::Modify, &file),
            Action::MakeDirectory => self.scopes.allows_directory(&directory),
            Action::Stage => self.scopes.allows(StorageAction::Stage, &file),
            // Whoever may read it finds out anyway.
            Action::Poll => {
                [StorageAction::Poll, StorageAction::Read].iter().any(|may| self.scopes.allows(*may, &file))
            }
        }
    }
}

fn refused(fault: Fault) -> Refusal {
    match fault.code {
        FaultCode::Busy => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, fault.detail),
        FaultCode::NotAllowed => Refusal::new(StatusCode::FORBIDDEN, fault.detail),
        _ => not_authenticated(&fault.detail, Some("invalid_token")),
    }
}
