//! A parser of server-sent events (WHATWG HTML), as far as the service uses them.

use bytes::Buf;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use longhaul_model::{FaultCode, json};
use serde::de::DeserializeOwned;

use super::failure;
use crate::Problem;

/// Largest event accepted. Status documents of a large deployment have about 100 kB.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// An open stream of server-sent events.
pub struct Events {
    body: Incoming,
    parser: Parser,
}

impl Events {
    pub(super) fn new(body: Incoming) -> Self {
        Events { body, parser: Parser::default() }
    }

    /// The next event's data; none when the service ended the stream. The service sends a comment every few
    /// seconds, so a caller's time limit around this call notices a dead connection.
    ///
    /// # Errors
    /// The connection broke, or an event is too large or not understood.
    pub async fn next<Event: DeserializeOwned>(&mut self) -> Result<Option<Event>, Problem> {
        loop {
            if let Some(data) = self.parser.next_event()? {
                return json::from_str(&data).map(Some).map_err(|error| {
                    Problem::new(FaultCode::ProtocolError, "an event is not understood", error.to_string())
                });
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(mut data) = frame.into_data() {
                        self.parser.take(&data.copy_to_bytes(data.remaining()));
                    }
                }
                Some(Err(error)) => return Err(failure::body_problem(&error)),
            }
        }
    }
}

/// Takes bytes and yields the data of complete events.
#[derive(Default)]
struct Parser {
    /// Bytes that arrived and are not parsed yet.
    waiting: Vec<u8>,
    /// Data lines of the incomplete event.
    data: String,
}

impl Parser {
    fn take(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    fn next_event(&mut self) -> Result<Option<String>, Problem> {
        let mut begin = 0;
        let mut event = None;
        while let Some(length) = self.waiting[begin..].iter().position(|&byte| byte == b'\n') {
            let line = &self.waiting[begin..begin + length];
            begin += length + 1;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if !self.data.is_empty() {
                    event = Some(std::mem::take(&mut self.data));
                    break;
                }
            } else if let Some(data) = line.strip_prefix(b"data:") {
                let data = data.strip_prefix(b" ").unwrap_or(data);
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(&String::from_utf8_lossy(data));
            }
            // Other fields, and comments, which keep the connection alive, carry nothing that is needed here.
        }
        self.waiting.drain(..begin);
        if event.is_none() && self.waiting.len() + self.data.len() > EVENT_BYTES_MAX {
            let detail = format!("more than {EVENT_BYTES_MAX} bytes");
            return Err(Problem::new(FaultCode::ProtocolError, "an event is too large", detail));
        }
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(parser: &mut Parser) -> Vec<String> {
        std::iter::from_fn(|| parser.next_event().unwrap()).collect()
    }

    #[test]
    fn data_is_found_among_other_fields_and_comments() {
        let mut parser = Parser::default();
        parser.take(b": hello\r\n\r\nevent: status\r\ndata: {\"a\":\r\ndata: 1}\r\nid: 7\r\n\r\n");
        parser.take(b"data:x\n\n\ndata: half");
        assert_eq!(all(&mut parser), ["{\"a\":\n1}", "x"]);
        parser.take(b"\n\n");
        assert_eq!(all(&mut parser), ["half"]);
    }

    /// Promise 7.
    #[test]
    fn an_event_without_an_end_is_given_up() {
        let mut parser = Parser::default();
        parser.take(&vec![b'x'; EVENT_BYTES_MAX + 1]);
        assert_eq!(parser.next_event().unwrap_err().code, FaultCode::ProtocolError);
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_are_cut(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), any::<u8>()],
                0..200),
            piece in 1usize..20,
        ) {
            let mut stream = b"data: 1\n".to_vec();
            stream.extend(bytes);
            stream.extend(b"\ndata: 2\n\n");
            let mut at_once = Parser::default();
            at_once.take(&stream);
            let expected = all(&mut at_once);
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for part in stream.chunks(piece) {
                parser.take(part);
                events.extend(all(&mut parser));
            }
            prop_assert_eq!(events, expected);
        }
    }
}
