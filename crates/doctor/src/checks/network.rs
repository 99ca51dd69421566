//! Checks network settings against a path, congestion control, interfaces and interrupts.

use longhaul_model::units::{bytes, count, plural, rate};
use longhaul_network::advice::{
    self, BufferChoice, Ceilings, Family, LargestRequestEffect, PathShape, STREAMS_MAX,
};

use crate::examine::ReferencePath;
use crate::facts::{HostFacts, Interface};
use crate::finding::{Finding, Group};
use crate::tune::{self, SysctlLine, bits, buffer, milliseconds};

/// Interrupts below which their spread is not judged.
const INTERRUPTS_MIN: u64 = 10_000;
/// Share of the interrupts on one CPU that counts as no spread.
const ONE_CPU_SHARE_MAX: f64 = 0.9;
/// Share of packets dropped by the host itself: more than the loss of a good path.
const DROP_SHARE_MAX: f64 = 1e-5;

pub(crate) fn check(facts: &HostFacts, used: &ReferencePath) -> Vec<Finding> {
    let lines = tune::lines(&facts.limits, used.path, used.streams, facts.mtu_max());
    let mut all = vec![
        buffers("send", facts.limits.send(), used, &lines),
        buffers("receive", facts.limits.receive(), used, &lines),
    ];
    all.extend(settings(facts, used.path, &lines));
    all.extend(memory(facts, used));
    all.push(congestion(facts, used.path));
    all.extend(facts.external_interfaces().flat_map(|interface| interfaces(facts, interface)));
    all
}

fn buffers(
    direction: &str,
    ceilings: Option<Ceilings>,
    used: &ReferencePath,
    lines: &[SysctlLine],
) -> Finding {
    let check = format!("{direction} buffers");
    let letter = if direction == "send" { 'w' } else { 'r' };
    let Some(ceilings) = ceilings else {
        return Finding::unknown(Group::Network, check, format!("net.ipv4.tcp_{letter}mem cannot be read"));
    };
    let plan = tune::direction(used.path, used.streams, ceilings);
    let best = ceilings.best_bytes();
    let found = format!("{}; {}", describe_ceilings(direction, letter, ceilings), describe_need(used));
    let mut finding = match plan.choice {
        _ if plan.streams_needed > u64::from(STREAMS_MAX) && used.is_certain() => {
            Finding::problem(Group::Network, check, found)
        }
        BufferChoice::LeaveAlone if ceilings.granted_bytes() >= used.path.buffer_bytes(used.streams) => {
            return Finding::ok(Group::Network, check, found);
        }
        _ => Finding::advice(Group::Network, check, found),
    };
    let one = plan.one_stream;
    let rtt = milliseconds(used.path.rtt_us);
    finding = finding.costs(match plan.choice {
        BufferChoice::LeaveAlone => format!(
            "nothing, unless a program sets its buffers: then one stream carries at most {} at {rtt}",
            rate(advice::stream_rate(ceilings.granted_bytes(), used.path.rtt_us).most_bytes_per_s as f64)
        ),
        BufferChoice::Set { .. } | BufferChoice::MoreStreams { .. } => {
            let by_setting = match plan.setting {
                LargestRequestEffect::Helps => {
                    format!(", {} if its buffer is set", rate(stream_rate_max(best, used.path)))
                }
                LargestRequestEffect::Hurts | LargestRequestEffect::Same => String::new(),
            };
            let streams = plan.streams_needed;
            let enough = match streams {
                1 => "one stream is enough only with its buffer set".to_owned(),
                _ if streams > u64::from(STREAMS_MAX) => {
                    let all = stream_rate_max(best, used.path) * f64::from(STREAMS_MAX) / 2.0;
                    format!(
                        "{streams} streams would be needed, and {STREAMS_MAX} are the most that are fair to \
                            others: \
                         they surely carry {}",
                        rate(all)
                    )
                }
                _ => format!("{streams} streams are needed to fill the path"),
            };
            format!(
                "one stream carries at most {} at {rtt}{by_setting}; {enough}",
                rate(one.most_bytes_per_s as f64)
            )
        }
    });
    let ours = [format!("net.ipv4.tcp_{letter}mem"), format!("net.core.{letter}mem_max")];
    lines
        .iter()
        .filter(|line| ours.contains(&line.setting))
        .fold(finding, |finding, line| finding.remedy(&line.command))
}

