//! Macaroons (Birgisson et al., NDSS 2014) as grid storages issue them: bearer tokens with caveats,
//! conditions that any holder can add before passing the token on, and nobody can remove.
//!
//! The format is the first one of libmacaroons: packets of four hexadecimal digits of length, a key, a value
//! and the end of a line; the signature is a chain of HMAC-SHA-256 over identifier and caveats. Caveats for
//! third parties are not known here.
//!
//! Not here: what a caveat means. A verifier must refuse a macaroon with any caveat that it does not know.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use longhaul_model::hex;
use zeroize::Zeroizing;

use crate::authority::random_bytes;

/// Bytes of a macaroon: fits into a header everywhere.
pub const MACAROON_BYTES_MAX: usize = 8 << 10;
/// Caveats of one macaroon; each costs an HMAC.
const CAVEATS_MAX: usize = 64;
/// Bytes of an HMAC-SHA-256.
const SIGNATURE_BYTES: usize = 32;
/// The key from which libmacaroons derives its first key.
const GENERATOR: &[u8] = b"macaroons-key-generator";
/// The text from which the key of pseudonyms is derived. No identifier is like it.
const PSEUDONYMS: &[u8] = b"macaroons-pseudonyms";
/// Hexadecimal digits of a packet's length.
const LENGTH_DIGITS: usize = 4;

/// Issues and verifies macaroons. The secret is in memory only: they become invalid with a restart.
pub struct Macaroons(hmac::Key);

/// A verified macaroon's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Macaroon {
    pub identifier: String,
    /// All of the caveats must hold.
    pub caveats: Vec<String>,
}

/// Why a macaroon is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MacaroonFault {
    /// It is none, or one of another place.
    #[error("this is no macaroon of ours")]
    NotOurs,
    #[error("the macaroon is malformed")]
    Malformed,
    #[error("the macaroon is not genuine, or was given before a restart")]
    NotGenuine,
}

impl Default for Macaroons {
    fn default() -> Self {
        Self::new()
    }
}

impl Macaroons {
    pub fn new() -> Macaroons {
        let secret = Zeroizing::new(random_bytes::<SIGNATURE_BYTES>());
        Macaroons(key(mac(&key(GENERATOR), &*secret).as_ref()))
    }

    /// Issues a macaroon; None if it would be too long for other software.
    pub fn give(&self, location: &str, macaroon: &Macaroon) -> Option<Zeroizing<String>> {
        let text = write(location, macaroon, self.signature(macaroon).as_ref())?;
        (text.len() <= MACAROON_BYTES_MAX && macaroon.caveats.len() <= CAVEATS_MAX).then_some(text)
    }

    /// Verifies a macaroon that was issued for that location.
    pub fn open(&self, location: &str, text: &str) -> Result<Macaroon, MacaroonFault> {
        let (macaroon, signature) = read(location, text)?;
        let genuine =
            aws_lc_rs::constant_time::verify_slices_are_equal(self.signature(&macaroon).as_ref(), &signature);
        genuine.map_err(|_| MacaroonFault::NotGenuine)?;
        Ok(macaroon)
    }

    /// What stands for a secret in the identifier of a macaroon, which its holder can read: the same for the
    /// same secret, and of no use for guessing it, since it is made with the key of these macaroons.
    pub fn pseudonym(&self, secret: &[u8]) -> String {
        // A key of its own: a signature of an identifier would sign more than that.
        hex::encode(mac(&key(mac(&self.0, PSEUDONYMS).as_ref()), secret).as_ref())
    }

    fn signature(&self, macaroon: &Macaroon) -> hmac::Tag {
        let first = mac(&self.0, macaroon.identifier.as_bytes());
        macaroon.caveats.iter().fold(first, |signed, caveat| mac(&key(signed.as_ref()), caveat.as_bytes()))
    }
}

fn key(bytes: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, bytes)
}

fn mac(key: &hmac::Key, bytes: &[u8]) -> hmac::Tag {
    hmac::sign(key, bytes)
}

