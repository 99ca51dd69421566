//! Job ids: UUIDs, as FTS's clients make and compare them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Syntax;
use crate::units::printable;

/// UUID of a job (RFC 9562). Prints in the canonical form, in lower case; parses either case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u128);

/// A hyphen precedes these digits.
const GROUPS: [usize; 4] = [8, 12, 16, 20];

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e] = [96, 80, 64, 48, 0].map(|shift| self.0 >> shift);
        let low = 0xffff;
        write!(f, "{a:08x}-{:04x}-{:04x}-{:04x}-{:012x}", b & low, c & low, d & low, e & 0xffff_ffff_ffff)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl JobId {
    /// How it is written (RFC 9562).
    pub const SYNTAX: Syntax = Syntax {
        pattern: "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$",
        chars_max: 36,
    };
}

impl FromStr for JobId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text.as_bytes()).map(JobId).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            format!(
                "\"{}\" is no job id: a UUID such as d4482976-e57e-11f1-aea5-02fc00000001 is expected",
                printable(&shown)
            )
        })
    }
}

fn parse(text: &[u8]) -> Option<u128> {
    if text.len() != 36 {
        return None;
    }
    let (mut value, mut digits) = (0u128, 0usize);
    let mut hyphen_due = false;
    for &byte in text {
        if hyphen_due != (byte == b'-') {
            return None;
        }
        if byte != b'-' {
            value = (value << 4) | u128::from((byte as char).to_digit(16)?);
            digits += 1;
        }
        hyphen_due = byte != b'-' && GROUPS.contains(&digits);
    }
    (digits == 32).then_some(value)
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_and_parses_as_a_uuid() {
        let text = "d4482976-e57e-11f1-aea5-02fc00000001";
        let id: JobId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(text.to_uppercase().parse::<JobId>().unwrap(), id);
        for bad in [
            "",
            "d4482976e57e11f1aea502fc00000001",
            "d4482976-e57e-11f1-aea502fc-00000001",
            "d4482976-e57e-11f1-aea5-02fc0000000g",
            "d4482976-e57e-11f1-aea5-02fc0000000-",
            "+4482976-e57e-11f1-aea5-02fc00000001",
            "{4482976-e57e-11f1-aea5-02fc0000001}",
        ] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_id_comes_back(value: u128) {
            prop_assert_eq!(JobId(value).to_string().parse::<JobId>().unwrap(), JobId(value));
        }

        #[test]
        fn no_text_breaks_it(text in ".{0,50}") {
            if let Ok(id) = text.parse::<JobId>() {
                prop_assert_eq!(id.to_string(), text.to_lowercase());
            }
        }
    }
}
