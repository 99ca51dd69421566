//! A publishing client of STOMP 1.1 and 1.2: each message with a receipt, and heart-beats while idle.

mod frame;

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use longhaul_outbound::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

use super::{Login, OutgoingMessage, broken, lost};

pub use frame::{Decoder, Frame};

/// The heart-beat that we offer and ask for; the broker may want it less often.
const HEART_BEAT: Duration = Duration::from_secs(10);
/// A broker that owes a heart-beat is given up after so many times its time: clocks and networks are what
/// they are.
const BEATS_MISSED: u32 = 3;
const READ_BYTES: usize = 8 << 10;
/// Characters of a broker's error text that are shown.
const SHOWN_CHARS: usize = 300;

pub struct Session {
    stream: Stream,
    decoder: Decoder,
    /// Heart-beat intervals from us and from the broker; none: never.
    send_every: Option<Duration>,
    hear_every: Option<Duration>,
    sent: Instant,
    heard: Instant,
}

impl Session {
    pub(crate) async fn open(stream: Stream, host: &str, login: &Login) -> Result<Session, Fault> {
        let now = Instant::now();
        let decoder = Decoder::default();
        let mut session =
            Session { stream, decoder, send_every: None, hear_every: None, sent: now, heard: now };
        let beat = HEART_BEAT.as_millis();
        let mut connect = Frame::new("CONNECT")
            .with("accept-version", "1.1,1.2")
            .with("host", host)
            .with("heart-beat", format!("{beat},{beat}"));
        if !login.user.is_empty() {
            connect = connect.with("login", login.user.as_str());
        }
        if let Some(password) = &login.password {
            connect = connect.with("passcode", password.as_str());
        }
        let mut bytes = Vec::new();
        connect.encode(&mut bytes);
        session.write(&bytes).await?;
        let greeting = session.frame().await?;
        match greeting.command.as_str() {
            "CONNECTED" => session.agree(&greeting)?,
            "ERROR" => return Err(refused(&greeting).blaming(longhaul_model::Blame::Credential)),
            other => return Err(broken(format!("the broker greets with {}", printable(other)))),
        }
        Ok(session)
    }

    fn agree(&mut self, greeting: &Frame) -> Result<(), Fault> {
        if !matches!(greeting.header("version"), Some("1.1" | "1.2")) {
            return Err(Fault::new(
                FaultCode::VersionMismatch,
                "the broker speaks neither STOMP 1.1 nor 1.2",
            ));
        }
        let (sends, wants) = match greeting.header("heart-beat").map(|beat| beat.split_once(',')) {
            None => (0, 0),
            Some(Some((sends, wants))) => match (sends.trim().parse::<u32>(), wants.trim().parse::<u32>()) {
                (Ok(sends), Ok(wants)) => (sends, wants),
                _ => return Err(broken("the broker's heart-beat is no pair of numbers")),
            },
            Some(None) => return Err(broken("the broker's heart-beat is no pair of numbers")),
        };
        // The slower of both, as the specification has it.
        let slower =
            |theirs: u32| (theirs > 0).then(|| HEART_BEAT.max(Duration::from_millis(u64::from(theirs))));
        self.send_every = slower(wants);
        self.hear_every = slower(sends);
        Ok(())
    }

    pub(crate) async fn publish(&mut self, messages: &[OutgoingMessage]) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        let mut waiting: BTreeSet<String> = BTreeSet::new();
        for message in messages {
            let receipt = message.number.to_string();
            send_frame(message, &receipt).encode(&mut bytes);
            waiting.insert(receipt);
        }
        self.write(&bytes).await?;
        while !waiting.is_empty() {
            let frame = self.frame().await?;
            match frame.command.as_str() {
                "RECEIPT" => {
                    let receipt = frame.header("receipt-id").unwrap_or_default();
                    if !waiting.remove(receipt) {
                        return Err(broken("the broker confirms what it was not sent"));
                    }
                }
                "ERROR" => return Err(refused(&frame)),
                other => return Err(broken(format!("the broker sends {}", printable(other)))),
            }
        }
        Ok(())
    }

    pub(crate) async fn idle(&mut self) -> Fault {
        loop {
            let far = Instant::now() + Duration::from_secs(3_600);
            let send_at = self.send_every.map_or(far, |every| self.sent + every / 2);
            let hear_until = self.hear_every.map_or(far, |every| self.heard + every * BEATS_MISSED);
            tokio::select! {
                read = self.read() => {
                    if let Err(fault) = read {
                        return fault;
                    }
                    match self.decoder.poll() {
                        Ok(None) => {}
                        Ok(Some(frame)) if frame.command == "ERROR" => return refused(&frame),
                        Ok(Some(frame)) => return broken(format!("the broker sends {} unasked",
                            printable(&frame.command))),
                        Err(why) => return broken(why),
                    }
                }
                () = sleep_until(send_at) => {
                    if self.send_every.is_some() && let Err(fault) = self.write(b"\n").await {
                        return fault;
                    }
                }
                () = sleep_until(hear_until) => {
                    if self.hear_every.is_some() {
                        return Fault::new(FaultCode::Stalled, "the broker has fallen silent");
                    }
                }
            }
        }
    }

    async fn frame(&mut self) -> Result<Frame, Fault> {
        loop {
            if let Some(frame) = self.decoder.poll().map_err(broken)? {
                return Ok(frame);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), Fault> {
        let mut bytes = [0; READ_BYTES];
        let read = self.stream.read(&mut bytes).await.map_err(lost)?;
        if read == 0 {
            return Err(Fault::new(FaultCode::ConnectionLost, "the broker has closed the connection"));
        }
        self.heard = Instant::now();
        self.decoder.push(&bytes[..read]);
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.stream.write_all(bytes).await.map_err(lost)?;
        self.stream.flush().await.map_err(lost)?;
        self.sent = Instant::now();
        Ok(())
    }
}

fn send_frame(message: &OutgoingMessage, receipt: &str) -> Frame {
    let mut frame = Frame::new("SEND")
        .with("destination", message.destination.as_str())
        .with("receipt", receipt)
        .with("persistent", if message.persistent { "true" } else { "false" });
    if message.expires_ms > 0 {
        frame = frame.with("expires", message.expires_ms.to_string());
    }
    for (name, value) in &message.headers {
        frame = frame.with(name, value.as_str());
    }
    Frame { body: message.body.clone().into_bytes(), ..frame }
}

fn refused(frame: &Frame) -> Fault {
    let words = frame.header("message").unwrap_or("it does not say why");
    let shown: String = printable(words).chars().take(SHOWN_CHARS).collect();
    Fault::new(FaultCode::NotAllowed, format!("the broker refuses: {shown}"))
}
