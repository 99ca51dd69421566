//! Network benchmark from memory to memory: over the loopback, or to a listening peer; plain TCP, with
//! AES-GCM at both ends, or with AES-GCM and every chunk checked.
//!
//! Each stream is one connection with a thread at each end. It starts with 64 bytes from the sender (magic,
//! mode, number of chunks, a key that protects nothing), then whole chunks; at the end the receiver replies
//! with its count and CPU time. A listener reads and discards: it stores no data and serves none. Bounds:
//! bytes per stream, concurrent streams, idle timeout.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_model::units::plural;
use serde::Serialize;

use super::aead::{Cipher, KEY_BYTES, SEALED_CHUNK_BYTES};
use super::{CHUNK_BYTES, Part, Stopwatch, TimeSpent, pattern};

const MAGIC: [u8; 8] = *b"LHBENCH1";
const HELLO_BYTES: usize = 64;
const REPLY_BYTES: usize = 32;
pub const STREAMS_MAX: u32 = 256;
/// Chunks per stream: a petabyte is a typo, or an attempt to keep us busy.
const CHUNKS_MAX: u64 = (1 << 50) / CHUNK_BYTES as u64;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Processing of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Plain,
    /// AES-GCM.
    Sealed,
    /// AES-GCM, and each chunk has a crc32c and a number that the receiver checks.
    Checked,
}

impl Mode {
    fn byte(self) -> u8 {
        match self {
            Mode::Plain => 0,
            Mode::Sealed => 1,
            Mode::Checked => 2,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Mode::Plain => "plain TCP",
            Mode::Sealed => "AES-128-GCM at both ends",
            Mode::Checked => "AES-128-GCM and crc32c at both ends",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkOptions {
    /// Total, rounded up to whole chunks per stream.
    pub bytes: u64,
    pub streams: u32,
    pub mode: Mode,
}

/// A transfer from memory to memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworkRun {
    #[serde(flatten)]
    pub part: Part,
    pub streams: u32,
    pub mode: Mode,
    pub sender_cpu_s_per_gb: f64,
    pub receiver_cpu_s_per_gb: f64,
}

/// Runs both ends in this process.
pub fn loopback(options: &NetworkOptions, progress: &(dyn Fn(u64) + Sync)) -> io::Result<NetworkRun> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let streams = validate_streams(options)?;
    thread::scope(|scope| {
        let receivers = scope.spawn(move || accept(&listener, streams));
        let sent = connect(address, options, progress);
        let received = receivers.join().map_err(|_| io::Error::other("a receiver panicked"))?;
        // A sender sees a receiver's failure only as a closed connection: the receiver's error says more.
        match (sent, received) {
            (_, Err(error)) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            (sent, received) => sent.and_then(|run| received.map(|_| run)),
        }
    })
    .map(|mut run| {
        run.part.how = format!("{}, over the loop back", run.part.how);
        run
    })
}

/// Receives `streams` streams to their ends.
fn accept(listener: &TcpListener, streams: u32) -> io::Result<()> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..streams {
            let (socket, _) = listener.accept()?;
            threads.push(scope.spawn(move || receive(&socket)));
        }
        for thread in threads {
            thread.join().map_err(|_| io::Error::other("a receiver panicked"))??;
        }
        Ok(())
    })
}

/// Listens for [`connect`] from other hosts. `told` is called for each finished stream, and stops listening
/// when it returns true; running streams are completed.
pub fn listen(
    listener: &TcpListener,
    told: &(dyn Fn(SocketAddr, &io::Result<StreamResult>) -> bool + Sync),
) -> io::Result<()> {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    let running = AtomicU32::new(0);
    let ended = AtomicBool::new(false);
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        loop {
            let (socket, peer) = listener.accept()?;
            if ended.load(Ordering::Acquire) {
                return Ok(());
            }
            if running.load(Ordering::Acquire) >= STREAMS_MAX {
                continue;
            }
            running.fetch_add(1, Ordering::AcqRel);
            let (running, ended) = (&running, &ended);
            scope.spawn(move || {
                let received = receive(&socket);
                running.fetch_sub(1, Ordering::AcqRel);
                if told(peer, &received) {
                    ended.store(true, Ordering::Release);
                    // Wakes the accept loop above.
                    let _ = TcpStream::connect_timeout(&reachable(address), CONNECT_TIMEOUT);
                }
            });
        }
    })
}

