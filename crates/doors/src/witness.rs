//! Who was allowed to change what, or refused what, told to whoever keeps it. Told of every refusal, and of
//! every change; leave to read is not told.

use std::net::IpAddr;

use http::{HeaderMap, Method, header};
use longhaul_security::Decision;

use crate::rights::Granted;
use crate::serve::{Peer, Shared};

/// Hears of decisions. It must not wait: requests do.
pub trait Witness: Send + Sync {
    fn decided(&self, decision: Decision);
}

const NOBODY: &str = "nobody";

/// Who asks, as far as it is known.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    who: Option<String>,
    credential: &'static str,
    right: &'static str,
    origin: IpAddr,
}

impl Asked {
    /// Before anything is verified.
    pub(crate) fn of(peer: &Peer, headers: &HeaderMap) -> Asked {
        let credential = match &peer.subjects {
            _ if headers.contains_key(header::AUTHORIZATION) => "a token that does not count",
            Err(_) => "a certificate that does not count",
            Ok(subjects) if !subjects.is_empty() => "certificate",
            Ok(_) => "none",
        };
        let who = peer.subjects.as_ref().ok().and_then(|subjects| subjects.first().cloned());
        Asked { who, credential, right: "", origin: peer.address.ip().to_canonical() }
    }

    /// With whose credential counts. Of a certificate's names the subject is the first; a token comes after
    /// it.
    pub(crate) fn known(&mut self, granted: &Granted) {
        self.credential = granted.by;
        self.right = granted.right();
        let name = if granted.by == "certificate" { granted.who.first() } else { granted.who.last() };
        self.who = name.cloned();
    }
}

/// One of a bounded number of words, whatever methods clients make up.
pub(crate) fn operation(method: &Method, is_tape: bool) -> String {
    const KNOWN: [&str; 13] = [
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
    let word = KNOWN.iter().find(|word| **word == method.as_str()).unwrap_or(&"(other)");
    if is_tape { format!("door tape {word}") } else { format!("door {word}") }
}

impl Shared {
    /// `outcome`: of refusals the reason.
    pub(crate) fn note(&self, asked: &Asked, operation: &str, object: &str, outcome: Result<(), &str>) {
        let Some(witness) = &self.settings.witness else { return };
        witness.decided(Decision {
            allowed: outcome.is_ok(),
            who: asked.who.clone().unwrap_or_else(|| NOBODY.to_owned()),
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
