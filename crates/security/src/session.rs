//! Login sessions (cookies with CSRF tokens) and one-time login tokens, in memory. Only hashes of cookies and
//! tokens are stored. Not here: how people authenticate, see `password`, `pending_logins`, [`crate::bearer`]
//! and [`crate::identify_client`]; what a restart brings back (`identity`).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Timestamp, hex};
use parking_lot::{Mutex, MutexGuard};

use crate::{Principal, constant_time_eq, hash_secret, new_secret, text};

/// How long a session lasts: a working day.
const SESSION_TTL: Duration = Duration::from_secs(12 * 3600);
/// How long a login token may be redeemed: long enough to copy it into a browser.
const LOGIN_TOKEN_TTL: Duration = Duration::from_secs(600);
/// The first letters of every login token.
pub const LOGIN_TOKEN_PREFIX: &str = "lhl_";
/// Open sessions; beyond it the one that expires first is evicted.
const SESSIONS_MAX: usize = 1_000;
/// Sessions of one name, so that nobody displaces others' sessions by logging in again and again.
const SESSIONS_PER_USER_MAX: usize = 50;
/// Login tokens in memory.
const LOGIN_TOKENS_MAX: usize = 100;

/// The credential from which a session or a login token is derived. It lends its validity to all of them:
/// what is derived ends with it or before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParentCredential {
    /// The API token that was shown; none for passwords, certificates and issuers.
    pub token: Option<ParentToken>,
    /// None: it has no end of its own.
    pub expires: Option<Timestamp>,
}

/// An API token, by what its revocation names and by what it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentToken {
    pub name: String,
    pub hash: [u8; 32],
}

impl ParentCredential {
    /// The end of something derived that should last until `wanted`.
    pub fn end_of_derived(&self, wanted: Timestamp) -> Timestamp {
        self.expires.map_or(wanted, |expires| expires.min(wanted))
    }

    fn is_of_token(&self, name: &str) -> bool {
        self.token.as_ref().is_some_and(|token| token.name == name)
    }
}

/// The holder of a session, and what their login said about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionHolder {
    pub principal: Principal,
    /// The local account they logged in with: its sessions end with it.
    pub account: Option<String>,
    /// The community for which they work.
    pub community: Option<String>,
    /// Their external identity, if they logged in with one.
    pub external: Option<ExternalIdentity>,
    /// What they logged in with.
    pub parent: ParentCredential,
}

/// The holder of a certificate or of an issuer's tokens, as jobs and bans identify them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalIdentity {
    /// The subject.
    pub dn: String,
    /// The subject, with its issuer where it is unique only together.
    pub name: String,
    /// The id of their credential.
    pub credential: String,
}

impl From<Principal> for SessionHolder {
    fn from(principal: Principal) -> Self {
        SessionHolder {
            principal,
            account: None,
            community: None,
            external: None,
            parent: ParentCredential::default(),
        }
    }
}

/// An open login session.
#[derive(Clone)]
pub struct Session {
    pub holder: SessionHolder,
    /// Must be sent with every request that changes something.
    pub csrf_token: String,
    pub expires: Timestamp,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?} until {}, token hidden)", self.holder, self.expires)
    }
}

/// Login sessions and one-time login tokens.
#[derive(Default)]
pub struct Sessions {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<[u8; 32], OpenSession>,
    login_tokens: BTreeMap<[u8; 32], LoginToken>,
}

struct OpenSession {
    holder: SessionHolder,
    expires: Timestamp,
}

struct LoginToken {
    holder: SessionHolder,
    expires: Timestamp,
    /// The end of what made it, and of the session that it opens.
    end: Timestamp,
}

impl Sessions {
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a session; returns the cookie's value.
    pub fn create(&self, holder: impl Into<SessionHolder>, now: Timestamp) -> String {
        self.create_until(holder, Timestamp::MAX, now)
    }

