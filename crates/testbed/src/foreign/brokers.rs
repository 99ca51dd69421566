//! Brokers of messages: ActiveMQ with its STOMP connector, and nats-server. They can be killed and started
//! again on the same port with what they kept.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{ForeignAuthority, wait_until_listening};
use crate::{Log, Process, free_port};

/// Where Debian's package puts it.
const ACTIVEMQ: &str = "/usr/share/activemq";
pub const BROKER_USER: &str = "fts";
pub const BROKER_PASSWORD: &str = "opens the broker";

/// ActiveMQ with one user, over STOMP; what is persistent in it outlives it.
pub struct ActiveMq {
    folder: tempfile::TempDir,
    pub port: u16,
    process: Option<Process>,
}

impl ActiveMq {
    /// Why there is none here, if so.
    pub fn missing() -> Option<String> {
        if !crate::needs::program("java", &["-version"]) {
            return Some("there is no java".to_owned());
        }
        let jar = PathBuf::from(ACTIVEMQ).join("bin/activemq.jar");
        (!jar.exists()).then(|| "there is no activemq".to_owned())
    }

    /// Listens, when this returns.
    pub fn start() -> ActiveMq {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let here = folder.path().display();
        let config = format!(
            r#"<beans xmlns="http://www.springframework.org/schema/beans"
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
xsi:schemaLocation="http://www.springframework.org/schema/beans
http://www.springframework.org/schema/beans/spring-beans.xsd
http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
<broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" brokerName="b"
dataDirectory="{here}/data">
<persistenceAdapter><kahaDB directory="{here}/data/kahadb"/></persistenceAdapter>
<plugins><simpleAuthenticationPlugin><users>
<authenticationUser username="{BROKER_USER}" password="{BROKER_PASSWORD}" groups="users"/>
</users></simpleAuthenticationPlugin></plugins>
<transportConnectors><transportConnector name="stomp" uri="stomp://127.0.0.1:{port}"/></transportConnectors>
</broker></beans>
"#
        );
        fs::write(folder.path().join("activemq.xml"), config).expect("a file");
        let mut broker = ActiveMq { folder, port, process: None };
        broker.restart();
        broker
    }

    pub fn restart(&mut self) {
        let here = self.folder.path().display();
        // A small machine's worth of it: it starts within two seconds so.
        let mut command = Command::new("java");
        command.args(["-Xms64m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        command.arg(format!("-Dactivemq.home={ACTIVEMQ}"));
        command.arg(format!("-Dactivemq.base={here}")).arg(format!("-Dactivemq.conf={here}"));
        command.args(["-jar", &format!("{ACTIVEMQ}/bin/activemq.jar"), "start"]);
        command.arg(format!("xbean:file:{here}/activemq.xml"));
        let log = Log::default();
        let mut process = Process::start("activemq", &mut command, &log, &self.folder.path().join("log"));
        wait_until_listening(&mut process, self.port);
        self.process = Some(process);
    }

    /// At once, as in a power cut.
    pub fn kill(&mut self) {
        self.process = None;
    }
}

/// nats-server with JetStream. Clients with TLS have to show a certificate of the authority; without TLS
/// anybody gets in.
pub struct NatsServer {
    pub port: u16,
    _folder: tempfile::TempDir,
    _process: Process,
}

impl NatsServer {
    pub fn missing() -> Option<String> {
        let there = crate::needs::program("nats-server", &["--version"]);
        (!there).then(|| "there is no nats-server".to_owned())
    }

    pub fn start(authority: &ForeignAuthority) -> NatsServer {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let (certificate, key) = authority.issue_files(folder.path(), "nats");
        let config = format!(
            "host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: {:?} }}\nallow_non_tls: true\n\
             tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {:?}, verify: true }}\n",
            folder.path().join("streams"),
            authority.ca_file()
        );
        let file = folder.path().join("nats.conf");
        fs::write(&file, config).expect("a file");
        let mut command = Command::new("nats-server");
        command.arg("-c").arg(&file);
        let log = Log::default();
        let mut process = Process::start("nats-server", &mut command, &log, &folder.path().join("log"));
        wait_until_listening(&mut process, port);
        NatsServer { port, _folder: folder, _process: process }
    }
}
