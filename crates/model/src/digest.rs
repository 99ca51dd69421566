//! Digests (checksums) of files: values, sets, one-pass hashing with several algorithms, and combination of
//! parts.
//!
//! adler32 and crc32c of a whole file follow from those of its parts, whatever order they arrive in, so
//! chunks are not read twice. blake3, sha256 and md5 need the bytes in order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

use crate::hex::{Hex, decode_into};
use crate::lifecycle::words;

/// A checksum or hash algorithm of catalogs, storages and the wire; serialized by its lower-case name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Adler-32 (RFC 1950): 4 bytes; the usual checksum of grid storages.
    Adler32,
    /// CRC-32C, Castagnoli (RFC 3720): 4 bytes; the checksum of chunks on the wire.
    Crc32c,
    /// BLAKE3: 32 bytes; verifies single chunks through its hash tree.
    Blake3,
    /// SHA-256 (FIPS 180-4): 32 bytes.
    Sha256,
    /// MD5 (RFC 1321): 16 bytes; only for storages that know no other, and no protection against forgery.
    Md5,
}

words!(Algorithm {
    Adler32 = "adler32",
    Crc32c = "crc32c",
    Blake3 = "blake3",
    Sha256 = "sha256",
    Md5 = "md5",
});

impl Algorithm {
    /// Length of a value in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Algorithm::Adler32 | Algorithm::Crc32c => 4,
            Algorithm::Md5 => 16,
            Algorithm::Blake3 | Algorithm::Sha256 => 32,
        }
    }

    /// Whether the value of a whole follows from the values of its parts.
    pub fn combines(self) -> bool {
        matches!(self, Algorithm::Adler32 | Algorithm::Crc32c)
    }
}

/// A digest value with its algorithm; text form `adler32:0a1b2c3d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    value: [u8; 32],
}

impl Digest {
    /// A digest from its value, most significant byte first.
    ///
    /// # Panics
    /// If `value` does not have the length of `algorithm`.
    pub fn new(algorithm: Algorithm, value: &[u8]) -> Self {
        assert!(value.len() == algorithm.bytes(), "a {algorithm} has {} bytes", algorithm.bytes());
        let mut padded = [0; 32];
        padded[..value.len()].copy_from_slice(value);
        Digest { algorithm, value: padded }
    }

    /// An adler32 digest from its number.
    pub fn adler32(value: u32) -> Self {
        Digest::new(Algorithm::Adler32, &value.to_be_bytes())
    }

    /// A crc32c digest from its number.
    pub fn crc32c(value: u32) -> Self {
        Digest::new(Algorithm::Crc32c, &value.to_be_bytes())
    }

    /// The algorithm that the value belongs to.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The value, [`Algorithm::bytes`] long, most significant byte first.
    pub fn value(&self) -> &[u8] {
        &self.value[..self.algorithm.bytes()]
    }

    /// The value as a number; none unless the algorithm has 32 bits.
    pub fn as_u32(&self) -> Option<u32> {
        self.value().try_into().ok().map(u32::from_be_bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm, Hex(self.value()))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, hex) = text.split_once(':').ok_or_else(|| {
            format!("{:?} is no digest: write algorithm:hexadecimal, as in adler32:0a1b2c3d", shortened(text))
        })?;
        let algorithm: Algorithm = kind.parse()?;
        let wrong = || {
            format!(
                "{:?} is no {algorithm}: {} hexadecimal digits are expected",
                shortened(hex),
                2 * algorithm.bytes()
            )
        };
        let mut value = [0u8; 32];
        decode_into(hex, &mut value[..algorithm.bytes()]).ok_or_else(wrong)?;
        // Some storages answer 00000000 for "not computed". No file has it: adler32 of nothing is 00000001.
        if algorithm == Algorithm::Adler32 && value == [0; 32] {
            return Err("adler32:00000000 belongs to no file; the digest was not computed".into());
        }
        Ok(Digest { algorithm, value })
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// At most one digest per algorithm, sorted; text form `adler32:…,crc32c:…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct DigestSet(Vec<Digest>);

impl DigestSet {
    /// Adds a digest; replaces the one of the same algorithm.
    pub fn insert(&mut self, digest: Digest) {
        match self.0.binary_search_by_key(&digest.algorithm, |d| d.algorithm) {
            Ok(place) => self.0[place] = digest,
            Err(place) => self.0.insert(place, digest),
        }
    }

    /// The digest of this algorithm, if there is one.
    pub fn get(&self, algorithm: Algorithm) -> Option<Digest> {
        self.0.iter().find(|d| d.algorithm == algorithm).copied()
    }

    /// All digests, in the order of [`Algorithm`].
    pub fn iter(&self) -> impl Iterator<Item = &Digest> {
        self.0.iter()
    }

    /// Whether there is no digest at all: such a file cannot be verified.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The algorithms of all digests.
    pub fn algorithms(&self) -> impl Iterator<Item = Algorithm> {
        self.0.iter().map(|d| d.algorithm)
    }

