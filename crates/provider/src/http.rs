//! Minimal HTTP/1.1, one request per connection: a server with or without TLS, and a client for callbacks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

const BODY_BYTES_MAX: u64 = 4 << 20;
/// Length of a header or request line.
const LINE_BYTES_MAX: u64 = 16 << 10;
/// Idle timeout of a connection: longer than any of our clients waits.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a callback.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Value of a query parameter.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.path.split_once('?')?;
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) body: String,
    /// Value of the `Date` header, in seconds since 1970.
    pub(crate) date: f64,
    /// Delay before the reply, on an open connection.
    pub(crate) delay: Duration,
    /// Closes the connection instead of replying.
    pub(crate) drops_connection: bool,
}

impl Reply {
    pub(crate) fn new(status: u16, kind: &'static str, body: impl Into<String>) -> Reply {
        Reply { status, kind, body: body.into(), ..Reply::default() }
    }

    pub(crate) fn json(value: &serde_json::Value) -> Reply {
        Reply::new(200, "application/json", value.to_string())
    }

    pub(crate) fn text(status: u16, body: impl Into<String>) -> Reply {
        Reply::new(status, "text/plain", body)
    }
}

pub(crate) type Handler = Arc<dyn Fn(Request) -> Reply + Send + Sync>;

/// Serves forever, with a thread per connection.
pub(crate) fn serve(listener: TcpListener, tls: Option<Arc<ServerConfig>>, handler: Handler) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let (tls, handler) = (tls.clone(), handler.clone());
        // Connection errors are visible to the client.
        std::thread::spawn(move || {
            let _ = handle_connection(stream, tls, &handler);
        });
    }
}

fn handle_connection(stream: TcpStream, tls: Option<Arc<ServerConfig>>, handler: &Handler) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return answer(stream, handler) };
    let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
    answer(StreamOwned::new(connection, stream), handler)
}

fn answer(stream: impl Read + Write, handler: &Handler) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let request = read_request(&mut reader)?;
    let reply = handler(request);
    std::thread::sleep(reply.delay);
    if reply.drops_connection {
        return Ok(());
    }
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {}\r\ncontent-length: {}\r\ndate: {}\r\nconnection: close\r\n\r\n",
        reply.status,
        if reply.status < 400 { "OK" } else { "No" },
        reply.kind,
        reply.body.len(),
        date(reply.date),
    );
    let mut stream = reader.into_inner();
    stream.write_all(head.as_bytes())?;
    stream.write_all(reply.body.as_bytes())?;
    stream.flush()
}

fn date(seconds: f64) -> String {
    match jiff::Timestamp::from_second(seconds as i64) {
        Ok(at) => at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(),
        Err(_) => String::new(),
    }
}

fn read_request(reader: &mut impl BufRead) -> io::Result<Request> {
    let first = read_line(reader)?;
    let mut words = first.split(' ');
    let mut request = Request {
        method: words.next().unwrap_or_default().to_owned(),
        path: words.next().unwrap_or_default().to_owned(),
        ..Request::default()
    };
    request.headers = read_headers(reader)?;
    request.body = read_body(reader, request.header("content-length"))?;
    Ok(request)
}

fn read_headers(reader: &mut impl BufRead) -> io::Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        let Some((name, value)) = line.split_once(':') else { return Ok(headers) };
        headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    let read = reader.take(LINE_BYTES_MAX).read_line(&mut line)?;
    match read {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

fn read_body(reader: &mut impl BufRead, length: Option<&str>) -> io::Result<String> {
    let length: u64 = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = Vec::new();
    reader.take(length.min(BODY_BYTES_MAX)).read_to_end(&mut body)?;
    String::from_utf8(body).map_err(io::Error::other)
}

/// Posts to `http://HOST:PORT/PATH` and reads the reply.
pub(crate) fn post(url: &str, action: &str, body: &str) -> io::Result<(u16, String)> {
    let rest = url.strip_prefix("http://").ok_or_else(|| io::Error::other("only http:// is called back"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address: SocketAddr =
        host.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("a host without an address"))?;
    let mut stream = TcpStream::connect_timeout(&address, CALLBACK_TIMEOUT)?;
    stream.set_read_timeout(Some(CALLBACK_TIMEOUT))?;
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: text/xml; \
            charset=utf-8\r\nsoapaction: \"{action}\"\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let status = read_line(&mut reader)?;
    let status = status.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let headers = read_headers(&mut reader)?;
    let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    Ok((status, read_body(&mut reader, length.map(|(_, value)| value.as_str()))?))
}
