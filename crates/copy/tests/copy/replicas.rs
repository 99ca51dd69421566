//! One pull from several servers, each with its own secret: complete and correct whatever one of them does,
//! with a report of what each did.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_copy::{CopyRequest, Endpoint, Options, Outcome, Progress, ReplicaTotals, Server, Stop};
use longhaul_model::{Algorithm, Digest, FaultCode, Hasher, Verification};
use longhaul_testkit::{content, wait_until};

use crate::common::{Ground, Ran, at, limited, order, place, recursive, resent_max, run_order, tree};

const MIB: usize = 1 << 20;

fn blake3(bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new([Algorithm::Blake3]);
    hasher.update(bytes);
    hasher.finish().get(Algorithm::Blake3).unwrap()
}

fn from_all(servers: &[&Server], path: &str, target: Endpoint, options: Options) -> CopyRequest {
    let mut places: Vec<Endpoint> = servers.iter().map(|server| at(server, path)).collect();
    let source = places.remove(0);
    CopyRequest { replicas: places, ..order(vec![source], target, options) }
}

fn ran(order: &CopyRequest) -> (Ran, Vec<ReplicaTotals>) {
    let progress = Arc::new(Progress::default());
    let ran = run_order(order, &progress, &Stop::default());
    (ran, progress.replicas())
}

/// So little in flight that a server whose streams are up late finds most of a file left.
fn little_ahead() -> Options {
    Options { memory_bytes: 8 << 20, ..Options::default() }
}

/// A server with this rate limit.
fn slow(ground: &Ground, name: &str, bytes_per_s: u64) -> Server {
    let mut options = crate::common::serve_options(&ground.make(name), false);
    options.limit = Some(bytes_per_s);
    Server::start(&options).unwrap()
}

#[test]
fn a_large_file_comes_from_both() {
    let ground = Ground::new();
    let bytes = content(1, 24 * MIB + 5);
    ground.write("one/a/f", &bytes);
    std::fs::create_dir_all(ground.path("two/b")).unwrap();
    // A replica under another name, with the same time.
    assert!(
        std::process::Command::new("cp")
            .arg("-p")
            .arg(ground.path("one/a/f"))
            .arg(ground.path("two/b/g"))
            .status()
            .unwrap()
            .success()
    );
    let (one, two) = (slow(&ground, "one", 5 << 20), slow(&ground, "two", 5 << 20));
    let to = place(ground.path("f").to_str().unwrap());
    let order =
        CopyRequest { replicas: vec![at(&two, "b/g")], ..order(vec![at(&one, "a/f")], to, little_ahead()) };
    let begun = Instant::now();
    let (ran, totals) = ran(&order);
    // What two servers need for it.
    let again = resent_max(begun.elapsed(), Duration::from_millis(2_400));
    let ran = ran.good();
    assert_eq!(std::fs::read(ground.path("f")).unwrap(), bytes);
    let [told] = &ran.told[..] else { panic!("{:?}", ran.told) };
    assert_eq!(told.outcome, Outcome::Done { verification: Verification::EndToEnd });
    assert_eq!(told.replicas.len(), 2);
    assert!(
        told.replicas.iter().all(|share| share.bytes > 0 && share.wrong.is_empty() && share.fault.is_none())
    );
    assert!(told.replicas[0].replica.ends_with("/a/f") && told.replicas[1].replica.ends_with("/b/g"));
    assert_eq!(totals.iter().map(|each| each.bytes).sum::<u64>(), bytes.len() as u64);
    assert!(ran.totals.bytes_resent <= again, "{:?}", ran.totals);
    assert_eq!(ran.totals.bytes_moved - ran.totals.bytes_resent, bytes.len() as u64);
    let sent = || one.bytes().0 + two.bytes().0;
    let once = bytes.len() as u64;
    wait_until(|| sent() >= once, || format!("{} of {once} bytes are sent", sent()));
    assert!(sent() <= once + again, "{} bytes are sent, each of {once} once", sent());
}

/// With a digest known beforehand no server is trusted, not even the source, whose tree is that of another
/// file.
#[test]
fn flipped_bits_at_the_source_are_repaired_and_told() {
    let ground = Ground::new();
    let bytes = content(1, 40 * MIB);
    let mut flipped = bytes.clone();
    let bad: Vec<usize> = (0..6).map(|place| (5 + 6 * place) * MIB).collect();
    bad.iter().for_each(|at| flipped[at + 4_321] ^= 4);
    ground.write("one/f", &flipped);
    ground.write("two/f", &bytes);
    // Most of it is requested from the server with the wrong data.
    let (one, two) = (ground.serve("one", false), slow(&ground, "two", 8 << 20));
    let to = || place(ground.path("f").to_str().unwrap());
    let order = from_all(&[&one, &two], "f", to(), little_ahead());
    let begun = Instant::now();
    let (ran, totals) = ran(&CopyRequest { blake3: Some(blake3(&bytes)), ..order });
    // The slow server brings what was wrong.
    let again = resent_max(begun.elapsed(), Duration::from_secs(1));
    let ran = ran.good();
    assert_eq!(std::fs::read(ground.path("f")).unwrap(), bytes);
    let [first, second] = &ran.told[0].replicas[..] else { panic!("{:?}", ran.told) };
    assert!(!first.wrong.is_empty(), "{first:?}");
    assert!(
        first.wrong.iter().all(|range| bad.contains(&(range.offset as usize)) && range.bytes == MIB as u64)
    );
    let fault = first.fault.as_ref().unwrap();
    assert_eq!(fault.code, FaultCode::WrongDigest);
    assert!(fault.detail.contains(&blake3(&flipped).to_string()), "{fault}");
    assert!(second.wrong.is_empty() && second.fault.is_none(), "{second:?}");
    assert_eq!(totals[0].wrong_ranges, first.wrong.len() as u64);
    let wrong = totals[0].wrong_bytes;
    assert!((wrong..=wrong + again).contains(&ran.totals.bytes_resent), "{wrong} wrong: {:?}", ran.totals);
}

