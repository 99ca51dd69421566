//! Linux pressure stall information (PSI): the share of time in which tasks wait for disks
//! (`/proc/pressure/io`, otherwise that of the control group), and this process's own disk reads
//! (`/proc/self/io`).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

const HOST_PRESSURE: &str = "/proc/pressure/io";
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Far more than the length of the two lines.
const TEXT_BYTES_MAX: usize = 4096;
/// Fewer bytes between two samples are noise, such as paged-in program text.
const DISK_READ_BYTES_MIN: u64 = 1 << 20;

/// `/proc/self/io`, open; none where it does not exist.
static COUNTERS: OnceLock<Option<File>> = OnceLock::new();

/// Opens the counter of this process's disk reads. For a process that is about to become non-dumpable: the
/// kernel goes on counting, but then lets only root open the file. Other processes need not call it.
pub fn open_counters() {
    counters();
}

fn counters() -> Option<&'static File> {
    COUNTERS.get_or_init(|| File::open("/proc/self/io").ok()).as_ref()
}

/// Computes shares from differences of a counter, since the kernel's ten-second average is too slow.
pub(crate) struct IoPressure {
    /// None where the kernel does not provide pressure stall information.
    path: Option<PathBuf>,
    last: Option<(Duration, u64)>,
    disk_read_bytes: Option<u64>,
}

impl IoPressure {
    pub(crate) fn open() -> IoPressure {
        let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
            let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
            Some(PathBuf::from(CGROUP_ROOT).join(path).join("io.pressure"))
        });
        let place = [Some(PathBuf::from(HOST_PRESSURE)), group]
            .into_iter()
            .flatten()
            .find(|place| stalled_us(place).is_some());
        IoPressure { path: place, last: None, disk_read_bytes: None }
    }

    /// The share of time since the last call in which some task was stalled; none at first, and where the
    /// kernel does not say.
    pub(crate) fn stall_share(&mut self, now: Duration) -> Option<f64> {
        let waited = stalled_us(self.path.as_ref()?)?;
        let (then, before) = self.last.replace((now, waited))?;
        let passed = now.checked_sub(then).filter(|passed| !passed.is_zero())?.as_secs_f64() * 1e6;
        Some((waited.saturating_sub(before) as f64 / passed).min(1.0))
    }

    /// Discards the time since the last call.
    pub(crate) fn reset(&mut self) {
        (self.last, self.disk_read_bytes) = (None, None);
    }

    /// Whether this process read more than noise from disks since the last call; true where the kernel does
    /// not say.
    pub(crate) fn has_read_from_disk(&mut self) -> bool {
        let Some(now) = disk_read_bytes() else { return true };
        let before = self.disk_read_bytes.replace(now).unwrap_or(now);
        now.saturating_sub(before) >= DISK_READ_BYTES_MIN
    }
}

/// The bytes read from disks, without the page cache.
fn disk_read_bytes() -> Option<u64> {
    let mut text = [0; TEXT_BYTES_MAX];
    // Reading from the beginning makes the kernel produce it anew.
    let length = counters()?.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

fn stalled_us(place: &PathBuf) -> Option<u64> {
    let text = fs::read(place).ok()?;
    parse_total(std::str::from_utf8(&text[..text.len().min(TEXT_BYTES_MAX)]).ok()?)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`
fn parse_total(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_kernels_format_is_parsed() {
        let text = "some avg10=1.37 avg60=3.07 avg300=2.92 total=525607546\nfull avg10=0.00 avg60=1.10 \
            avg300=1.95 total=7\n";
        assert_eq!(parse_total(text), Some(525_607_546));
        assert_eq!(parse_total("full avg10=0.00 total=7\n"), None);
    }

    #[test]
    fn shares_are_computed_from_differences() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("io");
        let says = |total: u64| fs::write(&place, format!("some avg10=0 total={total}\n")).unwrap();
        let mut pressure = IoPressure { path: Some(place.clone()), last: None, disk_read_bytes: None };
        let second = Duration::from_secs(1);
        says(1_000_000);
        assert_eq!(pressure.stall_share(second), None, "nothing to compare with");
        says(1_500_000);
        assert_eq!(pressure.stall_share(2 * second), Some(0.5));
        assert_eq!(pressure.stall_share(2 * second), None, "no time has passed");
        says(9_000_000);
        assert_eq!(pressure.stall_share(3 * second), Some(1.0));
        pressure.reset();
        assert_eq!(pressure.stall_share(9 * second), None);
        assert_eq!(IoPressure { path: None, last: None, disk_read_bytes: None }.stall_share(second), None);
        assert!(!pressure.has_read_from_disk(), "nothing to compare with");
    }

    #[test]
    fn the_process_counters_are_monotonic() {
        let before = disk_read_bytes().expect("Linux counts");
        let text = fs::read_to_string("/proc/self/io").unwrap();
        let now = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap();
        assert!(disk_read_bytes().unwrap() >= now.parse().unwrap() && now.parse::<u64>().unwrap() >= before);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(some )?[a-z0-9=. \n]{0,80}") {
            let _ = parse_total(&text);
        }
    }
}
