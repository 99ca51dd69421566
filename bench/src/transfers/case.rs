//! The cases: which files over which path. Names are those of the figures.

use longhaul_testbed::wan::{Lab, Options, PathConfig, Side};

const JUMBO: u32 = 9000;
const ETHERNET: u32 = 1500;
/// TCP and IP headers with timestamps, in every packet.
const HEADERS: u32 = 52;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wan {
    pub(crate) rtt_ms: f64,
    pub(crate) rate_mbit: Option<f64>,
    pub(crate) loss: f64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) files: usize,
    pub(crate) size: usize,
    /// None: a LAN, as fast as the machine.
    pub(crate) wan: Option<Wan>,
    pub(crate) mtu: u32,
    pub(crate) congestion: &'static str,
    /// A program that needs longer is stopped, and its row says so.
    pub(crate) limit_s: u64,
}

const fn lan(name: &'static str, files: usize, size: usize) -> Case {
    Case { name, files, size, wan: None, mtu: JUMBO, congestion: "cubic", limit_s: 60 }
}

const fn wan(name: &'static str, files: usize, size: usize, loss: f64) -> Case {
    let wan = Some(Wan { rtt_ms: 100.0, rate_mbit: Some(1000.0), loss });
    Case { name, files, size, wan, mtu: JUMBO, congestion: "cubic", limit_s: 120 }
}

const fn with_bbr(name: &'static str, case: Case) -> Case {
    Case { name, congestion: "bbr", ..case }
}

const fn with_ethernet(name: &'static str, case: Case) -> Case {
    Case { name, mtu: ETHERNET, ..case }
}

const GB: usize = 1_000_000_000;
const MB: usize = 1_000_000;
const SMALL: usize = 65_536;
/// The way of FDT's published table, CERN to Caltech; its 100 GB are 1 GB here.
const WAN170: Wan = Wan { rtt_ms: 170.0, rate_mbit: Some(1000.0), loss: 0.0 };
const WAN20: Wan = Wan { rtt_ms: 20.0, rate_mbit: None, loss: 0.0 };

pub(crate) const CASES: [Case; 19] = [
    lan("lan-2g", 1, 2 * GB),
    lan("lan-20x100m", 20, 100 * MB),
    lan("lan-5000x64k", 5000, SMALL),
    Case { wan: Some(WAN20), ..lan("wan20-2g", 1, 2 * GB) },
    wan("wan100-1g", 1, GB, 0.0),
    with_bbr("wan100-1g-bbr", wan("", 1, GB, 0.0)),
    wan("wan100-20x50m", 20, 50 * MB, 0.0),
    with_bbr("wan100-20x50m-bbr", wan("", 20, 50 * MB, 0.0)),
    wan("wan100l-1g", 1, GB, 1e-5),
    wan("wan100l3-1g", 1, GB, 1e-3),
    wan("wan100-1000x64k", 1000, SMALL, 0.0),
    wan("wan100-20000x64k", 20_000, SMALL, 0.0),
    with_ethernet("lan-2g-mtu1500", lan("", 1, 2 * GB)),
    with_ethernet("wan20-2g-mtu1500", Case { wan: Some(WAN20), ..lan("", 1, 2 * GB) }),
    with_ethernet("wan100-1g-mtu1500", wan("", 1, GB, 0.0)),
    Case { wan: Some(WAN170), ..wan("fdt-1x1g", 1, GB, 0.0) },
    Case { wan: Some(WAN170), ..wan("fdt-100x10m", 100, 10 * MB, 0.0) },
    lan(ONE_LAN, 1, SMALL),
    wan(ONE_WAN, 1, SMALL, 0.0),
];

/// Names for several cases that belong together.
pub(crate) const GROUPS: [(&str, &[&str]); 2] = [
    ("mtu", &["lan-2g", "lan-2g-mtu1500", "wan20-2g", "wan20-2g-mtu1500", "wan100-1g", "wan100-1g-mtu1500"]),
    ("fdt", &["fdt-1x1g", "fdt-100x10m"]),
];

/// With `--quick`: one of each kind.
pub(crate) const QUICK: [&str; 5] = ["lan-2g", "lan-5000x64k", "wan20-2g", "wan100-1g", "wan100-1000x64k"];

