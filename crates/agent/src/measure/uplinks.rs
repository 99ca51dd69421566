//! Traffic counters of the interfaces that the administrator names as the site's uplinks.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::probe::UplinkSample;
use longhaul_doctor::facts::Traffic;
use longhaul_model::Timestamp;

use super::Measurements;
use crate::clock::ServiceClock;
use crate::config::uplinks::UplinkConfig;
use crate::step::{AgentTime, PeriodicLoop, Ticker};

/// Counters of one interface at the last sample.
#[derive(Default)]
struct UplinkCounter {
    last: Option<(AgentTime, Traffic)>,
    /// A warning was logged that the counters cannot be read.
    warned: bool,
}

/// Reads the counters of an interface; none if they cannot be read.
pub(crate) type ReadTraffic = Box<dyn FnMut(&str) -> Option<Traffic> + Send>;

/// Samples the site's uplinks, each at its own interval.
pub(crate) struct UplinkMeasurement {
    uplinks: Vec<(UplinkConfig, Ticker, UplinkCounter)>,
    read: ReadTraffic,
    measurements: Arc<Measurements>,
    clock: ServiceClock,
}

impl UplinkMeasurement {
    pub(crate) fn new(
        uplinks: Vec<UplinkConfig>,
        read: ReadTraffic,
        measurements: Arc<Measurements>,
        clock: ServiceClock,
    ) -> Self {
        let uplink = |uplink: UplinkConfig| {
            let ticker = Ticker::immediate(Duration::from_secs(uplink.every_s.into()));
            (uplink, ticker, UplinkCounter::default())
        };
        UplinkMeasurement { uplinks: uplinks.into_iter().map(uplink).collect(), read, measurements, clock }
    }
}

impl PeriodicLoop for UplinkMeasurement {
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        for (config, ticker, counter) in &mut self.uplinks {
            if ticker.tick(now).is_none() {
                continue;
            }
            let traffic = (self.read)(&config.interface);
            if let Some(sample) = counter.sample(config, (now, traffic), self.clock.now()) {
                self.measurements.add_uplink_sample(sample);
            }
        }
        self.uplinks.iter().filter_map(|(_, ticker, _)| ticker.due()).min()
    }
}

impl UplinkCounter {
    /// None for the first sample, and after counters went back: the interface was re-created.
    fn sample(
        &mut self,
        config: &UplinkConfig,
        (now, traffic): (AgentTime, Option<Traffic>),
        at: Timestamp,
    ) -> Option<UplinkSample> {
        let Some(traffic) = traffic else {
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(
                    interface = config.interface,
                    "the counters of an uplink cannot be read: is there such an interface?"
                );
            }
            self.last = None;
            return None;
        };
        self.warned = false;
        let (before, former) = self.last.replace((now, traffic))?;
        let seconds = now.saturating_sub(before).as_secs_f64();
        let into = traffic.received_bytes.checked_sub(former.received_bytes)?;
        let out = traffic.sent_bytes.checked_sub(former.sent_bytes)?;
        (seconds > 0.0).then(|| UplinkSample {
            interface: config.interface.clone(),
            at,
            seconds,
            into_bytes_per_s: into as f64 / seconds,
            out_bytes_per_s: out as f64 / seconds,
            capacity_bytes_per_s: config.bits_per_s.or(traffic.bits_per_s).map(|bits| bits as f64 / 8.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::drive;
    use longhaul_model::Timestamp;
    use std::path::Path;

    fn config(interface: &str) -> UplinkConfig {
        UplinkConfig { interface: interface.into(), bits_per_s: None, every_s: 30 }
    }

    #[test]
    fn counters_become_rates() {
        let (mut counted, begun) = (UplinkCounter::default(), Duration::from_secs(7));
        let mut look = |seconds, received_bytes, sent_bytes| {
            let traffic = Traffic { received_bytes, sent_bytes, bits_per_s: Some(8_000) };
            let now = begun + Duration::from_secs(seconds);
            counted.sample(&config("eth0"), (now, Some(traffic)), Timestamp::ZERO)
        };
        assert_eq!(look(0, 100, 50), None, "one look is no rate");
        let sample = look(10, 1_100, 50).unwrap();
        assert_eq!((sample.into_bytes_per_s, sample.out_bytes_per_s), (100.0, 0.0));
        assert_eq!(sample.capacity_bytes_per_s, Some(1_000.0));
        assert_eq!(look(20, 5, 50), None, "the interface was made anew");
        assert_eq!(look(30, 15, 60).unwrap().into_bytes_per_s, 1.0);
        assert_eq!(counted.sample(&config("eth0"), (begun, None), Timestamp::ZERO), None);
        assert!(counted.warned && counted.last.is_none());
    }

    #[test]
    fn each_uplink_is_sampled_at_its_own_interval() {
        let measurements = Arc::new(Measurements::new(true));
        let mut reads = 0;
        let read = move |_: &str| {
            reads += 1;
            Some(Traffic { received_bytes: 100 * reads, sent_bytes: 0, bits_per_s: None })
        };
        let clock = ServiceClock::new(Arc::new(|| Timestamp::ZERO), 0);
        let uplinks = vec![config("eth0"), UplinkConfig { every_s: 20, ..config("eth1") }];
        let mut uplinks = UplinkMeasurement::new(uplinks, Box::new(read), measurements.clone(), clock);
        let s = Duration::from_secs;
        assert_eq!(drive(&mut uplinks, s(0), s(61)), [0, 20, 30, 40, 60].map(s));
        let samples = measurements.take().uplinks;
        let mut seconds: Vec<_> = samples.iter().map(|one| (one.interface.as_str(), one.seconds)).collect();
        seconds.sort_by(|one, other| one.0.cmp(other.0));
        assert_eq!(seconds, [("eth0", 30.0), ("eth1", 20.0)], "of an interface only the last counts");
    }

    #[test]
    fn the_loopback_of_this_host_is_counted() {
        let read = || Traffic::read(Path::new("/"), "lo").unwrap();
        let before = read();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[0; 5_000], socket.local_addr().unwrap()).unwrap();
        assert!(read().received_bytes >= before.received_bytes + 5_000);
        assert!(Traffic::read(Path::new("/"), "no-such-if").is_none());
    }
}
