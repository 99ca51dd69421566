//! A TCP relay between two agents whose connections can be cut or silenced.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a connection of a slow relay carries at most.
const SLOW_BYTES_PER_S: u32 = 32 << 20;

/// Listens and forwards bytes in both directions.
pub struct Relay {
    pub address: String,
    shared: Arc<RelayState>,
}

#[derive(Default)]
struct RelayState {
    sockets: Mutex<Vec<TcpStream>>,
    silent: AtomicBool,
    swallows: AtomicBool,
    slow: AtomicBool,
    peers: Mutex<BTreeSet<IpAddr>>,
    bytes: AtomicU64,
}

impl Relay {
    pub fn to(target: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(RelayState::default());
        let (kept, target) = (shared.clone(), target.to_owned());
        std::thread::spawn(move || {
            while let Ok((near, peer)) = listener.accept() {
                kept.peers.lock().unwrap().insert(peer.ip());
                // The forwarding target may be gone by now.
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let ways = [(&near, &far), (&far, &near)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()));
                // Known before anything passes, so that a cut reaches whatever has carried data.
                kept.sockets.lock().unwrap().extend([near, far]);
                for (from, to) in ways {
                    let shared = kept.clone();
                    std::thread::spawn(move || shared.pump(from, to));
                }
            }
        });
        Relay { address, shared }
    }

    /// Closes all open connections, and returns their number.
    pub fn cut(&self) -> usize {
        let sockets = std::mem::take(&mut *self.shared.sockets.lock().unwrap());
        sockets.iter().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        sockets.len() / 2
    }

    /// Drops all data from now on without closing anything (a black hole).
    pub fn fall_silent(&self) {
        self.shared.silent.store(true, Ordering::SeqCst);
    }

    /// The same, but data is still read: the kernels at both ends see a live connection.
    pub fn swallow(&self) {
        self.shared.swallows.store(true, Ordering::SeqCst);
    }

    /// Limits each connection and direction to [`SLOW_BYTES_PER_S`].
    pub fn slow_down(&self) {
        self.shared.slow.store(true, Ordering::SeqCst);
    }

    /// Addresses of the peers that have connected.
    pub fn peers(&self) -> Vec<IpAddr> {
        self.shared.peers.lock().unwrap().iter().copied().collect()
    }

    /// Bytes forwarded in both directions.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }
}

impl RelayState {
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read) = from.read(&mut bytes)
            && read > 0
        {
            while self.silent.load(Ordering::SeqCst) {
                std::thread::park();
            }
            if self.swallows.load(Ordering::SeqCst) {
                continue;
            }
            if self.slow.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_secs(read as u64) / SLOW_BYTES_PER_S);
            }
            self.bytes.fetch_add(read as u64, Ordering::SeqCst);
            if to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}
