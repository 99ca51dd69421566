//! Storages that the agent offers and the service does not serve, since their names are neither the site's
//! nor confirmed by an administrator. Once a name is confirmed, the storage is offered again.

use std::collections::BTreeSet;

use longhaul_model::{SiteName, StorageName};

/// The storages that the last hello offered in vain.
#[derive(Debug, Default)]
pub(crate) struct UnconfirmedStorages(BTreeSet<StorageName>);

impl UnconfirmedStorages {
    /// Notes the reply to a hello, and says in the log what has changed.
    pub(crate) fn note_hello(&mut self, left_out: Vec<StorageName>, site: &SiteName) {
        let left_out = left_out.into_iter().collect();
        for storage in self.0.difference(&left_out) {
            tracing::info!(%storage, "the storage's name is confirmed");
        }
        for storage in left_out.difference(&self.0) {
            let next_step = format!("longhaul storage allow {storage} --site {site}");
            tracing::warn!(%storage, %next_step, "the service does not serve the storage: an administrator \
                has to confirm its name");
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
        let site = "beta".parse().unwrap();
        let mut unconfirmed = UnconfirmedStorages::default();
        assert!(!unconfirmed.is_any_confirmed(&[]), "nothing was left out");
        unconfirmed.note_hello(names(&["attic", "vault"]), &site);
        assert!(unconfirmed.contains(&names(&["vault"])[0]) && !unconfirmed.contains(&names(&["beta"])[0]));
        assert!(!unconfirmed.is_any_confirmed(&names(&["vault", "attic"])));
        assert!(unconfirmed.is_any_confirmed(&names(&["attic"])));
        // The hello that followed.
        unconfirmed.note_hello(names(&["attic"]), &site);
        assert!(!unconfirmed.is_any_confirmed(&names(&["attic"])), "once is enough");
        unconfirmed.note_hello(Vec::new(), &site);
        assert!(!unconfirmed.is_any_confirmed(&[]), "as a service that knows of no such names replies");
    }
}
