//! A publishing client of NATS. Plain: a PONG proves that the server has passed on what came before the PING.
//! Confirmed: JetStream acknowledges each stored message.

mod wire;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use longhaul_model::units::printable;
use longhaul_model::{Blame, Fault, FaultCode};
use longhaul_outbound::{self as outbound, Stream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Broker, Login, OutgoingMessage, broken, lost};

pub use wire::{Decoder, ServerOp};

const READ_BYTES: usize = 8 << 10;
const SHOWN_CHARS: usize = 300;
/// While there is nothing to say: so often a ping, which has to be answered before the next.
const PING_INTERVAL: Duration = Duration::from_secs(30);

pub struct Session {
    stream: Stream,
    decoder: Decoder,
    /// Below it confirmations arrive; none: there are none.
    inbox: Option<String>,
}

impl Session {
    pub(crate) async fn open(
        stream: Stream,
        broker: &Broker,
        login: &Login,
        confirmed: bool,
    ) -> Result<Session, Fault> {
        let mut session = Session { stream, decoder: Decoder::default(), inbox: None };
        let info = match session.said().await? {
            ServerOp::Info(info) => info,
            _ => return Err(broken("the server does not say what it is")),
        };
        let info: Value = serde_json::from_str(&info).map_err(|_| broken("the server's INFO is no JSON"))?;
        if broker.tls {
            session.stream = outbound::connect_tls(session.stream, &broker.host, login.tls()?).await?;
        } else if info["tls_required"] == json!(true) {
            let text = "the server wants TLS: name it with tls:// instead of nats://";
            return Err(Fault::new(FaultCode::BadRequest, text));
        }
        if info["headers"] != json!(true) {
            return Err(Fault::new(
                FaultCode::VersionMismatch,
                "the server knows no headers: 2.2 or later is wanted",
            ));
        }
        session.write(&hello(login, broker.tls)).await?;
        session.answered().await?;
        if confirmed {
            let inbox = inbox(&info);
            session.write(format!("SUB {inbox}.* 1\r\n").as_bytes()).await?;
            session.inbox = Some(inbox);
        }
        Ok(session)
    }

    pub(crate) async fn publish(&mut self, messages: &[OutgoingMessage]) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| publication(message, self.inbox.as_deref(), &mut bytes));
        self.write(&bytes).await?;
        match self.inbox.clone() {
            None => self.answered().await,
            Some(inbox) => self.stored(&inbox, messages).await,
        }
    }

    /// A ping that is answered comes after all that was said before it.
    async fn answered(&mut self) -> Result<(), Fault> {
        self.write(b"PING\r\n").await?;
        loop {
            match self.said().await? {
                ServerOp::Pong => return Ok(()),
                ServerOp::Message { .. } => {
                    return Err(broken("the server sends a message that nobody asked for"));
                }
                _ => {}
            }
        }
    }

    async fn stored(&mut self, inbox: &str, messages: &[OutgoingMessage]) -> Result<(), Fault> {
        let mut waiting: BTreeSet<String> =
            messages.iter().map(|message| format!("{inbox}.{}", message.number)).collect();
        while !waiting.is_empty() {
            let ServerOp::Message { subject, head, body } = self.said().await? else { continue };
            if head.starts_with("NATS/1.0 503") {
                let text = "no stream of the server keeps this subject: make one, or set jetstream = false";
                return Err(Fault::new(FaultCode::NotFound, text));
            }
            let said: Value = serde_json::from_str(&body).map_err(|_| broken("a confirmation is no JSON"))?;
            if let Some(error) = said.get("error").filter(|error| !error.is_null()) {
                return Err(refused(error["description"].as_str().unwrap_or("it does not say why")));
            }
            if said["stream"].as_str().is_none() {
                return Err(broken("a confirmation names no stream"));
            }
            // One of an earlier batch, which is published again, may come late.
            waiting.remove(&subject);
        }
        Ok(())
    }

    pub(crate) async fn idle(&mut self) -> Fault {
        let mut asked = false;
        loop {
            match tokio::time::timeout(PING_INTERVAL, self.said()).await {
                Err(_) if asked => return Fault::new(FaultCode::Stalled, "the server has fallen silent"),
                Err(_) => {
                    asked = true;
                    if let Err(fault) = self.write(b"PING\r\n").await {
                        return fault;
                    }
                }
                Ok(Err(fault)) => return fault,
                Ok(Ok(_)) => asked = false,
            }
        }
    }

    /// The next operation; pings are answered on the way.
    async fn said(&mut self) -> Result<ServerOp, Fault> {
        loop {
            match self.decoder.poll().map_err(broken)? {
                Some(ServerOp::Ping) => self.write(b"PONG\r\n").await?,
                Some(ServerOp::Err(why)) => return Err(refused(&why)),
                Some(said) => return Ok(said),
                None => {
                    let mut bytes = [0; READ_BYTES];
                    let read = self.stream.read(&mut bytes).await.map_err(lost)?;
                    if read == 0 {
                        let text = "the server has closed the connection";
                        return Err(Fault::new(FaultCode::ConnectionLost, text));
                    }
                    self.decoder.push(&bytes[..read]);
                }
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.stream.write_all(bytes).await.map_err(lost)?;
        self.stream.flush().await.map_err(lost)
    }
}

fn hello(login: &Login, tls: bool) -> Vec<u8> {
    let mut hello = json!({
        "verbose": false, "pedantic": false, "tls_required": tls, "lang": "rust", "name": "longhaul",
        "version": env!("CARGO_PKG_VERSION"), "protocol": 1, "headers": true, "no_responders": true,
    });
    // A password without a user is a token.
    match (&login.password, login.user.is_empty()) {
        (Some(password), true) => hello["auth_token"] = json!(password.as_str()),
        (Some(password), false) => {
            hello["user"] = json!(login.user);
            hello["pass"] = json!(password.as_str());
        }
        (None, _) => {}
    }
    format!("CONNECT {hello}\r\n").into_bytes()
}

/// The server's name for this connection makes the subject ours alone.
fn inbox(info: &Value) -> String {
    let part = |name: &str| match &info[name] {
        Value::String(text) => text.chars().filter(char::is_ascii_alphanumeric).take(64).collect(),
        Value::Number(number) => number.to_string(),
        _ => "0".to_owned(),
    };
    format!("_INBOX.longhaul-{}-{}", part("server_id"), part("client_id"))
}

fn publication(message: &OutgoingMessage, inbox: Option<&str>, out: &mut Vec<u8>) {
    // A stream drops what it has had already under the same id.
    let mut head = format!("NATS/1.0\r\nNats-Msg-Id: longhaul-{}\r\n", message.number);
    for (name, value) in &message.headers {
        // Writing to a string cannot fail.
        let _ = write!(head, "{name}: {}\r\n", value.replace(['\r', '\n'], " "));
    }
    head.push_str("\r\n");
    let reply = inbox.map(|inbox| format!("{inbox}.{} ", message.number)).unwrap_or_default();
    let all = head.len() + message.body.len();
    out.extend_from_slice(
        format!("HPUB {} {reply}{} {all}\r\n{head}", message.destination, head.len()).as_bytes(),
    );
    out.extend_from_slice(message.body.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn refused(why: &str) -> Fault {
    let shown: String = printable(why).chars().take(SHOWN_CHARS).collect();
    let fault = Fault::new(FaultCode::NotAllowed, format!("the server refuses: {shown}"));
    if why.contains("uthorization") { fault.blaming(Blame::Credential) } else { fault }
}
