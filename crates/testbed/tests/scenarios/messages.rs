//! What happens to jobs, told to brokers as FTS tells it: ActiveMQ by STOMP and nats-server, as real
//! processes; brokers that die, a service that dies, and brokers that do not keep to their protocol.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_security::write_private;
use longhaul_testbed::foreign::{
    ActiveMq, BROKER_PASSWORD, BROKER_USER, ForeignAuthority, NatsServer, Nginx, NginxRules,
};
use longhaul_testbed::{Deployment, SERVICE, ServiceOptions, free_port, needs};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);
const KINDS: [&str; 4] = ["start", "complete", "state", "queue_state"];
/// Pairs of storages are told of once a minute.
const MINUTE_WITHIN: Duration = Duration::from_secs(120);

struct Storages {
    authority: ForeignAuthority,
    source: Nginx,
    target: Nginx,
}

impl Storages {
    fn start() -> Storages {
        let authority = ForeignAuthority::new("storages");
        let [source, target] = [(), ()].map(|()| Nginx::start(&authority, NginxRules::default()));
        Storages { authority, source, target }
    }

    fn deployment(&self, messages: &str) -> Deployment {
        let jobs = format!(
            "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{:?}]\n",
            self.authority.ca_file()
        );
        Deployment::with(ServiceOptions { settings: jobs + messages, ..ServiceOptions::default() })
    }

    /// By FTS's API: one file, which is there or is not.
    fn submit(&self, deployment: &Deployment, name: &str) -> String {
        let job = json!({
            "files": [{
                "sources": [self.source.url(name)], "destinations": [self.target.url(name)],
                "metadata": { "name": name },
            }],
            "params": { "job_metadata": { "issuer": "rucio" }, "retry": -1 },
        });
        let headers = [("content-type", "application/json")];
        let reply = deployment.api().send("POST", "/jobs", &headers, job.to_string().as_bytes()).unwrap();
        reply.expect(200).json()["job_id"].as_str().unwrap().to_owned()
    }
}

/// A consumer of STOMP as others write it: enough to read, and written apart from what is tested.
struct Consumer {
    reader: BufReader<TcpStream>,
    /// Messages that came before the broker had confirmed all subscriptions.
    early: VecDeque<Message>,
}

/// Kind, headers and body.
type Message = (String, BTreeMap<String, String>, String);

