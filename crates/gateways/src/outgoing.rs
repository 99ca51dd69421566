//! How everything outside is dialled over HTTP: with a short time to connect, and connections that are kept a little.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Body;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
const IDLE_FOR: Duration = Duration::from_secs(20);

pub(crate) type Http<B> = Client<HttpsConnector<HttpConnector>, B>;

/// `B`: what requests carry. How long an answer may take is the caller's to say.
pub(crate) fn client<B>(tls: Arc<ClientConfig>) -> Http<B>
where
    B: Body + Send,
    B::Data: Send,
{
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIME_MAX));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_FOR)
        .build(HttpsConnector::from((tcp, tls)))
}
