//! Hostile peers: a source and a target that speak the data protocol by hand, with the real credentials of an
//! agent, and keep none of its rules. Whatever they do, the agent at the other end lives, stays within its
//! memory, serves the others, says why, and reads and writes nothing outside what was agreed.
//!
//! Not here: bytes that are no protocol at all (`fuzz/`), which these peers send as well, now and then.
//! Start with [`source::Hostile`] for what a target must bear and [`target::Thief`] for what a source must.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use longhaul_model::Fault;
use longhaul_security::{AGENT_NAME, Credentials, agent_client_tls, data_server_tls};
use longhaul_wire::{Frame, FrameDecoder, FramePart, Hello, JoinKey, SessionId, VERSIONS};
use rustls::{ClientConnection, ServerConnection, StreamOwned};

pub mod source;
pub mod target;

/// A peer that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(90);

trait Both: Read + Write + Send {}
impl<T: Read + Write + Send> Both for T {}

/// One end of a stream, by hand.
pub struct Wire {
    tls: Box<dyn Both>,
    /// The one below, for its time-outs.
    socket: TcpStream,
    splitter: FrameDecoder,
    bytes: Vec<u8>,
    at: usize,
}

impl Wire {
    /// As a target does.
    pub fn dial(address: SocketAddr, credentials: &Credentials) -> io::Result<Wire> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(SILENCE))?;
        socket.set_write_timeout(Some(SILENCE))?;
        let name = AGENT_NAME.try_into().expect("it is a name");
        let tls = agent_client_tls(credentials).expect("they are good");
        let connection = ClientConnection::new(tls, name).map_err(io::Error::other)?;
        Ok(Wire::new(socket.try_clone()?, Box::new(StreamOwned::new(connection, socket))))
    }

    /// As a source does.
    pub fn accept(listener: &TcpListener, credentials: &Credentials) -> io::Result<Wire> {
        let (socket, _) = listener.accept()?;
        socket.set_read_timeout(Some(SILENCE))?;
        socket.set_write_timeout(Some(SILENCE))?;
        let tls = data_server_tls(credentials).expect("they are good");
        let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
        Ok(Wire::new(socket.try_clone()?, Box::new(StreamOwned::new(connection, socket))))
    }

    fn new(socket: TcpStream, tls: Box<dyn Both>) -> Wire {
        Wire { tls, socket, splitter: FrameDecoder::default(), bytes: Vec::new(), at: 0 }
    }

    /// # Errors
    /// If the peer has hung up: what it said can still be read.
    pub fn send(&mut self, frame: &Frame, payload: &[u8]) -> io::Result<()> {
        let mut bytes = frame.encode(payload.len() as u32);
        bytes.extend_from_slice(payload);
        self.send_raw(&bytes)
    }

    /// # Errors
    /// If the peer has hung up.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.write_all(bytes).and_then(|()| self.tls.flush())
    }

    /// The next frame with its payload; none at the end of the stream.
    pub fn receive(&mut self) -> Option<(Frame, Vec<u8>)> {
        let mut got: Option<(Frame, Vec<u8>)> = None;
        loop {
            let mut rest = &self.bytes[self.at..];
            let before = rest.len();
            while let Some(piece) = self.splitter.next_part(&mut rest).expect("the agent keeps the rules") {
                let used = before - rest.len();
                match piece {
                    FramePart::Frame { frame, .. } => {
                        if !frame.carries_payload() {
                            self.at += used;
                            return Some((frame, Vec::new()));
                        }
                        got = Some((frame, Vec::new()));
                    }
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
            self.bytes.resize(64 << 10, 0);
            self.at = 0;
            let read = self.tls.read(&mut self.bytes).unwrap_or(0);
            self.bytes.truncate(read);
            if read == 0 {
                return None;
            }
        }
    }

    /// Waits for a word of the peer, no longer than this; false if it says something or hangs up. What it
    /// says is lost.
    pub fn is_quiet_for(&mut self, time: Duration) -> bool {
        let limit =
            |socket: &TcpStream, time| socket.set_read_timeout(Some(time)).expect("a time-out can be set");
        limit(&self.socket, time);
        let heard = self.tls.read(&mut [0; 1024]);
        limit(&self.socket, SILENCE);
        heard.is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }

    /// What the agent said when it hung up; everything before is passed over.
    pub fn goodbye(&mut self) -> Option<Fault> {
        while let Some((frame, _)) = self.receive() {
            if let Frame::Goodbye { fault } = frame {
                return fault;
            }
        }
        None
    }
}

pub fn hello(session: u8, key: u8) -> Frame {
    Frame::Hello(Hello { versions: VERSIONS, session: SessionId([session; 16]), key: JoinKey([key; 32]) })
}

/// Open files of a process.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
