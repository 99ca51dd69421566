//! Streaming a file through this process: read from one storage while it is written to the other, in bounded
//! memory, with backpressure.
//!
//! A read that breaks resumes where it broke. Large files can be read over several connections in turn; they
//! are written in order over one.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use longhaul_model::{Algorithm, DigestSet, Hasher};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::config::Times;
use crate::exchange::{Call, Exchange, Payload};
use crate::failure::{Failure, Kind, Scope};
use crate::order::{Credential, Stat};
use crate::rate_limiter::RateLimiter;
use crate::remote::Remote;
use crate::upload::Upload;
use crate::url::RemoteUrl;
use crate::webdav::Resource;

/// Files up to this are held whole: they can be sent again after a redirect, and need no question before.
const WHOLE_BYTES_MAX: u64 = 1 << 20;
/// Several connections are worth their handshakes from this on.
pub(crate) const SEVERAL_BYTES_MIN: u64 = 64 << 20;
/// What one of several connections takes at a time: some hundred round trips' worth of headers are nothing
/// beside it.
const BLOCK_BYTES: u64 = 16 << 20;
const STREAMS_MAX: u16 = 16;
/// Pieces that wait between reading and writing; each is at most as large as a connection's buffer.
const CHANNEL_PIECES_MAX: usize = 8;
/// Reads that break without having brought this much in between are given up.
const RESUMES_MAX: u32 = 5;
const RESUME_PROGRESS_BYTES: u64 = 1 << 20;

pub(crate) type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// A failure comes with the end of the copy at which it happened.
pub(crate) type ScopedResult<T> = Result<T, (Scope, Failure)>;

impl Remote {
    /// Sends the source to a name of the target, and tells the digests of what was sent.
    pub(crate) async fn stream(
        &self,
        source: Resource<'_>,
        stat: &Stat,
        target: Resource<'_>,
        algorithms: &[Algorithm],
        streams: u16,
        progress: Progress<'_>,
    ) -> ScopedResult<DigestSet> {
        let at_source = |failure| (Scope::Source, failure);
        let at_target = |failure| (Scope::Target, failure);
        let mut hasher = Hasher::new(algorithms.iter().copied());
        let mut reading = self.read(source, stat, streams);
        if stat.size <= WHOLE_BYTES_MAX {
            let mut whole = BytesMut::with_capacity(stat.size as usize);
            while let Some(piece) = reading.next().await.map_err(at_source)? {
                hasher.update(&piece);
                whole.extend_from_slice(&piece);
            }
            self.put(target, Payload::Bytes(whole.freeze())).await.map_err(at_target)?;
            progress(stat.size);
            return Ok(hasher.finish());
        }
        let (sender, pieces) = mpsc::channel(CHANNEL_PIECES_MAX);
        let times = self.config.times;
        let upload = Upload::new(stat.size, pieces, times.may_send, times.stall);
        let pump = async move {
            while let Some(piece) = reading.next().await? {
                hasher.update(&piece);
                // Nobody takes it any more: then the PUT tells why.
                if sender.send(piece).await.is_err() {
                    break;
                }
                progress(reading.offset);
            }
            Ok(hasher)
        };
        let put = self.put(target, Payload::Upload(upload));
        tokio::pin!(put, pump);
        let hasher = tokio::select! {
            // If both fail, the first cause is the source's: a body that ends early makes a PUT fail.
            biased;
            read = &mut pump => {
                let hasher = read.map_err(at_source)?;
                put.await.map_err(at_target)?;
                hasher
            }
            put = &mut put => {
                put.map_err(at_target)?;
                pump.await.map_err(at_source)?
            }
        };
        Ok(hasher.finish())
    }

    pub(crate) async fn put(&self, target: Resource<'_>, payload: Payload) -> Result<(), Failure> {
        let mut call = self.call(Method::PUT, target);
        call = call.header("content-type", "application/octet-stream")?;
        call.payload = payload;
        // A storage may bring it all to its disks first.
        call.within = self.config.times.progress;
        self.exchange.send(call).await?.ok("PUT").await?.finish().await;
        Ok(())
    }

