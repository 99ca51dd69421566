//! Position of a transfer in a queue of its want, packed into one integer: small keys keep large queues fast.

/// Ordered by: not awaited from another target first; fewer sources first (what only this source has comes
/// first from it); place in the block; place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey(u64);

const TRANSFER_BITS: u32 = 32;
/// Later positions count as the last.
const POSITION_BITS: u32 = 27;
const SOURCES_BITS: u32 = 4;

impl QueueKey {
    pub(crate) fn new(awaited: bool, sources: usize, position: u64, transfer: u32) -> Self {
        assert!(sources < 1 << SOURCES_BITS, "a transfer has few sources");
        let position = position.min((1 << POSITION_BITS) - 1);
        let high = u64::from(awaited) << SOURCES_BITS | sources as u64;
        QueueKey((high << POSITION_BITS | position) << TRANSFER_BITS | u64::from(transfer))
    }

    pub(crate) fn awaited(self) -> bool {
        self.0 >> (SOURCES_BITS + POSITION_BITS + TRANSFER_BITS) != 0
    }

    pub(crate) fn transfer(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_as_it_says() {
        let keys = [
            QueueKey::new(false, 1, 7, u32::MAX),
            QueueKey::new(false, 2, 3, 0),
            QueueKey::new(false, 2, 3, 1),
            QueueKey::new(false, 8, u64::MAX, 2),
            QueueKey::new(true, 0, 0, 0),
        ];
        assert!(keys.is_sorted());
        assert!(keys[4].awaited() && !keys[3].awaited());
        assert_eq!(keys[0].transfer(), u32::MAX);
    }
}
