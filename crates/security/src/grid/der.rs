//! A strict reader of DER (ITU-T X.690): minimal lengths, tags of one byte, nothing left over. The input is
//! untrusted, so it copies nothing, and nesting depth is fixed by the callers' code, never by the input.

use longhaul_model::Timestamp;
use longhaul_model::hex;

pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OID: u8 = 0x06;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
const BOOLEAN: u8 = 0x01;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

pub(crate) type DerResult<T> = Result<T, Malformed>;

/// Context-specific tag, constructed.
pub(crate) const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// Context-specific tag, primitive.
pub(crate) const fn context_primitive(number: u8) -> u8 {
    0x80 | number
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    pub(crate) content: &'a [u8],
    /// The whole element with tag and length.
    pub(crate) raw: &'a [u8],
}

#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn next(&mut self) -> DerResult<Element<'a>> {
        let whole = self.rest;
        let [tag, first, after @ ..] = whole else { return Err(Malformed("an element is cut short")) };
        if tag & 0x1f == 0x1f {
            return Err(Malformed("a tag has more than one byte"));
        }
        let (length, after) = match first {
            0..=0x7f => (usize::from(*first), after),
            0x81..=0x84 => long_length(usize::from(first & 0x7f), after)?,
            _ => return Err(Malformed("a length is indefinite or too long")),
        };
        let content = after.get(..length).ok_or(Malformed("an element is cut short"))?;
        self.rest = &after[length..];
        Ok(Element { tag: *tag, content, raw: &whole[..whole.len() - self.rest.len()] })
    }

    pub(crate) fn element(&mut self, tag: u8) -> DerResult<Element<'a>> {
        match self.next()? {
            element if element.tag == tag => Ok(element),
            _ => Err(Malformed("an element has another type than its place asks for")),
        }
    }

    pub(crate) fn expect(&mut self, tag: u8) -> DerResult<&'a [u8]> {
        Ok(self.element(tag)?.content)
    }

    pub(crate) fn optional(&mut self, tag: u8) -> DerResult<Option<&'a [u8]>> {
        match self.rest.first() {
            Some(&next) if next == tag => Ok(Some(self.expect(tag)?)),
            _ => Ok(None),
        }
    }

    /// The elements inside.
    pub(crate) fn open(&mut self, tag: u8) -> DerResult<Reader<'a>> {
        Ok(Reader::new(self.expect(tag)?))
    }

    /// A BOOLEAN DEFAULT FALSE.
    pub(crate) fn boolean(&mut self) -> DerResult<bool> {
        match self.optional(BOOLEAN)? {
            None => Ok(false),
            Some([0]) => Ok(false),
            Some([0xff]) => Ok(true),
            Some(_) => Err(Malformed("a truth value is neither true nor false")),
        }
    }

    /// The bytes of a bit string of whole bytes.
    pub(crate) fn bits(&mut self) -> DerResult<&'a [u8]> {
        match self.expect(BIT_STRING)? {
            [0, bytes @ ..] => Ok(bytes),
            _ => Err(Malformed("a bit string does not have whole bytes")),
        }
    }

    pub(crate) fn time(&mut self) -> DerResult<Timestamp> {
        let element = self.next()?;
        let (year_digits, digits) = match element.tag {
            UTC_TIME => (2, element.content),
            GENERALIZED_TIME => (4, element.content),
            _ => return Err(Malformed("a time has another type")),
        };
        time(year_digits, digits).ok_or(Malformed("a time cannot be read"))
    }

    pub(crate) fn end(&self) -> DerResult<()> {
        if self.is_empty() { Ok(()) } else { Err(Malformed("something follows where nothing may")) }
    }
}

/// The one element that the bytes are.
pub(crate) fn only(bytes: &[u8], tag: u8) -> DerResult<Reader<'_>> {
    let mut reader = Reader::new(bytes);
    let inside = reader.open(tag)?;
    reader.end()?;
    Ok(inside)
}

/// An INTEGER's content as a small number.
pub(crate) fn small_integer(content: &[u8]) -> Option<u32> {
    match content {
        [] => None,
        [first, ..] if first & 0x80 != 0 => None,
        bytes if bytes.len() > 4 => None,
        bytes => Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))),
    }
}

