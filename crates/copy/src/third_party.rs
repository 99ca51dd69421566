//! Third-party copy: orders the target's server to fetch from the source's; no data passes through here.

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};

use crate::options::Options;
use crate::progress::{FileCallback, FileOutcome, Outcome, Progress};
use crate::protocol::{FetchOrder, OrderState, RelativePath, Reply, Request};
use crate::remote::{Remote, unexpected};
use crate::site::{Site, SiteConfig};
use crate::state::{CopyKey, ScratchDir};
use crate::stop::{Stop, interrupted};
use crate::url::{RemotePath, ServerUrl};

const POLL_WAIT_MS: u64 = 2_000;

pub(crate) struct ThirdParty<'a> {
    pub(crate) source: (&'a ServerUrl, &'a RemotePath),
    pub(crate) target: (&'a ServerUrl, &'a RemotePath),
    pub(crate) options: &'a Options,
    pub(crate) detach: bool,
}

impl ThirdParty<'_> {
    /// Blocks until the copy is done; with `detach` until it has begun.
    pub(crate) fn run(&self, progress: &Progress, stop: &Stop, tell: FileCallback<'_>) -> Result<(), Fault> {
        let (source_url, source) = self.source;
        let (target_url, target) = self.target;
        let hosts = source_url.hosts().into_iter().chain(target_url.hosts());
        let paths = [source.path.as_str(), target.path.as_str(), "third-party"];
        let key = CopyKey::from_parts(hosts.chain(paths));
        let scratch = ScratchDir::new()?;
        let config = SiteConfig::query_only(key.agent(), scratch.path());
        let site = Site::start(&target_url.secret, config, Vec::new())?;
        let remote = Remote::connect(site, &target_url.addresses, Vec::new(), None, stop)?;
        if !remote.welcome.writable {
            let detail = format!("{} is read-only: start it with --write", target_url.shown());
            return Err(Fault::new(FaultCode::NotAllowed, detail));
        }
        let slash = if source.contents && !source.path.is_empty() { "/" } else { "" };
        let order = FetchOrder {
            source: source_url.reveal(&format!("{}{slash}", source.path)).to_string(),
            target: RelativePath::parse(&target.path)?,
            target_contents: target.contents,
            options: self.options.clone(),
            detach: self.detach,
        };
        let (before, failed_before) = (progress.totals(), progress.failed());
        let count = |state: &OrderState| {
            let failed = state.failed.iter().map(|(path, fault)| (path.clone(), printable_fault(fault)));
            let failed = failed_before.iter().cloned().chain(failed).collect();
            progress.set(before.plus(&state.totals), failed);
        };
        let mut state = order_state(remote.call(&Request::Fetch { order: Box::new(order) })?)?;
        if self.detach {
            count(&state);
            return Ok(());
        }
        let mut stopping = false;
        let mut told = 0;
        loop {
            state.told.iter().map(printable_outcome).for_each(|outcome| tell(&outcome));
            told = told.max(state.told_from + state.told.len() as u64);
            // The end comes no earlier than that of the last file, but more outcomes may follow than fit in
            // one reply.
            if state.over && state.told.is_empty() {
                break;
            }
            if stop.is_stopped() && !stopping {
                stopping = true;
                remote.call_done(&Request::FetchCancel { order: state.order })?;
            }
            count(&state);
            let (order, seen) = (state.order, state.version);
            let poll = Request::FetchPoll { order, seen, told, wait_ms: POLL_WAIT_MS };
            state = order_state(remote.call(&poll)?)?;
        }
        count(&state);
        match state.fault {
            Some(fault) if stopping && fault.code == FaultCode::Interrupted => Err(interrupted()),
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}

/// Makes the server's texts safe for a terminal. Names are escaped where they are shown.
fn printable_outcome(told: &FileOutcome) -> FileOutcome {
    let outcome = match &told.outcome {
        Outcome::Failed(fault) => Outcome::Failed(printable_fault(fault)),
        Outcome::LeftOut(why) => Outcome::LeftOut(printable(why)),
        other => other.clone(),
    };
    FileOutcome { outcome, ..told.clone() }
}

fn printable_fault(fault: &Fault) -> Fault {
    let mut fault = fault.clone();
    fault.detail = printable(&fault.detail);
    fault
}

fn order_state(reply: Reply) -> Result<OrderState, Fault> {
    match reply {
        Reply::Fetched(state) => Ok(state),
        _ => Err(unexpected()),
    }
}
