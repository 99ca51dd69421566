//! Choices out of the input: each byte steers a step, so that mutations of the input are mutations of a
//! history.

pub(super) struct Dice<'a>(&'a [u8]);

impl<'a> Dice<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Dice(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Zero when the input is used up.
    pub(super) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(super) fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    pub(super) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(super) fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// At most so many bytes; fewer at the end.
    pub(super) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }
}
