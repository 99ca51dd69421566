//! A gate before a server: it lets so many bytes of each connection through each way, then holds them until
//! it is opened. So a copy stands still in its midst for as long as a test looks at it, whatever the machine
//! is doing.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PIECE_BYTES: usize = 64 << 10;
/// Between two looks whether a client has gone whose bytes are held.
const LOOK_NS: i64 = 20_000_000;

#[derive(Clone)]
pub struct Gate {
    pub port: u16,
    shared: Arc<GateInner>,
}

#[derive(Default)]
struct GateInner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: bool,
    closed: bool,
    /// Connections whose bytes have been held.
    held: usize,
    /// Clients that went while bytes of theirs were held.
    gave_up: usize,
}

impl Gate {
    /// Before the server at that port.
    pub fn before(port: u16, bytes: u64) -> Gate {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let gate = Gate { port: listener.local_addr().unwrap().port(), shared: Arc::default() };
        let shared = gate.shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.state().closed {
                    return;
                }
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                    carry(&shared, client, server, bytes);
                }
            }
        });
        gate
    }

    pub fn open(&self) {
        self.shared.state().open = true;
        self.shared.changed.notify_all();
    }

    /// Whether bytes of a connection are held by then.
    pub fn holds(&self, within: Duration) -> bool {
        self.sees(within, |state| state.held > 0)
    }

    /// Whether a client ended a connection whose bytes were held.
    pub fn was_given_up(&self, within: Duration) -> bool {
        self.sees(within, |state| state.gave_up > 0)
    }

    fn sees(&self, within: Duration, question: impl Fn(&State) -> bool) -> bool {
        let until = Instant::now() + within;
        let mut state = self.shared.state();
        while !question(&state) {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
        true
    }

    /// Takes nobody more.
    pub fn close(&self) {
        self.shared.state().closed = true;
        self.open();
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl GateInner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// One connection.
struct Line {
    client: TcpStream,
    server: TcpStream,
    gone: AtomicBool,
    held: AtomicBool,
}

fn carry(shared: &Arc<GateInner>, client: TcpStream, server: TcpStream, bytes: u64) {
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    let line = Arc::new(Line { client, server, gone: AtomicBool::new(false), held: AtomicBool::new(false) });
    for inwards in [true, false] {
        let (shared, line) = (shared.clone(), line.clone());
        std::thread::spawn(move || {
            let ends = if inwards { (&line.client, &line.server) } else { (&line.server, &line.client) };
            relay(&shared, &line, ends, bytes);
            // The other way may still have something to say.
            let _ = ends.1.shutdown(Shutdown::Write);
            if !inwards {
                line.end();
            }
        });
    }
    let (shared, line) = (shared.clone(), line);
    std::thread::spawn(move || watch(&shared, &line));
}

fn relay(shared: &GateInner, line: &Line, (mut from, mut to): (&TcpStream, &TcpStream), mut left: u64) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        if left == 0 {
            let mut state = shared.state();
            if !state.open {
                state.held += 1;
                shared.changed.notify_all();
            }
            while !state.open && !line.gone.load(Ordering::Acquire) {
                line.held.store(true, Ordering::Release);
                state = shared.changed.wait(state).unwrap();
            }
            line.held.store(false, Ordering::Release);
            left = u64::MAX;
        }
        let most = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match from.read(&mut piece[..most]) {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                left -= read as u64;
                if to.write_all(&piece[..read]).is_err() {
                    return;
                }
            }
        }
    }
}

/// Sees a client go even while nobody reads from it.
fn watch(shared: &GateInner, line: &Line) {
    let tick = Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
    while !line.gone.load(Ordering::Acquire) {
        let mut fds = [PollFd::new(&line.client, PollFlags::RDHUP)];
        if !matches!(poll(&mut fds, Some(&tick)), Ok(0)) {
            let mut state = shared.state();
            let held = line.held.load(Ordering::Acquire);
            line.gone.store(true, Ordering::Release);
            if held {
                state.gave_up += 1;
                line.end();
            }
            shared.changed.notify_all();
        }
    }
}

impl Line {
    fn end(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}