    /// Like [`Sessions::create`], but ends at `end` if that comes first.
    pub fn create_until(&self, holder: impl Into<SessionHolder>, end: Timestamp, now: Timestamp) -> String {
        let holder = holder.into();
        let expires = holder.parent.end_of_derived(end.min(now + SESSION_TTL));
        let cookie = new_secret("lhc_");
        let mut state = self.state();
        let of_one = |session: &OpenSession| session.holder.principal.name == holder.principal.name;
        if state.sessions.values().filter(|session| of_one(session)).count() >= SESSIONS_PER_USER_MAX {
            let theirs = state.sessions.iter().filter(|(_, session)| of_one(session));
            let first = theirs.min_by_key(|(_, session)| session.expires).map(|(hash, _)| *hash);
            first.and_then(|hash| state.sessions.remove(&hash));
        }
        evict(&mut state.sessions, SESSIONS_MAX, now, |session| session.expires);
        state.sessions.insert(hash_secret(&cookie), OpenSession { holder, expires });
        cookie
    }

    /// Opens a session again that was open before a restart, by the hash of its cookie; false if there is no
    /// room for it or it would outlive what opened it.
    pub fn restore(&self, hash: [u8; 32], holder: SessionHolder, expires: Timestamp) -> bool {
        let mut state = self.state();
        let fits = state.sessions.len() < SESSIONS_MAX && expires <= holder.parent.end_of_derived(expires);
        if fits {
            state.sessions.insert(hash, OpenSession { holder, expires });
        }
        fits
    }

    pub fn get(&self, cookie: &str, now: Timestamp) -> Option<Session> {
        let state = self.state();
        let open = state.sessions.get(&hash_secret(cookie)).filter(|session| now < session.expires)?;
        let csrf_token = csrf_token(cookie);
        Some(Session { holder: open.holder.clone(), csrf_token, expires: open.expires })
    }

    /// Whether the session of that cookie's hash is open, or has ended only by its time.
    pub fn contains(&self, hash: &[u8; 32]) -> bool {
        self.state().sessions.contains_key(hash)
    }

    pub fn end(&self, cookie: &str) {
        self.state().sessions.remove(&hash_secret(cookie));
    }

    /// Ends all sessions of a local account, and login tokens made in them; returns the number of sessions.
    pub fn end_account_sessions(&self, name: &str) -> usize {
        let mut state = self.state();
        let before = state.sessions.len();
        state.sessions.retain(|_, session| session.holder.account.as_deref() != Some(name));
        state.login_tokens.retain(|_, token| token.holder.account.as_deref() != Some(name));
        before - state.sessions.len()
    }

    /// Ends all sessions that an API token opened, and login tokens derived from it; returns the number of
    /// sessions.
    pub fn end_token_sessions(&self, name: &str) -> usize {
        let mut state = self.state();
        let before = state.sessions.len();
        state.sessions.retain(|_, session| !session.holder.parent.is_of_token(name));
        state.login_tokens.retain(|_, token| !token.holder.parent.is_of_token(name));
        before - state.sessions.len()
    }

    /// Checks that `token` is the CSRF token of that session.
    pub fn check_csrf(&self, cookie: &str, token: &str, now: Timestamp) -> Result<(), Fault> {
        let session = self
            .get(cookie, now)
            .ok_or_else(|| Fault::new(FaultCode::NotAuthenticated, "the login session has ended"))?;
        if constant_time_eq(&hash_secret(&session.csrf_token), &hash_secret(token)) {
            return Ok(());
        }
        Err(Fault::new(
            FaultCode::NotAllowed,
            "the request does not carry its session's CSRF token: reload the page",
        ))
    }

    /// Creates a token that opens one session within ten minutes; returns it and its expiry. Neither outlives
    /// `end`, when the session or token of whoever asks for it ends: a chain of them does not either.
    pub fn create_login_token(
        &self,
        holder: impl Into<SessionHolder>,
        end: Timestamp,
        now: Timestamp,
    ) -> (String, Timestamp) {
        let holder = holder.into();
        let end = holder.parent.end_of_derived(end);
        let expires = end.min(now + LOGIN_TOKEN_TTL);
        let token = new_secret(LOGIN_TOKEN_PREFIX);
        let mut state = self.state();
        evict(&mut state.login_tokens, LOGIN_TOKENS_MAX, now, |token| token.expires);
        state.login_tokens.insert(hash_secret(&token), LoginToken { holder, expires, end });
        (token, expires)
    }

