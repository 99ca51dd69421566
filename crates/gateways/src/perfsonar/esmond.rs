//! esmond archives: a list of tests with their event types, and for each event type a series of values.
//!
//! Values of one test that belong together (throughput and its retransmits; packets sent and lost) come as
//! series of their own and are put together by their time in [`join`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use longhaul_model::{Fault, Timestamp};
use serde_json::Value;

use super::spread::ESMOND;
use super::{
    Harvest, Host, Measurement, PAGE_BYTES_MAX, Path, Reading, Spread, Station, bits_per_s, delay_ms,
    family_of, host, mtu, path,
};
use crate::lenient::{address, at, count, document, duration, kind, list, number, text, time, wrong};

/// Tests of one answer; archives give 1,000 a page.
pub const TESTS_MAX: usize = 10_000;
/// Event types of one test; there are about 40 in all.
const EVENT_TYPES_MAX: usize = 100;
/// Values of one series: a week of one a minute.
pub const POINTS_MAX: usize = 20_000;

/// What we ask for. Of the others, subintervals say nothing about a path that the whole does not, and rates
/// of loss are recomputed from the counts.
pub const WANTED: &[&str] = &[
    "throughput",
    "packet-retransmits",
    "histogram-owdelay",
    "histogram-rtt",
    "packet-loss-rate",
    "packet-loss-rate-bidir",
    "packet-count-sent",
    "packet-count-lost",
    "packet-trace",
    "path-mtu",
    "failures",
    "time-error-estimates",
];

/// One test: two hosts, a tool, its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    pub key: String,
    pub source: Host,
    pub target: Host,
    pub tool: String,
    pub lasts: Option<std::time::Duration>,
    pub streams: Option<u32>,
    pub event_types: Vec<EventType>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventType {
    pub name: String,
    /// The path of its values on the archive's host.
    pub base_uri: String,
    /// None if there never was a value.
    pub updated: Option<Timestamp>,
    pub summaries: Vec<Summary>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// `average`, `aggregation` or `statistics`.
    pub kind: String,
    pub window_s: u64,
    pub uri: String,
}

/// The tests of a page, how many items it had (a page with fewer than its limit is the last), and what was
/// refused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tests {
    pub tests: Vec<Metadata>,
    pub items: usize,
    pub refused: u64,
    pub first_fault: Option<Fault>,
}

/// One value of a series, not yet read.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub at: Timestamp,
    pub value: Value,
}

/// Reads the answer to a question for tests.
pub fn tests(bytes: &[u8]) -> Result<Tests, Fault> {
    let what = "esmond's list of tests";
    let document = document(bytes, PAGE_BYTES_MAX, what)?;
    let Some(items) = document.as_array() else {
        return Err(wrong(what, &format!("a list is expected, not {}", kind(&document))));
    };
    let mut found = Tests { items: items.len(), ..Tests::default() };
    for (place, item) in items.iter().enumerate() {
        match test(item) {
            Ok(test) if found.tests.len() < TESTS_MAX => found.tests.push(test),
            Ok(_) => found.refuse(wrong(what, &format!("more than {TESTS_MAX}"))),
            Err(why) => found.refuse(wrong(what, &format!("number {place}: {why}"))),
        }
    }
    Ok(found)
}

impl Tests {
    fn refuse(&mut self, fault: Fault) {
        self.refused += 1;
        self.first_fault.get_or_insert(fault);
    }
}

fn test(item: &Value) -> Result<Metadata, &'static str> {
    let end = |name: &str, address: &str| {
        // Addresses are what was measured between; the name is what a mapping is made for.
        host(at(item, name)).or(host(at(item, address)))
    };
    let test = Metadata {
        key: at(item, "metadata-key").and_then(text).ok_or("it has no metadata-key")?,
        source: end("input-source", "source"),
        target: end("input-destination", "destination"),
        tool: at(item, "tool-name").and_then(text).unwrap_or_default(),
        lasts: at(item, "time-duration").and_then(duration),
        streams: at(item, "bw-parallel-streams")
            .and_then(count)
            .and_then(|streams| u32::try_from(streams).ok()),
        event_types: list(at(item, "event-types"))
            .iter()
            .take(EVENT_TYPES_MAX)
            .filter_map(event_type)
            .collect(),
    };
    if !test.source.is_known() || !test.target.is_known() {
        return Err("it does not say between which hosts");
    }
    Ok(test)
}

