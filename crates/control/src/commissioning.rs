//! Test transfers beside production: a community of its own with a small share and a limit, unless an
//! administrator sets others. What they said of links is kept by `operations::commissioning`.

use longhaul_model::CommunityName;
use longhaul_scheduler::{CommunityShare, Limit};

/// The community that test transfers are charged to.
const COMMUNITY: &str = "commissioning";
/// Beside one other community that wants the same target: a byte in twenty. What nobody else wants they may
/// have all.
const WEIGHT: f64 = 1.0 / 19.0;
/// Over all links, also where nobody else wants anything: as many as one test may have at once, so that a
/// test of one link measures that link, and many tests together do not fill a deployment.
const FILES_AT_ONCE: u32 = 64;

/// The community whose transfers may use links that are not commissioned.
pub(crate) fn community() -> Option<CommunityName> {
    COMMUNITY.parse().ok()
}

/// What they are entitled to where nothing else was set.
pub(crate) fn shares() -> Option<(CommunityName, CommunityShare)> {
    Some((community()?, CommunityShare::with_weight(WEIGHT)))
}

/// How they are limited where no other limit was set.
pub(crate) fn limit() -> Option<(CommunityName, Limit)> {
    Some((community()?, Limit { active: Some(FILES_AT_ONCE), bytes_per_s: None }))
}

#[cfg(test)]
mod tests {
    use longhaul_scheduler::{Event, Shares};

    use crate::steering::{KeptShares, Whose};

    use super::*;

    fn weight(kept: &KeptShares) -> (f64, f64) {
        let Event::Shares(Shares { communities, default }) = kept.event() else { panic!("shares") };
        (communities[&COMMUNITY.parse().unwrap()].weight, default)
    }

    #[test]
    fn tests_have_a_twentieth_beside_another_unless_it_is_set() {
        let mut kept = KeptShares::default();
        let (own, other) = weight(&kept);
        assert!((own / (own + other) - 0.05).abs() < 1e-9);
        kept.set(&Whose::Community(COMMUNITY.parse().unwrap()), Some(3.0)).unwrap();
        assert_eq!(weight(&kept), (3.0, 1.0));
    }
}
