use super::*;
use crate::digest_file;
use longhaul_model::Algorithm;

fn store() -> FaultyStore {
    FaultyStore::new("memory".parse().unwrap())
}

fn at(path: &str) -> Pfn {
    Pfn::new("memory".parse().unwrap(), path).unwrap()
}

fn temp(number: u8) -> TempName {
    TempName::from_bytes([number; 16])
}

fn written(store: &FaultyStore, number: u8, path: &str, bytes: &[u8]) -> Commit {
    store.create(&temp(number), None, bytes.len() as u64).unwrap().write_at(bytes, 0).unwrap();
    Commit::new(temp(number), at(path), bytes.len() as u64)
}

fn code<T>(result: Result<T, Fault>) -> FaultCode {
    result.err().expect("an error").code
}

#[test]
fn conforms() {
    crate::conformance::check(&|| Box::new(store()));
}

#[test]
fn conforms_when_append_only() {
    crate::conformance::check(&|| {
        let store = store();
        store.set_append_only(true);
        Box::new(store)
    });
}

#[test]
fn conforms_when_case_insensitive() {
    crate::conformance::check(&|| {
        let store = store();
        store.set_case_insensitive(true);
        Box::new(store)
    });
}

/// Promise 1 at a power failure: what is not flushed is gone, under whatever name.
#[test]
fn a_power_cut_keeps_only_flushed_data() {
    let store = store();
    let item = written(&store, 1, "a", b"one");
    for names in [UnflushedNames::Kept, UnflushedNames::Lost] {
        assert!(store.after_power_cut(names).names().is_empty());
    }
    assert_eq!(store.after_power_cut(UnflushedNames::Kept).temp_contents(&temp(1)), Some(vec![0; 3]));
    assert_eq!(store.after_power_cut(UnflushedNames::Lost).temp_contents(&temp(1)), None);
    assert_eq!(store.commit(&[item]), [Ok(())]);
    for names in [UnflushedNames::Kept, UnflushedNames::Lost] {
        assert_eq!(store.after_power_cut(names).contents("a"), Some(b"one".to_vec()));
    }
    assert_eq!(
        store.operations(),
        [
            Operation::Create(temp(1)),
            Operation::FlushData,
            Operation::Rename(temp(1), "a".into()),
            Operation::FlushNames
        ]
    );
}

#[test]
fn a_flushed_temporary_file_survives_a_power_cut() {
    let store = store();
    let target = store.create(&temp(1), None, 6).unwrap();
    target.write_at(b"abc", 0).unwrap();
    target.flush().unwrap();
    target.write_at(b"def", 3).unwrap();
    let after = store.after_power_cut(UnflushedNames::Lost);
    assert_eq!(after.temp_contents(&temp(1)), Some(b"abc\0\0\0".to_vec()));
}

#[test]
fn a_failed_flush_loses_the_bytes() {
    let store = store();
    let items = [written(&store, 1, "a", b"one"), written(&store, 2, "b", b"two")];
    store.fail_flushes(1);
    for result in store.commit(&items) {
        assert_eq!(code(result), FaultCode::TargetWrite);
    }
    for result in store.commit(&items) {
        assert_eq!(code(result), FaultCode::TargetWrite, "a second flush does not bring them back");
    }
    assert!(store.reopen(&temp(1), 3).unwrap().is_none());
    assert_eq!(store.commit(&[written(&store, 1, "a", b"one")]), [Ok(())]);
}

#[test]
fn injected_faults_occur() {
    let store = store();
    store.set_capacity(10);
    assert_eq!(code(store.create(&temp(1), None, 11)), FaultCode::TargetFull);
    let target = store.create(&temp(1), None, 8).unwrap();
    assert_eq!(code(store.create(&temp(2), None, 3)), FaultCode::TargetFull, "space is reserved");
    store.run_full_after(Some(4));
    target.write_at(b"1234", 0).unwrap();
    assert_eq!(code(target.write_at(b"5", 4)), FaultCode::TargetFull);
    store.run_full_after(None);
    store.fail_writes(1);
    assert_eq!(code(target.write_at(b"5", 4)), FaultCode::TargetWrite);
    target.write_at(b"5", 4).unwrap();
    store.set_read_only(true);
    assert_eq!(code(target.write_at(b"5", 4)), FaultCode::TargetReadOnly);
    assert_eq!(code(store.create(&temp(2), None, 1)), FaultCode::TargetReadOnly);
}

#[test]
fn changed_sources_are_detected() {
    let store = store();
    let digest = |path: &str| digest_file(&store, &at(path), [Algorithm::Crc32c], &mut [0; 4]);
    store.put("a", b"0123456789");
    let (before, identity) = digest("a").unwrap();
    store.flip_byte("a", 5);
    let (after, same) = digest("a").unwrap();
    assert_eq!(identity, same, "a failing disk leaves no trace");
    assert!(before.contradiction(&after).is_some());

    store.change_while_reading("a", 6);
    assert_eq!(code(digest("a")), FaultCode::SourceChanged);
    let open = store.open(&at("a")).unwrap();
    store.truncate("a", 3);
    assert_ne!(open.identity_now().unwrap(), open.identity());
    assert_eq!(open.read_at(&mut [0; 8], 0).unwrap(), 3);
    store.change_identity("a");
    store.fail_reading("a", Some(2));
    assert_eq!(code(digest("a")), FaultCode::SourceUnreadable);
    store.fail_reading("a", None);
    digest("a").unwrap();
    store.remove("a");
    assert_eq!(code(digest("a")), FaultCode::SourceMissing);
}
