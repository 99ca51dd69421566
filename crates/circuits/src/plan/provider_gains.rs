//! What circuits came to: more bytes than the plain way would have carried, less what others at their ports
//! lost. A provider whose circuits gain less than nothing is left alone for a time.

use std::collections::{BTreeMap, VecDeque};

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::settings::PlanSettings;

/// Circuits of a provider that are remembered.
const GAINS_PER_PROVIDER_MAX: usize = 20;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct GainHistory {
    gains: VecDeque<f64>,
    #[serde(rename = "off_until")]
    suspended_until: Option<Timestamp>,
    /// Of the circuits for which it was switched off.
    gained: f64,
}

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
            // It gets another chance then, and one bad circuit more ends that.
            let keep = settings.provider_suspension_circuits.saturating_sub(1);
            past.gains.drain(..past.gains.len() - keep);
        }
    }

    /// Until when it is not asked, and for which gain.
    pub(crate) fn suspension(&self, provider: &str, now: Timestamp) -> Option<(Timestamp, i64)> {
        let past = self.0.get(provider)?;
        past.suspended_until.filter(|until| *until > now).map(|until| (until, past.gained as i64))
    }

    pub(crate) fn gained(&self, provider: &str) -> f64 {
        self.0.get(provider).map_or(0.0, |past| past.gains.iter().sum())
    }
}
