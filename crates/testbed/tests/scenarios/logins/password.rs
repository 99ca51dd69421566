//! Local accounts.

use longhaul_testbed::Deployment;
use serde_json::json;

use crate::logins::{
    PASSWORD, account, get, is_in_files, logins, post, session, visitor, whoami, with_settings,
};

fn log_in(deployment: &Deployment, name: &str, password: &str) -> longhaul_testbed::http::Reply {
    post(&visitor(deployment), "/ui/login/password", &[("name", name), ("password", password)], None)
}

#[test]
fn an_account_opens_a_session_until_it_is_disabled() {
    let deployment = with_settings(String::new());
    let api = visitor(&deployment);
    assert!(!get(&api, "/ui/login", None).text().contains("/ui/login/password"), "there is no account yet");
    let made = account(&deployment, &["add", "anna", "--community", "higgs"], PASSWORD);
    assert!(made.starts_with("0 ") && made.contains("anna (viewer of higgs) may log in"), "{made}");
    assert!(get(&api, "/ui/login", None).text().contains("/ui/login/password"));
    let again = account(&deployment, &["add", "anna"], PASSWORD);
    assert!(again.contains("already"), "{again}");
    let short = account(&deployment, &["add", "bert"], "too short");
    assert!(short.contains("9 characters: 15 or more"), "{short}");

    let reply = log_in(&deployment, " Anna ", PASSWORD);
    assert_eq!((reply.status, reply.header("location")), (303, Some("/ui/")), "{}", reply.text());
    let cookie = session(&reply);
    let me = whoami(&api, &cookie).unwrap();
    assert_eq!((&me["name"], &me["role"]), (&json!("anna"), &json!("viewer")));
    let page = get(&api, "/ui/", Some(&cookie)).expect(200).text();
    assert!(page.contains("anna") && page.contains("Log out"), "{page}");
    // A viewer who works for a community sees its jobs, and nothing of administrators.
    assert_eq!(get(&api, "/api/v1/jobs", Some(&cookie)).status, 200);
    assert_eq!(get(&api, "/api/v1/accounts", Some(&cookie)).status, 403);

    // Out again: only with the token of the session's own pages.
    let (_, rest) = page.split_once("name=\"form_token\" value=\"").unwrap();
    let token = rest.split('"').next().unwrap();
    assert_eq!(post(&api, "/ui/logout", &[("form_token", "guessed")], Some(&cookie)).status, 403);
    assert!(whoami(&api, &cookie).is_some());
    let out = post(&api, "/ui/logout", &[("form_token", token)], Some(&cookie));
    assert_eq!((out.status, out.header("location")), (303, Some("/ui/login")));
    assert!(whoami(&api, &cookie).is_none());

    // Whatever an administrator changes ends what is open; other sessions go on.
    let session_of = |password: &str| session(&log_in(&deployment, "anna", password));
    account(&deployment, &["add", "bert", "--role", "admin"], PASSWORD);
    let bert = session(&log_in(&deployment, "bert", PASSWORD));
    let mut open = session_of(PASSWORD);
    for (words, password) in [
        (&["disable", "anna"][..], None),
        (&["enable", "anna"], Some(PASSWORD)),
        (&["set", "anna", "--role", "admin", "--no-community"], Some(PASSWORD)),
    ] {
        deployment.json(&[&["account"], words].concat());
        assert!(whoami(&api, &open).is_none(), "{words:?}");
        match password {
            Some(password) => open = session_of(password),
            None => assert_eq!(log_in(&deployment, "anna", PASSWORD).status, 401),
        }
    }
    assert_eq!(whoami(&api, &open).unwrap()["role"], json!("admin"));
    let new = "another sentence to remember";
    assert!(account(&deployment, &["password", "anna"], new).starts_with("0 "));
    assert!(whoami(&api, &open).is_none());
    assert_eq!(log_in(&deployment, "anna", PASSWORD).status, 401);
    open = session_of(new);
    deployment.longhaul(&["account", "remove", "anna"]).ok();
    assert!(whoami(&api, &open).is_none() && whoami(&api, &bert).is_some());
    assert_eq!(log_in(&deployment, "anna", new).status, 401);
    let list = deployment.json(&["account", "list"]);
    assert_eq!((list["items"].as_array().unwrap().len(), &list["items"][0]["name"]), (1, &json!("bert")));

    let told = logins(&deployment);
    assert_eq!(told[0], "somebody: login refused (password) from 127.0.0.1: no such account");
    assert_eq!(told[1], "anna: logged in with a password from 127.0.0.1");
    assert!(
        told.iter()
            .any(|line| line == "anna: login refused (password) from 127.0.0.1: the account is disabled")
    );
    let changes = deployment.json(&["audit", "--of", "changes"])["items"].to_string();
    assert!(changes.contains("account anna removed") && !changes.contains("logged in"), "{changes}");
    deployment.check();
}

