//! A door by itself, to try clients and to measure:
//! `open DIRECTORY CERTIFICATE KEY ADDRESS TOKEN [AUTHORITIES]`. Everybody may read, who has the token may
//! write. Ends with its standard input.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use longhaul_doors::{Access, Door, Grant, Limits, Outgoing, Right, Rights, Settings};
use longhaul_security::{ForeignServerTrust, door_server_tls, foreign_client_tls, hash_secret};
use longhaul_storage::{FlushPolicy, Posix, PosixOptions};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, certificate, key, address, token, ..] = arguments.as_slice() else {
        return Err("open DIRECTORY CERTIFICATE KEY ADDRESS TOKEN [AUTHORITIES]".into());
    };
    let text = |path: &str| std::fs::read_to_string(path);
    let authorities = arguments.get(5).map(|path| text(path)).transpose()?;
    let storage = Posix::open(PosixOptions {
        name: "disk".parse()?,
        root: PathBuf::from(root),
        work: None,
        writable: true,
        flush: if std::env::var_os("NO_FLUSH").is_some() {
            FlushPolicy::None
        } else {
            FlushPolicy::default()
        },
    })?;
    let outgoing = match &authorities {
        None => None,
        Some(pem) => Some(Arc::new(Outgoing {
            tls: foreign_client_tls(ForeignServerTrust::Authorities(pem))?,
            allow: vec!["127.0.0.0/8".parse()?, "::1".parse()?],
        })),
    };
    let clients: Vec<&str> = authorities.iter().map(String::as_str).collect();
    let all = Grant { may: Right::Write, below: String::new() };
    let access = Access {
        tls: door_server_tls(&text(certificate)?, &text(key)?, &clients, &[])?,
        identities: false,
        rights: Rights {
            subjects: Vec::new(),
            tokens: vec![(hash_secret(token), all)],
            anonymous: Some(String::new()),
        },
    };
    let settings = Settings {
        storage: Arc::new(storage),
        names: Vec::new(),
        make_parents: true,
        delete_trees: false,
        owner: *b"example!",
        properties: None,
        outgoing,
        users: None,
        issued: None,
        tape: None,
        audit: None,
        limits: Limits::default(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let door = runtime.block_on(Door::open(settings, access, &[address.parse()?]))?;
    println!("https://localhost:{}/", door.addresses()[0].port());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let running = runtime.spawn(door.run(stopped));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    stop.send_replace(true);
    runtime.block_on(running)?;
    Ok(())
}
