//! Benchmark of AES-128-GCM in records of 16 KiB, 64 per batch: what TLS 1.3 does to every byte, without TLS
//! around it.
//!
//! No secrets: the benchmark key protects nothing, and is sent to the other end in clear text.

use std::hint::black_box;
use std::io;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::{CHUNK_BYTES, Part, Stopwatch, pattern};

pub(super) const KEY_BYTES: usize = 16;
const RECORD_BYTES: usize = 16 << 10;
const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
const SEALED_RECORD_BYTES: usize = HEADER_BYTES + RECORD_BYTES + TAG_BYTES;
/// Size of a sealed chunk.
pub(super) const SEALED_CHUNK_BYTES: usize = CHUNK_BYTES / RECORD_BYTES * SEALED_RECORD_BYTES;

/// One direction of a stream: records are sealed and opened in order.
pub(super) struct Cipher {
    key: LessSafeKey,
    sequence: u64,
}

impl Cipher {
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> io::Result<Cipher> {
        let key = UnboundKey::new(&AES_128_GCM, key).map_err(|_| io::Error::other("an unusable key"))?;
        Ok(Cipher { key: LessSafeKey::new(key), sequence: 0 })
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.sequence.to_be_bytes());
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals a chunk from `plain` into `sealed`.
    pub(super) fn seal(&mut self, plain: &[u8], sealed: &mut [u8]) -> io::Result<()> {
        assert!(plain.len() == CHUNK_BYTES && sealed.len() == SEALED_CHUNK_BYTES, "whole chunks only");
        let records = plain.chunks_exact(RECORD_BYTES).zip(sealed.chunks_exact_mut(SEALED_RECORD_BYTES));
        for (plain, record) in records {
            let nonce = self.nonce();
            let (head, rest) = record.split_at_mut(HEADER_BYTES);
            head.copy_from_slice(&[23, 3, 3, (RECORD_BYTES >> 8) as u8, 0]);
            let (body, tag) = rest.split_at_mut(RECORD_BYTES);
            self.key
                .seal_out_of_place_scatter(nonce, Aad::from(&*head), plain, body, &[], tag)
                .map_err(|_| io::Error::other("a record could not be sealed"))?;
        }
        Ok(())
    }

    /// Opens a sealed chunk in place, and passes each record's plain text to `each`, in order.
    pub(super) fn open(&mut self, sealed: &mut [u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        assert!(sealed.len() == SEALED_CHUNK_BYTES, "whole chunks only");
        for record in sealed.chunks_exact_mut(SEALED_RECORD_BYTES) {
            let nonce = self.nonce();
            let (head, body) = record.split_at_mut(HEADER_BYTES);
            let plain = self
                .key
                .open_in_place(nonce, Aad::from(&*head), body)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a record failed its check"))?;
            each(plain);
        }
        Ok(())
    }
}

/// Seals and opens `bytes` in memory on one thread.
pub fn aes_128_gcm(bytes: u64) -> io::Result<[Part; 2]> {
    let key = [7; KEY_BYTES];
    let (mut sealer, mut opener) = (Cipher::new(&key)?, Cipher::new(&key)?);
    let plain = pattern(CHUNK_BYTES, 2);
    let mut sealed = vec![0; SEALED_CHUNK_BYTES];
    let chunks = bytes.div_ceil(CHUNK_BYTES as u64).max(1);
    let (mut sealing, mut opening) = (super::TimeSpent::default(), super::TimeSpent::default());
    for _ in 0..chunks {
        let watch = Stopwatch::start();
        sealer.seal(black_box(&plain), &mut sealed)?;
        let spent = watch.stop();
        sealing.wall += spent.wall;
        sealing.cpu += spent.cpu;
        let watch = Stopwatch::start();
        opener.open(&mut sealed, |plain| {
            black_box(plain);
        })?;
        let spent = watch.stop();
        opening.wall += spent.wall;
        opening.cpu += spent.cpu;
    }
    let how = "AES-128-GCM, one thread, records of 16 KiB in memory";
    let total = chunks * CHUNK_BYTES as u64;
    Ok([Part::new("seal", how, total, sealing), Part::new("open", how, total, opening)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_chunks_open_and_corrupted_ones_do_not() {
        let key = [3; KEY_BYTES];
        let plain = pattern(CHUNK_BYTES, 9);
        let mut sealed = vec![0; SEALED_CHUNK_BYTES];
        Cipher::new(&key).unwrap().seal(&plain, &mut sealed).unwrap();
        let mut damaged = sealed.clone();
        damaged[100_000] ^= 1;
        let mut opened = Vec::new();
        Cipher::new(&key).unwrap().open(&mut sealed, |record| opened.extend_from_slice(record)).unwrap();
        assert!(opened == plain);
        assert!(Cipher::new(&key).unwrap().open(&mut damaged, |_| {}).is_err());
    }
}
