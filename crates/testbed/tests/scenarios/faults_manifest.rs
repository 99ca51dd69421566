//! Manifests that are wrong: the line is named, nothing is registered, and what is right goes in afterwards.

use std::fs;
use std::time::Duration;

use longhaul_api::routes;
use longhaul_testbed::{CommandOutput, Deployment, SiteOptions, tree};
use serde_json::json;

const GOOD: &str = r#"{"lfn":"good/one","size":9,"digests":["adler32:11e60398"]}"#;

/// Registers `lines` by a manifest in `dataset`.
fn register(deployment: &Deployment, dataset: &str, lines: &[u8], more: &[&str]) -> CommandOutput {
    let manifest = deployment.directory().join("manifest");
    fs::write(&manifest, lines).unwrap();
    let words = ["dataset", "register", dataset, "--manifest", manifest.to_str().unwrap()];
    deployment.longhaul(&[words.as_slice(), more].concat())
}

#[test]
fn a_wrong_line_is_named_and_nothing_is_registered() {
    let deployment = Deployment::new();
    let long_component =
        format!(r#"{{"lfn":"{}","size":1,"digests":["adler32:00000001"]}}"#, "x".repeat(256));
    let long_name = format!(r#"{{"lfn":"{}x","size":1,"digests":["adler32:00000001"]}}"#, "x/".repeat(520));
    let long_line =
        format!(r#"{{"lfn":"a","size":1,"digests":["adler32:00000001"],"block":"{}"}}"#, "b".repeat(20_000));
    for (line, part) in [
        (r#"{"lfn":"../up","size":1,"digests":["adler32:00000001"]}"#, ".."),
        (r#"{"lfn":"a/../b","size":1,"digests":["adler32:00000001"]}"#, ".."),
        (r#"{"lfn":"./a","size":1,"digests":["adler32:00000001"]}"#, "component ."),
        (r#"{"lfn":"/etc/passwd","size":1,"digests":["adler32:00000001"]}"#, "absolute"),
        (r#"{"lfn":"a//b","size":1,"digests":["adler32:00000001"]}"#, "empty component"),
        (r#"{"lfn":"a\u0000b","size":1,"digests":["adler32:00000001"]}"#, "NUL"),
        (r#"{"lfn":"","size":1,"digests":["adler32:00000001"]}"#, "empty"),
        (r#"{"lfn":"a","size":-1,"digests":["adler32:00000001"]}"#, "-1"),
        (r#"{"lfn":"a","size":1.5,"digests":["adler32:00000001"]}"#, "1.5"),
        (r#"{"lfn":"a","size":9223372036854775808,"digests":["adler32:00000001"]}"#, "9223372036854775808"),
        (r#"{"lfn":"a","size":1,"digests":[]}"#, "no digest"),
        (r#"{"lfn":"a","size":1}"#, "digests"),
        (r#"{"lfn":"a","size":1,"digests":["adler32:xyz"]}"#, "adler32"),
        (r#"{"lfn":"a","size":1,"digests":["rot13:00000001"]}"#, "rot13"),
        (r#"{"lfn":"a","size":1,"digests":["adler32:00000001"],"colour":"red"}"#, "colour"),
        (r#"{"lfn":"a","size":1,"digests":["adler32:00000001"],"block":"b#c"}"#, "#"),
        ("not json", "expected"),
        ("[1,2]", ""),
        ("", ""),
        (&long_component, "256"),
        (&long_name, "1024"),
        (&long_line, "longer than"),
    ] {
        let text =
            format!("{GOOD}\n{}\n{line}\n{}\n", GOOD.replace("one", "two"), GOOD.replace("one", "three"));
        let ran = register(&deployment, "wrong", text.as_bytes(), &[]);
        ran.fails(2, "E1005", &["line 3", part]);
    }
    // Two lines that contradict each other.
    for (right, wrong) in [("9,", "10,"), ("11e60398", "11e60399")] {
        let text = format!("{GOOD}\n{}\n", GOOD.replace(right, wrong));
        register(&deployment, "wrong", text.as_bytes(), &[]).fails(6, "E1003", &["line 2", "good/one"]);
    }
    // Bytes that are no text at all, and a file that ends within a line.
    register(&deployment, "wrong", b"{\"lfn\":\"\xff\xfe\",\"size\":1}\n", &[]).fails(
        2,
        "E1005",
        &["line 1"],
    );
    register(&deployment, "wrong", format!("{GOOD}\n{{\"lfn\":").as_bytes(), &[]).fails(
        2,
        "E1005",
        &["line 2"],
    );
    deployment.longhaul(&["dataset", "show", "wrong"]).fails(3, "E1002", &["wrong"]);

    // The last line needs no end; the same line twice is the same file.
    let done = register(&deployment, "wrong", format!("{GOOD}\n{GOOD}").as_bytes(), &["--json"]).ok().json();
    assert_eq!((&done["files_added"], &done["files_known"]), (&json!(1), &json!(1)), "{done}");
    // An LFN is unique in the catalog: another dataset cannot claim it for other bytes.
    let other = GOOD.replace("11e60398", "11e60399");
    register(&deployment, "other", other.as_bytes(), &[]).fails(6, "E1003", &["line 1", "good/one", "wrong"]);
    register(&deployment, "wrong", GOOD.as_bytes(), &["--at", "omega"]).fails(3, "E1002", &["omega"]);
    deployment.longhaul(&["dataset", "register", "x", "--manifest", "/nowhere"]).exits(3);
    deployment.check();
}

/// What a manifest claims to be somewhere is believed until somebody reads it.
#[test]
fn wrong_claims_are_found_when_the_file_is_read() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    let root = deployment.storage("alpha");
    for name in ["right", "size", "digest"] {
        fs::write(root.join(name), b"Wikipedia").unwrap();
    }
    let sworn = format!(r#"{{"lfn":"sworn","size":9,"digests":["sha256:{}"]}}"#, "0".repeat(64));
    let lines = [
        r#"{"lfn":"right","size":9,"digests":["adler32:11e60398"]}"#,
        r#"{"lfn":"size","size":10,"digests":["adler32:11e60398"]}"#,
        r#"{"lfn":"digest","size":9,"digests":["adler32:11e60398","crc32c:00000001"]}"#,
        r#"{"lfn":"absent","size":9,"digests":["adler32:11e60398"]}"#,
        &sworn,
    ];
    fs::write(root.join("sworn"), b"Wikipedia").unwrap();
    register(&deployment, "claims", lines.join("\n").as_bytes(), &["--at", "alpha"]).ok();
    deployment.json(&["subscribe", "claims", "beta"]);
    for (lfn, codes) in [
        ("size", &["E2004", "E2002"][..]),
        ("digest", &["E2041"]),
        ("absent", &["E2001"]),
        ("sworn", &["E2041"]),
    ] {
        let fault = deployment.until(&format!("the fault of {lfn}"), Duration::from_secs(60), || {
            let transfers = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("target", "beta")]);
            let fault = transfers.iter().find(|one| one["lfn"] == json!(lfn))?["fault"].clone();
            (!fault.is_null()).then_some(fault)
        });
        assert!(codes.contains(&fault["code"].as_str().unwrap()), "{lfn}: {fault}");
    }
    deployment.until("what is right has come", Duration::from_secs(60), || {
        (deployment.json(&["subscription", "list"])["items"][0]["files_present"] == json!(1)).then_some(())
    });
    let stored: Vec<Vec<u8>> = tree::stored(&deployment.storage("beta")).into_keys().collect();
    assert_eq!(stored, [b"right".to_vec()]);

    // A digest that does not follow from those of parts is compared where nothing else is known, or where
    // reading back is asked for.
    fs::write(root.join("strong"), b"Wikipedia").unwrap();
    let line =
        r#"{"lfn":"strong","size":9,"digests":["adler32:11e60398","md5:00000000000000000000000000000000"]}"#;
    register(&deployment, "strong", line.as_bytes(), &["--at", "alpha"]).ok();
    deployment.json(&["subscribe", "strong", "beta", "--verify", "readback"]);
    let fault = deployment.until("the fault of strong", Duration::from_secs(60), || {
        let transfers = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("dataset", "strong")]);
        transfers.first().map(|one| one["fault"].clone()).filter(|fault| !fault.is_null())
    });
    assert_eq!(fault["code"], json!("E2041"), "{fault}");
    assert!(!deployment.storage("beta").join("strong").exists());
    deployment.check();
}