/// Without a digest the source's file is authoritative, and a differing replica is detected chunk by chunk.
#[test]
fn a_replica_that_differs_cannot_spoil_the_source_s_file() {
    let ground = Ground::new();
    let bytes = content(1, 24 * MIB);
    let mut other = bytes.clone();
    (0..24).for_each(|place| other[place * MIB + 99] ^= 1);
    ground.write("one/f", &bytes);
    ground.write("two/f", &other);
    ground.write("three/f", &bytes[..23 * MIB]);
    // Time for the other to be asked for many chunks.
    let (one, two) = (slow(&ground, "one", 8 << 20), ground.serve("two", false));
    let three = ground.serve("three", false);
    let to = place(ground.path("f").to_str().unwrap());
    let (ran, totals) = ran(&from_all(&[&one, &two, &three], "f", to, little_ahead()));
    ran.good();
    assert_eq!(std::fs::read(ground.path("f")).unwrap(), bytes);
    let of = |server: &Server| {
        let shown = server.url().shown();
        totals.iter().find(|each| each.replica.contains(&shown)).unwrap().clone()
    };
    assert_eq!(of(&one).bytes, bytes.len() as u64);
    let (two, three) = (of(&two), of(&three));
    assert!(two.bytes == 0 && two.wrong_ranges >= 8, "{two:?}");
    assert_eq!(two.fault.unwrap().code, FaultCode::WrongDigest);
    let fault = three.fault.unwrap();
    assert!(fault.detail.contains("a file of 24117248 bytes, and not a file of 25165824"), "{fault}");
}

#[test]
fn a_tree_of_which_one_replica_has_a_part() {
    let ground = Ground::new();
    for number in 0..200 {
        let bytes = content(number, (number * 977 % 90_000) as usize);
        ground.write(&format!("one/run/d{}/f{number}", number % 5), &bytes);
        match number % 3 {
            0 => drop(ground.write(&format!("two/run/d{}/f{number}", number % 5), &bytes)),
            // The same size, but different bytes.
            1 => {
                drop(ground.write(
                    &format!("two/run/d{}/f{number}", number % 5),
                    &content(number + 1_000, bytes.len()),
                ))
            }
            _ => {}
        }
    }
    for number in 0..3 {
        let bytes = content(number, 9 * MIB + 3);
        ground.write(&format!("one/run/large{number}"), &bytes);
        ground.write(&format!("two/run/large{number}"), &bytes);
    }
    let (one, two) = (ground.serve("one", false), ground.serve("two", false));
    let target = ground.make("near");
    let (ran, _) = ran(&from_all(&[&one, &two], "run/", place(target.to_str().unwrap()), recursive()));
    let ran = ran.good();
    assert_eq!(tree(&target), tree(&ground.path("one/run")));
    assert_eq!((ran.totals.files_done, ran.totals.verified_end_to_end), (203, 203));
}

/// The listing and the trees come from the replica if the source is unreachable.
#[test]
fn the_others_go_on_without_the_source() {
    let ground = Ground::new();
    for server in ["one", "two"] {
        ground.write(&format!("{server}/run/f"), &content(4, 5 * MIB));
        ground.write(&format!("{server}/run/g"), &content(5, 10));
    }
    let (one, two) = (ground.serve("one", false), ground.serve("two", false));
    let order = from_all(&[&one, &two], "run/", place(ground.make("near").to_str().unwrap()), recursive());
    one.stop();
    let (ran, totals) = ran(&order);
    ran.good();
    assert_eq!(tree(&ground.path("near")), tree(&ground.path("two/run")));
    let gone = totals.iter().find(|each| each.fault.is_some()).unwrap();
    assert_eq!((gone.bytes, gone.fault.as_ref().unwrap().code), (0, FaultCode::Unreachable));
}

/// Runs until some bytes have arrived, then does something, which the copy survives or not.
fn when_some_is_there(order: &CopyRequest, then: impl FnOnce(&Stop) + Send) -> (Ran, Vec<ReplicaTotals>) {
    let (progress, stop) = (Arc::new(Progress::default()), Stop::default());
    let ran = std::thread::scope(|scope| {
        let (watched, stopping) = (progress.clone(), stop.clone());
        scope.spawn(move || {
            wait_until(|| watched.totals().bytes_running >= 4 << 20, || "nothing moves".into());
            then(&stopping);
        });
        run_order(order, &progress, &stop)
    });
    (ran, progress.replicas())
}

