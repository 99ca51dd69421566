//! Bytes that a namespace's devices have received, over time: what the path carried while a program ran.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use longhaul_testbed::wan::{Lab, Side};

pub(crate) struct Received {
    table: File,
}

impl Received {
    /// The table of that side's namespace, whichever thread reads it later.
    pub(crate) fn of(lab: &Lab, side: Side) -> Result<Received, String> {
        let open = || File::open("/proc/thread-self/net/dev");
        let table = lab.inside(side, open)?.map_err(|error| format!("/proc/net/dev: {error}"))?;
        Ok(Received { table })
    }

    pub(crate) fn bytes(&mut self) -> u64 {
        let mut text = String::new();
        let read = self.table.seek(SeekFrom::Start(0)).and_then(|_| self.table.read_to_string(&mut text));
        read.map_or(0, |_| received(&text))
    }
}

/// Sum over all devices but the loop.
fn received(table: &str) -> u64 {
    let devices = table.lines().filter_map(|line| line.trim_start().split_once(':'));
    let numbers = devices.filter(|(name, _)| *name != "lo").map(|(_, rest)| rest.split_whitespace().next());
    numbers.filter_map(|word| word?.parse::<u64>().ok()).sum()
}

/// MB/s of payload in the second half: `payload` bytes are spread over what the device received, so that headers and the
/// start are left out. None where nothing was seen in between (short runs).
pub(crate) fn second_half(samples: &[(f64, u64)], payload: u64) -> Option<f64> {
    let (first, last) = (samples.first()?.1, samples.last()?.1);
    let total = (last - first) as f64;
    let at = |share: f64| {
        let wanted = first as f64 + total * share;
        let place = samples.iter().position(|(_, bytes)| *bytes as f64 >= wanted)?;
        let (after, before) = (samples[place], samples[place.checked_sub(1)?]);
        let step = (after.1 - before.1) as f64;
        Some(before.0 + (after.0 - before.0) * (wanted - before.1 as f64) / step.max(1.0))
    };
    // The last thousandth is acknowledgements and farewells.
    let seconds = at(0.999)? - at(0.5)?;
    (seconds > 0.0 && total > 0.0).then(|| payload as f64 * 0.499 / seconds / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_summed_without_the_loop() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes\n    lo: 999 9 0 0 0 0 0 0 999\n  \
            tun0: 100 1 0 0\n wan1:23 1 0\n";
        assert_eq!(received(table), 123);
    }

    #[test]
    fn the_second_half_leaves_the_start_out() {
        // Nothing in the first second, then 100 bytes a second; payload is 90 % of it.
        let samples: Vec<(f64, u64)> =
            (0..=11).map(|t| (f64::from(t), 100 * u64::from((t as u32).max(1) - 1))).collect();
        let rate = second_half(&samples, 900).unwrap();
        assert!((rate * 1e6 - 90.0).abs() < 0.1, "{rate}");
        assert_eq!(second_half(&[], 1), None);
        assert_eq!(second_half(&[(0.0, 5), (1.0, 5)], 1), None);
    }
}
