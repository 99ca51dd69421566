//! The one header name that has to be sent in exactly one spelling: XRootD 5.5 compares `TransferHeader` byte
//! by byte, and the HTTP library knows only names in lower case or with capitals after hyphens.
//!
//! The library does keep the spelling of a request that it has received, for proxies that pass it on, and
//! there is no other way to tell it one. So a request with that name is received once, from ourselves and in
//! memory, and its spelling kept.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Extensions, Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::sync::OnceCell;

const SAMPLE: &[u8] =
    b"COPY / HTTP/1.1\r\nHost: localhost\r\nTransferHeaderAuthorization: none\r\nConnection: close\r\n\r\n";

/// Extensions of a request that make the library spell its headers as in [`SAMPLE`].
pub(crate) async fn spelling() -> Extensions {
    static SPELLING: OnceCell<Extensions> = OnceCell::const_new();
    SPELLING.get_or_init(learn).await.clone()
}

async fn learn() -> Extensions {
    let (mut client, server) = tokio::io::duplex(4 << 10);
    let kept = Arc::new(Mutex::new(Extensions::new()));
    let service = service_fn(|request: Request<Incoming>| {
        *kept.lock() = request.extensions().clone();
        async { Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new())) }
    });
    let connection =
        http1::Builder::new().preserve_header_case(true).serve_connection(TokioIo::new(server), service);
    // It fits into the buffer, so neither waits for the other. Without success the names have the usual
    // spelling.
    let _ = client.write_all(SAMPLE).await;
    let _ = client.shutdown().await;
    let _ = connection.await;
    kept.lock().clone()
}
