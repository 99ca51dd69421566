//! Tuning plan: the arithmetic of `network::advice` for this host's present settings. Nothing is applied.

use longhaul_network::advice::{
    self, BufferChoice, Ceilings, Family, HostLimits, LargestRequestEffect, PathShape, STREAMS_DEFAULT,
    StreamRate,
};
use serde::Serialize;

use crate::facts::HostFacts;

/// Round trip assumed for an unknown path: across an ocean.
pub const RTT_US_ASSUMED: u64 = 150_000;
/// Rate assumed for an unknown path: that of a common data transfer node.
pub const RATE_BYTES_PER_S_ASSUMED: u64 = 1_250_000_000;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuningPlan {
    pub path: PathShape,
    pub streams: u32,
    /// Bandwidth-delay product.
    pub bdp_bytes: u64,
    /// Buffer of each stream at each end, bookkeeping included.
    pub buffer_bytes: u64,
    /// Missing where this host hides its limits.
    pub send: Option<Direction>,
    pub receive: Option<Direction>,
    /// Settings to change; nothing is applied.
    pub settings: Vec<SysctlLine>,
    pub payload: Vec<Payload>,
    /// Seconds of slow start until a new connection fills the path.
    pub slow_start_s: f64,
    /// Packet loss above which one stream of CUBIC or Reno no longer fills the path.
    pub loss_max: f64,
    /// Packet loss, and the rate of one CUBIC stream at it.
    pub cubic_bytes_per_s_at_loss: Vec<(f64, f64)>,
}

/// Buffers of one direction with the present settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Direction {
    pub ceilings: Ceilings,
    pub setting: LargestRequestEffect,
    pub one_stream: StreamRate,
    /// Streams needed with the larger ceiling.
    pub streams_needed: u64,
    pub choice: BufferChoice,
}

/// One setting, ready for a file in `/etc/sysctl.d`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SysctlLine {
    pub setting: String,
    pub present: Option<String>,
    pub wanted: String,
    pub line: String,
    pub command: String,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Payload {
    pub mtu: u32,
    pub share: f64,
    pub bytes_per_s_max: f64,
}

pub fn path(rate_bytes_per_s: u64, rtt_us: u64) -> PathShape {
    PathShape { rate_bytes_per_s, rtt_us }
}

/// Plans for a path; `streams` defaults to what the engine opens.
pub fn plan(facts: &HostFacts, path: PathShape, streams: Option<u32>) -> TuningPlan {
    let streams = streams.unwrap_or(STREAMS_DEFAULT).max(1);
    let mss = advice::mss_bytes(1_500, Family::Ipv4, true);
    let payload = |mtu| {
        let share = advice::payload_share(mtu, Family::Ipv4, true);
        Payload { mtu, share, bytes_per_s_max: share * path.rate_bytes_per_s as f64 }
    };
    let at_loss = |loss| (loss, advice::cubic_bytes_per_s(mss, path.rtt_us, loss));
    TuningPlan {
        path,
        streams,
        bdp_bytes: path.bdp_bytes(),
        buffer_bytes: path.buffer_bytes(streams),
        send: facts.limits.send().map(|ceilings| direction(path, streams, ceilings)),
        receive: facts.limits.receive().map(|ceilings| direction(path, streams, ceilings)),
        settings: lines(&facts.limits, path, streams, facts.mtu_max()),
        payload: [1_500, 9_000].map(payload).into(),
        slow_start_s: path.slow_start_us(mss) as f64 / 1e6,
        loss_max: advice::loss_for_full_rate(path, mss),
        cubic_bytes_per_s_at_loss: [1e-7, 1e-5, 1e-3].map(at_loss).into(),
    }
}

pub(crate) fn direction(path: PathShape, streams: u32, ceilings: Ceilings) -> Direction {
    Direction {
        ceilings,
        setting: ceilings.largest_request_effect(),
        one_stream: advice::stream_rate(ceilings.autotuned_bytes, path.rtt_us),
        streams_needed: path.streams_needed(ceilings.best_bytes()),
        choice: advice::choose_buffers(path, streams, ceilings),
    }
}

pub(crate) fn lines(limits: &HostLimits, path: PathShape, streams: u32, mtu_max: u32) -> Vec<SysctlLine> {
    let all = advice::advise(limits, path, streams, mtu_max);
    let line = |one: &advice::Advice| SysctlLine {
        setting: one.setting.to_owned(),
        present: one.present.clone(),
        wanted: one.wanted.clone(),
        line: one.sysctl_line(),
        command: one.sysctl_command(),
        why: one.why.clone(),
    };
    all.iter().map(line).collect()
}

