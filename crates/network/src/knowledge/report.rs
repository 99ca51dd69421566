//! Report on one link: what it yields against what it could, its bottleneck, and advice.

use longhaul_model::{Timestamp, units};
use serde::Serialize;

use super::own_limits::LimitPosition;
use super::reachability::UPLINK_FULL_SHARE;
use super::{Estimate, Knowledge, Link};
use crate::advice::{Family, PathShape, STREAMS_DEFAULT, STREAMS_MAX};
use crate::change::Change;
use crate::observation::{PathSelector, SenderLimit};
use crate::path_state::PathState;
use crate::rate_history::Bin;

/// A link is held up by a bound of which it reaches this share.
const BOUND_REACHED_SHARE: f64 = 0.7;
/// Tests faster than transfers by this factor show that the network has headroom.
const NETWORK_HEADROOM_FACTOR: f64 = 2.5;
/// A sender limit of this share is the bottleneck.
const SENDER_LIMIT_SHARE_MIN: f64 = 0.4;
/// An address family is preferred if it is faster by this factor.
const FAMILY_ADVANTAGE_MIN: f64 = 1.2;
/// No stream of a host is faster than this (200 Gbit/s): a higher bound limits nothing.
const STREAM_RATE_MAX: f64 = 25e9;
/// Loss from which more streams are advised.
const LOSS_ADVISED_SHARE_MIN: f64 = 1e-6;

/// What limits the rate of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// A limit of ours on what leaves the source or its site.
    SourceLimit,
    /// A limit of ours on what enters the target or its site.
    TargetLimit,
    /// A limit of ours on the link.
    LinkLimit,
    SourceRead,
    SourceUplink,
    SendBuffer,
    Network,
    RemoteWindow,
    TargetUplink,
    TargetWrite,
    /// Its ends are busy with our other links.
    OtherWork,
    /// One of its ends, unknown which.
    Storage,
    Unknown,
}

impl Bottleneck {
    pub fn describe(self) -> &'static str {
        match self {
            Bottleneck::SourceLimit => "our own limit on what leaves the source or its site",
            Bottleneck::TargetLimit => "our own limit on what enters the target or its site",
            Bottleneck::LinkLimit => "our own limit on the link",
            Bottleneck::SourceRead => "reading at the source",
            Bottleneck::SourceUplink => "the uplink of the source's site, which is full",
            Bottleneck::SendBuffer => "the sender's socket buffers",
            Bottleneck::Network => "the network: loss or congestion",
            Bottleneck::RemoteWindow => "the receiver's window",
            Bottleneck::TargetUplink => "the uplink of the target's site, which is full",
            Bottleneck::TargetWrite => "writing at the target",
            Bottleneck::OtherWork => "other work of the same source or target",
            Bottleneck::Storage => "source or target, not the network between them",
            Bottleneck::Unknown => "not known",
        }
    }
}

/// Measurements of one path between the ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathReport {
    #[serde(rename = "way")]
    pub path: PathSelector,
    pub rtt_us: Option<f64>,
    pub loss: Option<f64>,
    pub mtu: Option<u32>,
    pub black_hole: bool,
    /// Mean rate of tests.
    pub tested_bytes_per_s: Option<f64>,
    /// Rate limit of one stream by its window.
    pub window_limit_bytes_per_s: Option<f64>,
    /// Rate limit of one stream by loss and round trip (Mathis for Reno, higher for CUBIC).
    pub loss_limit_bytes_per_s: Option<f64>,
    pub up: Option<bool>,
    pub route: Option<u64>,
    pub route_since: Option<Timestamp>,
    /// Correlation of trouble with our own load, from -1 to 1.
    pub trouble_with_load: Option<f64>,
}

/// Everything known about one link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkReport {
    pub link: Link,
    pub rate: Estimate,
    /// Estimated rate of links like it.
    pub expected: Estimate,
    /// Current goodput; zero if it has no work.
    pub achieved_bytes_per_s: f64,
    pub active: u32,
    /// Rate of one file alone.
    pub file_max_bytes_per_s: Option<f64>,
    /// Rate of all files together once more bring no more.
    pub capacity_bytes_per_s: Option<f64>,
    /// Start-up seconds per file.
    pub start_s: f64,
    pub failure_share: f64,
    pub bottleneck: Bottleneck,
    pub paths: Vec<PathReport>,
}

