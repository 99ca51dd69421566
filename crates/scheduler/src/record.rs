//! Recording of a scheduler, a write-ahead log of inputs and decisions as text: one line each, so that it can
//! be replayed.
//!
//! ```text
//! 9b1c04de 0 H 1795305600000000 {"format":1,…}       head: settings, last id, knowledge at the start
//! 07aa31c2 1 E 1795305600000412 {"Site":{…}}         an event was handled
//! 51d0c3a8 2 O 1795305600000799 {"id":…}             an observation of the network was accepted or refused
//! e2a94c11 3 L 1795305600001020 {"document":…}       knowledge of other instances was imported
//! 4f60bb07 4 P 1795305600001300 {"Lease":{…}}        it was polled: its decision; null: none
//! ```
//!
//! A line holds the checksum (crc32c, in hex) of the rest of the line; the number of the line, from 0 without
//! a gap; its kind; the time that the scheduler was given, in µs since 1970; and the body in JSON. Bodies
//! hold ids, sizes, names of sites, storages and communities, and words of faults; no file names, keys or
//! tokens.
//!
//! Not here: files (`service` writes them), and replaying (`simulator::replay`). Start with [`Line`].

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// Version of the format of lines and bodies; raised when an older reader would misread them.
pub const FORMAT_VERSION: u32 = 1;
/// A longer line is damage. The longest are heads with knowledge of 90,000 links, at 2 kB each.
pub const LINE_BYTES_MAX: usize = 512 << 20;
/// Hex digits of the checksum, and a space.
const CHECKSUM_BYTES: usize = 9;

/// With what a scheduler began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub format: u32,
    /// The program that wrote it.
    pub version: String,
    pub settings: Settings,
    pub last_id: u64,
    /// What was believed of the network, as it was kept; none: nothing.
    pub knowledge: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    Head,
    Event,
    Observation,
    Knowledge,
    Poll,
}

impl LineKind {
    const ALL: [(LineKind, u8); 5] = [
        (LineKind::Head, b'H'),
        (LineKind::Event, b'E'),
        (LineKind::Observation, b'O'),
        (LineKind::Knowledge, b'L'),
        (LineKind::Poll, b'P'),
    ];

    fn letter(self) -> u8 {
        LineKind::ALL.iter().find(|(kind, _)| *kind == self).map_or(b'?', |(_, letter)| *letter)
    }
}

/// One line, taken apart. The body is JSON that nobody has looked into yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line<'a> {
    pub number: u64,
    pub kind: LineKind,
    pub now: Timestamp,
    pub body: &'a str,
}

impl<'a> Line<'a> {
    /// Appends the line with its end.
    pub fn write(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&[b'0'; CHECKSUM_BYTES]);
        let letter = char::from(self.kind.letter());
        out.extend_from_slice(format!("{} {letter} {} ", self.number, self.now.0).as_bytes());
        out.extend_from_slice(self.body.as_bytes());
        let checksum = crc32c::crc32c(&out[begin + CHECKSUM_BYTES..]);
        out[begin..begin + CHECKSUM_BYTES].copy_from_slice(format!("{checksum:08x} ").as_bytes());
        out.push(b'\n');
    }

    /// A line without its end; none if it is not whole or not what was written.
    pub fn read(line: &'a [u8]) -> Option<Line<'a>> {
        let (checksum, rest) = line.split_at_checked(CHECKSUM_BYTES)?;
        if checksum != format!("{:08x} ", crc32c::crc32c(rest)).as_bytes() {
            return None;
        }
        let mut parts = std::str::from_utf8(rest).ok()?.splitn(4, ' ');
        let number = parts.next()?.parse().ok()?;
        let letter = parts.next()?;
        let (kind, _) = LineKind::ALL.into_iter().find(|(_, known)| letter.as_bytes() == [*known])?;
        let now = Timestamp(parts.next()?.parse().ok()?);
        Some(Line { number, kind, now, body: parts.next()? })
    }

    /// What it holds; the fault says why it cannot be that.
    pub fn decode<T: Deserialize<'a>>(&self) -> Result<T, String> {
        serde_json::from_str(self.body).map_err(|error| error.to_string())
    }
}

/// The body of a line. None for what JSON cannot hold.
pub fn encode<T: Serialize>(thing: &T) -> Option<String> {
    serde_json::to_string(thing).ok()
}

/// Writes a thing as a body and reads it back: times are kept to the millisecond and rates to the last bit
/// but one, and who is to be told again tomorrow what was said today must be told it today. None if it cannot
/// be read back.
pub fn round_trip<T: Serialize + for<'a> Deserialize<'a>>(thing: &T) -> Option<(String, T)> {
    let text = encode(thing)?;
    let kept = serde_json::from_str(&text).ok()?;
    Some((text, kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_line_reads_as_it_was_written_and_not_if_a_byte_is_another(
            number in any::<u64>(), now in any::<i64>(), kind in 0..LineKind::ALL.len(),
                body in "[^\n]{0,40}",
            place in any::<proptest::sample::Index>(), other in any::<u8>()
        ) {
            let line = Line { number, kind: LineKind::ALL[kind].0, now: Timestamp(now), body: &body };
            let mut bytes = Vec::new();
            line.write(&mut bytes);
            prop_assert_eq!(bytes.pop(), Some(b'\n'));
            prop_assert_eq!(Line::read(&bytes), Some(line));
            let place = place.index(bytes.len());
            prop_assert_eq!(Line::read(&bytes[..place]), None);
            if bytes[place] != other {
                bytes[place] = other;
                prop_assert_eq!(Line::read(&bytes), None);
            }
        }

        #[test]
        fn any_bytes_are_a_line_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Line::read(&bytes);
        }
    }
}