/// Promise 4: the same command resumes.
#[test]
fn a_server_that_dies_in_mid_file_is_replaced() {
    let ground = Ground::new();
    let bytes = content(1, 30 * MIB);
    ground.write("one/f", &bytes);
    ground.write("two/f", &bytes);
    // Both take part, since one alone is slower than the copy may be.
    let (one, two) = (slow(&ground, "one", 6 << 20), slow(&ground, "two", 6 << 20));
    let to = place(ground.path("f").to_str().unwrap());
    let order = from_all(&[&one, &two], "f", to, limited(7 << 20));
    let (ran, totals) = when_some_is_there(&order, move |_| one.stop());
    ran.good();
    assert_eq!(std::fs::read(ground.path("f")).unwrap(), bytes);
    assert_eq!(totals.iter().map(|each| each.bytes).sum::<u64>(), bytes.len() as u64);
    assert!(totals[1].bytes > 12 << 20, "{totals:?}");
}

/// Progress made with several servers resumes with any of them.
#[test]
fn goes_on_with_the_one_that_is_left() {
    let ground = Ground::new();
    let bytes = content(1, 50 * MIB);
    ground.write("one/f", &bytes);
    ground.write("two/f", &bytes);
    let (one, two) = (slow(&ground, "one", 15 << 20), slow(&ground, "two", 15 << 20));
    let target = || place(&format!("{}/", ground.make("near").display()));
    let whole = from_all(&[&one, &two], "f", target(), Options::default());
    let part = CopyRequest { options: limited(8 << 20), ..whole.clone() };
    let (ran, _) = when_some_is_there(&part, |stop| stop.stop());
    assert_eq!(ran.result.unwrap_err().code, FaultCode::Interrupted);
    let there = ran.totals.bytes_running;
    one.stop();
    let begun = Instant::now();
    let (again, _) = self::ran(&whole);
    let most_again = resent_max(begun.elapsed(), Duration::from_secs(3));
    let again = again.good();
    assert_eq!(std::fs::read(ground.path("near/f")).unwrap(), bytes);
    let moved = again.totals.bytes_moved;
    let most = bytes.len() as u64 - there + (2 << 20) + most_again;
    assert!(moved <= most, "{moved} moved, {there} were there");
    assert!(!ground.path("near/.longhaul").exists());
}

/// One source and a digest: another file is not committed, and an existing file is compared.
#[test]
fn a_digest_guards_a_single_source() {
    let ground = Ground::new();
    let bytes = content(1, 3 * MIB + 9);
    ground.write("one/f", &bytes);
    let server = ground.serve("one", false);
    let with = |digest: Digest| CopyRequest {
        blake3: Some(digest),
        ..order(vec![at(&server, "f")], place(ground.path("f").to_str().unwrap()), Options::default())
    };
    let (bad, _) = ran(&with(blake3(b"something else")));
    assert_eq!(bad.failed[0].1.code, FaultCode::WrongDigest, "{:?}", bad.failed);
    assert!(!ground.path("f").exists());
    ran(&with(blake3(&bytes))).0.good();
    assert_eq!(std::fs::read(ground.path("f")).unwrap(), bytes);
    let (skipped, _) = ran(&with(blake3(&bytes)));
    assert_eq!(skipped.good().totals.files_skipped, 1);
    let (other, _) = ran(&with(blake3(b"something else")));
    assert_eq!(other.failed[0].1.code, FaultCode::NameClash, "{:?}", other.failed);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let ground = Ground::new();
    ground.write("one/d/f", b"x");
    let server = ground.serve("one", true);
    let near = || place(ground.make("near").to_str().unwrap());
    let refused = |order: CopyRequest, says: &str| {
        let fault = ran(&order).0.result.unwrap_err();
        assert!(fault.code == FaultCode::BadRequest && fault.detail.contains(says), "{fault}");
    };
    let one = || order(vec![at(&server, "d/f")], near(), Options::default());
    let two = || order(vec![at(&server, "d/f"), at(&server, "d")], near(), recursive());
    let replicas = || vec![at(&server, "d/f")];
    refused(CopyRequest { replicas: replicas(), ..two() }, "one source");
    refused(CopyRequest { blake3: Some(blake3(b"x")), ..two() }, "one source");
    refused(CopyRequest { replicas: vec![near()], ..one() }, "--replica takes a server");
    refused(CopyRequest { replicas: replicas(), ..order(vec![near()], near(), recursive()) }, "to this host");
    refused(CopyRequest { replicas: replicas(), target: at(&server, ""), ..one() }, "to this host");
    let directory = order(vec![at(&server, "d")], near(), recursive());
    refused(CopyRequest { blake3: Some(blake3(b"x")), ..directory }, "a directory");
    let many = (0..longhaul_copy::SERVERS_MAX).map(|_| at(&server, "d/f")).collect();
    refused(CopyRequest { replicas: many, ..one() }, "the limit is");
}