impl Consumer {
    /// Subscribes durably to all topics: the broker keeps what comes while the consumer is away. What is sent
    /// from now on comes: the broker has confirmed each subscription.
    fn connect(port: u16) -> Consumer {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(MINUTE_WITHIN)).unwrap();
        let mut consumer = Consumer { reader: BufReader::new(stream), early: VecDeque::new() };
        let connect = format!(
            "CONNECT\naccept-version:1.2\nhost:b\nclient-id:consumer\nlogin:{BROKER_USER}\n\
             passcode:{BROKER_PASSWORD}\n\n\0"
        );
        consumer.write(&connect);
        assert_eq!(consumer.frame().0, "CONNECTED");
        for kind in KINDS {
            let topic = format!("/topic/transfer.fts_monitoring_{kind}");
            consumer.write(&format!(
                "SUBSCRIBE\nid:{kind}\ndestination:{topic}\nack:auto\nactivemq.subscriptionName:{kind}\n\
                 receipt:{kind}\n\n\0"
            ));
        }
        let mut confirmed = 0;
        while confirmed < KINDS.len() {
            match consumer.frame() {
                message if message.0 == "MESSAGE" => consumer.early.push_back(message),
                (command, ..) if command == "RECEIPT" => confirmed += 1,
                (command, _, body) => panic!("{command}: {body}"),
            }
        }
        consumer
    }

    fn write(&mut self, text: &str) {
        self.reader.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn frame(&mut self) -> Message {
        let mut bytes = Vec::new();
        self.reader.read_until(0, &mut bytes).expect("something to read");
        let text = String::from_utf8(bytes).unwrap();
        let text = text.trim_start_matches('\n').trim_end_matches('\0');
        let (head, body) = text.split_once("\n\n").unwrap();
        let mut lines = head.lines();
        let command = lines.next().unwrap().to_owned();
        let headers = lines.filter_map(|line| line.split_once(':'));
        (command, headers.map(|(name, value)| (name.into(), value.into())).collect(), body.to_owned())
    }

    /// The next message.
    fn next_message(&mut self) -> Message {
        let (command, headers, body) = self.early.pop_front().unwrap_or_else(|| self.frame());
        assert_eq!(command, "MESSAGE", "{body}");
        (headers["subscription"].clone(), headers, body)
    }

    /// The next message, which is one as FTS writes them.
    fn next_fts_message(&mut self) -> (String, BTreeMap<String, String>, Value) {
        let (kind, headers, body) = self.next_message();
        assert!(body.ends_with("} "), "one space at the end: {body:?}");
        let lasts = headers.get("persistent").is_some_and(|lasts| lasts == "true");
        assert_eq!(lasts, kind != "queue_state", "{kind}: {headers:?}");
        (kind, headers, serde_json::from_str(&body).unwrap())
    }

    /// What is told of a minute of this pair of storages in which something arrived.
    fn minute(&mut self, source: &str, target: &str) -> Value {
        loop {
            let (kind, _, said) = self.next_fts_message();
            let of_pair = said["source_se"] == source && said["dest_se"] == target;
            if kind == "queue_state" && of_pair && said["filesize_avg"].as_f64() > Some(0.0) {
                return said;
            }
        }
    }

    /// Until each of the jobs has ended and all its states are there.
    fn follow(&mut self, jobs: &[String], all: &mut Vec<(String, Value)>) {
        let ended = |all: &[(String, Value)], job: &str| {
            let of = |kind: &str, field: &str, wanted: &[&str]| {
                all.iter().any(|(known, body)| {
                    known == kind
                        && body["job_id"] == job
                        && wanted.contains(&body[field].as_str().unwrap_or(""))
                })
            };
            of("complete", "t_final_transfer_state", &["Ok", "Error"])
                && of("state", "file_state", &["FINISHED", "FAILED"])
                && of("start", "vo", &["longhaul"])
        };
        while !jobs.iter().all(|job| ended(all, job)) {
            let (kind, headers, said) = self.next_fts_message();
            if kind == "queue_state" {
                continue;
            }
            let expires: i64 = headers["expires"].parse().unwrap();
            let at = said["timestamp"].as_i64().or(said["tr_timestamp_complete"].as_i64()).unwrap();
            assert!((expires - at - 86_400_000).abs() < 600_000, "a day");
            assert_eq!(headers.get("vo").map(String::as_str), (kind == "state").then_some("longhaul"));
            all.push((kind, said));
        }
    }
}

/// States of the file of a job, in the order in which they came; what came twice counts once, and what is
/// only decided when there is no room not at all.
fn states(all: &[(String, Value)], job: &str) -> Vec<String> {
    let of = all.iter().filter(|(kind, body)| kind == "state" && body["job_id"] == job);
    let mut states: Vec<String> =
        of.map(|(_, body)| body["file_state"].as_str().unwrap().to_owned()).collect();
    states.retain(|state| state != "READY");
    states.dedup();
    states
}

/// A consumer of everything below `transfer.` at a server of NATS.
fn nats_consumer(port: u16) -> std::sync::mpsc::Receiver<(String, Value)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let (to, told) = std::sync::mpsc::channel();
    stream
        .write_all(b"CONNECT {\"verbose\":false,\"headers\":false}\r\nSUB transfer.> 1\r\nPING\r\n")
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("PONG") {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    std::thread::spawn(move || {
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            let words: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
            line.clear();
            if words.first().is_some_and(|word| word == "PING") {
                let _ = reader.get_mut().write_all(b"PONG\r\n");
            }
            if words.first().is_none_or(|word| word != "MSG") {
                continue;
            }
            let mut body = vec![0; words.last().unwrap().parse::<usize>().unwrap() + 2];
            reader.read_exact(&mut body).unwrap();
            let _ = to.send((words[1].clone(), serde_json::from_slice(&body).unwrap()));
        }
    });
    told
}

fn problems(deployment: &Deployment) -> String {
    deployment.json(&["status"])["problems"].to_string()
}

