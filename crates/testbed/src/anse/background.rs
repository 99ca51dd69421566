//! Traffic of others: UDP at a steady rate, whatever happens to it.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::wan::{Lab, Side};

/// With the headers of IP and UDP one packet of 1,500 bytes.
const PAYLOAD: usize = 1_472;
const PACKET: u64 = 1_500;
const PAUSE: Duration = Duration::from_millis(1);
/// After a pause of the processor no more than this is made up for.
const LATE_MAX: Duration = Duration::from_millis(20);

/// From the right to the left, until it is dropped.
pub struct Background {
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    pub fn start(lab: &Lab, path: usize, mbit: f64) -> Result<Background, String> {
        let bind = |side| {
            let address = lab.address(side, path);
            let made = lab.inside(side, || UdpSocket::bind((address, 0)))?;
            made.map_err(|error| format!("a UDP socket at {address}: {error}"))
        };
        let (sender, receiver) = (bind(Side::Right)?, bind(Side::Left)?);
        let told = |error: std::io::Error| format!("UDP: {error}");
        sender.connect(receiver.local_addr().map_err(told)?).map_err(told)?;
        receiver.set_read_timeout(Some(Duration::from_millis(100))).map_err(told)?;
        let (stop, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (stop.clone(), arrived.clone());
        let receiving = spawn(move || {
            let mut packet = [0; PAYLOAD];
            while !ends.load(Ordering::Relaxed) {
                if receiver.recv(&mut packet).is_ok() {
                    counts.fetch_add(PACKET, Ordering::Relaxed);
                }
            }
        });
        let ends = stop.clone();
        let sending = spawn(move || send(&sender, mbit, &ends));
        Ok(Background { stop, arrived, threads: vec![receiving, sending] })
    }

    /// IP packets that arrived, in bytes.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }
}

fn send(socket: &UdpSocket, mbit: f64, stop: &AtomicBool) {
    let packets_per_s = mbit * 1e6 / 8.0 / PACKET as f64;
    let packet = [0; PAYLOAD];
    let (mut last, mut owed) = (Instant::now(), 0.0);
    while !stop.load(Ordering::Relaxed) {
        sleep(PAUSE);
        owed += last.elapsed().min(LATE_MAX).as_secs_f64() * packets_per_s;
        last = Instant::now();
        while owed >= 1.0 {
            // What does not fit is lost, as it is with any UDP.
            let _ = socket.send(&packet);
            owed -= 1.0;
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
