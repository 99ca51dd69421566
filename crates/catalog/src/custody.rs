//! Custody: what is kept on purpose goes only when two people in two roles say so (the two-person rule): one
//! who answers for the data, and one who answers for the storage's site.

use std::time::Duration;

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

/// A consent that nobody has joined by then counts no more.
pub const CONSENT_TTL: Duration = Duration::from_secs(7 * 86_400);

/// One person's consent to the cancellation of a custodial subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelConsent {
    /// Key of the person: kind of credential, name and community.
    pub key: String,
    /// Name of the person, for people.
    pub who: String,
    /// They answer for the data: they manage its community, or are administrators.
    pub for_data: bool,
    /// They answer for the storage: they manage its site, or are administrators.
    pub for_site: bool,
    pub at: Timestamp,
}

/// What a further consent does.
#[derive(Debug, PartialEq, Eq)]
pub enum ConsentEffect {
    /// Both roles have said so.
    Cancels,
    /// It stands, and waits for one of the other role.
    Waits(CancelConsent),
}

/// Joins a consent to the one that stands.
pub fn join(standing: Option<&CancelConsent>, new: CancelConsent) -> ConsentEffect {
    let Some(first) = standing.filter(|first| new.at.since(first.at) < CONSENT_TTL) else {
        return ConsentEffect::Waits(new);
    };
    let by_two = first.key != new.key;
    let in_two_roles = (first.for_data && new.for_site) || (first.for_site && new.for_data);
    match (by_two, in_two_roles) {
        (true, true) => ConsentEffect::Cancels,
        // A second one of the same role adds nothing.
        (true, false) => ConsentEffect::Waits(first.clone()),
        (false, _) => ConsentEffect::Waits(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_763_717_531_000_000);

    fn consent(who: &str, for_data: bool, for_site: bool, at: Timestamp) -> CancelConsent {
        CancelConsent { key: format!("token {who}"), who: who.to_owned(), for_data, for_site, at }
    }

    #[test]
    fn two_people_in_two_roles_cancel_and_nobody_alone() {
        let data = |who| consent(who, true, false, NOW);
        let site = |who| consent(who, false, true, NOW);
        let both = |who| consent(who, true, true, NOW);
        assert_eq!(join(None, both("root")), ConsentEffect::Waits(both("root")), "nobody alone");
        assert_eq!(join(Some(&both("root")), both("root")), ConsentEffect::Waits(both("root")), "nor twice");
        for (first, second) in [
            (data("anna"), site("bert")),
            (site("bert"), data("anna")),
            (both("root"), site("bert")),
            (data("anna"), both("root")),
            (both("root"), both("rita")),
        ] {
            assert_eq!(join(Some(&first), second), ConsentEffect::Cancels);
        }
        assert_eq!(join(Some(&data("anna")), data("carl")), ConsentEffect::Waits(data("anna")), "one role");
        assert_eq!(join(Some(&site("bert")), site("dora")), ConsentEffect::Waits(site("bert")));
    }

    #[test]
    fn a_consent_that_nobody_joins_counts_no_more() {
        let first = consent("anna", true, false, NOW);
        let late = consent("bert", false, true, NOW.plus(CONSENT_TTL));
        assert_eq!(join(Some(&first), late.clone()), ConsentEffect::Waits(late.clone()));
        // A clock that was set back makes no consent older than it is.
        let early = consent("bert", false, true, Timestamp(NOW.0 - 1));
        assert_eq!(join(Some(&first), early), ConsentEffect::Cancels);
    }
}
