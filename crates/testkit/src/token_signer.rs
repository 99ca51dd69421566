//! JSON web tokens (RFC 7519) signed by ES256, and the key that verifies them.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

pub struct TokenSigner(EcdsaKeyPair);

impl TokenSigner {
    #[allow(clippy::new_without_default)]
    pub fn new() -> TokenSigner {
        TokenSigner(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    /// The key set that the issuer publishes (RFC 7517).
    pub fn key_set(&self, kid: &str) -> Value {
        let point = self.0.public_key().as_ref();
        json!({ "keys": [{ "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": kid,
                           "x": base64url(&point[1..33]), "y": base64url(&point[33..65]) }] })
    }

    /// The discovery document of an issuer (OpenID Connect Discovery) whose keys are at `jwks_uri`.
    pub fn discovery(issuer: &str, jwks_uri: &str) -> Value {
        json!({ "issuer": issuer, "jwks_uri": jwks_uri })
    }

    pub fn sign(&self, kid: &str, claims: &Value) -> String {
        self.sign_with(&json!({ "alg": "ES256", "kid": kid }), claims)
    }

    /// The same with a header of the test's own.
    pub fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", base64url(header.to_string()), base64url(claims.to_string()));
        let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", base64url(signature))
    }
}

fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
