//! Logins with a certificate of a grid's authority.

use longhaul_security::{ForeignServerTrust, foreign_client_tls_with_certificate};
use longhaul_testbed::foreign::ForeignAuthority;
use longhaul_testbed::http::Api;
use longhaul_testbed::needs;
use serde_json::json;

use crate::logins::{get, logins, post, session, visitor, whoami, with_settings};

#[test]
fn a_certificate_opens_a_session_where_that_is_set_up() {
    if !needs::programs("logins with certificates", &[("openssl", "version")]) {
        return;
    }
    let (authority, stranger) = (ForeignAuthority::new("grid"), ForeignAuthority::new("stranger"));
    let trust = format!("[service.fts]\ntrust_dir = {:?}\n", authority.ca_folder());
    let rules = "[[service.login.certificates]]\nsubject = \"/CN=anna\"\nrole = \"viewer\"\ncommunity \
        = \"higgs\"\n\
                 [[service.login.certificates]]\nsubject = \"/CN=root\"\nrole = \"admin\"\n";
    let deployment = with_settings(format!("{trust}{rules}"));
    let shows = |authority: &ForeignAuthority, name: &str| -> Api {
        let (certificate, key) = authority.issue(name);
        let tls =
            foreign_client_tls_with_certificate(ForeignServerTrust::Anyone, &certificate, &key).unwrap();
        visitor(&deployment).with_tls(tls)
    };
    let anna = shows(&authority, "anna");
    let page = get(&anna, "/ui/login", None).text();
    assert!(page.contains("/CN=anna") && page.contains("Log in with your certificate"), "{page}");
    let opened = session(&post(&anna, "/ui/login/certificate", &[], None));
    let me = whoami(&anna, &opened).unwrap();
    assert_eq!((&me["name"], &me["role"]), (&json!("/CN=anna"), &json!("viewer")));
    assert!(me["expires"].as_str().is_some());
    assert_eq!(get(&visitor(&deployment), "/api/v1/jobs", Some(&opened)).status, 200, "the cookie alone");
    let root = shows(&authority, "root");
    assert_eq!(
        whoami(&root, &session(&post(&root, "/ui/login/certificate", &[], None))).unwrap()["role"],
        json!("admin")
    );

    for (api, status, why) in [
        (shows(&authority, "bert"), 403, "no rule of this service"),
        (visitor(&deployment), 401, "showed no certificate"),
        (shows(&stranger, "anna"), 401, ""),
    ] {
        let reply = post(&api, "/ui/login/certificate", &[], None);
        assert_eq!(reply.status, status, "{}", reply.text());
        assert!(reply.text().contains(why) && reply.header("set-cookie").is_none(), "{}", reply.text());
    }
    let told = logins(&deployment);
    assert!(told[1].starts_with("somebody: login refused (certificate)"), "{told:?}");
    assert!(told[2].starts_with("/CN=bert: login refused (certificate)"), "{told:?}");
    assert_eq!(told.last().unwrap(), "/CN=anna: logged in with a certificate from 127.0.0.1");
    // Where nobody set it up there is no button, and no way.
    let closed = with_settings(trust);
    let (certificate, key) = authority.issue("anna");
    let tls = foreign_client_tls_with_certificate(ForeignServerTrust::Anyone, &certificate, &key).unwrap();
    let anna = visitor(&closed).with_tls(tls);
    assert!(!get(&anna, "/ui/login", None).text().contains("certificate"));
    assert_eq!(post(&anna, "/ui/login/certificate", &[], None).status, 403);
}
