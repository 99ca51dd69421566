//! A source that lies. Which lie is told follows from the name of the file that is asked for: what lies in
//! the folder `wrong-bytes/` comes with wrong bytes; a folder that names no lie is served honestly.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use longhaul_model::digest::PartDigest;
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Fault, FaultCode, Retry};
use longhaul_security::Credentials;
use longhaul_wire::{
    BatchId, ChunkHead, FileNumber, Frame, PackEntry, PackHead, RequestId, SessionId, SourceIdentity,
    VERSIONS, Welcome,
};

use super::{Wire, hello};

const CHUNK: u64 = CHUNK_BYTES as u64;

/// What a source can do to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Other bytes than were registered, with checksums that fit them.
    WrongBytes,
    /// A checksum that does not fit the bytes.
    WrongChecksum,
    /// Fewer bytes than the chunk has.
    WrongLength,
    /// More bytes than the file has.
    Longer,
    /// A chunk from behind the end of the file.
    WrongOffset,
    /// A file that nobody asked for.
    Unasked,
    /// Every chunk twice.
    Twice,
    /// Each chunk from another state of the file.
    Changes,
    /// A source that wants to read from its target.
    AsksBack,
    /// A frame that claims to have four gigabytes.
    Giant,
    /// Bytes that are no frame.
    Garbage,
    /// Faults with text that would forge log lines and steer terminals.
    Forges,
    /// The permit is answered for batches that were never sent.
    WrongAnswer,
    /// The stream ends after every request.
    HangsUp,
    /// Faults of single files that are not the source's to tell: about the target, and for good.
    JudgesTarget,
    /// A farewell that calls the whole task wrong, for good.
    DismissesTask,
    /// The end of an attempt that its target would not tell of, were it the target's own.
    FeignsRestart,
    /// Questions without end, and answers are not read.
    Floods,
    /// Whole frames, and then one byte, and never the rest.
    Stops,
}

impl Lie {
    pub const ALL: [Lie; 19] = [
        Lie::WrongBytes,
        Lie::WrongChecksum,
        Lie::WrongLength,
        Lie::Longer,
        Lie::WrongOffset,
        Lie::Unasked,
        Lie::Twice,
        Lie::Changes,
        Lie::AsksBack,
        Lie::Giant,
        Lie::Garbage,
        Lie::Forges,
        Lie::WrongAnswer,
        Lie::HangsUp,
        Lie::JudgesTarget,
        Lie::DismissesTask,
        Lie::FeignsRestart,
        Lie::Floods,
        Lie::Stops,
    ];

    /// The folder whose files are served so.
    pub fn folder(self) -> String {
        let mut name = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    }

    fn from_lfn(lfn: &str) -> Option<Lie> {
        let folder = lfn.split('/').next().unwrap_or_default();
        Lie::ALL.into_iter().find(|lie| lie.folder() == folder)
    }
}

/// A file as its target has announced it.
type Announced = BTreeMap<FileNumber, (String, u64)>;

/// Listens until the test ends.
pub struct Hostile {
    pub address: SocketAddr,
    streams: Arc<AtomicU64>,
}

struct SourceState {
    root: PathBuf,
    sessions: Mutex<BTreeMap<SessionId, Announced>>,
}

impl Hostile {
    /// A place to listen at, before anybody knows whose credentials will be shown there.
    pub fn bind() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").expect("a port")
    }

    /// Serves what lies below `root`, in its way.
    pub fn start(listener: TcpListener, credentials: Credentials, root: PathBuf) -> Hostile {
        let address = listener.local_addr().expect("it listens");
        let streams = Arc::new(AtomicU64::new(0));
        let shared = Arc::new(SourceState { root, sessions: Mutex::default() });
        let count = streams.clone();
        std::thread::spawn(move || {
            loop {
                let Ok(mut wire) = Wire::accept(&listener, &credentials) else { continue };
                count.fetch_add(1, Ordering::Relaxed);
                let shared = shared.clone();
                std::thread::spawn(move || {
                    if let Some((Frame::Hello(hello), _)) = wire.receive() {
                        let welcome = Welcome { version: VERSIONS.newest, incarnation: 7 };
                        let sent = wire.send(&Frame::Welcome(welcome), &[]);
                        // An error means that the target hung up: it has had enough.
                        let _ = sent.and_then(|()| shared.serve(&mut wire, hello.session));
                    }
                });
            }
        });
        Hostile { address, streams }
    }

    /// Streams that have come so far.
    pub fn streams(&self) -> u64 {
        self.streams.load(Ordering::Relaxed)
    }
}