#[test]
fn brokers_hear_of_everything_whatever_dies() {
    if let Some(missing) = ActiveMq::missing().or_else(NatsServer::missing) {
        return needs::not_run("messages to brokers", &missing);
    }
    if !needs::program("nginx", &["-v"]) {
        return needs::not_run("messages to brokers", "there is no nginx");
    }
    let storages = Storages::start();
    let (mut activemq, nats) = (ActiveMq::start(), NatsServer::start(&storages.authority));
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    write_private(&password, BROKER_PASSWORD.as_bytes()).unwrap();
    let (certificate, key) = storages.authority.issue("fts");
    let files = [("certificate", certificate), ("key", key)].map(|(name, pem)| {
        let path = folder.path().join(name);
        fs::write(&path, pem).unwrap();
        path
    });
    // The first of the brokers is not there.
    let messages = format!(
        "[service.messages]\nalias = \"fts.example.org\"\n\
         [service.messages.stomp]\nbrokers = [\"stomp://127.0.0.1:{}\", \"stomp://127.0.0.1:{}\"]\n\
         user = \"{BROKER_USER}\"\npassword_file = {password:?}\n\
         [service.messages.nats]\nservers = [\"tls://localhost:{}\"]\n\
         certificate = {:?}\nkey = {:?}\nauthorities = {:?}\n",
        free_port(),
        activemq.port,
        nats.port,
        files[0],
        files[1],
        storages.authority.ca_file()
    );
    let mut consumer = Consumer::connect(activemq.port);
    let nats_told = nats_consumer(nats.port);
    let mut deployment = storages.deployment(&messages);

    // One that arrives and one that is nowhere.
    storages.source.put("f1", b"content of f1");
    let (good, bad) = (storages.submit(&deployment, "f1"), storages.submit(&deployment, "gone"));
    let mut all = Vec::new();
    consumer.follow(&[good.clone(), bad.clone()], &mut all);
    assert_eq!(states(&all, &good), ["SUBMITTED", "ACTIVE", "FINISHED"].as_slice());
    assert_eq!(states(&all, &bad), ["SUBMITTED", "ACTIVE", "FAILED"].as_slice());
    let complete = |job: &str| {
        let found = all.iter().find(|(kind, body)| kind == "complete" && body["job_id"] == job);
        found.unwrap().1.clone()
    };
    let done = complete(&good);
    assert!(done["tr_id"].as_str().unwrap().ends_with(&format!("__{good}")), "{done}");
    for (field, value) in [
        ("endpnt", json!("fts.example.org")),
        ("src_url", json!(storages.source.url("f1"))),
        ("dst_url", json!(storages.target.url("f1"))),
        ("t_final_transfer_state", json!("Ok")),
        ("t_error_code", json!(0)),
        ("tr_bt_transfered", json!(13)),
        ("transfer_type", json!("streamed")),
        ("file_metadata", json!({ "name": "f1" })),
        ("job_state", json!("UNKNOWN")),
        ("user_dn", json!("")),
    ] {
        assert_eq!(done[field], value, "{field}");
    }
    assert_eq!(done["job_metadata"]["issuer"], "rucio");
    let failed = complete(&bad);
    assert_eq!(
        (&failed["t_final_transfer_state"], &failed["tr_error_scope"]),
        (&json!("Error"), &json!("SOURCE"))
    );
    assert_eq!(
        (&failed["t_error_code"], &failed["tr_error_category"]),
        (&json!(2), &json!("NO_SUCH_FILE_OR_DIRECTORY"))
    );

    // The same by NATS, in the same order.
    let (mut by_nats, mut minutes_by_nats) = (Vec::new(), Vec::new());
    while by_nats.len() < all.len() {
        let (subject, body) = nats_told.recv_timeout(WITHIN).expect("all of them");
        let kind = subject.strip_prefix("transfer.fts_monitoring_").unwrap().to_owned();
        if kind == "queue_state" { minutes_by_nats.push(body) } else { by_nats.push((kind, body)) }
    }
    for job in [&good, &bad] {
        assert_eq!(states(&by_nats, job), states(&all, job));
    }
    assert!(by_nats.iter().all(|told| all.contains(told)), "word for word");

    // What the pair of storages did in that minute.
    let element = |url: String| longhaul_model::job::storage_element(&url).unwrap();
    let (from, to) = (element(storages.source.url("f1")), element(storages.target.url("f1")));
    let minute = consumer.minute(&from, &to);
    for (field, value) in [
        ("endpnt", json!("fts.example.org")),
        ("filesize_avg", json!(13.0)),
        ("filesize_stddev", json!(0.0)),
        ("success_rate", json!(50.0)),
        ("retry_count", json!(0)),
        ("submitted_count", json!(0)),
    ] {
        assert_eq!(minute[field], value, "{field} of {minute}");
    }
    assert!(minute["active_count"].as_u64().unwrap() >= 1, "{minute}");
    assert_eq!(minute["throughput"], json!(13.0 / 60.0));
    while !minutes_by_nats.contains(&minute) {
        minutes_by_nats.push(nats_told.recv_timeout(WITHIN).expect("the same minute").1);
    }

    // The broker is away, and jobs go on; the service is killed with messages in its spool, and again.
    activemq.kill();
    let mut later = Vec::new();
    for number in 0..12 {
        let name = format!("later{number}");
        storages.source.put(&name, name.as_bytes());
        later.push(storages.submit(&deployment, &name));
        if number % 4 == 3 {
            deployment.kill(SERVICE);
            deployment.start(SERVICE);
            deployment.until_ready();
        }
    }
    for job in &later {
        assert_eq!(deployment.longhaul(&["job", "wait", job, "--within", "60"]).status, 0);
    }
    deployment.until("it is told that messages wait", WITHIN, || {
        problems(&deployment).contains("messages by stomp wait on disk").then_some(())
    });
    deployment.kill(SERVICE);
    activemq.restart();
    let mut consumer = Consumer::connect(activemq.port);
    deployment.start(SERVICE);
    deployment.until_ready();
    let mut all = Vec::new();
    consumer.follow(&later, &mut all);
    for job in &later {
        let states = states(&all, job);
        // A kill in the midst of a copy puts it back.
        assert_eq!(
            (states[0].as_str(), states[states.len() - 1].as_str()),
            ("SUBMITTED", "FINISHED"),
            "{states:?}"
        );
    }
    deployment.until("nothing waits any more", WITHIN, || {
        (!problems(&deployment).contains("messages by stomp")).then_some(())
    });
    deployment.assert_alive();
}

