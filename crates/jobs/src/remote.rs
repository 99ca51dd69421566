//! The mover that there is: WebDAV, HTTPS and S3 storages, by third-party copy or through this process.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use longhaul_model::{Algorithm, Fault, FaultCode};
use longhaul_storage_remote as remote;
use longhaul_storage_remote::{
    Checksum, ChecksumMode, CopyOutcome, Family, Mode, Remote, RemoteConfig, RemoteUrl, Trust, cancellation,
};
use zeroize::Zeroizing;

use crate::config::JobsConfig;
use crate::mover::{CopyOrder, Credential, DirectCopy, End, ExistingFile, ForeignMover, Moved, Stop, Verify};
use crate::s3::{self, S3Config};

/// By which what stands at a target is compared with its source, where nobody named another.
const DEFAULT_ALGORITHM: Algorithm = Algorithm::Adler32;

/// Below the state directory: which files are half sent to S3.
const UPLOADS: &str = "s3-uploads";

pub struct RemoteMover {
    remote: Arc<Remote>,
    /// For jobs that say which addresses they go over.
    over: [(Family, Remote); 2],
    keys: Vec<S3Config>,
}

impl RemoteMover {
    pub fn new(config: &JobsConfig, state: &Path) -> Result<RemoteMover, Fault> {
        let trust = match config.authorities.is_empty() {
            true => Trust::System,
            false => Trust::Files(config.authorities.clone()),
        };
        let s3 = remote::S3Config {
            memory_bytes: u64::from(config.s3_memory_mib) << 20,
            records: Some(state.join(UPLOADS)),
            ..remote::S3Config::default()
        };
        for fault in config.s3.iter().filter_map(|one| one.check_secret().err()) {
            tracing::warn!(%fault, "copies with S3 will fail");
        }
        let settings =
            RemoteConfig { trust, allow: config.allowed_networks()?, s3, ..RemoteConfig::default() };
        let remote = Arc::new(Remote::new(settings)?);
        let over = [Family::V4, Family::V6].map(|family| (family, remote.over(family)));
        Ok(RemoteMover { remote, over, keys: config.s3.clone() })
    }

    fn remote_for(&self, order: &CopyOrder) -> &Remote {
        let over = self.over.iter().find(|(family, _)| order.family == Some(*family));
        over.map_or(&self.remote, |(_, remote)| remote)
    }

    async fn run_copy(
        &self,
        order: CopyOrder,
        progress: &(dyn Fn(u64) + Send + Sync),
        mut stop: Stop,
        leaves_stream: bool,
    ) -> Result<DirectCopy, Fault> {
        let (canceller, cancel) = cancellation();
        let mut wanted = translate(&order, &self.keys)?;
        let remote = self.remote_for(&order);
        let done = {
            let copy = async {
                match leaves_stream {
                    true => remote.copy_or_leave(&wanted, progress, &cancel).await,
                    false => remote.copy(&wanted, progress, &cancel).await.map(CopyOutcome::Done),
                }
            };
            tokio::pin!(copy);
            tokio::select! {
                done = &mut copy => done,
                () = asked(&mut stop) => {
                    canceller.cancel();
                    copy.await
                }
            }
        };
        match done {
            Ok(CopyOutcome::Done(done)) => {
                let how = if order.strict { ", unchecked" } else { "" };
                Ok(DirectCopy::Moved(Moved { bytes: done.bytes, mode: format!("{}{how}", done.mode) }))
            }
            Ok(CopyOutcome::ToStream(_)) => {
                wanted.modes = vec![Mode::Stream];
                Ok(DirectCopy::ToStream(Box::new(wanted)))
            }
            Err(fault) if fault.code == FaultCode::NameClash && order.may_be_there => {
                self.already_moved(&wanted).await.map(DirectCopy::Moved).ok_or(fault)
            }
            Err(fault) => Err(fault),
        }
    }

