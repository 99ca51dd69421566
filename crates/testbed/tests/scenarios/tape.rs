//! A tape of a site's own, behind the door of a real agent: jobs of a real service bring files from it, let
//! them go, and stay with what they wrote until it is on tape.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use longhaul_testbed::foreign::ForeignAuthority;
use longhaul_testbed::{Deployment, DirectoryTape, ServiceOptions, SiteOptions, free_port, needs};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(120);
const BYTES: usize = 3_000_000;

/// A door with a certificate of the authority, and tokens.
fn door(storage: &str, port: u16, authority: &ForeignAuthority, folder: &Path, tokens: &str) -> String {
    let (certificate, key) = authority.issue_files(folder, &format!("door-{storage}"));
    let (ca, file) = (authority.ca_file(), folder.join(format!("tokens-{storage}")));
    longhaul_security::write_private(&file, tokens.as_bytes()).unwrap();
    format!(
        "[[agent.doors]]\nstorage = \"{storage}\"\nlisten = [\"127.0.0.1:{port}\"]\ncertificate = \
            {certificate:?}\nkey = {key:?}\n\
         client_authorities = [{ca:?}]\ntokens = {file:?}\nthird_party_authorities = [{ca:?}]\n\
         third_party_allow = [\"127.0.0.0/8\", \"::1\"]\n"
    )
}

struct Sites {
    deployment: Deployment,
    authority: ForeignAuthority,
    tape: DirectoryTape,
    ports: [u16; 2],
}

/// Alpha has the tape, beta a disk.
fn sites() -> Sites {
    let authority = ForeignAuthority::new("grid");
    let settings = format!(
        "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{:?}]\n\
         [service.jobs.tape]\nbulk_wait_s = 1\npoll_first_s = 1\npoll_last_s = 2\n",
        authority.ca_file()
    );
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    let here = deployment.directory().to_owned();
    let tape = DirectoryTape::new(&here);
    let ports = [free_port(), free_port()];
    let mut alpha = tape.site("alpha", "migrate_after_s = 1\n");
    let tokens =
        format!("stage /run7 {}\nwrite / {}\nread / {}\n", token("stager"), token("writer"), token("reader"));
    alpha.settings = door("alpha", ports[0], &authority, &here, &tokens);
    deployment.add_site(alpha);
    let mut beta = SiteOptions::new("beta");
    beta.settings = door("beta", ports[1], &authority, &here, &tokens);
    deployment.add_site(beta);
    for (site, port) in ["alpha", "beta"].into_iter().zip(ports) {
        let open = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
        assert!(deployment.await_answer(WITHIN, open).is_some(), "{}", deployment.log(site).tail());
    }
    Sites { deployment, authority, tape, ports }
}

/// In the form of a JSON web token, as jobs want them; at the doors it is a word in a file.
fn token(who: &str) -> String {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let claims =
        json!({ "iss": "https://issuer.example/", "sub": who, "exp": 4_000_000_000_u64 }).to_string();
    format!("{}.{}.{}", encode("{\"alg\":\"RS256\"}"), encode(&claims), encode("signature"))
}

