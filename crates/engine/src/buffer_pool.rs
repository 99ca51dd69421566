//! A bounded buffer pool with credit-based flow control (as in RFC 9113, section 5.2): a fixed number of
//! buffers of one chunk each. A *slot* is the right (the credit) to hold one buffer.
//!
//! Slots are taken before data is requested, so that memory is bounded whatever peers do (promise 7). A
//! buffer is allocated when its slot is first used, and is reused from then on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use longhaul_model::limits::CHUNK_BYTES;
use parking_lot::Mutex;

const CHUNK: usize = CHUNK_BYTES as usize;
/// The alignment that direct I/O requires.
const ALIGNMENT: usize = 4096;
/// Spare bytes behind a chunk: a record that is opened in place ends with a byte that is not data.
const SLACK: usize = 64;

pub(crate) struct BufferPool {
    total: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    free_blocks: Mutex<Vec<Block>>,
    /// Whether a user found no free slot and has nothing in flight whose end would make it retry.
    starving: AtomicBool,
    on_slots_free: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct Block {
    bytes: Box<[u8]>,
    start: usize,
}

impl BufferPool {
    pub(crate) fn new(total: usize) -> Arc<BufferPool> {
        assert!(total > 0, "a pool needs a buffer");
        Arc::new(BufferPool {
            total,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            free_blocks: Mutex::new(Vec::new()),
            starving: AtomicBool::new(false),
            on_slots_free: OnceLock::new(),
        })
    }

    /// Called when slots that a user waits for become free.
    pub(crate) fn on_slots_free(&self, feed: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_slots_free.set(Box::new(feed));
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Takes up to `most` slots.
    pub(crate) fn reserve(&self, most: usize) -> usize {
        let mut taken = 0;
        let _ = self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
            taken = most.min(self.total - used);
            Some(used + taken)
        });
        self.peak.fetch_max(self.used(), Ordering::Relaxed);
        taken
    }

    pub(crate) fn release(&self, slots: usize) {
        if slots == 0 {
            return;
        }
        let before = self.used.fetch_sub(slots, Ordering::AcqRel);
        assert!(before >= slots, "more slots were released than taken");
        if self.starving.swap(false, Ordering::AcqRel)
            && let Some(feed) = self.on_slots_free.get()
        {
            feed();
        }
    }

    pub(crate) fn note_starvation(&self) {
        self.starving.store(true, Ordering::Release);
        // A slot may have been released just before; without this check the wake-up would be lost.
        if self.used() < self.total
            && self.starving.swap(false, Ordering::AcqRel)
            && let Some(feed) = self.on_slots_free.get()
        {
            feed();
        }
    }

    /// A buffer of a reserved slot; dropping it releases the slot.
    pub(crate) fn buffer(self: &Arc<Self>) -> Buffer {
        let block = self.free_blocks.lock().pop().unwrap_or_else(Block::new);
        Buffer { block: Some(block), pool: self.clone() }
    }
}

impl Block {
    fn new() -> Block {
        let bytes = vec![0; CHUNK + ALIGNMENT + SLACK].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Block { bytes, start }
    }
}

pub(crate) struct Buffer {
    block: Option<Block>,
    pool: Arc<BufferPool>,
}

impl Buffer {
    /// The buffer from `at` on, with some bytes behind the chunk's end that may be overwritten.
    pub(crate) fn space(&mut self, at: usize) -> &mut [u8] {
        self.block.as_mut().map_or(&mut [], |block| {
            let start = block.start;
            &mut block.bytes[start + at..start + CHUNK + SLACK]
        })
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| &block.bytes[block.start..block.start + CHUNK])
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.as_mut().map_or(&mut [], |block| &mut block.bytes[block.start..block.start + CHUNK])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.free_blocks.lock().push(block);
        }
        self.pool.release(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 7: memory is bounded.
    #[test]
    fn there_are_never_more_buffers_than_slots() {
        let pool = BufferPool::new(3);
        assert_eq!(pool.reserve(2), 2);
        assert_eq!(pool.reserve(5), 1);
        assert_eq!(pool.reserve(1), 0);
        let buffers: Vec<Buffer> = (0..3).map(|_| pool.buffer()).collect();
        assert!(
            buffers
                .iter()
                .all(|buffer| buffer.len() == CHUNK && (buffer.as_ptr() as usize).is_multiple_of(ALIGNMENT))
        );
        drop(buffers);
        assert_eq!((pool.used(), pool.peak()), (0, 3));
        assert_eq!(pool.free_blocks.lock().len(), 3);
        pool.reserve(1);
        drop(pool.buffer());
        assert_eq!(pool.free_blocks.lock().len(), 3, "blocks are used again");
    }

    #[test]
    fn starvation_is_signalled_once() {
        let pool = BufferPool::new(1);
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        pool.on_slots_free(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        pool.reserve(1);
        pool.note_starvation();
        assert_eq!(told.load(Ordering::Relaxed), 0);
        pool.release(1);
        pool.reserve(1);
        pool.release(1);
        assert_eq!(told.load(Ordering::Relaxed), 1);
        pool.note_starvation();
        assert_eq!(told.load(Ordering::Relaxed), 2, "a slot was free already");
    }
}
