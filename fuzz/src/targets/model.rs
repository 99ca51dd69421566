//! Names, name rules, digests, sizes and times: what parses prints as it was read, and is within its rules.

use std::fmt::Display;
use std::str::FromStr;

use longhaul_model::digest::{PartDigest, adler32_combine};
use longhaul_model::limits::{COMPONENT_BYTES_MAX, LFN_BYTES_MAX};
use longhaul_model::rules::{NAME_BYTES_MAX, NameRule, PrefixRule};
use longhaul_model::tree::{ChunkValue, values_of};
use longhaul_model::{
    AgentId, Algorithm, AttemptId, Blame, BlockName, CommunityName, DatasetName, Digest, DigestSet,
    FaultCode, Hasher, Lfn, NameRules, Pfn, SiteName, StorageName, Timestamp, Tree, units,
};

use super::dice::Dice;

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Shown on terminals, in logs and on pages: nothing in it moves a cursor or begins a line.
fn assert_shown_safely(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

/// A path below the root, and nowhere else.
fn assert_beneath(path: &str) {
    assert!(!path.is_empty() && path.len() <= LFN_BYTES_MAX && !path.contains('\0'));
    for component in path.split('/') {
        assert!(!matches!(component, "" | "." | "..") && component.len() <= COMPONENT_BYTES_MAX, "{path:?}");
    }
}

pub fn names(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    match Lfn::parse(text) {
        Ok(lfn) => {
            assert_eq!(lfn.as_str(), text, "names are never normalised");
            assert_beneath(lfn.as_str());
            assert_shown_safely(&lfn.shown());
        }
        Err(error) => assert_shown_safely(&error.to_string()),
    }
    if let Ok(storage) = StorageName::parse("s")
        && let Ok(pfn) = Pfn::new(storage, text)
    {
        assert_beneath(pfn.path());
        assert_shown_safely(&pfn.to_string());
    }
    word::<SiteName>(text);
    word::<StorageName>(text);
    word::<CommunityName>(text);
    word::<DatasetName>(text);
    if let Some(block) = word::<BlockName>(text) {
        assert!(text.starts_with(block.dataset().as_str()));
    }
    assert_shown_safely(&units::printable(text));
}

/// A name of one word: printable as it is, and the same after it was printed.
fn word<T>(text: &str) -> Option<T>
where
    T: FromStr + Display + PartialEq + std::fmt::Debug,
    T::Err: Display,
{
    match text.parse::<T>() {
        Ok(name) => {
            assert_eq!(name.to_string(), text);
            assert_shown_safely(text);
            Some(name)
        }
        Err(error) => {
            assert_shown_safely(&error.to_string());
            None
        }
    }
}

/// Lines of rules, the last line a name: what maps, maps back, and stays beneath the root.
pub fn name_rules(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut lines = text.split('\n').rev();
    let name = lines.next().unwrap_or_default();
    let rule = |line: &str| {
        let (lfn, pfn) = line.split_once('\t')?;
        Some(NameRule::Prefix(PrefixRule { lfn: lfn.to_owned(), pfn: pfn.to_owned() }))
    };
    come_back(&NameRules::new(1, lines.take(16).filter_map(rule).collect()), name);
}

/// Rules of both kinds as they are stored, in all lines but the last; the last is a name.
pub fn name_patterns(bytes: &[u8]) {
    let Some((rules, name)) = text(bytes).and_then(|text| text.rsplit_once('\n')) else { return };
    let read: Result<NameRules, _> = serde_json::from_str(rules);
    let Ok(rules) = read else { return };
    let written = serde_json::to_string(&rules).expect("rules can be written");
    assert_eq!(serde_json::from_str::<NameRules>(&written).ok(), Some(rules.clone()));
    come_back(&rules, name);
}

/// What maps, maps back, and stays beneath the root; whatever the rules are.
pub fn come_back(rules: &NameRules, name: &str) {
    let sound = rules.check().is_ok();
    let Ok(storage) = StorageName::parse("s") else { return };
    if let Ok(lfn) = Lfn::parse(name) {
        match rules.to_pfn(&storage, &lfn) {
            Ok(pfn) => {
                assert_beneath(pfn.path());
                assert_eq!(rules.to_lfn(&pfn), Ok(lfn), "what maps maps back, sound or not: {sound}");
            }
            Err(error) => assert!(error.to_string().len() < 8 * NAME_BYTES_MAX),
        }
    }
    if let Ok(pfn) = Pfn::new(storage.clone(), name)
        && let Ok(lfn) = rules.to_lfn(&pfn)
    {
        assert_beneath(lfn.as_str());
        assert!(rules.to_pfn(&storage, &lfn).is_ok());
    }
}

/// Parses, prints, parses, prints the same. (Times are read with more digits than are shown.)
fn survives<T: FromStr + Display>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let printed = value.to_string();
        assert_shown_safely(&printed);
        let again = printed.parse::<T>().ok().map(|value| value.to_string());
        assert_eq!(again.as_ref(), Some(&printed), "{text:?}");
    }
}

