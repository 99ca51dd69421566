//! A WebDAV server in memory that does what it should, but for what a test makes it do instead.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// One request as it came.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    pub head: String,
    /// What came for a PUT.
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// What is done instead.
pub enum Reply {
    /// These bytes, and the connection stays.
    Say(String),
    /// These bytes, and the connection is closed.
    SayAndClose(Vec<u8>),
    /// These bytes, and nothing any more until the other side closes.
    SayAndWait(Vec<u8>),
}

type Rule = Box<dyn Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync>;

#[derive(Default)]
struct State {
    files: HashMap<String, Vec<u8>>,
    asked: Vec<ReceivedRequest>,
    /// Connections that the other side closed while we waited.
    closed: usize,
}

#[derive(Clone)]
pub struct Server {
    pub port: u16,
    secure: bool,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub async fn start(rule: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static) -> Server {
        Server::start_with(None, rule).await
    }

    pub async fn start_with(
        tls: Option<TlsAcceptor>,
        rule: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let server = Server {
            port: listener.local_addr().unwrap().port(),
            secure: tls.is_some(),
            state: Arc::default(),
        };
        let (here, rule): (_, Arc<Rule>) = (server.clone(), Arc::new(Box::new(rule)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (here, rule, tls) = (here.clone(), rule.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                here.serve(stream, &rule).await;
                            }
                        }
                        None => here.serve(stream, &rule).await,
                    }
                });
            }
        });
        server
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}{path}", if self.secure { "https" } else { "http" }, self.port)
    }

    pub fn put(&self, path: &str, content: &[u8]) {
        self.state.lock().unwrap().files.insert(path.to_owned(), content.to_vec());
    }

    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        self.state.lock().unwrap().files.get(path).cloned()
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.state.lock().unwrap().files.keys().cloned().collect();
        names.sort();
        names
    }

    /// All requests with this method.
    pub fn asked(&self, method: &str) -> Vec<ReceivedRequest> {
        let state = self.state.lock().unwrap();
        state.asked.iter().filter(|asked| asked.method == method).cloned().collect()
    }

    pub fn closed(&self) -> usize {
        self.state.lock().unwrap().closed
    }

    async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin, rule: &Rule) {
        let mut unread = Vec::new();
        while let Some(mut asked) = read_head(&mut stream, &mut unread).await {
            let length: usize = asked.header("content-length").map_or(0, |text| text.parse().unwrap());
            // Before the body, as a server does that redirects or refuses.
            let reply = rule(&asked);
            if reply.is_none() || asked.header("expect").is_none() {
                if asked.header("expect").is_some() {
                    stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
                }
                while unread.len() < length {
                    let mut buffer = vec![0; 1 << 16];
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => unread.extend_from_slice(&buffer[..read]),
                    }
                }
                asked.body = unread.drain(..length).collect();
            }
            self.state.lock().unwrap().asked.push(asked.clone());
            let reply = reply.unwrap_or_else(|| self.obey(&asked));
            let (bytes, more) = match reply {
                Reply::Say(text) => (text.into_bytes(), 0),
                Reply::SayAndClose(bytes) => (bytes, 1),
                Reply::SayAndWait(bytes) => (bytes, 2),
            };
            if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() || more == 1 {
                let _ = stream.shutdown().await;
                return;
            }
            if more == 2 {
                while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
                self.state.lock().unwrap().closed += 1;
                return;
            }
        }
    }

    /// What a good server does.
    fn obey(&self, asked: &ReceivedRequest) -> Reply {
        let files = &mut self.state.lock().unwrap().files;
        let path = asked.path.clone();
        let tagged = |content: &Vec<u8>| format!("ETag: \"{}\"\r\nAccept-Ranges: bytes\r\n", content.len());
        match asked.method.as_str() {
            "PUT" => {
                files.insert(path, asked.body.clone());
                reply("201 Created", "", "")
            }
            "DELETE" => {
                reply(if files.remove(&path).is_some() { "204 No Content" } else { "404 Not Found" }, "", "")
            }
            "MOVE" => {
                let target = asked.header("destination").unwrap().splitn(4, '/').nth(3).unwrap();
                match files.remove(&path) {
                    Some(content) => {
                        files.insert(format!("/{target}"), content);
                        reply("201 Created", "", "")
                    }
                    None => reply("404 Not Found", "", ""),
                }
            }
            "PROPFIND" => Reply::Say(dav_collection(&path)),
            "HEAD" => match files.get(&path) {
                Some(content) => Reply::Say(format!(
                    "HTTP/1.1 200 OK\r\n{}Content-Length: {}\r\n\r\n",
                    tagged(content),
                    content.len()
                )),
                None => reply("404 Not Found", "", ""),
            },
            "GET" => match (files.get(&path), asked.header("range")) {
                (Some(content), Some(range)) => {
                    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                    let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
                    let part = &content[first..=last];
                    let more = format!("Content-Range: bytes {first}-{last}/{}\r\n", content.len());
                    Reply::SayAndClose(with_body("206 Partial Content", &more, part))
                }
                (Some(content), None) => Reply::SayAndClose(with_body("200 OK", &tagged(content), content)),
                (None, _) => reply("404 Not Found", "", ""),
            },
            _ => reply("501 Not Implemented", "", ""),
        }
    }
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin), unread: &mut Vec<u8>) -> Option<ReceivedRequest> {
    loop {
        if let Some(end) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
            let head: Vec<u8> = unread.drain(..end + 4).collect();
            let head = String::from_utf8(head).unwrap();
            let mut words = head.split_whitespace();
            let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
            return Some(ReceivedRequest { method, path, head, body: Vec::new() });
        }
        let mut buffer = vec![0; 1 << 16];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => unread.extend_from_slice(&buffer[..read]),
        }
    }
}

pub fn reply(status: &str, headers: &str, body: &str) -> Reply {
    Reply::Say(format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()))
}

pub fn with_body(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The body of a third-party copy, which ends with the connection.
pub fn markers(text: &str) -> Reply {
    Reply::SayAndClose(format!("HTTP/1.1 201 Created\r\nConnection: close\r\n\r\n{text}").into_bytes())
}

fn dav_collection(path: &str) -> String {
    let body = format!(
        "<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{path}</D:href><D:propstat><D:prop>\
         <D:resourcetype><D:collection/></D:resourcetype></D:prop><D:status>HTTP/1.1 200 OK</D:status>\
         </D:propstat></D:response></D:multistatus>"
    );
    format!("HTTP/1.1 207 Multi-Status\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
