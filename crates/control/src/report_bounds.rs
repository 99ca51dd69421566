//! Bounds of what agents report, where it enters: numbers and times become ones that can be, texts are cut
//! and made printable. Nothing is refused here, so that an agent with a wrong clock or a long path goes on.
//! The names of hosts are checked apart, since they are used as addresses.

use std::time::Duration;

use longhaul_api::agent::{Fact, Hello, Outcome, Report};
use longhaul_api::pools::PoolReport;
use longhaul_model::limits::{
    AGENT_STORAGES_MAX, POOL_NAME_BYTES_MAX, REPORTED_AHEAD_S_MAX, REPORTED_BYTES_MAX, REPORTED_STAGED_MAX,
    REPORTED_TEXT_BYTES_MAX, REPORTED_TIMES_MAX, STORAGE_POOLS_MAX, VERSION_BYTES_MAX,
};
use longhaul_model::{Timestamp, units};

/// Brings a whole report into bounds.
pub fn bound_report(report: &mut Report, now: Timestamp) {
    let latest = now.plus(Duration::from_secs(REPORTED_AHEAD_S_MAX));
    if let Some(hello) = &mut report.hello {
        bound_hello(hello);
    }
    for entry in &mut report.entries {
        bound_fact(&mut entry.fact, latest);
    }
    for progress in &mut report.progress {
        bound_bytes(&mut progress.bytes_done);
    }
    for space in &mut report.spaces {
        bound_bytes(&mut space.total_bytes);
        bound_bytes(&mut space.free_bytes);
        space.pools.truncate(STORAGE_POOLS_MAX);
        space.pools.iter_mut().for_each(bound_pool);
    }
    report.fences.truncate(AGENT_STORAGES_MAX);
    report.fences.iter_mut().filter_map(|fence| fence.why_not.as_mut()).for_each(bound_text);
    report.staged.truncate(REPORTED_STAGED_MAX);
    report.staged.iter_mut().filter_map(|staged| staged.why_not.as_mut()).for_each(bound_text);
    for probe in &mut report.probes {
        probe.fault.as_mut().map(bound_text);
        probe.ways.iter_mut().flat_map(|way| &mut way.unknown).for_each(bound_text);
    }
}

fn bound_pool(pool: &mut PoolReport) {
    pool.name = units::printable_prefix(&pool.name, POOL_NAME_BYTES_MAX);
    bound_bytes(&mut pool.total_bytes);
    bound_bytes(&mut pool.free_bytes);
    pool.write_bytes_per_s.as_mut().map(bound_bytes);
    if let Some(drain) = &mut pool.drain {
        bound_bytes(&mut drain.moved_files);
        bound_bytes(&mut drain.stuck_files);
    }
}

fn bound_hello(hello: &mut Hello) {
    hello.version = units::printable_prefix(&hello.version, VERSION_BYTES_MAX);
}

fn bound_fact(fact: &mut Fact, latest: Timestamp) {
    match fact {
        Fact::Outcome(outcome) => bound_outcome(outcome, latest),
        Fact::Scanned { left_out, .. } => {
            for entry in left_out {
                bound_text(&mut entry.path);
                bound_text(&mut entry.detail);
            }
        }
        Fact::Decided { decisions } => {
            for decision in decisions {
                decision.times = decision.times.clamp(1, REPORTED_TIMES_MAX);
                bound_time(&mut decision.since, latest);
                bound_time(&mut decision.at, latest);
            }
        }
        // Names and faults are bounded by their types, the sizes of files where they are registered.
        Fact::Checked { .. } | Fact::TaskDone { .. } => {}
    }
}

fn bound_outcome(outcome: &mut Outcome, latest: Timestamp) {
    bound_bytes(&mut outcome.bytes_moved);
    outcome.bytes_resent = outcome.bytes_resent.min(outcome.bytes_moved);
    let times = &mut outcome.times;
    bound_time(&mut times.received, latest);
    let later = [&mut times.started, &mut times.first_byte, &mut times.last_byte, &mut times.committed];
    later.into_iter().flatten().for_each(|time| bound_time(time, latest));
}

