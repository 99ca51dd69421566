//! The catalog in PostgreSQL: as in SQLite, also when the server or the connection to it dies.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use longhaul_catalog::{Catalog, CatalogError, PostgresConfig, conformance};
use longhaul_testbed::foreign::PostgreSql;
use longhaul_testbed::{Deployment, Random, SERVICE, ServiceOptions, SiteOptions, needs, tree};

const WITHIN: Duration = Duration::from_secs(60);
/// A database with a catalog's tables and nothing in them.
const EMPTY: &str = "empty_catalog";

fn missing() -> bool {
    let why = PostgreSql::missing();
    if let Some(why) = &why {
        needs::not_run("the catalog in PostgreSQL", why);
    }
    why.is_some()
}

fn place(location: &str) -> PostgresConfig {
    format!("postgresql://{location}").parse().unwrap()
}

#[test]
fn the_catalog_conforms() {
    if missing() {
        return;
    }
    let server = PostgreSql::start();
    // The tables are made once: every catalog is a copy of an empty one.
    server.create(EMPTY);
    drop(Catalog::connect(&place(&server.location_of(EMPTY)), conformance::NOW).unwrap());
    let count = AtomicUsize::new(0);
    conformance::check(&|| {
        let name = format!("catalog{}", count.fetch_add(1, Ordering::Relaxed));
        server.create_like(&name, EMPTY);
        let place = place(&server.location_of(&name));
        Box::new(move || Catalog::connect(&place, conformance::NOW).unwrap())
    });
}

#[test]
fn a_second_service_is_kept_away() {
    if missing() {
        return;
    }
    let server = PostgreSql::start();
    let place = place(&server.location());
    let first = Catalog::connect(&place, conformance::NOW).unwrap();
    let error = Catalog::connect(&place, conformance::NOW).err().unwrap();
    assert!(
        matches!(&error, CatalogError::Unusable(why) if why.to_string().contains("another service")),
        "{error}"
    );
    drop(first);
    Catalog::connect(&place, conformance::NOW).unwrap();
}

/// Promise 3: what was answered survives a crash of the server, and the same handle goes on afterwards.
#[test]
fn a_server_that_crashes_loses_nothing_that_was_answered() {
    if missing() {
        return;
    }
    let mut server = PostgreSql::start_durable();
    let catalog = Catalog::connect(&place(&server.location()), conformance::NOW).unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let mut refused = 0;
    for round in 0..3 {
        let (writing, writer) = (answered.clone(), catalog.clone());
        let begun = answered.load(Ordering::SeqCst);
        let mover = thread::spawn(move || {
            loop {
                let number = writing.load(Ordering::SeqCst);
                if let Err(error) = writer.set_setting(&format!("n{number}"), "written") {
                    return error;
                }
                writing.store(number + 1, Ordering::SeqCst);
            }
        });
        while answered.load(Ordering::SeqCst) < begun + 50 {
            assert!(!mover.is_finished(), "round {round}: it fails before the crash: {:?}", mover.join());
            thread::yield_now();
        }
        server.crash();
        let error = mover.join().unwrap();
        assert!(matches!(error, CatalogError::Busy(_)), "round {round}: {error}");
        assert!(matches!(catalog.setting("n0"), Err(CatalogError::Busy(_))));
        server.start_again();
        // It recovers first, and says so to whoever comes too early.
        while catalog.set_setting("again", &round.to_string()).is_err() {
            refused += 1;
            assert!(refused < 1_000_000, "it never came back");
        }
        for number in 0..answered.load(Ordering::SeqCst) {
            let found = catalog.setting(&format!("n{number}")).unwrap();
            assert_eq!(found.as_deref(), Some("written"), "n{number} was answered in round {round}");
        }
    }
}

/// Where a connection ends: the client's n-th `COMMIT` goes through, or not, and its answer never comes back.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    Before,
    After,
}

