//! Several writers of one root: a fenced one brings nothing to a final name, whether it runs or not.

use super::*;
use crate::{FenceResult, WriterFencing, WriterId};

const ONE_WRITER: WriterId = WriterId(1);
const OTHER_WRITER: WriterId = WriterId(2);

fn writer(root: &Path, id: WriterId) -> Posix {
    let posix = Posix::open_shared(options(root), PosixTuning::default(), id).unwrap();
    posix.rejoin().unwrap();
    posix
}

#[test]
fn conforms_as_one_of_several_writers() {
    conforms(|root| writer(root, ONE_WRITER), None);
}

/// The other program was stopped (SIGSTOP) or cut off, and goes on later with all that it had open.
#[test]
fn what_a_fenced_writer_had_begun_gets_no_final_name() {
    let root = tempfile::tempdir().unwrap();
    let (fenced, sibling) = (writer(root.path(), ONE_WRITER), writer(root.path(), OTHER_WRITER));
    let bytes = b"from the one that was fenced";
    std::fs::write(root.path().join("kept"), "").unwrap();
    let written_before = written(&fenced, 1, "dir/written", bytes);
    let open = fenced.create(&temp(2), None, 4).unwrap();
    let put = Commit::new(temp(3), at("dir/put"), 5);
    fenced.put(&put, b"bytes").unwrap();

    assert_eq!(sibling.fence(ONE_WRITER, false).unwrap(), FenceResult::Locked, "it runs");
    assert!(!fenced.is_fenced().unwrap());
    assert_eq!(sibling.fence(ONE_WRITER, true).unwrap(), FenceResult::Fenced);
    assert_eq!(sibling.fence(ONE_WRITER, true).unwrap(), FenceResult::Fenced, "once more");

    assert!(fenced.is_fenced().unwrap() && !sibling.is_fenced().unwrap());
    // What is open takes bytes still. They are nowhere.
    open.write_at(b"late", 0).unwrap();
    let late = Commit::new(temp(2), at("dir/late"), 4);
    assert!(fenced.commit(&[written_before, late, put]).iter().all(Result::is_err));
    assert!(fenced.create(&temp(4), None, 1).is_err(), "nor does it begin anything new");
    assert!(fenced.put(&Commit::new(temp(5), at("dir/new"), 1), b"1").is_err());
    let kept = fenced.stat(&at("kept")).unwrap().unwrap();
    assert!(fenced.delete(&at("kept"), &kept).is_err(), "nor does it delete");
    assert!(root.path().join("kept").exists());
    assert!(!root.path().join("dir/written").exists() && !root.path().join("dir/late").exists());

    let same = written(&sibling, 1, "dir/written", b"from the sibling");
    assert_eq!(sibling.commit(&[same]), [Ok(())]);
    assert_eq!(std::fs::read(root.path().join("dir/written")).unwrap(), b"from the sibling");

    fenced.rejoin().unwrap();
    assert!(!fenced.is_fenced().unwrap());
    let next = written(&fenced, 1, "next", b"x");
    assert_eq!(fenced.commit(&[next]), [Ok(())], "it writes again");
}

#[test]
fn a_writer_that_ended_is_fenced_at_once_and_learns_of_it_at_its_next_start() {
    let root = tempfile::tempdir().unwrap();
    let sibling = writer(root.path(), OTHER_WRITER);
    let ended = writer(root.path(), ONE_WRITER);
    drop(ended.create(&temp(1), None, 1).unwrap());
    drop(ended);
    let again = Posix::open_shared(options(root.path()), PosixTuning::default(), ONE_WRITER).unwrap();
    assert!(!again.is_fenced().unwrap(), "nobody fenced it");
    again.rejoin().unwrap();
    assert_eq!(again.temps().unwrap(), [temp(1)], "what it had begun is there");
    drop(again);

    assert_eq!(sibling.fence(ONE_WRITER, false).unwrap(), FenceResult::Fenced, "it holds no lock any more");
    let again = Posix::open_shared(options(root.path()), PosixTuning::default(), ONE_WRITER).unwrap();
    assert!(again.is_fenced().unwrap());
    assert!(again.create(&temp(1), None, 1).is_err(), "before it has rejoined");
    again.rejoin().unwrap();
    assert_eq!(again.temps().unwrap(), []);
}

#[test]
fn a_writer_has_its_own_temporary_files_and_its_id_has_one_program() {
    let root = tempfile::tempdir().unwrap();
    let (one, other) = (writer(root.path(), ONE_WRITER), writer(root.path(), OTHER_WRITER));
    let (from_one, from_other) = (written(&one, 1, "a", b"1"), written(&other, 1, "b", b"2"));
    assert_eq!((one.temps().unwrap(), other.temps().unwrap()), (vec![temp(1)], vec![temp(1)]));
    assert_eq!(one.commit(&[from_one]), [Ok(())]);
    assert_eq!(other.commit(&[from_other]), [Ok(())]);
    assert_eq!(std::fs::read(root.path().join("b")).unwrap(), b"2");

    let twin = Posix::open_shared(options(root.path()), PosixTuning::default(), ONE_WRITER).unwrap();
    assert_eq!(code(twin.rejoin()), FaultCode::Conflict);
    assert_eq!(code(one.fence(ONE_WRITER, true)), FaultCode::BadRequest);
    assert_eq!(one.fence(WriterId(3), false).unwrap(), FenceResult::Fenced, "it never wrote here");
}
