use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::filter::Action;

struct Tree(TempDir);

impl Tree {
    fn new() -> Tree {
        Tree(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &str) -> &Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    fn directory(&self, name: &str) -> &Self {
        std::fs::create_dir_all(self.path(name)).unwrap();
        self
    }

    fn walk(&self, start: &str, options: WalkOptions) -> Walk {
        Walk::open(self.0.path(), start, options).unwrap()
    }

    fn names(&self, start: &str) -> Vec<String> {
        names(self.walk(start, WalkOptions::default()))
    }

    fn filtered(&self, excluded: &[&str]) -> Vec<String> {
        names(self.walk("", WalkOptions { filters: excluding(excluded), prefix: String::new() }))
    }
}

fn excluding(patterns: &[&str]) -> Filters {
    Filters::parse(patterns.iter().map(|pattern| (Action::Exclude, *pattern))).unwrap()
}

/// Formats entries as `file`, `directory/` or `!left out: reason`.
fn names(walk: Walk) -> Vec<String> {
    walk.map(|found| match found {
        WalkEntry::File(file) => file.path.to_string(),
        WalkEntry::EmptyDirectory(directory) => format!("{}/", directory.path),
        WalkEntry::LeftOut(left) => format!("!{}: {:?}", left.path, left.reason),
    })
    .collect()
}

#[test]
fn files_in_order_and_empty_directories() {
    let tree = Tree::new();
    tree.file("b/z", "1")
        .file("b/a", "22")
        .file("a.txt", "")
        .file("a/x", "")
        .directory("c/d")
        .directory("empty");
    assert_eq!(tree.names(""), ["a/x", "a.txt", "b/a", "b/z", "c/d/", "empty/"]);
    assert_eq!(tree.names("b"), ["a", "z"]);
    assert_eq!(tree.names("c"), ["d/"]);
    assert!(tree.names("empty").is_empty(), "the start itself is not reported");
    let single = tree.walk("b/a", WalkOptions::default());
    assert_eq!((single.base(), single.is_directory()), ("b", false));
    assert_eq!(names(single), ["a"]);
    assert_eq!(tree.walk("b", WalkOptions::default()).base(), "b");
    assert_eq!(tree.walk("", WalkOptions::default()).base(), "");
}

#[test]
fn what_is_told_of_a_file() {
    let tree = Tree::new();
    tree.file("f", "12345").directory("d");
    std::fs::set_permissions(tree.path("f"), std::fs::Permissions::from_mode(0o4751)).unwrap();
    let at = std::time::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, 123_456_789);
    std::fs::File::options().write(true).open(tree.path("f")).unwrap().set_modified(at).unwrap();
    std::fs::set_permissions(tree.path("d"), std::fs::Permissions::from_mode(0o710)).unwrap();
    let found: Vec<WalkEntry> = tree.walk("", WalkOptions::default()).collect();
    let WalkEntry::EmptyDirectory(directory) = &found[0] else { panic!("{found:?}") };
    assert_eq!(directory.mode, 0o710);
    let WalkEntry::File(file) = &found[1] else { panic!("{found:?}") };
    assert_eq!((file.size, file.mtime_ns, file.mode), (5, 1_700_000_000_123_456_789, 0o751));
}

