//! Decoder of the NATS client protocol: operations of a server out of a stream of bytes. Pure, and bounded
//! whatever comes.

const LINE_BYTES_MAX: usize = 32 << 10;
/// Confirmations are short.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerOp {
    /// JSON: what kind of server it is.
    Info(String),
    Ping,
    Pong,
    Ok,
    Err(String),
    /// A message to a subject that we subscribed; `head` is empty unless there are headers.
    Message {
        subject: String,
        head: String,
        body: String,
    },
}

/// Bytes in, operations out. After an error the stream cannot be read any further.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    searched: usize,
    message: Option<MessageHead>,
}

/// A message whose bytes follow.
struct MessageHead {
    subject: String,
    head_bytes: usize,
    bytes: usize,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    pub fn poll(&mut self) -> Result<Option<ServerOp>, String> {
        if self.message.is_none() {
            let Some(line) = self.line()? else { return Ok(None) };
            match parse_line(&line)? {
                Line::Op(op) => return Ok(Some(op)),
                Line::MessageHead(message) => self.message = Some(message),
            }
        }
        self.message()
    }

    fn line(&mut self) -> Result<Option<String>, String> {
        let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end.map(|at| self.searched + at) else {
            self.searched = self.buffer.len();
            return if self.searched > LINE_BYTES_MAX { Err(too_long()) } else { Ok(None) };
        };
        if end > LINE_BYTES_MAX {
            return Err(too_long());
        }
        let line = std::str::from_utf8(&self.buffer[..end]).map_err(|_| "a line is not UTF-8")?;
        let line = line.strip_suffix('\r').unwrap_or(line).to_owned();
        self.buffer.drain(..=end);
        self.searched = 0;
        Ok(Some(line))
    }

    fn message(&mut self) -> Result<Option<ServerOp>, String> {
        let Some(announced) = &self.message else { return Ok(None) };
        let (head, all) = (announced.head_bytes, announced.bytes);
        if self.buffer.len() < all + 2 {
            return Ok(None);
        }
        if &self.buffer[all..all + 2] != b"\r\n" {
            return Err("a message is not as long as it says".to_owned());
        }
        let text = |bytes: &[u8]| {
            std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a message is not UTF-8".to_owned())
        };
        let (head, body) = (text(&self.buffer[..head])?, text(&self.buffer[head..all])?);
        self.buffer.drain(..all + 2);
        let subject = self.message.take().map(|announced| announced.subject).unwrap_or_default();
        Ok(Some(ServerOp::Message { subject, head, body }))
    }
}

fn too_long() -> String {
    format!("a line is longer than {LINE_BYTES_MAX} bytes")
}

enum Line {
    Op(ServerOp),
    MessageHead(MessageHead),
}

fn parse_line(line: &str) -> Result<Line, String> {
    let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let rest = rest.trim();
    Ok(match word.to_ascii_uppercase().as_str() {
        "INFO" => Line::Op(ServerOp::Info(rest.to_owned())),
        "PING" => Line::Op(ServerOp::Ping),
        "PONG" => Line::Op(ServerOp::Pong),
        "+OK" => Line::Op(ServerOp::Ok),
        "-ERR" => Line::Op(ServerOp::Err(rest.trim_matches('\'').to_owned())),
        "MSG" => Line::MessageHead(parse_message_head(rest, false)?),
        "HMSG" => Line::MessageHead(parse_message_head(rest, true)?),
        _ => return Err("a line begins with no word of the protocol".to_owned()),
    })
}

/// `subject sid [reply] [head bytes] bytes`
fn parse_message_head(rest: &str, headed: bool) -> Result<MessageHead, String> {
    let words: Vec<&str> = rest.split_ascii_whitespace().take(6).collect();
    let counts = 1 + usize::from(headed);
    if words.len() < 2 + counts || words.len() > 3 + counts {
        return Err("a message is announced with too few or too many words".to_owned());
    }
    let number = |word: &str| -> Result<usize, String> {
        let number = word.parse().map_err(|_| "a message is announced without its length")?;
        if number > MESSAGE_BYTES_MAX {
            return Err(format!("a message is longer than {MESSAGE_BYTES_MAX} bytes"));
        }
        Ok(number)
    };
    let bytes = number(words[words.len() - 1])?;
    let head_bytes = if headed { number(words[words.len() - 2])? } else { 0 };
    if head_bytes > bytes {
        return Err("a message's headers are longer than all of it".to_owned());
    }
    Ok(MessageHead { subject: words[0].to_owned(), head_bytes, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8], cut: usize) -> Result<Vec<ServerOp>, String> {
        let (mut decoder, mut said) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(cut) {
            decoder.push(piece);
            while let Some(one) = decoder.poll()? {
                said.push(one);
            }
        }
        Ok(said)
    }

    #[test]
    fn what_servers_say_is_read_wherever_it_is_cut() {
        let bytes =
            b"INFO {\"a\":1} \r\nPING\r\n+OK\r\n-ERR 'Authorization Violation'\r\nMSG a.b 1 3\r\nx\r\n\r\n\
            HMSG c 1 reply 4 6\r\nheadbo\r\nPONG\r\n";
        for cut in 1..bytes.len() {
            let message = |subject: &str, head: &str, body: &str| ServerOp::Message {
                subject: subject.into(),
                head: head.into(),
                body: body.into(),
            };
            let expected = [
                ServerOp::Info("{\"a\":1}".into()),
                ServerOp::Ping,
                ServerOp::Ok,
                ServerOp::Err("Authorization Violation".into()),
                message("a.b", "", "x\r\n"),
                message("c", "head", "bo"),
                ServerOp::Pong,
            ];
            assert_eq!(all(bytes, cut).unwrap(), expected, "{cut}");
        }
    }

    #[test]
    fn what_is_no_protocol_is_refused_and_nothing_grows_without_end() {
        for bad in [
            &b"HTTP/1.1 400\r\n"[..],
            b"MSG a 1\r\n",
            b"MSG a 1 b c 3\r\n",
            b"MSG a 1 x\r\n",
            b"MSG a 1 99999999\r\n",
            b"HMSG a 1 9 3\r\n",
            b"MSG a 1 1\r\nabc",
            b"PING\xff\r\n",
        ] {
            assert!(all(bad, 7).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert!(all(&vec![b'I'; LINE_BYTES_MAX + 10], 1_000).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1..50usize) {
            let _ = all(&bytes, cut);
        }
    }
}
