//! The simulated provider of circuits as a process of its own, that can be killed and started again at the
//! same place.
//!
//! Not here: what it says and does (`crates/provider`), and circuits that carry data ([`crate::wan`]).

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use longhaul_security::write_private;
use serde_json::Value;

use crate::run::beside;
use crate::{Log, Process, TICK, free_port};

/// One that does not answer after so many ticks never will.
const READY_TICKS: u32 = 24_000;
/// What it takes for a password.
const SECRET: &[u8] = b"secret\n";

/// Speaks NSI, OSCARS and SENSE over one network, which it remembers over restarts.
pub struct CircuitProvider {
    directory: tempfile::TempDir,
    service: SocketAddr,
    control: SocketAddr,
    process: Option<Process>,
    log: Log,
}

impl CircuitProvider {
    pub fn start() -> CircuitProvider {
        let directory = tempfile::tempdir().expect("a temporary directory");
        write_private(&directory.path().join("secret"), SECRET).expect("a file");
        let [service, control] = [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let mut provider =
            CircuitProvider { directory, service, control, process: None, log: Log::default() };
        provider.restart();
        provider
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// With all that it had; ready when this returns.
    pub fn restart(&mut self) {
        self.kill();
        let mut command = Command::new(beside("longhaul-provider"));
        command.args(["--listen", &self.service.to_string(), "--control", &self.control.to_string()]);
        command.arg("--state").arg(self.directory.path().join("state"));
        let log = self.directory.path().join("log");
        let mut process = Process::start("longhaul-provider", &mut command, &self.log, &log);
        for _ in 0..READY_TICKS {
            if TcpStream::connect(self.control).is_ok() {
                self.process = Some(process);
                return;
            }
            assert!(process.wait(TICK).is_none(), "the provider has ended: {}", self.log.tail());
        }
        panic!("the provider does not listen: {}", self.log.tail());
    }

    /// What a file about a circuit says of it, by protocol.
    pub fn lines(&self, protocol: &str) -> String {
        let (service, secret) = (self.service, self.secret());
        let site = |name: &str| format!("urn:ogf:network:example.net:2026:topology:{name}?vlan=1781-1785");
        match protocol {
            // It calls back, as most do.
            "nsi" => format!(
                "discovery = \"http://{service}/NSI/discovery.xml\"\nlisten = \"127.0.0.1:0\"\n\
                 requester_nsa = \"urn:ogf:network:placement.example:2026:nsa:requester\"\n\
                 source_stp = \"{}\"\ntarget_stp = \"{}\"\n",
                site("alpha"),
                site("beta")
            ),
            "oscars" => format!(
                "url = \"http://{service}/oscars\"\nusername = \"longhaul\"\npassword_file = {secret:?}\n\
                 source_port = \"alph-cr6:2/1/1\"\ntarget_port = \"beta-cr6:2/1/1\"\nvlans = \"1781-1785\"\n"
            ),
            "sense" => format!(
                "url = \"http://{service}/StackV-web/restapi\"\nclient_id = \"c\"\nclient_secret_file = \
                    {secret:?}\n\
                 username = \"longhaul\"\npassword_file = {secret:?}\nvlans = \"1781-1785\"\n\
                 source_uri = \"urn:ogf:network:alpha.example:2026\"\ntarget_uri \
                 = \"urn:ogf:network:beta.example:2026\"\n"
            ),
            other => panic!("it does not speak {other}"),
        }
    }

    fn secret(&self) -> PathBuf {
        self.directory.path().join("secret")
    }

    /// Ids of reservations that are booked.
    pub fn booked(&self) -> Vec<String> {
        let state = self.state();
        let booked = state["booked"].as_array().expect("a list");
        booked.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect()
    }

    fn state(&self) -> Value {
        let mut stream = TcpStream::connect(self.control).expect("the control answers");
        stream.write_all(b"GET /control HTTP/1.1\r\ncontent-length: 0\r\n\r\n").expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
        body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or_else(|| panic!("{answer}"))
    }
}
