//! The session's cookie.

use http::HeaderMap;

/// Over TLS the name's prefix has browsers insist on `Secure`, `Path=/` and no `Domain`.
const SECURE: &str = "__Host-longhaul";
const PLAIN: &str = "longhaul";

fn name(secure: bool) -> &'static str {
    if secure { SECURE } else { PLAIN }
}

pub fn set(value: &str, secure: bool) -> String {
    let flag = if secure { "; Secure" } else { "" };
    format!("{}={value}; Path=/; HttpOnly; SameSite=Strict{flag}", name(secure))
}

pub fn clear(secure: bool) -> String {
    format!("{}; Max-Age=0", set("", secure))
}

pub fn get(headers: &HeaderMap, secure: bool) -> Option<String> {
    let all = headers.get_all(http::header::COOKIE);
    let pairs = all.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
    let found = pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(key, _)| *key == name(secure));
    found.map(|(_, value)| value.to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_among_others_and_only_under_its_name() {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::COOKIE, "a=b; longhaul=lhc_1; x=y".parse().unwrap());
        assert_eq!(get(&headers, false).as_deref(), Some("lhc_1"));
        assert_eq!(get(&headers, true), None);
        assert!(set("v", true).contains("; Secure") && set("v", true).starts_with("__Host-"));
    }
}
