//! LOCK and UNLOCK (RFC 4918), and how locks restrict every method that writes.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Response, StatusCode, header};
use longhaul_model::DigestSet;
use longhaul_model::percent::encode_path;
use parking_lot::MutexGuard;

use crate::answer::{Answer, Outcome, Refusal, empty, set};
use crate::body::Body;
use crate::conditions::{check_for_change, etag};
use crate::if_header::{IfHeader, ResourceState};
use crate::locks::{LOCK_TIMEOUT_MAX, Lock, LockError, Locks, WriteScope};
use crate::propfind::{XML_TYPE, document};
use crate::put::Incoming;
use crate::request::RequestPath;
use crate::rights::{Action, GrantedRights};
use crate::serve::{Call, DoorContext, blocking};
use crate::xml::{self, XML_BYTES_MAX};

/// The timeout of a lock where the client names none.
const LOCK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(600);
/// Bytes of the `owner` element, which a client chooses.
const OWNER_BYTES_MAX: usize = 4 << 10;
/// Before the random part of a token, which nobody can guess, though to hold a lock takes more than its
/// token.
const TOKEN_SCHEME: &str = "urn:longhaul:lock:";

impl DoorContext {
    pub(crate) fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock()
    }
}

/// The state of a door, for the header `If`.
struct CurrentState<'a> {
    shared: &'a DoorContext,
    granted: &'a GrantedRights,
    now: Duration,
}

impl ResourceState for CurrentState<'_> {
    fn is_locked(&self, path: &str, token: &str) -> bool {
        self.shared.locks().find(path, token, self.now).is_some()
    }

    fn etag(&self, path: &str) -> Outcome<Option<String>> {
        let place = RequestPath { path: path.to_owned(), slash: false };
        let found = self.shared.look_up(self.granted, Action::Look, &place)?;
        Ok(found.map(|entry| etag(&entry.identity)))
    }
}

/// Refuses what the header `If` does not agree with, and what others have locked. Looks at the disk. Gives
/// what that header says.
pub(crate) fn check_locks(
    shared: &DoorContext,
    headers: &HeaderMap,
    granted: &GrantedRights,
    place: &RequestPath,
    touches: &[WriteScope<'_>],
) -> Outcome<IfHeader> {
    let submitted = IfHeader::parse(headers, &shared.settings.names)?;
    let now = shared.uptime();
    if !submitted.holds(&place.path, &CurrentState { shared, granted, now })? {
        return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, "If: what it says is not so"));
    }
    let in_the_way = shared.locks().conflicting(touches, &submitted.tokens(), &granted.who, now);
    in_the_way.map_or(Ok(submitted), |path| Err(locked(&path)))
}

impl Call {
    /// See [`check_locks`].
    pub(crate) fn check_locks(&self, touches: &[WriteScope<'_>]) -> Outcome<IfHeader> {
        check_locks(&self.shared, self.request.headers(), &self.granted, &self.place, touches)
    }
}

fn locked(path: &str) -> Refusal {
    let text = format!("/{} is locked: its lock's token is needed, from who holds it", encode_path(path));
    Refusal::new(StatusCode::LOCKED, text)
}

/// The body of a LOCK.
struct LockRequest {
    exclusive: bool,
    owner: String,
}

pub(crate) async fn lock(mut call: Call) -> Outcome {
    let body = call.small_body(XML_BYTES_MAX).await?;
    let lasts = call.header("timeout")?.map_or(LOCK_TIMEOUT_DEFAULT, timeout);
    if body.is_empty() {
        return blocking(move || refresh(&call, lasts)).await;
    }
    let wish = parse_lock_request(&body)?;
    let deep = call.is_deep()?;
    let turn = call.shared.transfer_slot().await?;
    let answer = blocking(move || take(&call, wish, deep, lasts)).await;
    drop(turn);
    answer
}

/// `Second-600, Infinite`: the first that is understood. Nothing lasts for ever here.
fn timeout(text: &str) -> Duration {
    let seconds = |word: &str| match word.trim() {
        "Infinite" => Some(LOCK_TIMEOUT_MAX),
        word => Some(Duration::from_secs(word.strip_prefix("Second-")?.parse().ok()?)),
    };
    text.split(',')
        .find_map(seconds)
        .unwrap_or(LOCK_TIMEOUT_DEFAULT)
        .clamp(Duration::from_secs(1), LOCK_TIMEOUT_MAX)
}

fn parse_lock_request(body: &[u8]) -> Outcome<LockRequest> {
    let root = document(body, "lockinfo")?;
    let scope = root.child("lockscope").ok_or_else(|| Refusal::bad("the request names no lockscope"))?;
    let exclusive = scope.child("exclusive").is_some();
    if exclusive == scope.child("shared").is_some() {
        return Err(Refusal::bad("a lock is exclusive or shared"));
    }
    if root.child("locktype").is_none_or(|kind| kind.child("write").is_none()) {
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "locks are for writing"));
    }
    let owner = root.child("owner").map(xml::Element::inner).unwrap_or_default();
    if owner.len() > OWNER_BYTES_MAX {
        return Err(Refusal::bad(format!("the owner has more than {OWNER_BYTES_MAX} bytes")));
    }
    Ok(LockRequest { exclusive, owner })
}

