//! Reads the configured archives, each in its own time, and hands on what they hold.

use std::sync::Arc;
use std::time::Duration;

use longhaul_gateways::perfsonar::archive::{Archive, Kind, OVERLAP};
use longhaul_model::{Fault, FaultCode, Timestamp};
use tokio::sync::watch;

use crate::NetOps;
use crate::measured::ArchiveConfig;

/// How far back an archive is read that was never read before: enough for one throughput test of each pair.
const FIRST_READ: Duration = Duration::from_secs(24 * 3_600);
/// After a long stop the archive is not read from where that began: what is older is not believed anyway.
const READ_BACK_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Reads one archive until the service stops. `place` is its number in the configuration.
pub async fn run(netops: Arc<NetOps>, place: usize, config: ArchiveConfig, mut stop: watch::Receiver<bool>) {
    let url = config.url.clone();
    if !config.verify {
        tracing::warn!(%url, "the certificate of this archive is not checked: what it says may be forged on \
            the way");
    }
    let archive = match config.settings().and_then(|settings| Archive::open(&settings)) {
        Ok(archive) => archive,
        Err(fault) => {
            tracing::error!(%url, fault = %fault.chain(), "this archive cannot be read");
            netops.measured.note(place, Err(fault), netops.kernel.now());
            return;
        }
    };
    let kind = config.kind.parse().unwrap_or(Kind::Esmond);
    loop {
        let reading = async {
            match kind {
                Kind::Mesh => mesh(&netops, place, &archive).await,
                Kind::Esmond | Kind::OpenSearch => results(&netops, &archive, &url).await,
            }
        };
        let outcome = tokio::select! {
            outcome = reading => outcome,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        if let Err(fault) = &outcome {
            tracing::warn!(%url, fault = %fault.chain(), "an archive was not read");
        }
        netops.measured.note(place, outcome, netops.kernel.now());
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(u64::from(config.every_s))) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

type Outcome = Result<Option<longhaul_api::measured::MeasurementsTaken>, Fault>;

async fn results(netops: &Arc<NetOps>, archive: &Archive, url: &str) -> Outcome {
    let key = format!("perfsonar-read-{url}");
    let began = netops.kernel.now();
    let kept = blocking(netops, {
        let key = key.clone();
        move |netops| Ok(netops.kernel.catalog.setting(&key)?)
    });
    let last: Option<Timestamp> = kept.await?.and_then(|text| text.parse().ok());
    let since =
        last.map_or(began - FIRST_READ, |last| (last.min(began) - OVERLAP).max(began - READ_BACK_MAX));
    let reading = archive.read(since, began).await?;
    if reading.cut {
        tracing::warn!(%url, requests = reading.requests, "an archive holds more than one reading takes: \
            part of it is not used");
    }
    let from = url.to_owned();
    let taken = blocking(netops, move |netops| {
        let taken = super::take(netops, reading.harvest, &from, "archive")?;
        // Only now: what was read and not taken is read again.
        netops.kernel.catalog.set_setting(&key, &began.to_string())?;
        Ok(taken)
    });
    taken.await.map(Some)
}

async fn mesh(netops: &Arc<NetOps>, place: usize, archive: &Archive) -> Outcome {
    let mesh = archive.read_mesh().await?;
    if let Some(fault) = &mesh.first_fault {
        tracing::warn!(refused = mesh.refused, fault = %fault.chain(), "parts of a mesh are not understood");
    }
    netops.measured.expect(place, &mesh, netops.kernel.now());
    Ok(None)
}

/// The catalog blocks.
async fn blocking<T: Send + 'static>(
    netops: &Arc<NetOps>,
    work: impl FnOnce(&NetOps) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let netops = netops.clone();
    let done = tokio::task::spawn_blocking(move || work(&netops)).await;
    done.unwrap_or_else(|error| Err(Fault::new(FaultCode::Internal, error.to_string()).with_source(error)))
}
