//! Promise 1, watched from outside: whatever shows up under a final name is complete and right from the first
//! moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::tree::{self, Content};

/// Between two listings.
const LISTING_INTERVAL: Duration = Duration::from_millis(10);

/// What may appear, by path below the root.
pub type Expected = BTreeMap<Vec<u8>, Content>;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct WatchReport {
    pub listings: u64,
    /// Names that appeared and had the right content on sight.
    pub right: BTreeSet<Vec<u8>>,
    /// Everything that should never be, in words.
    pub wrong: Vec<String>,
}

/// Lists all final names below a root every 10 ms and reads each as soon as it is seen.
pub struct Watcher {
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<WatchReport>>,
}

impl Watcher {
    pub fn start(root: &Path, expected: Expected) -> Watcher {
        let root = root.to_owned();
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || watch(&root, &expected, &stopped));
        Watcher { stop, thread: Some(thread) }
    }

    /// One more listing, and what all of them have seen.
    pub fn finish(mut self) -> WatchReport {
        let _ = self.stop.send(());
        self.thread.take().expect("it finishes once").join().expect("the watcher does not panic")
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.stop.send(());
    }
}

fn watch(root: &Path, expected: &Expected, stopped: &mpsc::Receiver<()>) -> WatchReport {
    let mut seen = WatchReport::default();
    loop {
        let last = !matches!(stopped.recv_timeout(LISTING_INTERVAL), Err(mpsc::RecvTimeoutError::Timeout));
        examine(root, expected, &mut seen);
        if last {
            return seen;
        }
    }
}

fn examine(root: &Path, expected: &Expected, seen: &mut WatchReport) {
    seen.listings += 1;
    let names: Vec<PathBuf> = tree::names(root);
    let found: BTreeSet<Vec<u8>> = names.iter().map(|path| tree::bytes(path)).collect();
    for name in &found {
        if seen.right.contains(name) {
            continue;
        }
        match (expected.get(name), tree::content_of(&root.join(tree::path(name)))) {
            (Some(right), Ok(content)) if content == *right => {
                seen.right.insert(name.clone());
            }
            (right, content) => {
                seen.wrong.push(format!("{}: {content:?} instead of {right:?}", name.escape_ascii()));
            }
        }
    }
    for name in seen.right.difference(&found) {
        seen.wrong.push(format!("{}: was there and is gone", name.escape_ascii()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_partial_wrong_or_gone_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::write(root.join("right"), b"all of it").unwrap();
        fs::write(root.join("partial"), b"all of it").unwrap();
        let expected = tree::stored(root);
        fs::write(root.join("partial"), b"all").unwrap();
        fs::create_dir(root.join(".longhaul")).unwrap();
        fs::write(root.join(".longhaul/temporary"), b"al").unwrap();
        let mut seen = WatchReport::default();
        examine(root, &expected, &mut seen);
        assert_eq!((seen.right.len(), seen.wrong.len()), (1, 1), "{seen:?}");
        fs::remove_file(root.join("right")).unwrap();
        fs::write(root.join("stranger"), b"").unwrap();
        let watcher = Watcher::start(root, expected);
        let later = watcher.finish();
        assert!(
            later.listings >= 1 && later.wrong.iter().any(|line| line.starts_with("stranger")),
            "{later:?}"
        );
        examine(root, &Expected::new(), &mut seen);
        assert!(seen.wrong.iter().any(|line| line == "right: was there and is gone"), "{seen:?}");
    }
}