/// Promise 9: nothing outside is listed, whatever links say.
#[test]
fn links_count_as_files_only_inside() {
    let outside = Tree::new();
    outside.file("secret", "x");
    let tree = Tree::new();
    tree.file("a/real", "12345").file("b/f", "");
    symlink("../a/real", tree.path("b/good")).unwrap();
    symlink(tree.path("a/real"), tree.path("b/absolute")).unwrap();
    symlink(outside.path("secret"), tree.path("b/out")).unwrap();
    symlink("../../../../../../etc/passwd", tree.path("b/up")).unwrap();
    symlink("nothing", tree.path("b/broken")).unwrap();
    symlink("circle", tree.path("b/circle")).unwrap();
    symlink("../a", tree.path("b/to-directory")).unwrap();
    std::fs::set_permissions(tree.path("a/real"), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(
        tree.names("b"),
        [
            "absolute",
            "!broken: BrokenLink",
            "!circle: BrokenLink",
            "f",
            "good",
            "!out: LinkLeadsOut",
            "!to-directory: LinkLeadsOut",
            "!up: LinkLeadsOut"
        ]
    );
    let good = tree.walk("b", WalkOptions::default()).find_map(|found| match found {
        WalkEntry::File(file) if file.path.as_str() == "good" => Some(file),
        _ => None,
    });
    let good = good.unwrap();
    assert_eq!((good.size, good.mode), (5, 0o640), "what the link leads to");
}

#[test]
fn the_rest_is_left_out_with_its_reason() {
    let tree = Tree::new();
    tree.file("f", "").file(".longhaul/temps/x", "").file("sub/.longhaul/temps/y", "").file("sub/g", "");
    let _socket = UnixListener::bind(tree.path("socket")).unwrap();
    let named = std::process::Command::new("mkfifo").arg(tree.path("pipe")).status().unwrap();
    assert!(named.success());
    std::fs::write(tree.0.path().join(OsStr::from_bytes(b"bad\xff")), "").unwrap();
    std::fs::create_dir(tree.0.path().join(OsStr::from_bytes(b"dir\xff"))).unwrap();
    std::fs::write(tree.path("new\nline"), "").unwrap();
    assert_eq!(
        tree.names(""),
        [
            "!bad\\xff: NotUtf8",
            "!dir\\xff/: NotUtf8",
            "f",
            "new\nline",
            "!pipe: Fifo",
            "!socket: Socket",
            "!sub/.longhaul/: NameRules",
            "sub/g"
        ]
    );
}

#[test]
fn filters_keep_out_of_directories() {
    let tree = Tree::new();
    tree.file("a/keep.c", "")
        .file("a/skip.o", "")
        .file("cache/x/y", "")
        .file("only/z.o", "")
        .directory("empty");
    assert_eq!(
        tree.filtered(&["*.o", "/cache/"]),
        ["a/keep.c", "empty/"],
        "`only` was left empty by a filter"
    );
    let mut walk =
        tree.walk("", WalkOptions { filters: excluding(&["*.o", "cache/"]), prefix: String::new() });
    assert_eq!(walk.by_ref().count(), 2);
    assert_eq!(walk.excluded(), 3, "a directory counts as one");
    // An unreadable directory does not matter if it is excluded.
    let named = |prefix: &str, pattern: &str| {
        names(tree.walk("a", WalkOptions { filters: excluding(&[pattern]), prefix: prefix.to_owned() }))
    };
    assert_eq!(named("", "/keep.c"), ["skip.o"]);
    assert_eq!(named("a", "/keep.c"), ["keep.c", "skip.o"], "the root of the transfer is above");
    assert_eq!(named("a", "/a/keep.c"), ["skip.o"]);
    assert!(named("a", "/a").is_empty() && named("a", "a/").is_empty());
    let single = tree.walk("a/skip.o", WalkOptions { filters: excluding(&["*.o"]), prefix: String::new() });
    assert_eq!(names(single), Vec::<String>::new());
}

#[test]
fn what_cannot_begin_says_why() {
    let tree = Tree::new();
    tree.file("d/f", "");
    symlink("d", tree.path("link")).unwrap();
    let code =
        |start: &str| Walk::open(tree.0.path(), start, WalkOptions::default()).err().map(|fault| fault.code);
    assert_eq!(code("missing"), Some(FaultCode::SourceMissing));
    assert_eq!(code("d/f/x"), Some(FaultCode::SourceMissing));
    assert_eq!(code("../d"), Some(FaultCode::BadName));
    assert!(code("link").is_some(), "the start is a path without links");
    assert!(code("link/f").is_some());
    assert_eq!(
        Walk::open(&tree.path("missing"), "", WalkOptions::default()).err().map(|fault| fault.code),
        Some(FaultCode::SourceMissing)
    );
}

#[test]
fn deep_and_wide() {
    let tree = Tree::new();
    let deep = vec!["d"; 400].join("/");
    tree.file(&format!("{deep}/f"), "");
    for number in 0..50 {
        tree.file(&format!("wide/{number:03}"), "");
    }
    let mut walk = tree.walk("", WalkOptions::default());
    walk.names_per_page = 7;
    let found = names(walk);
    assert_eq!(found.len(), 51);
    assert_eq!(found[0], format!("{deep}/f"));
    assert!(found.is_sorted());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every file exactly once, whatever the page size, and as `storage` sees it.
    #[test]
    fn all_files_once(
        paths in proptest::collection::btree_set("[a-c]{1,2}(/[a-c.]{1,2}x){0,3}", 0..20),
        page in 1usize..5,
    ) {
        let tree = Tree::new();
        let mut expected = Vec::new();
        for path in &paths {
            let full = tree.path(path);
            let has_parent = std::fs::create_dir_all(full.parent().unwrap()).is_ok();
            if has_parent && !full.exists() && std::fs::write(&full, "x").is_ok() {
                expected.push(path.clone());
            }
        }
        expected.sort_by(|one, other| one.split('/').cmp(other.split('/')));
        let mut walk = tree.walk("", WalkOptions::default());
        walk.names_per_page = page;
        // The first page has been read already, with the default size.
        let names: Vec<String> = names(walk);
        prop_assert_eq!(names, expected);
    }
}
