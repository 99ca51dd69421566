//! The canonical query string of AWS Signature Version 4. It is signed and sent letter by letter the same, so
//! that no server on the way has to guess.

use longhaul_model::percent::encode_component;

/// Sorted by name, then by value, both encoded.
pub(crate) fn canonical_query(pairs: &[(&str, &str)]) -> String {
    let mut encoded: Vec<(String, String)> =
        pairs.iter().map(|(name, value)| (encode_component(name), encode_component(value))).collect();
    encoded.sort();
    encoded.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use longhaul_model::percent::{decode_lenient, encode_path};

    #[test]
    fn it_is_that_of_s3() {
        assert_eq!(encode_path("/a b/ü+%~*".as_bytes()), "/a%20b/%C3%BC%2B%25~%2A");
        assert_eq!(
            canonical_query(&[("uploadId", "a/b="), ("partNumber", "3")]),
            "partNumber=3&uploadId=a%2Fb%3D"
        );
        assert_eq!(canonical_query(&[("uploads", "")]), "uploads=");
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(path in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(decode_lenient(&encode_path(&path)), path.clone());
            prop_assert_eq!(encode_path(decode_lenient(&encode_path(&path))), encode_path(&path));
        }
    }
}
