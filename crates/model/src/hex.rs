//! Lower-case hexadecimal (base 16, RFC 4648).

use std::fmt;

/// `bytes` as lower-case hexadecimal text.
pub fn encode(bytes: &[u8]) -> String {
    Hex(bytes).to_string()
}

/// Decodes exactly `value.len()` bytes from digits of either case; none for any other text.
pub fn decode_into(text: &str, value: &mut [u8]) -> Option<()> {
    if text.len() != 2 * value.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    for (slot, pair) in value.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *slot = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(())
}

/// Formats bytes in hexadecimal without an intermediate `String`.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_digits_in_the_right_number_are_read() {
        let mut value = [0; 2];
        assert_eq!(decode_into("0aFf", &mut value), Some(()));
        assert_eq!(value, [0x0a, 0xff]);
        for bad in ["", "0af", "0aff0", "0ag0", "+a-b", " 0af", "ää"] {
            assert_eq!(decode_into(bad, &mut value), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn bytes_survive(bytes: [u8; 20]) {
            let mut value = [0; 20];
            decode_into(&encode(&bytes), &mut value).unwrap();
            prop_assert_eq!(value, bytes);
        }
    }
}
