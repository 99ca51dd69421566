//! Documents of perfSONAR 5: the results as its pipeline stores them, one per run, in an index per test type.

use longhaul_model::{Fault, Timestamp};
use serde_json::Value;

use super::spread::DOCUMENT;
use super::{
    Harvest, Measurement, PAGE_BYTES_MAX, Path, Reading, Spread, bits_per_s, delay_ms, family_of,
    family_of_number, host, host_pair, mtu,
};
use crate::lenient::{
    address, at, count, document, duration, kind, list, number, seconds_as_ms, text, time, wrong,
};

const WHAT: &str = "document of OpenSearch";

/// Test types whose indices are worth reading.
pub const WANTED: &[&str] = &["throughput", "latency", "latencybg", "rtt", "trace"];

/// One page of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    pub harvest: Harvest,
    /// Documents in it; one with fewer than were asked for is the last.
    pub hits: usize,
    /// `sort` of the last document: what `search_after` wants to hear. None if there was none.
    pub after: Option<Vec<Value>>,
    /// The latest begin of a run in it.
    pub latest: Option<Timestamp>,
}

/// Reads the answer to a search.
pub fn page(bytes: &[u8]) -> Result<Page, Fault> {
    let answer = document(bytes, PAGE_BYTES_MAX, "OpenSearch's answer")?;
    if let Some(error) = at(&answer, "error") {
        let why =
            at(error, "reason").or(Some(error)).and_then(text).unwrap_or_else(|| "it says error".to_owned());
        return Err(wrong("OpenSearch's answer", &why));
    }
    let Some(hits) = at(&answer, "hits.hits").and_then(Value::as_array) else {
        return Err(wrong("OpenSearch's answer", "it has no list hits.hits"));
    };
    let mut page = Page { hits: hits.len(), ..Page::default() };
    for hit in hits {
        let Some(source) = at(hit, "_source") else {
            page.harvest.refuse(wrong(WHAT, "it has no _source"));
            continue;
        };
        page.latest = page.latest.max(at(source, "pscheduler.start_time").and_then(time));
        one(source, &mut page.harvest);
    }
    // Two values, short: what we asked to be sorted by.
    page.after =
        hits.last().and_then(|hit| at(hit, "sort")).and_then(Value::as_array).cloned().filter(|sort| {
            sort.len() <= 4 && sort.iter().all(|value| value.as_str().is_none_or(|text| text.len() <= 512))
        });
    Ok(page)
}

/// Whether an object is such a document.
pub(super) fn looks_like_one(value: &Value) -> bool {
    at(value, "meta.source").is_some() && at(value, "test.type").is_some()
}

/// Adds what one document says; a trace or a delay test says several things.
pub(super) fn one(document: &Value, harvest: &mut Harvest) {
    let Some(kind) = at(document, "test.type").and_then(Value::as_str) else {
        return harvest.refuse(wrong(WHAT, "it has no test.type"));
    };
    if !WANTED.contains(&kind) {
        harvest.unused += 1;
        return;
    }
    match readings(document, kind) {
        Ok(found) => found.into_iter().for_each(|measurement| harvest.add(measurement)),
        Err(why) => harvest.refuse(wrong(&format!("{WHAT} of a {kind} test"), &why)),
    }
}

fn readings(document: &Value, test: &str) -> Result<Vec<Measurement>, String> {
    let spec = |key: &str| host(at(document, &format!("test.spec.{key}")));
    let (source, target) = (
        spec("source").name_first(host_pair(at(document, "meta.source"))),
        spec("dest").name_first(host_pair(at(document, "meta.destination"))),
    );
    if !source.is_known() || !target.is_known() {
        return Err("it does not say between which hosts".to_owned());
    }
    let began = at(document, "pscheduler.start_time").or(at(document, "@timestamp")).and_then(time);
    let began = began.ok_or("it has neither pscheduler.start_time nor @timestamp")?;
    let run = at(document, "pscheduler.run_id").and_then(text);
    let checksum = || at(document, "pscheduler.test_checksum").and_then(text);
    let family = at(document, "meta.ip_version").and_then(family_of_number);
    let measurement = |value| Measurement {
        source: source.clone(),
        target: target.clone(),
        family: family.or(family_of(&source, &target)),
        at: began,
        lasted: at(document, "pscheduler.duration").and_then(duration),
        id: format!(
            "{}/{}/{}",
            run.clone().or_else(checksum).unwrap_or_else(|| format!("{source}>{target}")),
            super::word(&value),
            began.as_micros()
        ),
        tool: at(document, "pscheduler.tool").and_then(text).unwrap_or_default(),
        value,
    };
    if at(document, "result.succeeded").is_some_and(|succeeded| succeeded == &Value::Bool(false)) {
        let why = at(document, "result.error").and_then(text).unwrap_or_else(|| "it failed".to_owned());
        return Ok(vec![measurement(Reading::Failed { why })]);
    }
    let result = at(document, "result").ok_or("it has no result")?;
    let found = result_of(test, result, at(document, "test.spec.parallel"))?;
    Ok(found.into_iter().map(measurement).collect())
}