/// Parses `150ms`, `0.15s`, `200us` or `12` (milliseconds) to microseconds.
pub fn parse_rtt(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no time: write 150ms, 0.15s or 200us");
    let (number, unit) = split(text).ok_or_else(bad)?;
    let factor = match unit.as_str() {
        "" | "ms" => 1e3,
        "us" | "µs" => 1.0,
        "s" => 1e6,
        _ => return Err(bad()),
    };
    let value = number * factor;
    // No path on this planet takes a minute, nor zero.
    if (1.0..=60e6).contains(&value) { Ok(value.round() as u64) } else { Err(bad()) }
}

/// Parses `10Gbit`, `10Gbit/s`, `10G`, `800Mb/s` or `1.2GB/s` to bytes per second. `b` and no unit are bits,
/// as link rates are given; `B` is bytes.
pub fn parse_bandwidth(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no rate: write 10Gbit, 800Mbit/s or 1.2GB/s");
    let (number, unit) = split(text).ok_or_else(bad)?;
    let unit = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps")).unwrap_or(&unit);
    let (factor, unit) = match unit.chars().next() {
        Some('k' | 'K') => (1e3, &unit[1..]),
        Some('M' | 'm') => (1e6, &unit[1..]),
        Some('G' | 'g') => (1e9, &unit[1..]),
        Some('T' | 't') => (1e12, &unit[1..]),
        _ => (1.0, unit),
    };
    let bits = match unit {
        "" | "b" | "bit" | "bits" => 1.0,
        "B" | "byte" | "bytes" => 8.0,
        _ => return Err(bad()),
    };
    let value = number * factor * bits / 8.0;
    if (1.0..=1e15).contains(&value) { Ok(value.round() as u64) } else { Err(bad()) }
}

fn split(text: &str) -> Option<(f64, String)> {
    let text = text.trim();
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    Some((number.parse().ok()?, unit.trim().to_owned()))
}

/// Formats as `10 Gbit/s`.
pub fn bits(bytes_per_s: u64) -> String {
    let bits = bytes_per_s as f64 * 8.0;
    let (value, unit) = match bits {
        1e12.. => (bits / 1e12, "T"),
        1e9.. => (bits / 1e9, "G"),
        1e6.. => (bits / 1e6, "M"),
        1e3.. => (bits / 1e3, "k"),
        _ => (bits, ""),
    };
    let rounded = (value * 10.0).round() / 10.0;
    format!("{rounded} {unit}bit/s")
}

/// Formats as `150 ms`, `1.5 ms` or `420 µs`.
pub fn milliseconds(us: u64) -> String {
    let ms = us as f64 / 1_000.0;
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{} ms", (ms * 10.0).round() / 10.0),
        _ => format!("{} ms", ms.round()),
    }
}

/// Formats as `4 MiB` where exact, as kernels count; in decimal units otherwise.
pub fn buffer(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{} {unit}", bytes / size),
        None => longhaul_model::units::bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_rates_and_times_as_people_write_them() {
        assert_eq!(parse_rtt("150ms"), Ok(150_000));
        assert_eq!(parse_rtt("0.15 s"), Ok(150_000));
        assert_eq!(parse_rtt("12"), Ok(12_000));
        assert_eq!(parse_rtt("200us"), Ok(200));
        for bad in ["", "ms", "0", "-1ms", "1h", "61s", "1e3ms", "."] {
            assert!(parse_rtt(bad).is_err(), "{bad}");
        }
        for same in ["10Gbit", "10 Gbit/s", "10G", "10Gbps", "1.25GB/s", "10000M"] {
            assert_eq!(parse_bandwidth(same), Ok(1_250_000_000), "{same}");
        }
        for bad in ["", "G", "0", "ten", "10Gfoo", "1e9", "999999999T"] {
            assert!(parse_bandwidth(bad).is_err(), "{bad}");
        }
        assert_eq!(bits(1_250_000_000), "10 Gbit/s");
        assert_eq!(bits(100_000), "800 kbit/s");
        assert_eq!((milliseconds(150_000), milliseconds(420)), ("150 ms".into(), "420 µs".into()));
        assert_eq!(
            (buffer(4 << 20), buffer(131_072), buffer(187_500_000)),
            ("4 MiB".into(), "128 KiB".into(), "188 MB".into())
        );
    }

    #[test]
    fn a_plan_for_an_unknown_host_lists_every_setting() {
        let path = PathShape { rate_bytes_per_s: RATE_BYTES_PER_S_ASSUMED, rtt_us: RTT_US_ASSUMED };
        let plan = plan(&HostFacts::default(), path, None);
        assert_eq!((plan.streams, plan.bdp_bytes), (4, 187_500_000));
        assert!(plan.send.is_none());
        assert!(plan.settings.iter().any(|line| line.line == "net.ipv4.tcp_wmem = 4096 65536 134217728"));
        assert!((plan.payload[0].share - 0.965).abs() < 0.001);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9.a-zA-Z/µ ]{0,12}") {
            let _ = parse_rtt(&text);
            let _ = parse_bandwidth(&text);
        }
    }
}