fn stream_rate_max(buffer_bytes: u64, path: PathShape) -> f64 {
    advice::stream_rate(buffer_bytes, path.rtt_us).most_bytes_per_s as f64
}

fn describe_ceilings(direction: &str, letter: char, ceilings: Ceilings) -> String {
    let granted = buffer(ceilings.granted_bytes());
    let grown = buffer(ceilings.autotuned_bytes);
    let verdict = match ceilings.largest_request_effect() {
        LargestRequestEffect::Helps => {
            format!("setting helps, else the {direction} ceiling of {grown} binds")
        }
        LargestRequestEffect::Hurts => format!("setting hurts, it then stays at {granted}"),
        LargestRequestEffect::Same => "setting changes nothing".to_owned(),
    };
    format!(
        "a stream's buffer grows by itself to {grown} (tcp_{letter}mem), and a program can set it to \
            {granted} \
         ({letter}mem_max {}): {verdict}",
        buffer(ceilings.request_bytes_max)
    )
}

fn describe_need(used: &ReferencePath) -> String {
    let each = bytes(used.path.buffer_bytes(used.streams));
    let under_way = bytes(used.path.bdp_bytes());
    match used.streams {
        1 => format!("one stream wants {each} for {under_way} under way"),
        streams => format!("{streams} streams want {each} each for {under_way} under way"),
    }
}

/// The other settings: one finding per wrong one, and one for all right ones.
fn settings(facts: &HostFacts, path: PathShape, lines: &[SysctlLine]) -> Vec<Finding> {
    let others = lines.iter().filter(|line| !line.setting.contains("mem"));
    let mut all: Vec<Finding> = others.map(|line| setting(line, path)).collect();
    let wrong: Vec<&str> = lines.iter().map(|line| line.setting.as_str()).collect();
    let limits = &facts.limits;
    let right = [
        ("net.core.netdev_max_backlog", limits.netdev_max_backlog.is_some()),
        ("net.core.somaxconn", limits.somaxconn.is_some()),
        ("net.core.default_qdisc", limits.default_qdisc.is_some()),
        ("net.ipv4.tcp_window_scaling", limits.tcp_window_scaling.is_some()),
        ("net.ipv4.tcp_sack", limits.tcp_sack.is_some()),
        ("net.ipv4.tcp_timestamps", limits.tcp_timestamps.is_some()),
        ("net.ipv4.tcp_moderate_rcvbuf", limits.tcp_moderate_rcvbuf.is_some()),
        ("net.ipv4.tcp_mtu_probing", limits.tcp_mtu_probing.is_some()),
        ("net.ipv4.tcp_slow_start_after_idle", limits.tcp_slow_start_after_idle.is_some()),
        ("net.ipv4.tcp_no_metrics_save", limits.tcp_no_metrics_save.is_some()),
    ];
    let right: Vec<&str> = right
        .into_iter()
        .filter(|(name, known)| *known && !wrong.contains(name))
        .map(|(name, _)| name.rsplit('.').next().unwrap_or(name))
        .collect();
    if !right.is_empty() {
        all.push(Finding::ok(
            Group::Network,
            "other settings",
            format!("as they should be: {}", right.join(", ")),
        ));
    }
    all
}

