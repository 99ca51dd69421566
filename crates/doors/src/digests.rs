//! Digest headers: RFC 3230 (`Want-Digest`, `Digest`; the practice of the grid) and RFC 9530
//! (`Want-Repr-Digest`, `Repr-Digest`), and a cache of computed digests, so that a file is not read twice for
//! one question.

use std::collections::{HashMap, VecDeque};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use longhaul_model::{Algorithm, Digest, DigestSet};
use longhaul_storage::Identity;
use parking_lot::Mutex;

use crate::answer::{Outcome, Refusal};
use crate::request::single;

/// Files whose digests are remembered; some 300 bytes each.
const CACHED_FILES_MAX: usize = 20_000;
/// Algorithms of one header; a list without end is nobody's.
const LISTED_MAX: usize = 32;
/// Better first: the cheap ones are remembered from when the file came.
const SERVED: [Algorithm; 4] = [Algorithm::Adler32, Algorithm::Crc32c, Algorithm::Md5, Algorithm::Sha256];

fn old_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Adler32 => "adler32",
        Algorithm::Crc32c => "crc32c",
        Algorithm::Md5 => "md5",
        Algorithm::Sha256 => "sha-256",
        Algorithm::Blake3 => "blake3",
    }
}

fn new_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Adler32 => "adler",
        other => old_name(other),
    }
}

fn by_name(name: &str) -> Option<Algorithm> {
    match name.trim().to_ascii_lowercase().as_str() {
        "adler32" | "adler" => Some(Algorithm::Adler32),
        "crc32c" => Some(Algorithm::Crc32c),
        "md5" => Some(Algorithm::Md5),
        "sha-256" | "sha256" => Some(Algorithm::Sha256),
        _ => None,
    }
}

/// The digests that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) old: Option<Algorithm>,
    pub(crate) new: Option<Algorithm>,
}

impl Want {
    /// Malformed wishes are none.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Want {
        let get = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        Want {
            old: get("want-digest").and_then(|text| preferred(text, ";q=")),
            new: get("want-repr-digest").and_then(|text| preferred(text, "=")),
        }
    }

    pub(crate) fn algorithms(self) -> impl Iterator<Item = Algorithm> {
        let second = self.new.filter(|new| Some(*new) != self.old);
        self.old.into_iter().chain(second)
    }

    /// Adds the headers that were asked for, as far as the digests are there.
    pub(crate) fn insert_headers(self, digests: &DigestSet, headers: &mut HeaderMap) {
        let mut set = |name: &'static str, value: String| {
            crate::answer::set(headers, http::HeaderName::from_static(name), &value);
        };
        if let Some(digest) = self.old.and_then(|algorithm| digests.get(algorithm)) {
            set("digest", format!("{}={}", old_name(digest.algorithm()), old_value(digest)));
        }
        if let Some(digest) = self.new.and_then(|algorithm| digests.get(algorithm)) {
            let value = STANDARD.encode(digest.value());
            set("repr-digest", format!("{}=:{value}:", new_name(digest.algorithm())));
        }
    }
}

/// The one that is served with the highest preference; of equals the first.
fn preferred(list: &str, weight_mark: &str) -> Option<Algorithm> {
    let mut best: Option<(f32, Algorithm)> = None;
    for one in list.split(',').take(LISTED_MAX) {
        let compact: String = one.chars().filter(|c| !c.is_whitespace()).collect();
        let (name, weight) = match compact.split_once(weight_mark) {
            Some((name, weight)) => (name, weight.parse().unwrap_or(0.0)),
            None => (compact.as_str(), 1.0),
        };
        let Some(algorithm) = by_name(name).filter(|algorithm| SERVED.contains(algorithm)) else { continue };
        if weight > 0.0 && best.is_none_or(|(most, _)| weight > most) {
            best = Some((weight, algorithm));
        }
    }
    best.map(|(_, algorithm)| algorithm)
}

/// Hexadecimal for the 32-bit ones, base64 for the others.
fn old_value(digest: Digest) -> String {
    match digest.as_u32() {
        Some(value) => format!("{value:08x}"),
        None => STANDARD.encode(digest.value()),
    }
}

/// The digests that a client says its file has. Unknown algorithms are left out; a malformed value of a known
/// one is an error, since it was meant to be checked.
pub(crate) fn claimed(headers: &HeaderMap) -> Outcome<DigestSet> {
    let mut claimed = DigestSet::default();
    let mut claim = |digest: Digest| match claimed.get(digest.algorithm()) {
        Some(other) if other != digest => {
            Err(Refusal::bad(format!("two different {} digests are given", digest.algorithm())))
        }
        _ => {
            claimed.insert(digest);
            Ok(())
        }
    };
    for (header, marks) in [("digest", None), ("repr-digest", Some(':'))] {
        for one in single(headers, header)?.unwrap_or_default().split(',').take(LISTED_MAX) {
            let Some((name, value)) = one.trim().split_once('=') else { continue };
            let Some(algorithm) = by_name(name) else { continue };
            let value = match marks {
                None => Some(value.trim()),
                Some(mark) => value.trim().strip_prefix(mark).and_then(|value| value.strip_suffix(mark)),
            };
            let wrong = || Refusal::bad(format!("{header}: the {algorithm} is malformed"));
            claim(value.and_then(|value| parse(algorithm, value)).ok_or_else(wrong)?)?;
        }
    }
    if let Some(value) = single(headers, "content-md5")? {
        let wrong = || Refusal::bad("Content-MD5 is malformed");
        claim(parse(Algorithm::Md5, value.trim()).ok_or_else(wrong)?)?;
    }
    Ok(claimed)
}

