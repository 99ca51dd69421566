//! Logins at an issuer.

use std::fs;
use std::path::Path;
use std::time::Instant;

use longhaul_security::{ForeignServerTrust, foreign_client_tls, write_private};
use longhaul_testbed::foreign::ForeignAuthority;
use longhaul_testbed::http::{Api, Reply};
use longhaul_testbed::{Deployment, needs};
use serde_json::json;

use crate::logins::issuer::{CLIENT, Issuer, SECRET, Signing, now_s, pairs};
use crate::logins::{cookie, get, is_in_files, logins, session, visitor, whoami, with_settings};

/// A deployment whose people log in at an issuer, and a visitor.
struct World {
    issuer: Issuer,
    authority: ForeignAuthority,
    deployment: Deployment,
    api: Api,
    _folder: tempfile::TempDir,
}

/// A login that is under way: what the browser has.
struct Away {
    /// Where it is to come back to.
    back: String,
    cookie: String,
}

pub fn settings(issuer: &Issuer, authority: &ForeignAuthority, folder: &Path, more: &str) -> String {
    let secret = folder.join("secret");
    write_private(&secret, SECRET.as_bytes()).unwrap();
    format!(
        "[service.login]\nauthorities = {:?}\n{more}[[service.login.openid]]\nname = \"lab\"\ntitle = \"the \
            Lab\"\nissuer = {:?}\n\
         client_id = {CLIENT:?}\nclient_secret_file = {secret:?}\nscopes = [\"openid\", \"profile\"]\nperson \
         = \"preferred_username\"\n\
         rules = [{{ value = \"operators\", role = \"admin\" }}, {{ value = \"shift\", role = \"viewer\", \
         community = \"higgs\" }}]\n",
        authority.ca_file(),
        issuer.url
    )
}

impl World {
    fn new(more: &str) -> Option<World> {
        if !needs::programs("logins at an issuer", &[("openssl", "version")]) {
            return None;
        }
        let (authority, folder) = (ForeignAuthority::new("lab"), tempfile::tempdir().unwrap());
        let issuer = Issuer::start(&authority, "127.0.0.1");
        let deployment = with_settings(settings(&issuer, &authority, folder.path(), more));
        let api = visitor(&deployment);
        Some(World { issuer, authority, deployment, api, _folder: folder })
    }

    /// Presses the button, and logs in over there.
    fn go(&self) -> Away {
        let begun = get(&self.api, "/ui/login/openid/lab", None).expect(303);
        let (cookie, attributes) = cookie(&begun, "longhaul_login");
        assert_eq!(attributes, "Path=/ui/login/openid; Max-Age=600; HttpOnly; SameSite=Lax; Secure");
        let there = begun.header("location").unwrap();
        let target = there.strip_prefix(&format!("https://{}", self.issuer.address)).unwrap();
        let (_, query) = target.split_once('?').unwrap();
        let redirect = format!("https://{}/ui/login/openid/lab/callback", self.api.address);
        assert_eq!(pairs(query)["redirect_uri"], redirect);
        let sent_back = get(&self.theirs(), target, None).expect(302);
        let back =
            sent_back.header("location").unwrap().strip_prefix(&format!("https://{}", self.api.address));
        Away { back: back.unwrap().to_owned(), cookie }
    }

    /// As the browser goes there.
    fn theirs(&self) -> Api {
        let tls = foreign_client_tls(ForeignServerTrust::Authorities(self.authority.ca_pem())).unwrap();
        let mut api = self.api.with_tls(tls);
        api.address = self.issuer.address;
        api
    }

    fn return_to(&self, target: &str, cookie: Option<&str>) -> Reply {
        get(&self.api, target, cookie)
    }

    /// Goes and comes back; the issuer lies somewhere between.
    fn log_in(&self) -> Reply {
        let away = self.go();
        self.return_to(&away.back, Some(&away.cookie))
    }

    #[track_caller]
    fn refused(&self, reply: &Reply, status: u16, why: &str) {
        let page = reply.text();
        assert_eq!(reply.status, status, "{page}");
        assert!(page.contains(why) && page.contains("Log in"), "{why:?} is not in:\n{page}");
        let set = reply.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        assert!(set.clone().all(|(_, value)| !value.contains("longhaul_session")), "{:?}", reply.headers);
        assert!(
            set.clone().any(|(_, value)| value.starts_with("longhaul_login=; ")),
            "the old one is cleared"
        );
        let told = logins(&self.deployment).remove(0);
        assert!(told.contains("login refused (openid)") && told.contains(why), "{told}");
    }
}

