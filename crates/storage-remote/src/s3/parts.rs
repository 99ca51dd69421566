//! Part sizes of multipart uploads, and a bound on parts in memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::{Failure, Kind};

const MIB: u64 = 1 << 20;
/// Limits of S3: parts of an upload, bytes of an object and of a single PUT.
const PARTS_MAX: u64 = 10_000;
const SIZE_MAX: u64 = 5 << 40;
/// And of an object that is sent whole.
pub(crate) const WHOLE_MAX: u64 = 5 << 30;

/// The size of all parts but the last: as configured, more for files that would have too many.
pub(super) fn part_bytes(least: u64, size: u64) -> Result<u64, Failure> {
    if size > SIZE_MAX {
        let text = format!("{size} bytes: S3 holds no object above 5 TiB");
        return Err(Failure::new(Kind::Order, text));
    }
    Ok(least.max(size.div_ceil(PARTS_MAX).next_multiple_of(MIB)))
}

/// Room for parts, of all copies together.
pub(crate) struct PartMemory {
    room: Arc<Semaphore>,
    all: u32,
}

impl PartMemory {
    pub(crate) fn new(bytes: u64) -> PartMemory {
        let all = u32::try_from((bytes / MIB).max(1)).unwrap_or(u32::MAX >> 4);
        PartMemory { room: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// Waits until there is room. What is larger than all of it has to be alone.
    pub(crate) async fn reserve(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Failure> {
        let wanted = u32::try_from(bytes.div_ceil(MIB).max(1)).unwrap_or(u32::MAX).min(self.all);
        let room = self.room.clone().acquire_many_owned(wanted).await;
        room.map_err(|_| Failure::new(Kind::Cancelled, "the process ends"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_upload_has_too_many_parts() {
        for size in [0, 1, 16 << 20, 160_000 * MIB, 1 << 40, SIZE_MAX] {
            let part = part_bytes(16 << 20, size).unwrap();
            assert!(part >= 16 << 20 && size.div_ceil(part) <= PARTS_MAX && part <= WHOLE_MAX, "{size}");
        }
        assert!(part_bytes(16 << 20, SIZE_MAX + 1).is_err());
    }
}
