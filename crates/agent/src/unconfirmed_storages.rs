//! Storages that the agent offers and the service does not serve, since their names are neither the site's
//! nor confirmed by an administrator. Once a name is confirmed, the storage is offered again.

use std::collections::BTreeSet;

use longhaul_model::StorageName;

/// Shows why a storage is left out, with the command that helps: the agent knows neither.
const NEXT_STEP: &str = "longhaul problems";

/// The storages that the last hello offered in vain.
#[derive(Debug, Default)]
pub(crate) struct UnconfirmedStorages(BTreeSet<StorageName>);

impl UnconfirmedStorages {
    /// Notes the reply to a hello, and says in the log what has changed.
    pub(crate) fn note_hello(&mut self, left_out: Vec<StorageName>) {
        let left_out = left_out.into_iter().collect();
        for storage in self.0.difference(&left_out) {
            tracing::info!(%storage, "the service leaves the storage out no longer");
        }
        for storage in left_out.difference(&self.0) {
            tracing::warn!(%storage, next_step = NEXT_STEP, "the service does not serve the storage");
        }
        self.0 = left_out;
    }

    /// Whether, by the reply to a later report, one of them is to be offered again.
    pub(crate) fn is_any_confirmed(&self, unconfirmed: &[StorageName]) -> bool {
        self.0.iter().any(|storage| !unconfirmed.contains(storage))
    }

    pub(crate) fn contains(&self, storage: &StorageName) -> bool {
        self.0.contains(storage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<StorageName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn a_storage_is_offered_again_when_its_name_is_confirmed() {
        let mut unconfirmed = UnconfirmedStorages::default();
        assert!(!unconfirmed.is_any_confirmed(&[]), "nothing was left out");
        unconfirmed.note_hello(names(&["attic", "vault"]));
        assert!(unconfirmed.contains(&names(&["vault"])[0]) && !unconfirmed.contains(&names(&["beta"])[0]));
        assert!(!unconfirmed.is_any_confirmed(&names(&["vault", "attic"])));
        assert!(unconfirmed.is_any_confirmed(&names(&["attic"])));
        // The hello that followed.
        unconfirmed.note_hello(names(&["attic"]));
        assert!(!unconfirmed.is_any_confirmed(&names(&["attic"])), "once is enough");
        unconfirmed.note_hello(Vec::new());
        assert!(!unconfirmed.is_any_confirmed(&[]), "as a service that knows of no such names replies");
    }
}
