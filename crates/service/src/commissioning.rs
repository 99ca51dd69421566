//! Test transfers beside production: a community of its own with a small share. What they said of links is kept by
//! `operations::commissioning`.

use std::collections::BTreeMap;

use longhaul_scheduler::{CommunityShare, Shares};

/// Whose work test transfers are.
const COMMUNITY: &str = "commissioning";
/// Beside one other community that wants the same target: a byte in twenty. What nobody else wants they may have all.
const WEIGHT: f64 = 1.0 / 19.0;

/// All others are equal.
pub(crate) fn shares() -> Shares {
    let name = COMMUNITY.parse().ok();
    let communities: BTreeMap<_, _> =
        name.map(|name| (name, CommunityShare::of(WEIGHT))).into_iter().collect();
    Shares { communities, ..Shares::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_have_a_twentieth_beside_another() {
        let shares = shares();
        let own = &shares.communities[&COMMUNITY.parse().unwrap()];
        assert!((own.weight / (own.weight + shares.default) - 0.05).abs() < 1e-9);
    }
}
