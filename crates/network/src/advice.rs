//! TCP tuning: the bandwidth-delay product of a path (RFC 7323, section 1.1), the socket buffers and streams
//! it needs, throughput models (Mathis 1997, CUBIC RFC 9438), and the host settings that stand in the way.
//!
//! Units: rates are bytes per second of payload, round trips microseconds, buffers bytes as the kernel counts
//! them (payload with its bookkeeping, of which about half is payload). Nothing here reads or changes a
//! setting: the present ones come in as [`HostLimits`], lines for `sysctl` go out as [`Advice`].
//!
//! The kernel bounds a socket's buffer in two ways. With autotuning it grows up to the third value of
//! `tcp_rmem` or `tcp_wmem`. Set by the program (`SO_RCVBUF`, `SO_SNDBUF`) it stays at what was requested, at
//! most `rmem_max` or `wmem_max` (doubled, for the bookkeeping), and does not grow. Either can be the larger
//! one, so setting a buffer helps on one host and hurts on the next: [`Ceilings`] knows which.
//!
//! Start with [`PathShape`]; then [`choose_buffers`] for a socket and [`advise`] for a host.

use serde::{Deserialize, Serialize};

/// Streams of a session by default.
pub const STREAMS_DEFAULT: u32 = 4;
/// More streams for one transfer would be unfair to other users of the path.
pub const STREAMS_MAX: u32 = 16;

/// Largest third value of `tcp_rmem` and `tcp_wmem` ever advised: one socket must not take more.
const AUTOTUNED_BYTES_MAX: u64 = 1 << 30;
/// These settings are signed 32-bit numbers.
const SETTING_MAX: u64 = (1 << 31) - 1;
/// Minimum and initial value of `tcp_rmem` where the present ones are unknown.
const RECEIVE_START: [u64; 2] = [4_096, 131_072];
/// Minimum and initial value of `tcp_wmem` where the present ones are unknown.
const SEND_START: [u64; 2] = [4_096, 65_536];

/// 10 Gbit/s in bytes per second.
const TEN_GBIT: u64 = 1_250_000_000;
/// 1 Gbit/s in bytes per second.
const ONE_GBIT: u64 = 125_000_000;

/// Rate and round trip of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PathShape {
    pub rate_bytes_per_s: u64,
    pub rtt_us: u64,
}

impl PathShape {
    /// Bandwidth-delay product: bytes in flight when the path is full.
    pub fn bdp_bytes(self) -> u64 {
        let product = u128::from(self.rate_bytes_per_s) * u128::from(self.rtt_us);
        u64::try_from(product.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// Buffer that each of `streams` needs at each end, kernel bookkeeping included.
    pub fn buffer_bytes(self, streams: u32) -> u64 {
        let both = u128::from(self.bdp_bytes()) * 2;
        u64::try_from(both.div_ceil(u128::from(streams.max(1)))).unwrap_or(u64::MAX)
    }

    /// Streams needed to fill the path if each has a buffer of `buffer_bytes`.
    pub fn streams_needed(self, buffer_bytes: u64) -> u64 {
        (u128::from(self.bdp_bytes()) * 2).div_ceil(u128::from(buffer_bytes.max(1))).max(1) as u64
    }

    /// Microseconds until a new connection has filled the path, starting with ten segments and doubling.
    pub fn slow_start_us(self, mss_bytes: u32) -> u64 {
        let first = f64::from(mss_bytes.max(1)) * 10.0;
        let doublings = (self.bdp_bytes() as f64 / first).log2().max(0.0);
        (self.rtt_us as f64 * doublings) as u64
    }
}

/// Rate of one stream with a given buffer: guaranteed, and at most (if bookkeeping took none of the buffer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StreamRate {
    #[serde(rename = "sure_bytes_per_s")]
    pub guaranteed_bytes_per_s: u64,
    pub most_bytes_per_s: u64,
}

/// Window-limited rate of one stream: one window per round trip.
pub fn stream_rate(buffer_bytes: u64, rtt_us: u64) -> StreamRate {
    let rate = u128::from(buffer_bytes) * 1_000_000 / u128::from(rtt_us.max(1));
    let most = u64::try_from(rate).unwrap_or(u64::MAX);
    StreamRate { guaranteed_bytes_per_s: most / 2, most_bytes_per_s: most }
}

/// The two bounds of the buffers of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ceilings {
    /// Third value of `tcp_rmem` or `tcp_wmem`: the limit of autotuning.
    pub autotuned_bytes: u64,
    /// `rmem_max` or `wmem_max`: the largest request of a program that is granted.
    pub request_bytes_max: u64,
}

