//! Faults of identity: a token used twice, a second service or agent on one state directory, a copied one, a
//! wiped one, an agent of another deployment, a clock an hour off or stepped. Each gets a clear error, and
//! the campaign under way loses nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use longhaul_api::{AGENT_PROTOCOL, routes};
use longhaul_model::Timestamp;
use longhaul_security::{AGENT_NAME, Credentials, agent_client_tls, new_signing_request};
use longhaul_testbed::clock::SteppedClock;
use longhaul_testbed::hostile::{Wire, hello};
use longhaul_testbed::tree::{self, Content};
use longhaul_testbed::{Deployment, Random, SERVICE, ServiceOptions, SiteOptions, clock, free_port, needs};
use longhaul_wire::Frame;
use rustls::ClientConnection;
use serde_json::json;

const WITHIN: Duration = Duration::from_secs(60);
/// The service's clock as agents have it may be off by as much: they learn it over the network.
const CLOCK_GRACE: Duration = Duration::from_secs(60);

/// Alpha and beta, and a campaign between them that takes some seconds.
fn campaign() -> (Deployment, BTreeMap<Vec<u8>, Content>) {
    campaign_with(ServiceOptions::default(), "3MB")
}

/// At so many bytes a second.
fn campaign_with(options: ServiceOptions, rate: &str) -> (Deployment, BTreeMap<Vec<u8>, Content>) {
    let mut deployment = Deployment::with(options);
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), 200, 20_000_000, &mut Random::new(61));
    let files = tree::survey(&deployment.storage("alpha")).files;
    deployment.register("run7", "alpha");
    deployment.json(&["site", "limit", "beta", "--in", rate]);
    deployment.json(&["subscribe", "run7", "beta"]);
    deployment.until("some files have come", WITHIN, || (present(&deployment) > 10).then_some(()));
    (deployment, files)
}

fn present(deployment: &Deployment) -> u64 {
    let list = deployment.json(&["subscription", "list"]);
    list["items"][0]["files_present"].as_u64().unwrap()
}

/// The rest comes quickly; all is there, each file recorded once.
fn assert_ends_well(deployment: &Deployment, files: &BTreeMap<Vec<u8>, Content>) {
    deployment.json(&["site", "limit", "beta", "--in", "none"]);
    deployment.deliver("run7", "beta", 120);
    tree::assert_same(files, &deployment.storage("beta"), "");
    let done = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("target", "beta"), ("state", "done")]);
    assert_eq!(done.len(), files.len(), "each file is recorded once");
    deployment.check();
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn a_join_token_opens_once_and_for_a_while() {
    let mut deployment = Deployment::new();
    let added = deployment.json(&["site", "add", "alpha"]);
    let token = added["join_token"].as_str().unwrap();
    for name in ["first", "second"] {
        deployment.configure(name, SiteOptions::new("alpha"));
    }
    deployment.join("first", token).ok();
    deployment.join("second", token).fails(4, "E4003", &["site add"]);
    assert!(!deployment.agent_state("second").join("identity.json").exists());
    // One directory is one agent: its token is not spent on another.
    let another = deployment.json(&["site", "add", "alpha", "--another-agent"])["join_token"]
        .as_str()
        .unwrap()
        .to_owned();
    deployment.join("first", &another).fails(6, "E1003", &["alpha"]);
    deployment.join("second", &another).ok();

    // A token that lives for a second is expired when another one is, that was made before.
    let brief = |seconds: u64| {
        let reply = deployment.api().call(
            &routes::SITE_JOIN_TOKEN,
            &["alpha"],
            &[],
            &json!({ "token_seconds": seconds }),
        );
        reply.unwrap().expect(201).json()
    };
    let made = brief(1);
    let expires = made["expires"].as_str().unwrap().to_owned();
    deployment.configure("third", SiteOptions::new("alpha"));
    deployment.until("its second is over", WITHIN, || {
        let now = deployment.json(&["status"])["now"].as_str().unwrap().to_owned();
        (now > expires).then_some(())
    });
    deployment.join("third", made["join_token"].as_str().unwrap()).fails(4, "E4004", &["site add"]);
    // What is no token at all, or was changed on the way.
    deployment.join("third", "lhj_nonsense").exits(2);
    deployment.join("third", "").exits(2);
    let mut broken = token.to_owned();
    broken.truncate(broken.len() - 4);
    let ran = deployment.join("third", &broken);
    assert!(ran.status != 0 && ran.stderr.contains("next:"), "{ran}");
    // The site exists: one more token for it is all there is to make.
    deployment.longhaul(&["site", "add", "alpha"]).ok();
    assert_eq!(deployment.json(&["site", "list"])["items"].as_array().unwrap().len(), 1);
    deployment.check();
}

