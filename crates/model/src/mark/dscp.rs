//! Differentiated services code points (DSCP, RFC 2474) by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const DSCP_MAX: u8 = 63;
/// Names of RFC 2474, 2597, 3246, 5865 and 8622.
const NAMES: &[(&str, u8)] = &[
    ("cs0", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("voice-admit", 44),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// Forwarding class of a packet: six bits of the IPv4 type-of-service or IPv6 traffic-class byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

impl Dscp {
    /// A code point from 0 to 63.
    ///
    /// # Errors
    /// A text for people, if the number is larger than 63.
    pub fn new(point: u8) -> Result<Dscp, String> {
        if point > DSCP_MAX {
            return Err(format!("a DSCP of {point}: at most {DSCP_MAX}"));
        }
        Ok(Dscp(point))
    }

    /// The code point, 0 to 63.
    pub fn point(self) -> u8 {
        self.0
    }

    /// The whole byte of the header; its lower two bits are ECN, which the kernel sets.
    pub fn byte(self) -> u8 {
        self.0 << 2
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, point)| *point == self.0) {
            Some((name, _)) => f.pad(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Dscp {
    type Err = String;
    fn from_str(text: &str) -> Result<Dscp, String> {
        let named = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        if let Some((_, point)) = named {
            return Ok(Dscp(*point));
        }
        let point = text.parse().map_err(|_| {
            format!("{text:?} is no DSCP: a number up to {DSCP_MAX}, or a name such as le, cs1, af11 or ef")
        })?;
        Dscp::new(point)
    }
}

impl Serialize for Dscp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Dscp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_text_that_gives_it_back() {
        for point in 0..=DSCP_MAX {
            let dscp = Dscp::new(point).unwrap();
            assert_eq!(dscp.to_string().parse(), Ok(dscp));
        }
        assert_eq!("LE".parse::<Dscp>().unwrap().byte(), 4);
        assert_eq!("9".parse::<Dscp>().unwrap().to_string(), "9");
        for wrong in ["64", "-1", "best", ""] {
            assert!(wrong.parse::<Dscp>().is_err(), "{wrong}");
        }
    }
}
