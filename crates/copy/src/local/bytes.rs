//! Copies the bytes of one file into a temporary file by the cheapest method that gives the requested
//! verification.
//!
//! 1. A clone (reflink): both files share blocks. Nothing is read, so nothing can be compared or corrupted
//!    in between; reports name it as what it is.
//! 2. `copy_file_range`: the kernel copies, or a file server does so without any byte crossing the network.
//!    It computes no digest, so it serves `--verify wire` only.
//! 3. Reading and writing, with the digest of the bytes that were read and handed to the target.
//!
//! With `--verify readback` both files are read afterwards, whatever the method, and compared.

use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_model::{Algorithm, Blame, Digest, Fault, FaultCode, Hasher, Verification};
use longhaul_storage::{SourceFile, Storage, TargetFile, TempName};
use rustix::fd::OwnedFd;
use rustix::fs::{self, Advice};
use rustix::io::Errno;

use super::tree::{self, SourceTree, TargetTree};
use super::{LocalOptions, Method, Observer, PlannedFile, VerifiedBy};

/// Size of one read, the engine's chunk size (1 MiB).
pub(super) const BUFFER_BYTES: usize = longhaul_model::limits::CHUNK_BYTES as usize;
/// Bytes per `copy_file_range`: large enough to make the call's cost negligible, small enough to cancel soon.
const KERNEL_COPY_BYTES: usize = 16 << 20;
/// Write-back is started this often, so that the final flush finds little left.
const WRITEBACK_BYTES: u64 = 16 << 20;

/// How a temporary file was filled and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilledFile {
    pub(super) method: Method,
    pub(super) verified: VerifiedBy,
    pub(super) digest: Option<Digest>,
}

/// The method, the digest if the bytes were seen, and the temporary file.
type WriteResult = (Method, Option<Digest>, Box<dyn TargetFile>);

/// Reads at an offset; a short read means the end of the file.
type ReadAt<'a> = &'a dyn Fn(&mut [u8], u64) -> Result<usize, Fault>;

pub(super) struct FileCopy<'a> {
    pub(super) source: &'a SourceTree,
    pub(super) target: &'a TargetTree,
    pub(super) options: &'a LocalOptions,
    pub(super) observer: &'a dyn Observer,
    pub(super) cancel: &'a AtomicBool,
}