pub fn values(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let number = dice.number();
    let seconds = std::time::Duration::from_millis(number);
    for shown in [units::bytes(number), units::count(number), units::duration(seconds)] {
        assert!(!shown.is_empty());
    }
    units::rate(f64::from_bits(number));
    let time = Timestamp(number as i64);
    let _ = (time.plus(seconds), time.since(Timestamp(0)), time.to_string());
    let Some(text) = text(dice.rest()) else { return };
    if let Ok(size) = units::parse_bytes(text) {
        assert!(size <= i64::MAX as u64 + 1);
    }
    survives::<Timestamp>(text);
    survives::<AttemptId>(text);
    survives::<AgentId>(text);
    survives::<Digest>(text);
    survives::<DigestSet>(text);
    survives::<FaultCode>(text);
    if let Ok(blame) = text.parse::<Blame>() {
        assert_eq!(blame.word().parse::<Blame>().ok(), Some(blame));
    }
}

/// A list of values that somebody gave: as many as the size has or no tree, and one bit of it makes another
/// root.
pub fn trees(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let size = match dice.below(4) {
        0 => dice.number(),
        _ => u64::from(dice.byte()) << 20 | u64::from(dice.byte()),
    };
    let (place, offset) = (usize::from(dice.byte()), dice.number());
    let (values, _) = dice.rest().as_chunks::<32>();
    let values: Vec<ChunkValue> = values.to_vec();
    let count = values.len() as u64;
    let Some(tree) = Tree::from_values(size, values.clone()) else {
        assert_ne!(values_of(size), count);
        return;
    };
    assert_eq!((values_of(size), tree.size(), tree.values()), (count, size, &values[..]));
    let mut other = values.clone();
    other[place % values.len()][place % 32] ^= 1 << (place % 8);
    assert_ne!(Tree::from_values(size, other).map(|other| other.root()), Some(tree.root()));
    assert!(!tree.fits(offset, b"some bytes that nobody knows the digest of"));
}

/// Digests of parts, joined, are the digest of the whole.
pub fn digests(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_at_checked(2) else { return };
    let at = usize::from(u16::from_le_bytes([cut[0], cut[1]])) % (bytes.len() + 1);
    let (first, second) = bytes.split_at(at);
    let whole = PartDigest::compute(bytes);
    let (one, two) = (PartDigest::compute(first), PartDigest::compute(second));
    assert_eq!(one.then(two), whole);
    assert_eq!(adler32_combine(one.adler32, two.adler32, two.len), whole.adler32);
    let mut hasher = Hasher::new([Algorithm::Adler32, Algorithm::Crc32c]);
    hasher.update(first);
    hasher.update(second);
    let set = hasher.finish();
    assert_eq!(set.get(Algorithm::Adler32), Some(Digest::adler32(whole.adler32)));
    assert_eq!(set.get(Algorithm::Crc32c), Some(Digest::crc32c(whole.crc32c)));
    assert_eq!(whole.digests().contradiction(&set), None);
    // Lengths that no buffer has.
    let far = u64::from(cut[0]) << 48 | u64::from(cut[1]) << 31;
    let _ = adler32_combine(one.adler32, two.adler32, far);
}