/// The address under which a socket bound to `address` can be dialled from this host.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Sends to a listener. Timed from the first byte sent to the last reply.
pub fn connect(
    address: SocketAddr,
    options: &NetworkOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> io::Result<NetworkRun> {
    let streams = validate_streams(options)?;
    let chunks = options.bytes.div_ceil(u64::from(streams) * CHUNK_BYTES as u64).max(1);
    let sockets: io::Result<Vec<TcpStream>> =
        (0..streams).map(|_| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)).collect();
    let sockets = sockets?;
    let began = Instant::now();
    let ends = thread::scope(|scope| {
        let begin = |(number, socket)| {
            let plan = Stream { number, streams, chunks, mode: options.mode };
            scope.spawn(move || send(socket, plan, progress))
        };
        let threads: Vec<_> = (0_u32..).zip(&sockets).map(begin).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, io::Result<CpuTimes>>| {
            thread.join().map_err(|_| io::Error::other("a sender panicked"))?
        };
        threads.into_iter().map(join).collect::<io::Result<Vec<CpuTimes>>>()
    })?;
    let wall = began.elapsed();
    let sender: Duration = ends.iter().map(|ends| ends.sender).sum();
    let receiver: Duration = ends.iter().map(|ends| ends.receiver).sum();
    let bytes = chunks * u64::from(streams) * CHUNK_BYTES as u64;
    let gb = bytes as f64 / 1e9;
    let how = format!("{}, {}", options.mode.describe(), plural(streams.into(), "stream", "streams"));
    Ok(NetworkRun {
        part: Part::new("network", how, bytes, TimeSpent { wall, cpu: sender + receiver }),
        streams,
        mode: options.mode,
        sender_cpu_s_per_gb: sender.as_secs_f64() / gb,
        receiver_cpu_s_per_gb: receiver.as_secs_f64() / gb,
    })
}

fn validate_streams(options: &NetworkOptions) -> io::Result<u32> {
    if options.streams == 0 || options.streams > STREAMS_MAX || options.bytes == 0 {
        let why = format!("1 to {STREAMS_MAX} streams, and at least one byte");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(options.streams)
}

/// CPU time of the two ends of a stream.
struct CpuTimes {
    sender: Duration,
    receiver: Duration,
}

/// Result of a stream at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamResult {
    pub bytes: u64,
    /// Streams of its run.
    pub streams: u32,
}

#[derive(Clone, Copy)]
struct Stream {
    number: u32,
    streams: u32,
    chunks: u64,
    mode: Mode,
}

fn hello(stream: Stream, key: &[u8; KEY_BYTES]) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8] = stream.mode.byte();
    hello[12..16].copy_from_slice(&stream.number.to_be_bytes());
    hello[16..24].copy_from_slice(&stream.chunks.to_be_bytes());
    hello[24..24 + KEY_BYTES].copy_from_slice(key);
    hello[40..44].copy_from_slice(&stream.streams.to_be_bytes());
    hello
}

fn parse_hello(bytes: &[u8; HELLO_BYTES]) -> Option<(Stream, [u8; KEY_BYTES])> {
    let mode = [Mode::Plain, Mode::Sealed, Mode::Checked].into_iter().find(|mode| mode.byte() == bytes[8])?;
    let chunks = u64::from_be_bytes(bytes[16..24].try_into().ok()?);
    let number = u32::from_be_bytes(bytes[12..16].try_into().ok()?);
    let streams = u32::from_be_bytes(bytes[40..44].try_into().ok()?);
    let sound = bytes[..8] == MAGIC
        && (1..=CHUNKS_MAX).contains(&chunks)
        && (1..=STREAMS_MAX).contains(&streams)
        && number < streams;
    Some((Stream { number, streams, chunks, mode }, bytes[24..24 + KEY_BYTES].try_into().ok()?))
        .filter(|_| sound)
}

