//! Copies between storages that have never heard of us, by the commands of people: submitted, watched, ended.

use std::fs;
use std::time::Duration;

use longhaul_security::write_private;
use longhaul_testbed::foreign::{ForeignAuthority, Nginx, NginxRules, Xrootd, wait_until_listening};
use longhaul_testbed::{Deployment, Log, Process, ServiceOptions, free_port, needs};
use serde_json::{Value, json};

use crate::foreign_storage::TRIES_MAX;

const WITHIN: Duration = Duration::from_secs(60);

/// An issuer of tokens: whoever logs in as `us:secret` gets one that lasts, and with that a fresh one.
const ISSUER: &str = r#"
import base64, http.server, json, ssl, sys, time, urllib.parse
port, certificate, key = int(sys.argv[1]), sys.argv[2], sys.argv[3]
LOGIN = "Basic " + base64.b64encode(b"us:secret").decode()
def is_good(token):
    claims = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"] > time.time()
class Issuer(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(200, {"token_endpoint": "https://localhost:%d/token" % port})
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        form = {name: value for name, value in urllib.parse.parse_qsl(body)}
        grant, scope = form.get("grant_type", ""), form.get("scope", "")
        print(grant, scope, form.get("audience"), file=sys.stderr, flush=True)
        if self.headers["authorization"] != LOGIN or "offline_access" not in scope:
            self.answer(401, {"error": "invalid_client"})
        elif grant.endswith(":token-exchange") and is_good(form["subject_token"]):
            self.answer(200, {"access_token": "another", "refresh_token": "lasting"})
        elif grant == "refresh_token" and form["refresh_token"] == "lasting":
            self.answer(200, {"access_token": "fresh", "expires_in": 3600})
        else:
            self.answer(400, {"error": "invalid_grant"})
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Issuer)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

/// A JSON web token that says this; nobody here verifies it.
fn token(claims: &Value) -> String {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.{}", encode("{\"alg\":\"RS256\"}"), encode(&claims.to_string()), encode("signature"))
}

/// The storage takes only what the issuer gave in place of what the job came with.
#[test]
fn tokens_of_jobs_are_renewed_at_their_issuer() {
    if !needs::programs(
        "tokens of jobs",
        &[("nginx", "-v"), ("openssl", "version"), ("python3", "--version")],
    ) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = authority.issue_files(folder.path(), "issuer");
    let (script, port) = (folder.path().join("issuer.py"), free_port());
    fs::write(&script, ISSUER).unwrap();
    let mut command = std::process::Command::new("python3");
    command.arg(&script).arg(port.to_string()).arg(&certificate).arg(&key);
    let log = Log::default();
    let mut served = Process::start("issuer", &mut command, &log, &folder.path().join("issuer.log"));
    wait_until_listening(&mut served, port);
    let guarded = Nginx::start(&authority, NginxRules { token: Some("fresh"), ..NginxRules::default() });
    let other = Nginx::start(&authority, NginxRules::default());
    guarded.put("f1", b"content of f1");
    let secret = folder.path().join("secret");
    write_private(&secret, b"secret\n").unwrap();
    let ca = authority.ca_file();
    let settings = format!(
        "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{ca:?}]\n\
         [service.fts]\nissuer_authorities = {ca:?}\n[[service.fts.issuers]]\nurl \
         = \"https://localhost:{port}/\"\n\
         client_id = \"us\"\nclient_secret_file = {secret:?}\n"
    );
    let deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let issuer = format!("https://localhost:{port}/");
    let claims = |scope: &str, ends: u64| {
        json!({ "iss": issuer, "exp": now + ends, "nbf": now - 10,
        "aud": "https://storage", "scope": scope })
    };
    let api = deployment.api();
    let run = |name: &str, token: &str, unmanaged: bool| -> Value {
        let file = json!({
            "sources": [guarded.url("f1")], "destinations": [other.url(name)],
            "source_tokens": [token], "destination_tokens": [token],
        });
        let job = json!({ "files": [file], "params": { "unmanaged_tokens": unmanaged } });
        let reply =
            api.send("POST", "/jobs", &[("content-type", "application/json")], job.to_string().as_bytes());
        let id = reply.unwrap().expect(200).json()["job_id"].as_str().unwrap().to_owned();
        deployment.until("the job ends", WITHIN, || {
            let reply = api.send("GET", &format!("/jobs/{id}?files=file_state,reason"), &[], &[]).unwrap();
            let job = reply.expect(200).json();
            (job["job_state"] == "FINISHED" || job["job_state"] == "FAILED").then_some(job)
        })
    };
    let managed = "storage.read:/ offline_access";
    let done = run("renewed", &token(&claims(managed, 200)), false);
    assert_eq!(done["job_state"], "FINISHED", "{done}\n{}", log.tail());
    assert_eq!(fs::read(other.data().join("renewed")).unwrap(), b"content of f1");
    let asked = format!("urn:ietf:params:oauth:grant-type:token-exchange {managed} https://storage");
    assert!(log.wait_for(0, &[&asked], WITHIN).is_some(), "{}", log.tail());
    // Left alone: by wish, and for want of the scope.
    for (name, token, unmanaged) in [
        ("unmanaged", token(&claims(managed, 201)), true),
        ("short", token(&claims("storage.read:/", 200)), false),
    ] {
        assert_eq!(run(name, &token, unmanaged)["job_state"], "FAILED", "{name}: nginx does not know it");
    }
    // One that ended before anybody could ask.
    let late = run("late", &token(&claims(managed, 0)), false);
    assert!(late.to_string().contains("Failed to obtain refresh token for source token"), "{late}");
}

