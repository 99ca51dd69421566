//! The same in a real browser, with scripts and without: what cookies survive the way to another site and
//! back, only it knows.

use longhaul_testbed::browser::{self, Browser, Page};
use longhaul_testbed::foreign::ForeignAuthority;
use longhaul_testbed::needs;
use serde_json::json;

use crate::logins::issuer::Issuer;
use crate::logins::{PASSWORD, account, logins, with_settings};

fn words(page: &mut Page<'_>) -> String {
    page.value("document.body.innerText").as_str().unwrap_or_default().to_owned()
}

/// A picture of it, which is no wider than the screen.
fn screenshot(page: &mut Page<'_>, name: &str, width: u32) {
    page.screenshot(&browser::screenshots().join(format!("{name}-{width}.png")));
    let wide = page.value("document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(wide <= u64::from(width), "{name} is {wide} wide, the screen {width}");
}

/// Presses what has this label, and looks at the page that shows these words then.
fn press(page: &mut Page<'_>, label: &str, words: &str) -> String {
    let label = json!(label);
    page.press(&format!(
        "[...document.querySelectorAll('button, a')].find(e => e.innerText.includes({label}))"
    ));
    page.until_shows(words)
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
    let deployment = with_settings(crate::logins::openid::settings(&issuer, &authority, folder.path(), ""));
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
        screenshot(&mut page, "login-ways", width);
        let log_in = |page: &mut Page<'_>, password: &str, words: &str| {
            page.value("document.querySelector('input[name=name]').value = 'anna'");
            page.value(&format!(
                "document.querySelector('input[name=password]').value = {}",
                json!(password)
            ));
            press(page, "Log in", words)
        };
        log_in(&mut page, "a wrong guess of a password", "the name or the password is wrong");
        screenshot(&mut page, "login-refused", width);
        // The browser tells a script of the page about the status, and nothing else.
        page.complaints();
        let inside = log_in(&mut page, PASSWORD, "Overview");
        assert!(inside.contains("anna"), "{inside}");
        screenshot(&mut page, "logged-in", width);
        assert_eq!(page.complaints(), Vec::<String>::new());
        press(&mut page, "Log out", "With your name and password");
        page.open(&format!("{base}/ui/sites"));
        // The session has ended.
        page.until_shows("With your name and password");

        // To the issuer, which is another site, and back.
        let there = press(&mut page, "Log in with the Lab", "Go on");
        assert!(!there.contains("Longhaul"), "{there}");
        let inside = press(&mut page, "Go on", "Overview");
        assert!(inside.contains("anna (lab)"), "{inside}");
        assert_eq!(page.complaints(), Vec::<String>::new());
        press(&mut page, "Log out", "With your name and password");
    }
    let told = logins(&deployment).join("\n");
    assert_eq!(told.matches("anna (lab): logged in with OpenID (lab)").count(), 2, "{told}");
}
