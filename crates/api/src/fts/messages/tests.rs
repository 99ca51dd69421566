use longhaul_model::job::{JobFileState as F, JobKind, JobState};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SUBMITTED: Timestamp = Timestamp(1_767_225_600_123_456); // 2026-01-01T00:00:00.123456Z
const JOB: &str = "d4482976-e57e-11f1-aea5-02fc00000001";

fn after(ms: i64) -> Timestamp {
    Timestamp(SUBMITTED.as_micros() + ms * 1_000)
}

/// A file that has just been submitted.
fn change() -> FileChange {
    FileChange {
        at: SUBMITTED,
        from: None,
        to: F::Submitted,
        job: JOB.parse().unwrap(),
        job_kind: JobKind::Regular,
        job_state: JobState::Submitted,
        job_files: 1,
        vo: "atlas".into(),
        user: "/CN=alice".into(),
        submitted: SUBMITTED,
        parameters: Parameters {
            job_metadata: json!({ "issuer": "rucio" }),
            auth_method: "oauth2".into(),
            retry: 2,
            ..Parameters::default()
        },
        file: 7,
        index: 0,
        source: "davs://a.example.org:8443/d/f1".into(),
        target: "https://b.example.org/d/f1".into(),
        final_target: String::new(),
        activity: "T0 Export".into(),
        size: Some(1_000),
        initial: F::Submitted,
        file_metadata: json!({ "request_id": "r1" }),
        staging_metadata: Value::Null,
        archive_metadata: Value::Null,
        scitag: Some(66),
        retries: 0,
        reason: String::new(),
        recoverable: false,
        began: None,
        started: None,
        ended: None,
        bytes: None,
        mode: None,
        staging: (None, None),
        archiving: (None, None),
    }
}

fn begun() -> FileChange {
    let (began, started) = (Some(after(1_000)), Some(after(1_500)));
    let (at, job_state) = (after(1_500), JobState::Active);
    FileChange { at, from: Some(F::Ready), to: F::Active, began, started, job_state, ..change() }
}

fn arrived() -> FileChange {
    FileChange {
        at: after(3_500),
        from: Some(F::Active),
        to: F::Finished,
        job_state: JobState::Finished,
        ended: Some(after(3_500)),
        bytes: Some(1_000),
        mode: Some("pull".into()),
        ..begun()
    }
}

fn ended(to: F, reason: &str) -> FileChange {
    FileChange {
        to,
        reason: reason.into(),
        bytes: None,
        mode: None,
        job_state: JobState::Failed,
        ..arrived()
    }
}

fn sayer() -> Sayer {
    Sayer { endpnt: "fts.example.org".into(), ..Sayer::default() }
}

fn said(change: &FileChange) -> Vec<(MessageKind, Value)> {
    let parse = |message: Message| {
        let body = message.body.strip_suffix(' ').expect("one space").to_owned();
        assert!(!body.ends_with(' '));
        assert_eq!(message.vo.is_some(), message.kind == MessageKind::State);
        (message.kind, serde_json::from_str(&body).expect("JSON"))
    };
    change.messages(&sayer()).into_iter().map(parse).collect()
}

fn complete(change: &FileChange) -> Value {
    let found = said(change).into_iter().find(|(kind, _)| *kind == MessageKind::Complete);
    found.expect("an attempt has ended").1
}

#[test]
fn a_submission_is_told_by_its_state() {
    let told = said(&change());
    assert_eq!(told.len(), 1);
    let expected = json!({
        "endpnt": "fts.example.org", "user_dn": "",
        "src_url": "davs://a.example.org:8443/d/f1", "dst_url": "https://b.example.org/d/f1",
        "vo_name": "atlas", "source_se": "davs://a.example.org", "dest_se": "https://b.example.org",
        "job_id": JOB, "file_id": 7, "job_state": "SUBMITTED", "file_state": "SUBMITTED",
        "retry_counter": 0, "retry_max": 2, "user_filesize": 1000,
        "timestamp": 1_767_225_600_123_i64, "submit_time": 1_767_225_600_123_i64,
        "staging_start": 0, "staging_finished": 0, "staging": false,
        "archiving_start": 0, "archiving_finished": 0, "archiving": false, "reason": "",
        "job_metadata": { "issuer": "rucio", "auth_method": "oauth2" },
        "file_metadata": { "request_id": "r1" }, "staging_metadata": null, "archive_metadata": null,
    });
    assert_eq!(told[0], (MessageKind::State, expected));
}