fn write(location: &str, macaroon: &Macaroon, signature: &[u8]) -> Option<Zeroizing<String>> {
    let mut packets = Vec::new();
    push(&mut packets, "location", location.as_bytes())?;
    push(&mut packets, "identifier", macaroon.identifier.as_bytes())?;
    for caveat in &macaroon.caveats {
        push(&mut packets, "cid", caveat.as_bytes())?;
    }
    push(&mut packets, "signature", signature)?;
    Some(Zeroizing::new(URL_SAFE_NO_PAD.encode(&packets)))
}

fn push(packets: &mut Vec<u8>, key: &str, value: &[u8]) -> Option<()> {
    let length = LENGTH_DIGITS + key.len() + 1 + value.len() + 1;
    if length > 0xffff {
        return None;
    }
    packets.extend_from_slice(format!("{length:04x}{key} ").as_bytes());
    packets.extend_from_slice(value);
    packets.push(b'\n');
    Some(())
}

fn read(location: &str, text: &str) -> Result<(Macaroon, Vec<u8>), MacaroonFault> {
    if text.len() > MACAROON_BYTES_MAX {
        return Err(MacaroonFault::NotOurs);
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).or_else(|_| URL_SAFE.decode(text));
    let bytes = Zeroizing::new(bytes.map_err(|_| MacaroonFault::NotOurs)?);
    let mut rest = bytes.as_slice();
    let first = packet(&mut rest).ok_or(MacaroonFault::NotOurs)?;
    if first != ("location", location.as_bytes()) {
        return Err(MacaroonFault::NotOurs);
    }
    let text_of = |value: &[u8]| String::from_utf8(value.to_vec()).ok();
    let mut next = || packet(&mut rest).ok_or(MacaroonFault::Malformed);
    let ("identifier", identifier) = next()? else { return Err(MacaroonFault::Malformed) };
    let identifier = text_of(identifier).ok_or(MacaroonFault::Malformed)?;
    let mut caveats = Vec::new();
    let signature = loop {
        match next()? {
            ("cid", caveat) if caveats.len() < CAVEATS_MAX => {
                caveats.push(text_of(caveat).ok_or(MacaroonFault::Malformed)?);
            }
            ("signature", signature) if signature.len() == SIGNATURE_BYTES => break signature.to_vec(),
            _ => return Err(MacaroonFault::Malformed),
        }
    };
    if !rest.is_empty() {
        return Err(MacaroonFault::Malformed);
    }
    Ok((Macaroon { identifier, caveats }, signature))
}

