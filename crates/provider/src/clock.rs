//! The provider's clock: runs at any speed, may be offset from this machine's, and can be stepped.

use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Clock {
    began: Instant,
    /// Its time at start, in seconds since 1970.
    epoch: f64,
    speed: f64,
    jumped: f64,
}

impl Clock {
    /// `ahead` is its offset to this machine's clock in seconds.
    pub(crate) fn new(speed: f64, ahead: f64) -> Clock {
        let epoch = jiff::Timestamp::now().as_microsecond() as f64 / 1e6 + ahead;
        Clock { began: Instant::now(), epoch, speed, jumped: 0.0 }
    }

    pub(crate) fn now(&self) -> f64 {
        self.epoch + self.jumped + self.began.elapsed().as_secs_f64() * self.speed
    }

    pub(crate) fn jump(&mut self, seconds: f64) {
        self.jumped += seconds;
    }

    /// Real seconds until it shows `at`.
    pub(crate) fn real_until(&self, at: f64) -> f64 {
        ((at - self.now()) / self.speed).max(0.0)
    }
}

pub(crate) fn format(at: f64) -> String {
    match jiff::Timestamp::from_microsecond((at * 1e6) as i64) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => String::new(),
    }
}

/// Parses a time with its zone, as in XML and JSON.
pub(crate) fn parse(text: &str) -> Option<f64> {
    text.parse::<jiff::Timestamp>().ok().map(|at| at.as_microsecond() as f64 / 1e6)
}