impl Knowledge {
    pub fn report(&self, link: Link, now: Timestamp) -> LinkReport {
        let state = self.links.get(&link);
        LinkReport {
            link,
            rate: self.rate(link, now),
            expected: self.expected_rate(link, now),
            achieved_bytes_per_s: self.rate_now(link, now),
            active: state.map_or(0, |state| state.meter.active()),
            file_max_bytes_per_s: state.and_then(|state| state.curve.file_max()),
            capacity_bytes_per_s: state.and_then(|state| state.curve.capacity()),
            start_s: state.map_or(0.0, |state| state.startup.fit().0),
            failure_share: self.failure_share(link, now),
            bottleneck: self.bottleneck(link, now),
            paths: self.path_reports(link),
        }
    }

    /// History of the last three days, oldest first.
    pub fn history(&self, link: Link) -> Vec<Bin> {
        self.links.get(&link).map(|state| state.history.list()).unwrap_or_default()
    }

    /// Recorded changes between the link's sites, newest first.
    pub fn changes_for(&self, link: Link) -> Vec<Change> {
        let homes = self.localities_of(link);
        self.changes().rev().filter(|change| self.localities_of_change(change) == homes).copied().collect()
    }

    fn paths_of(&self, link: Link) -> impl Iterator<Item = (PathSelector, &PathState)> {
        let (source, target) = self.localities_of(link);
        let least = super::PathKey { source, target, path: PathSelector::default() };
        let all = self.paths.range(least..);
        all.take_while(move |(key, _)| key.source == source && key.target == target)
            .map(|(key, path)| (key.path, path))
    }

    fn path_reports(&self, link: Link) -> Vec<PathReport> {
        let report = |(selector, path): (PathSelector, &PathState)| PathReport {
            path: selector,
            rtt_us: path.rtt_us(),
            loss: path.loss_share(),
            mtu: path.mtu,
            black_hole: path.black_hole,
            tested_bytes_per_s: path.rate.has_data().then(|| path.rate.mean().exp()),
            window_limit_bytes_per_s: path.window_limit(),
            loss_limit_bytes_per_s: path.loss_limit(),
            up: path.up,
            route: path.signature.as_ref().map(|signature| signature.digest),
            route_since: path.signature.as_ref().map(|signature| signature.since),
            trouble_with_load: path.load.correlation(),
        };
        self.paths_of(link).map(report).collect()
    }

    /// Finds the bottleneck: by limits of ours first, then by uplink counters, by kernels' sender limits, and
    /// by comparisons.
    pub fn bottleneck(&self, link: Link, now: Timestamp) -> Bottleneck {
        match self.binding_limit(link, now) {
            Some(LimitPosition::Source) => return Bottleneck::SourceLimit,
            Some(LimitPosition::Target) => return Bottleneck::TargetLimit,
            Some(LimitPosition::Link) => return Bottleneck::LinkLimit,
            None => {}
        }
        let full = |home, into| {
            self.uplink_utilization(home, into, now).is_some_and(|used| used >= UPLINK_FULL_SHARE)
        };
        let (source, target) = self.localities_of(link);
        if full(source, false) {
            return Bottleneck::SourceUplink;
        }
        if full(target, true) {
            return Bottleneck::TargetUplink;
        }
        let rate = match self.rate_now(link, now) {
            now if now > 0.0 => now,
            _ => self.rate(link, now).bytes_per_s,
        };
        let told = self.paths_of(link).filter_map(|(_, path)| Some((path, path.limits.dominant()?)));
        let told = told
            .filter(|(_, (_, share))| *share >= SENDER_LIMIT_SHARE_MIN)
            .max_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
        if let Some((path, (limit, _))) = told {
            return match limit {
                SenderLimit::Application => Bottleneck::SourceRead,
                SenderLimit::SendBuffer => Bottleneck::SendBuffer,
                SenderLimit::Congestion => Bottleneck::Network,
                // A window that would carry more than the link yields is kept shut by a slow writer.
                SenderLimit::ReceiveWindow => match path.window_limit() {
                    Some(window) if window > NETWORK_HEADROOM_FACTOR * rate => Bottleneck::TargetWrite,
                    _ => Bottleneck::RemoteWindow,
                },
            };
        }
        let streams = f64::from(STREAMS_DEFAULT);
        if self
            .paths_of(link)
            .filter_map(|(_, path)| path.loss_limit())
            .any(|limit| rate >= BOUND_REACHED_SHARE * limit && rate <= 4.0 * streams * limit)
        {
            return Bottleneck::Network;
        }
        self.bottleneck_by_comparison(link, rate, now)
    }

