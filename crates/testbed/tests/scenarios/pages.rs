//! The pages in a real browser: at the widths of a desk and of a phone, in light and dark, with scripts and
//! without. Pictures of each are left in `target/screenshots`.

use std::time::Duration;

use longhaul_testbed::browser::{self, Browser, Page};
use longhaul_testbed::http::Api;
use longhaul_testbed::{Deployment, Random, SERVICE, ServiceOptions, SiteOptions, needs, tree};
use rustix::process::Signal;
use serde_json::json;

const WITHIN: Duration = Duration::from_secs(60);
const DESK: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (400, 800);

/// A deployment with something of everything to see: a campaign under way, one that is done, a damaged file,
/// a paused site.
fn busy_deployment() -> Deployment {
    let mut deployment = Deployment::with(ServiceOptions { pages: true, ..ServiceOptions::default() });
    for site in ["alpha", "beta", "gamma", "delta"] {
        let mut options = SiteOptions::new(site);
        if site == "gamma" {
            let file = deployment.directory().join("circuit.toml");
            let circuit =
                "provider = \"static\"\nsource = \"127.0.0.1\"\ntarget = \"127.0.0.1\"\nmbit = 1000\n";
            std::fs::write(&file, circuit).unwrap();
            options.settings =
                format!("[[agent.circuits]]\nfrom = \"alpha\"\nfile = {}\n{}", json!(file), options.settings);
        }
        deployment.add_site(options);
    }
    let root = deployment.storage("alpha");
    tree::make(&root.join("done"), 60, 2_000_000, &mut Random::new(23));
    tree::make(&root.join("under way"), 400, 60_000_000, &mut Random::new(24));
    tree::add_odd(&root);
    deployment.register("higgs/run6", "alpha:done");
    deployment.register("higgs/run7-aod", "alpha:under way");
    deployment.register("names/odd", "alpha:odd");
    deployment.deliver("higgs/run6", "beta", 60);
    // One byte is wrong at the only source.
    let damaged = root.join("odd/e\u{301}");
    let modified = damaged.metadata().unwrap().modified().unwrap();
    std::fs::write(&damaged, b"decomposeD").unwrap();
    std::fs::File::options().write(true).open(&damaged).unwrap().set_modified(modified).unwrap();
    deployment.json(&["subscribe", "names/odd", "gamma"]);
    deployment.until("the damage is a problem", WITHIN, || {
        deployment.json(&["problems"])["items"].as_array()?.first().map(|_| ())
    });
    deployment.json(&["site", "pause", "delta", "--reason", "new disks until noon"]);
    deployment.json(&["subscribe", "higgs/run6", "delta"]);
    deployment.json(&["site", "limit", "alpha", "--out", "3MB"]);
    for site in ["beta", "gamma"] {
        deployment.json(&["subscribe", "higgs/run7-aod", site]);
    }
    // Storages that nobody finds: the job waits, and says why.
    deployment.json(&["submit", "https://door.alpha.invalid/run7/f1", "https://door.beta.invalid/run7/f1"]);
    deployment.json(&["share", "set", "atlas", "3"]);
    deployment.json(&["share", "set", "atlas/production", "8"]);
    deployment.json(&["limit", "set", "link", "alpha:beta", "--active", "20", "--rate", "250MB"]);
    deployment.json(&["link", "decommission", "delta:gamma"]);
    deployment.json(&["circuit", "request", "alpha", "gamma", "--mbit", "400", "--for", "2h"]);
    deployment.until("some files have come", WITHIN, || {
        let list = deployment.json(&["transfer", "list", "--dataset", "higgs/run7-aod", "--state", "done"]);
        (!list["items"].as_array()?.is_empty()).then_some(())
    });
    deployment
}