impl FileCopy<'_> {
    /// Fills the temporary file and verifies it as requested.
    pub(super) fn fill(
        &self,
        file: &PlannedFile,
        temp: &TempName,
        buffer: &mut [u8],
    ) -> Result<FilledFile, Fault> {
        self.check_cancelled()?;
        let source = self.source.open_file(&file.source, &file.identity())?;
        let (method, mut digest, written) = self.write_cheapest(file, &*source, temp, buffer)?;
        if source.identity_now()? != file.identity() {
            let text = format!("{} changed while it was being copied", self.source.shown(&file.source));
            return Err(Fault::new(FaultCode::SourceChanged, text));
        }
        let mut verified = match method {
            Method::Clone => VerifiedBy::SharedBlocks,
            Method::Kernel => VerifiedBy::SizeOnly,
            Method::ReadWrite => VerifiedBy::EndToEnd,
        };
        if self.options.verification == Verification::Readback {
            let descriptor = self.target.descriptor(temp)?;
            digest = Some(self.read_back(file, &*source, &*written, &descriptor, digest, buffer)?);
            verified = VerifiedBy::Readback;
        }
        Ok(FilledFile { method, verified, digest })
    }

    fn write_cheapest(
        &self,
        file: &PlannedFile,
        source: &dyn SourceFile,
        temp: &TempName,
        buffer: &mut [u8],
    ) -> Result<WriteResult, Fault> {
        if self.options.clone && file.size > 0 && self.target.clones_from(self.source) {
            // With size 0: a clone needs no reserved space.
            let written = self.target.storage().create(temp, None, 0)?;
            if self.clone(file, temp)? {
                self.observer.bytes(file.size);
                return Ok((Method::Clone, None, written));
            }
        }
        let written = self.target.storage().create(temp, None, file.size)?;
        if self.options.kernel_copy
            && self.options.verification == Verification::Wire
            && self.copy_by_kernel(file, temp)?
        {
            return Ok((Method::Kernel, None, written));
        }
        let digest = self.read_and_write(file, source, &*written, buffer)?;
        Ok((Method::ReadWrite, Some(digest), written))
    }

    /// Clones the file; false if that is not possible.
    fn clone(&self, file: &PlannedFile, temp: &TempName) -> Result<bool, Fault> {
        let Some(from) = self.source.descriptor(&file.source, &file.identity()) else { return Ok(false) };
        let to = self.target.descriptor(temp)?;
        match fs::ioctl_ficlone(&to, &from) {
            Ok(()) => Ok(true),
            // Not possible for this file or this file system; the other methods give better errors.
            Err(errno) => {
                if matches!(errno, Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) {
                    self.target.cannot_clone_from(self.source);
                }
                Ok(false)
            }
        }
    }

    /// Copies with `copy_file_range`; false if that is not possible.
    fn copy_by_kernel(&self, file: &PlannedFile, temp: &TempName) -> Result<bool, Fault> {
        let Some(from) = self.source.descriptor(&file.source, &file.identity()) else { return Ok(false) };
        let to = self.target.descriptor(temp)?;
        let (mut read_at, mut write_at) = (0u64, 0u64);
        while write_at < file.size {
            self.check_cancelled()?;
            let wanted = (file.size - write_at).min(KERNEL_COPY_BYTES as u64) as usize;
            match fs::copy_file_range(&from, Some(&mut read_at), &to, Some(&mut write_at), wanted) {
                Ok(0) if write_at == 0 => return Ok(false),
                Ok(0) => return Err(self.truncated(file, write_at)),
                Ok(copied) => self.observer.bytes(copied as u64),
                Err(Errno::INTR) => {}
                // Not supported between these file systems, or an error that does not tell which side failed:
                // fall back to reading and writing, which does.
                Err(_) if write_at == 0 => return Ok(false),
                Err(errno) => {
                    let doing = format!("copying {} at byte {write_at}", self.source.shown(&file.source));
                    let code = match errno {
                        Errno::NOSPC | Errno::DQUOT => FaultCode::TargetFull,
                        _ => FaultCode::TargetWrite,
                    };
                    return Err(tree::fault(code, doing, errno));
                }
            }
        }
        Ok(true)
    }

    fn read_and_write(
        &self,
        file: &PlannedFile,
        source: &dyn SourceFile,
        target: &dyn TargetFile,
        buffer: &mut [u8],
    ) -> Result<Digest, Fault> {
        let mut hasher = Hasher::new([self.options.digest]);
        let (mut at, mut begun) = (0u64, 0u64);
        while at < file.size {
            self.check_cancelled()?;
            let wanted = (file.size - at).min(buffer.len() as u64) as usize;
            let read = source.read_at(&mut buffer[..wanted], at)?;
            if read < wanted {
                return Err(self.truncated(file, at + read as u64));
            }
            hasher.update(&buffer[..read]);
            target.write_at(&buffer[..read], at)?;
            at += read as u64;
            if at - begun >= WRITEBACK_BYTES {
                target.begin_writeback(begun, at - begun);
                begun = at;
            }
            self.observer.bytes(read as u64);
        }
        single_digest(hasher)
    }

    /// Reads the target back, from disk as far as the kernel lets us, and compares it with the source.
    fn read_back(
        &self,
        file: &PlannedFile,
        source: &dyn SourceFile,
        written: &dyn TargetFile,
        descriptor: &OwnedFd,
        known: Option<Digest>,
        buffer: &mut [u8],
    ) -> Result<Digest, Fault> {
        let of_source = match known {
            Some(digest) => digest,
            None => self.digest(file, &|part, at| source.read_at(part, at), buffer)?,
        };
        written.flush()?;
        let _ = fs::fadvise(descriptor, 0, None, Advice::DontNeed);
        let of_target = self
            .digest(file, &|part, at| written.read_at(part, at), buffer)
            .map_err(|fault| fault.blaming(Blame::Target))?;
        if of_source == of_target {
            return Ok(of_source);
        }
        let text = format!(
            "{} was written as {of_source} and read back as {of_target}",
            self.target.shown(&file.target)
        );
        Err(Fault::new(FaultCode::TargetWrite, text))
    }

    fn digest(&self, file: &PlannedFile, read_at: ReadAt<'_>, buffer: &mut [u8]) -> Result<Digest, Fault> {
        let mut hasher = Hasher::new([self.options.digest]);
        let mut at = 0u64;
        while at < file.size {
            self.check_cancelled()?;
            let wanted = (file.size - at).min(buffer.len() as u64) as usize;
            let read = read_at(&mut buffer[..wanted], at)?;
            if read < wanted {
                return Err(self.truncated(file, at + read as u64));
            }
            hasher.update(&buffer[..read]);
            at += read as u64;
        }
        single_digest(hasher)
    }

    fn truncated(&self, file: &PlannedFile, at: u64) -> Fault {
        let text = format!("{} ends at byte {at} of {}", self.source.shown(&file.source), file.size);
        Fault::new(FaultCode::SourceTruncated, text)
    }

    fn check_cancelled(&self) -> Result<(), Fault> {
        if self.cancel.load(Ordering::Relaxed) { Err(stopped()) } else { Ok(()) }
    }
}

