//! The client against a real server on the loopback address.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::convert::Infallible;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use longhaul_api::client::{Client, REPLY_BYTES_MAX};
use longhaul_api::native::{ChangeEvent, ChangeKind, Registered, WhoAmI};
use longhaul_api::{Problem, routes};
use longhaul_model::FaultCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn tls() -> rustls::ClientConfig {
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

fn client(base: &str) -> Client {
    Client::new(base, tls(), Some("lht_canary".into())).unwrap()
}

/// Answers every request with what `answer` makes of it.
async fn serve(answer: fn(http::request::Parts, Bytes) -> Response<Full<Bytes>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(move |request: Request<Incoming>| async move {
                let (parts, body) = request.into_parts();
                let whole = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                Ok::<_, Infallible>(answer(parts, whole))
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    base
}

/// Reads a request's head, answers with `bytes`, and then closes or waits for ever.
async fn serve_raw(bytes: &'static [u8], then_close: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(bytes).await;
                if !then_close {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    base
}

fn reply(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body.into())).unwrap()
}

#[tokio::test]
async fn a_request_carries_what_the_table_says() {
    let base = serve(|request, body| {
        let header = |name: &str, headers: &HeaderMap| headers[name].to_str().unwrap().to_owned();
        assert_eq!(request.method, "POST");
        assert_eq!(request.uri.path(), "/api/v1/datasets/higgs%2Frun%207/scan");
        assert_eq!(header("authorization", &request.headers), "Bearer lht_canary");
        assert_eq!(header("content-type", &request.headers), "application/json");
        assert_eq!(header("idempotency-key", &request.headers), "again");
        reply(202, body)
    })
    .await;
    let sent = serde_json::json!({ "storage": "alpha" });
    let request = client(&base)
        .request(&routes::DATASET_SCAN)
        .parameter("higgs/run 7")
        .json(&sent)
        .idempotency_key("again")
        .send();
    assert_eq!(request.await.map(|echo: serde_json::Value| echo).unwrap(), sent);
}

/// The server would keep the connection for ever.
#[tokio::test]
async fn a_connection_without_a_request_is_closed_by_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head: Vec<u8> = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(stream.read_buf(&mut head).await.unwrap() > 0, "a request");
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull").await.unwrap();
        stream.read(&mut [0]).await.unwrap()
    });
    let client = Client::with_idle_timeout(&base, tls(), None, Duration::from_millis(1)).unwrap();
    client.request(&routes::STATUS).send::<()>().await.unwrap();
    let more = tokio::time::timeout(Duration::from_secs(60), server).await;
    assert_eq!(more.expect("the connection is closed").unwrap(), 0);
    drop(client);
}

#[tokio::test]
async fn an_empty_reply_is_nothing_and_a_strange_one_a_problem() {
    let base =
        serve(|request, _| if request.method == "DELETE" { reply(204, "") } else { reply(200, "{}") }).await;
    let client = client(&base);
    client.request(&routes::SESSION_LOGOUT).send::<()>().await.unwrap();
    let problem = client.request(&routes::WHOAMI).send::<WhoAmI>().await.unwrap_err();
    assert_eq!(problem.code, FaultCode::ProtocolError);
    assert!(problem.remedy.contains("version"));
}

#[tokio::test]
async fn a_problem_of_the_service_arrives_whole() {
    let base = serve(|_, _| {
        let problem = Problem::new(FaultCode::NotFound, "there is no such dataset", "higgs/run7");
        reply(404, serde_json::to_vec(&problem).unwrap())
    })
    .await;
    let problem = client(&base).request(&routes::STATUS).send::<()>().await.unwrap_err();
    assert_eq!(problem, Problem::new(FaultCode::NotFound, "there is no such dataset", "higgs/run7"));
    assert_eq!(problem.exit_code(), 3);
}

