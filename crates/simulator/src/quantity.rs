//! Rates, sizes and times as people write them in scenarios: `"10 Gbit/s"`, `"1.5 GB"`, `"90 min"`, `"2 %"`;
//! a plain number is in bytes a second, bytes, seconds, or a part of one.

use serde::{Deserialize, Deserializer};

/// The largest rate, size and time taken: what is beyond is a slip, and sums of it would lose their meaning.
const RATE_MAX: f64 = 1e14;
const SIZE_MAX: f64 = 1e15;
const TIME_MAX: f64 = 366.0 * 86_400.0;

/// Bytes a second; above zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);
/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Size(pub f64);
/// Seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Span(pub f64);
/// A part of a whole: 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Share(pub f64);

const DECIMAL: &[(&str, f64)] = &[("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15)];

/// The number in front and the unit behind.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let exponent =
        |at: usize| text[at + 1..].starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
    let end = text
        .char_indices()
        .find(|&(at, c)| {
            !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+' || (c == 'e' && exponent(at)))
        })
        .map_or(text.len(), |(at, _)| at);
    let number: f64 = text[..end].parse().ok()?;
    number.is_finite().then(|| (number, text[end..].trim()))
}

fn scaled(number: f64, unit: &str, endings: &[(&str, f64)]) -> Option<f64> {
    endings.iter().find_map(|(ending, factor)| {
        let prefix = unit.strip_suffix(ending)?;
        let (_, scale) = DECIMAL.iter().find(|(name, _)| *name == prefix)?;
        Some(number * scale * factor)
    })
}

impl Rate {
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || format!("\"{text}\" is no rate: write it like \"10 Gbit/s\" or \"400 MB/s\"");
        let (number, unit) = split(text).ok_or_else(form)?;
        let endings = [("bit/s", 0.125), ("b/s", 0.125), ("bit", 0.125), ("B/s", 1.0)];
        Rate::checked(scaled(number, unit, &endings).ok_or_else(form)?)
    }

    fn checked(value: f64) -> Result<Self, String> {
        match value {
            value if value.is_nan() || value <= 0.0 => {
                Err(format!("a rate of {value} moves nothing: give one above 0"))
            }
            value if value > RATE_MAX => Err(format!("a rate of {value:e} bytes/s is beyond {RATE_MAX:e}")),
            value => Ok(Rate(value)),
        }
    }
}

impl Size {
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || format!("\"{text}\" is no size: write it like \"1.5 GB\"");
        let (number, unit) = split(text).ok_or_else(form)?;
        let value = if unit.is_empty() { Some(number) } else { scaled(number, unit, &[("B", 1.0)]) };
        Size::checked(value.ok_or_else(form)?)
    }

    fn checked(value: f64) -> Result<Self, String> {
        match value {
            value if value.is_nan() || value < 0.0 => Err(format!("a size of {value} bytes cannot be")),
            value if value > SIZE_MAX => Err(format!("a size of {value:e} bytes is beyond {SIZE_MAX:e}")),
            value => Ok(Size(value.round())),
        }
    }
}

impl Span {
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "\"{text}\" is no time: write it like \"150 ms\", \"30 s\", \"5 min\", \"2 h\" or \"3 d\""
            )
        };
        let (number, unit) = split(text).ok_or_else(form)?;
        let factor = match unit {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" | "" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(form()),
        };
        Span::checked(number * factor)
    }

    fn checked(value: f64) -> Result<Self, String> {
        match value {
            value if value.is_nan() || value < 0.0 => Err(format!("a time of {value} s cannot be")),
            value if value > TIME_MAX => Err(format!("a time of {value} s is beyond a year")),
            value => Ok(Span(value)),
        }
    }
}

impl Share {
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || format!("\"{text}\" is no share: write it like \"2 %\" or 0.02");
        let (number, unit) = split(text).ok_or_else(form)?;
        match unit {
            "%" => Share::checked(number / 100.0),
            "" => Share::checked(number),
            _ => Err(form()),
        }
    }

    fn checked(value: f64) -> Result<Self, String> {
        if (0.0..=1.0).contains(&value) {
            Ok(Share(value))
        } else {
            Err(format!("a share of {value} is not within 0 to 1"))
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Text(String),
}

macro_rules! written {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let read = match Written::deserialize(deserializer)? {
                    Written::Number(number) => $name::checked(number),
                    Written::Text(text) => $name::parse(&text),
                };
                read.map_err(serde::de::Error::custom)
            }
        }
    )*};
}
written!(Rate, Size, Span, Share);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        assert_eq!(Rate::parse("10 Gbit/s"), Ok(Rate(1.25e9)));
        assert_eq!(Rate::parse("400MB/s"), Ok(Rate(4e8)));
        assert_eq!(Size::parse("1.5 GB"), Ok(Size(1.5e9)));
        assert_eq!(Size::parse("2e3 MB"), Ok(Size(2e9)));
        assert_eq!(Span::parse("150 ms"), Ok(Span(0.15)));
        assert_eq!(Span::parse("2 h"), Ok(Span(7_200.0)));
        assert_eq!(Share::parse("2 %"), Ok(Share(0.02)));
    }

    #[test]
    fn refuses_the_absurd() {
        for bad in ["", "fast", "0 Gbit/s", "-1 MB/s", "nan MB/s", "inf", "1e300 GB/s", "10 Gbit/s/s", "10"] {
            assert!(Rate::parse(bad).is_err(), "{bad}");
        }
        for bad in ["-1 B", "1 EB", "2 PB", "1 GiB"] {
            assert!(Size::parse(bad).is_err(), "{bad}");
        }
        for bad in ["-1 s", "1 year", "367 d"] {
            assert!(Span::parse(bad).is_err(), "{bad}");
        }
        assert!(Share::parse("101 %").is_err());
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,20}") {
            let _ = (Rate::parse(&text), Size::parse(&text), Span::parse(&text), Share::parse(&text));
        }
    }
}