/// Stands between a catalog and its server, and cuts one connection where it hurts most.
fn cutting(to: u16, cut: Cut, commit: usize) -> u16 {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).unwrap();
            let seen = seen.clone();
            thread::spawn(move || carry(client, server, cut, commit, &seen));
        }
    });
    port
}

fn carry(mut client: TcpStream, mut server: TcpStream, cut: Cut, commit: usize, seen: &AtomicUsize) {
    let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let silent = Arc::new(Mutex::new(false));
    let is_silent = silent.clone();
    let returning = thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(count @ 1..) = answers.read(&mut bytes) {
            if *is_silent.lock().unwrap() {
                // The answer to the commit: it has happened, and nobody hears of it.
                break;
            }
            if back.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = back.shutdown(Shutdown::Both);
        let _ = answers.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 65_536];
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        let bytes = &bytes[..count];
        let commits = bytes.windows(7).any(|window| window == b"COMMIT\0");
        let is_cut = commits && seen.fetch_add(1, Ordering::SeqCst) + 1 == commit;
        if is_cut && cut == Cut::Before {
            break;
        }
        // No answer passes until the commit has: one to what was sent before it would end the connection too
        // soon.
        let silent = is_cut.then(|| silent.lock().unwrap());
        if server.write_all(bytes).is_err() {
            break;
        }
        if let Some(mut silent) = silent {
            *silent = true;
        }
    }
    let _ = server.shutdown(Shutdown::Write);
    let _ = client.shutdown(Shutdown::Both);
    let _ = returning.join();
}

/// Results are applied exactly once, so the caller must know which of both happened.
#[test]
fn a_commit_without_an_answer_is_looked_up() {
    if missing() {
        return;
    }
    let server = PostgreSql::start();
    for (name, cut) in [("before", Cut::Before), ("after", Cut::After)] {
        server.create(name);
        // The format is there already, so that the first commit seen is the one below.
        drop(Catalog::connect(&place(&server.location_of(name)), conformance::NOW).unwrap());
        let port = cutting(server.port(), cut, 1);
        let between = place(&format!("longhaul@127.0.0.1:{port}/{name}"));
        let catalog = Catalog::connect(&between, conformance::NOW).unwrap();
        let answer = catalog.set_setting("key", "value");
        match cut {
            Cut::Before => assert!(matches!(answer, Err(CatalogError::Busy(_))), "{answer:?}"),
            Cut::After => answer.unwrap(),
        }
        let kept = catalog.setting("key").unwrap();
        assert_eq!(kept.is_some(), cut == Cut::After, "{name}");
        catalog.set_setting("next", "works").unwrap();
    }
}

/// A service with its agents, over a crash of the database while files move.
#[test]
fn a_service_moves_files_over_a_crash_of_its_database() {
    if missing() {
        return;
    }
    let mut server = PostgreSql::start_durable();
    let settings = format!("[service.database]\nurl = \"postgresql://{}\"\n", server.location());
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    assert!(!deployment.service_state().join("catalog.sqlite").exists());
    for name in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(name));
    }
    let mut random = Random::new(18);
    for name in ["first", "second"] {
        tree::make(&deployment.storage("alpha").join(name), 40, 4_000_000, &mut random);
    }
    deployment.register("first", "alpha:first");
    deployment.deliver("first", "beta", WITHIN.as_secs());
    deployment.register("second", "alpha:second");
    server.crash();
    let refused = deployment.longhaul(&["subscribe", "second", "beta"]);
    assert_ne!(refused.status, 0);
    assert!(refused.stderr.contains("database"), "{}", refused.stderr);
    server.start_again();
    deployment.until("the database is used again", WITHIN, || {
        (deployment.longhaul(&["subscribe", "second", "beta"]).status == 0).then_some(())
    });
    deployment.deliver("second", "beta", WITHIN.as_secs());
    deployment.restart(SERVICE);
    deployment.until_ready();
    deployment.check();
    deployment.assert_alive();
}
