//! The listener for callbacks of a provider: acknowledged at once, handled later.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use longhaul_model::{Fault, FaultCode};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{Inbox, Input};

/// What is acknowledged is one connection's news.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 32;
/// One call, from its first byte to our answer.
const CALL_TIME_MAX: Duration = Duration::from_secs(15);

/// The acknowledgement of a call; none of what is none.
pub(crate) type Acknowledge = fn(&str) -> Option<String>;

pub(super) fn listen(
    address: SocketAddr,
    acknowledge: Acknowledge,
    inbox: Inbox,
) -> Result<SocketAddr, Fault> {
    let failed = |error: std::io::Error| {
        let detail =
            format!("the provider cannot call back: {address}: {error}; give a free address as `listen`");
        Fault::new(FaultCode::Conflict, detail)
    };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let real = listener.local_addr().map_err(failed)?;
    let listener = TcpListener::from_std(listener).map_err(failed)?;
    tokio::spawn(accept(listener, acknowledge, inbox));
    Ok(real)
}

async fn accept(listener: TcpListener, acknowledge: Acknowledge, inbox: Inbox) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(place) = room.clone().acquire_owned().await {
        // A connection that broke before it was taken is the caller's business.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let inbox = inbox.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(CALL_TIME_MAX, serve(stream, acknowledge, inbox)).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, acknowledge: Acknowledge, inbox: Inbox) {
    let service = service_fn(move |request| answer(request, acknowledge, inbox.clone()));
    let connection =
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a provider's call broke");
    }
}

async fn answer(
    request: Request<Incoming>,
    acknowledge: Acknowledge,
    inbox: Inbox,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = Limited::new(request.into_body(), ANSWER_BYTES_MAX).collect().await.ok();
    let body = body.and_then(|body| String::from_utf8(body.to_bytes().to_vec()).ok());
    let acknowledged = body.as_deref().and_then(acknowledge);
    let (status, text) = match (body, acknowledged) {
        (Some(body), Some(text)) => {
            inbox.put(Input::Called(body));
            (StatusCode::OK, text)
        }
        _ => (StatusCode::BAD_REQUEST, String::new()),
    };
    let mut reply = Response::new(Full::new(Bytes::from(text)));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/xml; charset=utf-8"));
    Ok(reply)
}