/// `1.2.840.113549` of an object identifier's content; hexadecimal digits of what is none.
pub(crate) fn dotted_oid(oid: &[u8]) -> String {
    let mut numbers = Vec::new();
    let mut value: u64 = 0;
    for byte in oid {
        if value > u64::MAX >> 8 {
            return hex::encode(oid);
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            numbers.push(value);
            value = 0;
        }
    }
    let Some(first) = numbers.first().copied() else { return hex::encode(oid) };
    let arc = (first / 40).min(2);
    let mut text = format!("{arc}.{}", first - 40 * arc);
    for number in &numbers[1..] {
        text.push_str(&format!(".{number}"));
    }
    text
}

fn long_length(bytes: usize, after: &[u8]) -> DerResult<(usize, &[u8])> {
    let digits = after.get(..bytes).ok_or(Malformed("an element is cut short"))?;
    let length = digits.iter().fold(0_usize, |value, byte| value << 8 | usize::from(*byte));
    if length < 0x80 || digits[0] == 0 {
        return Err(Malformed("a length is longer than it has to be"));
    }
    Ok((length, &after[bytes..]))
}

/// `[YY]YYMMDDhhmmssZ`.
fn time(year_digits: usize, text: &[u8]) -> Option<Timestamp> {
    let digits = text.strip_suffix(b"Z")?;
    if digits.len() != year_digits + 10 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |from: usize, to: usize| {
        digits[from..to].iter().fold(0_i64, |value, byte| value * 10 + i64::from(byte - b'0'))
    };
    let year = match (year_digits, number(0, year_digits)) {
        (2, year @ 0..50) => 2000 + year,
        (2, year) => 1900 + year,
        (_, year) => year,
    };
    let at = |place: usize| number(year_digits + 2 * place, year_digits + 2 * place + 2);
    let (month, day, hour, minute, second) = (at(0), at(1), at(2), at(3), at(4));
    let fits =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    fits.then(|| {
        Timestamp::from_seconds(days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
    })
}

/// Days from 1970-01-01 in the Gregorian calendar; years begin in March, so that the leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_have_one_form() {
        assert!(Reader::new(&[0x30, 0x81, 0x05, 1, 2, 3, 4, 5]).next().is_err());
        assert!(Reader::new(&[0x30, 0x80, 0, 0]).next().is_err());
        assert!(Reader::new(&[0x30, 0x85, 0, 0, 0, 0, 1, 0]).next().is_err());
        assert!(Reader::new(&[0x30, 0x03, 1, 2]).next().is_err());
        assert!(Reader::new(&[0x3f, 0x01, 1]).next().is_err());
        let mut long = vec![0x04, 0x81, 0x80];
        long.extend([7; 128]);
        assert_eq!(Reader::new(&long).expect(OCTET_STRING).unwrap().len(), 128);
        assert!(only(&[0x30, 0x00, 0x00], SEQUENCE).is_err());
    }

    #[test]
    fn times_of_both_kinds() {
        let read = |tag: u8, text: &str| {
            let mut bytes = vec![tag, text.len() as u8];
            bytes.extend(text.as_bytes());
            Reader::new(&bytes).time()
        };
        assert_eq!(read(0x17, "700101000000Z").unwrap(), Timestamp(0));
        assert_eq!(read(0x18, "20260228235959Z").unwrap(), Timestamp::from_seconds(1_772_323_199));
        assert_eq!(read(0x17, "240229120000Z").unwrap(), Timestamp::from_seconds(1_709_208_000));
        assert!(read(0x17, "491231235959Z").unwrap() > read(0x17, "500101000000Z").unwrap());
        for bad in ["2402291200Z", "241329120000Z", "24022912000aZ", "240229120000+0100", ""] {
            assert!(read(0x17, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn identifiers_are_shown_dotted() {
        assert_eq!(dotted_oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d]), "1.2.840.113549");
        assert_eq!(dotted_oid(&[0x55, 0x1d, 0x0f]), "2.5.29.15");
        assert_eq!(dotted_oid(&[0xff; 12]), "ff".repeat(12));
        assert_eq!(dotted_oid(&[]), "");
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut reader = Reader::new(&bytes);
            while let Ok(element) = reader.next() {
                prop_assert!(element.content.len() < element.raw.len());
                let _ = Reader::new(element.raw).time();
                let _ = dotted_oid(element.content);
                let _ = small_integer(element.content);
            }
        }
    }
}