    /// The digests of a file, by reading it over as many as `streams` connections.
    pub(crate) async fn digest_by_reading(
        &self,
        place: Resource<'_>,
        stat: &Stat,
        algorithms: impl IntoIterator<Item = Algorithm>,
        streams: u16,
    ) -> Result<DigestSet, Failure> {
        let mut hasher = Hasher::new(algorithms);
        let mut reading = self.read(place, stat, streams);
        while let Some(piece) = reading.next().await? {
            hasher.update(&piece);
        }
        Ok(hasher.finish())
    }

    /// Begins to read a file, over several connections if that is wished and worth it.
    pub(crate) fn read(&self, place: Resource<'_>, stat: &Stat, streams: u16) -> Reading {
        let several = streams > 1 && stat.ranges && stat.size >= SEVERAL_BYTES_MIN;
        let lanes = if several { u64::from(streams.min(STREAMS_MAX)) } else { 1 };
        let block = if several { BLOCK_BYTES } else { stat.size.max(1) };
        let mut tasks = JoinSet::new();
        let mut pieces = Vec::new();
        for lane in 0..lanes {
            let (sender, receiver) = mpsc::channel(CHANNEL_PIECES_MAX);
            pieces.push(receiver);
            let reader = self.reader(place, stat, sender);
            tasks.spawn(async move {
                let mut start = lane * block;
                while start < reader.stat.size {
                    reader.range(start..(start + block).min(reader.stat.size)).await?;
                    start += lanes * block;
                }
                Ok(())
            });
        }
        Reading { url: place.url.clone(), size: stat.size, block, offset: 0, pieces, tasks }
    }

    /// Begins to read a part of a file, over one connection. To be called within a runtime.
    pub(crate) fn read_range(&self, place: Resource<'_>, stat: &Stat, range: Range<u64>) -> RangeReading {
        let (sender, pieces) = mpsc::channel(CHANNEL_PIECES_MAX);
        let reader = self.reader(place, stat, sender);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { reader.range(range).await });
        RangeReading { url: place.url.clone(), pieces, tasks }
    }

    fn reader(&self, place: Resource<'_>, stat: &Stat, sender: mpsc::Sender<Bytes>) -> Reader {
        Reader {
            exchange: self.exchange.clone(),
            url: place.url.clone(),
            credential: place.credential.clone(),
            stat: stat.clone(),
            times: self.config.times,
            rate_limiter: self.rate_limiter.clone(),
            sender,
        }
    }
}

/// A part of a file on its way: its pieces in order.
pub(crate) struct RangeReading {
    url: RemoteUrl,
    pieces: mpsc::Receiver<Bytes>,
    /// It ends with us.
    tasks: JoinSet<Result<(), Failure>>,
}

impl RangeReading {
    /// The next piece; fails at the end of the part.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Failure> {
        match self.pieces.recv().await {
            Some(piece) => Ok(piece),
            None => Err(first_failure(&mut self.tasks, &self.url).await),
        }
    }
}

/// A file on its way: its pieces in order.
pub(crate) struct Reading {
    url: RemoteUrl,
    size: u64,
    /// The connections take turns with blocks of this size.
    block: u64,
    offset: u64,
    pieces: Vec<mpsc::Receiver<Bytes>>,
    /// They end with us.
    tasks: JoinSet<Result<(), Failure>>,
}

impl Reading {
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.offset >= self.size {
            return Ok(None);
        }
        let lane = (self.offset / self.block % self.pieces.len() as u64) as usize;
        let Some(piece) = self.pieces[lane].recv().await else {
            return Err(first_failure(&mut self.tasks, &self.url).await);
        };
        self.offset += piece.len() as u64;
        Ok(Some(piece))
    }
}

async fn first_failure(tasks: &mut JoinSet<Result<(), Failure>>, url: &RemoteUrl) -> Failure {
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Err(failure)) = ended {
            return failure;
        }
    }
    Failure::new(Kind::Lost, format!("GET {url}: the read ended early"))
}

/// Reads ranges of one file, and goes on after a break.
struct Reader {
    exchange: Arc<Exchange>,
    url: RemoteUrl,
    credential: Credential,
    stat: Stat,
    times: Times,
    rate_limiter: Arc<RateLimiter>,
    sender: mpsc::Sender<Bytes>,
}