    /// The first pair (ours, theirs) of equal algorithm and different value.
    pub fn contradiction(&self, theirs: &DigestSet) -> Option<(Digest, Digest)> {
        self.0.iter().find_map(|ours| {
            theirs.get(ours.algorithm).filter(|other| other != ours).map(|other| (*ours, other))
        })
    }

    /// Whether at least one algorithm is in both sets.
    pub fn comparable(&self, other: &DigestSet) -> bool {
        self.0.iter().any(|d| other.get(d.algorithm).is_some())
    }
}

impl FromIterator<Digest> for DigestSet {
    fn from_iter<I: IntoIterator<Item = Digest>>(digests: I) -> Self {
        let mut set = DigestSet::default();
        digests.into_iter().for_each(|digest| set.insert(digest));
        set
    }
}

impl<'de> Deserialize<'de> for DigestSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Vec::<Digest>::deserialize(deserializer)?;
        let set: DigestSet = list.iter().copied().collect();
        if set.0.len() != list.len() {
            return Err(serde::de::Error::custom("two digests of the same algorithm"));
        }
        Ok(set)
    }
}

impl fmt::Display for DigestSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, digest) in self.0.iter().enumerate() {
            write!(f, "{}{digest}", if place > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for DigestSet {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut set = DigestSet::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let digest: Digest = part.parse()?;
            if set.get(digest.algorithm).is_some() {
                return Err(format!("two {} digests", digest.algorithm));
            }
            set.insert(digest);
        }
        Ok(set)
    }
}

/// Hashes bytes in order with several algorithms in one pass.
pub struct Hasher {
    adler32: Option<simd_adler32::Adler32>,
    crc32c: Option<u32>,
    blake3: Option<Box<blake3::Hasher>>,
    sha256: Option<sha2::Sha256>,
    md5: Option<md5::Md5>,
}

impl Hasher {
    /// A hasher for these algorithms; duplicates count once.
    pub fn new(algorithms: impl IntoIterator<Item = Algorithm>) -> Self {
        let mut hasher = Hasher { adler32: None, crc32c: None, blake3: None, sha256: None, md5: None };
        for algorithm in algorithms {
            match algorithm {
                Algorithm::Adler32 => hasher.adler32 = Some(simd_adler32::Adler32::new()),
                Algorithm::Crc32c => hasher.crc32c = Some(0),
                Algorithm::Blake3 => hasher.blake3 = Some(Box::default()),
                Algorithm::Sha256 => hasher.sha256 = Some(sha2::Sha256::new()),
                Algorithm::Md5 => hasher.md5 = Some(md5::Md5::new()),
            }
        }
        hasher
    }

    /// Hashes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(state) = &mut self.adler32 {
            state.write(bytes);
        }
        if let Some(state) = &mut self.crc32c {
            *state = crc32c::crc32c_append(*state, bytes);
        }
        if let Some(state) = &mut self.blake3 {
            state.update(bytes);
        }
        if let Some(state) = &mut self.sha256 {
            state.update(bytes);
        }
        if let Some(state) = &mut self.md5 {
            state.update(bytes);
        }
    }

    /// The digests of all bytes so far.
    pub fn finish(self) -> DigestSet {
        let adler32 = self.adler32.map(|state| Digest::adler32(state.finish()));
        let crc32c = self.crc32c.map(Digest::crc32c);
        let blake3 = self.blake3.map(|state| Digest::new(Algorithm::Blake3, state.finalize().as_bytes()));
        let sha256 = self.sha256.map(|state| Digest::new(Algorithm::Sha256, &state.finalize()));
        let md5 = self.md5.map(|state| Digest::new(Algorithm::Md5, &state.finalize()));
        [adler32, crc32c, blake3, sha256, md5].into_iter().flatten().collect()
    }
}

/// Fits into the cache of a core beside other data.
const TILE_BYTES: usize = 48 << 10;

/// The combinable digests of a run of bytes, from which those of a whole file follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartDigest {
    /// Length of the run in bytes.
    pub len: u64,
    /// Adler-32 of the run.
    pub adler32: u32,
    /// CRC-32C of the run.
    pub crc32c: u32,
}

impl PartDigest {
    /// The digests of an empty run: the neutral element of [`PartDigest::then`].
    pub const EMPTY: PartDigest = PartDigest { len: 0, adler32: 1, crc32c: 0 };

    /// Hashes `bytes` with both algorithms.
    pub fn compute(bytes: &[u8]) -> Self {
        let mut adler = simd_adler32::Adler32::new();
        let mut crc32c = 0;
        // Tile by tile, so that the second algorithm finds in the cache what the first has read.
        for tile in bytes.chunks(TILE_BYTES) {
            crc32c = crc32c::crc32c_append(crc32c, tile);
            adler.write(tile);
        }
        PartDigest { len: bytes.len() as u64, adler32: adler.finish(), crc32c }
    }

    /// The digests of `self` followed by `next`.
    pub fn then(self, next: PartDigest) -> PartDigest {
        PartDigest {
            len: self.len + next.len,
            adler32: adler32_combine(self.adler32, next.adler32, next.len),
            crc32c: crc32c_combine(self.crc32c, next.crc32c, next.len),
        }
    }

