//! Walks through collections, one PROPFIND for each, in the order of names.

use std::ops::ControlFlow;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Pfn};
use longhaul_storage::{SkipReason, Visit};

use super::storage::RemoteStorage;
use super::{POSIX_WORK, WORK, identity};
use crate::failure::Scope;
use crate::order::Entry;

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
        let mut members = self.members_of(path)?;
        if path.is_empty() {
            members.retain(|member| member.name != WORK && member.name != POSIX_WORK);
        } else if members.is_empty() {
            let skipped = Visit::Skipped {
                path: format!("{}/", printable(path)),
                reason: SkipReason::EmptyDirectory,
                detail: "nothing is in it".to_owned(),
            };
            return Ok(visit(skipped));
        }
        members.sort_by(|one, other| one.name.cmp(&other.name));
        for member in members {
            let below = if path.is_empty() { member.name } else { format!("{path}/{}", member.name) };
            let flow = match Pfn::new(self.root.name.clone(), &below) {
                Err(error) => visit(Visit::Skipped {
                    path: printable(&below),
                    reason: SkipReason::NameRules,
                    detail: error.to_string(),
                }),
                Ok(_) if member.stat.is_collection => self.walk_collection(&below, visit)?,
                Ok(at) => match self.root.url_of(&at) {
                    Ok(url) => visit(Visit::File { at, identity: identity(&url, &member.stat) }),
                    Err(fault) => visit(Visit::Skipped {
                        path: printable(&below),
                        reason: SkipReason::NameRules,
                        detail: fault.detail,
                    }),
                },
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn members_of(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        let url = match path {
            "" => self.root.url.clone(),
            path => self.root.url.below(path)?,
        };
        let url = url.as_collection();
        let listed = self.runtime.block_on(self.root.remote.members(self.root.resource(&url)));
        listed.map_err(|failure| failure.in_storage(Scope::Source))
    }
}
