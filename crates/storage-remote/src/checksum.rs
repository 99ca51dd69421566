//! Checksums as users write them and as storages report them, in all spellings of both.
//!
//! Compared without regard to case and leading zeros: some storages print seven digits of an adler32.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use longhaul_model::hex;
use longhaul_model::units::printable;
use longhaul_model::{Algorithm, Digest};

/// Longer values of these headers are not read.
const HEADER_BYTES_MAX: usize = 4 << 10;
/// More digests than that in one header are not read.
const DIGESTS_MAX: usize = 16;

/// Names that HTTP has for an algorithm; the first is the one that we ask by.
const NAMES: &[(Algorithm, &[&str])] = &[
    (Algorithm::Adler32, &["adler32", "adler"]),
    (Algorithm::Crc32c, &["crc32c"]),
    (Algorithm::Md5, &["md5"]),
    (Algorithm::Sha256, &["sha-256", "sha256"]),
];

/// An algorithm and, where it is known, a value; text form `ADLER32:0a1b2c3d` or `ADLER32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    pub algorithm: Algorithm,
    value: Option<[u8; 32]>,
}

impl Checksum {
    pub fn unknown(algorithm: Algorithm) -> Checksum {
        Checksum { algorithm, value: None }
    }

    pub fn from_digest(digest: &Digest) -> Checksum {
        let mut value = [0; 32];
        value[..digest.value().len()].copy_from_slice(digest.value());
        Checksum { algorithm: digest.algorithm(), value: Some(value) }
    }

    /// The digest, if its value is known.
    pub fn digest(&self) -> Option<Digest> {
        let value = self.value?;
        Some(Digest::new(self.algorithm, &value[..self.algorithm.bytes()]))
    }

    pub fn is_known(&self) -> bool {
        self.value.is_some()
    }

    /// The value in hexadecimal, without the algorithm; empty if unknown.
    pub fn hex(&self) -> String {
        let Some(value) = self.value else { return String::new() };
        hex::encode(&value[..self.algorithm.bytes()])
    }

    /// As users write the algorithm.
    pub fn label(&self) -> String {
        self.algorithm.to_string().to_uppercase()
    }

    /// Leading zeros may be missing, or too many.
    fn of_hex(algorithm: Algorithm, text: &str) -> Option<Checksum> {
        let digits = 2 * algorithm.bytes();
        let text = text.trim();
        let significant = text.trim_start_matches('0');
        if text.is_empty() {
            return None;
        }
        let mut value = [0; 32];
        hex::decode_into(&format!("{significant:0>digits$}"), &mut value[..algorithm.bytes()])?;
        let checksum = Checksum { algorithm, value: Some(value) };
        checksum.is_computed().then_some(checksum)
    }

    fn of_base64(algorithm: Algorithm, text: &str) -> Option<Checksum> {
        let bytes = STANDARD.decode(text).ok().filter(|bytes| bytes.len() == algorithm.bytes())?;
        let mut value = [0; 32];
        value[..bytes.len()].copy_from_slice(&bytes);
        let checksum = Checksum { algorithm, value: Some(value) };
        checksum.is_computed().then_some(checksum)
    }

    /// Some storages tell 00000000 for "not computed". No file has it: adler32 of nothing is 00000001.
    fn is_computed(&self) -> bool {
        self.algorithm != Algorithm::Adler32 || self.value != Some([0; 32])
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())?;
        if self.is_known() { write!(f, ":{}", self.hex()) } else { Ok(()) }
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shown = || printable(&text.chars().take(80).collect::<String>());
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let algorithm = algorithm(name).ok_or_else(|| {
            format!("{}: this checksum is not known here; ADLER32, CRC32C, MD5 and SHA256 are", shown())
        })?;
        if value.is_empty() {
            return Ok(Checksum::unknown(algorithm));
        }
        Checksum::of_hex(algorithm, value).ok_or_else(|| {
            format!("{}: a {algorithm} has up to {} hexadecimal digits", shown(), 2 * algorithm.bytes())
        })
    }
}

fn algorithm(name: &str) -> Option<Algorithm> {
    let known = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name.trim()));
    NAMES.iter().find(|(_, names)| known(names)).map(|(algorithm, _)| *algorithm)
}

/// What to send as `Want-Digest` and as `Want-Repr-Digest` (RFC 3230, RFC 9530); nothing for what HTTP has no
/// name for.
pub(crate) fn wanted(algorithm: Algorithm) -> Option<(&'static str, String)> {
    let name = NAMES.iter().find(|(known, _)| *known == algorithm)?.1[0];
    let structured = if algorithm == Algorithm::Adler32 { "adler" } else { name };
    Some((name, format!("{structured}=10")))
}

