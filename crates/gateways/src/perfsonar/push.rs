//! Results that measurement hosts push: pScheduler's HTTP archiver with one run, or documents of version 5,
//! one or several.

use longhaul_model::Fault;
use serde_json::Value;

use super::{
    Harvest, Host, Measurement, PUSH_BYTES_MAX, Path, Reading, Spread, Station, bits_per_s, delay_ms,
    documents, family_of, family_of_number, host, mtu, path, word,
};
use crate::lenient::{
    address, at, count, document, duration, kind, list, number, seconds_as_ms, text, time, wrong,
};

const WHAT: &str = "pushed result";

/// Reads a pushed body: one result, one document, or a list of them.
pub fn read(bytes: &[u8]) -> Result<Harvest, Fault> {
    let body = document(bytes, PUSH_BYTES_MAX, WHAT)?;
    let mut harvest = Harvest::default();
    match &body {
        Value::Array(items) => items.iter().for_each(|item| one(item, &mut harvest)),
        Value::Object(_) => one(&body, &mut harvest),
        other => return Err(wrong(WHAT, &format!("an object or a list is expected, not {}", kind(other)))),
    }
    // A sender whose every item makes no sense should hear why.
    match &harvest {
        Harvest { first_fault: Some(fault), unused: 0, measurements, .. } if measurements.is_empty() => {
            Err(fault.clone())
        }
        _ => Ok(harvest),
    }
}

fn one(item: &Value, harvest: &mut Harvest) {
    if documents::looks_like_one(item) {
        return documents::one(item, harvest);
    }
    let Some(test) = at(item, "test.type").and_then(Value::as_str) else {
        return harvest.refuse(wrong(
            WHAT,
            "it has no test.type: neither a result of pScheduler nor a document of perfSONAR 5",
        ));
    };
    if !documents::WANTED.contains(&test) {
        harvest.unused += 1;
        return;
    }
    match run(item, test) {
        Ok(found) => found.into_iter().for_each(|measurement| harvest.add(measurement)),
        Err(why) => harvest.refuse(wrong(&format!("{WHAT} of a {test} test"), &why)),
    }
}

/// One run as pScheduler itself describes it.
fn run(item: &Value, test: &str) -> Result<Vec<Measurement>, String> {
    let participants = list(at(item, "participants"));
    let end = |key: &str, place: usize| {
        host(at(item, &format!("test.spec.{key}"))).or(host(participants.get(place)))
    };
    // Without a source in the test it is the first participant that sends.
    let (source, target) = (end("source", 0), end("dest", 1));
    if !source.is_known() || !target.is_known() {
        return Err(
            "it does not say between which hosts (test.spec.source and dest, participants)".to_owned()
        );
    }
    let reversed = at(item, "test.spec.reverse") == Some(&Value::Bool(true));
    let (source, target) = if reversed && test == "throughput" { (target, source) } else { (source, target) };
    let began = at(item, "schedule.start").and_then(time).ok_or("it has no schedule.start")?;
    let run = at(item, "run.href").and_then(text).and_then(|href| last_segment(&href));
    let tool = at(item, "tool.name").or(at(item, "tool")).and_then(text).unwrap_or_default();
    let family = at(item, "test.spec.ip-version").and_then(family_of_number);
    let measurement = |value| Measurement {
        family: family.or(family_of(&source, &target)),
        at: began,
        lasted: at(item, "schedule.duration").and_then(duration),
        id: format!(
            "{}/{}/{}",
            run.clone().unwrap_or_else(|| format!("{source}>{target}")),
            word(&value),
            began.as_micros()
        ),
        tool: tool.clone(),
        source: source.clone(),
        target: target.clone(),
        value,
    };
    let result = at(item, "result").or(at(item, "result-merged")).ok_or("it has no result")?;
    if at(result, "succeeded") == Some(&Value::Bool(false)) {
        let why = at(result, "error").and_then(text).unwrap_or_else(|| "it failed".to_owned());
        return Ok(vec![measurement(Reading::Failed { why })]);
    }
    let found = readings(test, result, item)?;
    Ok(found.into_iter().map(measurement).collect())
}

