//! Where the state was when the service last started. A state directory that was copied and started elsewhere
//! has the keys of the deployment, and leases what the other leases too; whoever starts it is told.
//!
//! What is noticed: another machine, or another directory. Not noticed: a copy that nobody starts, and a
//! machine that was cloned as a whole while it has the same id.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use longhaul_catalog::{Catalog, CatalogError};
use longhaul_model::{Blame, Fault, FaultCode, Timestamp};
use serde::{Deserialize, Serialize};

const SETTING: &str = "state-place";
/// The id that systemd and D-Bus give a machine at its installation.
const MACHINE_ID: &str = "/etc/machine-id";

/// Where a service started, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StatePlace {
    /// Number of starts on this state.
    start: u64,
    at: Timestamp,
    host: String,
    /// None where machines have no id, as in some containers.
    machine: Option<String>,
    directory: String,
    /// Number of the directory in its file system: a copy has another, a renamed or mounted one has not.
    inode: Option<u64>,
}

/// The place differs from that of the last start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlaceChange {
    before: StatePlace,
}

impl PlaceChange {
    pub(crate) fn fault(&self) -> Fault {
        let StatePlace { at, host, directory, .. } = &self.before;
        let detail = format!(
            "the service's state was copied or moved: it was last started at {at} on {host} in {directory}"
        );
        Fault::new(FaultCode::StateDirectory, detail).blaming(Blame::Ourselves)
    }

    pub(crate) fn remedy(&self) -> String {
        let StatePlace { host, directory, .. } = &self.before;
        format!(
            "if a service still runs on {host} in {directory}, stop this one or that one: two would lease \
             the same work; if it was moved on purpose, none: the next start there says no more of it"
        )
    }
}

/// Records this start, and returns what changed since the one before.
pub(crate) fn note_start(
    catalog: &Catalog,
    directory: &Path,
    now: Timestamp,
) -> Result<Option<PlaceChange>, CatalogError> {
    let kept = catalog.setting(SETTING)?.and_then(|text| serde_json::from_str::<StatePlace>(&text).ok());
    let here = StatePlace {
        start: kept.as_ref().map_or(1, |before| before.start.saturating_add(1)),
        at: now,
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        machine: machine_id(),
        directory: directory.display().to_string(),
        inode: directory.metadata().ok().map(|metadata| metadata.ino()),
    };
    let change = kept.and_then(|before| change(before, &here));
    if let Some(change) = &change {
        tracing::warn!(fault = %change.fault(), start = here.start, "the state has come to another place");
    }
    let text = serde_json::to_string(&here).unwrap_or_default();
    // A catalog that cannot be written now is told by whoever has to write.
    if let Err(error) = catalog.set_setting(SETTING, &text) {
        tracing::warn!(%error, "the place of the state could not be recorded");
    }
    Ok(change)
}

/// What is not known on one of the sides says nothing.
fn change(before: StatePlace, here: &StatePlace) -> Option<PlaceChange> {
    let differs =
        |one: Option<&str>, other: Option<&str>| one.zip(other).is_some_and(|(one, other)| one != other);
    let other_machine = differs(before.machine.as_deref(), here.machine.as_deref());
    let other_directory = before.inode.zip(here.inode).is_some_and(|(before, here)| before != here);
    (other_machine || other_directory).then_some(PlaceChange { before })
}

fn machine_id() -> Option<String> {
    let text = std::fs::read_to_string(MACHINE_ID).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(machine: Option<&str>, directory: &str, inode: Option<u64>) -> StatePlace {
        StatePlace {
            start: 1,
            at: Timestamp::from_seconds(1_763_717_531),
            host: "host".into(),
            machine: machine.map(str::to_owned),
            directory: directory.into(),
            inode,
        }
    }

    #[test]
    fn a_state_that_was_copied_is_noticed_and_one_that_stayed_is_not() {
        let before = || place(Some("a1"), "/var/lib/longhaul/service", Some(7));
        for (here, noticed) in [
            (before(), false),
            // Another machine; a copy on the same one.
            (place(Some("b2"), "/var/lib/longhaul/service", Some(7)), true),
            (place(Some("a1"), "/srv/copy", Some(8)), true),
            (place(Some("a1"), "/var/lib/longhaul/service", Some(8)), true),
            // Renamed, or seen through another mount; a container without an id.
            (place(Some("a1"), "/srv/renamed", Some(7)), false),
            (place(None, "/var/lib/longhaul/service", Some(7)), false),
            (place(Some("a1"), "/var/lib/longhaul/service", None), false),
        ] {
            assert_eq!(change(before(), &here).is_some(), noticed, "{here:?}");
        }
        let told = change(before(), &place(Some("b2"), "/srv/copy", Some(8))).unwrap();
        assert!(told.fault().detail.contains("on host in /var/lib/longhaul/service"), "{}", told.fault());
    }

    #[test]
    fn a_copied_catalog_is_noticed_at_its_first_start_and_then_at_home() {
        let (home, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let database = longhaul_catalog::MemoryDatabase::new(Timestamp::ZERO).unwrap();
        let catalog = database.open(Timestamp::ZERO).unwrap();
        let start = |directory: &Path| note_start(&catalog, directory, Timestamp::ZERO).unwrap().is_some();
        assert!(!start(home.path()) && !start(home.path()), "a restart is no move");
        assert!(start(elsewhere.path()));
        assert!(!start(elsewhere.path()), "it was told once");
        assert!(start(home.path()), "the original, which the copy has written over");
    }
}
