//! The sources of one file: few, and kept in the file's own row, since every choice looks at them.

use std::ops::{Deref, DerefMut};

use longhaul_model::Timestamp;

use crate::settings::SOURCES_MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SourceOf {
    pub storage: u32,
    pub tries: u32,
    pub rest_until: Timestamp,
}

impl SourceOf {
    /// One that was never tried.
    pub(crate) fn new(storage: u32) -> Self {
        SourceOf { storage, tries: 0, rest_until: Timestamp(i64::MIN) }
    }
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Sources {
    count: u8,
    rows: [SourceOf; SOURCES_MAX],
}

impl Sources {
    /// # Panics
    /// If there are as many as a file may have: who adds one looks first.
    pub(crate) fn push(&mut self, source: SourceOf) {
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

impl Deref for Sources {
    type Target = [SourceOf];
    fn deref(&self) -> &[SourceOf] {
        &self.rows[..usize::from(self.count)]
    }
}

impl DerefMut for Sources {
    fn deref_mut(&mut self) -> &mut [SourceOf] {
        &mut self.rows[..usize::from(self.count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_keep_their_order() {
        let mut sources = Sources::default();
        (0..SOURCES_MAX as u32).for_each(|storage| sources.push(SourceOf::new(storage)));
        sources.remove(2);
        sources.remove(7);
        sources.remove(99);
        assert_eq!(sources.iter().map(|source| source.storage).collect::<Vec<_>>(), [0, 1, 3, 4, 5, 6]);
        sources.push(SourceOf::new(9));
        assert_eq!(sources.last(), Some(&SourceOf::new(9)));
    }
}