fn readings(test: &str, result: &Value, item: &Value) -> Result<Vec<Reading>, String> {
    let mut found = Vec::new();
    match test {
        "throughput" => {
            let summary = at(result, "summary.summary").ok_or("it has no result.summary.summary")?;
            let rate = at(summary, "throughput-bits").and_then(bits_per_s);
            found.push(Reading::Throughput {
                bits_per_s: rate.ok_or("result.summary.summary.throughput-bits is no rate")?,
                retransmits: at(summary, "retransmits").and_then(count),
                streams: at(item, "test.spec.parallel").and_then(count).and_then(|n| u32::try_from(n).ok()),
            });
        }
        "latency" | "latencybg" => {
            let delay = at(result, "histogram-latency").and_then(Spread::of_histogram);
            found.extend(delay.map(|delay| Reading::Delay {
                delay,
                clock_error_ms:
                    at(result, "max-clock-error").and_then(number).and_then(delay_ms).map(f64::abs),
            }));
            found.extend(loss(result, "packets-sent", "packets-lost"));
        }
        "rtt" => {
            found.extend(round_trip(result).map(|rtt| Reading::RoundTrip { rtt }));
            found.extend(loss(result, "sent", "lost"));
        }
        _ => found.push(Reading::Path(traced(result).ok_or("it has no result.paths")?)),
    }
    if found.is_empty() { Err("its result says nothing that can be read".to_owned()) } else { Ok(found) }
}

/// Durations in ISO 8601.
fn round_trip(result: &Value) -> Option<Spread> {
    let read = |key: &str| at(result, key).and_then(seconds_as_ms).and_then(delay_ms);
    let (min, max, mean) = (read("min")?, read("max")?, read("mean")?);
    let received = at(result, "received").and_then(count).unwrap_or_default();
    (min <= mean && mean <= max).then_some(Spread {
        count: received,
        min,
        median: mean,
        mean: Some(mean),
        p95: None,
        p99: None,
        max,
    })
}

fn loss(result: &Value, sent: &str, lost: &str) -> Option<Reading> {
    let (sent, lost) = (at(result, sent).and_then(count)?, at(result, lost).and_then(count)?);
    (sent > 0 && lost <= sent).then_some(Reading::Loss { sent, lost })
}

/// The first of the traced paths: several come of several probes, and differ where routers share load.
fn traced(result: &Value) -> Option<Path> {
    let stations = list(at(result, "paths")).first()?.as_array()?;
    path(stations.iter().enumerate().map(|(place, hop)| Station {
        distance: place + 1,
        address: at(hop, "ip").and_then(address),
        rtt_ms: at(hop, "rtt").and_then(seconds_as_ms),
        mtu: at(hop, "mtu").and_then(mtu),
    }))
}

fn last_segment(href: &str) -> Option<String> {
    href.trim_end_matches('/').rsplit('/').next().filter(|id| !id.is_empty()).map(str::to_owned)
}

