//! `[agent.marking]`: packet marking and flow reports (SciTags).

use std::net::SocketAddr;
use std::time::Duration;

use longhaul_engine::{FIREFLY_PORT, Marking};
use longhaul_model::{Fault, FaultCode};
use serde::{Deserialize, Serialize};

/// Maximum number of firefly collectors.
const COLLECTORS_MAX: usize = 16;
/// Upper bound of the firefly interval: a day.
const FIREFLY_INTERVAL_S_MAX: u32 = 86_400;

/// Marks come with the leases. By default nothing is done about them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MarkingConfig {
    /// IPv6 packets bear the SciTag in their flow label.
    pub flow_label: bool,
    /// Packets bear the class, also those of what other agents fetch from here.
    pub dscp: bool,
    /// Collectors of firefly packets.
    pub collectors: Vec<SocketAddr>,
    /// Also sends fireflies to the target of outgoing flows, so that collectors on the path can read them.
    pub to_target: bool,
    /// Seconds between two fireflies of one flow; 0: only its beginning and its end.
    pub every_s: u32,
}

impl Default for MarkingConfig {
    fn default() -> Self {
        MarkingConfig {
            flow_label: false,
            dscp: false,
            collectors: Vec::new(),
            to_target: false,
            every_s: 60,
        }
    }
}

impl MarkingConfig {
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let wrong = |why: String| Err(Fault::new(FaultCode::BadRequest, format!("agent.marking: {why}")));
        if self.collectors.len() > COLLECTORS_MAX {
            return wrong(format!("{} collectors, the limit is {COLLECTORS_MAX}", self.collectors.len()));
        }
        if self.every_s > FIREFLY_INTERVAL_S_MAX {
            return wrong(format!("every_s is {}, the most is {FIREFLY_INTERVAL_S_MAX}", self.every_s));
        }
        if let Some(collector) = self.collectors.iter().find(|collector| collector.port() == 0) {
            return wrong(format!("{collector} has no port; collectors listen at 10514"));
        }
        Ok(())
    }

    /// The engine's setting; none if nothing is to be done.
    pub(crate) fn marking(&self, host: &str) -> Option<Marking> {
        let is_on = self.flow_label || self.dscp || self.to_target || !self.collectors.is_empty();
        is_on.then(|| Marking {
            flow_label: self.flow_label,
            dscp: self.dscp,
            collectors: self.collectors.clone(),
            target_port: self.to_target.then_some(FIREFLY_PORT),
            firefly_interval: (self.every_s > 0).then(|| Duration::from_secs(self.every_s.into())),
            host: host.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_marked_by_default() {
        assert_eq!(MarkingConfig::default().marking("h"), None);
        let config: MarkingConfig = toml::from_str("to_target = true\nevery_s = 0\n").unwrap();
        let marking = config.marking("h").unwrap();
        assert_eq!(
            (marking.target_port, marking.firefly_interval, marking.host.as_str()),
            (Some(10_514), None, "h")
        );
        assert!(!marking.flow_label && !marking.dscp && marking.collectors.is_empty());
        let config: MarkingConfig = toml::from_str("collectors = ['[2001:db8::7]:10514']\n").unwrap();
        config.check().unwrap();
        assert_eq!(config.marking("h").unwrap().firefly_interval, Some(Duration::from_secs(60)));
    }

    #[test]
    fn mistakes_are_reported() {
        let said = |text: &str| toml::from_str::<MarkingConfig>(text).unwrap().check().unwrap_err().detail;
        assert!(said("collectors = ['192.0.2.1:0']").contains("192.0.2.1:0 has no port"));
        assert!(said("every_s = 100000").contains("every_s is 100000"));
        let many = vec!["'192.0.2.1:1'"; COLLECTORS_MAX + 1].join(",");
        assert!(said(&format!("collectors = [{many}]")).contains("17 collectors"));
        assert!(toml::from_str::<MarkingConfig>("collectors = ['collector.example.org:10514']").is_err());
    }
}
