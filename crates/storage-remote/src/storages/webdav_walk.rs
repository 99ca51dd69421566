//! Walks through collections, one PROPFIND for each, in the order of names.

use std::ops::ControlFlow;

use longhaul_model::percent::decode_lenient;
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Pfn};
use longhaul_storage::{SkipReason, Visit};

use super::listing::{Listing, MemberKind};
use super::storage::RemoteStorage;
use super::{POSIX_WORK, WORK, identity};
use crate::body_reader::BodyReader;
use crate::failure::{Failure, Kind, Scope};
use crate::multistatus;
use crate::order::Stat;

/// Bytes of the answer that lists a collection: a million members of half a kilobyte each, and some more.
const LISTING_BYTES_MAX: u64 = 4 << 30;

impl RemoteStorage {
    pub(super) fn walk_collections(
        &self,
        path: &str,
        visit: &mut dyn FnMut(Visit) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        if path.is_empty() {
            return self.walk_collection("", visit).map(drop);
        }
        let at = Pfn::new(self.root.name.clone(), path).map_err(Fault::from)?;
        let url = self.root.url_of(&at)?;
        let found = self.runtime.block_on(self.root.stat(&url));
        match found.map_err(|failure| failure.in_storage(Scope::Source))? {
            None => Err(Fault::new(FaultCode::SourceMissing, format!("{at} is not there"))),
            Some(stat) if stat.is_collection => self.walk_collection(path, visit).map(drop),
            Some(stat) => {
                let _ = visit(Visit::File { at, identity: identity(&url, &stat) });
                Ok(())
            }
        }
    }

    /// Breaks when the visitor does.
    fn walk_collection(
        &self,
        path: &str,
        visit: &mut dyn FnMut(Visit) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Fault> {
        let mut listing = self.list_collection(path)?;
        if listing.is_empty() && !path.is_empty() {
            let skipped = Visit::Skipped {
                path: format!("{}/", printable(path)),
                reason: SkipReason::EmptyDirectory,
                detail: "nothing is in it".to_owned(),
            };
            return Ok(visit(skipped));
        }
        for member in listing.sorted() {
            let below = below(path, member.name);
            let flow = match (Pfn::new(self.root.name.clone(), &below), member.kind) {
                (Ok(_), MemberKind::Collection) => self.walk_collection(&below, visit)?,
                (Ok(at), MemberKind::File(identity)) => visit(Visit::File { at, identity }),
                (Ok(at), MemberKind::Unusable) => visit(unusable(&below, &self.why_unusable(&at))),
                (Err(error), _) => visit(unusable(&below, &error.to_string())),
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The members of a collection, but those that are the storage's own.
    fn list_collection(&self, path: &str) -> Result<Listing, Fault> {
        let url = match path {
            "" => self.root.url.clone(),
            path => self.root.url.below(path)?,
        };
        let url = url.as_collection();
        let at_source = |failure: Failure| failure.in_storage(Scope::Source);
        let remote = &self.root.remote;
        let asked = self.runtime.block_on(remote.listing_of(self.root.resource(&url)));
        let mut body =
            BodyReader::new(asked.map_err(at_source)?, self.runtime.clone(), remote.config.times.stall);
        let own = decode_lenient(url.path());
        let mut listing = Listing::default();
        let read = multistatus::read_each(&mut body, LISTING_BYTES_MAX, &mut |member| {
            let Some(name) = member.name_in(&own).filter(|_| member.found) else { return Ok(()) };
            match path.is_empty() && (name == WORK || name == POSIX_WORK) {
                true => Ok(()),
                false => listing.add(&name, self.kind_of(&below(path, &name), &member.stat)),
            }
        });
        read.map_err(|why| {
            let malformed = || Failure::new(Kind::Malformed, format!("PROPFIND {url}: the answer: {why}"));
            at_source(body.take_failure().unwrap_or_else(malformed))
        })?;
        Ok(listing)
    }

    fn kind_of(&self, path: &str, stat: &Stat) -> MemberKind {
        if stat.is_collection {
            return MemberKind::Collection;
        }
        let at = Pfn::new(self.root.name.clone(), path).ok();
        match at.and_then(|at| self.root.url_of(&at).ok()) {
            Some(url) => MemberKind::File(identity(&url, stat)),
            None => MemberKind::Unusable,
        }
    }

    fn why_unusable(&self, at: &Pfn) -> String {
        self.root.url_of(at).map_or_else(|fault| fault.detail, |_| "its name cannot be used".to_owned())
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn unusable(path: &str, why: &str) -> Visit {
    Visit::Skipped { path: printable(path), reason: SkipReason::NameRules, detail: why.to_owned() }
}