/// The checksum of that algorithm that an answer tells, in whichever header and spelling.
pub(crate) fn read_checksum(headers: &HeaderMap, wanted: Algorithm) -> Option<Checksum> {
    let values = |name: &str| {
        let texts: Vec<String> = headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .filter(|text| text.len() <= HEADER_BYTES_MAX)
            .map(str::to_owned)
            .collect();
        texts
    };
    let of = |name: &str, read: fn(&str, Algorithm) -> Option<Checksum>| {
        values(name).iter().find_map(|text| read(text, wanted))
    };
    of("digest", read_digest).or_else(|| of("repr-digest", read_repr_digest))
}

/// `adler32=0a1b2c3d,md5=<base64>`: hexadecimal and base64 both occur for some.
fn read_digest(text: &str, wanted: Algorithm) -> Option<Checksum> {
    text.split(',').take(DIGESTS_MAX).find_map(|part| {
        let (name, value) = part.split_once('=')?;
        let value = value.trim().trim_matches('"');
        if algorithm(name) != Some(wanted) {
            return None;
        }
        read_value(value, wanted)
    })
}

/// `sha-256=:<base64>:, adler=:<base64>:`
fn read_repr_digest(text: &str, wanted: Algorithm) -> Option<Checksum> {
    text.split(',').take(DIGESTS_MAX).find_map(|part| {
        let (name, value) = part.split_once('=')?;
        let value = value.trim().strip_prefix(':')?.split(':').next()?;
        if algorithm(name) != Some(wanted) {
            return None;
        }
        Checksum::of_base64(wanted, value)
    })
}

/// Base64 ends with `=` for every length that occurs here, and hexadecimal never does.
pub(crate) fn read_value(value: &str, algorithm: Algorithm) -> Option<Checksum> {
    if value.ends_with('=') {
        Checksum::of_base64(algorithm, value)
    } else {
        Checksum::of_hex(algorithm, value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        [(http::HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn users_write_it_in_many_ways() {
        let plain: Checksum = "ADLER32:0a1b2c3d".parse().unwrap();
        for same in ["adler32:A1B2C3D", "Adler:a1b2c3d", "adler32:000a1b2c3d"] {
            assert_eq!(same.parse::<Checksum>().unwrap(), plain, "{same}");
        }
        assert_eq!(plain.to_string(), "ADLER32:0a1b2c3d");
        assert!(!"ADLER32".parse::<Checksum>().unwrap().is_known());
        assert!(!"ADLER32:".parse::<Checksum>().unwrap().is_known());
        for wrong in ["", "crc:1", "ADLER32:xyz", "ADLER32:1234567890", "ADLER32:00000000", "MD5:ä"] {
            assert!(wrong.parse::<Checksum>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn storages_tell_it_in_many_ways() {
        let adler: Checksum = "adler32:0a1b2c3d".parse().unwrap();
        for value in ["adler32=0a1b2c3d", "ADLER32=A1B2C3D", "md5=abc, adler=a1b2c3d", "adler32=ChssPQ=="] {
            assert_eq!(
                read_checksum(&headers("digest", value), Algorithm::Adler32).as_ref(),
                Some(&adler),
                "{value}"
            );
        }
        let value = "sha-256=:AAAA:, adler=:ChssPQ==:";
        assert_eq!(read_checksum(&headers("repr-digest", value), Algorithm::Adler32), Some(adler));
        let md5: Checksum = "MD5:d41d8cd98f00b204e9800998ecf8427e".parse().unwrap();
        assert_eq!(
            read_checksum(&headers("digest", "md5=1B2M2Y8AsgTpgAmY7PhCfg=="), Algorithm::Md5),
            Some(md5.clone())
        );
        assert_eq!(
            read_checksum(&headers("digest", "MD5=d41d8cd98f00b204e9800998ecf8427e"), Algorithm::Md5),
            Some(md5)
        );
        for value in ["", "=", "adler32", "adler32=", "adler32=00000000", "md5=1B2M2Y8AsgTpgAmY7PhCfg=="] {
            assert_eq!(read_checksum(&headers("digest", value), Algorithm::Adler32), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_again(value: u32) {
            prop_assume!(value != 0);
            let checksum = Checksum::from_digest(&Digest::adler32(value));
            prop_assert_eq!(&checksum.to_string().parse::<Checksum>().unwrap(), &checksum);
            let short = format!("ADLER32:{value:X}");
            prop_assert_eq!(&short.parse::<Checksum>().unwrap(), &checksum);
        }

        #[test]
        fn no_header_upsets_it(text in ".{0,200}") {
            for (algorithm, _) in NAMES {
                let _ = read_digest(&text, *algorithm);
                let _ = read_repr_digest(&text, *algorithm);
            }
            let _ = text.parse::<Checksum>();
        }
    }
}
