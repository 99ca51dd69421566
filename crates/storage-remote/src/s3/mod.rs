//! Storages that speak S3. An end of a copy is one by its scheme, `s3s` (over TLS) or `s3`, and by the keys
//! that open its bucket: requests to it are signed, a file arrives in parts that nobody sees before the last
//! of them is confirmed, and storages that copy by themselves get URLs that are signed for one file and a
//! while.
//!
//! Not here: whose keys are for whom (`service`), what is compared (`verify`). Reads go the way of all reads
//! (`stream`): S3 answers `GET` with ranges as every server does.

pub(crate) mod answer;
mod keys;
mod listing;
mod object;
mod parts;
mod query;
mod records;
mod sign;
mod upload;

pub(crate) use answer::{refusal, skew};
pub use keys::{S3Keys, bucket_of};
pub(crate) use listing::ListedObject;
pub(crate) use object::{Part, UploadEnd, told_checksum};
pub(crate) use parts::WHOLE_MAX;
pub(crate) use query::canonical_query;
pub(crate) use records::Records;
pub(crate) use sign::{Signed, presigned, sign};
pub(crate) use upload::{PartMemory, Slot, is_whole_of};