/// One small file: what a job costs before and after its data.
pub(crate) const ONE_LAN: &str = "lan-1x64k";
pub(crate) const ONE_WAN: &str = "wan100-1x64k";

/// MB/s of payload on a path of that rate.
pub(crate) fn payload_mb_per_s(rate_mbit: f64, mtu: u32) -> f64 {
    rate_mbit / 8.0 * f64::from(mtu - HEADERS) / f64::from(mtu)
}

impl Case {
    /// Much data, so that a rate says something.
    pub(crate) fn is_bulk(&self) -> bool {
        self.size >= MB
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.files * self.size) as u64
    }

    pub(crate) fn is_small_files(&self) -> bool {
        self.size < MB && self.files > 1
    }

    /// Small files far away: there round trips decide, and programs that can want many files at once.
    pub(crate) fn is_far(&self) -> bool {
        self.wan.is_some_and(|wan| wan.rtt_ms >= 100.0)
    }

    /// MB/s of payload that the path can carry: its rate without headers.
    pub(crate) fn capacity(&self) -> Option<f64> {
        Some(payload_mb_per_s(self.wan?.rate_mbit?, self.mtu))
    }

    /// Twice what is in flight on a full path, in bytes: sockets may hold so much more than their program's
    /// bar.
    pub(crate) fn twice_in_flight(&self, mb_per_s: f64) -> f64 {
        let Some(wan) = self.wan else { return 0.0 };
        let rate = wan.rate_mbit.map_or(mb_per_s * 1e6, |mbit| mbit / 8.0 * 1e6);
        2.0 * rate * wan.rtt_ms / 1e3
    }

    pub(crate) fn described(&self) -> String {
        let (files, size) = (self.files, self.size as f64 / 1e6);
        let path = match self.wan {
            None => "LAN (veth)".to_owned(),
            Some(wan) => {
                let rate =
                    wan.rate_mbit.map_or("no rate limit".to_owned(), |mbit| format!("{mbit:.0} Mbit/s"));
                let loss = if wan.loss > 0.0 { format!("loss {:e}", wan.loss) } else { "no loss".to_owned() };
                format!("RTT {:.0} ms, {rate}, {loss}", wan.rtt_ms)
            }
        };
        format!("{files} × {size} MB; {path}; MTU {}, {}", self.mtu, self.congestion)
    }

    pub(crate) fn lab(&self) -> Result<Lab, String> {
        let options = Options { congestion_control: self.congestion.to_owned(), ..Options::default() };
        if let Some(wan) = self.wan {
            let path = PathConfig::new(wan.rtt_ms).loss(wan.loss).mtu(self.mtu);
            let path = wan.rate_mbit.map_or(path.clone(), |rate| path.rate_mbit(rate));
            return Lab::start_with(&[path], &options);
        }
        let lab = Lab::lan_with(&options)?;
        if self.mtu != JUMBO {
            let mtu = self.mtu.to_string();
            for side in Side::BOTH {
                let set = lab.command(side, "ip").args(["link", "set", "lan0", "mtu", &mtu]).status();
                set.map_err(|error| format!("setting the MTU: {error}"))?;
            }
        }
        Ok(lab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sizes_are_what_the_names_say() {
        for (place, case) in CASES.iter().enumerate() {
            assert!(!case.name.is_empty());
            assert!(CASES[..place].iter().all(|other| other.name != case.name), "{}", case.name);
        }
        let named = GROUPS.iter().flat_map(|(_, cases)| cases.iter()).chain(&QUICK);
        for name in named {
            assert!(CASES.iter().any(|case| case.name == *name), "{name}");
        }
        let case = CASES.iter().find(|case| case.name == "wan100-1g").unwrap();
        assert_eq!(case.bytes(), 1_000_000_000);
        assert!((case.capacity().unwrap() - 124.277).abs() < 0.01);
        assert_eq!(case.twice_in_flight(1.0), 25e6);
        assert_eq!(CASES[0].twice_in_flight(1000.0), 0.0);
        assert!(CASES[0].capacity().is_none());
    }
}