/// Effect on a socket of requesting the largest buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LargestRequestEffect {
    Helps,
    Hurts,
    Same,
}

impl Ceilings {
    /// Buffer that the largest request gets: the kernel doubles it for its bookkeeping.
    pub fn granted_bytes(self) -> u64 {
        self.request_bytes_max.saturating_mul(2)
    }

    /// The larger of autotuned and granted buffer.
    pub fn best_bytes(self) -> u64 {
        self.autotuned_bytes.max(self.granted_bytes())
    }

    /// Whether requesting the largest buffer gets more than autotuning.
    pub fn largest_request_effect(self) -> LargestRequestEffect {
        match self.granted_bytes().cmp(&self.autotuned_bytes) {
            std::cmp::Ordering::Greater => LargestRequestEffect::Helps,
            std::cmp::Ordering::Less => LargestRequestEffect::Hurts,
            std::cmp::Ordering::Equal => LargestRequestEffect::Same,
        }
    }
}

/// Buffer policy for the sockets of a path at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "choice")]
pub enum BufferChoice {
    /// Autotuning grows the buffers far enough.
    LeaveAlone,
    /// Request this many bytes: autotuning would stop short.
    Set { request_bytes: u64 },
    /// No buffer is large enough, but so many streams are, with `request_bytes` if that gets more.
    MoreStreams { streams: u64, request_bytes: Option<u64> },
}

/// Buffer policy: autotuning where it suffices, a request where only that suffices, and more streams where
/// neither does. Requesting buffers by habit switches off autotuning, which mostly works.
pub fn choose_buffers(path: PathShape, streams: u32, ceilings: Ceilings) -> BufferChoice {
    let need = path.buffer_bytes(streams);
    if ceilings.autotuned_bytes >= need {
        return BufferChoice::LeaveAlone;
    }
    if ceilings.granted_bytes() >= need {
        return BufferChoice::Set { request_bytes: need.div_ceil(2) };
    }
    let helps = ceilings.largest_request_effect() == LargestRequestEffect::Helps;
    BufferChoice::MoreStreams {
        streams: path.streams_needed(ceilings.best_bytes()),
        request_bytes: helps.then_some(ceilings.request_bytes_max),
    }
}

/// Address family of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// Maximum segment size: the payload in an IP packet of `mtu` bytes. TCP timestamps (usual) take 12 bytes.
pub fn mss_bytes(mtu: u32, family: Family, timestamps: bool) -> u32 {
    let address = match family {
        Family::Ipv4 => 20,
        Family::Ipv6 => 40,
    };
    mtu.saturating_sub(address + 20 + if timestamps { 12 } else { 0 })
}

/// Share of the bytes on the wire that is payload: no transfer is faster than rate × this.
pub fn payload_share(mtu: u32, family: Family, timestamps: bool) -> f64 {
    if mtu == 0 { 0.0 } else { f64::from(mss_bytes(mtu, family, timestamps)) / f64::from(mtu) }
}

/// Rate of one Reno stream at packet loss `loss` (0 to 1), every packet acknowledged (Mathis, Semke, Mahdavi
/// and Ott, 1997). Infinite without loss.
pub fn mathis_bytes_per_s(mss_bytes: u32, rtt_us: u64, loss: f64) -> f64 {
    let rtt_s = rtt_us.max(1) as f64 / 1e6;
    f64::from(mss_bytes) / rtt_s * 1.5_f64.sqrt() / loss.clamp(0.0, 1.0).sqrt()
}

/// Rate of one CUBIC stream at packet loss `loss` (RFC 9438, section 5); never below Reno's.
pub fn cubic_bytes_per_s(mss_bytes: u32, rtt_us: u64, loss: f64) -> f64 {
    let rtt_s = rtt_us.max(1) as f64 / 1e6;
    let window = 1.054 * (rtt_s / loss.clamp(0.0, 1.0)).powf(0.75);
    (window * f64::from(mss_bytes) / rtt_s).max(mathis_bytes_per_s(mss_bytes, rtt_us, loss))
}

