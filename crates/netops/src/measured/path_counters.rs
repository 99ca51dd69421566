//! What the kernels at both ends of our transfers counted, as an observation of the way between two sites.
//! Pure.

use longhaul_api::probe::{PathLimit, PathSample};
use longhaul_model::{AgentId, SiteId};
use longhaul_network::advice::Family;
use longhaul_network::{
    Endpoint, Mapping, Metric, Observation, ObservationId, Origin, PathSelector, SenderLimit, Subject,
};

use super::error::MeasurementError;

/// Agents tell far more often.
const SECONDS_MAX: f64 = 3_600.0;

/// What the room that believes the numbers cannot see.
pub fn check(sample: &PathSample) -> Result<(), MeasurementError> {
    if sample.seconds > 0.0 && sample.seconds <= SECONDS_MAX {
        return Ok(());
    }
    Err(MeasurementError::ImplausiblePeriod(sample.seconds))
}

/// `to` says what it saw of data from the first of the sites to the second, its own. Whether the numbers can
/// be is for the room that believes them.
pub fn observation(to: AgentId, (source, target): (SiteId, SiteId), sample: &PathSample) -> Observation {
    let id = ["tcp", &to.to_string(), &sample.source.to_string(), &sample.at.to_string()];
    let family = sample.ipv6.map(|ipv6| if ipv6 { Family::Ipv6 } else { Family::Ipv4 });
    let way = family.map(PathSelector::over_family).unwrap_or_default();
    Observation {
        id: ObservationId::from_parts(&id),
        at: sample.at,
        subject: Subject::Path { source: Endpoint::Site(source), target: Endpoint::Site(target), path: way },
        metric: seen(sample),
        origin: Origin::OwnTransfer,
        mapping: Mapping::Explicit,
    }
}

fn seen(sample: &PathSample) -> Metric {
    let new = sample.packets.saturating_sub(sample.resent).max(1);
    let mss_bytes = u32::try_from(sample.bytes / new).unwrap_or(u32::MAX);
    // What is under way is at most all windows together. Where windows bind, it is that much.
    let under_way = sample.bytes as f64 / sample.seconds * f64::from(sample.rtt_us) / 1e6;
    Metric::Tcp {
        bytes_sent: sample.packets.saturating_mul(mss_bytes.into()),
        bytes_resent: sample.resent.saturating_mul(mss_bytes.into()),
        rtt_us: f64::from(sample.rtt_us),
        mss_bytes,
        window_bytes: (under_way / f64::from(sample.streams.max(1))) as u64,
        limit: sample.limit.map(|limit| match limit {
            PathLimit::Application => SenderLimit::Application,
            PathLimit::ReceiveWindow => SenderLimit::ReceiveWindow,
            PathLimit::SendBuffer => SenderLimit::SendBuffer,
            PathLimit::Congestion => SenderLimit::Congestion,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::Timestamp;

    #[test]
    fn counters_become_segments_and_a_window() {
        let sample = PathSample {
            source: AgentId(1),
            at: Timestamp::from_seconds(100),
            seconds: 30.0,
            ipv6: Some(true),
            streams: 2,
            bytes: 99_000 * 1_428,
            packets: 100_000,
            resent: 1_000,
            rtt_us: 100_000,
            limit: Some(PathLimit::ReceiveWindow),
        };
        let told = observation(AgentId(2), (SiteId(7), SiteId(8)), &sample);
        assert_eq!(
            told.subject,
            Subject::Path {
                source: Endpoint::Site(SiteId(7)),
                target: Endpoint::Site(SiteId(8)),
                path: PathSelector::over_family(Family::Ipv6)
            }
        );
        let Metric::Tcp { bytes_sent, bytes_resent, mss_bytes, window_bytes, limit, .. } = told.metric else {
            panic!("{told:?}")
        };
        assert_eq!((mss_bytes, bytes_sent, bytes_resent), (1_428, 142_800_000, 1_428_000));
        // 4.7 MB/s over a tenth of a second, by two streams.
        assert_eq!((window_bytes, limit), (235_620, Some(SenderLimit::ReceiveWindow)));
        told.check(sample.at).unwrap();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(check(&PathSample { seconds, ..sample.clone() }).is_err(), "{seconds}");
        }
        let nothing = PathSample { bytes: 0, ..sample };
        assert!(observation(AgentId(2), (SiteId(7), SiteId(8)), &nothing).check(nothing.at).is_err());
    }
}
