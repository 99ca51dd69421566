//! Discovery of an issuer's keys (OpenID Connect Discovery 1.0, RFC 8414), sans I/O: which URL to get next,
//! and what each response means.

use std::time::Duration;

use longhaul_model::{Fault, FaultCode};
use serde::Deserialize;

use super::trust::normalized_issuer;

/// Bytes of a discovery document.
pub(super) const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// Path of the metadata by OpenID Connect Discovery 1.0.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";
/// Path of the metadata by RFC 8414.
const OAUTH_WELL_KNOWN: &str = "/.well-known/oauth-authorization-server";

/// A response with status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchResponse {
    pub body: Vec<u8>,
    /// From its `Cache-Control`.
    pub max_age: Option<Duration>,
}

/// One issuer being asked. Get [`KeyFetch::url`] by verified TLS, without following redirects away from
/// https, no larger than [`super::KEYS_BYTES_MAX`], and give the answer to [`KeyFetch::answer`] until it is
/// done.
#[derive(Debug)]
pub struct KeyFetch {
    issuer: String,
    /// Left to try for the document, the last first.
    documents: Vec<String>,
    url: String,
    /// The document has been read; the answer to come is the keys.
    keys: bool,
    /// The fault of a document that did not come in time.
    stalled: Option<Fault>,
}

/// What to do after a response.
#[derive(Debug)]
pub enum FetchStep {
    /// Get [`KeyFetch::url`], which is another one now.
    More,
    /// For [`super::TokenTrust::install`].
    Done(Result<FetchResponse, Fault>),
}

impl KeyFetch {
    pub(super) fn new(issuer: &str) -> Self {
        let base = normalized_issuer(issuer);
        let (origin, path) = match base.match_indices('/').nth(2) {
            Some((at, _)) => base.split_at(at),
            None => (base, ""),
        };
        let mut documents =
            vec![format!("{origin}{OAUTH_WELL_KNOWN}{path}"), format!("{origin}{WELL_KNOWN}{path}")];
        documents.dedup();
        documents.retain(|document| *document != format!("{base}{WELL_KNOWN}"));
        let url = format!("{base}{WELL_KNOWN}");
        KeyFetch { issuer: issuer.to_owned(), documents, url, keys: false, stalled: None }
    }

    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn handle_response(&mut self, answer: Result<FetchResponse, Fault>) -> FetchStep {
        if self.keys {
            return FetchStep::Done(answer);
        }
        match answer.and_then(|answer| self.keys_address(&answer.body)) {
            Ok(url) => {
                self.url = url;
                self.keys = true;
                FetchStep::More
            }
            Err(fault) => {
                // That one did not come says more than that the others are not there.
                let told = self.stalled.take().unwrap_or(fault);
                match self.documents.pop() {
                    Some(url) => {
                        self.url = url;
                        self.stalled = Some(told).filter(|told| told.code == FaultCode::Stalled);
                        FetchStep::More
                    }
                    None => FetchStep::Done(Err(told)),
                }
            }
        }
    }

    fn keys_address(&self, document: &[u8]) -> Result<String, Fault> {
        #[derive(Deserialize)]
        struct Document {
            issuer: String,
            jwks_uri: String,
        }
        let wrong = |why: String| {
            let detail = format!("the discovery document of {} at {}: {why}", self.issuer, self.url);
            Fault::new(FaultCode::ProtocolError, detail)
        };
        if document.len() > DOCUMENT_BYTES_MAX {
            return Err(wrong(format!("more than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let document: Document =
            serde_json::from_slice(document).map_err(|error| wrong(error.to_string()).with_source(error))?;
        if normalized_issuer(&document.issuer) != normalized_issuer(&self.issuer) {
            return Err(wrong(format!("it is of {}", document.issuer)));
        }
        if !document.jwks_uri.starts_with("https://") {
            return Err(wrong(format!("its keys are not at an https address: {}", document.jwks_uri)));
        }
        Ok(document.jwks_uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str) -> Result<FetchResponse, Fault> {
        Ok(FetchResponse { body: body.as_bytes().to_vec(), max_age: None })
    }

    fn missing() -> Result<FetchResponse, Fault> {
        Err(Fault::new(FaultCode::NotFound, "404"))
    }

    #[test]
    fn documents_are_looked_for_where_issuers_put_them() {
        let mut fetch = KeyFetch::new("https://a.example/realms/x/");
        assert_eq!(fetch.url(), "https://a.example/realms/x/.well-known/openid-configuration");
        assert!(matches!(fetch.handle_response(missing()), FetchStep::More));
        assert_eq!(fetch.url(), "https://a.example/.well-known/openid-configuration/realms/x");
        assert!(matches!(fetch.handle_response(found("{}")), FetchStep::More));
        assert_eq!(fetch.url(), "https://a.example/.well-known/oauth-authorization-server/realms/x");
        let document = r#"{"issuer":"https://a.example/realms/x","jwks_uri":"https://a.example/keys"}"#;
        assert!(matches!(fetch.handle_response(found(document)), FetchStep::More));
        assert_eq!(fetch.url(), "https://a.example/keys");
        let FetchStep::Done(Ok(keys)) = fetch.handle_response(found("keys")) else { panic!("not done") };
        assert_eq!(keys.body, b"keys");
    }

    #[test]
    fn a_document_that_did_not_come_in_time_is_the_reason() {
        let mut fetch = KeyFetch::new("https://a.example");
        let late = Err(Fault::new(FaultCode::Stalled, "no answer within 10 s"));
        assert!(matches!(fetch.handle_response(late), FetchStep::More));
        let FetchStep::Done(Err(fault)) = fetch.handle_response(missing()) else { panic!("not done") };
        assert_eq!(fault.code, FaultCode::Stalled);
    }

    #[test]
    fn documents_of_others_and_plain_addresses_are_refused() {
        for document in [
            r#"{"issuer":"https://b.example","jwks_uri":"https://a.example/keys"}"#,
            r#"{"issuer":"https://a.example","jwks_uri":"http://a.example/keys"}"#,
            r#"{"issuer":"https://a.example","jwks_uri":"file:///etc/passwd"}"#,
        ] {
            let mut fetch = KeyFetch::new("https://a.example");
            assert!(matches!(fetch.handle_response(found(document)), FetchStep::More));
            assert_eq!(fetch.url(), "https://a.example/.well-known/oauth-authorization-server");
            assert!(matches!(fetch.handle_response(missing()), FetchStep::Done(Err(_))), "{document}");
        }
    }
}
