//! Bounded queue of planned steps. A planner thread works ahead page by page and blocks while too many pages
//! wait (backpressure).

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};

use longhaul_model::Fault;

use crate::progress::Progress;
use crate::stop::{Stop, interrupted};

/// Pages that the planner may be ahead: enough to hide a round trip of listing, few enough to stay small.
const PAGES_AHEAD_MAX: usize = 3;

/// Takes a page's steps, whether it is the last page, and how many entries filters have excluded so far.
pub(crate) type PageSink<'a, S> = &'a mut dyn FnMut(Vec<S>, bool, u64) -> Result<(), Fault>;

pub(crate) struct Page<S> {
    steps: Vec<S>,
    last: bool,
    excluded: u64,
}

/// A page of steps, or the fault that ended planning.
pub(crate) type PlannedPage<S> = Result<Page<S>, Fault>;

pub(crate) struct PlanQueue<S> {
    steps: VecDeque<S>,
    is_fully_listed: bool,
    excluded: u64,
    /// Returns the file size of a step that is about a file; none for other steps.
    wanted_bytes: fn(&S) -> Option<u64>,
    /// Each message is one planned page; receiving it lets the planner plan another.
    planner_tokens: Receiver<()>,
}

impl<S> PlanQueue<S> {
    /// Makes the queue, and the sender with which the planner's thread reports pages.
    pub(crate) fn new(wanted_bytes: fn(&S) -> Option<u64>) -> (PlanQueue<S>, SyncSender<()>) {
        let (pages, may_plan) = sync_channel(PAGES_AHEAD_MAX);
        let steps = VecDeque::new();
        (
            PlanQueue { steps, is_fully_listed: false, excluded: 0, wanted_bytes, planner_tokens: may_plan },
            pages,
        )
    }

    /// Adds a page's files to the totals and queues its steps.
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

    /// Lets the planner continue once all planned steps have been taken.
    pub(crate) fn resume_planner(&self) {
        if self.steps.is_empty() {
            while self.planner_tokens.try_recv().is_ok() {}
        }
    }

    /// Whether the listing is complete and every step has been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.is_fully_listed && self.steps.is_empty()
    }
}

/// Body of the planner's thread: runs `each` and sends every page to `to`, wrapped by `words`.
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
        // Blocks while too many pages are ahead. An error means that the copy has ended.
        if last || pages.send(()).is_ok() { Ok(()) } else { Err(interrupted()) }
    });
    if let Err(fault) = planned {
        let _ = to.send(words(Err(fault)));
    }
}