fn setting(line: &SysctlLine, path: PathShape) -> Finding {
    let name = line.setting.rsplit('.').next().unwrap_or(&line.setting);
    let Some(present) = &line.present else {
        return Finding::unknown(Group::Network, name, format!("{} cannot be read", line.setting));
    };
    let found = format!("is {present}");
    let scaling = name == "tcp_window_scaling" || name == "tcp_moderate_rcvbuf";
    let finding = if scaling {
        Finding::problem(Group::Network, name, found)
    } else {
        Finding::advice(Group::Network, name, found)
    };
    let cost = match name {
        "tcp_window_scaling" => {
            format!(
                "no window exceeds 64 KiB: one stream carries at most {}",
                rate(stream_rate_max(65_535, path))
            )
        }
        "tcp_moderate_rcvbuf" => "receive buffers never grow".to_owned(),
        "tcp_sack" => "after a loss everything behind it is sent again".to_owned(),
        "tcp_timestamps" => "round trips are measured once a window, and fast streams may confuse old \
            packets"
            .to_owned(),
        "netdev_max_backlog" => {
            let time = path.rate_bytes_per_s as f64 / 1_500.0;
            let held: f64 = present.parse().unwrap_or(0.0);
            format!("a CPU that is late by {:.1} ms at this rate drops packets", held / time * 1e3)
        }
        "somaxconn" => "streams beyond that number that open at once wait or are refused".to_owned(),
        "tcp_mtu_probing" => {
            "where a hop drops large packets silently, streams connect and then stand still for ever"
                .to_owned()
        }
        "tcp_slow_start_after_idle" => {
            let again = path.slow_start_us(1_448) as f64 / 1e6;
            format!("a stream that paused for a moment takes {again:.1} s to be fast again")
        }
        "tcp_no_metrics_save" => {
            "one bad transfer slows the start of the next ones to the same host".to_owned()
        }
        "default_qdisc" => {
            "pacing costs timers in TCP itself, and packets may leave in bursts that shallow buffers on the \
                way drop"
                .to_owned()
        }
        _ => line.why.clone(),
    };
    finding.costs(cost).remedy(&line.command)
}

/// All buffers of all transfers share `tcp_mem`.
fn memory(facts: &HostFacts, used: &ReferencePath) -> Option<Finding> {
    let [_, pressing, _] = facts.tcp_memory_bytes?;
    let each = used.path.bdp_bytes().saturating_mul(2).max(1);
    let transfers = pressing / each;
    let found = format!(
        "all TCP buffers together: {} before the kernel shrinks them (tcp_mem); one transfer that fills this \
            path \
         takes {} at each end",
        bytes(pressing),
        bytes(each)
    );
    Some(match transfers {
        0 => Finding::advice(Group::Network, "tcp memory", found)
            .costs("one transfer already exceeds it: windows shrink, and the path is not filled")
            .remedy("more memory: the kernel derives tcp_mem from it, and it is best left alone"),
        1..=3 => Finding::advice(Group::Network, "tcp memory", found)
            .costs(format!("{transfers} such transfers at once, no more"))
            .remedy("limit parallel transfers, or add memory; leave tcp_mem alone"),
        _ => Finding::ok(Group::Network, "tcp memory", format!("{found}: enough for {}", count(transfers))),
    })
}

fn congestion(facts: &HostFacts, path: PathShape) -> Finding {
    let check = "congestion control";
    let Some(present) = &facts.congestion else {
        return Finding::unknown(Group::Network, check, "cannot be read");
    };
    let has = |list: &[String]| list.iter().any(|one| one == "bbr");
    let loss = 1e-5;
    let cost = || {
        let slow = advice::cubic_bytes_per_s(1_448, path.rtt_us, loss);
        format!(
            "paths that lose packets: at a loss of {loss:e} and {} one stream of cubic carries {}",
            milliseconds(path.rtt_us),
            rate(slow.min(path.rate_bytes_per_s as f64))
        )
    };
    let others: Vec<&str> =
        facts.congestion_allowed.iter().filter(|one| *one != present).map(String::as_str).collect();
    let found = format!(
        "{present}; programs may choose {}",
        if others.is_empty() { "no other".into() } else { others.join(", ") }
    );
    let allowed = facts.congestion_allowed.join(" ");
    match (present == "bbr" || has(&facts.congestion_allowed), has(&facts.congestion_available)) {
        (true, _) => Finding::ok(Group::Network, check, found),
        (false, true) => {
            Finding::advice(Group::Network, check, format!("{found}; bbr is there, and not allowed"))
                .costs(cost())
                .remedy(format!("sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{allowed} bbr\""))
        }
        (false, false) => Finding::advice(Group::Network, check, format!("{found}; bbr is not loaded"))
            .costs(cost())
            .remedy("modprobe tcp_bbr    (for every boot: echo tcp_bbr > /etc/modules-load.d/bbr.conf)")
            .remedy(format!("sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{allowed} bbr\"")),
    }
}