#[test]
fn a_minute_of_a_pair_is_told() {
    let minute = PairMinute {
        at: Timestamp(1_767_225_660_000_000),
        source: "davs://a.example.org".into(),
        target: "https://b.example.org".into(),
        active: 4,
        more: -2,
        done: 3,
        failed: 1,
        rate: 40.0,
        smoothed_rate: 12.5,
        duration_mean: 7.5,
        size_mean: 800.0,
        size_deviation: 2.0,
        waiting: Some((17, 5)),
    };
    let sayer = Sayer { endpnt: "fts.example.org".into(), fqdn: Some("n1".into()), users: false };
    let message = minute.message(&sayer);
    assert_eq!((message.kind, message.vo), (MessageKind::QueueState, None));
    assert!(message.body.ends_with("} "));
    let expected = json!({
        "source_se": "davs://a.example.org", "dest_se": "https://b.example.org",
        "throughput": 40.0, "throughput_ema": 12.5, "duration_avg": 7.5,
        "filesize_avg": 800.0, "filesize_stddev": 2.0, "success_rate": 75.0,
        "retry_count": 5, "active_count": 4, "submitted_count": 17, "connections": 4, "diff": -2,
        "rationale": "4 at once, 3 done, 1 failed; each start is decided by itself",
        "timestamp": 1_767_225_660_000_i64, "endpnt": "fts.example.org", "fqdn": "n1",
    });
    assert_eq!(serde_json::from_str::<Value>(&message.body).unwrap(), expected);
    let idle = PairMinute { done: 0, failed: 0, waiting: None, ..minute };
    let said: Value = serde_json::from_str(&idle.message(&sayer).body).unwrap();
    assert_eq!((&said["success_rate"], &said["submitted_count"]), (&json!(100.0), &Value::Null));
}

#[test]
fn a_start_is_told() {
    let told = said(&begun());
    let expected = json!({
        "transfer_id": format!("2026-01-01-0000__a.example.org__b.example.org__7__{JOB}"),
        "job_id": JOB, "file_id": 7, "endpnt": "fts.example.org", "timestamp": 1_767_225_601_623_i64,
            "vo": "atlas",
        "src_url": "davs://a.example.org:8443/d/f1", "dst_url": "https://b.example.org/d/f1",
        "src_hostname": "a.example.org", "dst_hostname": "b.example.org", "src_site_name": "",
            "dst_site_name": "",
        "t_channel": "davs://a.example.org__https://b.example.org", "src_srm_v": "", "dest_srm_v": "",
        "srm_space_token_src": "", "srm_space_token_dst": "", "user_dn": "", "is_archiving": false,
        "file_metadata": { "request_id": "r1" }, "job_metadata": { "issuer": "rucio",
            "auth_method": "oauth2" },
    });
    assert_eq!(told[0], (MessageKind::Start, expected));
    assert_eq!((told.len(), told[1].0, &told[1].1["file_state"]), (2, MessageKind::State, &json!("ACTIVE")));
    assert_eq!(told[1].1.get("staging_metadata"), None, "only the submission tells it");
}

#[test]
fn a_good_end_is_told() {
    let expected: Value = serde_json::from_str(include_str!("complete.json")).unwrap();
    assert_eq!(complete(&arrived()), expected);
}

#[test]
fn each_attempt_ends_once_and_says_what_failed() {
    let timed_out = "TRANSFER [110] it said \"no\"\nfor 5 µs";
    let again = FileChange { retries: 1, recoverable: true, ..ended(F::Submitted, timed_out) };
    let told = complete(&again);
    let of = |names: &[&str]| names.iter().map(|name| told[*name].clone()).collect::<Vec<_>>();
    let shown =
        of(&["t_final_transfer_state", "t_final_transfer_state_flag", "t__error_message", "t_error_code"]);
    assert_eq!(json!(shown), json!(["Error", 0, "it said  no  for 5 ?s", 110]));
    let shown = of(&["tr_error_scope", "t_failure_phase", "tr_error_category", "is_recoverable", "retry"]);
    assert_eq!(json!(shown), json!(["TRANSFER", "TRANSFER", "CONNECTION_TIMED_OUT", true, 0]));
    assert_eq!((&told["throughput"], &told["transfer_type"]), (&json!(-1.0), &json!("")));

    // Taken back at a restart: it is repeated, and has no end.
    let released = FileChange { began: None, ended: None, ..ended(F::Submitted, "") };
    assert_eq!(said(&released).len(), 1);
    // Cancelled while it waited: nothing had begun.
    let waited = FileChange { from: Some(F::Submitted), ..ended(F::Canceled, "Job canceled by the user") };
    assert_eq!(said(&waited).len(), 1);
    let stopped = complete(&ended(F::Canceled, "Job canceled by the user"));
    assert_eq!(stopped["t_final_transfer_state"], "Abort");
    assert_eq!(stopped["t__error_message"], "Job canceled by the user");
    assert_eq!(
        (&stopped["t_error_code"], &stopped["tr_error_scope"]),
        (&json!(125), &json!("GENERAL_FAILURE"))
    );
}

