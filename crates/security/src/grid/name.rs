//! Distinguished names (X.501), and the one-line form in which grids write them:
//! `/DC=org/DC=example/CN=alice`.
//!
//! Two certificates have the same name if the bytes are the same ([`Name`]). Everything else that names
//! somebody (maps, policies, rules, stored rows) has the text only, so the text of a name must be nobody
//! else's: [`DistinguishedName`] writes what could be taken for the end of a value with a backslash, as
//! OpenSSL 3 does, and reads both this form and that of older files.

use std::fmt;

use super::der::{DerResult, Malformed, OID, Reader, SEQUENCE, SET, dotted_oid};

/// More attributes than any name has.
const ATTRIBUTES_MAX: usize = 64;
/// Bytes of a name as text.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Bytes of the type of an attribute as text.
const KIND_BYTES_MAX: usize = 64;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// A name: the bytes between the tag and the end, as they stand in the certificate. Two names are the same if
/// their bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name<'a>(pub(crate) &'a [u8]);

impl<'a> Name<'a> {
    /// The one-line form, see [`DistinguishedName`].
    pub(crate) fn one_line(&self) -> DerResult<String> {
        Ok(DistinguishedName::from_der(*self)?.to_string())
    }

    /// This name without its last part, and that part if it is a single common name.
    pub(crate) fn split_common_name(&self) -> Option<(Name<'a>, &'a [u8])> {
        let mut parts = Reader::new(self.0);
        let mut last = None;
        while !parts.is_empty() {
            last = Some(parts.next().ok()?);
        }
        let last = last.filter(|last| last.tag == SET)?;
        let mut attributes = Reader::new(last.content);
        let (kind, value) = attribute(&mut attributes).ok()?;
        attributes.end().ok()?;
        let before = &self.0[..self.0.len() - last.raw.len()];
        (kind == COMMON_NAME).then_some((Name(before), value))
    }
}

/// A distinguished name by its attributes.
///
/// Its text is OpenSSL 3's: a slash begins a part, a plus sign joins attributes of one part, and bytes that
/// cannot be printed are `\xHH`. A slash in a value is `\/`. A plus sign or a backslash in a value is escaped
/// (`\+`, `\x5C`) only where it could be read as something else, so names without a slash in a value are
/// written as release 0.1.0 wrote them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DistinguishedName(Vec<Attribute>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Attribute {
    /// It stands in one part with the attribute before it.
    joined: bool,
    /// As OpenSSL writes it today, or a dotted object identifier.
    kind: String,
    value: Vec<u8>,
}

/// Why a text is no distinguished name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("it does not begin with an attribute such as /DC=org")]
    NoAttribute,
    #[error("it has more than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    #[error("it has more than {ATTRIBUTES_MAX} attributes")]
    TooManyAttributes,
}

impl DistinguishedName {
    pub(crate) fn from_der(name: Name<'_>) -> DerResult<Self> {
        let mut all = Vec::new();
        let mut parts = Reader::new(name.0);
        while !parts.is_empty() {
            let mut part = parts.open(SET)?;
            let mut joined = false;
            while !part.is_empty() {
                if all.len() == ATTRIBUTES_MAX {
                    return Err(Malformed("a name has too many attributes"));
                }
                let (kind, value) = attribute(&mut part)?;
                all.push(Attribute { joined, kind: kind_of_der(kind)?, value: value.to_vec() });
                joined = true;
            }
        }
        Ok(DistinguishedName(all))
    }

    /// Reads the one-line form. Older files have slashes in values without a backslash: a slash, or a plus
    /// sign, that no attribute follows (`CN=host/door.example`) is a part of its value.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        let mut rest = text.strip_prefix('/').ok_or(NameError::NoAttribute)?.as_bytes();
        let mut all = Vec::new();
        let mut joined = false;
        loop {
            if all.len() == ATTRIBUTES_MAX {
                return Err(NameError::TooManyAttributes);
            }
            let (kind, after) = leading_kind(rest).ok_or(NameError::NoAttribute)?;
            let (value, separator, after) = read_value(after);
            all.push(Attribute { joined, kind: canonical_kind(kind), value });
            match separator {
                None => return Ok(DistinguishedName(all)),
                Some(separator) => joined = separator == b'+',
            }
            rest = after;
        }
    }

    /// The text of release 0.1.0, which escaped no slash and so could be somebody else's.
    fn unescaped(&self) -> String {
        let mut line = String::new();
        for attribute in &self.0 {
            line.push_str(&format!("/{}=", attribute.kind));
            attribute.value.iter().for_each(|byte| push_byte(&mut line, *byte));
        }
        line
    }
}

