//! A pool of buffers that files are read into and sent from. Fresh buffers would cost a page fault for each 4
//! KiB.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Bytes of one read: large enough that its call costs nothing, small enough to stay in a core's cache while
/// it is encrypted.
pub(crate) const BUFFER_BYTES: usize = 512 << 10;
/// Idle buffers that stay allocated; more are freed.
const FREE_BUFFERS_MAX: usize = 32;

#[derive(Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    pub(crate) fn take(self: &Arc<Self>) -> PooledBuffer {
        let kept = self.free.lock().pop();
        PooledBuffer { bytes: kept.unwrap_or_else(|| vec![0; BUFFER_BYTES]), len: 0, home: self.clone() }
    }
}

/// A buffer that returns to its pool when it is dropped.
pub(crate) struct PooledBuffer {
    bytes: Vec<u8>,
    len: usize,
    home: Arc<Buffers>,
}

impl PooledBuffer {
    /// Fills up to `most` bytes of it.
    pub(crate) fn fill<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let most = most.min(self.bytes.len());
        self.len = fill(&mut self.bytes[..most])?.min(most);
        Ok(())
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let mut free = self.home.free.lock();
        if free.len() < FREE_BUFFERS_MAX {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_comes_home() {
        let home = Arc::new(Buffers::default());
        let mut lent = home.take();
        lent.fill(3, |bytes| {
            bytes.copy_from_slice(b"abc");
            Ok::<_, ()>(3)
        })
        .unwrap();
        let bytes = lent.into_bytes();
        assert_eq!(&bytes[..], b"abc");
        assert_eq!(home.free.lock().len(), 0);
        drop(bytes);
        assert_eq!(home.free.lock().len(), 1);
        assert!(home.take().as_ref().is_empty(), "nothing of the last user is seen");
    }
}