#[test]
fn one_state_directory_has_one_owner() {
    let (mut deployment, files) = campaign();
    let second = |noun: &str, name: &str| {
        let config = deployment.directory().join(name).join("longhaul.toml");
        let listen = format!("127.0.0.1:{}", free_port());
        deployment.longhaul(&[noun, "run", "--config", config.to_str().unwrap(), "--listen", &listen])
    };
    let ran = second("service", SERVICE);
    assert!(ran.status != 0 && ran.stderr.contains("E9007") && ran.stderr.contains("state"), "{ran}");
    let ran = second("agent", "beta");
    assert!(ran.status != 0 && ran.stderr.contains("E9007") && ran.stderr.contains("another agent"), "{ran}");
    // Setting it up again would throw away what everyone trusts.
    let config = deployment.directory().join(SERVICE).join("longhaul.toml");
    let ran = deployment.longhaul(&["service", "init", "--config", config.to_str().unwrap()]);
    assert!(ran.status != 0 && ran.stderr.contains("error[E"), "{ran}");
    deployment.assert_alive();
    assert_ends_well(&deployment, &files);
}

/// A copied directory is another incarnation: the newest goes on, the other ends and says why.
#[test]
fn a_copied_agent_is_fenced() {
    let (mut deployment, files) = campaign();
    copy(&deployment.agent_state("beta"), &deployment.directory().join("copied-state"));
    let mut options = SiteOptions::new("beta").root(deployment.storage("beta"));
    options.settings = String::new();
    deployment.configure("copy", options);
    fs::rename(deployment.directory().join("copied-state"), deployment.agent_state("copy")).unwrap();
    deployment.start("copy");
    let status = deployment.process("beta").wait(WITHIN).expect("the original ends");
    assert!(!status.success());
    let told = deployment.log("beta").wait_for(
        0,
        &["E4006", "another process runs with this agent's identity"],
        WITHIN,
    );
    assert!(told.is_some(), "{}", deployment.log("beta").tail());
    drop(deployment.take("beta"));
    assert_ends_well(&deployment, &files);
    // Whoever is started again is refused as long as the other one lives.
    deployment.start("beta");
    let status = deployment.process("beta").wait(WITHIN).expect("it ends again");
    assert!(!status.success());
    drop(deployment.take("beta"));
    deployment.assert_alive();
    deployment.check();
}