/// Packet loss at which one Reno stream just fills the path. Paths this clean are rare beyond 1 Gbit/s and 50
/// ms, which is why loss rather than buffers mostly calls for several streams.
pub fn loss_for_full_rate(path: PathShape, mss_bytes: u32) -> f64 {
    let rtt_s = path.rtt_us.max(1) as f64 / 1e6;
    let segments = path.rate_bytes_per_s.max(1) as f64 * rtt_s / f64::from(mss_bytes.max(1));
    (1.5 / (segments * segments)).min(1.0)
}

/// Host settings that matter on long paths; none where the host lacks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostLimits {
    /// `net.ipv4.tcp_rmem`: minimum, initial and largest buffer.
    pub tcp_rmem: Option<[u64; 3]>,
    pub tcp_wmem: Option<[u64; 3]>,
    pub rmem_max: Option<u64>,
    pub wmem_max: Option<u64>,
    pub netdev_max_backlog: Option<u64>,
    pub somaxconn: Option<u64>,
    pub tcp_mtu_probing: Option<u64>,
    pub tcp_slow_start_after_idle: Option<u64>,
    pub tcp_no_metrics_save: Option<u64>,
    pub tcp_window_scaling: Option<u64>,
    pub tcp_sack: Option<u64>,
    pub tcp_timestamps: Option<u64>,
    pub tcp_moderate_rcvbuf: Option<u64>,
    pub default_qdisc: Option<String>,
}

impl HostLimits {
    pub fn receive(&self) -> Option<Ceilings> {
        Some(Ceilings { autotuned_bytes: self.tcp_rmem?[2], request_bytes_max: self.rmem_max? })
    }

    pub fn send(&self) -> Option<Ceilings> {
        Some(Ceilings { autotuned_bytes: self.tcp_wmem?[2], request_bytes_max: self.wmem_max? })
    }
}

/// A setting to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Name for `sysctl`.
    pub setting: &'static str,
    /// Present value, if known.
    pub present: Option<String>,
    pub wanted: String,
    pub why: String,
}

impl Advice {
    /// Line for a file in `/etc/sysctl.d`: `net.ipv4.tcp_wmem = 4096 65536 134217728`.
    pub fn sysctl_line(&self) -> String {
        format!("{} = {}", self.setting, self.wanted)
    }

    /// Command that sets it until the next boot: `sysctl -w net.ipv4.tcp_wmem="4096 65536 134217728"`.
    pub fn sysctl_command(&self) -> String {
        format!("sysctl -w {}=\"{}\"", self.setting, self.wanted)
    }
}

/// Third value of `tcp_rmem` and `tcp_wmem` for the path: a power of two, so that small changes of the path
/// do not change the advice.
pub fn autotuning_ceiling(path: PathShape, streams: u32) -> u64 {
    path.buffer_bytes(streams).min(AUTOTUNED_BYTES_MAX).next_power_of_two()
}

/// Advises on each setting of `host` that keeps `streams` streams from filling `path`. Never lowers one.
/// `mtu_max` is the largest MTU of the host's interfaces.
pub fn advise(host: &HostLimits, path: PathShape, streams: u32, mtu_max: u32) -> Vec<Advice> {
    let mut all = Vec::new();
    advise_buffers(host, path, streams, &mut all);
    advise_queues(host, path, &mut all);
    advise_tcp_features(host, path, mtu_max, &mut all);
    all
}

fn advise_buffers(host: &HostLimits, path: PathShape, streams: u32, all: &mut Vec<Advice>) {
    let wanted = autotuning_ceiling(path, streams);
    let lines = [
        ("net.ipv4.tcp_rmem", "receive", host.tcp_rmem, RECEIVE_START),
        ("net.ipv4.tcp_wmem", "send", host.tcp_wmem, SEND_START),
    ];
    for (setting, direction, present, start) in lines {
        if present.is_some_and(|present| present[2] >= path.buffer_bytes(streams).min(AUTOTUNED_BYTES_MAX)) {
            continue;
        }
        let [least, first, _] = present.unwrap_or([start[0], start[1], 0]);
        let first = first.max(start[1]);
        all.push(Advice {
            setting,
            present: present.map(|values| values.map(|value| value.to_string()).join(" ")),
            wanted: format!("{least} {first} {wanted}"),
            why: format!("{direction} buffers grow by themselves as far as the path needs"),
        });
    }
    let requests = [
        ("net.core.rmem_max", host.rmem_max, host.tcp_rmem),
        ("net.core.wmem_max", host.wmem_max, host.tcp_wmem),
    ];
    for (setting, present, growth) in requests {
        // Half would do, since the kernel doubles it; equal numbers are what administrators expect.
        let wanted = wanted.max(growth.map_or(0, |growth| growth[2])).min(SETTING_MAX);
        advise_minimum(
            all,
            setting,
            present,
            wanted,
            "a program that sets its buffers gets no less than one that does not",
        );
    }
}

