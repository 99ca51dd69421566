//! The checksum Adler-32, RFC 1950.

/// Sums up by the definition: what tests compare the product's own sums with.
pub fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    let (mut a, mut b) = (1u32, 0u32);
    // So many bytes can be added before the sums no longer fit.
    for piece in bytes.chunks(5_552) {
        for byte in piece {
            a += u32::from(*byte);
            b += a;
        }
        (a, b) = (a % MODULUS, b % MODULUS);
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_that_are_published() {
        assert_eq!(adler32(b""), 1);
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        // b = 6,000 + 255 * 6,000 * 6,001 / 2, modulo 65,521: more than one piece.
        assert_eq!(adler32(&[255; 6_000]), 0xa497_59ea);
    }
}