/// Each page: a name for its picture, its path, and words that must be on it.
fn pages(deployment: &Deployment) -> Vec<(&'static str, String, Vec<&'static str>)> {
    let first = |words: &[&str]| deployment.json(words)["items"][0]["id"].as_str().unwrap().to_owned();
    let done = first(&["transfer", "list", "--dataset", "higgs/run6", "--state", "done"]);
    let failed = first(&["transfer", "list", "--dataset", "names/odd", "--source", "alpha"]);
    let under_way = first(&["subscription", "list", "--dataset", "higgs/run7-aod"]);
    let paused = first(&["subscription", "list", "--storage", "delta"]);
    let job = first(&["job", "list"]);
    let segment = |text: &str| longhaul_model::percent::encode_component(text);
    vec![
        ("overview", "/ui/".into(), vec!["higgs/run7-aod", "beta"]),
        ("datasets", "/ui/datasets".into(), vec!["higgs/run6", "names/odd"]),
        ("dataset", format!("/ui/datasets/{}", segment("higgs/run7-aod")), vec!["higgs/run7-aod", "alpha"]),
        ("dataset-left-out", format!("/ui/datasets/{}", segment("names/odd")), vec!["names/odd", "left out"]),
        ("subscriptions", "/ui/subscriptions".into(), vec!["higgs/run7-aod", "delta"]),
        ("subscription", format!("/ui/subscriptions/{under_way}"), vec!["higgs/run7-aod"]),
        (
            "subscription-waiting",
            format!("/ui/subscriptions/{paused}"),
            vec!["delta", "new disks until noon"],
        ),
        ("transfers", "/ui/transfers".into(), vec!["alpha", "done"]),
        ("transfers-filtered", "/ui/transfers?dataset=names%2Fodd&target=gamma".into(), vec!["gamma"]),
        ("transfer", format!("/ui/transfers/{done}"), vec!["alpha", "beta", "end-to-end"]),
        ("transfer-failed", format!("/ui/transfers/{failed}"), vec!["gamma"]),
        ("jobs", "/ui/jobs".into(), vec!["door.alpha.invalid", "door.beta.invalid"]),
        (
            "job",
            format!("/ui/jobs/{job}"),
            vec!["door.alpha.invalid", "priority 3 of 5", "of 1 file arrived"],
        ),
        ("sites", "/ui/sites".into(), vec!["alpha", "delta", "paused"]),
        ("site", "/ui/sites/delta".into(), vec!["delta", "new disks until noon"]),
        ("storages", "/ui/storages".into(), vec!["alpha", "delta", "healthy"]),
        ("storage", "/ui/storages/gamma".into(), vec!["gamma", "posix", "higgs/run7-aod", "free of"]),
        ("circuits", "/ui/circuits".into(), vec!["alpha:gamma", "What a plan would do now"]),
        (
            "steer",
            "/ui/steer".into(),
            vec!["production", "alpha:beta", "250 MB/s", "share of atlas/production: 8"],
        ),
        ("problems", "/ui/problems".into(), vec!["E2041", "alpha"]),
    ]
}

/// Readable words on the page, without what is hidden. Scripts of ours only look.
fn words(page: &mut Page<'_>) -> String {
    page.value("document.body.innerText").as_str().unwrap_or_default().to_owned()
}

/// Nothing to complain about, everything to be seen, and no scrolling to the side.
fn assert_good(page: &mut Page<'_>, name: &str, width: u32, expected: &[&str]) {
    let complaints = page.complaints();
    assert!(complaints.is_empty(), "{name} at {width}: {complaints:#?}");
    let text = words(page);
    for part in expected {
        assert!(text.contains(part), "{name} at {width}: {part:?} is not in:\n{text}");
    }
    let wide = page.value("document.documentElement.scrollWidth").as_u64().unwrap();
    let culprit = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > \
        innerWidth + 1)\
                   .slice(0, 5).map(e => e.tagName + '.' + e.className + ' ' + \
                   Math.round(e.getBoundingClientRect().right)).join(', ')";
    assert!(wide <= u64::from(width), "{name} at {width} is {wide} wide: {}", page.value(culprit));
    assert!(
        page.value("document.title").as_str().is_some_and(|title| !title.is_empty()),
        "{name} has no title"
    );
    assert_eq!(
        page.value("document.querySelectorAll('h1').length"),
        json!(1),
        "{name}: one heading says what it is"
    );
    assert_eq!(page.value("document.documentElement.lang"), json!("en"), "{name}");
    let unnamed = "[...document.querySelectorAll('button, a[href], input:not([type=hidden]), \
        select')].filter(e => \
                   !(e.innerText || e.value || e.ariaLabel || e.title || e.labels?.length)).map(e => \
                   e.outerHTML).join(' ')";
    assert_eq!(page.value(unnamed), json!(""), "{name}: a control without a name");
}

