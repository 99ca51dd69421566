//! Pending OpenID Connect logins (authorization code flow with PKCE, RFC 6749 and RFC 7636): what must come
//! back with the browser, and what stays here.
//!
//! A login is bound to the browser by a cookie, and to its issuer by our name for it. It ends after ten
//! minutes or with the first answer, whatever that is. In memory and bounded, also per address, so that
//! nobody displaces logins of others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Timestamp};
use parking_lot::{Mutex, MutexGuard};

use crate::authority::random_bytes;
use crate::login_throttle::client_network;
use crate::{constant_time_eq, hash_secret, new_secret, text};

/// How long a login may take: long enough to fetch a second factor.
pub const PENDING_LOGIN_TTL: Duration = Duration::from_secs(600);
/// Pending logins in memory.
const PENDING_LOGINS_MAX: usize = 2_000;
/// Pending logins of one client network, so that it cannot displace those of others.
const PENDING_LOGINS_PER_ADDRESS_MAX: usize = 50;

/// What the browser takes to the issuer.
pub struct LoginRedirect {
    /// The `state` parameter, against cross-site request forgery (RFC 6749 section 10.12).
    pub state: String,
    /// The value of the cookie.
    pub browser: String,
    /// The `nonce`, which comes back in the ID token (OpenID Connect Core 1.0 section 3.1.2.1).
    pub nonce: String,
    /// The `code_challenge` with method `S256` (RFC 7636): a hash of the verifier.
    pub challenge: String,
}

/// What the callback needs once the browser is back.
#[derive(Clone, PartialEq, Eq)]
pub struct PendingLogin {
    pub nonce: String,
    pub verifier: String,
}

/// Logins that wait for their browser to come back.
#[derive(Default)]
pub struct PendingLogins {
    /// Entries by the hash of their `state`.
    waiting: Mutex<BTreeMap<[u8; 32], PendingEntry>>,
}

struct PendingEntry {
    issuer: String,
    browser: [u8; 32],
    login: PendingLogin,
    address: IpAddr,
    expires: Timestamp,
}

impl PendingLogins {
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a login. `issuer` is our name for it.
    pub fn begin(&self, issuer: &str, address: IpAddr, now: Timestamp) -> LoginRedirect {
        // 256 random bits in 43 characters, the fewest that RFC 7636 allows.
        let verifier = text::to_base64(&random_bytes::<32>());
        let begun = LoginRedirect {
            state: new_secret(""),
            browser: new_secret("lhb_"),
            nonce: new_secret(""),
            challenge: text::to_base64(&text::sha256(verifier.as_bytes())),
        };
        let address = client_network(address);
        let waiting = PendingEntry {
            issuer: issuer.to_owned(),
            browser: hash_secret(&begun.browser),
            login: PendingLogin { nonce: begun.nonce.clone(), verifier },
            address,
            expires: now + PENDING_LOGIN_TTL,
        };
        let mut all = self.waiting();
        all.retain(|_, waiting| now < waiting.expires);
        evict_oldest(&mut all, PENDING_LOGINS_PER_ADDRESS_MAX, |waiting| waiting.address == address);
        evict_oldest(&mut all, PENDING_LOGINS_MAX, |_| true);
        all.insert(hash_secret(&begun.state), waiting);
        begun
    }

    /// Takes the login that `state` belongs to. This works once, from any browser.
    pub fn take(
        &self,
        issuer: &str,
        state: &str,
        browser: Option<&str>,
        now: Timestamp,
    ) -> Result<PendingLogin, Fault> {
        let refuse = |why: &str| Fault::new(FaultCode::NotAuthenticated, format!("{why}: log in again"));
        let taken = self.waiting().remove(&hash_secret(state));
        let taken = taken.filter(|waiting| now < waiting.expires && waiting.issuer == issuer);
        let Some(waiting) = taken else {
            return Err(refuse("this login did not begin here, is over, or began more than ten minutes ago"));
        };
        let browser = browser.ok_or_else(|| refuse("the browser did not send the cookie of this login"))?;
        if !constant_time_eq(&hash_secret(browser), &waiting.browser) {
            return Err(refuse("this login began in another browser, or another one began after it"));
        }
        Ok(waiting.login)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], PendingEntry>> {
        // No update here can stop half-way: what a panicking thread left is consistent.
        self.waiting.lock()
    }
}

