//! The provider driver, as a copy or an agent runs it, with a provider in another process and the real clock.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_circuits::{CircuitEndpoints, Event, Note};
use longhaul_gateways::circuits::{CircuitConfig, CircuitContext, Clock, Health, ProviderDriver, Traffic};
use longhaul_model::Timestamp;

use crate::bench::{LINK, Simulator};
use crate::{Kind, config};

/// Something that takes longer hangs.
const WITHIN: Duration = Duration::from_secs(60);

/// Ends that answer, and somebody who hears that they are used.
struct Willing(Sender<String>);

impl Traffic for Willing {
    fn probe(&mut self, _ends: &CircuitEndpoints) -> bool {
        true
    }

    fn use_circuit(&mut self, mbit: u64, ends: &CircuitEndpoints) {
        let _ = self.0.send(format!("{mbit} Mbit/s to {}", ends.source));
    }

    fn stop_using(&mut self) {
        let _ = self.0.send("stopped".to_owned());
    }

    fn health(&mut self) -> Health {
        Health::default()
    }

    fn record_note(&mut self, note: &Note) {
        println!("{note}");
    }
}

#[test]
fn a_driver_obtains_and_releases_a_circuit() {
    for kind in [Kind::NsiCalled, Kind::Oscars] {
        let simulator = Simulator::start(&[]);
        let text = config(kind, Some(&simulator), "");
        let config = CircuitConfig::parse(&text, "circuit.toml").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let place = || CircuitContext {
            link: LINK.to_owned(),
            ledger_path: folder.path().join("circuit.json"),
            seed: 7,
        };
        let now = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            Timestamp(since.as_micros() as i64)
        };
        let clock: Clock = Arc::new(now);
        let (heard, hears) = channel();
        let driver = ProviderDriver::start(place(), &config, clock, Box::new(Willing(heard))).unwrap();
        driver.send_event(Event::SetWanted(true));
        assert_eq!(hears.recv_timeout(WITHIN).unwrap(), "1000 Mbit/s to 10.77.1.2");
        assert_eq!(simulator.booked().len(), 1);
        drop(driver);
        assert_eq!(hears.recv_timeout(WITHIN).unwrap(), "stopped");
        assert!(simulator.booked().is_empty(), "given back before the end");
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert!(left.is_empty(), "nothing is written down any more: {left:?}");
    }
}