#[test]
fn pages_are_good_to_read() {
    let Some(program) = browser::find() else {
        return needs::not_run("the pages", "there is no Chromium: install it, or set LONGHAUL_CHROMIUM");
    };
    let deployment = busy_deployment();
    let base = format!("http://{}", deployment.page_address.unwrap());
    let mut browser = Browser::start(&program);
    let all = pages(&deployment);
    let pictures = browser::screenshots();

    for (width, height) in [DESK, PHONE] {
        let mut page = browser.page(width, height);
        page.open(&format!("{base}/ui/login"));
        assert_good(&mut page, "login", width, &["token"]);
        page.screenshot(&pictures.join(format!("login-{width}.png")));
        page.log_in(&deployment.api(), &base);
        for (name, path, expected) in &all {
            page.open(&format!("{base}{path}"));
            assert_good(&mut page, name, width, expected);
            page.screenshot(&pictures.join(format!("{name}-{width}.png")));
        }
        // In the dark the same words, light on dark.
        page.dark(true);
        page.open(&format!("{base}/ui/"));
        assert_good(&mut page, "overview in the dark", width, &["higgs/run7-aod"]);
        let background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, \
            3).map(Number).reduce((a, b) => a + b)";
        assert!(page.value(background).as_u64().unwrap() < 250, "dark is dark");
        page.screenshot(&pictures.join(format!("overview-dark-{width}.png")));
        page.open(&format!("{base}/ui/subscriptions/00000000"));
        assert!(words(&mut page).contains("E10"), "a wrong address is explained: {}", words(&mut page));
        page.screenshot(&pictures.join(format!("error-{width}.png")));
    }

    let mut page = browser.page(DESK.0, DESK.1);
    page.without_scripts();
    for (name, path, expected) in &all {
        page.open(&format!("{base}{path}"));
        assert_good(&mut page, &format!("{name} without scripts"), DESK.0, expected);
    }
    drop(page);
    println!("pictures: {}", pictures.display());
}

/// Waits in the page until the badge of a live page begins so.
fn until_badge(page: &mut Page<'_>, begin: &str) {
    let shown = format!(
        "new Promise((resolve, reject) => {{ \
        const badge = document.getElementById('live'); \
        const look = () => badge.textContent.startsWith({begin:?}) && resolve(true); \
        const all = {{ childList: true, subtree: true, characterData: true }}; \
        new MutationObserver(look).observe(badge, all); \
        look(); setTimeout(() => reject('the badge says: ' + badge.textContent), 50000); }})"
    );
    assert_eq!(page.promised(&shown), json!(true));
}

/// A page over a service that hangs says since when; one over a service that answers again goes on; and where
/// the session is over, the log-in is a page of its own.
#[test]
fn a_page_says_when_nobody_answers() {
    let Some(program) = browser::find() else {
        return needs::not_run("the pages", "there is no Chromium: install it, or set LONGHAUL_CHROMIUM");
    };
    let mut deployment = Deployment::with(ServiceOptions { pages: true, ..ServiceOptions::default() });
    let base = format!("http://{}", deployment.page_address.unwrap());
    let mut browser = Browser::start(&program);
    let mut page = browser.page(DESK.0, DESK.1);
    page.log_in(&deployment.api(), &base);
    page.open(&format!("{base}/ui/"));
    until_badge(&mut page, "live, ");
    deployment.process(SERVICE).signal(Signal::STOP);
    until_badge(&mut page, "no answer since ");
    deployment.process(SERVICE).signal(Signal::CONT);
    until_badge(&mut page, "live, ");
    page.value("window.loadedOnce = true");
    deployment.kill(SERVICE);
    until_badge(&mut page, "no answer since ");
    deployment.start(SERVICE);
    until_badge(&mut page, "live, ");
    // The session has outlived the restart: the page is still the same one.
    assert_eq!(page.value("window.loadedOnce"), json!(true));

    // Its cookie is gone: another page, of which nothing is drawn into this one.
    page.clear_cookies();
    let shown = page.until_shows("Log in");
    assert!(!shown.contains("Overview"), "{shown}");
}

/// An address that leads nowhere is answered for people.
#[test]
fn a_wrong_address_is_answered_by_a_page() {
    let deployment = Deployment::with(ServiceOptions { pages: true, ..ServiceOptions::default() });
    let api = Api::plain(deployment.page_address.unwrap());
    for path in ["/ui/nowhere", "/ui/datasets/x/y/z"] {
        let reply = api.send("GET", path, &[], b"").unwrap();
        let kind = reply.header("content-type").unwrap_or_default();
        assert!(reply.status == 404 && kind.starts_with("text/html"), "{path}: {} {kind}", reply.status);
        assert!(reply.text().contains(path), "{path}: {}", reply.text());
    }
}

