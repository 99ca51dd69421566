//! Shares: weights of communities and their activities, when they want more than there is.
//!
//! A weight counts relative to those that have work at the same target: 3 against 1 is three bytes against
//! one; a party without work leaves all to the others. Weights from outside are sanitized: negative numbers
//! and NaN are 0, and 0 means: only what nobody else can use. If all are 0, all are equal.

use std::collections::BTreeMap;

use longhaul_model::{ActivityName, CommunityName};
use serde::{Deserialize, Serialize};

/// The owner of work: a community, and an activity within it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Party {
    pub community: CommunityName,
    /// None: the community's work without a name.
    pub activity: Option<ActivityName>,
}

/// Weights of all; those not named weigh `default`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    pub communities: BTreeMap<CommunityName, CommunityShare>,
    pub default: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommunityShare {
    pub weight: f64,
    pub activities: BTreeMap<ActivityName, f64>,
    /// Weight of each activity not named, and of work without an activity.
    pub default_activity: f64,
}

impl Default for Shares {
    /// All are equal.
    fn default() -> Self {
        Shares { communities: BTreeMap::new(), default: 1.0 }
    }
}

impl CommunityShare {
    /// All its activities are equal.
    pub fn with_weight(weight: f64) -> Self {
        CommunityShare { weight, activities: BTreeMap::new(), default_activity: 1.0 }
    }
}

/// What a weight of 0 counts: next to nothing, but never a division by zero.
const WEIGHT_MIN: f64 = 1e-9;
/// Larger weights count as this, so that sums stay finite.
const WEIGHT_MAX: f64 = 1e9;

pub(crate) fn sanitize_weight(weight: f64) -> f64 {
    if weight.is_finite() { weight.clamp(WEIGHT_MIN, WEIGHT_MAX) } else { WEIGHT_MIN }
}

/// Numbers for names, with their weights at hand.
#[derive(Default)]
pub(crate) struct Parties {
    shares: Shares,
    communities: Vec<(CommunityName, f64)>,
    parties: Vec<(Party, u32, f64)>,
    numbers: BTreeMap<Party, u32>,
    /// How often weights were changed.
    edition: u64,
}

/// Weights by the numbers of communities and of parties.
pub(crate) struct Weights {
    pub communities: Vec<f64>,
    pub activities: Vec<f64>,
}

/// Parties with a number of their own, since names come from outside; later ones count as the last.
const PARTIES_MAX: usize = 10_000;

impl Parties {
    pub(crate) fn number(&mut self, party: &Party) -> u32 {
        if let Some(&known) = self.numbers.get(party) {
            return known;
        }
        if self.parties.len() >= PARTIES_MAX {
            return PARTIES_MAX as u32 - 1;
        }
        let index = self.communities.iter().position(|(name, _)| *name == party.community);
        let community = index.unwrap_or_else(|| {
            let weight = self.community_weight(&party.community);
            self.communities.push((party.community.clone(), weight));
            self.communities.len() - 1
        });
        let weight = self.activity_weight(party);
        let number = self.parties.len() as u32;
        self.parties.push((party.clone(), community as u32, weight));
        self.numbers.insert(party.clone(), number);
        number
    }

    /// New weights; those of before are given back, for what is counted by them.
    pub(crate) fn set(&mut self, shares: Shares) -> Weights {
        let before = Weights {
            communities: self.communities.iter().map(|row| row.1).collect(),
            activities: self.parties.iter().map(|row| row.2).collect(),
        };
        self.edition += 1;
        self.shares = shares;
        for at in 0..self.communities.len() {
            self.communities[at].1 = self.community_weight(&self.communities[at].0);
        }
        for at in 0..self.parties.len() {
            self.parties[at].2 = self.activity_weight(&self.parties[at].0);
        }
        before
    }

    fn community_weight(&self, name: &CommunityName) -> f64 {
        let row = self.shares.communities.get(name);
        sanitize_weight(row.map_or(self.shares.default, |row| row.weight))
    }

    fn activity_weight(&self, party: &Party) -> f64 {
        let Some(row) = self.shares.communities.get(&party.community) else { return 1.0 };
        let named = party.activity.as_ref().and_then(|name| row.activities.get(name));
        sanitize_weight(named.copied().unwrap_or(row.default_activity))
    }

    pub(crate) fn version(&self) -> u64 {
        self.edition
    }

    pub(crate) fn community(&self, party: u32) -> u32 {
        self.parties[party as usize].1
    }

    pub(crate) fn name_of_community(&self, community: u32) -> &CommunityName {
        &self.communities[community as usize].0
    }

    pub(crate) fn weight_of_community(&self, community: u32) -> f64 {
        self.communities[community as usize].1
    }

    pub(crate) fn weight_of_activity(&self, party: u32) -> f64 {
        self.parties[party as usize].2
    }

    pub(crate) fn party(&self, party: u32) -> &Party {
        &self.parties[party as usize].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(community: &str, activity: Option<&str>) -> Party {
        Party { community: community.parse().unwrap(), activity: activity.map(|name| name.parse().unwrap()) }
    }

    #[test]
    fn weights_are_found_by_name_and_made_sound() {
        let mut parties = Parties::default();
        let atlas = parties.number(&party("atlas", Some("production")));
        let other = parties.number(&party("lhcb", None));
        assert_eq!(parties.weight_of_community(parties.community(atlas)), 1.0);
        let mut share = CommunityShare::with_weight(7.0);
        share.activities.insert("production".parse().unwrap(), f64::NAN);
        share.default_activity = -3.0;
        let communities = BTreeMap::from([("atlas".parse().unwrap(), share)]);
        parties.set(Shares { communities, default: 2.0 });
        assert_eq!(parties.weight_of_community(parties.community(atlas)), 7.0);
        assert_eq!(parties.weight_of_activity(atlas), WEIGHT_MIN);
        assert_eq!(parties.weight_of_community(parties.community(other)), 2.0);
        let late = parties.number(&party("atlas", None));
        assert_eq!(parties.weight_of_activity(late), WEIGHT_MIN);
        assert_eq!(parties.community(late), parties.community(atlas));
    }
}
