//! Points in time as people read them: local clock, no more of the date than is needed.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_model::units;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// `14:02:11` today, `Sat 03:20` within a week, `2026-11-21 03:20` otherwise.
pub fn local(at: Timestamp, now: Timestamp) -> String {
    in_zone(at, now, &jiff::tz::TimeZone::system())
}

/// An expected time: beyond a year nobody means the date.
pub fn expected(at: Timestamp, now: Timestamp) -> String {
    if at.since(now) > YEAR { "in over 1 year".to_owned() } else { local(at, now) }
}

/// As `local`, with how far it is: `14:32:10 (24 min)`.
pub fn ahead(at: Timestamp, now: Timestamp) -> String {
    match at.since(now) {
        Duration::ZERO => local(at, now),
        far if far > YEAR => expected(at, now),
        far => format!("{} ({})", local(at, now), units::duration(far)),
    }
}

/// `3.1 s ago`.
pub fn ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", units::duration(now.since(at)))
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