/// What is not there becomes an empty file, so that its name is kept for who locked it.
fn take(call: &Call, wish: LockRequest, deep: bool, lasts: Duration) -> Outcome {
    let (shared, place) = (&call.shared, &call.place);
    let found = shared.look_up(&call.granted, Action::Change, place)?;
    if found.is_some() {
        call.granted.check(Action::Change, &place.path)?;
    }
    check_for_change(call.request.headers(), found.as_ref().map(|entry| &entry.identity))?;
    let members = [WriteScope::Members(place.parent())];
    call.check_locks(if found.is_some() { &[] } else { &members })?;
    if found.is_none() {
        if place.slash {
            return Err(Refusal::new(StatusCode::CONFLICT, "there is no such directory: make it first"));
        }
        crate::put::check_parent(shared, place)?;
    }
    let lock = Lock {
        token: longhaul_security::new_secret(TOKEN_SCHEME),
        path: place.path.clone(),
        deep: deep && found.as_ref().is_some_and(|entry| entry.is_directory),
        exclusive: wish.exclusive,
        owner: wish.owner,
        holder: call.granted.who.clone(),
        until: shared.uptime() + lasts,
    };
    // Before the file is made: two that come at once must not both believe to have made it.
    match shared.locks().acquire(lock.clone(), shared.uptime()) {
        Ok(()) => {}
        Err(LockError::Conflict(path)) => return Err(locked(&path)),
        Err(LockError::TooMany) => {
            let text = "as many locks as this door keeps are taken";
            return Err(Refusal::new(StatusCode::INSUFFICIENT_STORAGE, text));
        }
    }
    if found.is_none() {
        let made = make_empty(shared, place);
        if let Err(refusal) = made {
            shared.locks().release(&lock.token);
            return Err(refusal);
        }
    }
    let status = if found.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let mut answer = discovery(&lock, shared.uptime(), status);
    set(answer.headers_mut(), HeaderName::from_static("lock-token"), &format!("<{}>", lock.token));
    Ok(answer)
}

fn make_empty(shared: &Arc<DoorContext>, place: &RequestPath) -> Outcome<()> {
    let incoming = Incoming::begin(shared, place, Some(0), DigestSet::default(), None)?;
    let came = |_: Option<&_>| Err(Refusal::new(StatusCode::CONFLICT, "somebody made it meanwhile"));
    incoming.finish(came).map(drop)
}

fn refresh(call: &Call, lasts: Duration) -> Outcome {
    let shared = &call.shared;
    let submitted = call.check_locks(&[])?;
    let now = shared.uptime();
    let mut locks = shared.locks();
    let refreshed = submitted
        .tokens()
        .into_iter()
        .find_map(|token| locks.refresh((&call.place.path, token), &call.granted.who, now + lasts, now));
    drop(locks);
    let none = || {
        let text = "a lock is refreshed by its token in the header If, from who holds it";
        Refusal::new(StatusCode::PRECONDITION_FAILED, text)
    };
    refreshed.map(|lock| discovery(&lock, now, StatusCode::OK)).ok_or_else(none)
}