fn result_of(test: &str, result: &Value, parallel: Option<&Value>) -> Result<Vec<Reading>, String> {
    let mut found = Vec::new();
    match test {
        "throughput" => {
            let rate = at(result, "throughput");
            found.push(Reading::Throughput {
                bits_per_s: rate.and_then(bits_per_s).ok_or_else(|| missing("result.throughput", rate))?,
                retransmits: at(result, "retransmits").and_then(count),
                streams: parallel.and_then(count).and_then(|streams| u32::try_from(streams).ok()),
            });
            found.extend(at(result, "mtu").and_then(mtu).map(|mtu| Reading::PathMtu { mtu }));
        }
        "latency" | "latencybg" => {
            let latency = at(result, "latency");
            let spread = latency.and_then(|latency| {
                at(latency, "histogram")
                    .and_then(Spread::of_lists)
                    .or_else(|| Spread::of_statistics(latency, &DOCUMENT, 1.0))
            });
            found.extend(spread.map(|delay| Reading::Delay {
                delay,
                clock_error_ms:
                    at(result, "max_clock_error").and_then(number).and_then(delay_ms).map(f64::abs),
            }));
            found.extend(loss(result));
        }
        "rtt" => {
            let spread = at(result, "rtt").and_then(|rtt| Spread::of_statistics(rtt, &DOCUMENT, 1e3));
            found.extend(spread.map(|rtt| Reading::RoundTrip { rtt }));
            found.extend(loss(result));
        }
        _ => {
            let hops = at(result, "hop.ip").ok_or_else(|| missing("result.hop.ip", None))?;
            found.push(Reading::Path(Path {
                hops: list(Some(hops)).iter().take(super::HOPS_MAX).map(address).collect(),
                mtu: at(result, "mtu").and_then(mtu),
                rtt_us: at(result, "hop.rtt").and_then(|rtt| {
                    list(Some(rtt)).iter().rev().find_map(seconds_as_ms).map(|ms| (ms * 1e3).round() as u64)
                }),
            }));
        }
    }
    if found.is_empty() { Err("its result says nothing that can be read".to_owned()) } else { Ok(found) }
}

fn missing(path: &str, found: Option<&Value>) -> String {
    match found {
        Some(value) => format!("{path} is {}, which is no such value", kind(value)),
        None => format!("it has no {path}"),
    }
}