    /// Both digests as a set.
    pub fn digests(self) -> DigestSet {
        [Digest::adler32(self.adler32), Digest::crc32c(self.crc32c)].into_iter().collect()
    }
}

/// The polynomial of crc32c (RFC 3720 appendix B.4), lowest power first.
const CRC32C_POLYNOMIAL: u32 = 0x82f6_3b78;
/// x to the powers 8·2^0, 8·2^1, … modulo the polynomial.
const CRC32C_POWERS: [u32; 64] = {
    let mut powers = [0; 64];
    // x^1, squared three times, is x^8.
    let mut power = 1 << 30;
    let mut at = 0;
    while at < 3 {
        power = crc32c_times(power, power);
        at += 1;
    }
    at = 0;
    while at < 64 {
        powers[at] = power;
        power = crc32c_times(power, power);
        at += 1;
    }
    powers
};

/// The product of two polynomials modulo that of crc32c.
const fn crc32c_times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit > 0 {
        if a & bit > 0 {
            product ^= b;
        }
        b = if b & 1 > 0 { (b >> 1) ^ CRC32C_POLYNOMIAL } else { b >> 1 };
        bit >>= 1;
    }
    product
}

/// crc32c of A‖B from those of A and B: that of A times x^(8·|B|), plus that of B. The library's own function
/// takes 20 µs, as long as the digest of a quarter of a chunk.
pub fn crc32c_combine(first: u32, second: u32, second_len: u64) -> u32 {
    let mut shifted = first;
    for (at, &power) in CRC32C_POWERS.iter().enumerate() {
        if second_len >> at & 1 > 0 {
            shifted = crc32c_times(power, shifted);
        }
    }
    shifted ^ second
}

/// adler32 of A‖B from those of A and B: with a = 1 + Σ bytes and b = Σ of the running a (RFC 1950, section
/// 8.2), a(AB) = a(A) + a(B) − 1 and b(AB) = b(A) + b(B) + |B|·(a(A) − 1), all modulo 65521.
pub fn adler32_combine(first: u32, second: u32, second_len: u64) -> u32 {
    const MODULUS: u64 = 65_521;
    let (a1, b1) = (u64::from(first & 0xffff), u64::from(first >> 16));
    let (a2, b2) = (u64::from(second & 0xffff), u64::from(second >> 16));
    let a = (a1 + a2 + MODULUS - 1) % MODULUS;
    let b = (b1 + b2 + (second_len % MODULUS) * ((a1 + MODULUS - 1) % MODULUS)) % MODULUS;
    ((b << 16) | a) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        let mut hasher = Hasher::new(Algorithm::ALL.iter().copied());
        hasher.update(b"1234");
        hasher.update(b"56789");
        let set = hasher.finish();
        let expect = |text: &str| {
            assert_eq!(set.get(text.parse::<Digest>().unwrap().algorithm()).unwrap().to_string(), text)
        };
        expect("adler32:091e01de");
        expect("crc32c:e3069283");
        expect("md5:25f9e794323b453885f5181f1b624d0b");
        expect("sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225");
        assert_eq!(set.to_string().parse::<DigestSet>().unwrap(), set);
    }

    #[test]
    fn refuses_malformed_digests() {
        for bad in [
            "",
            "adler32",
            "adler32:",
            "adler32:zzzzzzzz",
            "adler32:0",
            "sha1:00",
            "adler32:00000000",
            "adler32:+f+f+f+f",
            "md5:é5f9e794323b453885f5181f1b624d0",
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
        assert!("adler32:00000001,adler32:00000002".parse::<DigestSet>().is_err());
    }

    #[test]
    fn contradictions_are_found() {
        let a: DigestSet = "adler32:00000001,crc32c:00000000".parse().unwrap();
        let b: DigestSet = "crc32c:00000001".parse().unwrap();
        assert!(a.contradiction(&b).is_some());
        assert!(a.comparable(&b));
        assert!(!a.comparable(&"md5:25f9e794323b453885f5181f1b624d0b".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn parts_combine(bytes in proptest::collection::vec(any::<u8>(), 0..5000), cut in 0usize..5000) {
            let cut = cut.min(bytes.len());
            let whole = PartDigest::compute(&bytes);
            let (first, second) = (PartDigest::compute(&bytes[..cut]), PartDigest::compute(&bytes[cut..]));
            prop_assert_eq!(first.then(second), whole);
            let mut hasher = Hasher::new([Algorithm::Adler32, Algorithm::Crc32c]);
            hasher.update(&bytes);
            prop_assert_eq!(hasher.finish(), whole.digests());
        }

        #[test]
        fn crc32c_combines_as_the_library_does(first: u32, second: u32, len in 0usize..1 << 40) {
            prop_assert_eq!(
                crc32c_combine(first, second, len as u64),
                crc32c::crc32c_combine(first, second, len)
            );
        }
    }
}