impl fmt::Display for DistinguishedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = String::new();
        for attribute in &self.0 {
            line.push(if attribute.joined { '+' } else { '/' });
            line.push_str(&attribute.kind);
            line.push('=');
            for (place, byte) in attribute.value.iter().enumerate() {
                let after = &attribute.value[place + 1..];
                match byte {
                    b'/' => line.push_str("\\/"),
                    b'+' if leading_kind(after).is_some() => line.push_str("\\+"),
                    b'\\' if escapes_something(after) => line.push_str("\\x5C"),
                    byte => push_byte(&mut line, *byte),
                }
            }
        }
        f.write_str(&line)
    }
}

/// Whether two names in the one-line form mean the same: attribute names have several spellings, values one.
pub fn same_subject(one: &str, other: &str) -> bool {
    one == other || canonical(one) == canonical(other)
}

/// Whether a stored text denies something to `subject`. What release 0.1.0 stored denies it to everybody
/// whose name it wrote so.
pub fn denies_subject(stored: &str, subject: &str) -> bool {
    let unescaped = || DistinguishedName::parse(subject).map(|name| name.unescaped());
    same_subject(stored, subject) || unescaped().is_ok_and(|unescaped| unescaped == stored)
}

/// The one-line form as [`DistinguishedName`] writes it; what is no distinguished name stays as it is.
pub fn canonical(subject: &str) -> String {
    DistinguishedName::parse(subject).map_or_else(|_| subject.to_owned(), |name| name.to_string())
}

/// The type of the attribute that `text` begins with, and what follows its equals sign.
pub(super) fn leading_kind(text: &[u8]) -> Option<(&str, &[u8])> {
    let begin = &text[..text.len().min(KIND_BYTES_MAX + 1)];
    let end = begin.iter().position(|byte| *byte == b'=').filter(|end| *end > 0)?;
    let kind = std::str::from_utf8(&text[..end]).ok()?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    kind.bytes().all(fits).then_some((kind, &text[end + 1..]))
}

/// A type of attribute as OpenSSL writes it today.
pub(super) fn canonical_kind(kind: &str) -> String {
    let spelled = canonical_attribute(kind).or_else(|| {
        let last = |arc: &str| kind.strip_prefix(arc)?.parse::<u8>().ok();
        match kind {
            "1.2.840.113549.1.9.1" => Some("emailAddress"),
            _ => last("2.5.4.")
                .and_then(|last| short_name(&[0x55, 0x04, last]))
                .or_else(|| short_name(&[PILOT_ATTRIBUTES, &[last("0.9.2342.19200300.100.1.")?]].concat())),
        }
    });
    spelled.unwrap_or(kind).to_owned()
}

/// A value up to what ends it, the separator that did, and what follows that.
fn read_value(text: &[u8]) -> (Vec<u8>, Option<u8>, &[u8]) {
    let mut value = Vec::new();
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return (value, None, rest),
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                value.push(hex_digit(*high) << 4 | hex_digit(*low));
                after
            }
            [b'\\', byte @ (b'/' | b'+'), after @ ..] => {
                value.push(*byte);
                after
            }
            [separator @ (b'/' | b'+'), after @ ..] if leading_kind(after).is_some() => {
                return (value, Some(*separator), after);
            }
            [byte, after @ ..] => {
                value.push(*byte);
                after
            }
        };
    }
}

