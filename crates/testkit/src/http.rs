//! A server for HTTP/1.1 (RFC 9112) on the loopback address: one thread and one request for each connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Browsers open connections and say nothing on them.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    /// Path and query, as they came.
    pub target: String,
    /// In the order in which they came.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// What follows the question mark.
    pub fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// Empty if there is none of this name.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }
}

#[derive(Debug, Default)]
pub struct Response {
    pub status: u16,
    pub header: Option<(&'static str, String)>,
    pub body: String,
}

impl Response {
    pub fn json(status: u16, body: &serde_json::Value) -> Response {
        let header = Some(("content-type", "application/json".to_owned()));
        Response { status, header, body: body.to_string() }
    }

    pub fn not_found() -> Response {
        Response { status: 404, ..Response::default() }
    }
}

/// A listener, and its port.
pub fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Answers every request, over TLS if there is a configuration for it, until the process ends.
pub fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
) {
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let (tls, answer) = (tls.clone(), answer.clone());
            // A client that leaves in the middle is no failure of the test.
            std::thread::spawn(move || drop(serve_one(socket, tls, answer.as_ref())));
        }
    });
}

fn serve_one(
    mut socket: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    answer: &dyn Fn(&Request) -> Response,
) -> io::Result<()> {
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    let Some(tls) = tls else { return exchange(&mut socket, answer) };
    let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    exchange(&mut stream, answer)?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn exchange(stream: &mut (impl Read + Write), answer: &dyn Fn(&Request) -> Response) -> io::Result<()> {
    let request = read(&mut BufReader::new(&mut *stream))?;
    let Response { status, header, body } = answer(&request);
    let header = header.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nconnection: close\r\n{header}content-length: {length}\r\n\r\n{body}"
    )?;
    stream.flush()
}

fn read(stream: &mut impl BufRead) -> io::Result<Request> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method: method.to_owned(), target: target.to_owned(), ..Request::default() };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        request.headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let length = request.header("content-length").parse().unwrap_or(0);
    request.body = vec![0; length];
    stream.read_exact(&mut request.body)?;
    Ok(request)
}
