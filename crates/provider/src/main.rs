//! `longhaul-provider`: a simulated circuit provider for tests. It speaks NSI CS 2.1, OSCARS 1.x REST and
//! SENSE over one network of ports with VLANs and bandwidth, has its own state machines, and injects faults
//! on request.
//!
//! It shares no code with what it tests (`circuits`, `gateways`), not even XML and HTTP libraries. Not here:
//! data paths (`testbed`). Start with `world.rs`.

// A test program: it prints errors and exits.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used)]

mod clock;
mod control;
mod http;
mod mischief;
mod network;
mod nsi;
mod oscars;
mod sense;
mod world;
mod xml;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::clock::Clock;
use crate::http::{Reply, Request};
use crate::network::{Network, Port, read_vlans};
use crate::world::{Settings, World};

const HELP: &str = "\
A simulated provider of circuits, for tests. Ends with its standard input.

Usage: longhaul-provider [OPTIONS]

The first line of its standard output is JSON: the addresses of `service` and `control`.
  NSI     /NSI/services/CS2, /NSI/discovery.xml
  OSCARS  /oscars/...
  SENSE   /StackV-web/restapi/..., /auth/...
  GET  /control   everything it holds and has seen
  POST /control   {\"mischief\":[{\"on\":\"reserve\",\"do\":{\"fault\":\"00500\"},\"times\":2}]} | \
  {\"advance_s\":130} | {\"think_s\":1}
                  {\"end\":ID} | {\"active\":[ID,false]} | {\"broken\":[ID,false]} | {\"forget\":ID}
                  {\"unknown\":{\"to\":URL,\"id\":ID}}

Options:
  --listen ADDR     of the service           [default: 127.0.0.1:0]
  --control ADDR    of the control           [default: 127.0.0.1:0]
  --domain NAME     of its network           [default: example.net:2026]
  --port N:V:M      a port, its VLANs and its Mb/s; the defaults are forgotten with the first one
  --speed N         its seconds in one of ours                     [default: 1]
  --ahead S         by how much its clock differs                  [default: 0]
  --think S         from a request to what comes of it             [default: 0.02]
  --hold S          how long what is not committed is held         [default: 120]
  --state FILE      keeps everything over restarts
  --tls CERT KEY CA HTTPS with this certificate; clients show one that CA has issued
";

type SharedWorld = Arc<(Mutex<World>, Condvar)>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("longhaul-provider: {problem}\nnext: longhaul-provider --help");
            ExitCode::from(2)
        }
    }
}

struct Options {
    listen: SocketAddr,
    control: SocketAddr,
    speed: f64,
    ahead: f64,
    ports: Vec<Port>,
    tls: Option<[String; 3]>,
    settings: Settings,
}

impl Options {
    fn read() -> Result<Options, String> {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let settings =
            Settings { domain: "example.net:2026".to_owned(), think_s: 0.02, hold_s: 120.0, state: None };
        let mut options = Options {
            listen: local,
            control: local,
            speed: 1.0,
            ahead: 0.0,
            ports: Vec::new(),
            tls: None,
            settings,
        };
        let mut words = std::env::args().skip(1);
        while let Some(name) = words.next() {
            let mut word = || words.next().ok_or_else(|| format!("{name} wants a value"));
            fn parse<T: std::str::FromStr>(name: &str, word: String) -> Result<T, String> {
                word.parse().map_err(|_| format!("{name} cannot be {word}"))
            }
            match name.as_str() {
                "--listen" => options.listen = parse(&name, word()?)?,
                "--control" => options.control = parse(&name, word()?)?,
                "--domain" => options.settings.domain = word()?,
                "--port" => options.ports.push(port(&word()?)?),
                "--speed" => options.speed = parse(&name, word()?)?,
                "--ahead" => options.ahead = parse(&name, word()?)?,
                "--think" => options.settings.think_s = parse(&name, word()?)?,
                "--hold" => options.settings.hold_s = parse(&name, word()?)?,
                "--state" => options.settings.state = Some(word()?.into()),
                "--tls" => options.tls = Some([word()?, word()?, word()?]),
                "--help" | "-h" => {
                    print!("{HELP}");
                    std::process::exit(0);
                }
                _ => return Err(format!("{name} is not known")),
            }
        }
        if options.ports.is_empty() {
            let usual = ["alpha", "beta", "alph-cr6:2/1/1", "beta-cr6:2/1/1", sense::ALPHA, sense::BETA];
            let port =
                |name: &str| Port { name: name.to_owned(), vlans: (1780..=1790).collect(), mbit: 10_000 };
            options.ports = usual.into_iter().map(port).collect();
        }
        Ok(options)
    }
}