impl Sites {
    fn alpha(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.ports[0])
    }

    fn beta(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.ports[1])
    }

    fn get(&self, who: &str, url: &str) -> (u32, String) {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--max-time", "60", "-w", "\n%{http_code}", "--cacert"])
            .arg(self.authority.ca_file());
        command.args(["-H", &format!("Authorization: Bearer {}", token(who)), url]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    fn submit(&self, files: &[(String, String)], tokens: [&str; 2], params: Value) -> String {
        let file = |(source, target): &(String, String)| {
            json!({ "sources": [source], "destinations": [target], "source_tokens": [token(tokens[0])],
                "destination_tokens": [token(tokens[1])],
                    "staging_metadata": { "alpha": { "activity": "tests" } } })
        };
        let mut params = params;
        params["unmanaged_tokens"] = json!(true);
        let job = json!({ "files": files.iter().map(file).collect::<Vec<_>>(), "params": params });
        let headers = [("content-type", "application/json")];
        let reply = self.deployment.api().send("POST", "/jobs", &headers, job.to_string().as_bytes());
        reply.unwrap().expect(200).json()["job_id"].as_str().unwrap().to_owned()
    }

    /// The files of a job, in their order, when they are so.
    fn until(&self, what: &str, id: &str, met: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.deployment.until(what, WITHIN, || {
            let reply = self.deployment.api().send("GET", &format!("/jobs/{id}/files"), &[], &[]).unwrap();
            let files = reply.expect(200).json().as_array().unwrap().clone();
            met(&files).then_some(files)
        })
    }
}

fn are(files: &[Value], states: &[&str]) -> bool {
    files.iter().map(|file| file["file_state"].as_str().unwrap()).eq(states.iter().copied())
}

#[test]
fn jobs_bring_files_from_a_tape_behind_a_door_and_take_files_there() {
    if !needs::programs("a tape behind a door", &[("openssl", "version"), ("curl", "--version")]) {
        return;
    }
    let mut sites = sites();
    let bytes: Vec<u8> = (0..BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    sites.tape.put("run7/a", &bytes);
    sites.tape.put("run7/b", &bytes[..200_000]);
    let (status, why) = sites.get("stager", &sites.alpha("run7/a"));
    assert_eq!(status, 409, "{why}");
    assert!(why.contains("on tape only") && why.contains("bring_online"), "{why}");

    let pair = |name: &str| (sites.alpha(&format!("run7/{name}")), sites.beta(&format!("copied/{name}")));
    let files = [pair("a"), pair("b"), pair("nowhere")];
    let params = json!({ "bring_online": 3_600, "copy_pin_lifetime": 3_600 });
    let id = sites.submit(&files, ["stager", "writer"], params);
    let files = sites.until("files at the tape system", &id, |files| {
        files.iter().take(2).all(|file| file["file_state"] == "STARTED")
    });
    assert!(files[0]["bringonline_token"].as_str().unwrap().len() == 32, "{files:?}");
    // The request outlives its agent.
    sites.deployment.kill("alpha");
    sites.deployment.start("alpha");
    sites.tape.let_go();
    let files = sites.until("the copies", &id, |files| are(files, &["FINISHED", "FINISHED", "FAILED"]));
    let reason = files[2]["reason"].as_str().unwrap();
    assert_eq!(reason, "STAGING [2] file does not exist");
    let copied = sites.deployment.storage("beta").join("copied");
    assert!(fs::read(copied.join("a")).unwrap() == bytes);
    assert!(fs::read(copied.join("b")).unwrap() == bytes[..200_000]);
    // Let go, and off the disk.
    sites.deployment.until("the end of pins", WITHIN, || {
        ["run7/a", "run7/b"].iter().all(|path| sites.tape.is_stub(path)).then_some(())
    });
    let said = sites.tape.said();
    assert!(said.contains("stage run7/a {\"activity\":\"tests\"}"), "{said}");

    // What is written there is done when it is on tape.
    let target = (sites.beta("copied/a"), sites.alpha("run8/a"));
    let id = sites.submit(&[target], ["reader", "writer"], json!({ "archive_timeout": 3_600 }));
    let files = sites.until("a file on tape", &id, |files| are(files, &["FINISHED"]));
    assert!(files[0]["archive_finish_time"].is_string(), "{files:?}");
    assert!(fs::read(sites.tape.tape.join("run8/a")).unwrap() == bytes);
    let names: Vec<_> =
        fs::read_dir(sites.tape.tape.join("run8")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a"], "no temporary name goes to tape");

    // So is what a subscription brings; from the tape's stub nothing is read.
    fs::create_dir(sites.deployment.storage("beta").join("data")).unwrap();
    fs::write(sites.deployment.storage("beta").join("data/f1"), b"by a subscription").unwrap();
    sites.deployment.register("data", "beta:data");
    sites.deployment.deliver("data", "alpha", WITHIN.as_secs());
    sites.deployment.until("the tape", WITHIN, || {
        fs::read(sites.tape.tape.join("data/f1")).ok().filter(|found| found == b"by a subscription")
    });
    sites.deployment.check();
}
