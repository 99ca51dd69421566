//! The session's cookie, and that of a login at an issuer.

use http::HeaderMap;
use longhaul_api::routes::SESSION_COOKIE;
use longhaul_security::PENDING_LOGIN_TTL;

/// Binds a login to the browser in which it began.
const LOGIN_COOKIE: &str = "longhaul_login";
/// The pages that it is sent to.
const LOGIN_PATH: &str = "/ui/login/openid";

/// For the browser in which a session was opened.
pub fn set(value: &str, secure: bool) -> String {
    let flag = if secure { "; Secure" } else { "" };
    format!("{SESSION_COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{flag}")
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

fn named(headers: &HeaderMap, name: &str) -> Option<String> {
    let all = headers.get_all(http::header::COOKIE);
    let pairs = all.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
    let found = pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(key, _)| *key == name);
    found.map(|(_, value)| value.to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

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