/// Parses `NAME:VLANS:MBIT`; names may contain colons.
fn port(text: &str) -> Result<Port, String> {
    let wrong = || format!("{text} is no NAME:VLANS:MBIT");
    let mut parts = text.rsplitn(3, ':');
    let mbit = parts.next().and_then(|mbit| mbit.parse().ok()).ok_or_else(wrong)?;
    let vlans = parts.next().and_then(read_vlans).ok_or_else(wrong)?;
    let name = parts.next().ok_or_else(wrong)?.to_owned();
    Ok(Port { name, vlans, mbit })
}

fn run() -> Result<(), String> {
    let options = Options::read()?;
    let tls = options.tls.as_ref().map(server_tls).transpose()?;
    let bind =
        |address: SocketAddr| TcpListener::bind(address).map_err(|error| format!("{address}: {error}"));
    let (service, control) = (bind(options.listen)?, bind(options.control)?);
    let clock = Clock::new(options.speed, options.ahead);
    let mut world = World::new(options.settings, clock, Network::new(options.ports));
    world.load()?;
    let shared: SharedWorld = Arc::new((Mutex::new(world), Condvar::new()));
    let address = |listener: &TcpListener| listener.local_addr().map(|at| at.to_string()).unwrap_or_default();
    println!("{}", serde_json::json!({ "service": address(&service), "control": address(&control) }));
    for (listener, tls, handle) in
        [(service, tls, serve as fn(&SharedWorld, Request) -> Reply), (control, None, serve_control)]
    {
        let shared = shared.clone();
        let handler: http::Handler = Arc::new(move |request| handle(&shared, request));
        std::thread::spawn(move || http::serve(listener, tls, handler));
    }
    std::thread::spawn(move || work(&shared));
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    Ok(())
}

fn lock(shared: &SharedWorld) -> MutexGuard<'_, World> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs due jobs forever.
fn work(shared: &SharedWorld) {
    let mut world = lock(shared);
    loop {
        let next = world.run_due_jobs();
        if let Err(problem) = world.persist() {
            eprintln!("longhaul-provider: {problem}");
        }
        if let Some(call) = world.calls.pop_front() {
            drop(world);
            make(call);
            world = lock(shared);
            continue;
        }
        let wait = next.map_or(3600.0, |at| world.clock.real_until(at)).min(3600.0);
        let waited = shared.1.wait_timeout(world, Duration::from_secs_f64(wait));
        world = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn make(call: nsi::Callback) {
    if let Err(error) = http::post(&call.to, &call.action(), &call.body) {
        eprintln!("longhaul-provider: {} to {}: {error}", call.name, call.to);
    }
}

fn serve(shared: &SharedWorld, request: Request) -> Reply {
    let mut world = lock(shared);
    world.calls_first = false;
    let mut reply = match request.path.as_str() {
        path if nsi::handles(path) => nsi::answer(&mut world, &request),
        path if oscars::handles(path) => oscars::answer(&mut world, &request),
        path if sense::handles(path) => sense::answer(&mut world, &request),
        _ => Reply::text(404, "no such page"),
    };
    reply.date = world.clock.now();
    finish(shared, world);
    reply
}

fn serve_control(shared: &SharedWorld, request: Request) -> Reply {
    let mut world = lock(shared);
    let reply = match request.path.as_str() {
        control::PATH => control::answer(&mut world, &request),
        _ => Reply::text(404, "no such page"),
    };
    // Due jobs run before the reply, so that a test sees their effect.
    world.run_due_jobs();
    finish(shared, world);
    reply
}

fn finish(shared: &SharedWorld, mut world: MutexGuard<'_, World>) {
    let first = if world.calls_first { std::mem::take(&mut world.calls) } else { VecDeque::new() };
    if let Err(problem) = world.persist() {
        eprintln!("longhaul-provider: {problem}");
    }
    drop(world);
    first.into_iter().for_each(make);
    shared.1.notify_all();
}

fn server_tls(files: &[String; 3]) -> Result<Arc<ServerConfig>, String> {
    let [certificate, key, ca] = files;
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{key}: {error}"))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(ca)?);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| format!("{ca}: {error}"))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(|error| format!("{certificate}: {error}"))?;
    Ok(Arc::new(config))
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(path)
        .and_then(|all| all.collect::<Result<Vec<_>, _>>())
        .map_err(|error| format!("{path}: {error}"))
}
