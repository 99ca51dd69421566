//! A listing in progress: a walk that is taken page by page.

use std::path::Path;

use longhaul_model::{Fault, FaultCode};

use crate::filter::{Action, Filters};
use crate::protocol::{Entry, Kind, ListRequest, PAGE_BYTES_MAX, Page, RelativePath};
use crate::remote::escaped_len;
use crate::rename_on_commit::refuse_work_directory;
use crate::walk::{Walk, WalkEntry, WalkOptions};

/// The first page is short, so that fetching begins soon: it fits into TCP's initial window.
const FIRST_PAGE_BYTES_MAX: usize = 12 << 10;
/// Bytes of an entry besides its texts.
const ENTRY_OVERHEAD_BYTES: usize = 120;
/// Characters of a note.
const NOTE_CHARS_MAX: usize = 200;

pub(super) struct Listing {
    walk: Walk,
    /// The entry that did not fit into the last page.
    left_over: Option<Entry>,
    next_page: u32,
    /// The last page, in case it is requested again after a connection broke.
    last: Option<(u32, Page)>,
}

impl Listing {
    pub(super) fn open(root: &Path, of: &ListRequest) -> Result<Listing, Fault> {
        let ListRequest { path, recursive, filters, prefix } = of;
        refuse_work_directory(path.as_str())?;
        let action = |include: bool| if include { Action::Include } else { Action::Exclude };
        let rules = filters.iter().map(|(include, pattern)| (action(*include), pattern.as_str()));
        let filters = Filters::parse(rules)
            .map_err(|error| Fault::new(FaultCode::BadRequest, error.to_string()).with_source(error))?;
        let options = WalkOptions { filters, prefix: prefix.as_str().to_owned() };
        let walk = Walk::open(root, path.as_str(), options)?;
        if walk.is_directory() && !*recursive {
            let detail = format!("{} is a directory", longhaul_model::units::printable(path.as_str()));
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        Ok(Listing { walk, left_over: None, next_page: 0, last: None })
    }

    /// Returns the next page, or the last one again. A later page is requested from a new listing after a
    /// restart: the pages before it are skipped.
    pub(super) fn page(&mut self, number: u32) -> Result<Page, Fault> {
        if let Some((last, page)) = &self.last
            && *last == number
        {
            return Ok(page.clone());
        }
        while self.next_page < number {
            if self.take_page().last {
                return Err(Fault::new(FaultCode::BadRequest, format!("the listing has no page {number}")));
            }
        }
        if self.next_page > number {
            return Err(Fault::new(FaultCode::BadRequest, "pages must be requested in order"));
        }
        let page = self.take_page();
        self.last = Some((number, page.clone()));
        Ok(page)
    }

    fn take_page(&mut self) -> Page {
        let most = if self.next_page == 0 { FIRST_PAGE_BYTES_MAX } else { PAGE_BYTES_MAX };
        self.next_page += 1;
        let mut entries = Vec::new();
        let mut bytes = 0;
        loop {
            let entry = self.left_over.take().or_else(|| self.walk.next().map(entry_from));
            let Some(entry) = entry else {
                return Page { entries, last: true, excluded: self.walk.excluded() };
            };
            bytes += ENTRY_OVERHEAD_BYTES + escaped_len(entry.path.as_str()) + escaped_len(&entry.note);
            if bytes > most && !entries.is_empty() {
                self.left_over = Some(entry);
                return Page { entries, last: false, excluded: self.walk.excluded() };
            }
            entries.push(entry);
        }
    }
}

fn entry_from(found: WalkEntry) -> Entry {
    let path = |text: &str| RelativePath::parse(text).unwrap_or_else(|_| RelativePath::root());
    match found {
        WalkEntry::File(file) => Entry {
            path: path(file.path.as_str()),
            kind: Kind::File,
            size: file.size,
            mtime_ns: file.mtime_ns,
            mode: file.mode,
            note: String::new(),
        },
        WalkEntry::EmptyDirectory(directory) => Entry {
            path: path(directory.path.as_str()),
            kind: Kind::Directory,
            size: 0,
            mtime_ns: directory.mtime_ns,
            mode: directory.mode,
            note: String::new(),
        },
        WalkEntry::LeftOut(left) => {
            // The name itself may be invalid: then it goes into the note.
            let known = RelativePath::parse(left.path.trim_end_matches('/'));
            let note = match &known {
                Ok(_) => left.detail,
                Err(_) => format!("{}: {}", left.path, left.detail),
            };
            let note = note.chars().take(NOTE_CHARS_MAX).collect();
            let path = known.unwrap_or_else(|_| RelativePath::root());
            Entry { path, kind: Kind::LeftOut, size: 0, mtime_ns: 0, mode: 0, note }
        }
    }
}
