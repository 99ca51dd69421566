//! Bytes that a namespace's devices have received, over time: what the path carried while a program ran.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use longhaul_testbed::wan::{Lab, Side};

pub(crate) struct Received {
    table: File,
}

impl Received {
    /// The table of that side's namespace, whichever thread reads it later.
    pub(crate) fn open(lab: &Lab, side: Side) -> Result<Received, String> {
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

/// The last thousandth is acknowledgements and farewells.
const FAREWELL: f64 = 0.999;

/// MB/s of payload in the second half: the start is left out. None where nothing was seen in between (short
/// runs).
pub(crate) fn second_half(samples: &[(f64, u64)], payload: u64) -> Option<f64> {
    rate_from(samples, payload, 0.5)
}

/// MB/s of payload from the first thousandth, where the data begin, to the last.
pub(crate) fn between_first_and_last(samples: &[(f64, u64)], payload: u64) -> Option<f64> {
    rate_from(samples, payload, 1.0 - FAREWELL)
}

/// `payload` bytes are spread over what the device received, so that headers are left out.
fn rate_from(samples: &[(f64, u64)], payload: u64, share: f64) -> Option<f64> {
    let seconds = time_at(samples, FAREWELL)? - time_at(samples, share)?;
    (seconds > 0.0).then(|| payload as f64 * (FAREWELL - share) / seconds / 1e6)
}

/// When that share of all bytes had been received, in seconds.
fn time_at(samples: &[(f64, u64)], share: f64) -> Option<f64> {
    let (first, last) = (samples.first()?.1, samples.last()?.1);
    let total = (last - first) as f64;
    if total == 0.0 {
        return None;
    }
    let wanted = first as f64 + total * share;
    let place = samples.iter().position(|(_, bytes)| *bytes as f64 >= wanted)?;
    let (after, before) = (samples[place], samples[place.checked_sub(1)?]);
    let step = (after.1 - before.1) as f64;
    Some(before.0 + (after.0 - before.0) * (wanted - before.1 as f64) / step.max(1.0))
}

/// The longest time, in seconds, in which less than `bytes_per_s` came, between the first data and the last.
/// It is made of whole intervals between samples: a pause shorter than one is not seen.
pub(crate) fn longest_gap(samples: &[(f64, u64)], bytes_per_s: f64) -> Option<f64> {
    let (begin, end) = (time_at(samples, 1.0 - FAREWELL)?, time_at(samples, FAREWELL)?);
    let (mut gap, mut longest) = (0.0, 0.0f64);
    for pair in samples.windows(2).filter(|pair| pair[0].0 >= begin && pair[1].0 <= end) {
        let seconds = pair[1].0 - pair[0].0;
        let quiet = ((pair[1].1 - pair[0].1) as f64) < bytes_per_s * seconds;
        gap = if quiet { gap + seconds } else { 0.0 };
        longest = longest.max(gap);
    }
    Some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_summed_without_the_loop() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes\n    lo: 999 9 0 0 0 0 0 \
            0 999\n  \
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

    #[test]
    fn a_pause_is_a_gap_and_the_start_is_none() {
        // Silence, then 1,000 bytes in each tenth of a second but for three of them.
        let mut samples = vec![(0.0, 0), (5.0, 0)];
        for step in 1..=100u32 {
            let more = if (40..43).contains(&step) { 1 } else { 1_000 };
            samples.push((5.0 + f64::from(step) / 10.0, samples.last().unwrap().1 + more));
        }
        let gap = longest_gap(&samples, 1_000.0).unwrap();
        assert!((gap - 0.3).abs() < 1e-6, "{gap}");
        let rate = between_first_and_last(&samples, samples.last().unwrap().1).unwrap();
        assert!((rate * 1e6 - 9_700.0).abs() < 20.0, "{rate}");
        assert_eq!(longest_gap(&[], 1.0), None);
    }
}