#[test]
fn somebody_logs_in_at_an_issuer_and_is_what_its_rules_say() {
    let Some(world) = World::new("") else { return };
    let (api, deployment) = (&world.api, &world.deployment);
    let page = get(api, "/ui/login", None).text();
    let button = format!("href=\"https://{}/ui/login/openid/lab\"", api.address);
    assert!(page.contains(&button) && page.contains("Log in with the Lab"), "{page}");

    let away = world.go();
    let reply = world.return_to(&away.back, Some(&away.cookie));
    assert!(reply.status == 200 && reply.text().contains("http-equiv=\"refresh\" content=\"0; url=/ui/\""));
    let opened = session(&reply);
    let me = whoami(api, &opened).unwrap();
    assert_eq!((&me["name"], &me["role"]), (&json!("anna (lab)"), &json!("viewer")));
    assert_eq!(get(api, "/ui/", Some(&opened)).status, 200);
    // By the community of the rule they may submit jobs; what administrators do is not theirs.
    assert_eq!(get(api, "/api/v1/jobs", Some(&opened)).status, 200);
    assert_eq!(get(api, "/api/v1/accounts", Some(&opened)).status, 403);
    let exchanges = world.issuer.state.lock().unwrap().exchanges.len();
    // The way back is gone once it was used: by reloading, or by whoever found the address.
    world.refused(&world.return_to(&away.back, Some(&away.cookie)), 401, "this login did not begin here");
    assert_eq!(world.issuer.state.lock().unwrap().exchanges.len(), exchanges, "the issuer is not asked");

    world.issuer.lie(|state| state.claims = json!({ "groups": ["operators", "shift"], "aud": [CLIENT] }));
    let admin = session(&world.log_in());
    assert_eq!(whoami(api, &admin).unwrap()["role"], json!("admin"));
    assert_eq!(get(api, "/api/v1/accounts", Some(&admin)).status, 200);
    assert!(whoami(api, &opened).is_some(), "another session of hers goes on");
    let told = logins(deployment);
    assert_eq!(told[0], "anna (lab): logged in with OpenID (lab) from 127.0.0.1");
    let log = deployment.log("service");
    for secret in [SECRET, "code-1", "opaque"] {
        assert!(log.lines_with(&[secret]).is_empty(), "{secret}");
        assert!(!is_in_files(&deployment.service_state(), secret), "{secret}");
    }
}

#[test]
fn answers_that_are_forged_or_for_others_let_nobody_in() {
    let Some(world) = World::new("") else { return };
    let exchanges = || world.issuer.state.lock().unwrap().exchanges.len();
    // What the browser brings.
    let away = world.go();
    let other = world.go();
    let forged = away.back.replace("&state=", "&state=0");
    world.refused(&world.return_to(&forged, Some(&away.cookie)), 401, "did not begin here");
    world.refused(&world.return_to(&away.back, None), 401, "did not send the cookie");
    world.refused(&world.return_to(&away.back, Some(&away.cookie)), 401, "did not begin here");
    let away = world.go();
    // Somebody's own login, put into the browser of another.
    world.refused(&world.return_to(&away.back, Some(&other.cookie)), 401, "another browser");
    let twice = format!("{}&state=x", world.go().back);
    world.refused(&world.return_to(&twice, Some(&away.cookie)), 401, "did not begin here");
    assert_eq!(exchanges(), 0, "none of these came as far as the issuer");
    let away = world.go();
    let wrong = away.back.replace("code=code", "code=guess");
    world.refused(&world.return_to(&wrong, Some(&away.cookie)), 401, "invalid_grant");
    let away = world.go();
    let denied = away.back.replace("code=", "error=access_denied%3Cu%3E&x=");
    let reply = world.return_to(&denied, Some(&away.cookie));
    assert!(!reply.text().contains("<u>"), "{}", reply.text());
    world.refused(&reply, 401, "access_denied");
    let away = world.go();
    let mixed = format!("{}&iss=https%3A%2F%2Felsewhere.example", away.back);
    world.refused(&world.return_to(&mixed, Some(&away.cookie)), 401, "(iss)");

    // What the issuer says.
    let lie = |how: &dyn Fn(&mut crate::logins::issuer::State), status: u16, why: &str| {
        world.issuer.lie(how);
        // One address has twenty refusals free; another test looks at what comes then.
        let reply = world.log_in();
        world.refused(&reply, status, why);
        world.issuer.be_honest();
    };
    let now = now_s();
    for (claims, status, why) in [
        (json!({ "nonce": "of another login" }), 401, "another login"),
        (json!({ "aud": "another client" }), 401, "not for this client"),
        (json!({ "aud": [CLIENT, "another client"] }), 401, "another client"),
        (json!({ "exp": now - 1 }), 401, "expired"),
        (json!({ "iss": "https://elsewhere.example" }), 401, "another issuer"),
        (json!({ "groups": ["visitors"] }), 403, "no rule of this service"),
        (json!({ "preferred_username": null }), 401, "no name of at most"),
    ] {
        lie(&|state| state.claims = claims.clone(), status, why);
    }
    lie(&|state| state.signing = Signing::None, 401, "are not accepted: RS256");
    lie(&|state| state.signing = Signing::OtherKey, 401, "signature is not by");
    assert!(session(&world.log_in()).contains("lhc_"), "and the truth is still believed");
}

