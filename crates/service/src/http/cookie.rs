//! The session's cookie.

use http::HeaderMap;
use longhaul_api::routes::SESSION_COOKIE;

pub fn set(value: &str, secure: bool) -> String {
    let flag = if secure { "; Secure" } else { "" };
    format!("{SESSION_COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{flag}")
}

pub fn clear(secure: bool) -> String {
    format!("{}; Max-Age=0", set("", secure))
}

pub fn get(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(http::header::COOKIE);
    let pairs = all.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
    let found = pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(key, _)| *key == SESSION_COOKIE);
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
        assert!(get(&HeaderMap::new()).is_none());
        assert!(set("v", true).contains("; Secure") && !set("v", false).contains("; Secure"));
    }
}
