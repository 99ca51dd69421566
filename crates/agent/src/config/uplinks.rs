//! `[[agent.uplinks]]`: interfaces that connect the site to the world, whose traffic is counted.

use longhaul_model::{Fault, FaultCode};
use serde::{Deserialize, Serialize};

/// Maximum length of an interface name in the kernel.
const INTERFACE_BYTES_MAX: usize = 15;
/// Upper bound of the sampling interval.
const SAMPLE_INTERVAL_S_MAX: u32 = 600;

/// An interface that carries all of the site's outside traffic, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkConfig {
    /// As `ip link` names it.
    pub interface: String,
    /// Capacity in each direction; none: what its driver says.
    #[serde(default)]
    pub bits_per_s: Option<u64>,
    /// Seconds between two samples.
    #[serde(default = "default_every_s")]
    pub every_s: u32,
}

fn default_every_s() -> u32 {
    30
}

impl UplinkConfig {
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let name = &self.interface;
        let plain = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b':');
        let why = if name.is_empty() || name.len() > INTERFACE_BYTES_MAX || !plain || name.starts_with('.') {
            format!("uplink {name:?} is not an interface name; `ip link` lists them")
        } else if self.bits_per_s == Some(0) {
            format!("uplink {name}: bits_per_s is 0; omit it if unknown")
        } else if !(1..=SAMPLE_INTERVAL_S_MAX).contains(&self.every_s) {
            format!("uplink {name}: every_s is {}: 1 to {SAMPLE_INTERVAL_S_MAX}", self.every_s)
        } else {
            return Ok(());
        };
        Err(Fault::new(FaultCode::BadRequest, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(interface: &str) -> UplinkConfig {
        UplinkConfig { interface: interface.into(), bits_per_s: None, every_s: 30 }
    }

    #[test]
    fn mistakes_are_reported() {
        config("bond0.120").check().unwrap();
        for bad in ["", "..", "a/b", "a b", "far-too-long-a-name"] {
            assert!(config(bad).check().unwrap_err().detail.contains("ip link"), "{bad}");
        }
        let slow = UplinkConfig { every_s: 0, ..config("eth0") };
        assert!(slow.check().unwrap_err().detail.contains("eth0: every_s is 0"));
        let none = UplinkConfig { bits_per_s: Some(0), ..config("eth0") };
        assert!(none.check().unwrap_err().detail.contains("bits_per_s is 0"));
    }
}
