//! The format of one message on disk. Pure.
//!
//! ```text
//! length: u32 | CRC32C of the rest: u32 | number: u64 | at, µs: i64 | kind: u8
//!     | length of vo: u16 | vo | body
//! ```

use longhaul_api::fts::MessageKind;
use longhaul_model::Timestamp;

const FRAME: usize = 8;
const FIXED: usize = 19;
/// Longer is no record of ours: metadata of jobs are bounded far below.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub number: u64,
    pub at: Timestamp,
    pub kind: MessageKind,
    pub vo: Option<String>,
    pub body: String,
}

/// The result of decoding a record at the beginning of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodeResult {
    /// A record, and its length in bytes.
    Record(Record, usize),
    /// At least this many bytes are needed.
    More(usize),
    Damaged,
}

impl Record {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let vo = self.vo.as_deref().unwrap_or_default();
        let vo = vo.get(..vo.len().min(usize::from(u16::MAX))).unwrap_or_default();
        let begin = out.len();
        out.extend_from_slice(&[0; FRAME]);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.at.as_micros().to_le_bytes());
        out.push(MessageKind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u8);
        out.extend_from_slice(&(vo.len() as u16).to_le_bytes());
        out.extend_from_slice(vo.as_bytes());
        out.extend_from_slice(self.body.as_bytes());
        let length = (out.len() - begin - FRAME) as u32;
        let sum = crc32c::crc32c(&out[begin + FRAME..]);
        out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
        out[begin + 4..begin + FRAME].copy_from_slice(&sum.to_le_bytes());
    }

    pub fn decode(bytes: &[u8]) -> DecodeResult {
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return DecodeResult::More(FRAME) };
        let Some((sum, rest)) = rest.split_first_chunk::<4>() else { return DecodeResult::More(FRAME) };
        let length = u32::from_le_bytes(*length) as usize;
        if !(FIXED..=RECORD_BYTES_MAX).contains(&length) {
            return DecodeResult::Damaged;
        }
        let Some(content) = rest.get(..length) else { return DecodeResult::More(FRAME + length) };
        if crc32c::crc32c(content) != u32::from_le_bytes(*sum) {
            return DecodeResult::Damaged;
        }
        match parse(content) {
            Some(record) => DecodeResult::Record(record, FRAME + length),
            None => DecodeResult::Damaged,
        }
    }
}

fn parse(content: &[u8]) -> Option<Record> {
    let (number, rest) = content.split_first_chunk::<8>()?;
    let (at, rest) = rest.split_first_chunk::<8>()?;
    let (kind, rest) = rest.split_first()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (vo, body) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let vo = text(vo)?;
    Some(Record {
        number: u64::from_le_bytes(*number),
        at: Timestamp(i64::from_le_bytes(*at)),
        kind: *MessageKind::ALL.get(usize::from(*kind))?,
        vo: (!vo.is_empty()).then_some(vo),
        body: text(body)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_survives_the_disk_and_no_damage_passes(
            number: u64, at: i64, kind in 0..4usize, vo in "[a-z]{1,9}", body in ".{0,50}",
            place: usize, bit in 0..8u8,
        ) {
            let kind = MessageKind::ALL[kind];
            let vo = (kind == MessageKind::State).then_some(vo);
            let record = Record { number, at: Timestamp(at), kind, vo, body };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            prop_assert_eq!(Record::decode(&bytes), DecodeResult::Record(record, bytes.len()));
            for end in 0..bytes.len() {
                let DecodeResult::More(wanted) = Record::decode(&bytes[..end]) else { panic!("{end}") };
                prop_assert!(wanted > end && wanted <= bytes.len());
            }
            let place = place % bytes.len();
            bytes[place] ^= 1 << bit;
            prop_assert!(!matches!(Record::decode(&bytes), DecodeResult::Record(..)));
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Record::decode(&bytes);
        }
    }
}
