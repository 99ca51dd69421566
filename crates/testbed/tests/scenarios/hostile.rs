//! Peers that are agents of the deployment by their certificates and enemies by what they do. Whatever they
//! try: the honest agent lives within its memory, serves the others meanwhile, says why, and gives or takes
//! nothing that was not agreed. (reliability.md: untrusted peer, F19, F34, F39; Promises 1, 2, 7, 9.)

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::time::Duration;

use longhaul_api::routes;
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{FaultCode, Timestamp};
use longhaul_security::Permit;
use longhaul_testbed::hostile::source::{Hostile, Lie};
use longhaul_testbed::hostile::target::{Thief, answer, listed};
use longhaul_testbed::hostile::{Wire, descriptors, hello};
use longhaul_testbed::processes::peak_bytes;
use longhaul_testbed::tree;
use longhaul_testbed::{Deployment, Random, SiteOptions, effort};
use longhaul_wire::{BatchId, FileNumber, Frame, RequestId};
use serde_json::{Value, json};

/// A source that lives and sends nothing is given up after a minute.
const WITHIN: Duration = Duration::from_secs(180);
const MEMORY: u64 = 64 << 20;
/// Beside its budget a process holds its program, its threads and what it knows.
const BESIDE: u64 = 64 << 20;
/// A change to a permit before it is signed.
type Change = Box<dyn FnOnce(&mut Permit)>;
const CHUNK: u64 = CHUNK_BYTES as u64;
/// With back-off, in the time that it takes to give a source up, on a busy machine too; without it there
/// would be thousands.
const STREAMS_PER_LIE: u64 = 1_000;
/// Stands in every file that must not get out.
const SECRET: &[u8] = b"this was never agreed to";

/// Alpha is registered where the hostile source listens; beta is its victim, gamma an honest neighbour.
struct World {
    deployment: Deployment,
    hostile: Hostile,
}