fn interfaces(facts: &HostFacts, interface: &Interface) -> Vec<Finding> {
    let mut all = vec![mtu(facts, interface)];
    all.extend(drops(interface));
    all.extend(interrupts(facts, interface));
    all
}

fn mtu(facts: &HostFacts, interface: &Interface) -> Finding {
    let check = format!("{} mtu", interface.name);
    let Some(mtu) = interface.mtu else {
        return Finding::unknown(Group::Network, check, "cannot be read");
    };
    let speed = interface.bits_per_s.map_or("its speed is not told".to_owned(), |speed| bits(speed / 8));
    let share = advice::payload_share(mtu, Family::Ipv4, true) * 100.0;
    let found = format!("{mtu}, so {share:.1} % of the bytes are payload; {speed}");
    let probing = facts.limits.tcp_mtu_probing.unwrap_or(1) > 0;
    match mtu {
        1_501.. if !probing => Finding::advice(Group::Network, check, found)
            .costs(
                "a black hole for large packets anywhere on a path looks so: streams connect, small messages \
                    pass, \
                 bulk data stand still",
            )
            .remedy("sysctl -w net.ipv4.tcp_mtu_probing=\"1\""),
        ..1_280 => Finding::advice(Group::Network, check, found)
            .costs("IPv6 needs 1280, and each packet costs CPU time")
            .remedy(format!("ip link set {} mtu 1500", interface.name)),
        _ => Finding::ok(Group::Network, check, found),
    }
}

fn drops(interface: &Interface) -> Option<Finding> {
    let (dropped, received) = (interface.dropped_in?, interface.received_packets?);
    let share = dropped as f64 / received.max(1) as f64;
    (received > INTERRUPTS_MIN && share > DROP_SHARE_MAX).then(|| {
        let found =
            format!("{} of {} packets dropped on the way in since boot", count(dropped), count(received));
        Finding::advice(Group::Network, format!("{} drops", interface.name), found)
            .costs("each looks like loss on the path, and slows a stream")
            .remedy(format!("ethtool -G {0} rx MAX    (MAX: as ethtool -g {0} says)", interface.name))
            .remedy("sysctl -w net.core.netdev_max_backlog=\"250000\"")
    })
}

fn interrupts(facts: &HostFacts, interface: &Interface) -> Option<Finding> {
    let check = format!("{} interrupts", interface.name);
    let per_cpu = interface.per_cpu();
    let all: u64 = per_cpu.iter().sum();
    let cpus = facts.processor.cpus.max(per_cpu.len());
    if interface.queues.is_empty() {
        return None;
    }
    let queues = interface.queues.len();
    let used = per_cpu.iter().filter(|count| **count > all / 100).count();
    let cpus_all = plural(cpus as u64, "CPU", "CPUs");
    let found = format!(
        "{}, {}, served by {used} of {cpus_all}",
        plural(queues as u64, "queue", "queues"),
        plural(all, "interrupt", "interrupts")
    );
    let (busiest, most) = per_cpu.iter().enumerate().max_by_key(|(_, count)| **count)?;
    let share = *most as f64 / all.max(1) as f64;
    if cpus < 2 || all < INTERRUPTS_MIN || share < ONE_CPU_SHARE_MAX {
        return Some(Finding::ok(Group::Network, check, found));
    }
    let finding = Finding::advice(
        Group::Network,
        check,
        format!("{found}; CPU {busiest} serves {:.0} %", share * 100.0),
    )
    .costs("that one CPU bounds what the interface carries, whatever the others do");
    let mask = (1_u128 << cpus.min(64)) - 1;
    Some(if queues > 2 {
        finding.remedy("systemctl enable --now irqbalance")
    } else {
        finding
            .remedy(format!("ethtool -L {} combined {cpus}    (if the hardware has them)", interface.name))
            .remedy(format!("echo {mask:x} > /sys/class/net/{}/queues/rx-0/rps_cpus", interface.name))
    })
}