/// What a broker does that is none: it says this to whoever connects, and goes on with that until they go.
fn hostile(says: &'static [u8], on: &'static [u8]) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let gone = Arc::new(AtomicUsize::new(0));
    let count = gone.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut greeting = [0; 4_096];
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.read(&mut greeting);
            let mut well = stream.write_all(says).is_ok();
            while well && !on.is_empty() {
                well = stream.write_all(on).is_ok();
            }
            let _ = stream.set_read_timeout(Some(WITHIN));
            while stream.read(&mut greeting).is_ok_and(|read| read > 0) {}
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (port, gone)
}

/// They are left one after the other, nothing is lost, and what is good in the list gets everything.
#[test]
fn brokers_that_are_none_are_left() {
    if !needs::program("nginx", &["-v"]) {
        return needs::not_run("hostile brokers", "there is no nginx");
    }
    let storages = Storages::start();
    let connected = b"CONNECTED\nversion:1.2\n\n\0";
    let brokers = [
        hostile(b"HTTP/1.1 400 Bad Request\r\n\r\n", b""),
        hostile(b"CONNECTED\nversion:1.0\n\n\0", b""),
        hostile(b"CONNECTED\nversion:1.2\nendless:", b"xxxxxxxxxxxxxxxxxxxxxxxx"),
        hostile(b"CONNECTED\nversion:1.2\nheart-beat:x\n\n\0", b""),
        hostile(b"ERROR\nmessage:go away\x1b[31m\n\nbody\0", b""),
        hostile(connected, b"MESSAGE\nsubscription:1\n\nnobody asked\0"),
        hostile(b"CONNECTED\nversion:1.2\n\n\0RECEIPT\nreceipt-id:77\n\n\0", b""),
    ];
    let urls: Vec<String> = brokers.iter().map(|(port, _)| format!("\"stomp://127.0.0.1:{port}\"")).collect();
    let (nats_port, nats_gone) = hostile(b"INFO {\"headers\":true}\r\nMSG a 1 99999999\r\n", b"");
    let deployment = storages.deployment(&format!(
        "[service.messages.stomp]\nbrokers = [{}]\n[service.messages.nats]\nservers = \
            [\"nats://127.0.0.1:{nats_port}\"]\n",
        urls.join(", ")
    ));
    storages.source.put("f1", b"content of f1");
    let job = storages.submit(&deployment, "f1");
    assert_eq!(deployment.longhaul(&["job", "wait", &job, "--within", "60"]).status, 0);
    deployment.until("each was tried and left", WITHIN, || {
        let left = brokers.iter().all(|(_, gone)| gone.load(Ordering::Relaxed) > 0);
        (left && nats_gone.load(Ordering::Relaxed) > 0).then_some(())
    });
    // Some greet well, and until they misbehave all seems to be well.
    let told = deployment.until("that messages wait is told", WITHIN, || {
        let told = problems(&deployment);
        let both = told.contains("messages by stomp wait on disk") && told.contains("messages by nats");
        both.then_some(told)
    });
    assert!(!told.contains('\u{1b}') && !told.contains("\\u001b"), "{told}");
    let spool = deployment.service_state().join("messages");
    let bytes: u64 = fs::read_dir(spool).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes > 1_000, "what is to be told lies there");
}
