//! An issuer of tokens by the WLCG profile: it tells its keys, and signs what the test wants.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_testbed::foreign::ForeignAuthority;
use longhaul_testkit::http::{self, Response};
use longhaul_testkit::{TokenSigner, server_tls};
use serde_json::{Value, json};

const LIFE_S: u64 = 3_600;
/// XRootD's library believes servers by the authorities of the system only; it gets the keys as if it had
/// asked.
const REMEMBER: &str = "
import os, sqlite3, sys
folder, issuer, known = sys.argv[1:]
os.mkdir(folder)
with sqlite3.connect(folder + '/scitokens_cpp.sqllite') as cache:
    cache.execute('CREATE TABLE keycache (issuer text UNIQUE PRIMARY KEY NOT NULL, keys text NOT NULL)')
    cache.execute('INSERT INTO keycache VALUES (?, ?)', (issuer, known))
os.chmod(folder, 0o777)
os.chmod(folder + '/scitokens_cpp.sqllite', 0o666)
";

pub struct Issuer {
    pub url: String,
    signer: TokenSigner,
}

impl Issuer {
    pub fn start(authority: &ForeignAuthority) -> Arc<Issuer> {
        let tls = server_tls(&authority.issue("issuer"));
        let (listener, port) = http::listen();
        let url = format!("https://localhost:{port}/");
        let issuer = Arc::new(Issuer { url, signer: TokenSigner::new() });
        let here = issuer.clone();
        http::serve(listener, Some(tls), move |request| match request.path() {
            "/.well-known/openid-configuration" => {
                Response::json(200, &json!({ "issuer": here.url, "jwks_uri": format!("{}jwk", here.url) }))
            }
            "/jwk" => Response::json(200, &here.keys()),
            _ => Response::not_found(),
        });
        issuer
    }

    /// For whatever is called `localhost`.
    pub fn token(&self, scope: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let claims = json!({ "wlcg.ver": "1.0", "iss": self.url, "sub": "robot", "aud": "localhost",
            "scope": scope,
                             "nbf": now - 5, "iat": now - 5, "exp": now + LIFE_S, "jti": scope });
        self.signer.sign_with(&json!({ "alg": "ES256", "kid": "k1", "typ": "at+jwt" }), &claims)
    }

    /// What XRootD looks for its keys in.
    pub fn fill_key_cache(&self, cache: &Path) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let known = json!({ "expires": now + 86_400, "next_update": now + 86_400, "jwks": self.keys() });
        let mut command = Command::new("python3");
        command.arg("-c").arg(REMEMBER).arg(cache.join("scitokens")).arg(&self.url).arg(known.to_string());
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }

    fn keys(&self) -> Value {
        self.signer.key_set("k1")
    }
}