/// What an issuer's document says leads neither into this network nor anywhere by redirects, and is looked at
/// in time.
#[test]
fn issuers_lead_nowhere_else() {
    let Some(world) = World::new("") else { return };
    let inside = format!("https://localhost:{}/token", world.issuer.address.port());
    world.issuer.lie(|state| state.document = json!({ "token_endpoint": inside }));
    let reply = world.log_in();
    world.refused(&reply, 502, "a loopback address, which is not allowed here");
    assert!(world.issuer.state.lock().unwrap().exchanges.is_empty());
    drop(world);

    let Some(world) = World::new("") else { return };
    let redirecting = format!("https://{}/elsewhere", world.issuer.address);
    world.issuer.lie(|state| state.document = json!({ "token_endpoint": redirecting }));
    world.refused(&world.log_in(), 401, "307");
    assert!(world.issuer.state.lock().unwrap().exchanges.is_empty(), "a redirect is not followed");
    drop(world);

    for (name, value) in
        [("authorization_endpoint", "http://127.0.0.1/authorize"), ("issuer", "https://elsewhere.example")]
    {
        let Some(world) = World::new("") else { return };
        world.issuer.lie(|state| state.document = json!({ name: value }));
        let reply = get(&world.api, "/ui/login/openid/lab", None);
        assert_eq!(reply.status, 502, "{}", reply.text());
        assert!(reply.text().contains("discovery document") && reply.header("location").is_none());
    }
    let Some(world) = World::new("allow_networks = [\"127.0.0.0/8\", \"::1/128\"]\n") else { return };
    let inside = format!("https://localhost:{}/token", world.issuer.address.port());
    world.issuer.lie(|state| state.document = json!({ "token_endpoint": inside }));
    assert!(session(&world.log_in()).contains("lhc_"), "an administrator may allow it");
    assert_eq!(get(&world.api, "/ui/login/openid/other", None).status, 404);
}

#[test]
fn what_comes_back_from_issuers_is_limited_for_each_address() {
    let Some(world) = World::new("") else { return };
    let begun = Instant::now();
    let statuses: Vec<u16> = (0..30)
        .map(|_| world.return_to("/ui/login/openid/lab/callback?state=x&code=y", None).status)
        .collect();
    let took_s = begun.elapsed().as_secs_f64();
    // Twenty at once; then one after each wait, which doubles, and one for each that is forgotten, in half a
    // minute.
    let most = 21.0 + (took_s + 1.0).log2() + took_s / 30.0;
    let looked_at = statuses.iter().filter(|status| **status == 401).count();
    assert!(looked_at >= 20 && looked_at as f64 <= most, "{took_s} s: {statuses:?}");
    assert!(statuses.iter().all(|status| [401, 429].contains(status)), "{statuses:?}");
    assert_eq!(logins(&world.deployment).len(), looked_at, "and so are the records of it");
}

/// What is wrong with the settings is told at the start, by its name.
#[test]
fn a_secret_that_others_may_read_stops_the_start() {
    if !needs::programs("logins at an issuer", &[("openssl", "version")]) {
        return;
    }
    let (authority, folder) = (ForeignAuthority::new("lab"), tempfile::tempdir().unwrap());
    let issuer = Issuer::start(&authority, "127.0.0.1");
    let text = settings(&issuer, &authority, folder.path(), "");
    let secret = folder.path().join("secret");
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let deployment = Deployment::set_up(longhaul_testbed::ServiceOptions {
        settings: text,
        ..longhaul_testbed::ServiceOptions::default()
    });
    let config = deployment.directory().join("service/longhaul.toml");
    let ran = deployment.longhaul(&["service", "run", "--config", config.to_str().unwrap()]);
    let said = format!("{ran:?}");
    assert!(said.contains("service.login.openid") && said.contains("chmod 600"), "{said}");
}