impl Host {
    /// The name of the first, the address of the second: what was configured, and what it resolved to.
    pub(super) fn name_first(self, resolved: Host) -> Host {
        Host { name: self.name.or(resolved.name), address: resolved.address.or(self.address) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{FaultCode, Timestamp};
    use longhaul_network::advice::Family;
    use proptest::prelude::*;
    use serde_json::json;

    fn pushed_document(kind: &str, result: Value) -> Value {
        json!({"test": {"type": kind, "spec": {"source": "PS-bw.alpha.example.",
            "dest": "ps-bw.beta.example", "duration": "PT25S",
                "ip-version": 6, "parallel": 4}},
            "tool": {"name": "iperf3", "version": "0.1"}, "participants": ["ps-bw.alpha.example",
                "ps-bw.beta.example"],
            "schedule": {"start": "2026-01-01T01:00:00+01:00", "duration": "PT34S"}, "result": result,
            "task": {"href": "https://ps-bw.alpha.example/pscheduler/tasks/11"},
            "run": {"href": "https://ps-bw.alpha.example/pscheduler/tasks/11/runs/4f1c"}})
    }

    fn pushed(body: &Value) -> Result<Harvest, Fault> {
        read(body.to_string().as_bytes())
    }

    #[test]
    fn each_test_type_is_read() {
        let throughput = json!({"succeeded": true, "intervals": [],
            "summary": {"summary": {"throughput-bits": 8.123e9,
            "throughput-bytes": 25e9, "retransmits": 3, "rtt": 69000}}});
        let harvest = pushed(&pushed_document("throughput", throughput)).unwrap();
        let one = &harvest.measurements[0];
        assert_eq!(one.source.name.as_deref(), Some("ps-bw.alpha.example"));
        assert_eq!((one.family, one.at), (Some(Family::Ipv6), Timestamp::from_seconds(1_767_225_600)));
        assert_eq!(one.lasted, Some(std::time::Duration::from_secs(34)));
        assert!(one.id.starts_with("4f1c/"), "{}", one.id);
        assert!(matches!(
            one.value,
            Reading::Throughput { bits_per_s: 8.123e9, retransmits: Some(3), streams: Some(4), .. }
        ));

        let latency = json!({"histogram-latency": {"34.4": 510, "34.5": 80, "61.0": 10}, "packets-sent": 600,
            "packets-lost": 0, "max-clock-error": 1.5});
        let harvest = pushed(&pushed_document("latency", latency)).unwrap();
        assert!(matches!(
            harvest.measurements[0].value,
            Reading::Delay { delay: Spread { count: 600, .. }, clock_error_ms: Some(1.5) }
        ));
        assert_eq!(harvest.measurements[1].value, Reading::Loss { sent: 600, lost: 0 });

        let rtt = json!({"min": "PT0.0681S", "max": "PT0.07S", "mean": "PT0.0689S", "stddev": "PT0.0001S",
            "sent": 10, "lost": 1, "received": 9});
        let harvest = pushed(&pushed_document("rtt", rtt)).unwrap();
        let Reading::RoundTrip { rtt } = harvest.measurements[0].value.clone() else { panic!() };
        assert!((rtt.median - 68.9).abs() < 1e-9 && rtt.count == 9);

        let trace = json!({"paths": [[{"ip": "2001:db8::1", "rtt": "PT0.0003S", "mtu": 9000},
            {"error": {"code": "?"}},
            {"ip": "2001:db8:2::20", "rtt": "PT0.0689S", "as": {"number": 64500, "owner": "x"},
                "mtu": 1500}]]});
        let harvest = pushed(&pushed_document("trace", trace)).unwrap();
        let Reading::Path(path) = &harvest.measurements[0].value else { panic!() };
        assert_eq!(
            (path.signature().as_str(), path.mtu, path.rtt_us),
            ("2001:db8::1,*,2001:db8:2::20", Some(1500), Some(68_900))
        );
    }

    #[test]
    fn a_run_is_the_same_in_both_forms() {
        let document = json!({"meta": {"source": {"hostname": "ps-bw.alpha.example"},
            "destination": {"hostname": "ps-bw.beta.example"}},
            "test": {"type": "throughput"}, "pscheduler": {"start_time": "2026-01-01T00:00:00Z",
                "run_id": "4f1c"},
            "result": {"succeeded": true, "throughput": 8.123e9}});
        let raw =
            pushed_document("throughput", json!({"summary": {"summary": {"throughput-bits": 8.123e9}}}));
        let harvest = pushed(&json!([raw, document])).unwrap();
        assert_eq!(harvest.measurements[0].id, harvest.measurements[1].id);
    }

    #[test]
    fn a_reversed_test_measured_the_other_way() {
        let mut raw =
            pushed_document("throughput", json!({"summary": {"summary": {"throughput-bits": 1e9}}}));
        raw["test"]["spec"]["reverse"] = json!(true);
        let harvest = pushed(&raw).unwrap();
        assert_eq!(harvest.measurements[0].source.name.as_deref(), Some("ps-bw.beta.example"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (body, why) in [
            (json!(7), "not a number"),
            (json!({}), "no test.type"),
            (pushed_document("throughput", json!({})), "summary"),
            (
                pushed_document("throughput", json!({"summary": {"summary": {"throughput-bits": "quick"}}})),
                "no rate",
            ),
            (
                pushed_document("rtt", json!({"min": "PT2S", "max": "PT1S", "mean": "PT1S"})),
                "nothing that can be read",
            ),
            (json!({"test": {"type": "rtt", "spec": {}}}), "between which hosts"),
        ] {
            let fault = pushed(&body).unwrap_err();
            assert!(fault.detail.contains(why), "{body}: {fault}");
        }
        assert_eq!(read(&vec![b' '; PUSH_BYTES_MAX + 1]).unwrap_err().code, FaultCode::TooLarge);
        // Of several, the good ones count.
        let good = pushed_document("rtt", json!({"min": "PT0.1S", "max": "PT0.1S", "mean": "PT0.1S"}));
        let harvest = pushed(&json!([{}, good])).unwrap();
        assert_eq!((harvest.measurements.len(), harvest.refused), (1, 1));
        assert_eq!(pushed(&pushed_document("http", json!({}))).unwrap().unused, 1);
    }

    proptest! {
        #[test]
        fn damaged_pushes_never_panic(kind in 0..documents::WANTED.len(), at in 0usize..2_000, byte: u8,
            cut in 0usize..2_000) {
            let result = json!({"summary": {"summary": {"throughput-bits": 1}},
                "histogram-latency": {"1": 1}, "min": "PT1S",
                "max": "PT1S", "mean": "PT1S", "paths": [[{"ip": "192.0.2.1", "rtt": "PT1S", "mtu": 1500}]]});
            let mut bytes = pushed_document(documents::WANTED[kind], result).to_string().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let keep = cut.min(bytes.len());
            let _ = read(&bytes);
            let _ = read(&bytes[..keep]);
        }
    }
}
