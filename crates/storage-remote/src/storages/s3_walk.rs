//! Walks through the keys of a bucket, page by page (ListObjectsV2), in the bucket's own order.

use std::ops::ControlFlow;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Pfn};
use longhaul_storage::{SkipReason, Visit};

use super::s3::Bucket;
use super::storage::RemoteStorage;
use super::{POSIX_WORK, WORK, identity};
use crate::failure::{Failure, Scope};
use crate::s3::ListedObject;

impl RemoteStorage {
    pub(super) fn walk_bucket(
        &self,
        bucket: &Bucket,
        path: &str,
        visit: &mut dyn FnMut(Visit) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        let at_source = |failure: Failure| failure.in_storage(Scope::Source);
        let mut prefix = bucket.prefix.clone();
        let mut is_found = path.is_empty();
        if !path.is_empty() {
            let at = Pfn::new(self.root.name.clone(), path).map_err(Fault::from)?;
            let url = self.root.url_of(&at)?;
            if let Some(stat) = self.runtime.block_on(self.root.stat(&url)).map_err(at_source)? {
                is_found = true;
                if visit(Visit::File { at, identity: identity(&url, &stat) }).is_break() {
                    return Ok(());
                }
            }
            prefix = format!("{prefix}{path}/");
        }
        let mut listing = self.root.remote.list_objects(self.root.resource(&bucket.url), &prefix);
        while let Some(page) = self.runtime.block_on(listing.next_page()).map_err(at_source)? {
            for object in page {
                is_found = true;
                let Some(seen) = self.see(bucket, object)? else { continue };
                if visit(seen).is_break() {
                    return Ok(());
                }
            }
        }
        match is_found {
            true => Ok(()),
            false => Err(Fault::new(FaultCode::SourceMissing, format!("{path} is not there"))),
        }
    }

    /// None: what is no file of the storage, such as the markers by which consoles show folders.
    fn see(&self, bucket: &Bucket, object: ListedObject) -> Result<Option<Visit>, Fault> {
        let Some(path) = object.key.strip_prefix(bucket.prefix.as_str()) else {
            let detail = format!("a listing of {} has keys beside those asked for", bucket.url);
            return Err(Fault::new(FaultCode::ProtocolError, detail));
        };
        let first = path.split('/').next().unwrap_or_default();
        if first == WORK || first == POSIX_WORK || path.ends_with('/') && object.stat.size == 0 {
            return Ok(None);
        }
        let skipped = |detail: String| {
            Ok(Some(Visit::Skipped { path: printable(path), reason: SkipReason::NameRules, detail }))
        };
        let at = match Pfn::new(self.root.name.clone(), path) {
            Ok(at) => at,
            Err(error) => return skipped(error.to_string()),
        };
        match self.root.url_of(&at) {
            Ok(url) => Ok(Some(Visit::File { at, identity: identity(&url, &object.stat) })),
            Err(fault) => skipped(fault.detail),
        }
    }
}