fn event_type(item: &Value) -> Option<EventType> {
    let summary = |item: &Value| {
        Some(Summary {
            kind: at(item, "summary-type").and_then(text)?,
            window_s: at(item, "summary-window").and_then(count)?,
            uri: at(item, "uri").and_then(text)?,
        })
    };
    Some(EventType {
        name: at(item, "event-type").and_then(text)?,
        base_uri: at(item, "base-uri").and_then(text)?,
        updated: at(item, "time-updated").and_then(time),
        summaries: list(at(item, "summaries")).iter().take(EVENT_TYPES_MAX).filter_map(summary).collect(),
    })
}

/// Reads one series; values without a time are left out, and counted.
pub fn series(bytes: &[u8]) -> Result<(Vec<Point>, u64), Fault> {
    let what = "esmond's series";
    let mut document = document(bytes, PAGE_BYTES_MAX, what)?;
    let Value::Array(items) = &mut document else {
        return Err(wrong(what, &format!("a list is expected, not {}", kind(&document))));
    };
    let all = items.len();
    let point = |item: &mut Value| {
        Some(Point { at: at(item, "ts").and_then(time)?, value: item.get_mut("val").map(Value::take)? })
    };
    let points: Vec<Point> = items.iter_mut().filter_map(point).take(POINTS_MAX).collect();
    let refused = (all - points.len()) as u64;
    Ok((points, refused))
}

/// Values of a series that complete those of another.
type Companion<'a> = BTreeMap<Timestamp, &'a Value>;

/// Joins the series of one test by event type and time.
pub fn join<'a>(test: &Metadata, series: &'a BTreeMap<String, Vec<Point>>) -> Harvest {
    let mut harvest = Harvest::default();
    let of = |name: &str| series.get(name).map_or(&[][..], Vec::as_slice);
    let companion =
        |name: &str| -> Companion<'a> { of(name).iter().map(|point| (point.at, &point.value)).collect() };
    let retransmits = companion("packet-retransmits");
    let clock_errors = companion("time-error-estimates");
    let lost = companion("packet-count-lost");
    let counted = companion("packet-count-sent");
    for (name, points) in series {
        for point in points {
            let with = |companion: &Companion<'a>| companion.get(&point.at).copied();
            let reading = match name.as_str() {
                "throughput" => bits_per_s(&point.value).map(|bits_per_s| Reading::Throughput {
                    bits_per_s,
                    retransmits: with(&retransmits).and_then(count),
                    streams: test.streams,
                }),
                "histogram-owdelay" => spread(&point.value).map(|delay| Reading::Delay {
                    delay,
                    clock_error_ms: with(&clock_errors).and_then(number).and_then(delay_ms).map(f64::abs),
                }),
                "histogram-rtt" => spread(&point.value).map(|rtt| Reading::RoundTrip { rtt }),
                "packet-count-sent" => match with(&lost) {
                    Some(lost) => loss(&point.value, lost),
                    // Without the other count the share may still be there.
                    None => continue,
                },
                "packet-loss-rate" | "packet-loss-rate-bidir"
                    if with(&lost).is_some() && with(&counted).is_some() =>
                {
                    continue;
                }
                "packet-loss-rate" | "packet-loss-rate-bidir" => share(&point.value),
                "packet-trace" => trace(&point.value).map(Reading::Path),
                "path-mtu" => mtu(&point.value).map(|mtu| Reading::PathMtu { mtu }),
                "failures" => Some(Reading::Failed {
                    why: at(&point.value, "error").and_then(text).unwrap_or_else(|| "it failed".to_owned()),
                }),
                "packet-retransmits" | "packet-count-lost" | "time-error-estimates" => continue,
                _ => {
                    harvest.unused += 1;
                    continue;
                }
            };
            match reading {
                Some(value) => harvest.add(measurement(test, name, point.at, value)),
                None => harvest.refuse(wrong(
                    &format!("{name} of {} at {}", test.key, point.at),
                    &format!("{} is no such value", kind(&point.value)),
                )),
            }
        }
    }
    harvest
}

fn measurement(test: &Metadata, event_type: &str, at: Timestamp, value: Reading) -> Measurement {
    Measurement {
        source: test.source.clone(),
        target: test.target.clone(),
        family: family_of(&test.source, &test.target),
        at,
        lasted: test.lasts,
        id: format!("{}/{event_type}/{}", test.key, at.as_micros()),
        tool: test.tool.clone(),
        value,
    }
}

/// A histogram, or the statistics that are published of one.
fn spread(value: &Value) -> Option<Spread> {
    Spread::of_histogram(value).or_else(|| Spread::of_statistics(value, &ESMOND, 1.0))
}