/// Whether a backslash with this after it in a value would be read as an escape.
fn escapes_something(after: &[u8]) -> bool {
    match after {
        // The next attribute's slash or plus sign follows.
        [] => true,
        [b'x', high, low, ..] => high.is_ascii_hexdigit() && low.is_ascii_hexdigit(),
        // One that begins an attribute is escaped itself.
        [b'+', rest @ ..] => leading_kind(rest).is_none(),
        _ => false,
    }
}

fn push_byte(line: &mut String, byte: u8) {
    match byte {
        b' '..=b'~' => line.push(char::from(byte)),
        _ => line.push_str(&format!("\\x{byte:02X}")),
    }
}

fn hex_digit(byte: u8) -> u8 {
    char::from(byte).to_digit(16).unwrap_or(0) as u8
}

/// Type and value.
fn attribute<'a>(part: &mut Reader<'a>) -> DerResult<(&'a [u8], &'a [u8])> {
    let mut attribute = part.open(SEQUENCE)?;
    let kind = attribute.expect(OID)?;
    let value = attribute.next()?.content;
    attribute.end()?;
    Ok((kind, value))
}

/// Only the one encoding that an object identifier has: another would be shown as that identifier, or as the
/// hexadecimal digits `dc`.
fn kind_of_der(kind: &[u8]) -> DerResult<String> {
    let begins = |place: usize| place == 0 || kind[place - 1] & 0x80 == 0;
    let minimal = kind.iter().enumerate().all(|(place, byte)| !(begins(place) && *byte == 0x80));
    let shown = short_name(kind).map_or_else(|| dotted_oid(kind), str::to_owned);
    match kind.last() {
        Some(last) if last & 0x80 == 0 && minimal && (shown.contains('.') || short_name(kind).is_some()) => {
            Ok(shown)
        }
        _ => Err(Malformed("an attribute of a name has a malformed type")),
    }
}

fn canonical_attribute(name: &str) -> Option<&'static str> {
    const SPELLINGS: [(&str, &str); 12] = [
        ("email", "emailAddress"),
        ("e", "emailAddress"),
        ("emailaddress", "emailAddress"),
        ("userid", "UID"),
        ("uid", "UID"),
        ("s", "ST"),
        ("st", "ST"),
        ("cn", "CN"),
        ("dc", "DC"),
        ("ou", "OU"),
        ("o", "O"),
        ("c", "C"),
    ];
    SPELLINGS.iter().find(|(spelling, _)| name.eq_ignore_ascii_case(spelling)).map(|(_, name)| *name)
}

/// 0.9.2342.19200300.100.1
const PILOT_ATTRIBUTES: &[u8] = &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01];