impl Reader {
    async fn range(&self, range: Range<u64>) -> Result<(), Failure> {
        let mut at = range.start;
        let (mut breaks, mut mark) = (0, at);
        while at < range.end {
            let Err(failure) = self.once(&mut at, range.end).await else { continue };
            if at >= mark + RESUME_PROGRESS_BYTES {
                (breaks, mark) = (0, at);
            }
            breaks += 1;
            let breakage = matches!(failure.kind, Kind::Lost | Kind::TimedOut);
            // At the beginning nothing is gained by going on rather than by beginning again.
            if !breakage || !self.stat.ranges || at == 0 || breaks > RESUMES_MAX {
                return Err(failure);
            }
            tracing::debug!(url = %self.url, at, breaks, "a read goes on after: {}", failure.text);
        }
        Ok(())
    }

    /// One request, as far as it brings us.
    async fn once(&self, at: &mut u64, end: u64) -> Result<(), Failure> {
        let size = self.stat.size;
        let mut call = Call::new(Method::GET, &self.url, &self.credential, self.times.answer);
        let partial = *at > 0 || end < size;
        if partial {
            call = call.header("range", &format!("bytes={}-{}", *at, end - 1))?;
            call = match (&self.stat.etag, &self.stat.modified) {
                (Some(etag), _) if !etag.starts_with("W/") => call.header("if-match", etag)?,
                (_, Some(modified)) => call.header("if-unmodified-since", modified)?,
                _ => call,
            };
        }
        let mut answer = self.exchange.send(call).await?;
        let changed = |what: &str| {
            Failure::new(Kind::WrongSize, format!("GET {}: {what}: the source has changed", self.url))
        };
        if answer.status == StatusCode::PRECONDITION_FAILED {
            return Err(changed("it is no longer what it was"));
        }
        let expected = if partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        if answer.status != expected {
            if answer.status.is_success() {
                let text = format!("GET {}: {} where {expected} was asked for", self.url, answer.status);
                return Err(Failure::new(Kind::Malformed, text));
            }
            return Err(answer.into_failure("GET").await);
        }
        if answer.is_packed() {
            let text = format!("GET {}: it comes with a content encoding that was not asked for", self.url);
            return Err(Failure::new(Kind::Malformed, text));
        }
        if partial && !is_range(answer.header("content-range"), *at, end, size) {
            return Err(changed("the range that came is another one"));
        }
        if answer.length().is_some_and(|length| length != end - *at) {
            return Err(changed(&format!(
                "{} bytes where {} were expected",
                answer.length().unwrap_or(0),
                end - *at
            )));
        }
        while let Some(piece) = answer.data(self.times.stall).await? {
            if piece.len() as u64 > end - *at {
                return Err(changed("more came than was told"));
            }
            *at += piece.len() as u64;
            self.rate_limiter.pass(piece.len()).await;
            if self.sender.send(piece).await.is_err() {
                return Err(Failure::new(Kind::Cancelled, "nobody reads any more"));
            }
        }
        if *at < end {
            let text = format!("GET {}: it ended {} bytes early", self.url, end - *at);
            return Err(Failure::new(Kind::Lost, text));
        }
        Ok(())
    }
}

/// `bytes 5-9/10`, or `bytes 5-9/*`.
fn is_range(header: Option<&str>, start: u64, end: u64, size: u64) -> bool {
    let Some((range, total)) =
        header.and_then(|text| text.trim().strip_prefix("bytes ")).and_then(|text| text.split_once('/'))
    else {
        return false;
    };
    let Some((first, last)) = range.trim().split_once('-') else { return false };
    let total = total.trim();
    first.parse() == Ok(start) && last.parse() == Ok(end - 1) && (total == "*" || total.parse() == Ok(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_asked_for() {
        assert!(is_range(Some("bytes 5-9/10"), 5, 10, 10));
        assert!(is_range(Some(" bytes 5-9/* "), 5, 10, 10));
        for wrong in
            ["", "bytes", "bytes 5-9", "bytes 0-9/10", "bytes 5-9/11", "bytes 5-8/10", "items 5-9/10"]
        {
            assert!(!is_range(Some(wrong), 5, 10, 10), "{wrong}");
        }
        assert!(!is_range(None, 5, 10, 10));
    }
}