fn world() -> World {
    let listener = Hostile::bind();
    let mut deployment = Deployment::new();
    let mut alpha = SiteOptions::new("alpha");
    alpha.settings = format!("advertise = [\"{}\"]", listener.local_addr().unwrap());
    for site in [alpha, SiteOptions::new("beta").memory(MEMORY), SiteOptions::new("gamma")] {
        deployment.add_site(site);
    }
    let root = deployment.storage("alpha");
    let mut random = Random::new(71);
    for folder in Lie::ALL.map(Lie::folder).into_iter().chain(["honest".to_owned()]) {
        let folder = root.join(folder);
        fs::create_dir(&folder).unwrap();
        for (name, size) in [("small", 1_000), ("large", 2 * CHUNK as usize + 5)] {
            let bytes: Vec<u8> = (0..size).map(|_| random.below(256) as u8).collect();
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
    let hostile = Hostile::start(listener, deployment.credentials("alpha"), root);
    World { deployment, hostile }
}

impl World {
    /// Subscribes beta to what one lie is told about, and returns the first fault that is recorded; none if
    /// all of it came all the same.
    fn first_fault(&self, lie: Lie) -> Option<Value> {
        let (deployment, folder) = (&self.deployment, lie.folder());
        deployment.register(&folder, &format!("alpha:{folder}"));
        let subscription =
            deployment.json(&["subscribe", &folder, "beta"])["id"].as_str().unwrap().to_owned();
        let fault = deployment.until(&format!("{lie:?} is told"), WITHIN, || {
            let query = [("dataset", folder.as_str()), ("target", "beta")];
            let transfers = deployment.api().all(&routes::TRANSFER_LIST, &[], &query);
            let fault =
                transfers.iter().map(|transfer| transfer["fault"].clone()).find(|fault| !fault.is_null());
            // Only the target itself, or who asked, may give a file up.
            let given_up: Vec<_> = transfers.iter().filter(|one| one["state"] == json!("failed")).collect();
            assert!(given_up.is_empty(), "{lie:?}: {given_up:?}");
            let done = transfers.len() == 2 && transfers.iter().all(|one| one["state"] == json!("done"));
            fault.map(Some).or(done.then_some(None))
        });
        deployment.json(&["subscription", "cancel", &subscription]);
        fault
    }

    /// Nothing but what is right lies at beta, under any final name.
    fn assert_clean(&self, lie: Lie) {
        let folder = lie.folder();
        for name in ["small", "large"] {
            let (here, there) = (self.deployment.storage("beta"), self.deployment.storage("alpha"));
            if let Ok(bytes) = fs::read(here.join(&folder).join(name)) {
                assert!(
                    bytes == fs::read(there.join(&folder).join(name)).unwrap(),
                    "{lie:?}: {name} is wrong"
                );
            }
        }
    }
}

/// What is told of each lie: one of these codes and words. Of some nothing need be told, if all is well in
/// the end.
fn expected(lie: Lie) -> (&'static [&'static str], &'static str) {
    match lie {
        Lie::WrongBytes => (&["E2041"], ""),
        Lie::WrongChecksum => (&["E5003"], "damaged"),
        Lie::Changes => (&["E2002"], "modified"),
        Lie::Forges => (&["E2001"], "gone"),
        Lie::WrongAnswer => (&["E4007"], "no, and yes"),
        // Closed or reset, as the last bytes meet the hang-up.
        Lie::HangsUp => (&["E5002"], "connection"),
        Lie::Stops => (&["E5004"], "sent no data for"),
        Lie::Floods => (&["E9001", "E5002"], "without reading"),
        Lie::JudgesTarget => (&["E2003"], "the source says: the target is full"),
        Lie::DismissesTask => (&["E5002"], "the source says: the request is malformed"),
        Lie::FeignsRestart => (&["E9003"], "back in a moment"),
        _ => (&["E9001", "E5002"], "protocol"),
    }
}

/// Promises 1, 2, 7: a source may say what it likes. What is honest comes from it, and from others, all the
/// same.
fn lies_are_found_out(lies: &[Lie]) {
    let mut world = world();
    let beta = world.deployment.pid("beta");
    world.deployment.register("honest", "alpha:honest");
    let mut wrong = Vec::new();
    for &lie in lies {
        let before = world.hostile.streams();
        let told = world.first_fault(lie);
        let streams = world.hostile.streams() - before;
        println!("{lie:?}: {streams} streams, {}", told.as_ref().unwrap_or(&Value::Null));
        world.assert_clean(lie);
        let (codes, words) = expected(lie);
        match told {
            Some(fault) => {
                let detail = fault["detail"].as_str().unwrap();
                let forged = detail.chars().any(|c| c.is_control() || c == '\u{202e}');
                if forged || !codes.iter().any(|code| fault["code"] == json!(code)) || !detail.contains(words)
                {
                    wrong.push(format!("{lie:?}: {fault}"));
                }
            }
            None if lie == Lie::Twice => {}
            None => wrong.push(format!("{lie:?}: nothing was told")),
        }
        // A target does not run after a source that throws it out.
        if streams > STREAMS_PER_LIE {
            wrong.push(format!("{lie:?}: {streams} streams"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    world.deployment.deliver("honest", "beta", WITHIN.as_secs());
    assert!(peak_bytes(beta) < MEMORY + BESIDE, "beta took {} bytes", peak_bytes(beta));
    world.deployment.assert_alive();
    world.deployment.check();
}

#[test]
fn a_source_that_gives_other_bytes_is_found_out() {
    lies_are_found_out(&[Lie::WrongBytes, Lie::WrongChecksum, Lie::Changes, Lie::Forges, Lie::WrongAnswer]);
}

#[test]
fn a_source_that_gives_other_lengths_is_found_out() {
    lies_are_found_out(&[Lie::WrongLength, Lie::Longer, Lie::Twice]);
}

#[test]
fn a_source_that_gives_what_nobody_asked_for_is_found_out() {
    lies_are_found_out(&[Lie::WrongOffset, Lie::Unasked, Lie::AsksBack]);
}

#[test]
fn a_source_that_sends_nonsense_is_found_out() {
    lies_are_found_out(&[Lie::Giant, Lie::Garbage]);
}

#[test]
fn a_source_that_never_ends_is_given_up() {
    lies_are_found_out(&[Lie::HangsUp, Lie::Floods]);
}

/// A source speaks of itself: what it says of the target, or of the task, neither stops the target nor ends a
/// file for good.
#[test]
fn a_source_that_speaks_for_others_is_not_believed() {
    lies_are_found_out(&[Lie::JudgesTarget, Lie::DismissesTask, Lie::FeignsRestart]);
}

/// It takes a minute to be sure of it.
#[test]
fn a_source_that_stops_in_the_middle_is_given_up() {
    if effort::hostile_streams() > effort::HOSTILE_STREAMS {
        lies_are_found_out(&[Lie::Stops]);
    }
}

/// Alpha is the victim; beta's credentials are in a thief's hands; gamma is an honest neighbour.
fn victim() -> (Deployment, Thief) {
    let mut deployment = Deployment::new();
    let mut alpha = SiteOptions::new("alpha").memory(MEMORY);
    let second = deployment.directory().join("second");
    fs::create_dir(&second).unwrap();
    // A second storage of the same agent, to which no permit of this test leads.
    alpha.settings = format!("[[agent.storages]]\nname = \"alpha-second\"\nroot = {second:?}\n");
    for site in [alpha, SiteOptions::new("beta"), SiteOptions::new("gamma")] {
        deployment.add_site(site);
    }
    deployment.stop("beta");

    let root = deployment.storage("alpha");
    fs::write(root.join("open"), b"for everyone").unwrap();
    fs::write(second.join("open"), &SECRET[..12]).unwrap();
    fs::write(root.join("closed"), SECRET).unwrap();
    let outside = deployment.directory().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), SECRET).unwrap();
    symlink(outside.join("secret"), root.join("link")).unwrap();
    symlink(&outside, root.join("folder")).unwrap();
    symlink("/proc/self/environ", root.join("environ")).unwrap();
    let authority = deployment.service_state().join("authority");
    let of = deployment.credentials("alpha");
    let thief = Thief::new(
        deployment.credentials("beta"),
        &authority,
        deployment.data_address("alpha"),
        &of,
        "alpha",
    );
    (deployment, thief)
}

/// Promise 9: a permit opens what it names, to whom it names, while it lasts; and nothing else is ever read.
#[test]
fn a_target_gets_what_its_permit_says_and_nothing_else() {
    let (mut deployment, thief) = victim();
    let open = listed("open", 12);
    let closed = listed("closed", SECRET.len() as u64);
    let ask = |file: u32| Frame::RequestPack { request: RequestId(0), files: vec![FileNumber(file)] };

    // What is permitted comes.
    let mut wire = thief.dial(1);
    thief.announce(&mut wire, 0, 0, std::slice::from_ref(&open));
    wire.send(&ask(0), &[]).unwrap();
    assert_eq!(answer(&mut wire), Some(Ok(b"for everyone".to_vec())));

    // Whoever knows the name of a session and not its key does not get in.
    let mut stranger = Wire::dial(deployment.data_address("alpha"), &thief.credentials).unwrap();
    stranger.send(&hello(1, 9), &[]).unwrap();
    assert_eq!(stranger.goodbye().map(|fault| fault.code), Some(FaultCode::NotAuthenticated));

    // Permits of others, of other times, for other lists; kept, changed or made up.
    let gamma = deployment.credentials("gamma").identity().unwrap().require_agent().unwrap().0;
    let changes: [(&str, Change); 5] = [
        ("another agent's", Box::new(move |permit| permit.target_agent = gamma)),
        ("another source's", Box::new(move |permit| permit.source_agent = gamma)),
        ("another storage's", Box::new(|permit| permit.source_storage = "alpha-second".parse().unwrap())),
        ("an old one", Box::new(|permit| permit.expires = Timestamp(1_700_000_000_000_000))),
        ("another list's", Box::new(|permit| permit.list_digest = [7; 32])),
    ];
    let mut permits: Vec<(&str, std::sync::Arc<str>)> = Vec::new();
    for (name, change) in changes {
        permits.push((name, thief.permit(std::slice::from_ref(&closed), change)));
    }
    let good = thief.permit(std::slice::from_ref(&closed), |_| {});
    permits.push(("one for something else", thief.permit(std::slice::from_ref(&open), |_| {})));
    permits.push(("none", "".into()));
    permits.push(("a cut one", good[..good.len() - 2].into()));
    permits.push(("a changed one", good.replacen('A', "B", 1).into()));
    for (batch, (name, permit)) in (10..).zip(permits) {
        let mut wire = thief.dial(2);
        wire.send(&thief.manifest(batch, batch, permit, std::slice::from_ref(&closed)), &[]).unwrap();
        wire.send(&ask(batch), &[]).unwrap();
        assert_eq!(answer(&mut wire), Some(Err(FaultCode::PermitRefused)), "{name}");
    }

    // Names that lead out of the export, even if the service had permitted them.
    for (batch, name) in (0..).zip(["link", "folder/secret", "environ", "../outside/secret"]) {
        let mut wire = thief.dial(3);
        if name.starts_with("..") {
            let mut frame =
                thief.manifest(batch, batch, good.clone(), &[listed("xx/outside/secret", 24)]).encode(0);
            // The whole name: the permit before it, which is random, may well have an "xx" of its own.
            let at = frame.windows(10).position(|ten| ten == b"xx/outside").unwrap();
            frame[at..at + 2].copy_from_slice(b"..");
            wire.send_raw(&frame).unwrap();
            assert_eq!(wire.goodbye().map(|fault| fault.code), Some(FaultCode::ProtocolError), "{name}");
            continue;
        }
        thief.announce(&mut wire, batch, batch, &[listed(name, SECRET.len() as u64)]);
        wire.send(&ask(batch), &[]).unwrap();
        match answer(&mut wire) {
            Some(Err(code)) => println!("{name}: {code}"),
            other => panic!("{name}: {other:?}"),
        }
    }

    // More than was announced: other files, other places, other storages.
    let mut wire = thief.dial(4);
    thief.announce(&mut wire, 0, 0, std::slice::from_ref(&open));
    let part = |file: u32, offset: u64| Frame::Request {
        request: RequestId(0),
        file: FileNumber(file),
        offset,
        len: CHUNK,
    };
    for frame in [ask(1), ask(u32::MAX), part(0, 0), part(0, CHUNK << 20), part(5, 0)] {
        wire.send(&frame, &[]).unwrap();
        let answered = answer(&mut wire);
        assert!(matches!(answered, Some(Err(_))), "{frame:?}: {answered:?}");
    }
    drop(wire);
    deployment.assert_alive();
    assert_no_file_of(&deployment, "outside");
}

/// Nothing was written where nothing may be written.
fn assert_no_file_of(deployment: &Deployment, folder: &str) {
    let here: Vec<_> = fs::read_dir(deployment.directory().join(folder)).unwrap().collect();
    assert_eq!(here.len(), 1, "{here:?}");
}

/// Promise 9: a request that mixes files of two permits gets none of them from the wrong storage.
#[test]
fn permits_of_two_storages_are_not_mixed() {
    let (_deployment, thief) = victim();
    let open = listed("open", 12);
    let other = listed("other", 12);
    let mut wire = thief.dial(1);
    thief.announce(&mut wire, 0, 0, std::slice::from_ref(&open));
    let permit = thief.permit(std::slice::from_ref(&other), |permit| {
        permit.source_storage = "alpha-second".parse().unwrap()
    });
    let Frame::Manifest(mut manifest) = thief.manifest(1, 1, permit, std::slice::from_ref(&other)) else {
        unreachable!()
    };
    manifest.storage = "alpha-second".parse().unwrap();
    wire.send(&Frame::Manifest(manifest), &[]).unwrap();
    assert_eq!(wire.receive().unwrap().0, Frame::ManifestAnswer { batch: BatchId(1), fault: None });
    // "open" of the second storage was never permitted.
    let files = vec![FileNumber(0), FileNumber(1)];
    wire.send(&Frame::RequestPack { request: RequestId(0), files }, &[]).unwrap();
    while let Some((frame, payload)) = wire.receive() {
        assert!(
            !payload.windows(12).any(|part| part == &SECRET[..12]),
            "{frame:?} gives what was not permitted"
        );
        if !matches!(frame, Frame::Ping { .. }) {
            break;
        }
    }
}

/// Promise 7, F19, F34: whoever asks without end, or not at all, costs little, and the others are served.
#[test]
fn a_target_that_wears_its_source_out_does_not() {
    let (mut deployment, thief) = victim();
    let (alpha, address) = (deployment.pid("alpha"), deployment.data_address("alpha"));
    let folder = deployment.storage("alpha").join("run7");
    fs::create_dir(&folder).unwrap();
    tree::make(&folder, 100, 60_000_000, &mut Random::new(73));
    deployment.register("run7", "alpha:run7");
    deployment.json(&["site", "limit", "gamma", "--in", "3MB"]);
    deployment.json(&["subscribe", "run7", "gamma"]);

    // Somebody asks and does not read the answers; somebody announces without end; somebody speaks in giants.
    let mut held = Vec::new();
    for (session, what) in (10..).zip(["ping", "request", "tiny manifests", "manifest", "giant"]) {
        let mut wire = thief.dial(session);
        if what == "request" {
            thief.announce(&mut wire, 0, 0, &[listed("open", 12)]);
        }
        println!("{what}: {} frames", flood(&thief, &mut wire, what));
        held.push(wire);
        println!("{what}: peak {} MB", peak_bytes(alpha) >> 20);
    }
    // What begins only now is served too.
    let late = deployment.storage("alpha").join("late");
    fs::create_dir(&late).unwrap();
    tree::make(&late, 20, 1_000_000, &mut Random::new(79));
    deployment.register("late", "alpha:late");
    deployment.json(&["site", "limit", "gamma", "--in", "none"]);
    deployment.deliver("late", "gamma", WITHIN.as_secs());
    deployment.json(&["site", "limit", "gamma", "--in", "3MB"]);

    // Half a handshake, half a frame, no word at all, one byte and then none.
    let mut silent: Vec<TcpStream> = Vec::new();
    for number in 0..300 {
        let Ok(mut socket) = TcpStream::connect(address) else { continue };
        let _ = match number % 3 {
            0 => socket.write_all(&[0x16]),
            1 => socket.write_all(b"GET / HTTP/1.1\r\n\r\n"),
            _ => Ok(()),
        };
        silent.push(socket);
    }
    let mut half = Wire::dial(address, &thief.credentials).unwrap();
    let whole = hello(99, 1).encode(0);
    half.send_raw(&whole[..whole.len() - 1]).unwrap();
    let trickle = trickle(Wire::dial(address, &thief.credentials).unwrap());
    // Streams without end.
    let mut refused = 0;
    for number in 0..effort::hostile_streams() {
        if number % 100 == 0 {
            let mut wire = Wire::dial(address, &thief.credentials).unwrap();
            refused += u32::from(wire.send(&hello((number / 100) as u8, 2), &[]).is_err());
        } else {
            refused += u32::from(TcpStream::connect(address).is_err());
        }
    }
    println!("{refused} refused; {} descriptors, peak {} MB", descriptors(alpha), peak_bytes(alpha) >> 20);
    assert!(descriptors(alpha) < 1_500, "{} descriptors", descriptors(alpha));
    assert!(peak_bytes(alpha) < MEMORY + BESIDE, "alpha took {} bytes", peak_bytes(alpha));

    deployment.json(&["site", "limit", "gamma", "--in", "none"]);
    deployment.deliver("run7", "gamma", WITHIN.as_secs());
    let sent = tree::survey(&folder).files;
    tree::assert_same(&sent, &deployment.storage("gamma").join("run7"), "");
    // Whoever does not say what it wants is not waited for.
    assert!(matches!(half.receive(), None | Some((Frame::Goodbye { .. }, _))), "half a hello was waited for");
    trickle.join().unwrap();
    for socket in &mut silent {
        socket.set_read_timeout(Some(WITHIN)).unwrap();
        let ended = std::io::copy(socket, &mut std::io::sink());
        let waits = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!ended.as_ref().is_err_and(waits), "a silent stream was waited for");
    }
    drop(held);
    deployment.assert_alive();
    deployment.check();
}

/// A hello at one byte a second, which never comes to its end.
fn trickle(mut wire: Wire) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for byte in hello(98, 1).encode(0) {
            if wire.send_raw(&[byte]).is_err() || !wire.is_quiet_for(Duration::from_secs(1)) {
                return;
            }
        }
        panic!("the source waited for a hello of a minute");
    })
}

/// Sends the same again and again and reads nothing, until the source has enough of it; says how often.
fn flood(thief: &Thief, wire: &mut Wire, what: &str) -> u64 {
    let files: Vec<_> = (0..200).map(|number| listed(&format!("f{number:0>240}"), 12)).collect();
    let permit = thief.permit(&files, |_| {});
    for number in 0..60_000u32 {
        let sent = match what {
            "ping" => wire.send_raw(&Frame::Ping { number: 1 }.encode(0).repeat(64)),
            "request" => wire.send(
                &Frame::RequestPack { request: RequestId(number), files: vec![FileNumber(0); 256] },
                &[],
            ),
            "manifest" => wire.send(&thief.manifest(number, number * 200, permit.clone(), &files), &[]),
            "tiny manifests" => wire.send(&thief.manifest(number, number, "".into(), &[]), &[]),
            _ => wire.send_raw(&[8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        };
        if sent.is_err() {
            return number.into();
        }
    }
    60_000
}
