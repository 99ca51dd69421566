//! What storages answer, what clients send to doors: their rooms say what they promise of it.

use longhaul_doors::promises as door;
use longhaul_model::mark::Registry;
use longhaul_storage_remote::promises as storage;

/// The first byte says which answer of a storage it is: of WebDAV, of the tape API, of S3.
pub fn storage_answers(bytes: &[u8]) {
    storage::answers(bytes);
}

/// Markers of a copy between storages, cut into pieces of as many bytes as the first byte says.
pub fn copy_markers(bytes: &[u8]) {
    storage::markers(bytes);
}

/// A site's report of space.
pub fn space_reports(bytes: &[u8]) {
    storage::space_reports(bytes);
}

pub fn remote_urls(bytes: &[u8]) {
    storage::urls(bytes);
}

/// Bodies of WebDAV.
pub fn door_bodies(bytes: &[u8]) {
    door::bodies(bytes);
}

/// The first byte says which header of a request it is.
pub fn door_headers(bytes: &[u8]) {
    door::headers(bytes);
}

/// The first byte says whether it is a macaroon with its conditions, or what somebody asks for in one.
pub fn macaroons(bytes: &[u8]) {
    door::macaroons(bytes);
}

/// What clients ask tapes for.
pub fn tape_bodies(bytes: &[u8]) {
    door::tape_bodies(bytes);
}

/// A file of experiments and activities.
pub fn registries(bytes: &[u8]) {
    let Ok(registry) = Registry::parse(bytes) else { return };
    for name in ["atlas", "cms"] {
        let Ok(number) = registry.experiment(name) else { continue };
        let found = registry.activity(number, "data challenge");
        assert!(found.is_err() || found.is_ok_and(|activity| activity < 64));
    }
}
