//! What is under way for a caller when the token that opened it is revoked. Event streams and sessions are in
//! `door` and `sessions`, polls of agents in `refusals`, jobs in `owners`.

use longhaul_api::native::{DatasetCreate, DatasetView, TokenCreate, TokenCreated};
use longhaul_api::routes;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::world::{World, manifest_line};

const NAME: &str = "night";

/// A request of which the head was taken: the service waits for its body.
struct OpenRequest {
    stream: BufReader<TcpStream>,
}

impl OpenRequest {
    /// Returns once whoever asks is known and allowed: only then is a body asked for.
    async fn begin(world: &World, token: &str, path: &str) -> OpenRequest {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: \
                application/json\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
            world.http_address()
        );
        let mut stream = BufReader::new(TcpStream::connect(world.http_address()).await.unwrap());
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut request = OpenRequest { stream };
        assert_eq!(request.line().await, "HTTP/1.1 100 Continue");
        assert_eq!(request.line().await, "");
        request
    }

    async fn send(&mut self, piece: &str) {
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        // The service may have answered, and closed the connection.
        let _ = self.stream.write_all(chunk.as_bytes()).await;
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }
}

async fn token(world: &World) -> String {
    let create = TokenCreate { name: NAME.into(), role: "admin".into(), ..TokenCreate::default() };
    let made: TokenCreated = world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
    made.token
}

async fn revoke(world: &World) {
    let revoke = world.admin().request(&routes::TOKEN_REVOKE).parameter(NAME);
    revoke.send::<Value>().await.unwrap();
}

async fn dataset(world: &World, name: &str) -> Option<DatasetView> {
    world.admin().request(&routes::DATASET_SHOW).parameter(name).send().await.ok()
}

/// At once, and not when its last byte comes: a client may send for hours.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_of_a_revoked_token_is_cut_and_registers_nothing() {
    let world = World::new().await;
    let create = DatasetCreate { name: "d".parse().unwrap(), community: None };
    let _: DatasetView = world.admin().request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
    let token = token(&world).await;
    let mut upload = OpenRequest::begin(&world, &token, "/api/v1/datasets/d/files").await;
    upload.send(&manifest_line("d/first", 1)).await;
    revoke(&world).await;
    assert!(upload.line().await.starts_with("HTTP/1.1 401"));
    upload.send(&manifest_line("d/second", 1)).await;
    upload.send("").await;
    assert_eq!(dataset(&world, "d").await.unwrap().files, 0);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_token_is_revoked_before_its_body_comes_changes_nothing() {
    let world = World::new().await;
    let token = token(&world).await;
    let mut request = OpenRequest::begin(&world, &token, "/api/v1/datasets").await;
    revoke(&world).await;
    request.send("{\"name\":\"late\"}").await;
    request.send("").await;
    assert!(request.line().await.starts_with("HTTP/1.1 401"));
    assert!(dataset(&world, "late").await.is_none());
    world.assert_sound().await;
}
