//! One way to brokers: what is spooled goes there in its order, whatever becomes of the broker meanwhile.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_api::fts::MessageKind;
use longhaul_gateways::brokers::{ANSWER_TIME_MAX, Broker, OutgoingMessage, Session};
use longhaul_model::{Backoff, Fault, FaultCode, Jitter};
use tokio::sync::watch;

use super::WayState;
use super::config::{MessagesConfig, Transport};
use super::record::Record;
use super::spool::{Reader, Spool};
use crate::Clock;

/// The wait until the next round, when all brokers were tried in vain.
const ROUND_BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(500), max: Duration::from_secs(60), jitter: Jitter::Quarter };
/// Services are spread by the microsecond in which their round ended, modulo this.
const SPREAD_US: i64 = 500;

/// How a publisher waits; a test lets its own time pass.
type Pause = Box<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

pub struct Publisher {
    config: MessagesConfig,
    clock: Clock,
    pause: Pause,
    spool: Arc<Spool>,
    way: Transport,
    state: Arc<WayState>,
}

impl Publisher {
    pub fn new(
        (config, clock): (MessagesConfig, Clock),
        spool: Arc<Spool>,
        way: Transport,
        state: Arc<WayState>,
    ) -> Publisher {
        let pause: Pause = Box::new(|wait| Box::pin(tokio::time::sleep(wait)));
        Publisher { config, clock, pause, spool, way, state }
    }

    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut reader = Some(self.spool.reader(self.way.name));
        // Rounds over all brokers in which nothing was published.
        let (mut tried, mut failures) = (0usize, 0u32);
        loop {
            let published = self.state.published.load(Ordering::Relaxed);
            let why = tokio::select! {
                why = self.attempt(tried, &mut reader) => why,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            self.away(why);
            tried += 1;
            let went_on = self.state.published.load(Ordering::Relaxed) > published;
            failures = if went_on { 0 } else { failures + 1 };
            let wait = self.wait(failures);
            tokio::select! {
                () = (self.pause)(wait) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// With one broker, as long as it goes well.
    async fn attempt(&self, tried: usize, reader: &mut Option<Reader>) -> Fault {
        let broker = &self.way.brokers[tried % self.way.brokers.len()];
        // It was lost with a task that was stopped: its place is known.
        let mut own = reader.take().unwrap_or_else(|| self.spool.reader(self.way.name));
        let mut session = match Session::open(broker, &self.way.login, self.way.confirmed).await {
            Ok(session) => session,
            Err(fault) => {
                // What waits grows older: said also while nobody takes it.
                if let Ok((_, records)) = self.read(own).await {
                    self.oldest(&records);
                }
                return about(broker, fault);
            }
        };
        tracing::info!(way = self.way.name, %broker, "a broker takes messages");
        {
            let mut open = self.state.open.lock();
            open.broker = Some(broker.to_string());
            open.fault = None;
        }
        let mut grown = self.spool.grown();
        loop {
            grown.mark_unchanged();
            let (back, records) = match self.read(own).await {
                Ok(read) => read,
                Err(fault) => return fault,
            };
            own = back;
            self.oldest(&records);
            if records.is_empty() {
                let lost = tokio::select! {
                    fault = session.idle() => Some(fault),
                    grown = grown.changed() => grown.err().map(|_| Fault::new(FaultCode::Internal, "the \
                        spool is gone")),
                };
                match lost {
                    Some(fault) => return about(broker, fault),
                    None => continue,
                }
            }
            if let Err(fault) = session.publish(&self.parcels(&records), ANSWER_TIME_MAX).await {
                return about(broker, fault);
            }
            let count = records.len() as u64;
            own = match self.done(own, records).await {
                Ok(own) => own,
                Err(fault) => return fault,
            };
            self.state.published.fetch_add(count, Ordering::Relaxed);
        }
    }

    async fn read(&self, mut reader: Reader) -> Result<(Reader, Vec<Record>), Fault> {
        let spool = self.spool.clone();
        blocking(move || spool.read(&mut reader).map(|records| (reader, records))).await
    }

    async fn done(&self, mut reader: Reader, records: Vec<Record>) -> Result<Reader, Fault> {
        let spool = self.spool.clone();
        blocking(move || spool.done(&mut reader, &records).map(|()| reader)).await
    }

    fn oldest(&self, records: &[Record]) {
        self.state.open.lock().oldest = records.first().map(|record| record.at);
    }

    fn parcels(&self, records: &[Record]) -> Vec<OutgoingMessage> {
        let config = &self.config;
        let parcel = |record: &Record| OutgoingMessage {
            number: record.number,
            destination: format!("{}{}", self.way.prefix, config.destination(record.kind)),
            headers: record.vo.iter().map(|vo| ("vo", vo.clone())).collect(),
            body: record.body.clone(),
            // What is told again in a minute is worth no disk of a broker.
            persistent: record.kind != MessageKind::QueueState,
            expires_ms: (record.at + config.expire()).as_micros() / 1_000,
        };
        records.iter().map(parcel).collect()
    }

    fn away(&self, why: Fault) {
        let mut open = self.state.open.lock();
        if open.fault.is_none() {
            tracing::warn!(way = self.way.name, fault = %why, "messages wait on disk: no broker takes them");
        }
        let since = open.fault.as_ref().map_or_else(|| (self.clock)(), |(since, _)| *since);
        open.broker = None;
        open.fault = Some((since, why));
    }

    /// Each of the brokers at once, then longer with every round; not all services at the same moment.
    fn wait(&self, failures: u32) -> Duration {
        let brokers = self.way.brokers.len() as u32;
        let rounds = failures / brokers;
        if failures == 0 || !failures.is_multiple_of(brokers) {
            return Duration::ZERO;
        }
        let spread = (self.clock)().as_micros().rem_euclid(SPREAD_US) as f64 / SPREAD_US as f64;
        ROUND_BACKOFF.delay(rounds, spread)
    }
}

fn about(broker: &Broker, mut fault: Fault) -> Fault {
    fault.detail = format!("{broker}: {}", fault.detail);
    fault
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Fault> {
    let spool = |why: String| Fault::new(FaultCode::StateDirectory, format!("the spool of messages: {why}"));
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| spool(error.to_string()).with_source(error)),
        Err(error) => Err(spool(error.to_string())),
    }
}

#[cfg(test)]
#[path = "publisher_tests.rs"]
mod tests;