impl fmt::Debug for PendingLogins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingLogins({} waiting)", self.waiting().len())
    }
}

impl fmt::Debug for PendingLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingLogin(secret)")
    }
}

/// Evicts the oldest of the counted entries until there is room for one more.
fn evict_oldest(
    all: &mut BTreeMap<[u8; 32], PendingEntry>,
    most: usize,
    counted: impl Fn(&PendingEntry) -> bool,
) {
    while all.values().filter(|waiting| counted(waiting)).count() >= most {
        let oldest =
            all.iter().filter(|(_, waiting)| counted(waiting)).min_by_key(|(_, waiting)| waiting.expires);
        let Some(state) = oldest.map(|(state, _)| *state) else { return };
        all.remove(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_780_000_000_000_000);

    fn from(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn a_login_comes_back_once_to_its_browser_and_from_its_issuer() {
        let pending = PendingLogins::new();
        let begun = pending.begin("lab", from(1), NOW);
        let login = pending.take("lab", &begun.state, Some(&begun.browser), NOW).unwrap();
        assert_eq!(login.nonce, begun.nonce);
        assert_eq!(begun.challenge, text::to_base64(&text::sha256(login.verifier.as_bytes())));
        assert!((43..=128).contains(&login.verifier.len()));
        assert!(pending.take("lab", &begun.state, Some(&begun.browser), NOW).is_err(), "again");
        let why = |issuer: &str, browser: Option<&str>, later| {
            let begun = pending.begin("lab", from(1), NOW);
            let browser = browser.map(|browser| if browser.is_empty() { &*begun.browser } else { browser });
            let fault = pending.take(issuer, &begun.state, browser, NOW + later).unwrap_err();
            assert_eq!(fault.code, FaultCode::NotAuthenticated);
            assert!(pending.take("lab", &begun.state, Some(&begun.browser), NOW).is_err(), "it is over");
            fault.detail
        };
        let soon = Duration::from_secs(5);
        assert!(why("lab", None, soon).contains("cookie"));
        assert!(why("lab", Some("lhb_other"), soon).contains("another browser"));
        assert!(why("other", Some(""), soon).contains("did not begin here"));
        assert!(why("lab", Some(""), PENDING_LOGIN_TTL).contains("ten minutes"));
        assert!(pending.take("lab", "", None, NOW).is_err());
    }

    /// Promise 7.
    #[test]
    fn pending_logins_are_bounded_and_nobody_displaces_others() {
        let pending = PendingLogins::new();
        let mine = pending.begin("lab", from(1), NOW);
        for _ in 0..3 * PENDING_LOGINS_PER_ADDRESS_MAX {
            pending.begin("lab", from(2), NOW);
        }
        assert_eq!(pending.waiting().len(), PENDING_LOGINS_PER_ADDRESS_MAX + 1);
        assert!(pending.take("lab", &mine.state, Some(&mine.browser), NOW).is_ok());
        for number in 0..PENDING_LOGINS_MAX as u32 + 10 {
            pending.begin("lab", IpAddr::from((10 << 24 | number).to_be_bytes()), NOW);
        }
        assert_eq!(pending.waiting().len(), PENDING_LOGINS_MAX);
        pending.begin("lab", from(1), NOW + PENDING_LOGIN_TTL);
        assert_eq!(pending.waiting().len(), 1);
    }

    #[test]
    fn nothing_secret_is_shown() {
        let pending = PendingLogins::new();
        let begun = pending.begin("lab", from(1), NOW);
        let login = pending.take("lab", &begun.state, Some(&begun.browser), NOW).unwrap();
        assert_eq!(format!("{pending:?} {login:?}"), "PendingLogins(0 waiting) PendingLogin(secret)");
    }
}
