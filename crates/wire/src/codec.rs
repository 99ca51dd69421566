//! Codec of little-endian fields. Reading is total: any bytes give a value or an error.

use longhaul_model::{Fault, FaultCode};

/// Bytes that are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

impl From<Malformed> for Fault {
    fn from(error: Malformed) -> Fault {
        Fault::new(FaultCode::ProtocolError, error.0).with_source(error)
    }
}

/// Takes fields off the front of a message.
pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        FieldReader { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed("a field is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A text, preceded by its length in two bytes.
    pub(crate) fn text(&mut self, bytes_max: usize) -> Result<&'a str, Malformed> {
        let len = usize::from(self.u16()?);
        if len > bytes_max {
            return Err(Malformed("a text is too long"));
        }
        std::str::from_utf8(self.bytes(len)?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// The remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes follow the last field")) }
    }
}

/// Appends fields to a message.
pub(crate) trait PutField {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    fn put_i64(&mut self, value: i64) {
        self.put(&value.to_le_bytes());
    }
    /// # Panics
    /// If the text has more than 65,535 bytes; every text has a smaller limit.
    fn put_text(&mut self, text: &str) {
        assert!(
            text.len() <= usize::from(u16::MAX),
            "texts are checked against their limit before they are encoded"
        );
        self.put_u16(text.len() as u16);
        self.put(text.as_bytes());
    }
}

impl PutField for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