    async fn stat_target(&self, order: &CopyOrder) -> Option<ExistingFile> {
        let wanted = translate(order, &self.keys).ok()?;
        let algorithm = wanted.checksum.as_ref().map_or(DEFAULT_ALGORITHM, |checksum| checksum.algorithm);
        match self.remote_for(order).standing(&wanted.target, algorithm).await {
            Ok(there) => there.map(|there| ExistingFile {
                file_size: there.size,
                checksum_type: Checksum::unknown(algorithm).label(),
                checksum_value: there.checksum.map(|checksum| checksum.hex()).unwrap_or_default(),
                file_on_tape: there.on_tape.unwrap_or(false),
                file_on_disk: there.on_disk.unwrap_or(false),
            }),
            Err(fault) => {
                tracing::info!(fault = %fault.chain(), "what stands in the way of a copy cannot be told");
                None
            }
        }
    }

    /// What stands at the target, if it is what should come there: an attempt before brought it, and nobody
    /// was left to say so.
    async fn already_moved(&self, order: &remote::CopyOrder) -> Option<Moved> {
        let algorithm = order.checksum.as_ref().map_or(DEFAULT_ALGORITHM, |checksum| checksum.algorithm);
        let source = self.remote.stat(&order.source, None).await.ok()??;
        let target = self.remote.stat(&order.target, None).await.ok()??;
        if source.size != target.size {
            return None;
        }
        let at_source = self.remote.checksum(&order.source, algorithm).await.ok()?;
        let at_target = self.remote.checksum(&order.target, algorithm).await.ok()?;
        (at_source == at_target).then(|| Moved { bytes: target.size, mode: "there".to_owned() })
    }
}

impl ForeignMover for RemoteMover {
    fn copy<'a>(
        &'a self,
        order: CopyOrder,
        progress: &'a (dyn Fn(u64) + Send + Sync),
        stop: Stop,
    ) -> Pin<Box<dyn Future<Output = Result<Moved, Fault>> + Send + 'a>> {
        Box::pin(async move {
            match self.run_copy(order, progress, stop, false).await? {
                DirectCopy::Moved(moved) => Ok(moved),
                DirectCopy::ToStream(_) => Err(Fault::new(FaultCode::Internal, "nothing was to be left")),
            }
        })
    }

    fn copy_directly<'a>(
        &'a self,
        order: CopyOrder,
        progress: &'a (dyn Fn(u64) + Send + Sync),
        stop: Stop,
    ) -> Pin<Box<dyn Future<Output = Result<DirectCopy, Fault>> + Send + 'a>> {
        Box::pin(async move {
            // Keys of S3 open more than this file: they stay here, and so does what needs them.
            let of_s3 = |end: &End| RemoteUrl::parse(&end.url).is_ok_and(|url| url.is_s3());
            let leaves = !of_s3(&order.source) && !of_s3(&order.target);
            self.run_copy(order, progress, stop, leaves).await
        })
    }

    fn existing_file<'a>(
        &'a self,
        order: &'a CopyOrder,
    ) -> Pin<Box<dyn Future<Output = Option<ExistingFile>> + Send + 'a>> {
        Box::pin(self.stat_target(order))
    }

    fn remote(&self) -> Option<Arc<Remote>> {
        Some(self.remote.clone())
    }
}

/// Ends when the copy shall end, else never.
async fn asked(stop: &mut Stop) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// As [`RemoteMover::new`], where jobs can wait if it cannot be made.
pub fn mover(config: &JobsConfig, state: &Path) -> Option<Arc<dyn ForeignMover>> {
    match RemoteMover::new(config, state) {
        Ok(mover) => Some(Arc::new(mover)),
        Err(fault) => {
            tracing::warn!(fault = %fault.chain(),
                "copies of jobs wait: there is nothing that could do them");
            None
        }
    }
}

