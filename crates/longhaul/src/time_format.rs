//! Formats and parses times for people: local clock, no more of the date than needed.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_model::units;

const HORIZON_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Local time: `14:02:11` today, `Sat 03:20` within a week, `2026-11-21 03:20` otherwise.
pub fn local(at: Timestamp, now: Timestamp) -> String {
    in_zone(at, now, &jiff::tz::TimeZone::system())
}

/// An expected time; beyond a year no date is shown.
pub fn expected(at: Timestamp, now: Timestamp) -> String {
    if at.since(now) > HORIZON_MAX { "in over 1 year".to_owned() } else { local(at, now) }
}

/// Time remaining: `24 min`; none beyond a year.
pub fn time_left(at: Timestamp, now: Timestamp) -> Option<String> {
    let far = at.since(now);
    (far <= HORIZON_MAX).then(|| units::duration(far))
}

/// As `local`, with the remaining time: `14:32:10 (24 min)`.
pub fn ahead(at: Timestamp, now: Timestamp) -> String {
    match time_left(at, now) {
        Some(left) if at > now => format!("{} ({left})", local(at, now)),
        _ => expected(at, now),
    }
}

/// Elapsed time: `3.1 s ago`.
pub fn ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", units::duration(now.since(at)))
}

/// A sentence from the service, safe to print, with its times as in [`local`]: the service does not know the
/// reader's time zone.
pub fn sentence(text: &str, now: Timestamp) -> String {
    sentence_in(text, now, &jiff::tz::TimeZone::system())
}

/// Length of a time as the service writes it: `2026-11-21T14:02:11.000Z`.
const TIME_BYTES: usize = 24;

fn sentence_in(text: &str, now: Timestamp, zone: &jiff::tz::TimeZone) -> String {
    let text = units::printable(text);
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(first) = rest.chars().next() {
        let time = rest.get(..TIME_BYTES).filter(|time| time.starts_with("20") && time.ends_with('Z'));
        let length = match time.and_then(|time| time.parse().ok()) {
            Some(at) => {
                out.push_str(&in_zone(at, now, zone));
                TIME_BYTES
            }
            None => {
                out.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    out
}

/// Parses a typed time: in full, in local time, or as a duration from now.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    parse_in(text, crate::clock::now(), &jiff::tz::TimeZone::system())
}

fn parse_in(text: &str, now: Timestamp, zone: &jiff::tz::TimeZone) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let bad = || {
        let shown = units::printable(text);
        format!(
            "`{shown}` is not a time such as 14:00, \"2026-11-28 14:00\", 2026-11-28T13:00:00Z, or from now: \
                90m, 6h, 2d"
        )
    };
    if let Some(seconds) = parse_span_s(text) {
        return Ok(now + Duration::from_secs(seconds));
    }
    let present = jiff::Timestamp::from_microsecond(now.0).map_err(|_| bad())?.to_zoned(zone.clone());
    let moment = match (text.parse::<jiff::civil::DateTime>(), text.parse::<jiff::civil::Time>()) {
        (Ok(moment), _) => moment.to_zoned(zone.clone()).map_err(|_| bad())?,
        (_, Ok(time)) => {
            let today = present.date().to_datetime(time).to_zoned(zone.clone()).map_err(|_| bad())?;
            // A time of day that has passed means tomorrow.
            if today > present { today } else { today.tomorrow().map_err(|_| bad())? }
        }
        _ => return Err(bad()),
    };
    Ok(Timestamp(moment.timestamp().as_microsecond()))
}

/// Parses a duration in seconds: `90m`, `6h`, `2d`, `30s`.
pub fn parse_span_s(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let each = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    // A century is enough, and sums do not overflow.
    number.parse::<u64>().ok()?.checked_mul(each).filter(|seconds| *seconds < 100 * 366 * 86_400)
}

fn in_zone(at: Timestamp, now: Timestamp, zone: &jiff::tz::TimeZone) -> String {
    let zoned = |at: Timestamp| jiff::Timestamp::from_microsecond(at.0).map(|at| at.to_zoned(zone.clone()));
    let (Ok(moment), Ok(present)) = (zoned(at), zoned(now)) else { return at.to_string() };
    let days = (moment.date() - present.date()).get_days();
    let form = match days {
        0 => "%H:%M:%S",
        -6..=6 => "%a %H:%M",
        _ => "%Y-%m-%d %H:%M",
    };
    moment.strftime(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_type_them() {
        let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(1));
        let now = "2026-11-21T14:02:11Z".parse().unwrap();
        let read = |text: &str| parse_in(text, now, &zone).map(|at| at.to_string());
        assert_eq!(read("2026-11-28T13:00:00Z").unwrap(), read("2026-11-28 14:00").unwrap());
        assert_eq!(read("16:00").unwrap(), read("2026-11-21T15:00:00Z").unwrap());
        assert_eq!(read("15:00").unwrap(), read("2026-11-22T14:00:00Z").unwrap(), "it has passed today");
        assert_eq!(read("90m").unwrap(), read("2026-11-21T15:32:11Z").unwrap());
        for wrong in ["", "soon", "25:00", "-3h", "9999999999999d", "é", "2026-13-01 10:00"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_within_a_sentence_are_local_ones() {
        let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(1));
        let now = "2026-11-21T14:02:11Z".parse().unwrap();
        let by = |time: &str| format!("92 % chance by {time}, as \u{e9}ver; 20Z");
        let show = |time: &str| sentence_in(&by(time), now, &zone);
        assert_eq!(show("2026-11-21T15:30:00.123Z"), by("16:30:00"));
        assert_eq!(show("2026-11-22T09:00:00.000Z"), by("Sun 10:00"));
        for other in ["2026-11-21T15:30:00.123", "2026-99-21T15:30:00.123Z", ""] {
            assert_eq!(show(other), by(other), "what is no time stays");
        }
    }

    #[test]
    fn shows_no_more_of_the_date_than_is_needed() {
        let zone = jiff::tz::TimeZone::UTC;
        let now = "2026-11-21T14:02:11Z".parse().unwrap();
        let show = |text: &str| in_zone(text.parse().unwrap(), now, &zone);
        assert_eq!(show("2026-11-21T23:59:59Z"), "23:59:59");
        assert_eq!(show("2026-11-22T00:00:00Z"), "Sun 00:00");
        assert_eq!(show("2026-12-24T18:00:00Z"), "2026-12-24 18:00");
        assert_eq!(in_zone(Timestamp::MAX, now, &zone), Timestamp::MAX.to_string());
        assert_eq!(expected("2073-11-30T15:18:00Z".parse().unwrap(), now), "in over 1 year");
        assert_eq!(ahead(Timestamp::MAX, now), "in over 1 year");
    }
}