pub(super) fn stopped() -> Fault {
    Fault::new(FaultCode::Cancelled, "stopped; complete files stay, and the same command resumes")
}

/// Takes the only digest out of a hasher.
fn single_digest(hasher: Hasher) -> Result<Digest, Fault> {
    let digests = hasher.finish();
    digests.iter().next().copied().ok_or_else(|| Fault::new(FaultCode::Internal, "no digest was computed"))
}

/// Default digest: computed in hardware everywhere, and combinable from parts in any order.
pub(super) const DIGEST_DEFAULT: Algorithm = Algorithm::Crc32c;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Decision;
    use longhaul_storage::FlushPolicy;
    use std::sync::Arc;

    /// A target that returns one corrupted byte.
    struct CorruptReads(Box<dyn TargetFile>);

    impl TargetFile for CorruptReads {
        fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
            self.0.write_at(bytes, offset)
        }

        fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
            let read = self.0.read_at(buffer, offset)?;
            buffer[read / 2] ^= 1;
            Ok(read)
        }

        fn begin_writeback(&self, _: u64, _: u64) {}

        fn flush(&self) -> Result<(), Fault> {
            self.0.flush()
        }
    }

    struct IgnoreAll;

    impl Observer for IgnoreAll {
        fn bytes(&self, _: u64) {}
        fn file(&self, _: &PlannedFile, _: &Result<super::super::LocalOutcome, Fault>) {}
        fn directory(&self, _: &crate::walk::DirectoryEntry, _: &Result<(), Fault>) {}
        fn left_out(&self, _: &crate::walk::LeftOutEntry) {}
    }

    /// Promise 2: a disk that stores other bytes than it was given is found, and the target is blamed.
    #[test]
    fn readback_compares() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("f"), vec![7; 3_000_000]).unwrap();
        let tree = Arc::new(SourceTree::open(from.path()).unwrap());
        let target = TargetTree::open(to.path(), FlushPolicy::None).unwrap();
        let path: longhaul_model::Lfn = "f".parse().unwrap();
        let identity = tree.storage().stat(&tree.pfn(&path).unwrap()).unwrap().unwrap();
        let file = PlannedFile {
            tree: Arc::clone(&tree),
            source: path.clone(),
            target: path,
            size: identity.size,
            mtime_ns: identity.mtime_ns,
            inode: identity.inode,
            mode: 0o644,
            decision: Decision::Copy { replaces: false },
            existing: None,
        };
        let (options, cancel) = (LocalOptions::default(), AtomicBool::new(false));
        let work = FileCopy {
            source: &tree,
            target: &target,
            options: &options,
            observer: &IgnoreAll,
            cancel: &cancel,
        };
        let temp = TempName::from_bytes([1; 16]);
        let source = tree.open_file(&file.source, &identity).unwrap();
        let written = target.storage().create(&temp, None, file.size).unwrap();
        let mut buffer = vec![0; BUFFER_BYTES];
        let digest = work.read_and_write(&file, &*source, &*written, &mut buffer).unwrap();
        let descriptor = target.descriptor(&temp).unwrap();
        for known in [None, Some(digest)] {
            let good = work.read_back(&file, &*source, &*written, &descriptor, known, &mut buffer);
            assert_eq!(good, Ok(digest));
        }
        let lying = CorruptReads(written);
        let bad = work.read_back(&file, &*source, &lying, &descriptor, None, &mut buffer).unwrap_err();
        assert_eq!((bad.code, bad.blame), (FaultCode::TargetWrite, Blame::Target), "{bad}");
        target.storage().remove_temp(&temp).unwrap();
    }
}
