//! S3's own percent-encoding: what is signed and what is sent are the same letters, so that no server on the
//! way has to guess.

/// All but letters, digits and `-_.~`, in capitals.
fn encode(bytes: &[u8], slash: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b'/' if slash => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A path that has been decoded; its slashes stay.
pub(crate) fn encode_path(path: &[u8]) -> String {
    encode(path, true)
}

/// A query in the order in which it is signed.
pub(crate) fn query(pairs: &[(&str, &str)]) -> String {
    let mut encoded: Vec<(String, String)> = pairs
        .iter()
        .map(|(name, value)| (encode(name.as_bytes(), false), encode(value.as_bytes(), false)))
        .collect();
    encoded.sort();
    encoded.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::url::decoded;

    #[test]
    fn it_is_that_of_s3() {
        assert_eq!(encode_path("/a b/ü+%~*".as_bytes()), "/a%20b/%C3%BC%2B%25~%2A");
        assert_eq!(query(&[("uploadId", "a/b="), ("partNumber", "3")]), "partNumber=3&uploadId=a%2Fb%3D");
        assert_eq!(query(&[("uploads", "")]), "uploads=");
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(path in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(decoded(&encode_path(&path)), path.clone());
            prop_assert_eq!(encode_path(&decoded(&encode_path(&path))), encode_path(&path));
        }
    }
}
