//! Percent-encoding (RFC 3986, section 2.1): the set of characters to encode for each part of a URL, and
//! strict and lenient decoding.

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// All but the unreserved characters: for one path segment, or a name or value of a query or form.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// As [`COMPONENT`], but slashes stay.
const PATH: &AsciiSet = &COMPONENT.remove(b'/');

/// Characters that a request line cannot carry. Existing escapes and reserved characters stay.
const REQUEST_TARGET: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Encodes one segment of a path, or one name or value of a query or form.
pub fn encode_component(text: &str) -> String {
    percent_encode(text.as_bytes(), COMPONENT).to_string()
}

/// Encodes a whole decoded path; its slashes stay.
pub fn encode_path(path: impl AsRef<[u8]>) -> String {
    percent_encode(path.as_ref(), PATH).to_string()
}

/// Encodes only what a request line cannot carry, in a path and query typed by a person.
pub fn encode_target(text: &str) -> String {
    percent_encode(text.as_bytes(), REQUEST_TARGET).to_string()
}

/// Decodes once; a `%` that starts no escape stands for itself.
pub fn decode_lenient(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

/// Decodes once; none if a `%` starts no escape, or if the result is not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    let is_escape = |rest: &str| {
        let digits = rest.as_bytes().first_chunk::<2>();
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let is_well_formed = text.split('%').skip(1).all(is_escape);
    let bytes = is_well_formed.then(|| decode_lenient(text))?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_part_of_a_url_has_its_set() {
        assert_eq!(encode_component("a/b#1?x=<y>+%~"), "a%2Fb%231%3Fx%3D%3Cy%3E%2B%25~");
        assert_eq!(encode_path("/a b/ü%"), "/a%20b/%C3%BC%25");
        assert_eq!(encode_target("/a b/%2e?x={\"y\"}\u{7f}"), "/a%20b/%2e?x=%7B%22y%22%7D%7F");
    }

    #[test]
    fn malformed_escapes_are_refused_or_stay() {
        assert_eq!(decode("a%2fb%C3%bc").as_deref(), Some("a/bü"));
        for bad in ["%", "%4", "%4g", "%%41", "a%+1b", "%ff"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
        assert_eq!(decode_lenient("%%41%4%zz"), b"%A%4%zz");
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(text in ".{0,40}") {
            prop_assert_eq!(decode(&encode_component(&text)), Some(text.clone()));
            prop_assert_eq!(decode(&encode_path(&text)), Some(text));
        }
    }
}