fn advise_queues(host: &HostLimits, path: PathShape, all: &mut Vec<Advice>) {
    let backlog = match path.rate_bytes_per_s {
        TEN_GBIT.. => 250_000,
        ONE_GBIT.. => 30_000,
        _ => 1_000,
    };
    advise_minimum(
        all,
        "net.core.netdev_max_backlog",
        host.netdev_max_backlog,
        backlog,
        "packets wait when a CPU falls behind for a moment, rather than being dropped",
    );
    advise_minimum(
        all,
        "net.core.somaxconn",
        host.somaxconn,
        4_096,
        "many streams that open at once are accepted at once",
    );
}

fn advise_tcp_features(host: &HostLimits, path: PathShape, mtu_max: u32, all: &mut Vec<Advice>) {
    // Windows above 64 KiB need window scaling (RFC 7323).
    if path.bdp_bytes() > 65_535 {
        advise_minimum(
            all,
            "net.ipv4.tcp_window_scaling",
            host.tcp_window_scaling,
            1,
            "windows may exceed 64 KiB",
        );
    }
    advise_minimum(all, "net.ipv4.tcp_sack", host.tcp_sack, 1, "a lost packet is repeated alone");
    advise_minimum(
        all,
        "net.ipv4.tcp_timestamps",
        host.tcp_timestamps,
        1,
        "round trips are measured, old packets known",
    );
    advise_minimum(
        all,
        "net.ipv4.tcp_moderate_rcvbuf",
        host.tcp_moderate_rcvbuf,
        1,
        "receive buffers grow at all",
    );
    if mtu_max > 1_500 {
        let why = "a hop that drops large packets silently costs a pause, not the connection";
        advise_minimum(all, "net.ipv4.tcp_mtu_probing", host.tcp_mtu_probing, 1, why);
    }
    let why = "one bad transfer does not slow the start of the next";
    advise_minimum(all, "net.ipv4.tcp_no_metrics_save", host.tcp_no_metrics_save, 1, why);
    let mut replace = |setting, present: Option<String>, wanted: &str, why: &str| {
        if present.as_deref() != Some(wanted) {
            all.push(Advice { setting, present, wanted: wanted.into(), why: why.into() });
        }
    };
    let idle = host.tcp_slow_start_after_idle.map(|value| value.to_string());
    let why = "a stream that paused goes on at its rate";
    replace("net.ipv4.tcp_slow_start_after_idle", idle, "0", why);
    let why = "packets are paced and arrive in no bursts";
    replace("net.core.default_qdisc", host.default_qdisc.clone(), "fq", why);
}

