//! The sources of one transfer: few, and stored inline in its row, since every choice reads them.

use std::ops::{Deref, DerefMut};

use longhaul_model::Timestamp;

use crate::settings::SOURCES_MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TransferSource {
    pub storage: u32,
    pub tries: u32,
    pub backoff_until: Timestamp,
}

impl TransferSource {
    /// One that was never tried.
    pub(crate) fn new(storage: u32) -> Self {
        TransferSource { storage, tries: 0, backoff_until: Timestamp(i64::MIN) }
    }
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct SourceList {
    count: u8,
    rows: [TransferSource; SOURCES_MAX],
}

impl SourceList {
    /// # Panics
    /// If there are as many as a file may have: who adds one looks first.
    pub(crate) fn push(&mut self, source: TransferSource) {
        assert!(self.len() < SOURCES_MAX, "a file has at most {SOURCES_MAX} sources");
        self.rows[self.len()] = source;
        self.count += 1;
    }

    /// Keeps the order of the others.
    pub(crate) fn remove(&mut self, storage: u32) {
        let Some(at) = self.iter().position(|source| source.storage == storage) else { return };
        let count = self.len();
        self.rows.copy_within(at + 1..count, at);
        self.count -= 1;
    }
}

impl Deref for SourceList {
    type Target = [TransferSource];
    fn deref(&self) -> &[TransferSource] {
        &self.rows[..usize::from(self.count)]
    }
}

impl DerefMut for SourceList {
    fn deref_mut(&mut self) -> &mut [TransferSource] {
        &mut self.rows[..usize::from(self.count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_keep_their_order() {
        let mut sources = SourceList::default();
        (0..SOURCES_MAX as u32).for_each(|storage| sources.push(TransferSource::new(storage)));
        sources.remove(2);
        sources.remove(7);
        sources.remove(99);
        assert_eq!(sources.iter().map(|source| source.storage).collect::<Vec<_>>(), [0, 1, 3, 4, 5, 6]);
        sources.push(TransferSource::new(9));
        assert_eq!(sources.last(), Some(&TransferSource::new(9)));
    }
}