/// Chunks of a stream: random data stamped with crc32c, stream and position, so that a lost, repeated or
/// swapped chunk is detected.
struct Chunks {
    stream: u32,
    bytes: Vec<u8>,
}

const STAMP_BYTES: usize = 16;

impl Chunks {
    fn new(stream: u32) -> Chunks {
        Chunks { stream, bytes: pattern(CHUNK_BYTES, u64::from(stream)) }
    }

    fn stamped(&mut self, place: u64) -> &[u8] {
        self.bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        self.bytes[8..STAMP_BYTES].copy_from_slice(&place.to_be_bytes());
        let sum = crc32c::crc32c(&self.bytes[4..]);
        self.bytes[..4].copy_from_slice(&sum.to_be_bytes());
        &self.bytes
    }
}

/// Verifies one chunk from its records.
struct ChunkCheck {
    stamp: [u8; STAMP_BYTES],
    sum: u32,
    seen: usize,
}

impl ChunkCheck {
    fn new() -> ChunkCheck {
        ChunkCheck { stamp: [0; STAMP_BYTES], sum: 0, seen: 0 }
    }

    fn update(&mut self, record: &[u8]) {
        let skip = if self.seen == 0 {
            self.stamp.copy_from_slice(&record[..STAMP_BYTES]);
            4
        } else {
            0
        };
        self.sum = crc32c::crc32c_append(self.sum, &record[skip..]);
        self.seen += record.len();
    }

    fn verify(self, stream: u32, place: u64) -> io::Result<()> {
        let right = self.stamp[..4] == self.sum.to_be_bytes()
            && self.stamp[4..8] == stream.to_be_bytes()
            && self.stamp[8..] == place.to_be_bytes()
            && self.seen == CHUNK_BYTES;
        if right {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "a chunk arrived changed"))
        }
    }
}

fn send(mut socket: &TcpStream, stream: Stream, progress: &(dyn Fn(u64) + Sync)) -> io::Result<CpuTimes> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(IDLE_TIMEOUT))?;
    socket.set_read_timeout(Some(IDLE_TIMEOUT))?;
    let mut key = [0x6b; KEY_BYTES];
    key[..4].copy_from_slice(&stream.number.to_be_bytes());
    let mut cipher = Cipher::new(&key)?;
    let mut chunks = Chunks::new(stream.number);
    let mut sealed = vec![0; SEALED_CHUNK_BYTES];
    let watch = Stopwatch::start();
    socket.write_all(&hello(stream, &key))?;
    for place in 0..stream.chunks {
        match stream.mode {
            Mode::Plain => socket.write_all(&chunks.bytes)?,
            Mode::Sealed => {
                cipher.seal(&chunks.bytes, &mut sealed)?;
                socket.write_all(&sealed)?;
            }
            Mode::Checked => {
                cipher.seal(chunks.stamped(place), &mut sealed)?;
                socket.write_all(&sealed)?;
            }
        }
        progress(CHUNK_BYTES as u64);
    }
    let mut reply = [0; REPLY_BYTES];
    socket.read_exact(&mut reply)?;
    let sender = watch.stop().cpu;
    let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|place| reply[at + place]));
    if reply[..8] != MAGIC || number(8) != stream.chunks {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the receiver took something else"));
    }
    Ok(CpuTimes { sender, receiver: Duration::from_nanos(number(16)) })
}

