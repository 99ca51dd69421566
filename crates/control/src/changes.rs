//! Change notifications for pages and programs: names of objects, rate-limited to one a second each. A
//! listener reads the object by its route, so one that misses a notification loses nothing but time.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::native::{ChangeEvent, ChangeKind};
use longhaul_model::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;

/// Changes that a slow listener may lag behind before it is told that it missed some.
const QUEUE_MAX: usize = 1_024;
/// Minimum time between two notifications of one object: people do not read faster.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
/// Objects remembered between two ticks; beyond it changes of further objects are announced as they come.
const OBJECTS_MAX: usize = 20_000;

type Object = (ChangeKind, String);

#[derive(Clone, Copy)]
struct Announcement {
    at: Timestamp,
    is_pending: bool,
}

pub struct Changes {
    sender: broadcast::Sender<ChangeEvent>,
    objects: Mutex<BTreeMap<Object, Announcement>>,
}

impl Default for Changes {
    fn default() -> Self {
        Changes { sender: broadcast::channel(QUEUE_MAX).0, objects: Mutex::default() }
    }
}

impl Changes {
    pub fn listen(&self) -> broadcast::Receiver<ChangeEvent> {
        self.sender.subscribe()
    }

    /// Announces at once, or within a second if the object was announced less than a second ago.
    pub fn touch(&self, kind: ChangeKind, id: impl ToString, now: Timestamp) {
        let object = (kind, id.to_string());
        let mut objects = self.objects();
        match objects.get_mut(&object) {
            Some(last) if now.since(last.at) < ANNOUNCE_INTERVAL && last.at <= now => last.is_pending = true,
            _ => {
                if objects.len() < OBJECTS_MAX {
                    objects.insert(object.clone(), Announcement { at: now, is_pending: false });
                }
                self.send(&object, now);
            }
        }
    }

    /// To be called about once a second: announces what was held back.
    pub fn tick(&self, now: Timestamp) {
        let mut objects = self.objects();
        objects.retain(|object, last| {
            if last.is_pending {
                *last = Announcement { at: now, is_pending: false };
                self.send(object, now);
                return true;
            }
            last.at <= now && now.since(last.at) < ANNOUNCE_INTERVAL
        });
    }

    fn send(&self, (kind, id): &Object, now: Timestamp) {
        let id = (!id.is_empty()).then(|| id.clone());
        // No listener is no fault.
        let _ = self.sender.send(ChangeEvent { at: now, kind: *kind, id });
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<Object, Announcement>> {
        self.objects.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_announced_once_a_second_and_its_last_change_is_never_lost() {
        let changes = Changes::default();
        let mut listener = changes.listen();
        let at = |ms: i64| Timestamp(1_000_000_000 + ms * 1_000);
        for ms in 0..100 {
            changes.touch(ChangeKind::Site, "alpha", at(ms));
        }
        changes.touch(ChangeKind::Site, "beta", at(100));
        changes.tick(at(1_000));
        changes.tick(at(2_500));
        let mut heard = Vec::new();
        while let Ok(change) = listener.try_recv() {
            heard.push(change.id.unwrap());
        }
        assert_eq!(heard, ["alpha", "beta", "alpha"]);
        assert!(changes.objects().is_empty());
    }
}
