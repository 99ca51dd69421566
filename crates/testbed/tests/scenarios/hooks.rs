//! A site's own commands around what a real agent fetches and deletes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use longhaul_testbed::{Deployment, SiteOptions};
use serde_json::json;

const WITHIN: Duration = Duration::from_secs(180);

/// Notes its arguments, has `there` and does not want `vetoed`.
const HOOK: &str = "#!/bin/sh\nsaid=$1\nshift\necho \"$*\" >> \"$said\"\ncase \"$1 $2\" in\n\
                    'pre '*/there) exit 0 ;;\n'pre '*/vetoed) exit 86 ;;\n'pre '*) exit 1 ;;\nesac\nexit 0\n";

#[test]
fn a_site_has_its_say_before_and_after_and_of_deletions() {
    let mut deployment = Deployment::new();
    let (hook, said) = (deployment.directory().join("hook"), deployment.directory().join("said"));
    fs::write(&hook, HOOK).unwrap();
    fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    deployment.add_site(SiteOptions::new("alpha"));
    let mut options = SiteOptions::new("beta");
    options.storage_settings = format!(
        "[agent.storages.hooks]\nvalidate = [{hook:?}, {said:?}]\ndelete = [{hook:?}, {said:?}, \"gone\"]\n"
    );
    deployment.add_site(options);
    let (alpha, beta) = (deployment.storage("alpha"), deployment.storage("beta"));
    for (folder, files) in [("run", ["plain", "there"].as_slice()), ("other", &["vetoed"])] {
        fs::create_dir(alpha.join(folder)).unwrap();
        files.iter().for_each(|file| fs::write(alpha.join(folder).join(file), b"content").unwrap());
        deployment.register(folder, &format!("alpha:{folder}"));
    }

    deployment.deliver("run", "beta", WITHIN.as_secs());
    assert_eq!(fs::read(beta.join("run/plain")).unwrap(), b"content");
    assert!(!beta.join("run/there").exists(), "the site has it elsewhere");

    deployment.json(&["subscribe", "other", "beta"]);
    let refused = deployment.until("the site refuses the file", WITHIN, || {
        let failed = deployment.json(&["transfer", "list", "--target", "beta", "--state", "failed"]);
        failed["items"].as_array()?.first().cloned()
    });
    let shown = deployment.longhaul(&["transfer", "show", refused["id"].as_str().unwrap()]).ok().stdout;
    assert!(shown.contains("E3007") && shown.contains("does not want other/vetoed"), "{shown}");

    let subscriptions = deployment.json(&["subscription", "list", "--dataset", "run"]);
    deployment.json(&["subscription", "cancel", subscriptions["items"][0]["id"].as_str().unwrap()]);
    let done = deployment.json(&["replica", "delete", "run", "beta", "--yes"]);
    assert_eq!((&done["files_done"], &done["files_bad"]), (&json!(2), &json!(0)), "{done}");
    assert!(!beta.join("run/plain").exists());

    let text = fs::read_to_string(&said).unwrap();
    let mut calls: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    calls.sort();
    let path = |file: &str| beta.join(file).to_str().unwrap().to_owned();
    let heads: Vec<[&str; 2]> = calls.iter().map(|call| [call[0], call[1]]).collect();
    let expected = [
        ["0", &*path("run/plain")],
        ["gone", &*path("run/plain")],
        ["gone", &*path("run/there")],
        ["pre", &*path("other/vetoed")],
        ["pre", &*path("run/plain")],
        ["pre", &*path("run/there")],
    ];
    assert_eq!(heads, expected);
    for call in calls.iter().filter(|call| call[0] != "gone") {
        assert_eq!((call[2], call[4]), ("7", "n"), "{call:?}");
        assert!(call[3].contains("adler32:"), "{call:?}");
    }
    deployment.check();
}