/// Whoever guesses learns nothing, is slowed down, and what they guess is kept nowhere.
#[test]
fn guesses_are_limited_and_answered_alike() {
    let deployment = with_settings(String::new());
    account(&deployment, &["add", "anna"], PASSWORD);
    account(&deployment, &["add", "disabled"], PASSWORD);
    deployment.json(&["account", "disable", "disabled"]);
    // As somebody types a password where the name belongs.
    let answers: Vec<(u16, String)> = [
        ("anna", "a wrong guess of a password"),
        ("nobody", PASSWORD),
        ("disabled", PASSWORD),
        (PASSWORD, PASSWORD),
        ("", ""),
        (&"x".repeat(10_000), &"y".repeat(10_000)),
        ("anna' or 1=1 --", "\u{0}\u{ffff}"),
    ]
    .into_iter()
    .map(|(name, password)| {
        let reply = log_in(&deployment, name, password);
        (reply.status, reply.text())
    })
    .collect();
    assert_eq!(answers[0].0, 401);
    assert!(answers[0].1.contains("the name or the password is wrong"));
    for answer in &answers {
        assert_eq!(answer, &answers[0], "the same for everybody");
    }
    // Many at once are as many: at most those that are free get an answer.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let guess =
            |number: usize| log_in(&deployment, "anna", &format!("guess {number} of a long password")).status;
        let threads: Vec<_> = (0..16).map(|number| scope.spawn(move || guess(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Four are left of five; where the machine is slow, a few more after their waits.
    let looked_at = statuses.iter().filter(|status| **status == 401).count();
    assert!((4..9).contains(&looked_at), "{statuses:?}");
    assert!(statuses.iter().all(|status| [401, 429].contains(status)), "{statuses:?}");
    // The same of a name that nobody has: in a dozen tries at the most, for each makes the next wait longer.
    for name in ["anna", "absent"] {
        let mut tries = (0..12).map(|_| log_in(&deployment, name, "guess of a long password"));
        let slowed = tries.find(|reply| reply.status == 429);
        let said = slowed.unwrap_or_else(|| panic!("{name} is not slowed down")).text();
        assert!(said.contains("the next one may be made in"), "{said}");
    }
    // Whoever has a token, and everything else, goes on.
    assert_eq!(get(&deployment.api(), "/api/v1/status", None).status, 200);
    deployment.json(&["status"]);

    let told = logins(&deployment).join("\n");
    assert!(told.contains("anna: login refused (password) from 127.0.0.1: wrong password"), "{told}");
    let log = deployment.log("service");
    for secret in [PASSWORD, "a wrong guess", "of a long password"] {
        assert!(!told.contains(secret) && log.lines_with(&[secret]).is_empty(), "{secret}");
        assert!(!is_in_files(&deployment.service_state(), secret), "{secret}");
    }
    assert!(is_in_files(&deployment.service_state(), "$argon2id$v=19$m=19456,t=2,p=1$"));
}

/// A form of another site, and what is no form of ours.
#[test]
fn other_sites_log_nobody_in() {
    let deployment = with_settings(String::new());
    account(&deployment, &["add", "anna"], PASSWORD);
    let api = visitor(&deployment);
    let body = crate::logins::form(&[("name", "anna"), ("password", PASSWORD)]);
    let send = |origin: &str| {
        let headers = [("content-type", "application/x-www-form-urlencoded"), ("origin", origin)];
        api.send("POST", "/ui/login/password", &headers, body.as_bytes()).unwrap()
    };
    for origin in ["https://evil.example", "null", "https://127.0.0.1:1"] {
        let reply = send(origin);
        assert_eq!(reply.status, 403, "{origin}");
        assert!(reply.header("set-cookie").is_none());
    }
    assert_eq!(send(&format!("https://{}", api.address)).status, 303);
    // In an address they would stay in histories and logs.
    let target = format!("/ui/login/password?{body}");
    assert_eq!(get(&api, &target, None).header("location"), Some("/ui/login"));
    let json = [("content-type", "application/json")];
    assert_eq!(api.send("POST", "/ui/login/password", &json, b"{}").unwrap().status, 415);
}
