//! Gains of the circuits of each provider: bytes over the best-effort path, less what others at their ports
//! lost. A provider with a negative sum is suspended for a time (circuit breaker).

use std::collections::{BTreeMap, VecDeque};

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::settings::PlanSettings;

/// Circuits of a provider whose gains are remembered.
const GAINS_PER_PROVIDER_MAX: usize = 20;

/// Gains of one provider's last circuits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct GainHistory {
    gains: VecDeque<f64>,
    #[serde(rename = "off_until")]
    suspended_until: Option<Timestamp>,
    /// Sum of the gains for which it was suspended.
    gained: f64,
}

/// Gains by provider.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProviderGains(BTreeMap<String, GainHistory>);

impl ProviderGains {
    pub(crate) fn record_end(
        &mut self,
        provider: &str,
        gained: f64,
        settings: &PlanSettings,
        now: Timestamp,
    ) {
        let past = self.0.entry(provider.to_owned()).or_default();
        if past.gains.len() == GAINS_PER_PROVIDER_MAX {
            past.gains.pop_front();
        }
        past.gains.push_back(gained);
        let sum: f64 = past.gains.iter().sum();
        if past.gains.len() >= settings.provider_suspension_circuits && sum < 0.0 {
            past.suspended_until = Some(now.plus(settings.provider_suspension));
            past.gained = sum;
            // It gets another chance then, and one more bad circuit suspends it again.
            let keep = settings.provider_suspension_circuits.saturating_sub(1);
            past.gains.drain(..past.gains.len() - keep);
        }
    }

    /// End of the suspension, and the sum of gains that caused it.
    pub(crate) fn suspension(&self, provider: &str, now: Timestamp) -> Option<(Timestamp, i64)> {
        let past = self.0.get(provider)?;
        past.suspended_until.filter(|until| *until > now).map(|until| (until, past.gained as i64))
    }

    pub(crate) fn gained(&self, provider: &str) -> f64 {
        self.0.get(provider).map_or(0.0, |past| past.gains.iter().sum())
    }
}
