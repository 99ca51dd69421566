//! Audit of a door: every refusal and every change goes to an [`AuditSink`], with who asked and by which
//! credential. Reads that were allowed are not recorded.

use std::net::IpAddr;

use http::{HeaderMap, Method, header};
use longhaul_security::Decision;

use crate::rights::GrantedRights;
use crate::serve::{DoorContext, Peer};

/// Records decisions. It must not block: requests wait for it.
pub trait AuditSink: Send + Sync {
    fn record(&self, decision: Decision);
}

const ANONYMOUS: &str = "nobody";

/// The subject of a request, as far as it is verified.
#[derive(Clone, Debug)]
pub(crate) struct AuditSubject {
    who: Option<String>,
    credential: &'static str,
    right: &'static str,
    origin: IpAddr,
}

impl AuditSubject {
    /// Before anything is verified.
    pub(crate) fn from_request(peer: &Peer, headers: &HeaderMap) -> AuditSubject {
        let credential = match &peer.subjects {
            _ if headers.contains_key(header::AUTHORIZATION) => "a token that does not count",
            Err(_) => "a certificate that does not count",
            Ok(subjects) if !subjects.is_empty() => "certificate",
            Ok(_) => "none",
        };
        let who = peer.subjects.as_ref().ok().and_then(|subjects| subjects.first().cloned());
        AuditSubject { who, credential, right: "", origin: peer.address.ip().to_canonical() }
    }

    /// The credential is verified. A certificate's subject is the first of its names; a token comes after
    /// them.
    pub(crate) fn authenticated(&mut self, granted: &GrantedRights) {
        self.credential = granted.by;
        self.right = granted.right();
        let name = if granted.by == "certificate" { granted.who.first() } else { granted.who.last() };
        self.who = name.cloned();
    }
}

/// One of a bounded number of words, whatever methods clients make up.
pub(crate) fn operation(method: &Method, is_tape: bool) -> String {
    const METHODS: [&str; 13] = [
        "OPTIONS",
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "MKCOL",
        "COPY",
        "MOVE",
        "PROPFIND",
        "PROPPATCH",
        "LOCK",
        "UNLOCK",
    ];
    let word = METHODS.iter().find(|word| **word == method.as_str()).unwrap_or(&"(other)");
    if is_tape { format!("door tape {word}") } else { format!("door {word}") }
}

impl DoorContext {
    /// `outcome`: of refusals the reason.
    pub(crate) fn record_decision(
        &self,
        asked: &AuditSubject,
        operation: &str,
        object: &str,
        outcome: Result<(), &str>,
    ) {
        let Some(sink) = &self.settings.audit else { return };
        sink.record(Decision {
            allowed: outcome.is_ok(),
            who: asked.who.clone().unwrap_or_else(|| ANONYMOUS.to_owned()),
            credential: asked.credential.to_owned(),
            origin: asked.origin.to_string(),
            operation: operation.to_owned(),
            object: object.to_owned(),
            why: outcome.err().unwrap_or(asked.right).to_owned(),
            storage: Some(self.storage().name().clone()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_methods_are_one_word() {
        assert_eq!(operation(&Method::PUT, false), "door PUT");
        assert_eq!(operation(&Method::POST, true), "door tape POST");
        for made_up in ["BREW", "put", "PUTX"] {
            assert_eq!(operation(&Method::from_bytes(made_up.as_bytes()).unwrap(), false), "door (other)");
        }
    }
}
