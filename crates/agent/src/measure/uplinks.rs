//! Counts what passes the interfaces that the administrator named as the site's uplinks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::probe::UplinkSample;
use longhaul_doctor::facts::Traffic;
use longhaul_model::{Fault, Timestamp};
use tokio::time::{Instant, sleep_until};

use super::Measurements;
use crate::clock::ServiceClock;
use crate::config::uplinks::UplinkConfig;

/// The last look at one interface.
#[derive(Default)]
struct UplinkCounter {
    last: Option<(Instant, Traffic)>,
    /// It was said that it cannot be read.
    warned: bool,
}

/// Runs for ever.
pub(crate) async fn run(
    uplinks: Vec<UplinkConfig>,
    measures: Arc<Measurements>,
    clock: ServiceClock,
) -> Fault {
    let begun = Instant::now();
    let mut all: Vec<(UplinkConfig, Instant, UplinkCounter)> =
        uplinks.into_iter().map(|uplink| (uplink, begun, UplinkCounter::default())).collect();
    while let Some(due) = all.iter().map(|(_, due, _)| *due).min() {
        sleep_until(due).await;
        for (config, due, counted) in all.iter_mut().filter(|(_, due, _)| *due <= Instant::now()) {
            let now = (Instant::now(), Traffic::read(Path::new("/"), &config.interface));
            *due = now.0 + Duration::from_secs(config.every_s.into());
            if let Some(sample) = counted.sample(config, now, clock.now()) {
                measures.add_uplink_sample(sample);
            }
        }
    }
    std::future::pending().await
}

impl UplinkCounter {
    /// None at the first look, and after counters that went back: the interface was made anew.
    fn sample(
        &mut self,
        config: &UplinkConfig,
        (now, traffic): (Instant, Option<Traffic>),
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
        let seconds = now.duration_since(before).as_secs_f64();
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

    fn config(interface: &str) -> UplinkConfig {
        UplinkConfig { interface: interface.into(), bits_per_s: None, every_s: 30 }
    }

    #[test]
    fn counters_become_rates() {
        let (mut counted, begun) = (UplinkCounter::default(), Instant::now());
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
    fn the_loop_back_of_this_host_is_counted() {
        let read = || Traffic::read(Path::new("/"), "lo").unwrap();
        let before = read();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[0; 5_000], socket.local_addr().unwrap()).unwrap();
        assert!(read().received_bytes >= before.received_bytes + 5_000);
        assert!(Traffic::read(Path::new("/"), "no-such-if").is_none());
    }
}
