//! Points in time: microseconds since 1970-01-01 UTC; in pure crates always an argument.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Microseconds since 1970-01-01 UTC. Prints and parses as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// 1970-01-01 UTC.
    pub const ZERO: Timestamp = Timestamp(0);
    /// The end of time: later than any other timestamp.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// A timestamp from seconds since 1970; saturates.
    pub fn from_seconds(seconds: i64) -> Self {
        Timestamp(seconds.saturating_mul(1_000_000))
    }

    /// Microseconds since 1970.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Seconds since 1970, for arithmetic that tolerates rounding.
    pub fn as_seconds_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// RFC 3339 with six fractional digits and a numeric offset, as programs expect that parse FTS's times.
    pub fn to_micros_text(self) -> String {
        // A time outside the calendar is shown as 1970: programs need a date in any case.
        let at = jiff::Timestamp::from_microsecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let text = format!("{at:.6}");
        format!("{}+00:00", text.trim_end_matches('Z'))
    }

    /// RFC 3339 to the second, rounded up, for people: at this time what they wait for may happen.
    pub fn to_seconds_text(self) -> String {
        let part = self.0.rem_euclid(1_000_000);
        let whole = if part == 0 { self.0 } else { self.0.saturating_add(1_000_000 - part) };
        match jiff::Timestamp::from_microsecond(whole) {
            Ok(at) => format!("{at:.0}"),
            Err(_) => self.to_string(),
        }
    }

    /// Time since `earlier`; zero if `earlier` is later, since clocks may step.
    #[inline]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0) as u64)
    }

    /// This time plus a duration; saturates.
    #[inline]
    pub fn plus(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;
    #[inline]
    fn add(self, by: Duration) -> Timestamp {
        self.plus(by)
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;
    #[inline]
    fn sub(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(at) => write!(f, "{at:.3}"),
            Err(_) => write!(f, "{} µs since 1970", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<jiff::Timestamp>()
            .map(|at| Timestamp(at.as_microsecond()))
            .map_err(|error| format!("not a time like 2026-11-21T14:02:11Z: {error}"))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses_rfc3339_to_the_millisecond() {
        let at = Timestamp(1_763_717_531_123_000);
        assert_eq!(at.to_string(), "2025-11-21T09:32:11.123Z");
        assert_eq!(at.to_string().parse::<Timestamp>().unwrap(), at);
        assert!("yesterday".parse::<Timestamp>().is_err());
    }

    #[test]
    fn times_for_people_are_to_the_second_and_never_early() {
        let second = Timestamp(1_763_717_531_000_000);
        assert_eq!(second.to_seconds_text(), "2025-11-21T09:32:11Z");
        assert_eq!(Timestamp(second.0 + 1).to_seconds_text(), "2025-11-21T09:32:12Z");
        assert_eq!(Timestamp(second.0 + 999_999).to_seconds_text(), "2025-11-21T09:32:12Z");
        assert_eq!(Timestamp(-1).to_seconds_text(), "1970-01-01T00:00:00Z");
        assert_eq!(Timestamp(-1_500_000).to_seconds_text(), "1969-12-31T23:59:59Z");
    }

    #[test]
    fn never_overflows() {
        assert_eq!(Timestamp::MAX.to_seconds_text(), Timestamp::MAX.to_string());
        assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX);
        assert_eq!(Timestamp::ZERO.since(Timestamp::MAX), Duration::ZERO);
    }
}