/// The next one, with its key.
fn packet<'a>(rest: &mut &'a [u8]) -> Option<(&'a str, &'a [u8])> {
    let digits = std::str::from_utf8(rest.get(..LENGTH_DIGITS)?).ok()?;
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let length = usize::from_str_radix(digits, 16).ok()?;
    let inner = rest.get(LENGTH_DIGITS..length)?.strip_suffix(b"\n")?;
    let space = inner.iter().position(|byte| *byte == b' ')?;
    *rest = rest.get(length..)?;
    Some((std::str::from_utf8(&inner[..space]).ok()?, &inner[space + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some(caveats: &[&str]) -> Macaroon {
        Macaroon {
            identifier: "alice".into(),
            caveats: caveats.iter().map(|caveat| (*caveat).to_owned()).collect(),
        }
    }

    /// The example of the README of libmacaroons, which others verify with.
    #[test]
    fn signatures_are_those_of_libmacaroons() {
        let secret = b"this is our super secret key; only we should know it";
        let ours = Macaroons(key(mac(&key(GENERATOR), secret).as_ref()));
        let mut macaroon = Macaroon { identifier: "we used our secret key".into(), caveats: Vec::new() };
        let hex = |tag: hmac::Tag| hex::encode(tag.as_ref());
        assert_eq!(
            hex(ours.signature(&macaroon)),
            "e3d9e02908526c4c0039ae15114115d97fdd68bf2ba379b342aaf0f617d0552f"
        );
        macaroon.caveats.push("account = 3735928559".into());
        assert_eq!(
            hex(ours.signature(&macaroon)),
            "1efe4763f290dbce0c1d08477367e11f4eee456a64933cf662d79772dbb82128"
        );
    }

    #[test]
    fn a_secret_has_one_pseudonym_and_each_key_another() {
        let (ours, others) = (Macaroons::new(), Macaroons::new());
        assert_eq!(ours.pseudonym(b"token"), ours.pseudonym(b"token"));
        assert_ne!(ours.pseudonym(b"token"), ours.pseudonym(b"tokem"));
        assert_ne!(ours.pseudonym(b"token"), others.pseudonym(b"token"));
        // It is no signature of anything.
        let macaroon = Macaroon { identifier: "token".into(), caveats: Vec::new() };
        assert_ne!(ours.pseudonym(b"token"), hex::encode(ours.signature(&macaroon).as_ref()));
    }

    #[test]
    fn caveats_are_added_and_never_removed() {
        let ours = Macaroons::new();
        let text = ours.give("here", &some(&["a", "b"])).unwrap();
        assert_eq!(ours.open("here", &text), Ok(some(&["a", "b"])));
        assert_eq!(ours.open("there", &text), Err(MacaroonFault::NotOurs));
        assert_eq!(Macaroons::new().open("here", &text), Err(MacaroonFault::NotGenuine));
        // Whoever holds it can add one, with its signature for a key.
        let (_, signature) = read("here", &text).unwrap();
        let macaroon = some(&["a", "b", "c"]);
        let signature = mac(&key(&signature), b"c");
        let narrower = write("here", &macaroon, signature.as_ref()).unwrap();
        assert_eq!(ours.open("here", &narrower), Ok(macaroon.clone()));
        // Some left out, with the signature as it was.
        for caveats in [&["a", "b"][..], &["b", "c"], &["c"], &[]] {
            let forged = write("here", &some(caveats), signature.as_ref()).unwrap();
            assert_eq!(ours.open("here", &forged), Err(MacaroonFault::NotGenuine));
        }
        let many: Vec<String> = (0..=CAVEATS_MAX).map(|n| n.to_string()).collect();
        assert!(ours.give("here", &Macaroon { identifier: "a".into(), caveats: many }).is_none());
        let long = Macaroon { identifier: "x".repeat(MACAROON_BYTES_MAX), caveats: Vec::new() };
        assert!(ours.give("here", &long).is_none());
    }

    proptest! {
        #[test]
        fn issued_macaroons_are_verified(identifier in ".{0,60}",
            caveats in proptest::collection::vec(".{0,40}", 0..8)) {
            let (ours, macaroon) = (Macaroons::new(), Macaroon { identifier, caveats });
            let text = ours.give("here", &macaroon).unwrap();
            prop_assert_eq!(ours.open("here", &text), Ok(macaroon));
        }

        #[test]
        fn no_text_breaks_it(text in "[A-Za-z0-9_=-]{0,200}",
            bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let ours = Macaroons::new();
            prop_assert!(ours.open("here", &text).is_err());
            prop_assert!(ours.open("here", &URL_SAFE_NO_PAD.encode(&bytes)).is_err());
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0usize..60, to in any::<u8>()) {
            let ours = Macaroons::new();
            let text = ours.give("here", &some(&["activity:DOWNLOAD"])).unwrap();
            let mut bytes = URL_SAFE_NO_PAD.decode(text.as_bytes()).unwrap();
            let at = at % bytes.len();
            prop_assume!(bytes[at] != to);
            bytes[at] = to;
            // The digits of a length mean the same as capital letters.
            let changed = URL_SAFE_NO_PAD.encode(&bytes);
            let opened = ours.open("here", &changed);
            prop_assert!(opened.is_err() || opened == Ok(some(&["activity:DOWNLOAD"])));
        }
    }
}
