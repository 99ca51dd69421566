use proptest::prelude::*;

use super::*;

fn any_url(_: &str) -> Result<(), String> {
    Ok(())
}

fn parse_job(bytes: &[u8]) -> Result<Batch, BatchError> {
    parse(bytes, Path::new("job"), Format::Copyjob, &any_url)
}

fn local(line: u32, source: &str, target: &str) -> Pair {
    Pair { line, source: EndpointSpec::Local(source.into()), target: EndpointSpec::Local(target.into()) }
}

#[test]
fn pairs_comments_and_blanks() {
    let batch = parse_job(b"# job\n\n  a   b\n\t\nlh://s@h:1/x\t/data/x\r\n@far/y z").unwrap();
    assert!(batch.bad.is_empty());
    assert_eq!(batch.pairs.len(), 3);
    assert_eq!(batch.pairs[0], local(3, "a", "b"));
    assert_eq!(batch.pairs[1].source, EndpointSpec::Url("lh://s@h:1/x".into()));
    assert_eq!((batch.pairs[2].line, &batch.pairs[2].source), (6, &EndpointSpec::AtFile("far/y".into())));
}

/// C.5 4: the message has the line number, and one bad line does not affect the rest.
#[test]
fn bad_lines_are_reported_by_number() {
    let long = "x".repeat(LINE_BYTES_MAX);
    let job = format!("a b\nonly\na b c\nfdt://h:1/a b\na fdt://h:1/b\n\"a b\n{long} b\na b\n");
    let mut job = job.into_bytes();
    job.extend_from_slice(b"\xc3\xa9\xff b\nlast one\n");
    let batch = parse_job(&job).unwrap();
    let places: Vec<(u32, u32)> = batch.bad.iter().map(|bad| (bad.line, bad.column)).collect();
    assert_eq!(places, [(2, 5), (3, 5), (4, 1), (5, 3), (6, 1), (7, LINE_BYTES_MAX as u32 + 1), (9, 2)]);
    assert_eq!(
        batch.bad[2].words,
        Some(("fdt://h:1/a".to_owned(), "b".to_owned())),
        "a report can have a row for it"
    );
    assert!(batch.bad[2].why.contains("longhaul serve"));
    assert_eq!(batch.pairs, [local(1, "a", "b"), local(8, "a", "b"), local(10, "last", "one")]);
    let fault = Fault::from(batch.strict(Path::new("job")).unwrap_err());
    assert_eq!(fault.code, FaultCode::BadRequest);
    assert!(fault.detail.starts_with("job, line 2, column 5: "), "{fault}");
    assert_eq!(parse_job(b"a b\n").unwrap().strict(Path::new("job")).unwrap(), [local(1, "a", "b")]);
}

/// C.5 5 and 6.
#[test]
fn empty_and_unreadable_files_are_errors() {
    for empty in [&b""[..], b"\n\n", b"# nothing\n", b"   "] {
        assert!(matches!(parse_job(empty), Err(BatchError::Empty { .. })));
    }
    let directory = tempfile::tempdir().unwrap();
    let from = |path: &Path| read(path, Format::Copyjob, &any_url).unwrap_err();
    for path in [directory.path().join("missing"), directory.path().to_owned()] {
        let error = from(&path);
        assert!(matches!(error, BatchError::Unreadable { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    let file = directory.path().join("job");
    std::fs::write(&file, "a b\n").unwrap();
    assert_eq!(read(&file, Format::Copyjob, &any_url).unwrap().pairs, [local(1, "a", "b")]);
}

#[test]
fn size_is_bounded() {
    let many = "a b\n".repeat(PAIRS_MAX);
    assert_eq!(parse_job(many.as_bytes()).unwrap().pairs.len(), PAIRS_MAX);
    let fault = Fault::from(parse_job((many + "a b\n").as_bytes()).unwrap_err());
    assert_eq!(fault.code, FaultCode::TooLarge);
    // A line without an end does not exhaust memory.
    let endless = io::repeat(b'x').take(BATCH_BYTES_MAX + 10);
    let error = parse(BufReader::new(endless), Path::new("job"), Format::Copyjob, &any_url).unwrap_err();
    assert!(matches!(error, BatchError::TooLarge { .. }), "{error}");
}

#[test]
fn urls_are_checked_by_the_caller() {
    let check = |url: &str| if url.contains("wrong") { Err("no such port".to_owned()) } else { Ok(()) };
    let batch =
        parse(&b"a lh://wrong/x\nlh://right/x a\n"[..], Path::new("job"), Format::Copyjob, &check).unwrap();
    assert_eq!(batch.bad[0].to_string(), "line 1, column 3: no such port");
    assert_eq!(batch.pairs.len(), 1);
}

/// C.3: one transfer for each pair of hosts.
#[test]
fn pairs_are_grouped_by_their_ends() {
    let job = b"lh://s@h:1/a /x/a\nlh://s@h:2/b /x/b\nlh://s@h:1/c /y/c\nlh://s@h:1/d lh://t@i:1/d\n";
    let pairs = parse_job(job).unwrap().pairs;
    let groups = group(&pairs, |place| place.host_and_port().map(str::to_owned));
    let members: Vec<&[usize]> = groups.iter().map(|group| group.pairs.as_slice()).collect();
    assert_eq!(members, [&[0, 2][..], &[1], &[3]]);
    assert_eq!((groups[2].source.as_deref(), groups[2].target.as_deref()), (Some("h:1"), Some("i:1")));
    assert_eq!((groups[0].source.as_deref(), groups[0].target.as_deref()), (Some("h:1"), None));
}

fn place() -> impl Strategy<Value = EndpointSpec> {
    let text = "[^\0]{1,12}|[ \t\"\\\\#\n\ra:/@]{1,8}|lh://[a-z]{1,4}@[a-z]{1,4}:1/[a b\"]{0,4}|@[a b]{1,5}";
    text.prop_filter_map("no place", |text| EndpointSpec::parse(&text, &any_url).ok())
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(places in proptest::collection::vec((place(), place()), 1..6)) {
        let pairs: Vec<Pair> = places
            .into_iter()
            .zip(1..)
            .map(|((source, target), line)| Pair { line, source, target })
            .collect();
        for format in [Format::Copyjob, Format::FromFile] {
            let text = print(&pairs, format);
            let batch = parse(text.as_bytes(), Path::new("job"), format, &any_url).unwrap();
            prop_assert_eq!(&batch.bad, &[]);
            prop_assert_eq!(&batch.pairs, &pairs);
        }
    }

    #[test]
    fn no_bytes_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        text in "[ab\"\\\\ \t\n@:/#]{0,60}",
    ) {
        for format in [Format::Copyjob, Format::FromFile] {
            let _ = parse(bytes.as_slice(), Path::new("job"), format, &any_url);
            let _ = parse(text.as_bytes(), Path::new("job"), format, &any_url);
        }
    }
}
