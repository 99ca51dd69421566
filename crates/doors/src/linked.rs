//! What links lead to.
//!
//! Rights are about places, and a link gives a place a second path. Requests are judged by the path that they
//! name; whatever of the storage is then looked at, listed or read is judged here by the path without links
//! at which it was found as well. The storage says that path after it opened what it shows, so a link that is
//! exchanged meanwhile gains nothing. Changes follow no links.

use longhaul_model::{Fault, FaultCode};
use longhaul_storage::{Entry, Listing, SourceFile};

use crate::answer::{Outcome, Refusal};
use crate::propfind::join;
use crate::request::RequestPath;
use crate::rights::{Action, GrantedRights};
use crate::serve::{DoorContext, directories};

/// A file may be replaced between two looks at it, but not for ever.
const OPENING_TRIES_MAX: usize = 4;

impl DoorContext {
    /// The entry at a path for which `action` is allowed, if it is allowed where links led to as well.
    pub(crate) fn look_up(
        &self,
        granted: &GrantedRights,
        action: Action,
        place: &RequestPath,
    ) -> Outcome<Option<Entry>> {
        let found = self.stat(place)?;
        if let Some(real) = found.as_ref().and_then(|entry| entry.real_path.as_deref()) {
            granted.check(action, real)?;
        }
        Ok(found)
    }

    /// A page of a directory for which `action` is allowed, with those entries for which it is.
    pub(crate) fn list(
        &self,
        (granted, action): (&GrantedRights, Action),
        path: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Outcome<Listing> {
        let mut page = directories(self.storage().as_ref())?.list(path, after, limit)?;
        if let Some(real) = &page.real_path {
            granted.check(action, real)?;
        }
        let real_directory = page.real_path.as_deref().unwrap_or(path);
        page.entries.retain(|entry| {
            let real = entry.real_path.clone().unwrap_or_else(|| join(real_directory, &entry.name));
            granted.may(action, &join(path, &entry.name)) && granted.may(action, &real)
        });
        Ok(page)
    }

    /// Opens a file for which `action` is allowed. The version that was opened is the one at the path that
    /// was judged.
    pub(crate) fn open_file(
        &self,
        granted: &GrantedRights,
        action: Action,
        place: &RequestPath,
    ) -> Outcome<Box<dyn SourceFile>> {
        let at = place.pfn(self.storage().name())?;
        for _ in 0..OPENING_TRIES_MAX {
            let file = self.storage().open(&at)?;
            let found = self.look_up(granted, action, place)?;
            if found.is_some_and(|entry| !entry.is_directory && entry.identity == file.identity()) {
                return Ok(file);
            }
        }
        Err(Fault::new(FaultCode::Conflict, format!("{at} is replaced again and again")).into())
    }

    /// Whether an action is allowed at a path, and where links lead from it. For actions of others than this
    /// door, such as those of a tape.
    pub(crate) fn check_place(&self, granted: &GrantedRights, action: Action, path: &str) -> Outcome<()> {
        granted.check(action, path)?;
        let place = RequestPath { path: path.to_owned(), slash: false };
        match self.look_up(granted, action, &place) {
            // Whatever is not there, or cannot be looked at, leads nowhere.
            Err(refusal) if !refusal.is_about_rights() => Ok(()),
            looked => looked.map(drop),
        }
    }
}

impl Refusal {
    fn is_about_rights(&self) -> bool {
        matches!(self.status, http::StatusCode::FORBIDDEN | http::StatusCode::UNAUTHORIZED)
    }
}
