//! The conformance suite on SQLite.

use longhaul_catalog::{Catalog, conformance};

#[test]
fn sqlite_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    conformance::check(&|| {
        count.set(count.get() + 1);
        let path = directory.path().join(format!("{}.db", count.get()));
        Box::new(move || Catalog::open(&path, conformance::NOW).unwrap())
    });
}
