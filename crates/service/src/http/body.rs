//! Reading what is sent, within its limits of size and time.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use hyper::body::Frame;
use longhaul_api::Problem;
use longhaul_model::limits::{BODIES_BYTES_MAX, PUBLIC_BODIES_BYTES_MAX, PUBLIC_BODY_BYTES_MAX};
use longhaul_model::{Fault, FaultCode, units};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::HttpLimits;
use crate::operations::busy;

/// A body of an ordinary request comes within this many times the stall limit, however it trickles.
const STALLS_MAX: u32 = 4;

/// Memory for the request bodies of the process. Those who have shown no credential that counts have their
/// own, so that they fill no one else's.
pub struct BodyBudgets {
    known: Arc<Semaphore>,
    public: Arc<Semaphore>,
}

/// What one body may take.
pub struct BodyBounds {
    bytes: u64,
    budget: Arc<Semaphore>,
}

impl BodyBudgets {
    /// `body_bytes` is what a single body may have: there is memory for one at least.
    pub fn new(body_bytes: u64) -> BodyBudgets {
        let one = usize::try_from(body_bytes).unwrap_or(usize::MAX);
        let known = BODIES_BYTES_MAX.max(one).min(Semaphore::MAX_PERMITS);
        BodyBudgets {
            known: Arc::new(Semaphore::new(known)),
            public: Arc::new(Semaphore::new(PUBLIC_BODIES_BYTES_MAX)),
        }
    }

    /// Bounds of a body of `bytes` at most. `is_known`: a credential was verified before.
    pub fn bounds(&self, is_known: bool, bytes: u64) -> BodyBounds {
        match is_known {
            true => BodyBounds { bytes, budget: self.known.clone() },
            false => {
                let bytes = bytes.min(PUBLIC_BODY_BYTES_MAX as u64);
                BodyBounds { bytes, budget: self.public.clone() }
            }
        }
    }
}

/// A body, and its part of the budget as long as anybody holds it.
#[derive(Default)]
struct CountedBody {
    bytes: Vec<u8>,
    permit: Option<OwnedSemaphorePermit>,
}

