//! The same in a real browser, with scripts and without: what cookies survive the way to another site and back, only it knows.

use std::path::PathBuf;

use longhaul_testbed::browser::{self, Browser, Page};
use longhaul_testbed::foreign::ForeignAuthority;
use longhaul_testbed::needs;
use serde_json::json;

use crate::issuer::Issuer;
use crate::{PASSWORD, account, logins, with_settings};

/// Beside those of the other pages.
fn picture(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(3).unwrap().join("screenshots").join(name)
}

fn words(page: &mut Page<'_>) -> String {
    page.value("document.body.innerText").as_str().unwrap_or_default().to_owned()
}

/// A picture of it, which is no wider than the screen.
fn look(page: &mut Page<'_>, name: &str, width: u32) {
    page.screenshot(&picture(&format!("{name}-{width}.png")));
    let wide = page.value("document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(wide <= u64::from(width), "{name} is {wide} wide, the screen {width}");
}

fn press(page: &mut Page<'_>, label: &str) -> String {
    let find = format!(
        "[...document.querySelectorAll('button, a')].find(e => e.innerText.includes({}))",
        json!(label)
    );
    // Said first, done then: the page must still be there to say that the button was.
    page.follow(&format!("(button => {{ button.type; setTimeout(() => button.click()); }})({find})"));
    words(page)
}

#[test]
fn people_log_in_with_a_browser() {
    let Some(program) = browser::find() else {
        return needs::not_run(
            "logins in a browser",
            "there is no Chromium: install it, or set LONGHAUL_CHROMIUM",
        );
    };
    if !needs::programs("logins in a browser", &[("openssl", "version")]) {
        return;
    }
    let (authority, folder) = (ForeignAuthority::new("lab"), tempfile::tempdir().unwrap());
    // Another site than the service's, which is at 127.0.0.1.
    let issuer = Issuer::start(&authority, "localhost");
    issuer.lie(|state| state.asks = true);
    let deployment = with_settings(crate::openid::settings(&issuer, &authority, folder.path(), ""));
    account(&deployment, &["add", "anna"], PASSWORD);
    let base = format!("https://{}", deployment.service_address);
    let mut browser = Browser::start(&program);
    for (width, scripts) in [(1280, true), (400, false)] {
        let mut page = browser.page(width, 900);
        page.trusting();
        if !scripts {
            page.without_scripts();
        }
        page.open(&format!("{base}/ui/sites"));
        let shown = words(&mut page);
        assert!(
            shown.contains("With your name and password") && shown.contains("Log in with the Lab"),
            "{shown}"
        );
        assert!(!shown.contains("certificate"), "{shown}");
        look(&mut page, "login-ways", width);
        let log_in = |page: &mut Page<'_>, password: &str| {
            page.value("document.querySelector('input[name=name]').value = 'anna'");
            page.value(&format!(
                "document.querySelector('input[name=password]').value = {}",
                json!(password)
            ));
            press(page, "Log in")
        };
        let refused = log_in(&mut page, "a wrong guess of a password");
        assert!(refused.contains("the name or the password is wrong"), "{refused}");
        look(&mut page, "login-refused", width);
        // The browser tells a script of the page about the status, and nothing else.
        page.complaints();
        let inside = log_in(&mut page, PASSWORD);
        assert!(inside.contains("Overview") && inside.contains("anna"), "{inside}");
        look(&mut page, "logged-in", width);
        assert_eq!(page.complaints(), Vec::<String>::new());
        let out = press(&mut page, "Log out");
        assert!(out.contains("With your name and password"), "{out}");
        page.open(&format!("{base}/ui/sites"));
        assert!(words(&mut page).contains("With your name and password"), "the session has ended");

        // To the issuer, which is another site, and back.
        let there = press(&mut page, "Log in with the Lab");
        assert!(there.contains("Go on") && !there.contains("Longhaul"), "{there}");
        press(&mut page, "Go on");
        page.until_at(&format!("{base}/ui/"));
        let inside = words(&mut page);
        assert!(inside.contains("Overview") && inside.contains("anna (lab)"), "{inside}");
        assert_eq!(page.complaints(), Vec::<String>::new());
        press(&mut page, "Log out");
    }
    let told = logins(&deployment).join("\n");
    assert_eq!(told.matches("anna (lab): logged in with OpenID (lab)").count(), 2, "{told}");
}