/// An agent whose memory was wiped is noticed; joined anew it takes the storage over, with what lies there.
#[test]
fn a_wiped_agent_joins_anew_and_goes_on() {
    let (mut deployment, files) = campaign();
    let state = deployment.agent_state("beta");
    deployment.kill("beta");
    // Its identity survived, and all that it knew about its work did not.
    let identity = fs::read(state.join("identity.json")).unwrap();
    fs::remove_dir_all(&state).unwrap();
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(state.join("identity.json"), identity).unwrap();
    fs::set_permissions(state.join("identity.json"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    deployment.start("beta");
    let status = deployment.process("beta").wait(WITHIN).expect("it is not who it was");
    assert!(!status.success());
    let told =
        deployment.log("beta").wait_for(0, &["another process runs with this agent's identity"], WITHIN);
    assert!(told.is_some(), "{}", deployment.log("beta").tail());
    drop(deployment.take("beta"));

    // Nothing is left at all: it says what to do, and does not invent an identity.
    fs::remove_dir_all(&state).unwrap();
    deployment.start("beta");
    let status = deployment.process("beta").wait(WITHIN).expect("it cannot run");
    assert!(!status.success());
    let told = deployment.log("beta").wait_for(0, &["longhaul agent join"], WITHIN);
    assert!(told.is_some(), "{}", deployment.log("beta").tail());
    drop(deployment.take("beta"));

    let token = deployment.json(&["site", "add", "beta", "--another-agent"])["join_token"]
        .as_str()
        .unwrap()
        .to_owned();
    deployment.join("beta", &token).ok();
    deployment.start("beta");
    assert_ends_well(&deployment, &files);
}

/// As the administrator's guide has it: whoever has the key of a refused agent is served by nobody, and the
/// site goes on with another agent.
#[test]
fn a_stolen_key_opens_nothing_once_its_agent_is_refused() {
    let (mut deployment, files) = campaign();
    let stolen = deployment.credentials("beta");
    let alpha = deployment.data_address("alpha");
    let is_welcome = |credentials: &Credentials| {
        let Ok(mut wire) = Wire::dial(alpha, credentials) else { return false };
        wire.send(&hello(7, 7), &[]).is_ok() && matches!(wire.receive(), Some((Frame::Welcome(_), _)))
    };
    assert!(is_welcome(&stolen), "it is a good key until it is refused");
    let id = deployment.json(&["site", "show", "beta"])["agents"][0]["id"].as_str().unwrap().to_owned();
    let told = deployment.json(&["agent", "refuse", &id]);
    assert_eq!((&told["refused"], &told["storages"]), (&json!(false), &json!(["beta"])));
    assert!(is_welcome(&stolen), "that was a dry run");
    let told = deployment.json(&["agent", "refuse", &id, "--reason", "its host was broken into", "--yes"]);
    assert_eq!(told["refused"], json!(true));

    // The service knows it from now on, the other agents with their next report.
    let thief = deployment.api().with_token(None).with_tls(agent_client_tls(&stolen).unwrap());
    let incarnation = json!({ "number": 1_000_000, "nonce": 7 });
    let (signing_request, _) = new_signing_request().unwrap();
    let report = json!({ "versions": AGENT_PROTOCOL, "incarnation": incarnation,
        "now": Timestamp::from_seconds(1_790_000_000) });
    let work = json!({ "versions": AGENT_PROTOCOL, "incarnation": incarnation, "received": 0, "wait_ms": 1 });
    let renewal = json!({ "signing_request": signing_request });
    for (route, body) in
        [(&routes::AGENT_REPORT, report), (&routes::AGENT_WORK, work), (&routes::AGENT_RENEW, renewal)]
    {
        let reply = thief.call(route, &[], &[], &body).unwrap();
        assert_eq!(reply.status, 403, "{}: {}", route.operation, reply.text());
    }
    deployment.until("alpha refuses it", WITHIN, || (!is_welcome(&stolen)).then_some(()));
    deployment.stop("beta");

    fs::remove_dir_all(deployment.agent_state("beta")).unwrap();
    let added = deployment.json(&["site", "add", "beta", "--another-agent"]);
    deployment.join("beta", added["join_token"].as_str().unwrap()).ok();
    deployment.start("beta");
    assert_ends_well(&deployment, &files);
    let read = deployment.json(&["verify", "beta", "run7"]);
    assert_eq!(read["files_bad"], json!(0), "{read}");
    assert!(!is_welcome(&stolen));
    deployment.json(&["agent", "remove", &id, "--yes"]);
    let site = deployment.json(&["site", "show", "beta"]);
    assert_eq!(site["agents"].as_array().unwrap().len(), 1, "{site}");
}

/// Promise 11, for deployments: their certificates mean nothing to each other.
#[test]
fn an_agent_of_another_deployment_is_refused() {
    let (mut ours, files) = campaign();
    let mut theirs =
        Deployment::with(ServiceOptions { deployment: Some("theirs".into()), ..ServiceOptions::default() });
    theirs.add_site(SiteOptions::new("omega"));
    theirs.stop("omega");
    // Their agent is sent to our service.
    let mut options = SiteOptions::new("omega");
    options.settings = format!("service_url = {:?}\n", ours.url);
    theirs.configure("omega", options);
    theirs.start("omega");
    let status = theirs.process("omega").wait(WITHIN).expect("it ends");
    assert!(!status.success());
    let told = theirs.log("omega").wait_for(0, &["belongs to another deployment"], WITHIN);
    assert!(told.is_some(), "{}", theirs.log("omega").tail());
    drop(theirs.take("omega"));

    // It is refused at our agents' data port as well, and sees that ours is none of its own.
    assert_refused(&ours, &theirs.credentials("omega"));
    // Nor does it help to trust our authority.
    let ca_pem = fs::read_to_string(&ours.ca).unwrap();
    assert_refused(&ours, &Credentials { ca_pem, ..theirs.credentials("omega") });

    // Our token at their service, and the other way round: the token knows its CA.
    let token = ours.json(&["site", "add", "stray"])["join_token"].as_str().unwrap().to_owned();
    let state = ours.directory().join("stray-state");
    let words = ["agent", "join", &theirs.url, "--state", state.to_str().unwrap(), "--token", &token];
    let ran = ours.longhaul(&words);
    assert!(ran.status != 0 && ran.stderr.contains("E4005"), "{ran}");
    // A command with our token at their service.
    let mut command = theirs.command(&["site", "list"]);
    command.env("LONGHAUL_TOKEN", &ours.token);
    longhaul_testbed::CommandOutput::from_command(&mut command, WITHIN).fails(4, "E4002", &[]);
    let mut command = theirs.command(&["site", "list"]);
    command.env("LONGHAUL_CA", &ours.ca);
    longhaul_testbed::CommandOutput::from_command(&mut command, WITHIN).fails(4, "E4005", &[]);
    ours.assert_alive();
    assert_ends_well(&ours, &files);
}

/// Nobody gets as far as the protocol at alpha's data port with these credentials.
#[track_caller]
fn assert_refused(deployment: &Deployment, credentials: &Credentials) {
    let tls = agent_client_tls(credentials).unwrap();
    let mut tcp = TcpStream::connect(deployment.data_address("alpha")).unwrap();
    tcp.set_read_timeout(Some(WITHIN)).unwrap();
    let mut connection = ClientConnection::new(tls, AGENT_NAME.try_into().unwrap()).unwrap();
    // With TLS 1.3 a client learns of its refusal when it first reads after the handshake.
    let error = loop {
        if let Err(error) = connection.complete_io(&mut tcp) {
            break error;
        }
    };
    assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "let in: {error}");
}

/// Times are relative to the service's clock, which agents learn.
#[test]
fn clocks_an_hour_off_do_no_harm() {
    let mut deployment = Deployment::new();
    let Some(_) = clock::shifted(deployment.directory(), 0) else {
        return needs::not_run("clocks an hour off", "there is no C compiler");
    };
    for (site, seconds) in [("alpha", 3_600), ("beta", -3_600), ("gamma", 0)] {
        let mut options = SiteOptions::new(site);
        options.environment = clock::shifted(deployment.directory(), seconds).unwrap();
        deployment.add_site(options);
        // What is shown is off by as long as the last report was under way.
        deployment.until(&format!("the clock of {site} is known"), WITHIN, || {
            let view = deployment.json(&["site", "show", site]);
            let offset = view["agents"][0]["clock_offset_ms"].as_i64()?;
            ((offset - seconds * 1_000).abs() < 5_000).then_some(())
        });
    }
    let time = |text: &str| text.parse::<Timestamp>().unwrap();
    let now = || time(deployment.json(&["status"])["now"].as_str().unwrap());
    let begun = now();
    tree::make(&deployment.storage("alpha"), 50, 2_000_000, &mut Random::new(67));
    let files = tree::survey(&deployment.storage("alpha")).files;
    deployment.register("run7", "alpha");
    for site in ["beta", "gamma"] {
        deployment.deliver("run7", site, 60);
        tree::assert_same(&files, &deployment.storage(site), "");
    }
    // What is told is on the service's clock.
    let ended = now();
    for transfer in deployment.api().all(&routes::TRANSFER_LIST, &[], &[("state", "done")]) {
        let detail = deployment.api().get(&routes::TRANSFER_SHOW, &[transfer["id"].as_str().unwrap()], &[]);
        let times = &detail["attempts"][0]["times"];
        for phase in ["received", "started", "first_byte", "last_byte", "committed"] {
            let Some(at) = times[phase].as_str().map(time) else { continue };
            assert!(
                at >= begun - CLOCK_GRACE && at <= ended + CLOCK_GRACE,
                "{phase} at {at}, from {begun} to {ended}: {transfer}"
            );
        }
    }
    // People whose own clock is wrong get in too, and the service may be the one that is wrong.
    let mut command = deployment.command(&["site", "list"]);
    command.envs(clock::shifted(deployment.directory(), -3_600).unwrap());
    longhaul_testbed::CommandOutput::from_command(&mut command, WITHIN).ok();
    deployment.check();
}

/// While data moves, by a minute and by three hours, both ways: nobody is locked out, files go on to come,
/// and no lease is over for it.
#[test]
fn steps_of_the_services_clock_in_use_do_no_harm() {
    let place = tempfile::tempdir().unwrap();
    let Some(clock) = SteppedClock::new(place.path()) else {
        return needs::not_run("steps of the service's clock", "there is no C compiler");
    };
    let options = ServiceOptions { environment: clock.variables(), ..ServiceOptions::default() };
    let (mut deployment, files) = campaign_with(options, "500KB");
    // Never before the agents' certificates were issued: those are for the wall clock.
    for seconds in [60, 0, 3 * 3_600, 0] {
        let before = present(&deployment);
        clock.set(seconds);
        // As one user of many requests: the limit per second counts by the steady clock.
        (0..10).for_each(|_| drop(deployment.json(&["site", "list"])));
        deployment.until(&format!("files go on to come with the clock at {seconds} s"), WITHIN, || {
            let now = present(&deployment);
            (now > before || now == files.len() as u64).then_some(())
        });
    }
    assert_ends_well(&deployment, &files);
    for transfer in deployment.api().all(&routes::TRANSFER_LIST, &[], &[("state", "done")]) {
        let detail = deployment.api().get(&routes::TRANSFER_SHOW, &[transfer["id"].as_str().unwrap()], &[]);
        for attempt in detail["attempts"].as_array().unwrap() {
            assert_ne!(attempt["fault"]["code"], json!("E9004"), "a lease expired by a step: {detail}");
        }
    }
    deployment.assert_alive();
}