/// As OpenSSL names the attributes that certificates of people and hosts have.
fn short_name(kind: &[u8]) -> Option<&'static str> {
    Some(match kind {
        [0x55, 0x04, last] => match last {
            3 => "CN",
            4 => "SN",
            5 => "serialNumber",
            6 => "C",
            7 => "L",
            8 => "ST",
            9 => "street",
            10 => "O",
            11 => "OU",
            12 => "title",
            13 => "description",
            15 => "businessCategory",
            17 => "postalCode",
            41 => "name",
            42 => "GN",
            43 => "initials",
            44 => "generationQualifier",
            46 => "dnQualifier",
            65 => "pseudonym",
            97 => "organizationIdentifier",
            _ => return None,
        },
        [arc @ .., last] if arc == PILOT_ATTRIBUTES => match last {
            1 => "UID",
            25 => "DC",
            _ => return None,
        },
        // 1.2.840.113549.1.9.1
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x01] => "emailAddress",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{DnType, DnValue};

    fn encoded(parts: Vec<(DnType, DnValue)>) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind, value);
        }
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        super::super::certificate::Certificate::parse(certificate.der()).unwrap().subject.0.to_vec()
    }

    #[test]
    fn names_are_written_as_openssl_does() {
        let email = DnType::CustomDnType(vec![1, 2, 840, 113549, 1, 9, 1]);
        let bytes = encoded(vec![
            (DnType::CustomDnType(vec![0, 9, 2342, 19200300, 100, 1, 25]), DnValue::from("org")),
            (DnType::OrganizationName, DnValue::from("A/B=c")),
            (DnType::CommonName, DnValue::from("René\n")),
            (email, DnValue::from("a@example.org")),
            (DnType::CustomDnType(vec![1, 3, 6, 1, 9]), DnValue::from("x")),
        ]);
        let line = Name(&bytes).one_line().unwrap();
        assert_eq!(line, "/DC=org/O=A\\/B=c/CN=Ren\\xC3\\xA9\\x0A/emailAddress=a@example.org/1.3.6.1.9=x");
        assert!(Name(&bytes).split_common_name().is_none());
    }

    #[test]
    fn the_last_common_name_comes_off() {
        let bytes = encoded(vec![
            (DnType::OrganizationName, DnValue::from("x")),
            (DnType::CommonName, DnValue::from("proxy")),
        ]);
        let (before, value) = Name(&bytes).split_common_name().unwrap();
        assert_eq!((before.one_line().unwrap().as_str(), value), ("/O=x", &b"proxy"[..]));
        assert!(before.split_common_name().is_none());
        assert!(Name(&[]).split_common_name().is_none());
    }

    #[test]
    fn spellings_of_attributes_do_not_matter_values_do() {
        assert!(same_subject("/C=CH/O=x/Email=a@b", "/C=CH/O=x/emailAddress=a@b"));
        assert!(same_subject("/dc=ch/userid=a", "/DC=ch/UID=a"));
        assert!(!same_subject("/DC=ch/CN=a", "/DC=ch/CN=A"));
        assert!(!same_subject("/DC=ch/CN=a", "/DC=ch/CN=a/CN=b"));
    }

    /// A name in DER: parts of attributes with the content of their type.
    fn der(parts: &[&[(&[u8], &str)]]) -> Vec<u8> {
        fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
            let length = u8::try_from(content.len()).unwrap();
            let mut all = if length < 0x80 { vec![tag, length] } else { vec![tag, 0x81, length] };
            all.extend(content);
            all
        }
        let attribute = |(kind, value): &(&[u8], &str)| {
            tagged(SEQUENCE, &[tagged(OID, kind), tagged(0x0c, value.as_bytes())].concat())
        };
        let part =
            |part: &&[(&[u8], &str)]| tagged(SET, &part.iter().flat_map(attribute).collect::<Vec<_>>());
        parts.iter().flat_map(part).collect()
    }

    fn text(parts: &[&[(&[u8], &str)]]) -> String {
        Name(&der(parts)).one_line().unwrap()
    }

    const CN: &[u8] = COMMON_NAME;
    const DC: &[u8] = &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 25];
    const UID: &[u8] = &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 1];

    #[test]
    fn no_value_forges_another_persons_name() {
        let alice = text(&[&[(DC, "org")], &[(DC, "example")], &[(CN, "alice")]]);
        assert_eq!(alice, "/DC=org/DC=example/CN=alice");
        let forged = text(&[&[(DC, "org")], &[(DC, "example/CN=alice")]]);
        assert_eq!(forged, "/DC=org/DC=example\\/CN=alice");
        // Several attributes in one part are not several parts.
        assert_eq!(text(&[&[(DC, "org")], &[(CN, "a"), (UID, "b")]]), "/DC=org/CN=a+UID=b");
        assert_eq!(text(&[&[(DC, "org")], &[(CN, "a+UID=b")]]), "/DC=org/CN=a\\+UID=b");
        // A backslash at the end of a value does not escape the next slash, nor do digits make a byte.
        assert_eq!(text(&[&[(CN, "a\\")], &[(CN, "b")]]), "/CN=a\\x5C/CN=b");
        assert_eq!(text(&[&[(CN, "a\\x2F")]]), "/CN=a\\x5Cx2F");
    }

    #[test]
    fn malformed_types_of_attributes_pass_for_no_other() {
        // Shown as hexadecimal digits they would read "dc", or "2.5.4.3".
        for kind in [&[0xdc][..], &[0x55, 0x04, 0x80, 0x03], &[0x55, 0x04, 0x03, 0x80], &[]] {
            let bytes = der(&[&[(kind, "org")]]);
            assert!(Name(&bytes).one_line().is_err(), "{kind:02x?}");
        }
    }

    #[test]
    fn texts_of_older_files_mean_what_they_did() {
        for (older, today) in [
            ("/DC=org/CN=host/door.example", "/DC=org/CN=host\\/door.example"),
            ("/DC=org/CN=host\\/door.example", "/DC=org/CN=host\\/door.example"),
            ("/DC=org/O=DANTE A/S/CN=a", "/DC=org/O=DANTE A\\/S/CN=a"),
            ("/DC=org/CN=C++ user a+b@x", "/DC=org/CN=C++ user a+b@x"),
            ("/DC=org/CN=DOMAIN\\user", "/DC=org/CN=DOMAIN\\user"),
            ("/CN=René", "/CN=Ren\\xC3\\xA9"),
            ("/2.5.4.5=7/0.9.2342.19200300.100.1.1=a/1.2.3=x", "/serialNumber=7/UID=a/1.2.3=x"),
            ("/cms/Role=production", "/cms/Role=production"),
            ("*", "*"),
        ] {
            assert_eq!(canonical(older), today);
        }
        assert_eq!(DistinguishedName::parse("alice"), Err(NameError::NoAttribute));
        let many = "/CN=a".repeat(ATTRIBUTES_MAX + 1);
        assert_eq!(DistinguishedName::parse(&many), Err(NameError::TooManyAttributes));
        let long = format!("/CN={}", "a".repeat(TEXT_BYTES_MAX));
        assert_eq!(DistinguishedName::parse(&long), Err(NameError::TooLong));
    }

    #[test]
    fn what_was_stored_before_still_denies() {
        let forger = "/DC=org/DC=example\\/CN=alice";
        assert!(denies_subject("/DC=org/DC=example/CN=alice", forger));
        assert!(!same_subject("/DC=org/DC=example/CN=alice", forger));
        assert!(!denies_subject(forger, "/DC=org/DC=example/CN=alice"));
        assert!(denies_subject("/CN=host/a", "/CN=host\\/a") && !denies_subject("/CN=b", "/CN=a"));
    }

    proptest! {
        #[test]
        fn the_text_of_a_name_is_nobody_elses(
            parts in prop::collection::vec(
                prop::collection::vec((0..3_usize, "[a/+=\\\\x2FCN. é\n]{0,8}"), 1..3), 1..4),
        ) {
            let kinds = [CN, DC, UID];
            let parts: Vec<Vec<(&[u8], &str)>> = parts
                .iter()
                .map(|part| part.iter().map(|(kind, value)| (kinds[*kind], value.as_str())).collect())
                .collect();
            let bytes = der(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let name = DistinguishedName::from_der(Name(&bytes)).unwrap();
            prop_assert_eq!(DistinguishedName::parse(&name.to_string()), Ok(name.clone()));
            let ambiguous = |value: &str| value.contains('/') || value.contains("+") || value.contains('\\');
            if parts.iter().all(|part| part.len() == 1 && !ambiguous(part[0].1)) {
                prop_assert_eq!(name.to_string(), name.unescaped());
            }
        }

        #[test]
        fn any_text_is_read_or_refused_and_stays_what_it_is(
            text in "(/|\\+|\\\\|CN=|x2F|=|[ -~é]|2\\.5\\.4\\.3=){0,24}",
        ) {
            if let Ok(name) = DistinguishedName::parse(&text) {
                prop_assert_eq!(DistinguishedName::parse(&name.to_string()), Ok(name));
            }
            prop_assert_eq!(canonical(&canonical(&text)), canonical(&text));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let name = Name(&bytes);
            if let Ok(line) = name.one_line() {
                prop_assert!(line.chars().all(|c| (' '..='~').contains(&c)));
            }
            if let Some((before, _)) = name.split_common_name() {
                prop_assert!(before.0.len() < bytes.len());
            }
        }

        #[test]
        fn the_canonical_form_is_stable(subject in "(/(Email|E|CN|o|userid|x)=[a-z/= ]{0,6}){0,6}") {
            let once = canonical(&subject);
            prop_assert_eq!(canonical(&once), once);
        }
    }
}
