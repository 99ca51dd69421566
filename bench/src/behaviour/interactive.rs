//! Somebody at a terminal: small requests on an open connection, each answered with 10 kB, over the path that
//! a transfer uses.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use longhaul_testbed::wan::{Lab, Side};

const REQUEST_BYTES: usize = 100;
const ANSWER_BYTES: usize = 10_000;
/// Pause between an answer and the next request, in which somebody reads.
const PAUSE: Duration = Duration::from_millis(50);
/// An answer that takes longer will not come.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Answers come from the far side, as the transfer's data do. The far end ends with the connection.
pub(crate) struct Interactive {
    near: TcpStream,
    /// Nothing is sent on it: to wait on it is a pause.
    pause: (Sender<()>, Receiver<()>),
}

impl Interactive {
    pub(crate) fn start(lab: &Lab) -> Result<Interactive, String> {
        let told = |error: std::io::Error| format!("the interactive connection: {error}");
        let address = SocketAddr::new(lab.address(Side::Right, 0).into(), 0);
        let listener = lab.inside(Side::Right, || TcpListener::bind(address))?.map_err(told)?;
        let address = listener.local_addr().map_err(told)?;
        std::thread::spawn(move || listener.accept().and_then(|(far, _)| answer(far)));
        let near = lab.inside(Side::Left, || TcpStream::connect(address))?.map_err(told)?;
        near.set_nodelay(true).map_err(told)?;
        near.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(told)?;
        Ok(Interactive { near, pause: channel() })
    }

    /// Milliseconds of one request and its answer.
    pub(crate) fn round_trip_ms(&mut self) -> Result<f64, String> {
        let mut buffer = [0u8; ANSWER_BYTES];
        let begun = Instant::now();
        let asked = self.near.write_all(&[1; REQUEST_BYTES]).and_then(|()| self.near.read_exact(&mut buffer));
        asked.map_err(|error| format!("an interactive request: {error}"))?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        let _ = self.pause.1.recv_timeout(PAUSE);
        Ok(ms)
    }
}

fn answer(mut far: TcpStream) -> std::io::Result<()> {
    far.set_nodelay(true)?;
    let mut request = [0u8; REQUEST_BYTES];
    loop {
        far.read_exact(&mut request)?;
        far.write_all(&[2; ANSWER_BYTES])?;
    }
}

/// What 95 of 100 do not exceed.
pub(crate) fn p95(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let place = (values.len() * 95).div_ceil(100);
    values.get(place.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_of_a_hundred_may_be_slower() {
        let values = (1..=100).rev().map(f64::from).collect();
        assert_eq!(p95(values), Some(95.0));
        assert_eq!(p95(vec![7.0]), Some(7.0));
        assert_eq!(p95(Vec::new()), None);
    }
}
