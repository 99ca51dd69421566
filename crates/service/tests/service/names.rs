//! Distinguished names that are written like somebody else's.

use crate::isolation::{exchange_by, shown};
use crate::people::{Authority, Holder, dn};
use crate::world::World;
use serde_json::{Value, json};

/// Somebody who asks the FTS3 API with a certificate.
struct Person<'a> {
    world: &'a World,
    holder: Holder,
}

impl Person<'_> {
    async fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let port = self.world.address().port();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nContent-Length: \
                {}\r\n\r\n{body}",
            body.len()
        );
        exchange_by(self.world, shown(self.world, &self.holder), &text).await
    }

    async fn whoami(&self) -> Value {
        let (status, answer) = self.request("GET", "/whoami", "").await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    async fn delegation_id(&self) -> String {
        self.whoami().await["delegation_id"].as_str().unwrap().to_owned()
    }
}

/// What the authority certified is one value with a slash; it is no part of a name, neither at the handshake
/// nor in what its holder delegates.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_with_a_slash_delegates_for_nobody_else() {
    let grid = tempfile::tempdir().unwrap();
    let authority = Authority::new(grid.path(), "authority");
    let world = World::with(|config| {
        config.fts.trust_dir = Some(authority.trusted());
    })
    .await;
    let dora = Person { world: &world, holder: authority.user("dora") };
    let dora_id = dora.delegation_id().await;
    assert_eq!(dora.whoami().await["user_dn"], dn("dora"));
    let subjects = [
        "/DC=org/DC=example/OU=Users\\/CN=dora",
        "/DC=org/DC=example\\/OU=Users/CN=dora",
        "/DC=org/DC=example\\/OU=Users\\/CN=dora",
    ];
    for (number, subject) in subjects.into_iter().enumerate() {
        let name = format!("forged-{number}");
        let forged = Person { world: &world, holder: authority.user_with(&name, subject) };
        assert_eq!(forged.whoami().await["user_dn"], json!(subject));
        let id = forged.delegation_id().await;
        assert_ne!(id, dora_id, "{subject}");
        for path in [format!("/delegation/{dora_id}/request"), format!("/delegation/{dora_id}")] {
            assert_eq!(forged.request("GET", &path, "").await.0, 403, "{path} as {subject}");
        }
        let (status, csr) = forged.request("GET", &format!("/delegation/{id}/request"), "").await;
        assert_eq!(status, 200, "{csr}");
        let proxy = authority.delegate(&name, subject, &csr);
        let credential = |id: &str| format!("/delegation/{id}/credential");
        assert_eq!(forged.request("PUT", &credential(&dora_id), &proxy).await.0, 403, "{subject}");
        let (status, answer) = forged.request("PUT", &credential(&id), &proxy).await;
        assert_eq!(status, 201, "{answer}");
        let (status, answer) = forged.request("GET", &format!("/delegation/{id}"), "").await;
        assert!(status == 200 && answer.contains("termination_time"), "{answer}");
        let (status, answer) = dora.request("GET", &format!("/delegation/{dora_id}"), "").await;
        assert!(status == 200 && !answer.contains("termination_time"), "{subject}: {answer}");
    }
    world.assert_sound().await;
}