fn advise_minimum(
    all: &mut Vec<Advice>,
    setting: &'static str,
    present: Option<u64>,
    wanted: u64,
    why: &str,
) {
    if present.is_none_or(|present| present < wanted) {
        let present = present.map(|present| present.to_string());
        all.push(Advice { setting, present, wanted: wanted.to_string(), why: why.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG_PATH: PathShape = PathShape { rate_bytes_per_s: TEN_GBIT, rtt_us: 150_000 };
    const MIB: u64 = 1 << 20;

    /// A host with small send buffers and a large `wmem_max`.
    fn mistuned() -> HostLimits {
        HostLimits {
            tcp_rmem: Some([4_096, 131_072, 32 * MIB]),
            tcp_wmem: Some([4_096, 16_384, 4 * MIB]),
            rmem_max: Some(4 * MIB),
            wmem_max: Some(256 * MIB),
            ..HostLimits::default()
        }
    }

    #[test]
    fn buffers_and_streams_match_the_bandwidth_delay_product() {
        assert_eq!(LONG_PATH.bdp_bytes(), 187_500_000);
        assert_eq!(LONG_PATH.buffer_bytes(1), 375_000_000);
        assert_eq!(LONG_PATH.streams_needed(64 * MIB), 6);
        assert_eq!(LONG_PATH.streams_needed(4 * MIB), 90);
        assert_eq!(autotuning_ceiling(LONG_PATH, STREAMS_DEFAULT), 134_217_728);
        let rate = stream_rate(4 * MIB, LONG_PATH.rtt_us);
        assert_eq!((rate.guaranteed_bytes_per_s / 1_000_000, rate.most_bytes_per_s / 1_000_000), (13, 27));
        let australia = PathShape { rate_bytes_per_s: ONE_GBIT, rtt_us: 200_000 };
        assert_eq!(australia.bdp_bytes(), 25_000_000);
        // 25 MB from ten segments: 10.8 doublings of 200 ms.
        assert_eq!(australia.slow_start_us(1_448) / 100_000, 21);
    }

    #[test]
    fn the_larger_ceiling_is_chosen_in_both_directions() {
        let host = mistuned();
        let (receive, send) = (host.receive().unwrap(), host.send().unwrap());
        assert_eq!(
            (receive.largest_request_effect(), send.largest_request_effect()),
            (LargestRequestEffect::Hurts, LargestRequestEffect::Helps)
        );
        assert_eq!(send.best_bytes(), 512 * MIB);
        assert_eq!(
            choose_buffers(LONG_PATH, 1, receive),
            BufferChoice::MoreStreams { streams: LONG_PATH.streams_needed(32 * MIB), request_bytes: None }
        );
        assert_eq!(choose_buffers(LONG_PATH, 1, send), BufferChoice::Set { request_bytes: 187_500_000 });
        let short = PathShape { rate_bytes_per_s: ONE_GBIT, rtt_us: 1_000 };
        assert_eq!(choose_buffers(short, 1, send), BufferChoice::LeaveAlone);
    }

    #[test]
    fn lines_can_be_pasted() {
        let lines: Vec<String> =
            advise(&mistuned(), LONG_PATH, 4, 1_500).iter().map(Advice::sysctl_line).collect();
        assert!(lines.contains(&"net.ipv4.tcp_wmem = 4096 65536 134217728".to_owned()), "{lines:?}");
        assert!(lines.contains(&"net.ipv4.tcp_rmem = 4096 131072 134217728".to_owned()), "{lines:?}");
        assert!(lines.contains(&"net.core.rmem_max = 134217728".to_owned()), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("wmem_max")), "256 MiB is enough: {lines:?}");
        assert!(!lines.iter().any(|line| line.contains("mtu_probing")), "no jumbo frames: {lines:?}");
    }

    #[test]
    fn payload_and_loss() {
        assert_eq!(mss_bytes(1_500, Family::Ipv4, true), 1_448);
        assert_eq!(mss_bytes(9_000, Family::Ipv6, true), 8_928);
        assert!((payload_share(1_500, Family::Ipv4, true) - 0.965).abs() < 0.001);
        assert_eq!(payload_share(0, Family::Ipv4, true), 0.0);
        // 1448 bytes, 150 ms, 1e-5: about 30 Mbit/s; six times that with 9000.
        assert!((mathis_bytes_per_s(1_448, 150_000, 1e-5) * 8.0 / 1e6 - 29.9).abs() < 0.2);
        let needed = loss_for_full_rate(PathShape { rate_bytes_per_s: TEN_GBIT, rtt_us: 100_000 }, 1_448);
        assert!((1.9e-10..2.1e-10).contains(&needed), "{needed}");
    }

    fn third(advice: &[Advice], setting: &str) -> Option<u64> {
        let one = advice.iter().find(|one| one.setting == setting)?;
        one.wanted.rsplit(' ').next()?.parse().ok()
    }

    prop_compose! {
        fn any_path()(rate in 1_u64..100_000_000_000, rtt in 1_u64..2_000_000) -> PathShape {
            PathShape { rate_bytes_per_s: rate, rtt_us: rtt }
        }
    }

    prop_compose! {
        fn any_host()(
            rmem in proptest::option::of([1_u64..1 << 20, 1_u64..1 << 20, 1_u64..1 << 31]),
            wmem in proptest::option::of([1_u64..1 << 20, 1_u64..1 << 20, 1_u64..1 << 31]),
            rmem_max in proptest::option::of(1_u64..1 << 31),
            wmem_max in proptest::option::of(1_u64..1 << 31),
            backlog in proptest::option::of(1_u64..1_000_000),
        ) -> HostLimits {
            HostLimits {
                tcp_rmem: rmem, tcp_wmem: wmem, rmem_max, wmem_max,
                netdev_max_backlog: backlog, ..HostLimits::default()
            }
        }
    }

    proptest! {
        #[test]
        fn a_longer_or_faster_path_never_needs_less(path in any_path(), rtt in 0_u64..1_000_000,
            rate in 0_u64..1_000_000_000, streams in 1_u32..64) {
            let more = PathShape { rate_bytes_per_s: path.rate_bytes_per_s + rate,
                rtt_us: path.rtt_us + rtt };
            prop_assert!(more.bdp_bytes() >= path.bdp_bytes());
            prop_assert!(more.buffer_bytes(streams) >= path.buffer_bytes(streams));
            prop_assert!(autotuning_ceiling(more, streams) >= autotuning_ceiling(path, streams));
            prop_assert!(autotuning_ceiling(path, streams + 1) <= autotuning_ceiling(path, streams));
            let nothing = HostLimits::default();
            let (less, more) = (advise(&nothing, path, streams, 9_000), advise(&nothing, more, streams,
                9_000));
            for one in &less {
                prop_assert!(third(&more, one.setting) >= third(&less, one.setting), "{}", one.setting);
            }
        }

        #[test]
        fn nothing_is_lowered(host in any_host(), path in any_path(), streams in 1_u32..64) {
            for one in advise(&host, path, streams, 9_000) {
                let Some(present) = &one.present else { continue };
                for (now, then) in present.split(' ').zip(one.wanted.split(' ')) {
                    if let (Ok(now), Ok(then)) = (now.parse::<u64>(), then.parse::<u64>()) {
                        prop_assert!(then >= now, "{}", one.sysctl_line());
                        prop_assert!(then <= SETTING_MAX, "{}", one.sysctl_line());
                    }
                }
                prop_assert_ne!(present, &one.wanted);
            }
        }

        #[test]
        fn advised_settings_suffice(host in any_host(), path in any_path(), streams in 1_u32..64) {
            let mut after = host.clone();
            for one in advise(&host, path, streams, 1_500) {
                let values: Vec<u64> = one.wanted.split(' ').filter_map(|word| word.parse().ok()).collect();
                match one.setting {
                    "net.ipv4.tcp_rmem" => after.tcp_rmem = values.try_into().ok(),
                    "net.ipv4.tcp_wmem" => after.tcp_wmem = values.try_into().ok(),
                    "net.core.rmem_max" => after.rmem_max = values.first().copied(),
                    "net.core.wmem_max" => after.wmem_max = values.first().copied(),
                    _ => {}
                }
            }
            let (receive, send) = (after.receive().unwrap(), after.send().unwrap());
            if path.buffer_bytes(streams) <= AUTOTUNED_BYTES_MAX {
                prop_assert_eq!(choose_buffers(path, streams, receive), BufferChoice::LeaveAlone);
                prop_assert_eq!(choose_buffers(path, streams, send), BufferChoice::LeaveAlone);
            }
            prop_assert!(receive.largest_request_effect() != LargestRequestEffect::Hurts
                && send.largest_request_effect() != LargestRequestEffect::Hurts);
        }

        #[test]
        fn enough_streams_fill_the_path(path in any_path(), buffer in 1_u64..1 << 32) {
            let streams = path.streams_needed(buffer);
            prop_assert!(u128::from(streams) * u128::from(buffer) >= 2 * u128::from(path.bdp_bytes()));
        }

        #[test]
        fn loss_only_slows(mss in 500_u32..9_000, rtt in 1_u64..1_000_000, loss in 1e-9_f64..0.5) {
            for rate in [mathis_bytes_per_s, cubic_bytes_per_s] {
                prop_assert!(rate(mss, rtt, loss) >= rate(mss, rtt, loss * 2.0));
                prop_assert!(rate(mss, rtt, loss) >= rate(mss, rtt * 2, loss));
            }
        }
    }
}
