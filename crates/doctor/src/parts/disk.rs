//! Disk benchmark: one file written or read in blocks, several per system call, by one thread.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::{Part, Stopwatch, pattern};

/// Alignment for direct I/O of memory, offsets and lengths; no device needs more.
const ALIGNMENT: usize = 4_096;
/// Buffers per vectored call (`IOV_MAX`).
const BUFFERS_MAX: usize = 1_024;
/// Memory limit: a benchmark that fills the memory measures nothing.
const MEMORY_BYTES_MAX: usize = 1 << 30;

/// When bytes must be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Flush {
    /// Whenever the kernel decides.
    None,
    /// Once, before the clock stops, as a receiver commits.
    End,
    /// Data, with every call (`O_DSYNC`).
    Dsync,
    /// Data and metadata, with every call (`O_SYNC`).
    Sync,
}

/// Options of the benchmark, as in FDT's disk test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskOptions {
    pub size_bytes: u64,
    pub block_bytes: usize,
    /// Blocks per system call.
    pub buffers: usize,
    pub flush: Flush,
    pub direct: bool,
    /// Reading: drop the page cache of the file first.
    pub cold: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        DiskOptions {
            size_bytes: 1_000_000_000,
            block_bytes: 1 << 20,
            buffers: 1,
            flush: Flush::End,
            direct: false,
            cold: true,
        }
    }
}

impl DiskOptions {
    fn validate(&self) -> io::Result<()> {
        let wrong = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
        let memory = self.block_bytes.checked_mul(self.buffers);
        match () {
            () if self.size_bytes == 0 => wrong("a size of 0 measures nothing"),
            () if self.block_bytes == 0 => wrong("a block of 0 bytes moves nothing"),
            () if !(1..=BUFFERS_MAX).contains(&self.buffers) => wrong("1 to 1024 buffers to a call"),
            () if memory.is_none_or(|memory| memory > MEMORY_BYTES_MAX) => {
                wrong("blocks × buffers must not exceed 1 GiB")
            }
            () if self.direct && !self.block_bytes.is_multiple_of(ALIGNMENT) => {
                wrong("direct I/O wants blocks that are multiples of 4096 bytes")
            }
            () => Ok(()),
        }
    }

    fn flags(&self) -> OFlags {
        let mut flags = OFlags::CLOEXEC | OFlags::NOFOLLOW;
        flags.set(OFlags::DIRECT, self.direct);
        flags.set(OFlags::DSYNC, self.flush == Flush::Dsync);
        flags.set(OFlags::SYNC, self.flush == Flush::Sync);
        flags
    }

    fn describe_method(&self, doing: &str) -> String {
        let flush = match self.flush {
            _ if doing == "read" => {
                if self.cold {
                    ", dropped from memory before"
                } else {
                    ", as it lies"
                }
            }
            Flush::None => ", not flushed",
            Flush::End => ", flushed once at the end",
            Flush::Dsync => ", every call flushed (dsync)",
            Flush::Sync => ", every call flushed (sync)",
        };
        let direct = if self.direct { ", direct" } else { "" };
        let block = crate::tune::buffer(self.block_bytes as u64);
        format!("{} × {block} to a call{direct}{flush}", self.buffers)
    }

    fn open(&self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        options.custom_flags(self.flags().bits().cast_signed()).open(path)
    }
}

