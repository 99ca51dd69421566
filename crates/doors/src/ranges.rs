//! The `Range` header (RFC 9110, section 14.2).

/// Ranges of one request; more are no use to anybody honest, and the whole file is sent.
const RANGES_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RangeRequest {
    Whole,
    /// Start and length; not empty.
    Parts(Vec<(u64, u64)>),
    /// None of the ranges has a byte of the file in it.
    Nothing,
}

/// A malformed header, an unknown unit, and more than are served count as if there were none.
pub(crate) fn parse(header: Option<&str>, size: u64) -> RangeRequest {
    let Some(list) = header.and_then(|text| text.trim().strip_prefix("bytes=")) else {
        return RangeRequest::Whole;
    };
    let mut parts = Vec::new();
    for (place, one) in list.split(',').enumerate() {
        if place >= RANGES_MAX {
            return RangeRequest::Whole;
        }
        match part(one.trim(), size) {
            Some(Some(range)) => parts.push(range),
            Some(None) => {}
            None => return RangeRequest::Whole,
        }
    }
    // Parts that cover more than the file would make it larger on its way.
    if parts.iter().map(|(_, len)| u128::from(*len)).sum::<u128>() > u128::from(size) {
        return RangeRequest::Whole;
    }
    if parts.is_empty() { RangeRequest::Nothing } else { RangeRequest::Parts(parts) }
}

/// None: malformed. Some(None): nothing of it is in the file.
fn part(text: &str, size: u64) -> Option<Option<(u64, u64)>> {
    let (first, last) = text.split_once('-')?;
    let number = |text: &str| -> Option<u64> {
        if text.is_empty() || !text.bytes().all(|c| c.is_ascii_digit()) {
            return None;
        }
        // More digits than a number has are a place behind every file.
        Some(text.parse().unwrap_or(u64::MAX))
    };
    if first.is_empty() {
        let len = number(last)?.min(size);
        return Some((len > 0).then_some((size - len, len)));
    }
    let start = number(first)?;
    let end = if last.is_empty() { u64::MAX } else { number(last)? };
    if end < start {
        return None;
    }
    Some((start < size).then(|| (start, end.min(size - 1) - start + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_as_the_standard_has_them() {
        let parts = |parts: &[(u64, u64)]| RangeRequest::Parts(parts.to_vec());
        for (header, wanted) in [
            ("bytes=0-0", parts(&[(0, 1)])),
            ("bytes=90-200", parts(&[(90, 10)])),
            ("bytes=-5", parts(&[(95, 5)])),
            ("bytes=-500", parts(&[(0, 100)])),
            ("bytes=99-", parts(&[(99, 1)])),
            ("bytes=0-1, 5-6", parts(&[(0, 2), (5, 2)])),
            ("bytes=100-", RangeRequest::Nothing),
            ("bytes=-0", RangeRequest::Nothing),
            ("bytes=0-1,200-", parts(&[(0, 2)])),
            ("bytes=5-4", RangeRequest::Whole),
            ("bytes=a-b", RangeRequest::Whole),
            ("bytes=", RangeRequest::Whole),
            ("lines=0-1", RangeRequest::Whole),
            ("bytes=0-,0-", RangeRequest::Whole),
            ("bytes=99999999999999999999999-", RangeRequest::Nothing),
        ] {
            assert_eq!(parse(Some(header), 100), wanted, "{header}");
        }
        assert_eq!(parse(Some("bytes=0-"), 0), RangeRequest::Nothing);
        assert_eq!(parse(Some(&format!("bytes={}0-0", "0-0,".repeat(64))), 100), RangeRequest::Whole);
    }

    proptest! {
        #[test]
        fn no_range_leaves_the_file(header in "bytes=([0-9]{0,20}-[0-9]{0,20},?){0,5}", size in 0..200u64) {
            if let RangeRequest::Parts(parts) = parse(Some(&header), size) {
                prop_assert!(!parts.is_empty());
                prop_assert!(parts.iter().all(|(start, len)| *len > 0 && start + len <= size));
            }
        }
    }
}
