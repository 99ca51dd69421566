//! The session's cookie, and that of a login at an issuer.

use http::{HeaderMap, HeaderValue, header};
use longhaul_api::routes::{SESSION_COOKIE, SESSION_COOKIE_TLS};
use longhaul_model::{Fault, FaultCode};
use longhaul_security::PENDING_LOGIN_TTL;

/// Binds a login to the browser in which it began.
const LOGIN_COOKIE: &str = "longhaul_login";
/// The pages that it is sent to.
const LOGIN_PATH: &str = "/ui/login/openid";

/// For the browser in which a session was opened.
pub fn set(value: &str, secure: bool) -> String {
    let (name, flag) = if secure { (SESSION_COOKIE_TLS, "; Secure") } else { (SESSION_COOKIE, "") };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{flag}")
}

pub fn clear(secure: bool) -> String {
    format!("{}; Max-Age=0", set("", secure))
}

/// For the browser that goes to an issuer. It comes back from another site, which `Strict` would not allow.
pub fn set_login(value: &str, secure: bool) -> String {
    let (flag, seconds) = (if secure { "; Secure" } else { "" }, PENDING_LOGIN_TTL.as_secs());
    format!("{LOGIN_COOKIE}={value}; Path={LOGIN_PATH}; Max-Age={seconds}; HttpOnly; SameSite=Lax{flag}")
}

pub fn clear_login(secure: bool) -> String {
    let flag = if secure { "; Secure" } else { "" };
    format!("{LOGIN_COOKIE}=; Path={LOGIN_PATH}; Max-Age=0; HttpOnly; SameSite=Lax{flag}")
}

pub fn get(headers: &HeaderMap) -> Option<String> {
    named(headers, SESSION_COOKIE)
}

pub fn get_login(headers: &HeaderMap) -> Option<String> {
    named(headers, LOGIN_COOKIE)
}

/// Leaves the cookies that are ours on this port, with the session's under one name for all handlers. What
/// the other port's is called does not count here, and of two of one name nobody knows which one the browser
/// got from us.
///
/// # Errors
/// One of ours is sent twice.
pub fn normalise(headers: &mut HeaderMap, secure: bool) -> Result<(), Fault> {
    let session_name = if secure { SESSION_COOKIE_TLS } else { SESSION_COOKIE };
    let mut ours = Vec::new();
    for (shown, name) in [(session_name, SESSION_COOKIE), (LOGIN_COOKIE, LOGIN_COOKIE)] {
        let mut values = pairs(headers).filter(|(key, _)| *key == shown).map(|(_, value)| value);
        let Some(value) = values.next() else { continue };
        if values.next().is_some() {
            let detail = format!("the cookie {shown} is sent twice: delete the cookies of this site");
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        ours.push(format!("{name}={value}"));
    }
    headers.remove(header::COOKIE);
    // Made of parts of a header, so it is one.
    if let (false, Ok(value)) = (ours.is_empty(), HeaderValue::from_str(&ours.join("; "))) {
        headers.insert(header::COOKIE, value);
    }
    Ok(())
}

fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let all = headers.get_all(header::COOKIE).into_iter();
    let texts = all.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
    texts.filter_map(|pair| pair.trim().split_once('='))
}

fn named(headers: &HeaderMap, name: &str) -> Option<String> {
    let found = pairs(headers).find(|(key, _)| *key == name);
    found.map(|(_, value)| value.to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(cookies: &[&str], secure: bool) -> Result<Option<String>, Fault> {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(header::COOKIE, cookie.parse().unwrap());
        }
        normalise(&mut headers, secure)?;
        Ok(get(&headers))
    }

    #[test]
    fn the_cookie_of_one_port_opens_nothing_at_the_other() {
        let (tls, plain) = ("__Host-longhaul_session=lhc_1", "longhaul_session=lhc_2");
        assert_eq!(normalised(&[tls], true).unwrap().as_deref(), Some("lhc_1"));
        assert_eq!(normalised(&[plain], true).unwrap(), None);
        assert_eq!(normalised(&[plain], false).unwrap().as_deref(), Some("lhc_2"));
        assert_eq!(normalised(&[tls], false).unwrap(), None);
        assert_eq!(normalised(&[plain, tls], true).unwrap().as_deref(), Some("lhc_1"));
        assert!(set("v", true).starts_with("__Host-longhaul_session=v; Path=/; "));
        assert!(set("v", false).starts_with("longhaul_session=v; "));
    }

    #[test]
    fn a_cookie_that_is_sent_twice_is_refused() {
        for (cookies, secure) in [
            (&["longhaul_session=a; longhaul_session=b"][..], false),
            (&["longhaul_session=a", "x=y; longhaul_session=a"][..], false),
            (&["__Host-longhaul_session=a; __Host-longhaul_session=b"][..], true),
            (&["longhaul_login=a; longhaul_login=b"][..], true),
        ] {
            assert_eq!(normalised(cookies, secure).unwrap_err().code, FaultCode::BadRequest, "{cookies:?}");
        }
    }

    #[test]
    fn found_among_others_and_only_under_its_name() {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::COOKIE, "a=b; longhaul_session=lhc_1; x=y".parse().unwrap());
        assert_eq!(get(&headers).as_deref(), Some("lhc_1"));
        assert!(get(&HeaderMap::new()).is_none() && get_login(&headers).is_none());
        headers.insert(http::header::COOKIE, "longhaul_login=lhb_1".parse().unwrap());
        assert_eq!(get_login(&headers).as_deref(), Some("lhb_1"));
        assert!(
            set_login("v", true).contains("SameSite=Lax; Secure")
                && set("v", true).contains("SameSite=Strict")
        );
        assert!(set("v", true).contains("; Secure") && !set("v", false).contains("; Secure"));
    }
}
