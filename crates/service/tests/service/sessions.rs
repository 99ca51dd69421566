//! Login sessions over restarts of the service.

use longhaul_api::native::{TokenCreate, TokenCreated};
use longhaul_api::routes;
use longhaul_catalog::Catalog;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{World, clock};

/// A browser's session.
struct Browser {
    cookie: String,
    csrf_token: String,
}

impl Browser {
    async fn log_in(world: &World, token: &str) -> Browser {
        let body = serde_json::json!({ "token": token }).to_string();
        let headers = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        let reply = exchange(world, "POST /api/v1/session", &headers, &body).await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        let between =
            |start: &str, end: char| reply.split(start).nth(1).unwrap().split(end).next().unwrap().to_owned();
        Browser { cookie: between("set-cookie: ", ';'), csrf_token: between("\"csrf_token\":\"", '"') }
    }

    async fn is_logged_in(&self, world: &World) -> bool {
        let cookie = format!("Cookie: {}\r\n", self.cookie);
        let reply = exchange(world, "GET /api/v1/whoami", &cookie, "").await;
        assert!(reply.starts_with("HTTP/1.1 200") || reply.starts_with("HTTP/1.1 401"), "{reply}");
        reply.starts_with("HTTP/1.1 200")
    }

    async fn log_out(&self, world: &World) {
        let headers = format!("Cookie: {}\r\nX-CSRF-Token: {}\r\n", self.cookie, self.csrf_token);
        let reply = exchange(world, "DELETE /api/v1/session", &headers, "").await;
        assert!(reply.starts_with("HTTP/1.1 2"), "{reply}");
    }
}

async fn exchange(world: &World, line: &str, headers: &str, body: &str) -> String {
    let address = world.http_address();
    let head = format!("{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

async fn viewer_token(world: &World, name: &str) -> String {
    let create = TokenCreate { name: name.into(), role: "viewer".into(), ..TokenCreate::default() };
    let made: TokenCreated = world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
    made.token
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_a_restart_until_its_holder_logs_out() {
    let mut world = World::new().await;
    let (stays, leaves) = (
        Browser::log_in(&world, &world.admin_token).await,
        Browser::log_in(&world, &world.admin_token).await,
    );
    world.restart().await;
    assert!(stays.is_logged_in(&world).await && leaves.is_logged_in(&world).await);
    // The forms of a page that was open before work too.
    leaves.log_out(&world).await;
    assert!(!leaves.is_logged_in(&world).await);
    world.crash().await;
    assert!(!leaves.is_logged_in(&world).await, "logged out for good");
    assert!(stays.is_logged_in(&world).await);
    world.shift_s.fetch_add(13 * 3_600, std::sync::atomic::Ordering::Relaxed);
    world.restart().await;
    assert!(!stays.is_logged_in(&world).await, "a session ends when it would have without restarts");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_token_was_revoked_does_not_come_back() {
    let mut world = World::new().await;
    let before = Browser::log_in(&world, &viewer_token(&world, "revoked-before").await).await;
    let between = Browser::log_in(&world, &viewer_token(&world, "revoked-between").await).await;
    let stays = Browser::log_in(&world, &viewer_token(&world, "stays").await).await;
    let revoke = world.admin().request(&routes::TOKEN_REVOKE).parameter("revoked-before");
    revoke.send::<serde_json::Value>().await.unwrap();
    world.stop().await;
    let path = world.config.state_dir.join("catalog.sqlite");
    let catalog = Catalog::open(&path, (clock(&world.shift_s))()).unwrap();
    assert!(catalog.remove_api_token("revoked-between").unwrap());
    drop(catalog);
    world.start().await;
    assert!(!before.is_logged_in(&world).await && !between.is_logged_in(&world).await);
    assert!(stays.is_logged_in(&world).await);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_see_where_people_log_in_from() {
    let mut world = World::new().await;
    let viewer = viewer_token(&world, "shift").await;
    Browser::log_in(&world, &viewer).await;
    for (token, what) in [
        (&world.admin_token, "logged in with a token from 127.0.0.1"),
        (&viewer, "logged in with a token from an address not shown"),
    ] {
        let (status, log) = world.request(token, "GET", "/api/v1/audit?of=logins", "").await;
        assert_eq!((status, log["items"][0]["what"].as_str()), (200, Some(what)), "{log}");
    }
    world.stop().await;
}