fn translate(order: &CopyOrder, keys: &[S3Config]) -> Result<remote::CopyOrder, Fault> {
    let of = |end: &End, scope: &str| {
        of_copy(end, order, keys).map_err(|mut fault| {
            // As FTS writes where it was and what.
            fault.detail = format!("{scope} [13] {}", fault.detail);
            fault
        })
    };
    let checksum_mode = match order.verify {
        Verify::None => ChecksumMode::None,
        Verify::Source => ChecksumMode::Source,
        Verify::Target => ChecksumMode::Target,
        Verify::Both => ChecksumMode::Both,
    };
    let checksum = match order.checksum.as_deref().map(str::parse::<Checksum>) {
        Some(Ok(checksum)) => Some(checksum),
        // It is not to be compared.
        Some(Err(_)) if order.verify == Verify::None => None,
        Some(Err(error)) => return Err(Fault::new(FaultCode::BadRequest, error)),
        None => None,
    };
    let ways = order.modes;
    let modes = [(ways.pull, Mode::Pull), (ways.push, Mode::Push), (ways.stream, Mode::Stream)];
    let modes: Vec<Mode> = modes.iter().filter(|(may, _)| *may).map(|(_, mode)| *mode).collect();
    if modes.is_empty() {
        let detail = "neither storage does third-party copies (tpc_support), and streaming is switched off \
            (no_streaming)";
        return Err(Fault::new(FaultCode::BadRequest, detail));
    }
    Ok(remote::CopyOrder {
        modes,
        size: order.size.filter(|size| *size > 0),
        checksum,
        checksum_mode,
        overwrite: order.overwrite,
        unchecked: order.strict,
        keeps_partial: order.keeps_partial,
        timeout: order.timeout,
        streams: u16::try_from(order.streams.max(1)).unwrap_or(1),
        scitag: order.scitag,
        ..remote::CopyOrder::new(
            order.attempt.to_string(),
            of(&order.source, "SOURCE")?,
            of(&order.target, "DESTINATION")?,
        )
    })
}

fn of_copy(end_of: &End, order: &CopyOrder, keys: &[S3Config]) -> Result<remote::End, Fault> {
    let has_keys = matches!(end_of.credential, Credential::Keys(_));
    if let Some(url) = RemoteUrl::parse(&end_of.url).ok().filter(|url| url.is_s3() && !has_keys) {
        // What the user came with is for other storages: a bucket knows keys only.
        let keys = s3::keys(keys, &url, &order.community, order.path_style)?;
        return Ok(remote::End::new(end_of.url.clone(), remote::Credential::S3(keys)));
    }
    Ok(end(end_of))
}

/// As whom its user acts there.
pub fn end(end: &End) -> remote::End {
    let credential = match &end.credential {
        Credential::None => remote::Credential::None,
        Credential::Bearer(token) => remote::Credential::Bearer(token.clone()),
        Credential::Refreshing(token) => remote::Credential::Refreshing(token.clone()),
        Credential::Pem(pem) => {
            let (chain_pem, key_pem) = split(pem);
            remote::Credential::Certificate { chain_pem, key_pem }
        }
        Credential::Keys(keys) => remote::Credential::S3(keys.clone()),
    };
    remote::End::new(end.url.clone(), credential)
}

/// The certificates and the key of a proxy, which come in any order.
fn split(pem: &str) -> (Zeroizing<String>, Zeroizing<String>) {
    let (mut chain, mut key) = (Zeroizing::new(String::new()), Zeroizing::new(String::new()));
    let mut in_key = false;
    for line in pem.lines() {
        let begins = line.starts_with("-----BEGIN");
        in_key = if begins { line.contains("PRIVATE KEY") } else { in_key };
        let part = if in_key { &mut key } else { &mut chain };
        part.push_str(line);
        part.push('\n');
    }
    (chain, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_split_into_chain_and_key() {
        let proxy = "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n-----BEGIN RSA PRIVATE \
            KEY-----\nK\n\
                     -----END RSA PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\nB\n-----END \
                     CERTIFICATE-----\n";
        let (chain, key) = split(proxy);
        assert!(chain.contains("\nA\n") && chain.contains("\nB\n") && !chain.contains("KEY"));
        assert!(key.contains("\nK\n") && !key.contains("CERTIFICATE"));
    }
}
