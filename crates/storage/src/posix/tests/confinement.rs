//! Promise 9 (path confinement): nothing outside the root is read or written, whatever names and links say.

use super::*;
use proptest::prelude::*;
use std::fs as std_fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

const OUTSIDE: &str = "outside the root";
const INSIDE: &str = "inside";

/// An entry to create in a tree: where, and what.
#[derive(Clone, Debug)]
enum Piece {
    File,
    Directory,
    Link(String),
    /// An absolute link to this path beneath the parent of the root.
    Absolute(String),
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec("[ab]", 1..4).prop_map(|names| names.join("/"))
}

fn link_text() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof!["[ab]", Just("..".into()), Just(".".into()), Just("root".into())],
        1..6,
    )
    .prop_map(|names: Vec<String>| names.join("/"))
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        Just(Piece::File),
        Just(Piece::Directory),
        link_text().prop_map(Piece::Link),
        link_text().prop_map(Piece::Absolute),
    ]
}

/// `base/root` with the entries, and `base/{a,b,…}` around it, which must stay out of reach.
fn build(base: &Path, pieces: &[(String, Piece)]) -> PathBuf {
    let root = base.join("root");
    std_fs::create_dir(&root).unwrap();
    std_fs::create_dir_all(base.join("a/b")).unwrap();
    for outside in ["b", "a/a", "a/b/a", "a/b/b"] {
        std_fs::write(base.join(outside), OUTSIDE).unwrap();
    }
    for (path, piece) in pieces {
        let place = root.join(path);
        // A link may already stand in the way; the tree must be built without following one itself.
        let parent = place.parent().unwrap();
        if std_fs::create_dir_all(parent).is_err() || !parent.canonicalize().unwrap().starts_with(&root) {
            continue;
        }
        let _ = match piece {
            Piece::File => std_fs::write(&place, INSIDE).map_err(drop),
            Piece::Directory => std_fs::create_dir(&place).map_err(drop),
            Piece::Link(text) => symlink(text, &place).map_err(drop),
            Piece::Absolute(text) => symlink(base.join(text), &place).map_err(drop),
        };
    }
    root
}

/// A snapshot of everything around the root.
fn surroundings(base: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut left = vec![base.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std_fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path == base.join("root") {
                continue;
            }
            let is_file = path.symlink_metadata().unwrap().is_file();
            if path.is_dir() {
                left.push(path.clone());
            }
            let bytes = is_file.then(|| std_fs::read(&path).unwrap());
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

/// Files that `open` must be able to read: regular files whose real path lies beneath the root. It may read
/// slightly more: text alone decides where `../nothing/../root/a` leads.
fn truth(root: &Path, path: &str) -> bool {
    root.join(path).canonicalize().is_ok_and(|real| real.starts_with(root) && real.is_file())
}

fn try_everything(root: &Path, resolver: Resolver) -> Result<(), TestCaseError> {
    let base = root.parent().unwrap();
    let before = surroundings(base);
    let unflushed = PosixOptions { flush: FlushPolicy::None, ..options(root) };
    let posix = Posix::open_with(unflushed, PosixTuning::default(), Some(resolver), FaultInjector::default())
        .unwrap();
    let mut paths: Vec<String> = vec!["a".into(), "b".into()];
    for depth in 0..3 {
        let longer: Vec<String> = paths
            .iter()
            .filter(|path| path.matches('/').count() == depth)
            .flat_map(|path| [format!("{path}/a"), format!("{path}/b")])
            .collect();
        paths.extend(longer);
    }
    let mut visited = Vec::new();
    let visit = &mut |visit| {
        if let Visit::File { at, .. } = visit {
            visited.push(at);
        }
        ControlFlow::Continue(())
    };
    posix.walk("", visit).unwrap();
    let mut directory_cache = DirectoryCache::default();
    for path in &paths {
        for opened in [posix.open(&at(path)), posix.open_with_cache(&at(path), &mut directory_cache)] {
            prop_assert!(opened.is_ok() || !truth(root, path), "{} {:?}", path, opened.err());
            if let Ok(file) = opened {
                let mut bytes = [0; 64];
                let len = file.read_at(&mut bytes, 0).unwrap();
                prop_assert_eq!(&bytes[..len], INSIDE.as_bytes(), "{} was read from outside", path);
            }
        }
    }
    for at in visited {
        prop_assert!(posix.open(&at).is_ok(), "{at} was visited");
    }
    for path in &paths {
        let item = written(&posix, 1, path, b"new");
        let _ = posix.commit(&[item]);
        let item = Commit { mode: Some(0o600), ..Commit::new(temp(1), at(path), 3) };
        let _ = posix.put(&item, b"new").map(|()| posix.commit(&[item]));
        if let Ok(Some(identity)) = posix.stat(&at(path)) {
            let _ = posix.delete(&at(path), &identity);
        }
    }
    prop_assert_eq!(surroundings(base), before);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96 * ProptestConfig::default().cases / 256,
        ..ProptestConfig::default() })]

    #[test]
    fn no_name_and_no_link_escapes_the_root(pieces in proptest::collection::vec((path(), piece()), 1..12)) {
        for resolver in resolvers() {
            let base = tempfile::tempdir().unwrap();
            let canonical = base.path().canonicalize().unwrap();
            try_everything(&build(&canonical, &pieces), resolver)?;
        }
    }
}

/// A directory exchanged for a link between the check and the open.
#[test]
fn an_exchanged_link_does_not_escape_the_root() {
    for resolver in resolvers() {
        let base = tempfile::tempdir().unwrap();
        let root = build(&base.path().canonicalize().unwrap(), &[("a/a".into(), Piece::File)]);
        let posix = Posix::open_with(
            options(&root),
            PosixTuning::default(),
            Some(resolver),
            FaultInjector::default(),
        )
        .unwrap();
        let (path, _) = posix.find_file(&at("a/a")).unwrap().unwrap();
        std_fs::rename(root.join("a"), root.join("moved")).unwrap();
        symlink("../a", root.join("a")).unwrap();
        assert_eq!(posix.open_for_reading(&path).err(), Some(Errno::LOOP), "{resolver:?}");
        let item = written(&posix, 1, "a/new", b"x");
        assert_eq!(code(posix.commit(&[item]).remove(0)), FaultCode::NameClash);
        assert!(!base.path().join("a/new").exists());
    }
}

/// A final name that is a link, broken or not, is taken: nothing is written through it.
#[test]
fn nothing_is_written_through_a_link() {
    let base = tempfile::tempdir().unwrap();
    let root = build(&base.path().canonicalize().unwrap(), &[("a".into(), Piece::Link("../new".into()))]);
    let posix = Posix::open(options(&root)).unwrap();
    let item = written(&posix, 1, "a", b"x");
    assert_eq!(code(posix.commit(&[item]).remove(0)), FaultCode::NameClash);
    assert!(!base.path().join("new").exists());
}

#[test]
fn a_work_directory_that_is_a_link_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let root = build(&base.path().canonicalize().unwrap(), &[]);
    symlink("../a", root.join(WORK_DIRECTORY)).unwrap();
    let posix = Posix::open(options(&root)).unwrap();
    assert!(posix.create(&temp(1), None, 1).is_err());
    assert!(!base.path().join("a/temps").exists());
}
