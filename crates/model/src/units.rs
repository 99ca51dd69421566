//! Quantities for people: bytes in SI units, rates and durations, and how to parse sizes from options.

use std::time::Duration;

const STEPS: [(f64, &str); 5] = [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];

fn scaled(value: f64, suffix: &str) -> String {
    for (size, unit) in STEPS {
        // 999.95 MB would print as 1000 MB: move on to the next unit.
        if value >= size * 0.9995 {
            let n = value / size;
            let digits = if n >= 99.95 {
                0
            } else if n >= 9.995 {
                1
            } else {
                2
            };
            return format!("{n:.digits$} {unit}{suffix}");
        }
    }
    format!("{value:.0} B{suffix}")
}

/// Formats bytes with three digits in decimal units: `1.22 TB`.
pub fn bytes(value: u64) -> String {
    scaled(value as f64, "")
}

/// Formats a rate: `812 MB/s`; a dash for a negative or infinite one.
pub fn rate(bytes_per_s: f64) -> String {
    // The sum of no rates is -0.0.
    if bytes_per_s.is_finite() && bytes_per_s >= 0.0 {
        scaled(bytes_per_s.abs(), "/s")
    } else {
        "–".to_owned()
    }
}

/// Formats a number with thousands separators: `1,481`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with what it counts, the noun in one of its forms: `1 file`, `2,000 files`. Every count
/// that stands before a noun is written by it.
pub fn plural(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(value), if value == 1 { one } else { many })
}

/// Formats a duration in at most two units: `24 min`, `3 h 20 min`, `2.3 s`; beyond a year `over 1 year`.
pub fn duration(value: Duration) -> String {
    let seconds = value.as_secs();
    match seconds {
        0 => format!("{} ms", value.as_millis()),
        1..=59 => {
            if seconds < 10 {
                format!("{:.1} s", value.as_secs_f64())
            } else {
                format!("{seconds} s")
            }
        }
        60..=3_599 => pair(seconds / 60, "min", seconds % 60, "s"),
        3_600..=86_399 => pair(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        86_400..=31_535_999 => pair(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
        _ => "over 1 year".to_owned(),
    }
}

fn pair(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 || large >= 10 {
        format!("{large} {large_unit}")
    } else {
        format!("{large} {large_unit} {small} {small_unit}")
    }
}

/// Parses a size in bytes: `64MB`, `1.5 GB`, `256MiB`, `1000`.
///
/// # Errors
/// A text for people that shows the expected form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let bad = || format!("{text:?} is no size: write 64MB, 1.5GB, 256MiB or a number of bytes");
    let number: f64 = number.parse().map_err(|_| bad())?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "p" | "pb" => 1e15,
        "kib" => 1024.0,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        _ => return Err(bad()),
    };
    let value = number * factor;
    if value <= i64::MAX as f64 { Ok(value as u64) } else { Err(bad()) }
}

/// Escapes control and direction characters, so that a hostile name cannot move the cursor or forge a log
/// line.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let hidden = c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}' | '\u{feff}');
        if hidden { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// The beginning of a text from outside, escaped by [`printable`] and at most so many bytes long.
pub fn printable_prefix(text: &str, bytes_max: usize) -> String {
    // What is escaped grows only: the rest cannot be part of the result.
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = printable(&text[..end]);
    let mut end = out.len().min(bytes_max);
    while !out.is_char_boundary(end) {
        end -= 1;
    }
    out.truncate(end);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_people_write() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1_220_000_000_000), "1.22 TB");
        assert_eq!(bytes(999_990_000), "1.00 GB");
        assert_eq!(rate(812e6), "812 MB/s");
        assert_eq!(rate(-0.0), "0 B/s");
        assert_eq!(count(1_234_567), "1,234,567");
        let copies = [0, 1, 2, 12_000].map(|number| plural(number, "copy", "copies"));
        assert_eq!(copies, ["0 copies", "1 copy", "2 copies", "12,000 copies"]);
        assert_eq!(duration(Duration::from_secs(24 * 60)), "24 min");
        assert_eq!(duration(Duration::from_secs(12_000)), "3 h 20 min");
        assert_eq!(duration(Duration::from_millis(2_300)), "2.3 s");
        assert_eq!(printable("a\nb\u{1b}[2J\u{202e}"), "a\\nb\\u{1b}[2J\\u{202e}");
    }

    #[test]
    fn texts_from_outside_are_cut_and_escaped() {
        assert_eq!(printable_prefix("0.1.0", 64), "0.1.0");
        assert_eq!(printable_prefix("a\nb", 64), "a\\nb");
        let long = printable_prefix(&"\u{1b}ü".repeat(100_000), 64);
        assert!(long.len() <= 64 && long.starts_with("\\u{1b}ü"), "{long}");
        assert_eq!(printable_prefix("üü", 3), "ü");
        assert_eq!(printable_prefix("ü", 1), "");
    }

    #[test]
    fn parses_sizes() {
        assert_eq!(parse_bytes("64MB").unwrap(), 64_000_000);
        assert_eq!(parse_bytes("1.5 GB").unwrap(), 1_500_000_000);
        assert_eq!(parse_bytes("256MiB").unwrap(), 268_435_456);
        assert_eq!(parse_bytes("1000").unwrap(), 1000);
        for bad in ["", "MB", "-1", "1 fortnight", "1e400", "9999999PB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