impl CountedBody {
    fn append(&mut self, bytes: &[u8], budget: &Arc<Semaphore>) -> Result<(), Problem> {
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        // Without waiting: those who hold a part each would wait for one another.
        let permit = budget.clone().try_acquire_many_owned(count);
        let permit = permit.map_err(|_| busy("there is no memory left for the bodies of requests"))?;
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl AsRef<[u8]> for CountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body of which the first piece may have come together with the head of its request.
pub struct IncomingBody {
    first: Option<Result<Bytes, axum::Error>>,
    rest: Body,
}

impl IncomingBody {
    /// Takes what the connection has already received, and asks for nothing: a client that waits for
    /// `100 Continue` is not told to go on.
    pub fn new(headers: &http::HeaderMap, mut rest: Body) -> IncomingBody {
        let mut first = None;
        if !rest.is_end_stream() && !headers.contains_key(http::header::EXPECT) {
            let mut frame = std::pin::pin!(rest.frame());
            // A frame that comes later wakes whoever reads the rest.
            if let Poll::Ready(Some(frame)) = frame.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                first = frame.map(|frame| frame.into_data().ok()).transpose();
            }
        }
        IncomingBody { first, rest }
    }

    /// The whole body, if it has come and is no larger than that. Its memory is that of the connection, which
    /// holds no more than one piece: no budget counts it.
    pub fn whole(&self, bytes_max: u64) -> Option<Bytes> {
        let first = match &self.first {
            None => Bytes::new(),
            Some(Ok(first)) => first.clone(),
            Some(Err(_)) => return None,
        };
        (self.rest.is_end_stream() && first.len() as u64 <= bytes_max).then_some(first)
    }
}

impl From<Body> for IncomingBody {
    fn from(rest: Body) -> Self {
        IncomingBody { first: None, rest }
    }
}

/// The whole body in memory.
pub async fn collect(
    headers: &http::HeaderMap,
    body: impl Into<IncomingBody>,
    limits: &HttpLimits,
    bounds: &BodyBounds,
) -> Result<Bytes, Problem> {
    check_length(headers, bounds.bytes)?;
    let all = limits.stall().saturating_mul(STALLS_MAX);
    let mut collected = CountedBody::default();
    let read = read(body, bounds.bytes, limits, |bytes| {
        std::future::ready(collected.append(&bytes, &bounds.budget))
    });
    let ended = tokio::time::timeout(all, read).await;
    ended.unwrap_or_else(|_| Err(too_slow(all)))?;
    Ok(Bytes::from_owner(collected))
}

/// Gives each piece of the body to `take`, as fast as that takes them.
pub async fn read<F>(
    body: impl Into<IncomingBody>,
    limit: u64,
    limits: &HttpLimits,
    mut take: impl FnMut(Bytes) -> F,
) -> Result<(), Problem>
where
    F: Future<Output = Result<(), Problem>>,
{
    let IncomingBody { first, mut rest } = body.into();
    let mut total: u64 = 0;
    let mut next = first.map(|first| first.map(Frame::data));
    loop {
        if let Some(frame) = next {
            let bytes = frame.map_err(broken_off)?.into_data().unwrap_or_default();
            total += bytes.len() as u64;
            if total > limit {
                return Err(too_large(limit));
            }
            take(bytes).await?;
        }
        let frame = tokio::time::timeout(limits.stall(), rest.frame()).await;
        next = frame.map_err(|_| too_slow(limits.stall()))?;
        if next.is_none() {
            return Ok(());
        }
    }
}

fn broken_off(error: axum::Error) -> Problem {
    Fault::new(FaultCode::BadRequest, format!("the body broke off: {error}")).with_source(error).into()
}

/// Refuses by the announced length, before anything is read.
pub fn check_length(headers: &http::HeaderMap, limit: u64) -> Result<(), Problem> {
    let length = headers.get(http::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|text| text.parse::<u64>().ok()) {
        Some(length) if length > limit => Err(too_large(limit)),
        _ => Ok(()),
    }
}

fn too_large(limit: u64) -> Problem {
    Fault::new(
        FaultCode::TooLarge,
        format!("the body is larger than {} ({limit} bytes)", units::bytes(limit)),
    )
    .into()
}

fn too_slow(wait: Duration) -> Problem {
    let mut problem = Problem::from(Fault::new(
        FaultCode::BadRequest,
        format!("the body did not come within {}", units::duration(wait)),
    ));
    problem.status = 408;
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn collected(bounds: &BodyBounds, bytes: usize) -> Result<Bytes, u16> {
        let body = Body::from(vec![0; bytes]);
        let limits = HttpLimits::default();
        collect(&http::HeaderMap::new(), body, &limits, bounds).await.map_err(|problem| problem.status)
    }

    #[tokio::test]
    async fn who_is_not_known_sends_little() {
        let (budgets, most) = (BodyBudgets::new(16 << 20), PUBLIC_BODY_BYTES_MAX);
        let public = budgets.bounds(false, 16 << 20);
        assert_eq!(collected(&public, most).await.unwrap().len(), most);
        assert_eq!(collected(&public, most + 1).await.unwrap_err(), 413);
        let known = budgets.bounds(true, 16 << 20);
        assert_eq!(collected(&known, most + 1).await.unwrap().len(), most + 1);
    }

    #[tokio::test]
    async fn a_body_that_has_come_is_whole_before_anybody_waits() {
        let mut expecting = http::HeaderMap::new();
        expecting.insert(http::header::EXPECT, http::HeaderValue::from_static("100-continue"));
        let none = http::HeaderMap::new();
        let came = |headers, bytes: usize| IncomingBody::new(headers, Body::from(vec![7; bytes]));
        assert_eq!(came(&none, 0).whole(10).map(|bytes| bytes.len()), Some(0));
        assert_eq!(came(&none, 10).whole(10).map(|bytes| bytes.len()), Some(10));
        assert_eq!(came(&none, 11).whole(10), None, "the limit is the same");
        assert_eq!(came(&expecting, 10).whole(10), None, "nobody is told to go on");
    }

    /// A body by its frames; `None` where it lets its reader wait once.
    struct Pieces(std::vec::IntoIter<Option<std::io::Result<&'static str>>>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
            match self.0.next() {
                None => Poll::Ready(None),
                Some(Some(piece)) => Poll::Ready(Some(piece.map(|piece| Frame::data(piece.into())))),
                Some(None) => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        }

        fn is_end_stream(&self) -> bool {
            self.0.as_slice().is_empty()
        }
    }

    async fn read_in_pieces(
        pieces: Vec<Option<std::io::Result<&'static str>>>,
    ) -> (Option<Bytes>, Result<Bytes, u16>) {
        let (headers, limits) = (http::HeaderMap::new(), HttpLimits::default());
        let body = IncomingBody::new(&headers, Body::new(Pieces(pieces.into_iter())));
        let whole = body.whole(7);
        let all = collect(&headers, body, &limits, &BodyBudgets::new(7).bounds(true, 7)).await;
        (whole, all.map_err(|problem| problem.status))
    }

    #[tokio::test]
    async fn pieces_that_come_later_follow_the_first() {
        let pieces = |last| vec![Some(Ok("one ")), None, Some(Ok(last))];
        assert_eq!(read_in_pieces(pieces("two")).await, (None, Ok("one two".into())));
        assert_eq!(read_in_pieces(pieces("four")).await, (None, Err(413)));
        let late = vec![None, Some(Ok("late"))];
        assert_eq!(read_in_pieces(late).await, (None, Ok("late".into())));
        assert_eq!(read_in_pieces(vec![Some(Ok("whole"))]).await, (Some("whole".into()), Ok("whole".into())));
    }

    #[tokio::test]
    async fn a_body_that_broke_off_is_not_whole() {
        let broken = || Some(Err(std::io::ErrorKind::ConnectionReset.into()));
        assert_eq!(read_in_pieces(vec![broken()]).await, (None, Err(400)));
        assert_eq!(read_in_pieces(vec![Some(Ok("one")), broken()]).await, (None, Err(400)));
    }

    #[tokio::test]
    async fn all_bodies_share_one_budget_and_give_it_back() {
        let budgets = BodyBudgets::new(16 << 20);
        let public = budgets.bounds(false, 16 << 20);
        let mut held = Vec::new();
        for _ in 0..PUBLIC_BODIES_BYTES_MAX / PUBLIC_BODY_BYTES_MAX {
            held.push(collected(&public, PUBLIC_BODY_BYTES_MAX).await.unwrap());
        }
        assert_eq!(
            collected(&public, 1).await.unwrap_err(),
            Problem::from(Fault::new(FaultCode::Busy, "")).status
        );
        assert!(collected(&budgets.bounds(true, 16 << 20), 1 << 20).await.is_ok(), "others have their own");
        let copy = held.pop().unwrap().clone();
        assert!(collected(&public, 1).await.is_err(), "a copy of a body is the same memory");
        drop(copy);
        assert!(collected(&public, 1).await.is_ok());
    }
}