/// Σ lost / Σ sent is the loss of a window; a mean of rates is not, so the counts are kept.
fn loss(sent: &Value, lost: &Value) -> Option<Reading> {
    let (sent, lost) = (count(sent)?, count(lost)?);
    (sent > 0 && lost <= sent).then_some(Reading::Loss { sent, lost })
}

fn share(value: &Value) -> Option<Reading> {
    number(value).filter(|share| (0.0..=1.0).contains(share)).map(|share| Reading::LossShare { share })
}

fn trace(value: &Value) -> Option<Path> {
    let station = |probe: &Value| {
        let found: Option<IpAddr> = at(probe, "ip").and_then(address);
        Some(Station {
            distance: usize::try_from(at(probe, "ttl").and_then(count)?).ok()?,
            address: found,
            rtt_ms: at(probe, "rtt").and_then(number),
            mtu: at(probe, "mtu").and_then(mtu),
        })
    };
    path(value.as_array()?.iter().filter_map(station))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_network::advice::Family;
    use proptest::prelude::*;

    /// As an archive of version 4 gave it.
    pub(crate) const METADATA: &str = r#"[{"metadata-key":"0a1b2c","uri":"/esmond/perfsonar/archive/0a1b2c/",
  "source":"192.0.2.10","destination":"198.51.100.20","measurement-agent":"192.0.2.10",
  "input-source":"ps-bw.alpha.example","input-destination":"ps-bw.beta.example",
  "tool-name":"pscheduler/iperf3","subject-type":"point-to-point","ip-transport-protocol":"tcp",
  "time-duration":"25","event-types":[
   {"event-type":"throughput","base-uri":"/esmond/perfsonar/archive/0a1b2c/throughput/base",
    "time-updated":1767225600,"summaries":[{"summary-type":"average","summary-window":"86400",
     "time-updated":1767225600,"uri":"/esmond/perfsonar/archive/0a1b2c/throughput/averages/86400"}]},
   {"event-type":"packet-retransmits","base-uri":"/esmond/perfsonar/archive/0a1b2c/packet-retransmits/base",
    "time-updated":1767225600,"summaries":[]}]}]"#;

    fn one() -> Metadata {
        tests(METADATA.as_bytes()).unwrap().tests.remove(0)
    }

    fn joined(pairs: &[(&str, &str)]) -> Harvest {
        let all = pairs.iter().map(|(name, json)| ((*name).to_owned(), series(json.as_bytes()).unwrap().0));
        join(&one(), &all.collect())
    }

    #[test]
    fn the_recorded_throughput_gives_two_samples() {
        let test = one();
        assert_eq!(test.event_types[0].summaries[0].window_s, 86_400);
        let harvest = joined(&[
            ("throughput", r#"[{"ts":1767204000,"val":8123000000.0},{"ts":1767225600,"val":640000000}]"#),
            ("packet-retransmits", r#"[{"ts":1767225600,"val":"912"}]"#),
        ]);
        let rates: Vec<_> = harvest.measurements.iter().map(|one| (one.at, one.value.clone())).collect();
        let of = |bits_per_s, retransmits| Reading::Throughput { bits_per_s, retransmits, streams: None };
        assert_eq!(
            rates,
            [
                (Timestamp::from_seconds(1_767_204_000), of(8.123e9, None)),
                (Timestamp::from_seconds(1_767_225_600), of(0.64e9, Some(912))),
            ]
        );
        let first = &harvest.measurements[0];
        assert_eq!(first.source.name.as_deref(), Some("ps-bw.alpha.example"));
        assert_eq!(first.target.address, "198.51.100.20".parse().ok());
        assert_eq!(
            (first.family, first.lasted),
            (Some(Family::Ipv4), Some(std::time::Duration::from_secs(25)))
        );
    }

    #[test]
    fn the_recorded_delays_and_paths_have_the_figures_of_the_reference() {
        let harvest = joined(&[
            ("histogram-owdelay", r#"[{"ts":1767225600,"val":{"34.4":510,"34.5":80,"61.0":10}}]"#),
            ("time-error-estimates", r#"[{"ts":1767225600,"val":0.4}]"#),
            (
                "packet-trace",
                r#"[{"ts":1767225600,"val":[
                    {"ttl":"1","query":"1","ip":"192.0.2.1","rtt":"0.3","mtu":"9000","success":1,
                     "error_message":null},
                    {"ttl":"2","query":"1","ip":null,"rtt":null,"mtu":null,"success":0,
                     "error_message":"requestTimedOut"},
                    {"ttl":"3","query":"1","ip":"198.51.100.20","rtt":"68.9","mtu":"1500","success":1,
                     "error_message":null}]}]"#,
            ),
        ]);
        let [delay, traced] = &harvest.measurements[..] else { panic!("{harvest:?}") };
        let Reading::Delay { delay, clock_error_ms } = &delay.value else { panic!("{delay:?}") };
        assert_eq!((delay.count, delay.min, delay.median, delay.p99), (600, 34.4, 34.4, Some(61.0)));
        assert_eq!(*clock_error_ms, Some(0.4));
        let Reading::Path(path) = &traced.value else { panic!("{traced:?}") };
        assert_eq!(path.signature(), "192.0.2.1,*,198.51.100.20");
        assert_eq!((path.mtu, path.rtt_us), (Some(1500), Some(68_900)));
    }

    #[test]
    fn loss_is_counted_and_a_share_is_taken_only_without_counts() {
        let harvest = joined(&[
            ("packet-count-sent", r#"[{"ts":1,"val":600},{"ts":61,"val":600},{"ts":121,"val":600}]"#),
            ("packet-count-lost", r#"[{"ts":1,"val":3},{"ts":61,"val":900}]"#),
            ("packet-loss-rate", r#"[{"ts":1,"val":0.005},{"ts":121,"val":0.25}]"#),
        ]);
        let values: Vec<_> = harvest.measurements.iter().map(|one| one.value.clone()).collect();
        assert_eq!(values, [Reading::Loss { sent: 600, lost: 3 }, Reading::LossShare { share: 0.25 }]);
        assert_eq!(harvest.refused, 1, "more lost than sent makes no sense");
    }

    #[test]
    fn failures_mtus_summaries_and_strangers() {
        let harvest = joined(&[
            ("failures", r#"[{"ts":1,"val":{"error":"no\nroute"}}]"#),
            ("path-mtu", r#"[{"ts":1,"val":"9000"},{"ts":2,"val":3}]"#),
            (
                "histogram-rtt",
                r#"[{"ts":1,"val":{"minimum":"68.1","maximum":"70","mean":68.5,"median":68.4}}]"#,
            ),
            ("ntp-delay", r#"[{"ts":1,"val":1}]"#),
        ]);
        assert_eq!(harvest.measurements.len(), 3);
        assert_eq!((harvest.unused, harvest.refused), (1, 1));
        assert!(
            harvest
                .measurements
                .iter()
                .any(|one| matches!(&one.value, Reading::Failed { why } if !why.contains('\n')))
        );
    }

    #[test]
    fn what_makes_no_sense_is_counted_or_refused_with_its_place() {
        let found = tests(
            br#"[{"metadata-key":"x"},
                {"metadata-key":"y","source":"192.0.2.1","destination":"192.0.2.2"},7]"#,
        );
        let found = found.unwrap();
        assert_eq!((found.items, found.tests.len(), found.refused), (3, 1, 2));
        assert!(found.first_fault.unwrap().detail.contains("number 0"));
        assert!(
            tests(br#"{"detail":"not found"}"#)
                .unwrap_err()
                .detail
                .contains("a list is expected, not an object")
        );
        assert!(tests(&METADATA.as_bytes()[..200]).unwrap_err().detail.contains("no JSON"));
        assert_eq!(series(br#"[{"ts":"never","val":1},{"val":1},3,{"ts":5,"val":1}]"#).unwrap().1, 3);
        let deep = "[".repeat(100_000);
        assert!(tests(deep.as_bytes()).is_err());
    }

    proptest! {
        /// Cut or changed anywhere, it is read or refused, and what is read stays in bounds.
        #[test]
        fn damaged_metadata_never_panics(cut in 0usize..900, at in 0usize..900, byte: u8) {
            let mut bytes = METADATA.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(cut.max(1));
            if let Ok(found) = tests(&bytes) {
                prop_assert!(found.tests.iter().all(|test| test.source.is_known() && test.target.is_known()));
            }
        }

        #[test]
        fn any_value_of_any_event_type_is_read_or_counted(which in 0..WANTED.len(), value in any_json()) {
            let points = vec![Point { at: Timestamp::from_seconds(1), value }];
            let harvest = join(&one(), &BTreeMap::from([(WANTED[which].to_owned(), points)]));
            for measurement in harvest.measurements {
                if let Reading::Throughput { bits_per_s, .. } = measurement.value {
                    prop_assert!(bits_per_s.is_finite() && bits_per_s >= 0.0);
                }
            }
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<f64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[0-9.eE-]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            let key = prop_oneof![
                Just("ttl".to_owned()),
                Just("ip".to_owned()),
                Just("error".to_owned()),
                "[0-9.-]{1,5}"
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }
}
