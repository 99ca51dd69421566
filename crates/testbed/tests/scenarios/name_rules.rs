//! Name rules of a site as PhEDEx had them: imported, tried, used by agents, changed with their version; and
//! for jobs' URLs.

use std::fs;
use std::time::Duration;

use longhaul_testbed::foreign::{ForeignAuthority, Nginx, NginxRules};
use longhaul_testbed::{Deployment, ServiceOptions, SiteOptions, needs};

const WITHIN: Duration = Duration::from_secs(60);

const CATALOGUE: &str = r#"<storage-mapping>
  <lfn-to-pfn protocol="disk" is-custodial="y" path-match="/+(.*)" result="/pool/keep/$1" space-token="KEEP"/>
  <lfn-to-pfn protocol="disk" path-match="/+(.*)" result="/pool/temp/$1"/>
  <lfn-to-pfn protocol="https" destination-match="^T[12]_XX_" chain="disk"
              path-match="(.*)" result="https://door1.example.org:1094$1"/>
  <pfn-to-lfn protocol="disk" path-match="^/pool/(?:keep|temp)/(.*)" result="/$1"/>
  <pfn-to-lfn protocol="https" chain="disk" path-match="https://[^/]+(/.*)" result="$1"/>
</storage-mapping>
"#;

#[test]
fn a_catalogue_of_phedex_names_the_files_of_a_site() {
    let mut deployment = Deployment::new();
    let xml = deployment.directory().join("storage.xml");
    fs::write(&xml, CATALOGUE).unwrap();
    let import = |file: &std::path::Path, more: &[&str]| {
        let file = file.to_str().unwrap().to_owned();
        let words = ["storage", "rules", "import", &file, "--storage", "beta", "--root", "/pool"];
        deployment.longhaul(&[&words, more].concat())
    };
    let written = import(&xml, &["--protocol", "disk", "--test", "run/f1"]).ok().stdout;
    import(&xml, &[]).fails(2, "E1000", &["no rules of protocol direct", "known are disk, https"]);
    let broken = deployment.directory().join("broken.xml");
    fs::write(&broken, CATALOGUE.replace("(?:keep|temp)", "(?!keep)")).unwrap();
    import(&broken, &["--protocol", "disk"]).fails(2, "E1000", &["line 6: pfn-to-lfn of disk: path_match"]);

    // What is written goes into the configuration as it is, but for where the disk of this test lies.
    let settings = written.split_once("root = \"/pool\"\n").unwrap().1.to_owned();
    let with = |settings: String| {
        let mut options = SiteOptions::new("beta");
        (options.own_rules, options.storage_settings) = (true, settings);
        options
    };
    deployment.add_site(SiteOptions::new("alpha"));
    deployment.add_site(with(settings.clone()));
    let (alpha, beta) = (deployment.storage("alpha"), deployment.storage("beta"));
    fs::create_dir(alpha.join("run")).unwrap();
    fs::write(alpha.join("run/f1"), b"content").unwrap();
    deployment.register("run", "alpha:run");
    deployment.deliver("run", "beta", WITHIN.as_secs());
    assert_eq!(fs::read(beta.join("temp/run/f1")).unwrap(), b"content");

    // The other way: a scan finds names by the rules back, and files where nothing would be put are none of
    // them.
    for (place, file) in [("temp/more", "f2"), ("keep/more", "f3")] {
        fs::create_dir_all(beta.join(place)).unwrap();
        fs::write(beta.join(place).join(file), b"more").unwrap();
    }
    deployment.register("more", "beta:temp/more");
    deployment.longhaul(&["dataset", "register", "kept", "--scan", "beta:keep/more"]);
    let left = deployment.json(&["dataset", "show", "kept"]).to_string();
    assert!(left.contains("name-rules") && left.contains("whose place is beta:temp/more/f3"), "{left}");
    deployment.deliver("more", "alpha", WITHIN.as_secs());
    assert_eq!(fs::read(alpha.join("more/f2")).unwrap(), b"more");
    assert!(!alpha.join("more/f3").exists());

    // Tried by hand, on the site's host.
    let config = deployment.directory().join("beta/longhaul.toml");
    let config = config.to_str().unwrap().to_owned();
    let check = |more: &[&str]| {
        deployment.longhaul(&[&["storage", "rules", "check", "--config", &config, "run/f1"], more].concat())
    };
    let tried = check(&[]).ok();
    assert!(tried.stdout.contains("storage/temp/run/f1"), "{tried}");
    let tried = check(&["--protocol", "https", "--target", "T1_XX_A", "--custodial", "--json"]).ok().json();
    assert_eq!(tried[0]["pfn"], "https://door1.example.org:1094/pool/keep/run/f1");
    assert_eq!(tried[0]["space_token"], "KEEP");
    let tried = check(&["--protocol", "https", "--target", "T3_YY_A"]).exits(1);
    assert!(tried.stdout.contains("no rule of protocol https fits"), "{tried}");

    // Other rules need another version; until then the service hears nothing of them.
    let moved = settings.replace("/pool/temp/$1", "/pool/else/$1").replace("keep|temp", "keep|temp|else");
    assert_ne!(moved, settings);
    deployment.configure("beta", with(moved.clone()));
    deployment.start("beta");
    deployment.until("the rules are refused", WITHIN, || {
        deployment.log("beta").tail().contains("set rules_version to 3").then_some(())
    });
    deployment.configure("beta", with(moved.replace("rules_version = 2", "rules_version = 3")));
    deployment.start("beta");
    deployment.until_connected("beta");
    fs::create_dir(alpha.join("last")).unwrap();
    fs::write(alpha.join("last/f4"), b"last").unwrap();
    deployment.register("last", "alpha:last");
    deployment.deliver("last", "beta", WITHIN.as_secs());
    assert_eq!(fs::read(beta.join("else/last/f4")).unwrap(), b"last");
}

