//! From one server to another: the target's server is ordered to fetch from the source's, and no data comes through
//! here.

use longhaul_model::{Fault, FaultCode};

use crate::options::Options;
use crate::progress::Progress;
use crate::protocol::{Order, OrderState, Relative, Reply, Request};
use crate::remote::{Remote, unexpected};
use crate::site::{Site, SiteConfig};
use crate::state::{CopyKey, Scratch};
use crate::stop::{Stop, interrupted};
use crate::url::{RemotePath, ServerUrl};

const POLL_MS: u64 = 2_000;

pub(crate) struct ThirdParty<'a> {
    pub(crate) source: (&'a ServerUrl, &'a RemotePath),
    pub(crate) target: (&'a ServerUrl, &'a RemotePath),
    pub(crate) options: &'a Options,
    pub(crate) detach: bool,
}

impl ThirdParty<'_> {
    /// Until it is done; with `detach` until it has begun.
    pub(crate) fn run(&self, progress: &Progress, stop: &Stop) -> Result<(), Fault> {
        let (source_url, source) = self.source;
        let (target_url, target) = self.target;
        let hosts = source_url.hosts().into_iter().chain(target_url.hosts());
        let paths = [source.path.as_str(), target.path.as_str(), "third-party"];
        let key = CopyKey::of(hosts.chain(paths));
        let scratch = Scratch::new()?;
        let config = SiteConfig::asking(key.agent(), scratch.path());
        let site = Site::start(&target_url.secret, config, Vec::new())?;
        let remote = Remote::connect(site, &target_url.addresses, Vec::new(), None, stop)?;
        if !remote.welcome.writable {
            let detail = format!("{} is read-only: start it with --write", target_url.shown());
            return Err(Fault::new(FaultCode::NotAllowed, detail));
        }
        let slash = if source.contents && !source.path.is_empty() { "/" } else { "" };
        let order = Order {
            source: source_url.reveal(&format!("{}{slash}", source.path)).to_string(),
            target: Relative::parse(&target.path)?,
            target_contents: target.contents,
            options: self.options.clone(),
            detach: self.detach,
        };
        let (before, failed_before) = (progress.totals(), progress.failed());
        let count = |state: &OrderState| {
            let failed = failed_before.iter().chain(&state.failed).cloned().collect();
            progress.set(before.plus(&state.totals), failed);
        };
        let mut state = fetched(remote.ask(&Request::Fetch { order: Box::new(order) })?)?;
        if self.detach {
            count(&state);
            return Ok(());
        }
        let mut stopping = false;
        while !state.over {
            if stop.is_stopped() && !stopping {
                stopping = true;
                remote.done(&Request::FetchCancel { order: state.order })?;
            }
            count(&state);
            let poll = Request::FetchPoll { order: state.order, seen: state.version, wait_ms: POLL_MS };
            state = fetched(remote.ask(&poll)?)?;
        }
        count(&state);
        match state.fault {
            Some(fault) if stopping && fault.code == FaultCode::Interrupted => Err(interrupted()),
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}

fn fetched(reply: Reply) -> Result<OrderState, Fault> {
    match reply {
        Reply::Fetched(state) => Ok(state),
        _ => Err(unexpected()),
    }
}
