//! One function per target. A panic is a finding; so is a broken promise of a decoder, which is a panic here.

mod api;
mod circuits;
mod copy;
mod dice;
mod gateways;
mod grid;
mod journal;
mod model;
mod receiver;
mod recordings;
mod reports;
mod security;
mod settings;
mod source;
mod storages;
mod web;
mod wire;

pub use api::{agent_documents, documents, manifests};
pub use circuits::circuit_answers;
pub use copy::{batches, filters, urls};
pub use gateways::{archives, broker_frames, directories, meshes, results, storage_catalogues};
pub use grid::{bearer_tokens, grid_chains, grid_files, issuer_answers, login_answers};
pub use journal::{journal_bytes, journal_records};
pub use model::{digests, name_patterns, name_rules, names, trees, values};
pub use receiver::{receiver, replicas};
pub use recordings::recordings;
pub use reports::agent_reports;
pub use security::{
    access, certificates, gridmaps, identities, origins, permit_payloads, permits, signing_requests, tokens,
};
pub use settings::settings;
pub use source::source;
pub use storages::{
    copy_markers, door_bodies, door_headers, macaroons, registries, remote_urls, space_reports,
    storage_answers, tape_bodies,
};
pub use web::{cookies, forms, submissions};
pub use wire::{frame_bodies, frames};

pub type Target = fn(&[u8]);

/// Name (of the wrapper and of the folder of the corpus) and function.
pub const ALL: &[(&str, Target)] = &[
    ("frames", frames),
    ("frame_bodies", frame_bodies),
    ("journal_bytes", journal_bytes),
    ("journal_records", journal_records),
    ("receiver", receiver),
    ("replicas", replicas),
    ("source", source),
    ("names", names),
    ("name_rules", name_rules),
    ("name_patterns", name_patterns),
    ("storage_catalogues", storage_catalogues),
    ("values", values),
    ("digests", digests),
    ("trees", trees),
    ("permits", permits),
    ("permit_payloads", permit_payloads),
    ("certificates", certificates),
    ("signing_requests", signing_requests),
    ("identities", identities),
    ("tokens", tokens),
    ("origins", origins),
    ("gridmaps", gridmaps),
    ("access", access),
    ("grid_chains", grid_chains),
    ("grid_files", grid_files),
    ("bearer_tokens", bearer_tokens),
    ("issuer_answers", issuer_answers),
    ("login_answers", login_answers),
    ("agent_documents", agent_documents),
    ("agent_reports", agent_reports),
    ("documents", documents),
    ("manifests", manifests),
    ("results", results),
    ("archives", archives),
    ("meshes", meshes),
    ("broker_frames", broker_frames),
    ("directories", directories),
    ("circuit_answers", circuit_answers),
    ("recordings", recordings),
    ("submissions", submissions),
    ("cookies", cookies),
    ("forms", forms),
    ("settings", settings),
    ("urls", urls),
    ("batches", batches),
    ("filters", filters),
    ("storage_answers", storage_answers),
    ("copy_markers", copy_markers),
    ("space_reports", space_reports),
    ("remote_urls", remote_urls),
    ("door_bodies", door_bodies),
    ("door_headers", door_headers),
    ("macaroons", macaroons),
    ("tape_bodies", tape_bodies),
    ("registries", registries),
];
