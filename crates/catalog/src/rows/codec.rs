//! Column codec: how rows store the types of `model`. A column that cannot be decoded is an error, not a
//! panic.

use std::fmt::Display;
use std::str::FromStr;

use longhaul_model::{Algorithm, Digest, DigestSet, Fault, Timestamp, Verification};

use super::datasets::{VerificationCounts, VerificationState};
use crate::sql::{Result, Row, damaged};

/// A number as databases store it. Ids and sizes never exceed `i64::MAX`; anything else is clamped.
pub(crate) fn number(value: impl Into<u64>) -> i64 {
    i64::try_from(value.into()).unwrap_or(i64::MAX)
}

/// Like [`number`], for ids and other newtypes over `u64`.
macro_rules! key {
    ($id:expr) => {
        $crate::rows::codec::number($id.0)
    };
}
pub(crate) use key;

fn unsigned(at: usize, value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| damaged(at, value))
}

pub(crate) trait Columns {
    fn number(&self, at: usize) -> Result<u64>;
    fn maybe_number(&self, at: usize) -> Result<Option<u64>>;
    fn id<T: From<u64>>(&self, at: usize) -> Result<T>;
    fn time(&self, at: usize) -> Result<Timestamp>;
    fn maybe_time(&self, at: usize) -> Result<Option<Timestamp>>;
    fn parsed<T: FromStr<Err: Display>>(&self, at: usize) -> Result<T>;
    fn json<T: serde::de::DeserializeOwned>(&self, at: usize) -> Result<T>;
    fn fault(&self, at: usize) -> Result<Option<Fault>>;
    fn digests(&self, at: usize) -> Result<DigestSet>;
    fn verification(&self, at: usize) -> Result<VerificationState>;
}

impl Columns for Row<'_> {
    fn number(&self, at: usize) -> Result<u64> {
        unsigned(at, self.get(at)?)
    }

    fn maybe_number(&self, at: usize) -> Result<Option<u64>> {
        let value: Option<i64> = self.get(at)?;
        value.map(|value| unsigned(at, value)).transpose()
    }

    fn id<T: From<u64>>(&self, at: usize) -> Result<T> {
        self.number(at).map(T::from)
    }

    fn time(&self, at: usize) -> Result<Timestamp> {
        self.get(at).map(Timestamp)
    }

    fn maybe_time(&self, at: usize) -> Result<Option<Timestamp>> {
        self.get::<Option<i64>>(at).map(|time| time.map(Timestamp))
    }

    fn parsed<T: FromStr<Err: Display>>(&self, at: usize) -> Result<T> {
        self.text(at)?.parse().map_err(|error| damaged(at, error))
    }

    fn json<T: serde::de::DeserializeOwned>(&self, at: usize) -> Result<T> {
        serde_json::from_str(self.text(at)?).map_err(|error| damaged(at, error))
    }

    fn fault(&self, at: usize) -> Result<Option<Fault>> {
        if self.is_null(at)? { Ok(None) } else { self.json(at).map(Some) }
    }

    fn digests(&self, at: usize) -> Result<DigestSet> {
        decode_digests(self.bytes(at)?).ok_or_else(|| damaged(at, "the bytes are not digests"))
    }

    fn verification(&self, at: usize) -> Result<VerificationState> {
        let value: i64 = self.get(at)?;
        verification_from_number(value).ok_or_else(|| damaged(at, value))
    }
}

/// JSON of a value that always has one.
pub(crate) fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| unreachable!("rows have string keys only: {error}"))
}

pub(crate) fn maybe_json<T: serde::Serialize>(value: Option<&T>) -> Option<String> {
    value.map(to_json)
}

/// Encodes each digest as one byte for its algorithm and the value: 10 bytes instead of 34 for the usual two.
pub(crate) fn encode_digests(digests: &DigestSet) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    for digest in digests.iter() {
        bytes.push(match digest.algorithm() {
            Algorithm::Adler32 => 1,
            Algorithm::Crc32c => 2,
            Algorithm::Blake3 => 3,
            Algorithm::Sha256 => 4,
            Algorithm::Md5 => 5,
        });
        bytes.extend_from_slice(digest.value());
    }
    bytes
}

pub(crate) fn decode_digests(mut bytes: &[u8]) -> Option<DigestSet> {
    let mut digests = DigestSet::default();
    while let Some((&kind, rest)) = bytes.split_first() {
        let algorithm = match kind {
            1 => Algorithm::Adler32,
            2 => Algorithm::Crc32c,
            3 => Algorithm::Blake3,
            4 => Algorithm::Sha256,
            5 => Algorithm::Md5,
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(algorithm.bytes())?;
        digests.insert(Digest::new(algorithm, value));
        bytes = rest;
    }
    Some(digests)
}

pub(crate) fn verification_number(how: VerificationState) -> i64 {
    match how {
        VerificationState::Registered => 0,
        VerificationState::Verified(Verification::Wire) => 1,
        VerificationState::Verified(Verification::EndToEnd) => 2,
        VerificationState::Verified(Verification::Readback) => 3,
    }
}

fn verification_from_number(value: i64) -> Option<VerificationState> {
    Some(match value {
        0 => VerificationState::Registered,
        1 => VerificationState::Verified(Verification::Wire),
        2 => VerificationState::Verified(Verification::EndToEnd),
        3 => VerificationState::Verified(Verification::Readback),
        _ => return None,
    })
}

/// Reads four columns from `first` on: files by the verification of their replicas.
pub(crate) fn verification_counts(row: &Row<'_>, first: usize) -> Result<VerificationCounts> {
    Ok(VerificationCounts {
        registered: row.number(first)?,
        wire: row.number(first + 1)?,
        end_to_end: row.number(first + 2)?,
        readback: row.number(first + 3)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digests_round_trip(adler in 1u32.., crc in any::<Option<u32>>(),
            blake3 in any::<Option<[u8; 32]>>(), md5 in any::<Option<[u8; 16]>>()) {
            let all = [
                Some(Digest::adler32(adler)),
                crc.map(Digest::crc32c),
                blake3.map(|value| Digest::new(Algorithm::Blake3, &value)),
                md5.map(|value| Digest::new(Algorithm::Md5, &value)),
            ];
            let set: DigestSet = all.into_iter().flatten().collect();
            prop_assert_eq!(decode_digests(&encode_digests(&set)), Some(set));
        }

        #[test]
        fn damaged_digests_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(set) = decode_digests(&bytes) {
                prop_assert!(encode_digests(&set).len() <= bytes.len());
            }
        }
    }

    #[test]
    fn verification_numbers_round_trip() {
        for value in 0..4 {
            assert_eq!(verification_number(verification_from_number(value).unwrap()), value);
        }
        assert_eq!(verification_from_number(4), None);
    }
}
