//! A hand-driven protocol peer, one frame at a time: for hostile peers and peers that stop in the middle.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{AgentId, Fault};
use longhaul_security::{AGENT_NAME, Credentials, agent_client_tls, data_server_tls};
use longhaul_wire::{Frame, FrameDecoder, FramePart, Hello, JoinKey, SessionId, VERSIONS, VersionRange};
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::Deployment;

pub trait Both: Read + Write + Send {}
impl<T: Read + Write + Send> Both for T {}

/// One end of a stream.
pub struct Wire {
    tls: Box<dyn Both>,
    splitter: FrameDecoder,
    bytes: Vec<u8>,
    at: usize,
}

impl Wire {
    /// Connects as a target does.
    pub fn dial(address: &str, credentials: &Credentials) -> Wire {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let name = AGENT_NAME.try_into().unwrap();
        let connection = ClientConnection::new(agent_client_tls(credentials).unwrap(), name).unwrap();
        Wire::new(Box::new(StreamOwned::new(connection, socket)))
    }

    /// Accepts as a source does.
    pub fn accept(listener: &TcpListener, credentials: &Credentials) -> Wire {
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let connection = ServerConnection::new(data_server_tls(credentials).unwrap()).unwrap();
        Wire::new(Box::new(StreamOwned::new(connection, socket)))
    }

    fn new(tls: Box<dyn Both>) -> Wire {
        Wire { tls, splitter: FrameDecoder::default(), bytes: Vec::new(), at: 0 }
    }

    pub fn send(&mut self, frame: &Frame, payload: &[u8]) {
        let mut bytes = frame.encode(payload.len() as u32);
        bytes.extend_from_slice(payload);
        self.send_raw(&bytes);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        // The peer may have closed the connection: its last frames are read later.
        let _ = self.tls.write_all(bytes).and_then(|()| self.tls.flush());
    }

    /// The next frame with its payload; none at the end of the stream.
    pub fn receive(&mut self) -> Option<(Frame, Vec<u8>)> {
        let mut got = None;
        loop {
            let mut rest = &self.bytes[self.at..];
            let before = rest.len();
            while let Some(piece) = self.splitter.next_part(&mut rest).unwrap() {
                let used = before - rest.len();
                match piece {
                    FramePart::Frame { frame, .. } if !frame.carries_payload() => {
                        self.at += used;
                        return Some((frame, Vec::new()));
                    }
                    FramePart::Frame { frame, .. } => got = Some((frame, Vec::new())),
                    FramePart::Payload(part) => {
                        if let Some((_, payload)) = &mut got {
                            payload.extend_from_slice(part);
                        }
                    }
                    FramePart::PayloadEnd => {
                        self.at += used;
                        return got;
                    }
                }
            }
            self.bytes.clear();
            self.at = 0;
            let mut more = vec![0; 64 << 10];
            match self.tls.read(&mut more) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.bytes.extend_from_slice(&more[..read]),
            }
        }
    }

    /// The fault of the peer's goodbye; pings are skipped.
    pub fn goodbye(&mut self) -> Option<Fault> {
        while let Some((frame, _)) = self.receive() {
            if let Frame::Goodbye { fault } = frame {
                return fault;
            }
        }
        None
    }
}

pub fn hello(versions: VersionRange, session: u8, key: u8) -> Frame {
    Frame::Hello(Hello { versions, session: SessionId([session; 16]), key: JoinKey([key; 32]) })
}

pub fn good_hello() -> Frame {
    hello(VERSIONS, 1, 1)
}

/// A hand-driven source: `serve` handles each accepted stream after its hello was welcomed.
pub fn source(
    deployment: &Deployment,
    agent: u64,
    serve: impl Fn(&mut Wire, usize) + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let credentials = deployment.credentials(AgentId(agent));
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for number in 0.. {
            let mut wire = Wire::accept(&listener, &credentials);
            let serve = serve.clone();
            std::thread::spawn(move || {
                if let Some((Frame::Hello(_), _)) = wire.receive() {
                    wire.send(&Frame::Welcome(longhaul_wire::Welcome { version: 1, incarnation: 7 }), &[]);
                    serve(&mut wire, number);
                }
            });
        }
    });
    address
}
