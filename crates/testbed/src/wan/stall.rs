//! The longest time without data on a path, by the clock of what carries them: a busy machine delays the one
//! who looks, not this.

use super::config::Counters;

/// Less than this is no data: dials, pings, acknowledgements.
pub const DATA_BYTES: u64 = 200_000;

/// From data to data.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    last_ns: u64,
    bytes: u64,
    longest_ns: u64,
}

impl Stall {
    /// What comes on a path after the last byte that came on another one, which is gone.
    pub fn after(gone: &Counters, goes_on: &Counters) -> Stall {
        Stall { last_ns: gone.last_out_ns, bytes: goes_on.bytes_carried, longest_ns: 0 }
    }

    /// To be called often, with what goes on.
    pub fn observe(&mut self, counters: &Counters) {
        if counters.bytes_carried >= self.bytes + DATA_BYTES {
            self.longest_ns = self.longest_ns.max(counters.last_out_ns.saturating_sub(self.last_ns));
            self.last_ns = counters.last_out_ns;
            self.bytes = counters.bytes_carried;
        }
    }

    pub fn longest_ns(&self) -> u64 {
        self.longest_ns
    }

    pub fn longest_s(&self) -> f64 {
        self.longest_ns as f64 * 1e-9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_lasts_from_data_to_data() {
        let at = |last_out_ns, bytes_carried| Counters { last_out_ns, bytes_carried, ..Counters::default() };
        let mut stall = Stall::after(&at(1_000, 77), &at(5, 10));
        stall.observe(&at(2_000, 10 + DATA_BYTES - 1));
        assert_eq!(stall.longest_ns(), 0, "dials are no data");
        stall.observe(&at(4_000, 10 + DATA_BYTES));
        stall.observe(&at(5_000, 10 + 2 * DATA_BYTES));
        stall.observe(&at(5_500, 10 + 2 * DATA_BYTES + 1));
        assert_eq!(stall.longest_ns(), 3_000);
    }
}
