//! Encoder and decoder of STOMP 1.1 and 1.2 frames. Pure, and bounded whatever comes.

use std::fmt::Write;

/// Command and headers of one frame.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 100;
/// A broker has nothing to tell us that is longer: it is answers that come here, not messages.
const BODY_BYTES_MAX: usize = 256 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    pub command: String,
    /// The first of repeated headers counts.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn new(command: &str) -> Frame {
        Frame { command: command.to_owned(), ..Frame::default() }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Frame {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Without `content-length`: brokers of JMS take what has one as bytes, and what has none as text. So a
    /// body must have no NUL.
    ///
    /// # Panics
    /// If it has one: that would be our mistake.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(!self.body.contains(&0), "a NUL ends a frame");
        let escapes = escaped_in(&self.command);
        let mut head = format!("{}\n", self.command);
        for (name, value) in &self.headers {
            // Writing to a string cannot fail.
            let _ = match escapes {
                true => writeln!(head, "{}:{}", escape(name), escape(value)),
                false => writeln!(
                    head,
                    "{}:{}",
                    name.replace(['\n', '\r', '\0'], " "),
                    value.replace(['\n', '\r', '\0'], " ")
                ),
            };
        }
        head.push('\n');
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&self.body);
        out.push(0);
    }
}

/// STOMP 1.0 compatibility: these two frames are not escaped.
fn escaped_in(command: &str) -> bool {
    !matches!(command, "CONNECT" | "CONNECTED")
}

/// 1.1 has no escape for a carriage return, and it means nothing where we write it.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            ':' => out.push_str("\\c"),
            '\r' | '\0' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('\\') => '\\',
            Some('n') => '\n',
            Some('c') => ':',
            Some('r') => '\r',
            _ => return Err("a header has an escape that there is not".to_owned()),
        });
    }
    Ok(out)
}

/// Bytes in, frames out. After an error nothing more can be said of the stream.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// So far the end of the head, or of the body, was looked for in vain.
    searched: usize,
    head: Option<Head>,
}

struct Head {
    frame: Frame,
    length: Option<usize>,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, once it is whole. Heart-beats between frames are passed over.
    pub fn poll(&mut self) -> Result<Option<Frame>, String> {
        if self.head.is_none() {
            self.pass_heart_beats();
            let Some((end, body)) = self.head_end()? else { return Ok(None) };
            let text = std::str::from_utf8(&self.buffer[..end]).map_err(|_| "a head is not UTF-8")?;
            self.head = Some(head(text)?);
            self.buffer.drain(..body);
            self.searched = 0;
        }
        let Some(length) = self.body_end()? else { return Ok(None) };
        let Some(Head { mut frame, .. }) = self.head.take() else { return Ok(None) };
        frame.body = self.buffer[..length].to_vec();
        self.buffer.drain(..=length);
        self.searched = 0;
        Ok(Some(frame))
    }

    fn pass_heart_beats(&mut self) {
        let mut at = 0;
        loop {
            match &self.buffer[at..] {
                [b'\n', ..] => at += 1,
                [b'\r', b'\n', ..] => at += 2,
                _ => break,
            }
        }
        if at > 0 {
            self.buffer.drain(..at);
            self.searched = 0;
        }
    }

    /// The end of the head and the beginning of the body.
    fn head_end(&mut self) -> Result<Option<(usize, usize)>, String> {
        for at in self.searched..self.buffer.len().min(HEAD_BYTES_MAX) {
            if self.buffer[at] != b'\n' {
                continue;
            }
            match &self.buffer[at + 1..] {
                [b'\n', ..] => return Ok(Some((at, at + 2))),
                [b'\r', b'\n', ..] => return Ok(Some((at, at + 3))),
                _ => {}
            }
        }
        if self.buffer.len() >= HEAD_BYTES_MAX {
            return Err(format!("a head is longer than {HEAD_BYTES_MAX} bytes"));
        }
        // The line end that was last may be followed by what ends the head.
        self.searched = self.buffer.len().saturating_sub(2);
        Ok(None)
    }

    fn body_end(&mut self) -> Result<Option<usize>, String> {
        let length = self.head.as_ref().and_then(|head| head.length);
        if let Some(length) = length {
            return match self.buffer.get(length) {
                None => Ok(None),
                Some(0) => Ok(Some(length)),
                Some(_) => Err("a frame is longer than it says".to_owned()),
            };
        }
        if let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == 0) {
            let length = self.searched + at;
            return if length > BODY_BYTES_MAX { Err(too_long()) } else { Ok(Some(length)) };
        }
        self.searched = self.buffer.len();
        if self.searched > BODY_BYTES_MAX { Err(too_long()) } else { Ok(None) }
    }
}

