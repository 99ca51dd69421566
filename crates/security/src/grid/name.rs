//! Distinguished names (X.501) in OpenSSL's one-line form, as grids write them:
//! `/DC=org/DC=example/CN=alice`.

use super::der::{DerResult, Malformed, OID, Reader, SEQUENCE, SET, dotted_oid};

/// More parts than any name has.
const PARTS_MAX: usize = 64;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// A name: the bytes between the tag and the end, as they stand in the certificate. Two names are the same if
/// their bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name<'a>(pub(crate) &'a [u8]);

impl<'a> Name<'a> {
    /// The form of OpenSSL's `X509_NAME_oneline`, which DNs of grids are compared in: values are not escaped
    /// but for bytes that cannot be printed, so it must never be split again.
    pub(crate) fn one_line(&self) -> DerResult<String> {
        let mut line = String::new();
        for part in self.attributes()? {
            line.push('/');
            match short_name(part.kind) {
                Some(name) => line.push_str(name),
                None => line.push_str(&dotted_oid(part.kind)),
            }
            line.push('=');
            for byte in part.value {
                match byte {
                    b' '..=b'~' => line.push(char::from(*byte)),
                    _ => line.push_str(&format!("\\x{byte:02X}")),
                }
            }
        }
        Ok(line)
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
        let attribute = attribute(&mut attributes).ok()?;
        attributes.end().ok()?;
        let before = &self.0[..self.0.len() - last.raw.len()];
        (attribute.kind == COMMON_NAME).then_some((Name(before), attribute.value))
    }

    fn attributes(&self) -> DerResult<Vec<Attribute<'a>>> {
        let mut all = Vec::new();
        let mut parts = Reader::new(self.0);
        while !parts.is_empty() {
            let mut part = parts.open(SET)?;
            while !part.is_empty() {
                if all.len() == PARTS_MAX {
                    return Err(Malformed("a name has too many parts"));
                }
                all.push(attribute(&mut part)?);
            }
        }
        Ok(all)
    }
}

/// Whether two names in the one-line form mean the same: attribute names have several spellings, values one.
pub fn same_subject(one: &str, other: &str) -> bool {
    one == other || canonical(one) == canonical(other)
}

/// The one-line form with the attribute names that OpenSSL writes today.
pub fn canonical(subject: &str) -> String {
    let mut result = String::with_capacity(subject.len());
    for (place, part) in subject.split('/').enumerate() {
        if place > 0 {
            result.push('/');
        }
        match part.split_once('=') {
            Some((name, value)) if place > 0 => {
                result.push_str(canonical_attribute(name).unwrap_or(name));
                result.push('=');
                result.push_str(value);
            }
            _ => result.push_str(part),
        }
    }
    result
}

struct Attribute<'a> {
    kind: &'a [u8],
    value: &'a [u8],
}

fn attribute<'a>(part: &mut Reader<'a>) -> DerResult<Attribute<'a>> {
    let mut attribute = part.open(SEQUENCE)?;
    let kind = attribute.expect(OID)?;
    let value = attribute.next()?.content;
    attribute.end()?;
    Ok(Attribute { kind, value })
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
        // 0.9.2342.19200300.100.1.x
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, last] => match last {
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
        assert_eq!(line, "/DC=org/O=A/B=c/CN=Ren\\xC3\\xA9\\x0A/emailAddress=a@example.org/1.3.6.1.9=x");
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

    proptest! {
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
