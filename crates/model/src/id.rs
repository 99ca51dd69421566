//! Identifiers of two kinds: *row ids* count up within one catalog; *stamped ids* carry their time, sort by
//! it, and are what people see and quote (13 characters of Crockford's base 32).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Timestamp;
use crate::syntax::Syntax;

/// Crockford's base 32: no I, L, O or U, which people misread.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Low bits that count ids within one millisecond.
const COUNTER_BITS: u32 = 21;
/// 2020-01-01: 42 bits of milliseconds from here last until 2159.
const EPOCH_MS: i64 = 1_577_836_800_000;

/// Characters of a stamped id.
const STAMPED_CHARS: usize = 13;

/// How stamped ids are written: 63 bits, so that the first digit is at most 7.
pub const STAMPED_SYNTAX: Syntax =
    Syntax { pattern: "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{12}$", chars_max: STAMPED_CHARS };

fn encode(value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = [0u8; STAMPED_CHARS];
    for (place, slot) in text.iter_mut().enumerate() {
        let shift = 5 * (12 - place) as u32;
        *slot = ALPHABET[((value >> shift) & 31) as usize];
    }
    f.write_str(std::str::from_utf8(&text).unwrap_or_default())
}

fn decode(text: &str) -> Option<u64> {
    if text.len() != STAMPED_CHARS {
        return None;
    }
    let mut value: u64 = 0;
    for byte in text.bytes() {
        let digit = ALPHABET.iter().position(|&c| c == byte.to_ascii_uppercase())? as u64;
        value = value.checked_mul(32)?.checked_add(digit)?;
    }
    (value <= i64::MAX as u64).then_some(value)
}

/// Generates stamped ids that never repeat and never decrease, even when the clock steps back.
#[derive(Debug, Default)]
pub struct IdMaker {
    last: u64,
}

impl IdMaker {
    /// A generator that continues after `last`, the highest id known to be in use (0 if none).
    pub fn after(last: u64) -> Self {
        IdMaker { last }
    }

    /// The next id, stamped with `now` where the clock has not stepped back.
    pub fn next<T: From<u64>>(&mut self, now: Timestamp) -> T {
        let ms = (now.0 / 1000 - EPOCH_MS).max(0) as u64;
        self.last = (self.last + 1).max((ms << COUNTER_BITS) & i64::MAX as u64);
        T::from(self.last)
    }
}

macro_rules! stamped_id {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl From<u64> for $name {
            fn from(value: u64) -> Self { $name(value) }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { encode(self.0, f) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { encode(self.0, f) }
        }
        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                decode(text).map($name).ok_or_else(|| format!(
                    "{text:?} is no id: 13 characters such as 01JD3QW8V0G01 are expected"))
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

stamped_id! {
    /// The intent to bring one file to one storage.
    TransferId,
    /// One try of a transfer; also the name of its lease.
    AttemptId,
    /// One standing wish that data be at a storage.
    SubscriptionId,
    /// Work of an agent that moves no bytes between sites: scan, verify, delete.
    TaskId,
    /// One order to bring files from tape.
    StageId,
    /// One agent, assigned when it joins.
    AgentId,
    /// A person's request or release of a link's circuit.
    CircuitOrderId,
    /// One error shown to a person, to find it in the logs.
    IncidentId,
}

macro_rules! row_id {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl From<u64> for $name {
            fn from(value: u64) -> Self { $name(value) }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
    )*};
}

row_id! {
    /// Row of a dataset in the catalog.
    DatasetId,
    /// Row of a block in the catalog.
    BlockId,
    /// Row of a file in the catalog.
    FileId,
    /// Row of a site in the catalog.
    SiteId,
    /// Row of a storage in the catalog.
    StorageId,
    /// Fencing token of a transfer: grows with every lease, and a report under an older epoch is ignored.
    Epoch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syntax_is_what_the_parser_takes() {
        let pattern = regex_lite::Regex::new(STAMPED_SYNTAX.pattern).unwrap();
        for (text, is_id) in [
            ("01JD3QW8V0G01", true),
            ("01jd3qw8v0g01", true),
            ("7ZZZZZZZZZZZZ", true),
            ("8000000000000", false),
            ("01JD3QW8V0G0", false),
            ("01JD3QW8V0G011", false),
            ("01JD3QW8V0G0I", false),
            ("01JD3QW8V0G0L", false),
            ("01JD3QW8V0G0O", false),
            ("01JD3QW8V0G0u", false),
            ("01JD3QW8V0G0-", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<TransferId>().is_ok(), is_id, "{text}");
            let fits = pattern.is_match(text) && text.len() <= STAMPED_SYNTAX.chars_max;
            assert_eq!(fits, is_id, "{text}");
        }
    }

    #[test]
    fn ids_grow_even_when_the_clock_goes_back() {
        let mut maker = IdMaker::default();
        let first: TransferId = maker.next(Timestamp::from_seconds(1_800_000_000));
        let second: TransferId = maker.next(Timestamp::from_seconds(1_700_000_000));
        assert!(second > first);
        assert_eq!(first.to_string().len(), 13);
        assert_eq!(second.to_string().parse::<TransferId>().unwrap(), second);
    }

    #[test]
    fn refuses_what_is_no_id() {
        for bad in ["", "01JD3QW8V0G0", "01JD3QW8V0G0U", "ZZZZZZZZZZZZZ", "🦀🦀🦀a"] {
            assert!(bad.parse::<TransferId>().is_err(), "{bad}");
        }
    }
}
