//! What is planned and not begun yet: a planner works ahead in a thread of its own, page by page, and rests
//! while too many pages wait.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};

use longhaul_model::Fault;

use crate::progress::Progress;
use crate::stop::{Stop, interrupted};

/// Pages planned ahead.
const PAGES_AHEAD_MAX: usize = 3;

/// What to do with a page's steps; the page is the last one; entries kept out by filters so far.
pub(crate) type PageSink<'a, S> = &'a mut dyn FnMut(Vec<S>, bool, u64) -> Result<(), Fault>;

pub(crate) struct Page<S> {
    steps: Vec<S>,
    last: bool,
    excluded: u64,
}

/// A page, or why there will be no more.
pub(crate) type PlannedPage<S> = Result<Page<S>, Fault>;

pub(crate) struct PlanQueue<S> {
    steps: VecDeque<S>,
    is_fully_listed: bool,
    excluded: u64,
    /// The size, if a step is about a file that somebody wants.
    wanted_bytes: fn(&S) -> Option<u64>,
    /// Taking from it lets the planner plan another page.
    planner_tokens: Receiver<()>,
}

impl<S> PlanQueue<S> {
    /// With the end that the planner's thread holds.
    pub(crate) fn new(wanted_bytes: fn(&S) -> Option<u64>) -> (PlanQueue<S>, SyncSender<()>) {
        let (pages, may_plan) = sync_channel(PAGES_AHEAD_MAX);
        let steps = VecDeque::new();
        (
            PlanQueue { steps, is_fully_listed: false, excluded: 0, wanted_bytes, planner_tokens: may_plan },
            pages,
        )
    }

    /// Counts what has come, and keeps it.
    pub(crate) fn push_page(&mut self, page: Page<S>, progress: &Progress) {
        let wanted = page.steps.iter().filter_map(self.wanted_bytes);
        let (files, bytes) = wanted.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size));
        progress.change(|totals| {
            totals.files += files;
            totals.bytes += bytes;
            totals.listed = page.last;
            totals.excluded += page.excluded - self.excluded;
        });
        self.excluded = page.excluded;
        self.is_fully_listed = page.last;
        self.steps.extend(page.steps);
    }

    pub(crate) fn next(&mut self) -> Option<S> {
        self.steps.pop_front()
    }

    /// Lets the planner go on, if nothing is left of what it has planned.
    pub(crate) fn resume_planner(&self) {
        if self.steps.is_empty() {
            while self.planner_tokens.try_recv().is_ok() {}
        }
    }

    /// Everything was planned, and taken.
    pub(crate) fn is_done(&self) -> bool {
        self.is_fully_listed && self.steps.is_empty()
    }
}

/// The planner's thread: tells each page of `each`, in the words of whoever takes it.
pub(crate) fn plan_ahead<S, I>(
    each: impl FnOnce(PageSink<'_, S>) -> Result<(), Fault>,
    to: &Sender<I>,
    words: fn(PlannedPage<S>) -> I,
    pages: &SyncSender<()>,
    stop: &Stop,
) {
    let planned = each(&mut |steps, last, excluded| {
        stop.check()?;
        let _ = to.send(words(Ok(Page { steps, last, excluded })));
        // Blocks while too many pages are ahead; an error means that the copy is over.
        if last || pages.send(()).is_ok() { Ok(()) } else { Err(interrupted()) }
    });
    if let Err(fault) = planned {
        let _ = to.send(words(Err(fault)));
    }
}