pub(crate) fn unlock(call: &Call) -> Outcome {
    let (shared, place) = (&call.shared, &call.place);
    let text = call.header("lock-token")?.map(str::trim);
    let token = text.and_then(|text| text.strip_prefix('<')?.strip_suffix('>'));
    let token = token.ok_or_else(|| Refusal::bad("the header Lock-Token is missing or malformed"))?;
    let now = shared.uptime();
    let mut locks = shared.locks();
    let Some(lock) = locks.find(&place.path, token, now) else {
        return Err(Refusal::new(StatusCode::CONFLICT, "there is no such lock here"));
    };
    if !lock.is_held_by(&call.granted.who) {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "the lock is somebody else's"));
    }
    locks.release(token);
    Ok(empty(StatusCode::NO_CONTENT))
}

fn discovery(lock: &Lock, now: Duration, status: StatusCode) -> Answer {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:prop \
            xmlns:D=\"DAV:\"><D:lockdiscovery>{}</D:lockdiscovery></D:prop>\n",
        active(lock, now)
    );
    let mut answer = Response::new(Body::from(text));
    *answer.status_mut() = status;
    set(answer.headers_mut(), header::CONTENT_TYPE, XML_TYPE);
    answer
}

/// One lock, as the property `lockdiscovery` tells it.
pub(crate) fn active(lock: &Lock, now: Duration) -> String {
    let scope = if lock.exclusive { "exclusive" } else { "shared" };
    let depth = if lock.deep { "infinity" } else { "0" };
    let owner = match lock.owner.as_str() {
        "" => String::new(),
        owner => format!("<D:owner>{owner}</D:owner>"),
    };
    format!(
        "<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope><D:{scope}/></D:lockscope>\
         <D:depth>{depth}</D:depth>\
         {owner}<D:timeout>Second-{}</D:timeout><D:locktoken><D:href>{}</D:href></D:locktoken>\
         <D:lockroot><D:href>/{}</D:href></D:lockroot></D:activelock>",
        lock.until.saturating_sub(now).as_secs(),
        lock.token,
        encode_path(&lock.path)
    )
}

/// The property `supportedlock`.
pub(crate) const SUPPORTED: &str = "<D:lockentry><D:lockscope><D:exclusive/></D:lockscope>\
     <D:locktype><D:write/></D:locktype></D:lockentry>\
     <D:lockentry><D:lockscope><D:shared/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_bounded() {
        let seconds = |text: &str| timeout(text).as_secs();
        assert_eq!(seconds("Second-120"), 120);
        assert_eq!(seconds("Infinite, Second-4100000000"), 3_600);
        assert_eq!(seconds("Extend, Second-30"), 30);
        assert_eq!(
            (seconds("Second-0"), seconds("x"), seconds("Second-99999999999999999999")),
            (1, 600, 600)
        );
    }

    #[test]
    fn wishes_are_understood() {
        let body = |scope: &str, kind: &str| {
            format!(
                "<lockinfo xmlns='DAV:'><lockscope>{scope}</lockscope><locktype>{kind}</locktype><owner>me \
                    &amp; <b>you</b></owner></lockinfo>"
            )
        };
        let read = parse_lock_request(body("<exclusive/>", "<write/>").as_bytes()).unwrap();
        assert!(read.exclusive);
        assert_eq!(read.owner, "me &amp; <x:b xmlns:x=\"DAV:\">you</x:b>");
        assert!(!parse_lock_request(body("<shared/>", "<write/>").as_bytes()).unwrap().exclusive);
        for (scope, kind) in
            [("", "<write/>"), ("<shared/><exclusive/>", "<write/>"), ("<shared/>", "<read/>")]
        {
            assert!(parse_lock_request(body(scope, kind).as_bytes()).is_err(), "{scope} {kind}");
        }
        let long = body("<shared/>", "<write/>").replace("me", &"x".repeat(5_000));
        assert!(parse_lock_request(long.as_bytes()).is_err());
    }
}