    fn bottleneck_by_comparison(&self, link: Link, rate: f64, now: Timestamp) -> Bottleneck {
        let others = [(self.sources.get(&link.source), false), (self.targets.get(&link.target), true)];
        let own = self.links.get(&link).map_or(0, |state| state.meter.active());
        if own > 0 && others.iter().any(|(end, _)| end.is_some_and(|end| end.meter.active() > 4 * own)) {
            return Bottleneck::OtherWork;
        }
        let tested = self
            .paths_of(link)
            .filter(|(_, path)| path.rate.has_data())
            .map(|(_, path)| path.rate.mean().exp());
        let Some(tested) = tested.reduce(f64::max) else { return Bottleneck::Unknown };
        if tested < rate / BOUND_REACHED_SHARE {
            return Bottleneck::Network;
        }
        if tested < NETWORK_HEADROOM_FACTOR * rate {
            return Bottleneck::Unknown;
        }
        // The network has headroom: the slow end shows on its other links.
        let total = |storage, into| self.end_rate(storage, into, now).map_or(0.0, |total| total.bytes_per_s);
        match (
            total(link.source, false) > NETWORK_HEADROOM_FACTOR * rate,
            total(link.target, true) > NETWORK_HEADROOM_FACTOR * rate,
        ) {
            (true, false) => Bottleneck::TargetWrite,
            (false, true) => Bottleneck::SourceRead,
            _ => Bottleneck::Storage,
        }
    }

    /// Explains the rate of the link, one sentence per line.
    pub fn explain(&self, link: Link, now: Timestamp) -> Vec<String> {
        let report = self.report(link, now);
        let rate = units::rate;
        let mut lines = vec![format!(
            "it is believed to give {} (one in ten less than {}, one in ten more than {}), by {}",
            rate(report.rate.bytes_per_s),
            rate(report.rate.low),
            rate(report.rate.high),
            report.rate.basis.describe()
        )];
        let share = report.rate.bytes_per_s / report.expected.bytes_per_s;
        lines.push(format!(
            "links of its kind give {}; it gives {:.1} times that",
            rate(report.expected.bytes_per_s),
            share
        ));
        if let (Some(one), Some(all)) = (report.file_max_bytes_per_s, report.capacity_bytes_per_s) {
            lines.push(format!(
                "one file alone gets {}; from {:.0} files on, all together get {} and no more",
                rate(one),
                (all / one).max(1.0).ceil(),
                rate(all)
            ));
        }
        lines.push(match report.bottleneck {
            Bottleneck::Unknown => "what holds it up is not known".to_owned(),
            known => format!("held up by {}", known.describe()),
        });
        lines.extend(self.describe_uplinks(link, now));
        for path in &report.paths {
            lines.extend(path.describe_limits());
        }
        if self.is_unreachable(link, now) {
            lines.push("no address of the source answers agents of the target's site".to_owned());
        }
        if report.failure_share >= 0.01 {
            lines.push(format!("{:.0} % of recent attempts failed", report.failure_share * 100.0));
        }
        lines
    }

    /// Advice that would make the link faster or safer, one sentence per line; empty if nothing is known to
    /// help.
    pub fn advise(&self, link: Link, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        let wanted = self.expected_rate(link, now).bytes_per_s.max(self.rate(link, now).bytes_per_s);
        for path in self.path_reports(link) {
            path.advise(wanted, &mut lines);
        }
        lines.extend(self.family_advice(link));
        match self.bottleneck(link, now) {
            Bottleneck::SourceLimit | Bottleneck::TargetLimit | Bottleneck::LinkLimit => {
                lines.push(
                    "raise the limit, if it may be: `longhaul limit list` and `longhaul site show` name it"
                        .into(),
                );
            }
            Bottleneck::SourceRead => {
                lines.push("look at the source's disks: connections wait for data to send".into())
            }
            Bottleneck::TargetWrite => {
                lines.push("look at the target's disks: what arrives waits to be written".into())
            }
            Bottleneck::SourceUplink | Bottleneck::TargetUplink => {
                lines
                    .push("an uplink is full: more streams or files bring nothing, other sources may".into());
            }
            Bottleneck::SendBuffer | Bottleneck::RemoteWindow => {
                lines.push(
                    "raise the buffers of the hosts at its ends; `longhaul tune` prints the settings".into(),
                );
            }
            Bottleneck::Storage => {
                lines.push(
                    "tests of the network give much more than transfers: measure the disks at both \
                    ends with `longhaul bench disk`"
                        .into(),
                );
            }
            Bottleneck::Network | Bottleneck::OtherWork | Bottleneck::Unknown => {}
        }
        lines
    }

    fn family_advice(&self, link: Link) -> Option<String> {
        let tested = |family| {
            let path = self.path_state(link, PathSelector::over_family(family))?;
            path.rate.has_data().then(|| path.rate.mean().exp())
        };
        let (four, six) = (tested(Family::Ipv4)?, tested(Family::Ipv6)?);
        let (better, fast, worse, slow) =
            if four > six { ("IPv4", four, "IPv6", six) } else { ("IPv6", six, "IPv4", four) };
        (fast > FAMILY_ADVANTAGE_MIN * slow).then(|| {
            let (fast, slow) = (units::rate(fast), units::rate(slow));
            format!(
                "prefer {better}: tests of it give {fast}, of {worse} {slow}; the two take different routes"
            )
        })
    }
}