#[test]
fn people_submit_watch_and_end_jobs() {
    if !needs::programs("jobs by commands", &[("nginx", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let (one, other) =
        (Nginx::start(&authority, NginxRules::default()), Nginx::start(&authority, NginxRules::default()));
    let slow = Nginx::start(&authority, NginxRules { bytes_per_s: Some(1_000), ..NginxRules::default() });
    let settings = format!(
        "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{:?}]\n",
        authority.ca_file()
    );
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    one.put("f1", b"content of f1");
    one.put("f2", b"content of f2");
    slow.put("f3", &vec![7; 10_000_000]);

    // One file, waited for; its digest is compared.
    let (source, target) = (one.url("f1"), other.url("below/f1"));
    let sum = "ADLER32:1f9404a5";
    let done = deployment.longhaul(&[
        "submit",
        &source,
        &target,
        "--checksum",
        sum,
        "--verify",
        "both",
        "--wait=60",
    ]);
    assert_eq!(done.status, 6, "a checksum that it does not have: {done}");
    assert!(
        done.stdout.contains("failed; 0 of 1 file arrived") && done.stdout.contains("checksum"),
        "{done}"
    );
    let sum = "ADLER32:239304a8";
    let done = deployment
        .longhaul(&["submit", &source, &target, "--checksum", sum, "--verify", "both", "--wait=60"])
        .ok();
    assert!(done.stdout.contains(": finished; 1 of 1 file arrived, 13 B"), "{done}");
    assert_eq!(fs::read(other.data().join("below/f1")).unwrap(), b"content of f1");

    // Neither of them copies between servers, and the source takes an order to do so for one to copy within
    // itself.
    let plain = deployment.longhaul(&["submit", &source, &other.url("plain"), "--wait=60"]).ok();
    assert!(plain.stdout.contains("1 of 1 file arrived"), "{plain}");
    assert_eq!(fs::read(other.data().join("plain")).unwrap(), b"content of f1");
    let left: Vec<_> = fs::read_dir(one.data()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("longhaul")), "{left:?}");

    // A file of jobs as FTS's clients write them; one of its files is nowhere.
    let file = deployment.directory().join("jobs.json");
    let pair = |name: &str| json!({ "sources": [one.url(name)], "destinations": [other.url(name)] });
    let jobs = json!([{ "files": [pair("f2"), pair("gone")], "params": { "verify_checksum": "both",
        "job_metadata": { "run": 7 } } }]);
    fs::write(&file, jobs.to_string()).unwrap();
    let made = deployment.json(&["submit", "--file", file.to_str().unwrap()]);
    let id = made["items"][0]["id"].as_str().unwrap();
    let waited = deployment.longhaul(&["job", "wait", id, "--within", "60"]);
    assert_eq!(waited.status, 7, "{waited}");
    assert!(waited.stdout.contains("finisheddirty; 1 of 2 files arrived"), "{waited}");
    assert!(waited.stdout.contains("turn: the source's administrator"), "{waited}");
    let shown = deployment.longhaul(&["job", "show", id]).ok().stdout;
    assert!(shown.contains("1 failed, 1 arrived") && shown.contains("{\"run\":7}"), "{shown}");
    assert!(shown.find(&one.url("gone")) < shown.find(&one.url("f2")), "what failed comes first: {shown}");
    let list = deployment.json(&["job", "list", "--state", "finisheddirty", "--source", "localhost"]);
    assert_eq!((list["items"].as_array().unwrap().len(), &list["items"][0]["id"]), (1, &json!(id)));
    assert_eq!(list["items"][0]["files_failed"], json!(1));

    // What is wrong is told at once, and nothing begins.
    let wrong = deployment.longhaul(&["submit", "srm://a.example/f", &target]);
    assert_eq!(wrong.status, 2, "{wrong}");
    assert!(
        wrong.stderr.contains("srm is no scheme") && wrong.stderr.contains("nothing was begun"),
        "{wrong}"
    );
    assert_eq!(deployment.json(&["job", "list", "--since", "1h"])["items"].as_array().unwrap().len(), 4);

    // Ended in the midst of it.
    let made = deployment.json(&["submit", &slow.url("f3"), &other.url("f3"), "--verify", "both"]);
    let id = made["id"].as_str().unwrap();
    deployment.until("the copy runs", WITHIN, || {
        let shown = deployment.json(&["job", "show", id]);
        (shown["counts"]["running"] == json!(1)).then_some(())
    });
    deployment.longhaul(&["job", "priority", id, "1"]).ok();
    let late = deployment.longhaul(&["job", "wait", id, "--within", "1"]);
    assert_eq!(late.status, 8, "{late}");
    let ended = deployment.longhaul(&["job", "cancel", id]).ok();
    assert_eq!(ended.stdout.trim_end(), format!("{id} is canceled"));
    let again = deployment.longhaul(&["job", "cancel", id]);
    assert!(again.status != 0 && again.stderr.contains("has ended (CANCELED)"), "{again}");
    assert_eq!(deployment.longhaul(&["job", "wait", id]).status, 6);
    assert!(!other.data().join("f3").exists());
    let unknown = deployment.longhaul(&["job", "show", "00000000-0000-4000-8000-000000000000"]);
    assert_eq!(unknown.status, 3, "{unknown}");
    deployment.assert_alive();
}

/// `/dm`: what people who look into two storages side by side ask for.
#[test]
fn people_look_into_storages_and_tidy_up() {
    if !needs::programs("looking into storages", &[("xrootd", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let mut storage = Xrootd::start(&authority);
    let settings = format!(
        "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{:?}]\n",
        authority.ca_file()
    );
    let deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    let api = deployment.api();
    let get = |what: &str, url: &str| {
        let path = format!("/dm/{what}?surl={}", url.replace(':', "%3A").replace('/', "%2F"));
        let reply = api.send("GET", &path, &[], &[]).unwrap();
        (reply.status, reply.json())
    };
    let post = |what: &str, body: Value| {
        let json = [("content-type", "application/json")];
        let reply = api.send("POST", &format!("/dm/{what}"), &json, body.to_string().as_bytes()).unwrap();
        (reply.status, reply.json())
    };
    // XRootD may break off what it is asked, also in a handshake; then it may have been done, too.
    let whole = |(status, told): (u16, Value)| {
        let is_broken_off = [403, 503].contains(&status) || told["message"].to_string().contains(": 500 ");
        if is_broken_off { Err(told) } else { Ok((status, told)) }
    };
    let look_and_tidy = |storage: &Xrootd, tries: u32| -> Result<(), Value> {
        let (old, new) = (format!("f{tries}"), format!("new{tries}"));
        storage.put(&old, b"content of f1");
        let (folder, file) = (storage.url(&new), storage.url(&format!("{new}/f2")));
        assert_eq!(whole(post("mkdir", json!({ "surl": folder })))?, (200, Value::Null));
        let renamed = whole(post("rename", json!({ "old": storage.url(&old), "new": file })))?;
        assert_eq!(renamed.0, 200, "{}", renamed.1);
        let (status, listed) = whole(get("list", &folder))?;
        assert_eq!((status, &listed["f2"]["size"]), (200, &json!(13)), "{listed}");
        assert!(listed["f2"]["mtime"].as_i64().unwrap() > 1_600_000_000, "{listed}");
        let (_, above) = whole(get("list", &storage.url("")))?;
        assert!(above[format!("{new}/")].is_object() && above[&old].is_null(), "{above}");
        let (status, told) = whole(get("stat", &file))?;
        assert_eq!((status, &told["size"], &told["mode"]), (200, &json!(13), &json!(0o100_644)), "{told}");
        // Nothing that is not empty goes with one word, and no directory as if it were a file.
        let (status, refused) = whole(post("rmdir", json!({ "surl": folder })))?;
        assert_eq!((status, &refused["message"]), (500, &json!("[39] Directory not empty")), "{refused}");
        let (status, refused) = whole(post("unlink", json!({ "surl": folder })))?;
        assert_eq!((status, &refused["message"]), (400, &json!("[93] Is a directory")), "{refused}");
        assert_eq!(whole(post("unlink", json!({ "surl": file })))?, (200, Value::Null));
        assert_eq!(whole(post("unlink", json!({ "surl": file })))?.0, 404);
        assert_eq!(whole(post("rmdir", json!({ "surl": folder })))?, (200, Value::Null));
        assert_eq!(whole(get("stat", &folder))?.0, 404);
        Ok(())
    };
    let mut tries = 1;
    while let Err(why) = look_and_tidy(&storage, tries) {
        println!("try {tries}: {why}\n{}", storage.log());
        assert!(tries < TRIES_MAX, "{tries} times: {why}");
        storage.start_again();
        tries += 1;
    }
    // What is wrong is said: no URL, another scheme, an address that policy does not allow, nobody there,
    // another method.
    assert_eq!(post("mkdir", json!({})).1["message"], "Missing surl parameter");
    assert_eq!(get("list", "gsiftp://localhost/data").0, 400);
    assert_eq!(get("list", "https://192.168.7.7/data").0, 403);
    assert_eq!(get("list", &format!("https://localhost:{}/data", free_port())).0, 503);
    assert_eq!(api.send("DELETE", "/dm/list", &[], &[]).unwrap().status, 405);
}
