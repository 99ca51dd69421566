//! A site whose files are brought by a program of its own, with the same bookkeeping: here `longhaul copy`,
//! which takes the same two files as fdtcp.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use longhaul_testbed::{Deployment, SiteOptions, binary};

const WITHIN: Duration = Duration::from_secs(180);

/// Notes how often it is called, and says of one file that it is there.
const MOVER: &str = "#!/bin/sh\necho call >> \"$1\"\n\"$2\" copy --copyjobfile \"$3\" --report \"$4\" \
    2>/dev/null\n\
                     status=$?\nsed -i 's/^\\(.*lies.* \\)[0-9] .*$/\\10 copied/' \"$4\"\nexit $status\n";

#[test]
fn a_program_of_the_site_brings_its_files() {
    let mut deployment = Deployment::new();
    let (mover, said) = (deployment.directory().join("mover"), deployment.directory().join("said"));
    fs::write(&mover, MOVER).unwrap();
    fs::set_permissions(&mover, PermissionsExt::from_mode(0o755)).unwrap();
    deployment.add_site(SiteOptions::new("alpha"));
    let alpha = deployment.storage("alpha");
    let mut options = SiteOptions::new("beta");
    options.storage_settings = format!(
        "[agent.storages.mover]\ncommand = [{mover:?}, {said:?}, {:?}, '{{copyjob}}', '{{report}}']\nfiles = \
            2\n\
         [[agent.storages.mover.sources]]\nstorage = 'alpha'\nurl = {alpha:?}\n",
        binary()
    );
    deployment.add_site(options);
    let beta = deployment.storage("beta");
    let files = ["plain", "two words", "quo\"te", "empty", "large"];
    for folder in ["run", "other"] {
        fs::create_dir(alpha.join(folder)).unwrap();
    }
    for file in files {
        let content = match file {
            "empty" => Vec::new(),
            "large" => (0..3_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect(),
            name => name.as_bytes().to_vec(),
        };
        fs::write(alpha.join("run").join(file), content).unwrap();
    }
    fs::write(alpha.join("other/lies"), b"content").unwrap();
    deployment.register("run", "alpha:run");
    deployment.register("other", "alpha:other");

    deployment.deliver("run", "beta", WITHIN.as_secs());
    for file in files {
        let name = format!("run/{file}");
        assert_eq!(fs::read(beta.join(&name)).unwrap(), fs::read(alpha.join(&name)).unwrap(), "{name}");
    }
    let calls = || fs::read_to_string(&said).unwrap_or_default().lines().count();
    assert!((3..=5).contains(&calls()), "{} calls for 5 files, at most 2 each", calls());
    let replicas = deployment.json(&["replica", "list", "run"]);
    assert!(replicas.to_string().contains("readback"), "{replicas}");

    // The source's copy goes, so that nothing can be brought; the mover says that it was.
    fs::remove_file(alpha.join("other/lies")).unwrap();
    deployment.json(&["subscribe", "other", "beta"]);
    let fault = deployment.until("the lie is told", WITHIN, || {
        let waiting = deployment.json(&["transfer", "list", "--target", "beta"]);
        let text = waiting.to_string();
        text.contains("E3008").then_some(text)
    });
    assert!(fault.contains("the mover reported other/lies as copied, but"), "{fault}");
    assert!(!beta.join("other/lies").exists());
    deployment.check();
}