fn bound_bytes(bytes: &mut u64) {
    *bytes = (*bytes).min(REPORTED_BYTES_MAX);
}

fn bound_time(time: &mut Timestamp, latest: Timestamp) {
    *time = (*time).min(latest).max(Timestamp::ZERO);
}

fn bound_text(text: &mut String) {
    *text = units::printable_prefix(text, REPORTED_TEXT_BYTES_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-27T10:00:00Z";

    fn bounded(parts: &str) -> Report {
        let text = format!(
            r#"{{"versions":{{"lowest":1,"highest":3}},"incarnation":{{"number":1,"nonce":1}},"now":"{NOW}",
            {parts}}}"#
        );
        let mut report: Report = serde_json::from_str(&text).unwrap();
        bound_report(&mut report, NOW.parse().unwrap());
        report
    }

    fn outcome(parts: &str) -> Outcome {
        let report = bounded(&format!(
            r#""entries":[{{"sequence":1,"fact":{{"kind":"outcome","attempt":"0000000000001","epoch":1,
            "fault":null,"verification":"wire",{parts}}}}}]"#
        ));
        let Fact::Outcome(outcome) = report.entries[0].fact.clone() else { panic!("{report:?}") };
        outcome
    }

    #[test]
    fn numbers_of_an_outcome_are_ones_that_can_be() {
        let most = u64::MAX;
        let wild = outcome(&format!(
            r#""bytes_moved":{most},"bytes_resent":{most},"times":{{"received":"9999-01-01T00:00:00Z",
            "started":"-000001-01-01T00:00:00Z","first_byte":null,"last_byte":null,
            "committed":"2026-11-27T10:04:00Z"}}"#
        ));
        assert_eq!((wild.bytes_moved, wild.bytes_resent), (REPORTED_BYTES_MAX, REPORTED_BYTES_MAX));
        assert_eq!(wild.times.received, "2026-11-27T10:05:00Z".parse().unwrap());
        assert_eq!(wild.times.started, Some(Timestamp::ZERO));
        assert_eq!(wild.times.committed, Some("2026-11-27T10:04:00Z".parse().unwrap()), "a clock is ahead");
    }

    #[test]
    fn what_honest_agents_report_is_unchanged() {
        // An attempt that never began has the times of none.
        let honest = outcome(
            r#""bytes_moved":70,"bytes_resent":7,"times":{"received":"1970-01-01T00:00:00Z","started":null,
            "first_byte":null,"last_byte":null,"committed":null}"#,
        );
        assert_eq!((honest.bytes_moved, honest.bytes_resent), (70, 7));
        assert_eq!(honest.times.received, Timestamp::ZERO);
    }

    #[test]
    fn decisions_and_rooms_are_bounded() {
        let report = bounded(&format!(
            r#""entries":[{{"sequence":1,"fact":{{"kind":"decided","decisions":[{{"storage":"a",
            "allowed":true,"since":"{NOW}","at":"{NOW}","times":{},"who":"","credential":"","origin":"",
            "operation":"","object":"","why":""}}]}}}}],
            "spaces":[{{"storage":"a","total_bytes":{},"free_bytes":{},"trouble":null}}]"#,
            u64::MAX,
            u64::MAX,
            u64::MAX
        ));
        let Fact::Decided { decisions } = &report.entries[0].fact else { panic!("{report:?}") };
        assert_eq!(decisions[0].times, REPORTED_TIMES_MAX);
        assert_eq!(
            (report.spaces[0].total_bytes, report.spaces[0].free_bytes),
            (REPORTED_BYTES_MAX, REPORTED_BYTES_MAX)
        );
    }

    #[test]
    fn texts_of_a_hello_are_cut_and_printable() {
        let version = serde_json::to_string(&format!("1.0\n\u{1b}[2J{}", "x".repeat(10_000_000))).unwrap();
        let report = bounded(&format!(
            r#""hello":{{"host":"h","version":{version},"data_addresses":[],"storages":[],"held":[]}}"#
        ));
        let version = report.hello.unwrap().version;
        assert!(version.len() <= VERSION_BYTES_MAX && version.starts_with("1.0\\n\\u{1b}[2Jx"), "{version}");
    }
}