    /// Redeems a login token; returns the cookie's value.
    pub fn redeem(&self, login_token: &str, now: Timestamp) -> Result<String, Fault> {
        let token = self.state().login_tokens.remove(&hash_secret(login_token));
        match token {
            Some(token) if now < token.expires => Ok(self.create_until(token.holder, token.end, now)),
            _ => Err(Fault::new(
                FaultCode::NotAuthenticated,
                "the login token is unknown, was used already, or is older than ten minutes",
            )),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No update here can stop half-way: what a panicking thread left is consistent.
        self.state.lock()
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({} open)", self.state().sessions.len())
    }
}

/// The CSRF token of a cookie: it lasts as long, over restarts too, and tells nothing about it.
fn csrf_token(cookie: &str) -> String {
    hex::encode(&text::sha256(format!("CSRF token of {cookie}").as_bytes()))
}

/// Makes room for one more: drops expired items, then those that expire first.
fn evict<T>(
    held: &mut BTreeMap<[u8; 32], T>,
    most: usize,
    now: Timestamp,
    expires: impl Fn(&T) -> Timestamp,
) {
    if held.len() < most {
        return;
    }
    held.retain(|_, item| now < expires(item));
    while held.len() >= most {
        let Some(first) = held.iter().min_by_key(|(_, item)| expires(item)).map(|(hash, _)| *hash) else {
            return;
        };
        held.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;

    const NOW: Timestamp = Timestamp(1_780_000_000_000_000);
    const HOUR: Duration = Duration::from_secs(3600);

    fn somebody() -> Principal {
        Principal::new("somebody", Role::Admin)
    }

    #[test]
    fn a_session_lives_twelve_hours_or_until_it_is_ended() {
        let sessions = Sessions::new();
        let cookie = sessions.create(somebody(), NOW);
        assert_eq!(sessions.get(&cookie, NOW + 11 * HOUR).unwrap().holder.principal, somebody());
        assert!(sessions.get(&cookie, NOW + 12 * HOUR).is_none());
        assert!(sessions.get("lhc_guess", NOW).is_none());
        sessions.end(&cookie);
        assert!(sessions.get(&cookie, NOW).is_none());
    }

    #[test]
    fn the_csrf_token_belongs_to_its_session() {
        let sessions = Sessions::new();
        let (one, other) = (sessions.create(somebody(), NOW), sessions.create(somebody(), NOW));
        let token = sessions.get(&one, NOW).unwrap().csrf_token;
        assert!(sessions.check_csrf(&one, &token, NOW).is_ok());
        assert_eq!(sessions.check_csrf(&other, &token, NOW).unwrap_err().code, FaultCode::NotAllowed);
        assert!(sessions.check_csrf(&one, "", NOW).is_err());
        let late = sessions.check_csrf(&one, &token, NOW + 13 * HOUR).unwrap_err();
        assert_eq!(late.code, FaultCode::NotAuthenticated);
    }

    #[test]
    fn a_login_token_works_once_and_not_late() {
        let sessions = Sessions::new();
        let (token, expires) = sessions.create_login_token(somebody(), Timestamp::MAX, NOW);
        let cookie = sessions.redeem(&token, NOW).unwrap();
        assert!(sessions.get(&cookie, NOW).is_some());
        assert_eq!(sessions.redeem(&token, NOW).unwrap_err().code, FaultCode::NotAuthenticated);
        let (late, _) = sessions.create_login_token(somebody(), Timestamp::MAX, NOW);
        assert!(sessions.redeem(&late, expires).is_err());
    }

    #[test]
    fn the_sessions_of_an_account_end_with_it_and_no_others() {
        let sessions = Sessions::new();
        let of = |account: &str| SessionHolder { account: Some(account.into()), ..somebody().into() };
        let (one, again) = (sessions.create(of("anna"), NOW), sessions.create(of("anna"), NOW));
        let (other, token) = (sessions.create(of("bert"), NOW), sessions.create(somebody(), NOW));
        let (link, _) = sessions.create_login_token(of("anna"), Timestamp::MAX, NOW);
        assert_eq!(sessions.end_account_sessions("anna"), 2);
        assert!(sessions.get(&one, NOW).is_none() && sessions.get(&again, NOW).is_none());
        assert!(sessions.get(&other, NOW).is_some() && sessions.get(&token, NOW).is_some());
        assert!(sessions.redeem(&link, NOW).is_err(), "nor does a link that they made open one");
        let short = sessions.create_until(of("bert"), NOW + HOUR, NOW);
        assert!(sessions.get(&short, NOW + HOUR).is_none(), "with what was shown");
    }

    #[test]
    fn a_restored_session_is_the_same_with_its_csrf_token() {
        let before = Sessions::new();
        let cookie = before.create(somebody(), NOW);
        let session = before.get(&cookie, NOW).unwrap();
        let after = Sessions::new();
        assert!(after.restore(hash_secret(&cookie), session.holder.clone(), session.expires));
        assert!(after.contains(&hash_secret(&cookie)));
        let restored = after.get(&cookie, NOW).unwrap();
        assert_eq!((restored.holder, restored.expires), (session.holder, session.expires));
        assert!(after.check_csrf(&cookie, &session.csrf_token, NOW).is_ok());
        assert!(after.get(&cookie, session.expires).is_none(), "and ends when it did");
    }

    #[test]
    fn a_restored_session_does_not_outlive_what_opened_it_nor_the_bound() {
        let sessions = Sessions::new();
        let holder = holder_of_token("short", Some(NOW + HOUR));
        assert!(!sessions.restore([1; 32], holder.clone(), NOW + 2 * HOUR));
        assert!(sessions.restore([1; 32], holder, NOW + HOUR));
        let restore =
            |number: usize| sessions.restore(hash_secret(&number.to_string()), somebody().into(), NOW);
        assert_eq!((0..SESSIONS_MAX).filter(|number| restore(*number)).count(), SESSIONS_MAX - 1);
    }

    fn holder_of_token(name: &str, expires: Option<Timestamp>) -> SessionHolder {
        let token = ParentToken { name: name.into(), hash: hash_secret(name) };
        SessionHolder { parent: ParentCredential { token: Some(token), expires }, ..somebody().into() }
    }

    #[test]
    fn a_session_ends_with_the_token_that_opened_it() {
        let sessions = Sessions::new();
        let cookie = sessions.create(holder_of_token("short", Some(NOW + HOUR)), NOW);
        assert!(sessions.get(&cookie, NOW + HOUR - Duration::from_secs(1)).is_some());
        assert!(sessions.get(&cookie, NOW + HOUR).is_none());
    }

    #[test]
    fn what_is_derived_from_a_revoked_token_ends_at_once_and_nothing_else() {
        let sessions = Sessions::new();
        let gone = sessions.create(holder_of_token("gone", None), NOW);
        let stays = sessions.create(holder_of_token("stays", None), NOW);
        let of_a_password = sessions.create(Principal::new("gone", Role::Admin), NOW);
        let (link, _) = sessions.create_login_token(holder_of_token("gone", None), Timestamp::MAX, NOW);
        assert_eq!(sessions.end_token_sessions("gone"), 1);
        assert!(sessions.get(&gone, NOW).is_none() && sessions.redeem(&link, NOW).is_err());
        assert!(sessions.get(&stays, NOW).is_some() && sessions.get(&of_a_password, NOW).is_some());
    }

    #[test]
    fn a_session_does_not_renew_itself_by_login_tokens() {
        let sessions = Sessions::new();
        let mut session = sessions.get(&sessions.create(somebody(), NOW), NOW).unwrap();
        let end = session.expires;
        for hour in 1..12 {
            let now = NOW + HOUR * hour;
            let (link, _) = sessions.create_login_token(session.holder, session.expires, now);
            session = sessions.get(&sessions.redeem(&link, now).unwrap(), now).unwrap();
            assert_eq!(session.expires, end, "after {hour} hours");
        }
        let last = end - Duration::from_secs(1);
        let (link, expires) = sessions.create_login_token(session.holder, session.expires, last);
        assert_eq!(expires, end);
        assert!(sessions.redeem(&link, end).is_err());
    }

    /// Promise 7.
    #[test]
    fn the_number_of_sessions_and_tokens_is_bounded() {
        let sessions = Sessions::new();
        let first = sessions.create(somebody(), NOW);
        for second in 0..SESSIONS_MAX as u64 {
            let other = Principal::new(format!("number {second}"), Role::Viewer);
            sessions.create(other, NOW + Duration::from_secs(second + 1));
        }
        assert_eq!(sessions.state().sessions.len(), SESSIONS_MAX);
        assert!(sessions.get(&first, NOW).is_none(), "the oldest made room");
        let other = sessions.create(Principal::new("other", Role::Viewer), NOW + HOUR);
        for second in 0..SESSIONS_MAX as u64 {
            sessions.create(somebody(), NOW + 2 * HOUR + Duration::from_secs(second));
        }
        assert!(sessions.get(&other, NOW + 2 * HOUR).is_some(), "one alone drives nobody out");
        for _ in 0..LOGIN_TOKENS_MAX + 5 {
            sessions.create_login_token(somebody(), Timestamp::MAX, NOW);
        }
        assert_eq!(sessions.state().login_tokens.len(), LOGIN_TOKENS_MAX);
        while sessions.state().sessions.len() < SESSIONS_MAX {
            let number = sessions.state().sessions.len();
            sessions.create(Principal::new(format!("more {number}"), Role::Viewer), NOW);
        }
        sessions.create(Principal::new("late", Role::Viewer), NOW + 24 * HOUR);
        assert_eq!(sessions.state().sessions.len(), 1, "what has expired goes first");
    }

    /// Somebody who logs in without end loses their own oldest sessions and ends nobody else's; when there
    /// are more people than places, whoever came first logs in again.
    #[test]
    fn ten_thousand_sessions_are_bounded_and_the_last_ones_open() {
        let sessions = Sessions::new();
        let at = |number: u64| NOW + Duration::from_millis(number);
        let other = sessions.create(Principal::new("other", Role::Viewer), NOW);
        let cookies: Vec<String> =
            (0..10_000).map(|number| sessions.create(somebody(), at(number))).collect();
        assert_eq!(sessions.state().sessions.len(), SESSIONS_PER_USER_MAX + 1);
        let is_open = |cookie: &String| sessions.get(cookie, at(10_000)).is_some();
        assert!(is_open(&other) && cookies[10_000 - SESSIONS_PER_USER_MAX..].iter().all(is_open));
        assert!(!cookies[..10_000 - SESSIONS_PER_USER_MAX].iter().any(is_open));
        for number in 0..10_000 {
            let person = Principal::new(format!("number {number}"), Role::Viewer);
            let cookie = sessions.create(person, at(10_000 + number));
            assert!(sessions.get(&cookie, at(20_000)).is_some(), "whoever logs in is logged in");
        }
        assert_eq!(sessions.state().sessions.len(), SESSIONS_MAX);
    }

    #[test]
    fn nothing_secret_is_shown() {
        let sessions = Sessions::new();
        let cookie = sessions.create(somebody(), NOW);
        let session = sessions.get(&cookie, NOW).unwrap();
        let shown = format!("{sessions:?} {session:?}");
        assert!(!shown.contains(&cookie) && !shown.contains(&session.csrf_token), "{shown}");
    }
}