fn describe_streams(streams: f64) -> String {
    units::plural(streams as u64, "stream", "streams") // Saturates.
}

impl PathReport {
    fn label(&self) -> String {
        let family = match self.path.family {
            Some(Family::Ipv4) => "over IPv4",
            Some(Family::Ipv6) => "over IPv6",
            None => "on the path",
        };
        match self.path.circuit {
            Some(circuit) => format!("{family}, circuit {circuit}"),
            None => family.to_owned(),
        }
    }

    fn describe_limits(&self) -> Vec<String> {
        let named = self.label();
        let mut lines = Vec::new();
        let mut facts = Vec::new();
        facts.extend(self.rtt_us.map(|us| format!("round trip {:.1} ms", us / 1e3)));
        facts.extend(
            self.loss.map(|loss| if loss > 0.0 { format!("loss {loss:.1e}") } else { "no loss seen".into() }),
        );
        facts.extend(self.mtu.map(|mtu| format!("packets of {mtu} bytes")));
        facts.extend(self.tested_bytes_per_s.map(|tested| format!("tests give {}", units::rate(tested))));
        if !facts.is_empty() {
            lines.push(format!("{named}: {}", facts.join(", ")));
        }
        let limits_streams = |limit: &f64| *limit <= STREAM_RATE_MAX;
        if let Some(limit) = self.window_limit_bytes_per_s.filter(limits_streams) {
            lines.push(format!("{named} its window lets one stream have {}", units::rate(limit)));
        }
        if let Some(limit) = self.loss_limit_bytes_per_s.filter(limits_streams) {
            lines.push(format!("{named} loss and round trip let one stream have {}", units::rate(limit)));
        }
        if self.trouble_with_load.is_some_and(|with_load| with_load > 0.5) {
            lines.push(format!("{named} loss or outages come while we load it"));
        }
        lines
    }

    fn advise(&self, wanted: f64, lines: &mut Vec<String>) {
        let named = self.label();
        if let Some(rtt_us) = self.rtt_us {
            let shape = PathShape { rate_bytes_per_s: wanted as u64, rtt_us: rtt_us as u64 };
            if let Some(window) = self.window_limit_bytes_per_s.filter(|&window| window < wanted) {
                let streams = (wanted / window).ceil();
                lines.push(format!(
                    "{named}: {} under way fill it; give hosts buffers of {} ({} streams), or use \
                        {}; `longhaul tune` prints the settings",
                    units::bytes(shape.bdp_bytes()),
                    units::bytes(shape.buffer_bytes(STREAMS_DEFAULT)),
                    STREAMS_DEFAULT,
                    describe_streams(streams),
                ));
            }
        }
        if let (Some(limit), Some(loss)) = (self.loss_limit_bytes_per_s, self.loss)
            && loss >= LOSS_ADVISED_SHARE_MIN
            && limit < wanted
        {
            let streams = (wanted / limit).ceil().min(f64::from(STREAMS_MAX));
            lines.push(format!(
                "{named}: with a loss of {loss:.1e} use {}, and have the loss looked at",
                describe_streams(streams)
            ));
        }
        if self.black_hole {
            let mtu = self.mtu.unwrap_or(1_500);
            lines.push(format!(
                "{named}: packets of more than {mtu} bytes vanish; set the hosts' MTU to \
                {mtu} or have it mended"
            ));
        } else if self.mtu == Some(1_500)
            && self.rtt_us.is_some_and(|us| us > 40e3)
            && self.loss.is_some_and(|loss| loss >= LOSS_ADVISED_SHARE_MIN)
        {
            lines.push(format!(
                "{named}: packets of 9000 bytes end to end would carry six times as much at this loss"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the loopback interface window and round trip would allow 310 GB/s.
    #[test]
    fn a_bound_beyond_what_any_stream_reaches_is_not_told() {
        let told = |bytes_per_s: f64| {
            let report = PathReport {
                path: PathSelector::default(),
                rtt_us: Some(20.0),
                loss: None,
                mtu: None,
                black_hole: false,
                tested_bytes_per_s: None,
                window_limit_bytes_per_s: Some(bytes_per_s),
                loss_limit_bytes_per_s: Some(bytes_per_s),
                up: None,
                route: None,
                route_since: None,
                trouble_with_load: None,
            };
            report.describe_limits().iter().filter(|line| line.contains("let")).count()
        };
        assert_eq!((told(100e6), told(310e9)), (2, 0));
    }
}
