//! The mover inside another one, and what movers share that are put around it: they begin before it and end
//! with it, and work in the background.

use std::sync::Arc;

use longhaul_engine::Event;
use longhaul_model::{Fault, FaultCode};
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::mover::{Mover, PeerChannel};
use crate::threads::blocking;

pub(crate) struct InnerMover {
    /// None before the start and after the stop.
    mover: RwLock<Option<Box<dyn Mover>>>,
    events: Arc<dyn Fn(Vec<Event>) + Send + Sync>,
    runtime: Handle,
    stopped: watch::Sender<bool>,
}

impl InnerMover {
    /// With who hears of attempts. It asks nothing of anyone until [`InnerMover::set`].
    ///
    /// # Errors
    /// This thread is none of a runtime's.
    pub(crate) fn new(events: Arc<dyn Fn(Vec<Event>) + Send + Sync>) -> Result<InnerMover, Fault> {
        let runtime = Handle::try_current()
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))?;
        Ok(InnerMover { mover: RwLock::new(None), events, runtime, stopped: watch::Sender::new(false) })
    }

    pub(crate) fn set(&self, mover: Box<dyn Mover>) {
        *self.mover.write() = Some(mover);
    }

    /// None before the start and after the stop.
    pub(crate) fn ask_mover<T>(&self, ask: impl FnOnce(&dyn Mover) -> T) -> Option<T> {
        self.mover.read().as_deref().map(ask)
    }

    /// Opens a stream for calls. Blocks.
    pub(crate) fn open_channel(&self, addresses: &[String]) -> Result<Box<dyn PeerChannel>, Fault> {
        let stops = || Err(Fault::new(FaultCode::Interrupted, "this agent stops"));
        self.ask_mover(|mover| mover.open_channel(addresses)).unwrap_or_else(stops)
    }

    /// Waits on a thread that is none of the runtime's.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Runs in the background until the mover is stopped.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut stopped = self.stopped.subscribe();
        self.runtime.spawn(async move {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => {}
                () = work => {}
            }
        });
    }

    /// Passes events on; blocks on the disk.
    pub(crate) fn emit_blocking(&self, events: Vec<Event>) {
        if !events.is_empty() {
            (self.events)(events);
        }
    }

    /// The same off the event loop.
    pub(crate) async fn emit(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let told = self.events.clone();
        let told = blocking(move || {
            told(events);
            Ok(())
        });
        if let Err(fault) = told.await {
            tracing::error!(fault = %fault.chain(), "events of attempts could not be reported");
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
        let mover = self.mover.write().take();
        if let Some(mover) = mover {
            mover.stop();
        }
    }
}
