//! Lenient reading of JSON: numbers as text, times in three forms, absent fields. Every function returns none
//! for what makes no sense.

use std::net::IpAddr;
use std::time::Duration;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Timestamp};
use serde_json::Value;

/// Texts that are kept: host names, error messages. Longer ones are cut.
const TEXT_BYTES_MAX: usize = 255;
/// Year 2200: no measurement is later, and no arithmetic on what is earlier overflows.
const SECONDS_MAX: f64 = 7_258_118_400.0;

/// The whole document, if it is one. `serde_json` ends at 128 levels, so that nesting costs no stack.
pub(crate) fn document(bytes: &[u8], bytes_max: usize, what: &str) -> Result<Value, Fault> {
    if bytes.len() > bytes_max {
        let detail = format!("{what}: {} bytes, at most {bytes_max} are read", bytes.len());
        return Err(Fault::new(FaultCode::TooLarge, detail));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| wrong(what, &format!("no JSON: {error}")).with_source(error))
}

/// A fault that names the document and what is wrong with it.
pub(crate) fn wrong(what: &str, why: &str) -> Fault {
    Fault::new(FaultCode::BadRequest, format!("{what}: {why}"))
}

/// The JSON type of a value, for error texts.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The value at `a.b.c`, if all of it is there.
pub(crate) fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, key| value.get(key)).filter(|value| !value.is_null())
}

pub(crate) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A finite number, also if it came as text.
pub(crate) fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// A count: not negative, not beyond what a `f64` counts exactly.
pub(crate) fn count(value: &Value) -> Option<u64> {
    let number = number(value)?;
    (0.0..=9.0e15).contains(&number).then_some(number as u64)
}

pub(crate) fn text(value: &Value) -> Option<String> {
    let text = value.as_str()?.trim();
    if text.is_empty() {
        return None;
    }
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at))?;
    Some(printable(&text[..end]))
}

/// An address, without the zone of a link-local one.
pub(crate) fn address(value: &Value) -> Option<IpAddr> {
    let text = value.as_str()?.trim();
    text.split('%').next()?.parse().ok()
}

/// Seconds since 1970 as a number or text, or RFC 3339.
pub(crate) fn time(value: &Value) -> Option<Timestamp> {
    if let Some(seconds) = number(value) {
        return (0.0..SECONDS_MAX).contains(&seconds).then_some(Timestamp((seconds * 1e6) as i64));
    }
    let at: Timestamp = value.as_str()?.trim().parse().ok()?;
    (0..(SECONDS_MAX * 1e6) as i64).contains(&at.0).then_some(at)
}

/// Seconds as a number or text, or an ISO 8601 duration such as `PT0.0689S`; days have 24 hours.
pub(crate) fn seconds(value: &Value) -> Option<f64> {
    if let Some(seconds) = number(value) {
        return (0.0..SECONDS_MAX).contains(&seconds).then_some(seconds);
    }
    let text = value.as_str()?.trim();
    if text.len() > 64 {
        return None;
    }
    let span: jiff::Span = text.parse().ok()?;
    let whole = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok()?;
    let seconds = whole.as_secs_f64();
    (0.0..SECONDS_MAX).contains(&seconds).then_some(seconds)
}

pub(crate) fn duration(value: &Value) -> Option<Duration> {
    seconds(value).map(Duration::from_secs_f64)
}

/// Milliseconds from what [`seconds`] reads.
pub(crate) fn seconds_as_ms(value: &Value) -> Option<f64> {
    seconds(value).map(|seconds| seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_times_and_durations_come_in_all_their_forms() {
        assert_eq!(number(&json!("8123.5")), Some(8123.5));
        for bad in [json!("NaN"), json!("inf"), json!([1]), json!("x"), json!(null), json!("1e999")] {
            assert_eq!(number(&bad), None, "{bad}");
        }
        assert_eq!(count(&json!(-1)), None);
        assert_eq!(count(&json!("600")), Some(600));
        let at = Timestamp::from_seconds(1_767_225_600);
        for same in [
            json!(1_767_225_600),
            json!("1767225600"),
            json!("2026-01-01T00:00:00Z"),
            json!("2026-01-01T01:00:00+01:00"),
        ] {
            assert_eq!(time(&same), Some(at), "{same}");
        }
        assert_eq!(time(&json!(1e300)), None);
        assert_eq!(time(&json!(-5)), None);
        assert_eq!(seconds(&json!("PT0.0689S")), Some(0.0689));
        assert_eq!(seconds(&json!("P1DT1M")), Some(86_460.0));
        assert_eq!(seconds(&json!("25")), Some(25.0));
        for bad in [json!("-PT1S"), json!("PT"), json!("P9999999999999Y"), json!({})] {
            assert_eq!(seconds(&bad), None, "{bad}");
        }
    }

    #[test]
    fn texts_are_safe_to_show_and_short() {
        assert!(!text(&json!("a\nb\u{1b}[2J")).unwrap().contains(['\n', '\u{1b}']));
        assert!(text(&json!("ü".repeat(1_000))).unwrap().len() <= 2 * TEXT_BYTES_MAX);
        assert_eq!(text(&json!("  ")), None);
        assert_eq!(address(&json!("fe80::1%eth0")), "fe80::1".parse().ok());
    }
}