#[test]
fn foreign_schemes_of_jobs_are_mapped_or_refused() {
    if !needs::programs("name rules of jobs", &[("nginx", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let (from, to) =
        (Nginx::start(&authority, NginxRules::default()), Nginx::start(&authority, NginxRules::default()));
    from.put("f1", b"content of f1");
    let door = from.url("");
    let rule = |direction: &str, protocol: &str, path: &str, result: &str| {
        format!(
            "[[service.jobs.names.rules]]\ndirection = '{direction}'\nprotocol = '{protocol}'\npath_match = \
                '{path}'\nresult = '{result}'\n"
        )
    };
    let rules = [
        rule("pfn-to-lfn", "srm", "^srm://[^/]+/srm\\?SFN=(/.*)", "$1"),
        rule("lfn-to-pfn", "https", "^/+", &door),
        rule("pfn-to-lfn", "https", &format!("^{door}"), "/"),
    ];
    let settings = format!(
        "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{:?}]\n\
         [[service.jobs.names]]\nhosts = [\"srm.example.org\"]\n{}",
        authority.ca_file(),
        rules.concat()
    );
    let deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    let srm = "srm://srm.example.org:8446/srm?SFN=/f1";
    deployment.longhaul(&["submit", srm, &to.url("copy"), "--wait"]).ok();
    assert_eq!(fs::read(to.data().join("copy")).unwrap(), b"content of f1");
    let refused = |url: &str, parts: &[&str]| {
        deployment.longhaul(&["submit", url, &to.url("other")]).fails(2, "E1000", parts);
    };
    let known = "known are https, davs, http, dav, s3s, s3";
    refused(
        "root://srm.example.org//f1",
        &["root is no scheme that is served", known, "no rule from PFN to LFN fits"],
    );
    refused("gsiftp://other.example.org/f1", &["gsiftp is no scheme that is served", known]);
}