fn too_long() -> String {
    format!("a body is longer than {BODY_BYTES_MAX} bytes")
}

fn head(text: &str) -> Result<Head, String> {
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let command = lines.next().unwrap_or_default();
    if command.is_empty() || command.len() > 32 || !command.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err("a frame begins with no command".to_owned());
    }
    let mut frame = Frame::new(command);
    for line in lines {
        if frame.headers.len() == HEADERS_MAX {
            return Err(format!("a frame has more than {HEADERS_MAX} headers"));
        }
        let (name, value) = line.split_once(':').ok_or("a header has no colon")?;
        let pair = match escaped_in(command) {
            true => (unescape(name)?, unescape(value)?),
            false => (name.to_owned(), value.to_owned()),
        };
        frame.headers.push(pair);
    }
    let length = match frame.header("content-length") {
        None => None,
        Some(digits) => {
            let length: usize = digits.trim().parse().map_err(|_| "a content-length is no number")?;
            if length > BODY_BYTES_MAX {
                return Err(too_long());
            }
            Some(length)
        }
    };
    Ok(Head { frame, length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> Result<Vec<Frame>, String> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = decoder.poll()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn frames_are_read_with_either_line_end_and_between_heart_beats() {
        let read =
            all(b"\n\r\nCONNECTED\r\nversion:1.2\r\na\\c:b:c\r\n\r\n\0\n\nRECEIPT\nreceipt-id:7\\c\n\n\0\n")
                .unwrap();
        let connected = Frame::new("CONNECTED").with("version", "1.2").with("a\\c", "b:c");
        assert_eq!(read, [connected, Frame::new("RECEIPT").with("receipt-id", "7:")]);
        let read = all(b"ERROR\ncontent-length:3\nx:1\nx:2\n\na\0b\0").unwrap();
        assert_eq!((read[0].body.as_slice(), read[0].header("x")), (b"a\0b".as_slice(), Some("1")));
    }

    #[test]
    fn what_is_no_frame_is_refused_and_nothing_grows_without_end() {
        for bad in [
            &b"connected\n\n\0"[..],
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"A\nno colon\n\n\0",
            b"A\nx:\\t\n\n\0",
            b"A\nx:\\\n\n\0",
            b"A\n\xff:1\n\n\0",
            b"A\ncontent-length:-1\n\n\0",
            b"A\ncontent-length:99999999999999999999\n\n\0",
            b"A\ncontent-length:9999999\n\n\0",
            b"A\ncontent-length:1\n\nab\0",
        ] {
            assert!(all(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert!(all(&[b'A'; HEAD_BYTES_MAX]).is_err());
        assert!(
            all(&[b"A\n".to_vec(), b"x:1\n".repeat(HEADERS_MAX + 1), b"\n\0".to_vec()].concat()).is_err()
        );
        assert!(all(&[b"A\n\n".to_vec(), vec![b'x'; BODY_BYTES_MAX + 1]].concat()).is_err());
        assert_eq!(all(&[b"A\n\n".to_vec(), vec![b'x'; BODY_BYTES_MAX], vec![0]].concat()).unwrap().len(), 1);
    }

    proptest! {
        /// Cut anywhere, what was written is read.
        #[test]
        fn frames_survive_the_wire(
            frames in prop::collection::vec(("[A-Z]{1,10}", prop::collection::vec((".{0,9}", ".{0,9}"),
                0..4), "[^\0]{0,20}"), 1..4),
            cut in 1..40usize,
        ) {
            let kept = |text: &str| text.replace(['\r', '\0'], " ");
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for (command, headers, body) in frames {
                let mut frame = Frame { command: format!("X{command}"), headers, body: body.into_bytes() };
                frame.headers.retain(|(name, _)| name != "content-length");
                frame.encode(&mut bytes);
                bytes.push(b'\n');
                frame.headers.iter_mut().for_each(|(name, value)| (*name, *value) = (kept(name),
                    kept(value)));
                expected.push(frame);
            }
            let (mut decoder, mut read) = (Decoder::default(), Vec::new());
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.poll().unwrap() {
                    read.push(frame);
                }
            }
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = all(&bytes);
        }
    }
}