/// Receives one stream to its end.
fn receive(mut socket: &TcpStream) -> io::Result<StreamResult> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(IDLE_TIMEOUT))?;
    socket.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let mut head = [0; HELLO_BYTES];
    socket.read_exact(&mut head)?;
    let (stream, key) = parse_hello(&head)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no sender of a measurement"))?;
    let mut cipher = Cipher::new(&key)?;
    let watch = Stopwatch::start();
    if stream.mode == Mode::Plain {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut left = stream.chunks * CHUNK_BYTES as u64;
        while left > 0 {
            let most = left.min(CHUNK_BYTES as u64) as usize;
            match socket.read(&mut buffer[..most]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => left -= got as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    } else {
        let mut buffer = vec![0; SEALED_CHUNK_BYTES];
        for place in 0..stream.chunks {
            socket.read_exact(&mut buffer)?;
            let mut check = ChunkCheck::new();
            if stream.mode == Mode::Checked {
                cipher.open(&mut buffer, |record| check.update(record))?;
                check.verify(stream.number, place)?;
            } else {
                cipher.open(&mut buffer, |_| {})?;
            }
        }
    }
    let mut reply = [0; REPLY_BYTES];
    reply[..8].copy_from_slice(&MAGIC);
    reply[8..16].copy_from_slice(&stream.chunks.to_be_bytes());
    let cpu = u64::try_from(watch.stop().cpu.as_nanos()).unwrap_or(u64::MAX);
    reply[16..24].copy_from_slice(&cpu.to_be_bytes());
    socket.write_all(&reply)?;
    Ok(StreamResult { bytes: stream.chunks * CHUNK_BYTES as u64, streams: stream.streams })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn every_mode_carries_every_byte() {
        for mode in [Mode::Plain, Mode::Sealed, Mode::Checked] {
            let seen = AtomicU64::new(0);
            let options = NetworkOptions { bytes: 5 << 20, streams: 3, mode };
            let run = loopback(&options, &|bytes| {
                seen.fetch_add(bytes, Ordering::Relaxed);
            })
            .unwrap();
            // Two whole chunks for each of the three streams.
            assert_eq!((run.part.bytes, seen.load(Ordering::Relaxed)), (6 << 20, 6 << 20));
            assert!(run.sender_cpu_s_per_gb > 0.0 && run.receiver_cpu_s_per_gb > 0.0, "{run:?}");
        }
    }

    #[test]
    fn a_corrupted_chunk_is_detected() {
        for place in [0, 5, 9, STAMP_BYTES, CHUNK_BYTES - 1] {
            let mut chunk = Chunks::new(1).stamped(7).to_vec();
            let verdict = |chunk: &[u8]| {
                let mut check = ChunkCheck::new();
                chunk.chunks(16 << 10).for_each(|record| check.update(record));
                check.verify(1, 7)
            };
            verdict(&chunk).unwrap();
            chunk[place] ^= 1;
            assert!(verdict(&chunk).is_err(), "byte {place}");
        }
    }

    #[test]
    fn a_listener_serves_a_peer_and_stops_on_request() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let took = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                listen(&listener, &|_, received| match received {
                    Ok(one) => took.fetch_add(one.bytes, Ordering::Relaxed) > 0 && one.streams == 2,
                    Err(_) => false,
                })
                .unwrap();
            });
            // Somebody who speaks something else costs nobody anything.
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(&[b'x'; HELLO_BYTES]).unwrap();
            assert_eq!(stranger.read(&mut [0; 1]).unwrap(), 0);
            let options = NetworkOptions { bytes: 1, streams: 2, mode: Mode::Sealed };
            assert_eq!(connect(address, &options, &|_| {}).unwrap().part.bytes, 2 << 20);
        });
        assert_eq!(took.load(Ordering::Relaxed), 2 << 20);
    }

    proptest! {
        #[test]
        fn no_greeting_panics(bytes: [u8; 32], rest: [u8; 32], magic: bool) {
            let mut hello = [0; HELLO_BYTES];
            hello[..32].copy_from_slice(&bytes);
            hello[32..].copy_from_slice(&rest);
            if magic {
                hello[..8].copy_from_slice(&MAGIC);
            }
            if let Some((stream, _)) = parse_hello(&hello) {
                prop_assert!(magic && stream.chunks <= CHUNKS_MAX);
            }
        }
    }
}