#[test]
fn phases_are_named() {
    for (reason, phase) in [
        ("SOURCE [2] gone", "TRANSFER_PREPARATION"),
        ("DESTINATION [17] Destination file exists and overwrite is not enabled", "TRANSFER_PREPARATION"),
        (
            "DESTINATION [5] User-defined and destination ADLER32 do not match (a != b)",
            "TRANSFER_FINALIZATION",
        ),
        ("DESTINATION [22] Source and destination file size mismatch", "TRANSFER_FINALIZATION"),
        ("DESTINATION [28] full", "TRANSFER"),
        ("GENERAL_FAILURE [70] x", "TRANSFER_SERVICE"),
        ("nobody knows", "TRANSFER_SERVICE"),
    ] {
        assert_eq!(complete(&ended(F::Failed, reason))["t_failure_phase"], phase, "{reason}");
    }
}

#[test]
fn hops_and_replicas_tell_their_jobs_state() {
    let hop = FileChange {
        job_kind: JobKind::Hops,
        job_files: 2,
        job_state: JobState::Active,
        final_target: "https://c.example.org/d/f1".into(),
        ..arrived()
    };
    let first = complete(&hop);
    assert_eq!((&first["job_state"], &first["transfer_lasthop"]), (&json!("ACTIVE"), &json!(false)));
    assert_eq!(first["final_destination"], "https://c.example.org/d/f1");
    let last = complete(&FileChange { index: 1, job_state: JobState::Finished, ..hop });
    assert_eq!((&last["job_state"], &last["transfer_lasthop"]), (&json!("FINISHED"), &json!(true)));
    assert_eq!(last["job_multihop"], true);
    let replica =
        FileChange { job_kind: JobKind::Replicas, job_state: JobState::Active, ..ended(F::Failed, "x") };
    let failed = complete(&replica);
    assert_eq!((&failed["job_state"], &failed["job_m_replica"]), (&json!("ACTIVE"), &json!(true)));
}

#[test]
fn users_and_machines_are_named_where_that_is_wished() {
    let named = Sayer { fqdn: Some("fts1.example.org".into()), users: true, ..sayer() };
    for message in arrived().messages(&named) {
        let body: Value = serde_json::from_str(&message.body).unwrap();
        assert_eq!((&body["user_dn"], &body["fqdn"]), (&json!("/CN=alice"), &json!("fts1.example.org")));
    }
}

proptest! {
    /// Whatever stands in names and reasons: JSON, one space, no line and no NUL, which would end a frame.
    #[test]
    fn any_text_makes_one_frame(text in "\\PC{0,60}|[\u{0}-\u{1f}\"\\\\]{0,20}", to in 0..F::ALL.len()) {
        let change = FileChange {
            source: text.clone(),
            target: text.clone(),
            reason: text.clone(),
            user: text.clone(),
            to: F::ALL[to],
            ..arrived()
        };
        for message in change.messages(&Sayer { endpnt: text.clone(), fqdn: Some(text.clone()),
            users: true }) {
            let one_frame = message.body.ends_with("} ") && !message.body.contains(['\0', '\n', '\r']);
            prop_assert!(one_frame);
            let body: Value = serde_json::from_str(&message.body).unwrap();
            prop_assert_eq!(&body["endpnt"], &json!(text));
            if let Some(error) = body.get("t__error_message") {
                let shown = error.as_str().unwrap();
                prop_assert!(shown.chars().all(|c| c.is_ascii_graphic()
                    || c == ' ') && !shown.contains(['"', '\'']));
            }
        }
    }
}
