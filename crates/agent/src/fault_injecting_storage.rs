//! For tests: a POSIX storage in a temporary directory with injected faults.

use std::path::Path;
use std::sync::Arc;

use longhaul_storage::hooked::HookedStorage;
use longhaul_storage::{FlushPolicy, Posix, PosixOptions};

pub(crate) fn fault_injecting_storage(root: &Path) -> Arc<HookedStorage> {
    let options = PosixOptions {
        name: "alpha".parse().unwrap(),
        root: root.into(),
        work: None,
        writable: true,
        flush: FlushPolicy::None,
    };
    HookedStorage::new(Arc::new(Posix::open(options).unwrap()), |_| ())
}
