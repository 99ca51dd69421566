//! A small HTTP/1.1 client of our own, so that the API is also tested by something that shares no code with
//! the product's client: one connection a request, and the event stream.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::routes::Route;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

/// A request that is not answered by then hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How to reach one listener, and as whom.
#[derive(Clone)]
pub struct Api {
    pub address: SocketAddr,
    /// None: plain HTTP.
    tls: Option<Arc<ClientConfig>>,
    pub token: Option<String>,
    /// What to call the service in `Host`, if not by its address.
    pub host: Option<String>,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {} {}", self.status, self.text()))
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Reply {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }
}

/// A connection of either kind.
pub trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

impl Api {
    pub fn plain(address: SocketAddr) -> Api {
        Api { address, tls: None, token: None, host: None }
    }

    pub fn secure(address: SocketAddr, ca_pem: &str, token: &str) -> Api {
        let tls = longhaul_security::people_client_tls(ca_pem).expect("the CA of this deployment");
        Api { address, tls: Some(tls), token: Some(token.to_owned()), host: None }
    }

    /// The same place with other settings, such as an agent's certificate.
    pub fn with_tls(&self, tls: Arc<ClientConfig>) -> Api {
        Api { tls: Some(tls), token: None, ..self.clone() }
    }

    pub fn with_token(&self, token: Option<&str>) -> Api {
        Api { token: token.map(str::to_owned), ..self.clone() }
    }

    /// Opens a connection and brings it through TLS; `read_timeout` counts from then on.
    pub fn connect(&self, read_timeout: Duration) -> io::Result<Box<dyn Connection>> {
        let tcp = TcpStream::connect_timeout(&self.address, ANSWER_WITHIN)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(if self.tls.is_some() { ANSWER_WITHIN } else { read_timeout }))?;
        tcp.set_write_timeout(Some(ANSWER_WITHIN))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        let connection = ClientConnection::new(tls.clone(), ServerName::from(self.address.ip()))
            .map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        stream.sock.set_read_timeout(Some(read_timeout))?;
        Ok(Box::new(stream))
    }

    /// One request as it is.
    pub fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        let mut connection = self.connect(ANSWER_WITHIN)?;
        let mut head = self.head(method, target, headers);
        if !body.is_empty() || method == "POST" || method == "PATCH" {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("connection: close\r\n\r\n");
        connection.write_all(&[head.as_bytes(), body].concat())?;
        connection.flush()?;
        read_reply(&mut BufReader::new(connection))
    }

    /// A connection for one request after the other.
    pub fn kept_alive(&self) -> io::Result<KeptAlive> {
        Ok(KeptAlive { reader: BufReader::new(self.connect(ANSWER_WITHIN)?), api: self.clone() })
    }

    fn head(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> String {
        let host = self.host.clone().unwrap_or_else(|| self.address.to_string());
        let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n");
        if let Some(token) = &self.token {
            head.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head
    }

    /// A route of the table with a JSON body (`Null`: none).
    pub fn call(
        &self,
        route: &Route,
        parameters: &[&str],
        query: &[(&str, &str)],
        body: &Value,
    ) -> io::Result<Reply> {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let headers: &[(&str, &str)] =
            if body.is_null() { &[] } else { &[("content-type", "application/json")] };
        self.send(route.method.word(), &route.target(parameters, query), headers, &bytes)
    }

    /// A route that reads, and must work.
    #[track_caller]
    pub fn get(&self, route: &Route, parameters: &[&str], query: &[(&str, &str)]) -> Value {
        let reply = self.call(route, parameters, query, &Value::Null);
        reply.unwrap_or_else(|error| panic!("{}: {error}", route.operation)).expect(route.status).json()
    }

    /// All items of a list, page by page.
    #[track_caller]
    pub fn all(&self, route: &Route, parameters: &[&str], query: &[(&str, &str)]) -> Vec<Value> {
        let mut items = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut query = query.to_vec();
            query.push(("limit", "1000"));
            if let Some(after) = &after {
                query.push(("after", after));
            }
            let page = self.get(route, parameters, &query);
            items.extend(page["items"].as_array().expect("a page has items").iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = Some(next.to_owned()),
                None => return items,
            }
        }
    }

    /// The stream of changes; each read waits at the most for `patience`.
    pub fn events(&self, patience: Duration) -> io::Result<Events> {
        let mut connection = self.connect(patience)?;
        let head = self.head("GET", longhaul_api::routes::EVENTS.path, &[("accept", "text/event-stream")]);
        connection.write_all(format!("{head}\r\n").as_bytes())?;
        connection.flush()?;
        let mut reader = BufReader::new(connection);
        let (status, headers) = read_head(&mut reader)?;
        if status != 200 {
            return Err(io::Error::other(format!("status {status}: {headers:?}")));
        }
        Ok(Events { reader, line: Vec::new() })
    }
}

