use super::*;
use proptest::prelude::*;
use serde_json::json;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

fn rules() -> Rules {
    Rules { now: NOW, metadata_bytes: 1_024, auth_method: "certificate", names: UrlNames::default() }
}

fn file() -> Value {
    json!({ "sources": ["https://a:8443/x"], "destinations": ["davs://b/y"] })
}

fn with(changes: Value) -> Value {
    let mut file = file();
    for (key, value) in changes.as_object().unwrap() {
        file[key] = value.clone();
    }
    file
}

fn parse(files: Value, params: Value) -> Result<Submission, Refusal> {
    Submission::parse(&json!({ "files": files, "params": params }), &rules())
}

fn refused(files: Value, params: Value) -> (u16, String) {
    let refusal = parse(files, params).unwrap_err();
    (refusal.status, refusal.message)
}

#[test]
fn a_bare_submission_has_the_defaults() {
    let submission = Submission::parse(&json!({ "files": [file()] }), &rules()).unwrap();
    assert_eq!((submission.kind, submission.priority, submission.expires), (JobKind::Regular, 3, None));
    let parameters = &submission.parameters;
    assert_eq!((parameters.verify_checksum, parameters.overwrite_flag), ('n', None));
    assert_eq!(
        (parameters.bring_online, parameters.copy_pin_lifetime, parameters.archive_timeout),
        (-1, -1, -1)
    );
    assert_eq!(parameters.metadata(), json!({ "auth_method": "certificate" }));
    assert_eq!(parameters.internal(), None);
    let file = &submission.files[0];
    assert_eq!((file.source_se.as_str(), file.target_se.as_str()), ("https://a", "davs://b"));
    assert_eq!((file.checksum.as_str(), file.activity.as_str(), file.size), ("ADLER32", "default", None));
    assert_eq!((file.state, file.metadata.is_null()), (JobFileState::Submitted, true));
}

#[test]
fn what_rucio_sends_is_understood() {
    let body = json!({"files": [{"sources": ["davs://a:443/p/f"], "destinations": ["davs://b:443/p/f"],
        "metadata": {"request_id": "5b28", "md5": null, "adler32": "39811f66"}, "filesize": 50000,
        "checksum": "ADLER32:39811f66", "selection_strategy": "orderly", "activity": "User Subscriptions"}],
        "params": {"account": "root", "verify_checksum": "both", "copy_pin_lifetime": null,
            "bring_online": null,
        "job_metadata": {"issuer": "rucio", "multi_sources": false}, "overwrite": true,
        "overwrite_when_only_on_disk": false, "priority": 3, "s3alternate": true, "max_time_in_queue": 168}});
    let submission = Submission::parse(&body, &rules()).unwrap();
    assert_eq!(
        (submission.parameters.verify_checksum, submission.parameters.overwrite_flag),
        ('b', Some('Y'))
    );
    assert_eq!(submission.expires, Some(NOW + std::time::Duration::from_secs(168 * 3_600)));
    assert_eq!(submission.parameters.internal().as_deref(), Some("s3alternate"));
    assert_eq!(submission.files[0].size, Some(50_000));
}

#[test]
fn kinds_and_first_states() {
    let states = |submission: &Submission| submission.files.iter().map(|file| file.state).collect::<Vec<_>>();
    let two = with(json!({ "sources": ["https://a/x", "https://c/x"] }));
    let replicas = parse(json!([two]), json!({})).unwrap();
    assert_eq!((replicas.kind, replicas.files[1].index), (JobKind::Replicas, 0));
    assert_eq!(states(&replicas), [JobFileState::Submitted, JobFileState::NotUsed]);
    let hops =
        parse(json!([file(), file()]), json!({ "multihop": true, "reuse": "Y", "bring_online": 5 })).unwrap();
    assert_eq!(
        (hops.kind, states(&hops)),
        (JobKind::Hops, vec![JobFileState::Staging, JobFileState::NotUsed])
    );
    assert_eq!(parse(json!([file()]), json!({ "multihop": true })).unwrap().kind, JobKind::Hops);
    assert_eq!(parse(json!([file(), file()]), json!({ "reuse": "Y" })).unwrap().kind, JobKind::Reuse);
    assert_eq!(parse(json!([file(), file()]), json!({ "reuse": "N" })).unwrap().files[1].index, 1);
    let (_, text) = refused(json!([two, file()]), json!({}));
    assert_eq!(text, "Multiple replica jobs must only have one unique file");
    let (_, text) = refused(json!([two]), json!({ "multihop": true }));
    assert!(text.starts_with("Can not request multiple replica job together with multihop"), "{text}");
    let other = with(json!({ "sources": ["https://elsewhere/x"] }));
    assert!(
        refused(json!([file(), other]), json!({ "reuse": true })).1.contains("same source and destination")
    );
}