/// Hexadecimal or base64, whichever has the right length: peers write both. Leading zeros may be missing.
pub(crate) fn parse(algorithm: Algorithm, value: &str) -> Option<Digest> {
    let bytes = algorithm.bytes();
    let is_hex = !value.is_empty() && value.bytes().all(|c| c.is_ascii_hexdigit());
    let hex = match bytes {
        4 if is_hex && value.len() <= 8 => Some(format!("{value:0>8}")),
        _ if is_hex && value.len() == 2 * bytes => Some(value.to_owned()),
        _ => None,
    };
    if let Some(hex) = hex {
        return format!("{algorithm}:{hex}").parse().ok();
    }
    let decoded = STANDARD.decode(value).ok()?;
    (decoded.len() == bytes).then(|| Digest::new(algorithm, &decoded))
}

/// Computed digests, by path; each is valid for one version of a file.
#[derive(Default)]
pub(crate) struct DigestCache {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<String, (Identity, DigestSet)>,
    order: VecDeque<String>,
}

impl DigestCache {
    pub(crate) fn get(&self, path: &str, identity: &Identity) -> DigestSet {
        let state = self.state.lock();
        let known = state.known.get(path).filter(|(version, _)| version == identity);
        known.map(|(_, digests)| digests.clone()).unwrap_or_default()
    }

    pub(crate) fn insert(&self, path: &str, identity: &Identity, digests: &DigestSet) {
        let mut state = self.state.lock();
        let mut all = digests.clone();
        match state.known.get(path) {
            Some((version, known)) if version == identity => {
                known.iter().for_each(|digest| all.insert(*digest))
            }
            Some(_) => {}
            None => state.order.push_back(path.to_owned()),
        }
        state.known.insert(path.to_owned(), (identity.clone(), all));
        while state.order.len() > CACHED_FILES_MAX {
            if let Some(oldest) = state.order.pop_front() {
                state.known.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::Hasher;
    use proptest::prelude::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    fn digests_of(bytes: &[u8]) -> DigestSet {
        let mut hasher = Hasher::new(SERVED);
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn wishes_are_weighed() {
        let want = |old: &str| Want::from_headers(&headers(&[("want-digest", old)])).old;
        assert_eq!(want("adler32, md5;q=0.5"), Some(Algorithm::Adler32));
        assert_eq!(want("adler32;q=0.3,MD5; q=0.5"), Some(Algorithm::Md5));
        assert_eq!(want("sha-256;q=0, unixsum"), None);
        let new = |new: &str| Want::from_headers(&headers(&[("want-repr-digest", new)])).new;
        assert_eq!(new("sha-256=10, adler=3"), Some(Algorithm::Sha256));
        assert_eq!(new("sha-512=10, adler=3"), Some(Algorithm::Adler32));
        assert_eq!(new("adler=0"), None);
    }

    #[test]
    fn digests_are_told_as_peers_expect_them() {
        let mut told = HeaderMap::new();
        let want = Want { old: Some(Algorithm::Adler32), new: Some(Algorithm::Adler32) };
        want.insert_headers(&digests_of(b""), &mut told);
        assert_eq!(told["digest"], "adler32=00000001");
        assert_eq!(told["repr-digest"], "adler=:AAAAAQ==:");
        let want = Want { old: Some(Algorithm::Md5), new: None };
        want.insert_headers(&digests_of(b""), &mut told);
        assert_eq!(told["digest"], "md5=1B2M2Y8AsgTpgAmY7PhCfg==");
    }

    #[test]
    fn claims_are_read_in_all_their_forms() {
        let all = digests_of(b"Wikipedia");
        let is = |list: &[(&'static str, &str)]| {
            let claimed = claimed(&headers(list)).unwrap();
            assert!(!claimed.is_empty() && claimed.contradiction(&all).is_none(), "{list:?}: {claimed}");
        };
        is(&[("digest", "adler32=11e60398")]);
        is(&[("digest", "ADLER32=11E60398, unixsum=5")]);
        is(&[("digest", "adler32=EeYDmA==")]);
        is(&[("repr-digest", "adler=:EeYDmA==:")]);
        for bad in [
            ("digest", "adler32=zz"),
            ("digest", "md5=11e60398"),
            ("repr-digest", "adler=EeYDmA=="),
            ("content-md5", "x"),
            ("digest", "adler32=1,adler32=2"),
        ] {
            assert!(claimed(&headers(&[bad])).is_err(), "{bad:?}");
        }
        assert_eq!(
            parse(Algorithm::Adler32, "1").map(|digest| digest.to_string()),
            Some("adler32:00000001".into())
        );
    }

    #[test]
    fn what_is_remembered_counts_for_one_version() {
        let remembered = DigestCache::default();
        let version = Identity { size: 1, mtime_ns: 2, inode: 3 };
        remembered.insert("a", &version, &digests_of(b"a"));
        assert_eq!(remembered.get("a", &version), digests_of(b"a"));
        assert!(remembered.get("a", &Identity { inode: 4, ..version.clone() }).is_empty());
        for number in 0..CACHED_FILES_MAX {
            remembered.insert(&number.to_string(), &version, &digests_of(b""));
        }
        assert!(remembered.get("a", &version).is_empty(), "the oldest leave");
    }

    proptest! {
        #[test]
        fn no_header_panics(text in "([a-z0-9-]{0,8}|[=;:,]|q=|\\.){0,12}") {
            let _ = Want::from_headers(&headers(&[("want-digest", &text), ("want-repr-digest", &text)]));
            let _ = claimed(&headers(&[("digest", &text), ("repr-digest", &text), ("content-md5", &text)]));
        }
    }
}