/// A page shows a change without being loaded again; and a form works as a person uses it.
#[test]
fn pages_live_and_forms_work() {
    let Some(program) = browser::find() else {
        return needs::not_run("the pages", "there is no Chromium: install it, or set LONGHAUL_CHROMIUM");
    };
    let mut deployment = Deployment::with(ServiceOptions { pages: true, ..ServiceOptions::default() });
    deployment.add_site(SiteOptions::new("alpha"));
    let base = format!("http://{}", deployment.page_address.unwrap());
    let mut browser = Browser::start(&program);
    let mut page = browser.page(DESK.0, DESK.1);
    // A person types the token, and without it gets no further than the log-in.
    page.open(&format!("{base}/ui/sites/alpha"));
    assert!(words(&mut page).contains("Log in"), "{}", words(&mut page));
    page.value(&format!("document.querySelector('input[name=token]').value = {:?}", deployment.token));
    page.follow("document.querySelector('main form').requestSubmit()");
    assert!(words(&mut page).contains("Overview"), "{}", words(&mut page));
    page.open(&format!("{base}/ui/sites/alpha"));
    page.value("window.loadedOnce = true");
    deployment.json(&["site", "drain", "alpha", "--reason", "told while you look"]);
    let appears = "new Promise((resolve, reject) => { \
        const look = () => document.body.innerText.includes('told while you look') && \
        resolve(window.loadedOnce === true); \
        new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true, \
        characterData: true }); \
        look(); setTimeout(() => reject('nothing changed'), 50000); })";
    assert_eq!(page.promised(appears), json!(true), "the change came without loading the page again");

    // They press a button: the site goes on, and the page says so.
    page.follow(
        "[...document.querySelectorAll('button')].find(button => /resume/i.test(button.innerText)).click()",
    );
    let shown = words(&mut page);
    assert!(!shown.contains("draining") && shown.contains("open"), "{shown}");
    assert_eq!(deployment.json(&["site", "show", "alpha"])["state"], json!("open"));
    assert_eq!(page.complaints(), Vec::<String>::new());
    drop(page);

    // The same without scripts, for a subscription.
    deployment.add_site(SiteOptions::new("beta"));
    std::fs::write(deployment.storage("alpha").join("file"), b"bytes").unwrap();
    deployment.register("run7", "alpha");
    let mut page = browser.page(PHONE.0, PHONE.1);
    page.without_scripts();
    page.open(&format!("{base}/ui/datasets/run7"));
    page.follow(
        "[...document.querySelectorAll('button')].find(button => \
        /subscribe/i.test(button.innerText)).form.submit()",
    );
    let subscription = deployment.json(&["subscription", "list", "--storage", "beta"])["items"][0].clone();
    assert_eq!(subscription["dataset"], json!("run7"), "{}", words(&mut page));
    page.open(&format!("{base}/ui/subscriptions/{}", subscription["id"].as_str().unwrap()));
    page.follow(
        "[...document.querySelectorAll('button')].find(button => \
        /suspend|cancel/i.test(button.innerText)).form.submit()",
    );
    let state = deployment.json(&["subscription", "list", "--storage", "beta"])["items"][0]["state"].clone();
    assert!(matches!(state.as_str(), Some("suspended" | "cancelled")), "{state}: {}", words(&mut page));
    steers(&deployment, &mut page, &base);
}

/// Shares and limits are set from a page; what is wrong is told, and nothing has changed then.
fn steers(deployment: &Deployment, page: &mut Page<'_>, base: &str) {
    let mut fill = |action: &str, fields: &[(&str, &str)]| {
        page.open(&format!("{base}/ui/steer"));
        let form = format!("document.querySelector('form.filter[action=\"/ui/steer/{action}\"]')");
        for (name, value) in fields {
            page.value(&format!("{form}.elements[{name:?}].value = {value:?}"));
        }
        page.follow(&format!("{form}.submit()"));
        words(page)
    };
    let shown = fill("share", &[("community", "atlas"), ("weight", "3")]);
    assert!(shown.contains("share of atlas: 3") && shown.contains("75 %"), "{shown}");
    assert_eq!(deployment.json(&["share", "list"])["items"][0]["weight"], json!(3.0));
    let shown = fill("limit", &[("of", "into"), ("name", "beta"), ("active", "7"), ("rate", "1.5 MB/s")]);
    assert!(shown.contains("into storage beta") && shown.contains("1.50 MB/s"), "{shown}");
    // The limit of test transfers holds unasked.
    let set = json!([
        { "of": "into", "name": "beta", "active": 7, "bytes_per_s": 1_500_000 },
        { "of": "community", "name": "commissioning", "active": 64, "bytes_per_s": null }
    ]);
    assert_eq!(deployment.json(&["limit", "list"])["items"], set);
    for (name, rate, why) in [("nowhere", "", "nowhere"), ("beta", "fast", "\"fast\" is no size")] {
        let shown = fill("limit", &[("of", "into"), ("name", name), ("rate", rate)]);
        assert!(shown.contains(why), "{shown}");
    }
    assert_eq!(deployment.json(&["limit", "list"])["items"], set);
    let shown = fill("link", &[("act", "only"), ("source", "alpha"), ("target", "beta")]);
    assert!(shown.contains("alpha → beta") && shown.contains("Allow all"), "{shown}");
    assert_eq!(deployment.json(&["link", "list"])["open"], json!(false));
}