fn loss(result: &Value) -> Option<Reading> {
    let (sent, lost) =
        (at(result, "packets.sent").and_then(count)?, at(result, "packets.lost").and_then(count)?);
    (sent > 0 && lost <= sent).then_some(Reading::Loss { sent, lost })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn document_of(kind: &str, result: Value) -> Value {
        json!({"@timestamp": "2026-01-01T00:00:30Z",
            "meta": {"source": {"ip": "192.0.2.10", "hostname": "ps-bw.alpha.example"},
                "destination": {"ip": "198.51.100.20", "hostname": "198.51.100.20"},
                "observer": {"ip": "192.0.2.10", "hostname": "ps-bw.alpha.example"}, "ip_version": 4},
            "test": {"type": kind, "spec": {"dest": "ps-bw.beta.example", "duration": 25, "parallel": 2}},
            "pscheduler": {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:25Z",
                "duration": 25,
                "tool": "iperf3", "run_id": "4f1c", "test_checksum": "abc"},
            "result": result})
    }

    fn read(document: &Value) -> Harvest {
        let mut harvest = Harvest::default();
        one(document, &mut harvest);
        harvest
    }

    #[test]
    fn each_test_type_is_read() {
        let throughput = json!({"succeeded": true, "throughput": 8.123e9, "retransmits": 12, "rtt": 68.9,
            "mss": 8948, "mtu": 9000});
        let harvest = read(&document_of("throughput", throughput));
        let rate = &harvest.measurements[0];
        assert_eq!(
            rate.value,
            Reading::Throughput { bits_per_s: 8.123e9, retransmits: Some(12), streams: Some(2) }
        );
        assert_eq!(
            rate.target.name.as_deref(),
            Some("ps-bw.beta.example"),
            "the name it was configured with"
        );
        assert_eq!(rate.target.address, "198.51.100.20".parse().ok());
        assert_eq!(rate.at, Timestamp::from_seconds(1_767_225_600));
        assert_eq!(harvest.measurements[1].value, Reading::PathMtu { mtu: 9000 });

        let latency = json!({"succeeded": true, "max_clock_error": 0.3, "packets": {"sent": 600, "lost": 6,
            "loss": 0.01},
            "latency": {"min": 34.4, "max": 61, "median": 34.4, "histogram": {"values": [34.4, 34.5, 61.0],
                "counts": [510, 80, 10]}}});
        let harvest = read(&document_of("latencybg", latency));
        let Reading::Delay { delay, clock_error_ms: Some(0.3) } = &harvest.measurements[0].value else {
            panic!()
        };
        assert_eq!((delay.count, delay.p99), (600, Some(61.0)));
        assert_eq!(harvest.measurements[1].value, Reading::Loss { sent: 600, lost: 6 });

        let rtt =
            json!({"succeeded": true, "rtt": {"min": 0.0681, "max": 0.07, "mean": 0.0685, "stddev": 0.0001}});
        let Reading::RoundTrip { rtt } = read(&document_of("rtt", rtt)).measurements[0].value.clone() else {
            panic!()
        };
        assert!((rtt.min - 68.1).abs() < 1e-9 && (rtt.median - 68.5).abs() < 1e-9);

        let trace = json!({"succeeded": true, "mtu": 1500, "hop": {"count": 3, "ip": ["192.0.2.1", null,
            "198.51.100.20"],
            "checksum": "5e88"}});
        let Reading::Path(path) = read(&document_of("trace", trace)).measurements[0].value.clone() else {
            panic!()
        };
        assert_eq!((path.signature().as_str(), path.mtu), ("192.0.2.1,*,198.51.100.20", Some(1500)));
    }

    #[test]
    fn failures_strangers_and_nonsense() {
        let failed =
            read(&document_of("throughput", json!({"succeeded": false, "error": "iperf3: refused"})));
        assert_eq!(failed.measurements[0].value, Reading::Failed { why: "iperf3: refused".into() });
        assert_eq!(read(&document_of("dns", json!({}))).unused, 1);
        for bad in [
            json!({}),
            json!({"throughput": "fast"}),
            json!({"throughput": -1}),
            json!({"throughput": 1e300}),
            json!(3),
        ] {
            assert_eq!(read(&document_of("throughput", bad.clone())).refused, 1, "{bad}");
        }
    }

    #[test]
    fn a_page_says_where_the_next_begins() {
        let hit = |start: &str, id: &str| {
            let mut source = document_of("throughput", json!({"succeeded": true, "throughput": 1e9}));
            source["pscheduler"]["start_time"] = json!(start);
            json!({"_id": id, "_source": source, "sort": [start, id]})
        };
        let answer = json!({"hits": {"total": {"value": 2}, "hits": [
            hit("2026-01-01T00:00:00Z", "a"), hit("2026-01-02T00:00:00Z", "b"), {"_id": "c"}]}});
        let found = page(answer.to_string().as_bytes()).unwrap();
        assert_eq!((found.hits, found.harvest.measurements.len(), found.harvest.refused), (3, 2, 1));
        assert_eq!(found.latest, "2026-01-02T00:00:00Z".parse().ok());
        assert_eq!(found.after, None, "the last hit does not say");
        let answer = json!({"hits": {"hits": [hit("2026-01-01T00:00:00Z", "a")]}});
        let found = page(answer.to_string().as_bytes()).unwrap();
        assert_eq!(found.after, Some(vec![json!("2026-01-01T00:00:00Z"), json!("a")]));
        let error =
            page(br#"{"error":{"reason":"no such index [pscheduler_rtt]"},"status":404}"#).unwrap_err();
        assert!(error.detail.contains("no such index"), "{error}");
        assert!(page(br#"{"hits":7}"#).unwrap_err().detail.contains("hits.hits"));
    }

    proptest! {
        #[test]
        fn damaged_answers_never_panic(kind in 0..WANTED.len(), at in 0usize..2_000, byte: u8,
            cut in 0usize..2_000) {
            let result = json!({"succeeded": true, "throughput": 1, "rtt": {"min": 1, "max": 2, "mean": 1},
                "hop": {"ip": ["192.0.2.1"]}, "packets": {"sent": 1, "lost": 0},
                "latency": {"histogram": {"values": [1], "counts": [2]}}});
            let answer = json!({"hits": {"hits": [{"_source": document_of(WANTED[kind], result), "sort": [1,
                "a"]}]}});
            let mut bytes = answer.to_string().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let keep = if cut < bytes.len() { cut } else { bytes.len() };
            let _ = page(&bytes);
            let _ = page(&bytes[..keep]);
        }
    }
}
