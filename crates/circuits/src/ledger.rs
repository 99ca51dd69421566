//! Durable ledger of a link's reservations, a write-ahead log (Mohan et al., ARIES, 1992): written before a
//! provider is asked.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use longhaul_model::{CircuitOrderId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Grant;

/// Our id of a request, which the provider stores with the reservation: an id found there and in no ledger is
/// an orphan. Prints as a UUID in lower case (RFC 9562, version 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub u128);

impl RequestKey {
    /// Derives the id of the `count`th request of the link in the run with this seed.
    pub(crate) fn derive(link: &str, seed: u64, now: Timestamp, count: u64) -> RequestKey {
        let mut hash = blake3::Hasher::new();
        hash.update(link.as_bytes());
        for number in [seed, now.0 as u64, count] {
            hash.update(&number.to_be_bytes());
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        bytes[6] = 0x80 | (bytes[6] & 0x0f);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        RequestKey(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        f.write_str(&parts.join("-"))
    }
}

impl FromStr for RequestKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let dashes = [8, 13, 18, 23];
        let right = text.len() == 36
            && text.bytes().enumerate().all(|(place, byte)| match dashes.contains(&place) {
                true => byte == b'-',
                false => byte.is_ascii_hexdigit(),
            });
        if !right {
            return Err("a request's name is a UUID: 8-4-4-4-12 hexadecimal digits");
        }
        let value = u128::from_str_radix(&text.replace('-', ""), 16);
        value.map(RequestKey).map_err(|_| "a request's name is a UUID")
    }
}

impl Serialize for RequestKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RequestKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Data-plane addresses of a circuit, which a host at each end binds to or dials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitEndpoints {
    /// `host:port`, or a host alone where the port stays.
    pub source: String,
    /// Local address at the target.
    pub target: String,
}

/// A reservation that a provider may hold for us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation {
    pub key: RequestKey,
    pub stage: ReservationStage,
    pub since: Timestamp,
    pub mbit: u64,
    /// End of the reservation, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<CircuitEndpoints>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReservationStage {
    Requested,
    Established,
    /// To be torn down, and retried until confirmed.
    #[serde(rename = "leaving")]
    Releasing,
}

/// Why a link rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CooldownReason {
    /// A request failed, or was not answered.
    Request,
    /// Transfers failed on a circuit, or its endpoints did not answer.
    Transfer,
    /// A person released it.
    Released,
}

/// A time in which no circuit is requested for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cooldown {
    #[serde(rename = "why")]
    pub reason: CooldownReason,
    pub since: Timestamp,
    pub until: Timestamp,
    /// The order that failed with it, which may not have been reported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<CircuitOrderId>,
}

impl Cooldown {
    pub(crate) fn window(&self) -> Duration {
        self.until.since(self.since)
    }
}

/// Durable state of one link, written as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationLedger {
    #[serde(default)]
    pub reservations: Vec<Reservation>,
    #[serde(rename = "rest", default, skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<Cooldown>,
    /// Keys of the circuits that the present one superseded, oldest first.
    #[serde(rename = "instead_of", default, skip_serializing_if = "Vec::is_empty")]
    pub superseded_keys: Vec<RequestKey>,
}

impl Reservation {
    pub(crate) fn granted(self, grant: Grant, now: Timestamp) -> Reservation {
        let Grant { mbit, ends, expires } = grant;
        Reservation {
            stage: ReservationStage::Established,
            since: now,
            mbit,
            expires,
            ends: Some(ends),
            ..self
        }
    }
}

impl ReservationLedger {
    pub fn is_empty(&self) -> bool {
        self.reservations.is_empty() && self.cooldown.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_keys_are_distinct_uuids() {
        let first = RequestKey::derive("alpha→beta", 1, Timestamp(1), 1);
        let text = first.to_string();
        assert_eq!(text.parse(), Ok(first));
        assert_eq!((text.len(), &text[14..15]), (36, "8"));
        assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"), "{text}");
        let others = [
            ("alpha→beta", 1, 1, 2),
            ("alpha→beta", 1, 2, 1),
            ("alpha→beta", 2, 1, 1),
            ("beta→alpha", 1, 1, 1),
        ];
        let differs = |(link, seed, at, count)| RequestKey::derive(link, seed, Timestamp(at), count) != first;
        assert!(others.into_iter().all(differs));
        for wrong in
            ["", "0", "00000000-0000-0000-0000-00000000000g", "000000000-000-0000-0000-000000000000", "é"]
        {
            assert!(wrong.parse::<RequestKey>().is_err(), "{wrong}");
        }
    }
}