/// Writes a new file, which must not exist.
pub fn write(path: &Path, options: &DiskOptions) -> io::Result<Part> {
    options.validate()?;
    let file = options.open(path, OpenOptions::new().write(true).create_new(true))?;
    let written = write_to(&file, options);
    if written.is_err() {
        // An unfinished file is of no use; report the first error.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn write_to(file: &File, options: &DiskOptions) -> io::Result<Part> {
    let mut memory = Memory::new(options);
    let contents = pattern(options.block_bytes, 3);
    for block in memory.blocks() {
        block.copy_from_slice(&contents);
    }
    let calls = Calls::for_options(options);
    let watch = Stopwatch::start();
    for (offset, len) in calls {
        let slices: Vec<IoSlice<'_>> = memory.cut(len).map(IoSlice::new).collect();
        let mut done = rustix::io::pwritev(file, &slices, offset)?;
        while done < len {
            // Short write: write the rest block by block.
            let rest = &memory.contiguous()[done..len];
            match rustix::io::pwrite(file, rest, offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    if options.flush == Flush::End {
        file.sync_data()?;
    }
    Ok(Part::new("disk write", options.describe_method("written"), options.written_bytes(), watch.stop()))
}

/// Reads a file from its beginning, at most `size_bytes` of it.
pub fn read(path: &Path, options: &DiskOptions) -> io::Result<Part> {
    options.validate()?;
    read_from(&options.open(path, OpenOptions::new().read(true))?, options)
}

fn read_from(file: &File, options: &DiskOptions) -> io::Result<Part> {
    if options.cold {
        // Only clean pages can be dropped.
        match rustix::fs::fdatasync(file) {
            Ok(()) | Err(Errno::INVAL | Errno::ROFS) => {}
            Err(error) => return Err(error.into()),
        }
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
    }
    rustix::fs::fadvise(file, 0, None, Advice::Sequential)?;
    let mut memory = Memory::new(options);
    let mut total = 0;
    let watch = Stopwatch::start();
    for (offset, len) in Calls::for_options(options) {
        let mut slices: Vec<IoSliceMut<'_>> = memory.cut_mut(len).map(IoSliceMut::new).collect();
        let got = rustix::io::preadv(file, &mut slices, offset)?;
        total += got as u64;
        if got < len {
            break;
        }
    }
    if total == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty"));
    }
    Ok(Part::new("disk read", options.describe_method("read"), total, watch.stop()))
}

/// Writes and reads a temporary file in `directory`. It is unlinked before anything is written, so that
/// nothing is left however this process ends.
pub fn write_and_read(directory: &Path, options: &DiskOptions) -> io::Result<[Part; 2]> {
    options.validate()?;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!(".longhaul-bench-{}-{number}", std::process::id()));
    let file = options.open(&path, OpenOptions::new().read(true).write(true).create_new(true))?;
    std::fs::remove_file(&path)?;
    let written = write_to(&file, options)?;
    Ok([written, read_from(&file, options)?])
}

impl DiskOptions {
    /// Direct I/O moves whole blocks only.
    fn written_bytes(&self) -> u64 {
        if self.direct { self.size_bytes.next_multiple_of(ALIGNMENT as u64) } else { self.size_bytes }
    }
}

/// Offset and length of each call.
struct Calls {
    next: u64,
    end: u64,
    len: u64,
}

impl Calls {
    fn for_options(options: &DiskOptions) -> Calls {
        let len = (options.block_bytes * options.buffers) as u64;
        Calls { next: 0, end: options.written_bytes(), len }
    }
}

impl Iterator for Calls {
    type Item = (u64, usize);

    fn next(&mut self) -> Option<(u64, usize)> {
        let (offset, len) = (self.next, self.len.min(self.end - self.next));
        self.next += len;
        (len > 0).then_some((offset, len as usize))
    }
}

/// Aligned buffers in one allocation.
struct Memory {
    storage: Vec<u8>,
    start: usize,
    len: usize,
    block: usize,
}

impl Memory {
    fn new(options: &DiskOptions) -> Memory {
        let len = options.block_bytes * options.buffers;
        let storage = vec![0; len + ALIGNMENT];
        // The allocation does not move: the vector never grows.
        let start = storage.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Memory { storage, start, len, block: options.block_bytes }
    }

    fn contiguous(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.len]
    }

    fn blocks(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.storage[self.start..self.start + self.len].chunks_exact_mut(self.block)
    }

    fn cut(&self, len: usize) -> impl Iterator<Item = &[u8]> {
        self.contiguous()[..len].chunks(self.block)
    }

    fn cut_mut(&mut self, len: usize) -> impl Iterator<Item = &mut [u8]> {
        self.storage[self.start..self.start + len].chunks_mut(self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> DiskOptions {
        DiskOptions { size_bytes: 300_001, block_bytes: 4_096, buffers: 3, ..DiskOptions::default() }
    }

    #[test]
    fn every_flush_mode_writes_the_stated_bytes() {
        let directory = tempfile::tempdir().unwrap();
        for (number, flush) in [Flush::None, Flush::End, Flush::Dsync, Flush::Sync].into_iter().enumerate() {
            let options = DiskOptions { flush, ..small() };
            let path = directory.path().join(number.to_string());
            let part = write(&path, &options).unwrap();
            assert_eq!(part.bytes, 300_001);
            let contents = std::fs::read(&path).unwrap();
            assert_eq!(contents.len(), 300_001);
            let block = pattern(4_096, 3);
            assert!(contents.chunks(4_096).all(|chunk| chunk == &block[..chunk.len()]));
            assert_eq!(read(&path, &options).unwrap().bytes, 300_001);
        }
    }

    #[test]
    fn existing_files_are_kept_and_temporary_ones_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(write(&path, &small()).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let [written, read] = write_and_read(directory.path(), &small()).unwrap();
        assert_eq!((written.bytes, read.bytes), (300_001, 300_001));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn nonsense_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let bad = [
            DiskOptions { size_bytes: 0, ..small() },
            DiskOptions { block_bytes: 0, ..small() },
            DiskOptions { buffers: 0, ..small() },
            DiskOptions { buffers: 1 << 40, ..small() },
            DiskOptions { block_bytes: usize::MAX, ..small() },
            DiskOptions { block_bytes: 1_000, direct: true, ..small() },
        ];
        for options in bad {
            let error = write(&directory.path().join("x"), &options).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{options:?}");
        }
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        assert!(read(&empty, &small()).is_err());
    }
}