#[test]
fn refusals_say_what_fts_says() {
    let none = json!({});
    let text = |body: Value| Submission::parse(&body, &rules()).unwrap_err();
    assert_eq!(
        text(json!({ "delete": ["x"] })),
        Refusal::new(405, "Deletion jobs are no longer supported by FTS")
    );
    assert_eq!(text(json!({ "delete": null })).message, "No transfers operations specified");
    assert_eq!(text(json!({ "files": [] })).message, "No valid pairs available");
    assert_eq!(text(json!([])).message, "Expecting a dictionary");
    assert_eq!(refused(json!([{ "sources": [] }]), none.clone()).1, "Missing parameter: destinations");
    assert!(
        refused(json!([with(json!({ "scitag": 64 }))]), none.clone())
            .1
            .starts_with("Invalid SciTag value: 64")
    );
    assert!(refused(json!(["x"]), none.clone()).1.starts_with("Malformed request: "));
    assert!(
        refused(json!([with(json!({ "filesize": "much" }))]), none.clone())
            .1
            .starts_with("Malformed request: ")
    );
    let large = with(json!({ "metadata": { "x": "y".repeat(1_100) } }));
    assert!(refused(json!([large]), none.clone()).1.ends_with("metadata exceeds size limit of 1024"));
    let tokens = with(json!({ "source_tokens": ["a", "b"], "destination_tokens": ["c"] }));
    let wanted = "Length of source_tokens should be equal to the length of sources.";
    assert_eq!(refused(json!([tokens]), none).1, wanted);
    let of = |params: Value| refused(json!([file()]), params).1;
    assert_eq!(of(json!({ "overwrite_hop": true })), "'overwrite-hop' requires multihop job submission");
    let both = json!({ "overwrite": true, "overwrite_on_retry": true });
    assert_eq!(of(both), "Incompatible overwrite flags used at the same time");
    assert!(of(json!({ "overwrite_when_only_on_disk": true })).contains("requires 'archive-timeout'"));
    assert_eq!(
        of(json!({ "id_generator": "deterministic" })),
        "Need sid for deterministic job id generation"
    );
    let replicas =
        with(json!({ "sources": ["https://a/x", "https://c/x"], "selection_strategy": "fastest" }));
    assert_eq!(refused(json!([replicas]), json!({})).1, "fastest algorithm is not supported by Scheduler");
}

#[test]
fn loosely_typed_values_are_taken() {
    let params = json!({ "nostreams": "4", "buffer_size": "1048576", "timeout": 3600, "strict_copy": true,
        "disable_cleanup": true, "ipv4": true, "ipv6": true, "s3alternate": true, "priority": 9 });
    let submission = parse(json!([file()]), params).unwrap();
    let wanted = "nostreams:4,timeout:3600,buffersize:1048576,strict,disable-cleanup,ipv4,s3alternate";
    assert_eq!((submission.parameters.internal().as_deref(), submission.priority), (Some(wanted), 5));
    let expires = |value: Value| {
        let submission = parse(json!([file()]), json!({ "max_time_in_queue": value })).unwrap();
        submission.expires.map(|at| at.since(NOW).as_secs())
    };
    assert_eq!(
        [expires(json!(2)), expires(json!("90s")), expires(json!("2m"))],
        [Some(7_200), Some(90), Some(120)]
    );
    assert_eq!(
        [expires(json!("1d")), expires(json!("3")), expires(json!(0))],
        [Some(86_400), Some(10_800), None]
    );
    assert!(parse(json!([file()]), json!({ "max_time_in_queue": i64::MAX })).is_err());
    let mode = |value: Value, file: Value| {
        parse(json!([file]), json!({ "verify_checksum": value })).unwrap().parameters.verify_checksum
    };
    let valued = with(json!({ "checksum": "ADLER32:1" }));
    assert_eq!(
        [mode(json!(true), file()), mode(json!(false), file()), mode(json!(null), valued.clone())],
        ['b', 'n', 't']
    );
    assert_eq!([mode(json!("source"), file()), mode(json!("N"), valued)], ['s', 'n']);
    let label = parse(json!([with(json!({ "metadata": "m" }))]), json!({ "job_metadata": "j" })).unwrap();
    assert_eq!(label.files[0].metadata, json!({ "label": "m" }));
    assert_eq!(label.parameters.metadata(), json!({ "label": "j", "auth_method": "certificate" }));
}

#[test]
fn parameters_are_kept_as_json() {
    let parameters = parse(json!([file()]), json!({ "overwrite": true })).unwrap().parameters;
    let text = serde_json::to_string(&parameters).unwrap();
    assert_eq!(serde_json::from_str::<Parameters>(&text).unwrap(), parameters);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z:/0-9 ]{0,12}".prop_map(Value::from),
        Just(json!("https://a/x")),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        let key = prop::sample::select(vec![
            "files",
            "params",
            "sources",
            "destinations",
            "checksum",
            "filesize",
            "metadata",
            "scitag",
            "retry",
            "multihop",
            "reuse",
            "overwrite",
            "source_tokens",
            "max_time_in_queue",
            "verify_checksum",
            "delete",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Whatever is sent is refused as a client's fault or makes a job that can begin.
    #[test]
    fn no_submission_breaks_it(body in any_json(), files in any_json(), params in any_json()) {
        for body in [body, json!({ "files": [file(), files], "params": params })] {
            match Submission::parse(&body, &rules()) {
                Err(refusal) => prop_assert!((400..500).contains(&refusal.status)),
                Ok(submission) => {
                    prop_assert!(submission.files.iter().any(|file| file.state != JobFileState::NotUsed));
                    prop_assert!((1..=5).contains(&submission.priority));
                }
            }
        }
    }
}
