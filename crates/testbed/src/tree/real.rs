//! A tree that nobody made for tests: some documentation or libraries of this system.

use std::fs;
use std::path::{Path, PathBuf};

/// A tree is not looked at beyond this.
const BYTES_MAX: u64 = 400_000_000;

/// Regular files and their bytes, and nothing that we could not read.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    files: usize,
    bytes: u64,
}

/// The first of the usual places with at least `files` files and not too many bytes.
pub fn real_tree(files: usize) -> Option<PathBuf> {
    let mut candidates: Vec<PathBuf> = vec!["/usr/share/doc".into()];
    candidates.extend(children("/usr/lib", "python3"));
    candidates.extend(["/usr/include".into(), "/usr/share".into()]);
    // Where Rust is, there is documentation or a library.
    if let Some(home) = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
    {
        candidates.push(home.join("registry/src"));
    }
    candidates.into_iter().find(|path| {
        size(path)
            .is_some_and(|size| size.files >= files && size.bytes <= BYTES_MAX.max(files as u64 * 50_000))
    })
}

fn children(directory: &str, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// None if something in it cannot be read.
fn size(root: &Path) -> Option<Size> {
    let mut size = Size::default();
    let mut todo = vec![root.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).ok()? {
            let entry = entry.ok()?;
            let kind = entry.file_type().ok()?;
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_file() {
                size.files += 1;
                size.bytes += entry.metadata().ok()?.len();
            }
        }
    }
    Some(size)
}