/// See [`Api::kept_alive`].
pub struct KeptAlive {
    reader: BufReader<Box<dyn Connection>>,
    api: Api,
}

impl KeptAlive {
    /// As [`Api::send`], with a JSON body if there is one.
    pub fn send(&mut self, method: &str, target: &str, body: &[u8]) -> io::Result<Reply> {
        let mut message = self.api.head(method, target, &[("content-type", "application/json")]);
        message.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        let mut message = message.into_bytes();
        message.extend_from_slice(body);
        self.reader.get_mut().write_all(&message)?;
        self.reader.get_mut().flush()?;
        read_reply(&mut self.reader)
    }
}

/// Server-sent events, of which only the data of each is wanted.
pub struct Events {
    reader: BufReader<Box<dyn Connection>>,
    /// The line under way when the patience ended.
    line: Vec<u8>,
}

impl Events {
    /// The next event's data. The error is `WouldBlock` or `TimedOut` if none came in time; another one if
    /// the stream is over. Chunk sizes stand on lines of their own and are none of ours.
    pub fn event(&mut self) -> io::Result<Value> {
        loop {
            if self.reader.read_until(b'\n', &mut self.line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = std::mem::take(&mut self.line);
            if let Some(data) = line.strip_prefix(b"data:") {
                return serde_json::from_slice(data).map_err(io::Error::other);
            }
        }
    }
}

fn read_reply(reader: &mut impl BufRead) -> io::Result<Reply> {
    let (status, headers) = read_head(reader)?;
    let mut reply = Reply { status, headers, body: Vec::new() };
    if reply.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        reply.body = read_chunks(reader)?;
    } else if let Some(length) = reply.header("content-length").and_then(|length| length.parse::<u64>().ok())
    {
        reader.take(length).read_to_end(&mut reply.body)?;
    } else if status != 204 {
        end_of_connection(reader.read_to_end(&mut reply.body))?;
    }
    Ok(reply)
}

/// A peer that closes without TLS's own good-bye has still sent everything if the length says so.
fn end_of_connection(read: io::Result<usize>) -> io::Result<()> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        other => other.map(drop),
    }
}

fn read_head(reader: &mut impl BufRead) -> io::Result<(u16, Vec<(String, String)>)> {
    let first = read_line(reader)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status line: {first:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => return Ok((status, headers)),
        }
    }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn read_chunks(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_line(reader)?;
        let size =
            u64::from_str_radix(line.split(';').next().unwrap_or_default(), 16).map_err(io::Error::other)?;
        if size == 0 {
            return Ok(body);
        }
        reader.take(size).read_to_end(&mut body)?;
        read_line(reader)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_each_framing_are_read() {
        let read = |text: &str| read_reply(&mut text.as_bytes()).unwrap();
        let reply =
            read("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
        assert_eq!((reply.status, reply.text().as_str()), (200, "abcde"));
        let reply = read("HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\nno, and more");
        assert_eq!((reply.status, reply.text().as_str()), (409, "no"));
        assert_eq!(read("HTTP/1.1 204 No Content\r\n\r\n").status, 204);
        assert!(read_reply(&mut "nonsense\r\n\r\n".as_bytes()).is_err());
    }
}
