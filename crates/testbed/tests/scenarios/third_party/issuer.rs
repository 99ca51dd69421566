//! An issuer of tokens by the WLCG profile: it tells its keys, and signs what the test wants.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use longhaul_security::door_server_tls;
use longhaul_testbed::foreign::ForeignAuthority;
use rustls::{ServerConnection, StreamOwned};
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
    key: EcdsaKeyPair,
}

impl Issuer {
    pub fn start(authority: &ForeignAuthority) -> Arc<Issuer> {
        let (certificate, key) = authority.issue("issuer");
        let tls = door_server_tls(&certificate, &key, &[]).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let issuer = Arc::new(Issuer { url, key });
        let here = Arc::downgrade(&issuer);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let Some(issuer) = here.upgrade() else { return };
                let tls = tls.clone();
                std::thread::spawn(move || drop(issuer.serve(socket, tls)));
            }
        });
        issuer
    }

    /// For whatever is called `localhost`.
    pub fn token(&self, scope: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let claims = json!({ "wlcg.ver": "1.0", "iss": self.url, "sub": "robot", "aud": "localhost",
            "scope": scope,
                             "nbf": now - 5, "iat": now - 5, "exp": now + LIFE_S, "jti": scope });
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let header = json!({ "alg": "ES256", "kid": "k1", "typ": "at+jwt" });
        let message =
            format!("{}.{}", encode(header.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encode(signature.as_ref()))
    }

    /// What XRootD looks for its keys in.
    pub fn tell(&self, cache: &Path) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let known = json!({ "expires": now + 86_400, "next_update": now + 86_400, "jwks": self.keys() });
        let mut command = Command::new("python3");
        command.arg("-c").arg(REMEMBER).arg(cache.join("scitokens")).arg(&self.url).arg(known.to_string());
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }

    fn keys(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({ "keys": [{ "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k1",
                           "x": encode(&point[1..33]), "y": encode(&point[33..65]) }] })
    }

    fn serve(&self, socket: TcpStream, tls: Arc<rustls::ServerConfig>) -> io::Result<()> {
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
        let mut stream = BufReader::new(StreamOwned::new(connection, socket));
        let mut first = String::new();
        stream.read_line(&mut first)?;
        let mut line = first.clone();
        while !line.trim_end().is_empty() {
            line.clear();
            stream.read_line(&mut line)?;
        }
        let page = match first.split(' ').nth(1) {
            Some("/.well-known/openid-configuration") => {
                Some(json!({ "issuer": self.url, "jwks_uri": format!("{}jwk", self.url) }))
            }
            Some("/jwk") => Some(self.keys()),
            _ => None,
        };
        let status = if page.is_some() { "200 OK" } else { "404 Not Found" };
        let body = page.unwrap_or_default().to_string();
        let length = body.len();
        let stream = stream.get_mut();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: \
                {length}\r\n\r\n{body}"
        )?;
        stream.conn.send_close_notify();
        stream.flush()
    }
}