#[tokio::test]
async fn uploads_of_any_length_stream() {
    let base = serve(|_, body| {
        let sum = body.iter().map(|&byte| u64::from(byte)).sum();
        let counted = Registered { files_added: body.len() as u64, bytes_added: sum, files_known: 0 };
        reply(200, serde_json::to_vec(&counted).unwrap())
    })
    .await;
    for length in [0u64, 1, 256 << 10, 3_000_001] {
        let source = io::repeat(3).take(length);
        let request = client(&base)
            .request(&routes::DATASET_ADD_FILES)
            .parameter("a")
            .query("storage", "alpha")
            .upload(source);
        let counted: Registered = request.send().await.unwrap();
        assert_eq!((counted.files_added, counted.bytes_added), (length, 3 * length));
    }
}

struct Broken;

impl Read for Broken {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("the disk is gone"))
    }
}

#[tokio::test]
async fn an_unreadable_upload_is_told_from_a_broken_connection() {
    let base = serve(|_, _| reply(200, "null")).await;
    let source = io::repeat(b'x').take(1 << 20).chain(Broken);
    let request = client(&base).request(&routes::DATASET_ADD_FILES).parameter("a").upload(source);
    let problem = request.send::<()>().await.unwrap_err();
    assert!(
        problem.code == FaultCode::BadRequest && problem.detail.contains("the disk is gone"),
        "{problem}"
    );
}

#[tokio::test]
async fn nobody_there_says_how_to_start_the_service() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let problem = client(&base).request(&routes::STATUS).send::<()>().await.unwrap_err();
    assert_eq!((problem.code, problem.exit_code()), (FaultCode::Unreachable, 5));
    assert!(problem.remedy.contains("longhaul service run") && problem.detail.contains(&base), "{problem:?}");
}

#[tokio::test]
async fn plain_http_where_tls_was_expected_says_so() {
    let base = serve(|_, _| reply(200, "null")).await;
    let problem =
        client(&base.replace("http:", "https:")).request(&routes::STATUS).send::<()>().await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Unreachable, "{problem:?}");
    assert!(problem.title.contains("TLS"));
}

#[tokio::test]
async fn silence_ends_with_the_time_out() {
    let base = serve_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", false).await;
    let request = client(&base).request(&routes::STATUS).timeout(Duration::from_millis(50));
    assert_eq!(request.send::<()>().await.unwrap_err().code, FaultCode::Stalled);
}

#[tokio::test]
async fn a_reply_that_breaks_off_is_a_broken_connection() {
    let base = serve_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", true).await;
    let problem = client(&base).request(&routes::STATUS).send::<()>().await.unwrap_err();
    assert_eq!((problem.code, problem.exit_code()), (FaultCode::ConnectionLost, 5));
    let base = serve_raw(b"", true).await;
    let problem = client(&base).request(&routes::STATUS).send::<()>().await.unwrap_err();
    assert_eq!(problem.code, FaultCode::ConnectionLost, "{problem:?}");
}

/// Promise 7.
#[tokio::test]
async fn a_reply_beyond_the_limit_is_refused() {
    let base = serve(|_, _| reply(200, vec![b' '; REPLY_BYTES_MAX + 1])).await;
    let problem = client(&base).request(&routes::STATUS).send::<()>().await.unwrap_err();
    assert_eq!((problem.code, &*problem.title), (FaultCode::ProtocolError, "the reply is too large"));
}

#[tokio::test]
async fn events_arrive_one_by_one_until_the_stream_ends() {
    let base = serve(|request, _| {
        assert_eq!(request.headers["accept"], "text/event-stream");
        let event = |kind| {
            let event = ChangeEvent { at: "2026-01-01T00:00:00Z".parse().unwrap(), kind, id: None };
            format!("event: x\ndata: {}\n\n", serde_json::to_string(&event).unwrap())
        };
        reply(200, format!(": hello\n\n{}{}", event(ChangeKind::Status), event(ChangeKind::Site)))
    })
    .await;
    let mut events = client(&base).request(&routes::EVENTS).send_events().await.unwrap();
    assert_eq!(events.next::<ChangeEvent>().await.unwrap().unwrap().kind, ChangeKind::Status);
    assert_eq!(events.next::<ChangeEvent>().await.unwrap().unwrap().kind, ChangeKind::Site);
    assert!(events.next::<ChangeEvent>().await.unwrap().is_none());
}

#[test]
fn the_token_is_not_shown() {
    assert!(!format!("{:?}", client("http://127.0.0.1:1")).contains("canary"));
}