impl SourceState {
    fn serve(&self, wire: &mut Wire, session: SessionId) -> io::Result<()> {
        while let Some((frame, _)) = wire.receive() {
            match frame {
                Frame::Manifest(manifest) => {
                    let mut lies = Vec::new();
                    let mut sessions = self.sessions.lock().expect("nobody panics here");
                    let known = sessions.entry(session).or_default();
                    for (number, file) in (manifest.first.0..).zip(&manifest.files) {
                        lies.extend(Lie::from_lfn(file.lfn.as_str()));
                        known.insert(FileNumber(number), (file.lfn.to_string(), file.size));
                    }
                    drop(sessions);
                    if lies.contains(&Lie::WrongAnswer) {
                        let batch = BatchId(manifest.batch.0 + 1_000);
                        wire.send(&Frame::ManifestAnswer { batch, fault: None }, &[])?;
                        let fault = Some(Fault::new(FaultCode::PermitRefused, "no, and yes"));
                        wire.send(&Frame::ManifestAnswer { batch: manifest.batch, fault }, &[])?;
                    }
                    if manifest.last_part {
                        wire.send(&Frame::ManifestAnswer { batch: manifest.batch, fault: None }, &[])?;
                    }
                }
                Frame::Ping { number } => wire.send(&Frame::Pong { number }, &[])?,
                Frame::Request { request, file, offset, len } => {
                    let Some((lfn, size)) = self.announced(session, file) else { continue };
                    for at in (offset..offset + len).step_by(CHUNK as usize) {
                        self.chunk(wire, request, file, &lfn, size, at)?;
                    }
                }
                Frame::RequestPack { request, files } => self.pack(wire, session, request, &files)?,
                Frame::Goodbye { .. } => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }

    fn announced(&self, session: SessionId, file: FileNumber) -> Option<(String, u64)> {
        self.sessions.lock().expect("nobody panics here").get(&session)?.get(&file).cloned()
    }

    fn bytes(&self, lfn: &str, offset: u64, len: u64) -> Vec<u8> {
        let whole = fs::read(self.root.join(lfn)).unwrap_or_default();
        whole.into_iter().skip(offset as usize).take(len as usize).collect()
    }

    fn chunk(
        &self,
        wire: &mut Wire,
        request: RequestId,
        file: FileNumber,
        lfn: &str,
        size: u64,
        offset: u64,
    ) -> io::Result<()> {
        let mut bytes = self.bytes(lfn, offset, CHUNK.min(size - offset));
        let mut head = ChunkHead { request, file, offset, crc32c: 0, identity: identity(size, 1) };
        let lie = Lie::from_lfn(lfn);
        match lie {
            Some(Lie::WrongBytes) => bytes[0] ^= 1,
            Some(Lie::WrongLength) => drop(bytes.pop()),
            Some(Lie::Longer) => bytes.resize((bytes.len() + 1).min(CHUNK as usize), 0),
            Some(Lie::WrongOffset) => head.offset = (size / CHUNK + 5) * CHUNK,
            Some(Lie::Unasked) => head.file = FileNumber(file.0 + 1_000),
            Some(Lie::Changes) => head.identity = identity(size, offset as i64),
            _ => {}
        }
        head.crc32c = PartDigest::compute(&bytes).crc32c ^ u32::from(lie == Some(Lie::WrongChecksum));
        if let Some(lie) = lie {
            misbehave(wire, lie, request, file)?;
        }
        if lie == Some(Lie::Stops) {
            let mut part = Frame::Data(head).encode(bytes.len() as u32);
            part.push(bytes[0]);
            return wire.send_raw(&part);
        }
        wire.send(&Frame::Data(head), &bytes)?;
        if lie == Some(Lie::Twice) {
            wire.send(&Frame::Data(head), &bytes)?;
        }
        Ok(())
    }

    fn pack(
        &self,
        wire: &mut Wire,
        session: SessionId,
        request: RequestId,
        files: &[FileNumber],
    ) -> io::Result<()> {
        let (mut entries, mut payload, mut told) = (Vec::new(), Vec::new(), None);
        for &file in files {
            let Some((lfn, size)) = self.announced(session, file) else { continue };
            let mut bytes = self.bytes(&lfn, 0, size);
            let lie = Lie::from_lfn(&lfn);
            told = told.or(lie.map(|lie| (lie, file)));
            let mut named = file;
            match lie {
                Some(Lie::WrongBytes) => bytes[0] ^= 1,
                Some(Lie::WrongLength) => drop(bytes.pop()),
                Some(Lie::Longer) => bytes.push(0),
                Some(Lie::Unasked | Lie::WrongOffset) => named = FileNumber(file.0 + 1_000),
                _ => {}
            }
            let crc32c = PartDigest::compute(&bytes).crc32c ^ u32::from(lie == Some(Lie::WrongChecksum));
            let size = bytes.len() as u32;
            entries.push(PackEntry::Whole { file: named, size, crc32c, identity: identity(size.into(), 1) });
            payload.extend_from_slice(&bytes);
        }
        if let Some((lie, file)) = told {
            misbehave(wire, lie, request, file)?;
        }
        let frame = Frame::PackData(PackHead { request, entries });
        if matches!(told, Some((Lie::Stops, _))) {
            let mut part = frame.encode(payload.len() as u32);
            part.push(payload[0]);
            return wire.send_raw(&part);
        }
        wire.send(&frame, &payload)?;
        if matches!(told, Some((Lie::Twice, _))) {
            wire.send(&frame, &payload)?;
        }
        Ok(())
    }
}

/// What is done beside, or instead of, sending data.
fn misbehave(wire: &mut Wire, lie: Lie, request: RequestId, file: FileNumber) -> io::Result<()> {
    match lie {
        Lie::AsksBack => {
            wire.send(&hello(1, 1), &[])?;
            wire.send(&Frame::Request { request, file, offset: 0, len: CHUNK }, &[])
        }
        Lie::Giant => {
            let mut head = [0; 12];
            head[0] = 8;
            head[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
            head[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
            wire.send_raw(&head)
        }
        Lie::Garbage => wire.send_raw(&[0x5a; 1 << 16]),
        Lie::Forges => {
            let text = "gone\n2026-11-21T00:00:00Z ERROR forged\u{1b}[2J\u{202e}".repeat(9);
            let fault = Fault::new(FaultCode::SourceMissing, text);
            wire.send(&Frame::FileFault { request, file, fault }, &[])
        }
        Lie::JudgesTarget => {
            let fault = Fault::new(FaultCode::TargetFull, "not a byte more").retrying(Retry::Never);
            wire.send(&Frame::FileFault { request, file, fault }, &[])
        }
        Lie::DismissesTask => {
            let fault = Some(Fault::new(FaultCode::BadRequest, "nobody wants this"));
            wire.send(&Frame::Goodbye { fault }, &[])
        }
        Lie::FeignsRestart => {
            let fault = Fault::new(FaultCode::Interrupted, "back in a moment");
            wire.send(&Frame::FileFault { request, file, fault }, &[])
        }
        Lie::HangsUp => Err(io::ErrorKind::ConnectionAborted.into()),
        Lie::Floods => {
            let ping = Frame::Ping { number: 1 }.encode(0).repeat(4_096);
            loop {
                wire.send_raw(&ping)?;
            }
        }
        _ => Ok(()),
    }
}

fn identity(size: u64, mtime_ns: i64) -> SourceIdentity {
    SourceIdentity { size, mtime_ns, inode: 1 }
}
