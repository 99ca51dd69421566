//! Decoder of the performance markers of a third-party copy, and of its last line, which alone says how it
//! ended.
//!
//! Sans-IO: bytes in, progress and outcome out. The server is not trusted: lines, stripes and unknown keys
//! are bounded.

use std::collections::BTreeMap;

use crate::failure::sanitized;

/// A line is cut there; what an active party says beyond that nobody reads.
const LINE_BYTES_MAX: usize = 4 << 10;
/// Stripes of one copy that are told apart.
const STRIPES_MAX: usize = 1_024;
/// Characters of a failure's text.
const TEXT_CHARS_MAX: usize = 240;

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// With its text, and the HTTP status of the other side if the text names one.
    Failure {
        text: String,
        status: Option<u16>,
    },
}

/// Reads as it comes. [`Markers::bytes`] is what has been moved so far.
#[derive(Debug, Default)]
pub(crate) struct Markers {
    line: Vec<u8>,
    in_block: bool,
    /// Bytes of the stripes in the block being read.
    stripe: u64,
    moved: Option<u64>,
    stripes: BTreeMap<u64, u64>,
    /// Blocks that have ended.
    blocks: u64,
    outcome: Option<Outcome>,
}

impl Markers {
    /// Everything after the last line is ignored.
    pub(crate) fn feed(&mut self, data: &[u8]) {
        for &byte in data {
            if self.outcome.is_some() {
                return;
            }
            if byte == b'\n' {
                self.end_line();
            } else if self.line.len() < LINE_BYTES_MAX {
                self.line.push(byte);
            }
        }
    }

    /// The stream has ended: the last line may lack its end.
    pub(crate) fn end(mut self) -> Option<Outcome> {
        if self.outcome.is_none() {
            self.end_line();
        }
        self.outcome
    }

    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The sum over the stripes of what each told last.
    pub(crate) fn bytes(&self) -> u64 {
        self.stripes.values().fold(0, |sum, moved| sum.saturating_add(*moved))
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if self.in_block {
            self.marker_line(text);
        } else if text.eq_ignore_ascii_case("perf marker") {
            (self.in_block, self.stripe, self.moved) = (true, 0, None);
        } else {
            self.outcome = outcome(text);
        }
    }

    fn marker_line(&mut self, text: &str) {
        if text.eq_ignore_ascii_case("end") {
            self.in_block = false;
            self.blocks = self.blocks.saturating_add(1);
            let room = self.stripes.len() < STRIPES_MAX || self.stripes.contains_key(&self.stripe);
            if let Some(moved) = self.moved.take().filter(|_| room) {
                self.stripes.insert(self.stripe, moved);
            }
            return;
        }
        // A server that forgets the end of a block still tells how it went.
        if let Some(outcome) = outcome(text) {
            self.outcome = Some(outcome);
            return;
        }
        let Some((key, value)) = text.split_once(':') else { return };
        let number = value.trim().parse::<u64>().ok();
        if key.trim().eq_ignore_ascii_case("stripe index") {
            self.stripe = number.unwrap_or(0);
        } else if key.trim().eq_ignore_ascii_case("stripe bytes transferred") {
            self.moved = number;
        }
    }
}

/// The first word decides, in every spelling that occurs.
fn outcome(line: &str) -> Option<Outcome> {
    let end = line.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    match word.to_ascii_lowercase().as_str() {
        "success" => Some(Outcome::Success),
        "failure" | "failed" | "aborted" => {
            let text: String =
                sanitized(rest.trim_start_matches([':', ' '])).chars().take(TEXT_CHARS_MAX).collect();
            Some(Outcome::Failure { status: status(&text), text })
        }
        _ => None,
    }
}

/// `Remote side failed with status code 404; …`, `rejected GET: 403 Forbidden`: the first number that is an
/// HTTP error.
fn status(text: &str) -> Option<u16> {
    let lower = text.to_ascii_lowercase();
    let after = ["status code", "status:", "http", "get:", "put:", "head:", "code:", "failed with status"];
    let places = after.iter().filter_map(|word| lower.find(word).map(|at| at + word.len()));
    places
        .filter_map(|at| {
            let rest = lower[at..].trim_start_matches([' ', ':', '=', '/']);
            let rest = rest.strip_prefix("1.1 ").unwrap_or(rest);
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse::<u16>().ok().filter(|status| (400..600).contains(status))
        })
        .next()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> (u64, u64, Option<Outcome>) {
        let mut markers = Markers::default();
        markers.feed(text.as_bytes());
        (markers.bytes(), markers.blocks(), markers.end())
    }

    const XROOTD: &str = "Perf Marker\nTimestamp: 1537788010\nStripe Index: 0\nStripe Bytes Transferred: \
        238745\nTotal Stripe Count: 1\nRemoteConnections: \
        tcp:129.93.3.4:1234,tcp:[2600:900:6::1301:268a]:2345\nEnd\n";
    const DCACHE: &str = "Perf Marker\r\n    Timestamp: 1537788015\r\n    State: Running\r\n    State \
        description: querying checksum of transferred file\r\n    Stripe Index: 1\r\n    Stripe Start Time: \
        1537788008\r\n    Stripe Bytes Transferred: 10485760\r\n    Stripe Status: RUNNING\r\n    Total \
        Strip Count: 1\r\nEnd\r\n";

    #[test]
    fn peers_are_understood() {
        let whole = format!("{XROOTD}{DCACHE}success: Created");
        assert_eq!(read(&whole), (10_724_505, 2, Some(Outcome::Success)));
        for last in ["success: Created\n", "Success\r\n", "SUCCESS", "success: x\nfailure: y\n"] {
            assert_eq!(read(last).2, Some(Outcome::Success), "{last}");
        }
        let xrootd = "failure: Remote side failed with status code 404; error message: \"x\"";
        let Some(Outcome::Failure { text, status }) = read(xrootd).2 else { panic!("no failure") };
        assert_eq!(status, Some(404));
        assert!(text.starts_with("Remote side failed"), "{text}");
        for (last, status) in [
            ("Failed: rejected GET: 403 Forbidden", Some(403)),
            ("aborted: by user 404", None),
            ("failure: checksum mismatch (expected=1, actual=2)", None),
        ] {
            assert!(
                matches!(read(last).2, Some(Outcome::Failure { status: found, .. }) if found == status),
                "{last}"
            );
        }
    }

    #[test]
    fn no_last_line_is_no_outcome() {
        for text in ["", "\n\n", XROOTD, "Perf Marker\nStripe Index: 0\n", "successful\n", "hello\n"] {
            assert_eq!(read(text).2, None, "{text:?}");
        }
    }

    #[test]
    fn stripes_and_lines_are_bounded() {
        let block = |n: u64| format!("Perf Marker\nStripe Index: {n}\nStripe Bytes Transferred: 1\nEnd\n");
        let many: String = (0..3_000).map(block).collect();
        assert_eq!(read(&many).0, STRIPES_MAX as u64);
        let mut markers = Markers::default();
        markers.feed(&vec![b'x'; 1 << 20]);
        assert!(markers.line.len() <= LINE_BYTES_MAX);
        let huge = format!("Perf Marker\nStripe Bytes Transferred: {}\nEnd\n", u64::MAX);
        let twice = huge.clone() + &huge.replace("Marker\n", "Marker\nStripe Index: 2\n");
        assert_eq!(read(&twice).0, u64::MAX);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(cuts in prop::collection::vec(1usize..40, 0..40), last in "(success: \
            Created|failure: x)\n?") {
            let whole = format!("{XROOTD}{DCACHE}{last}");
            let mut markers = Markers::default();
            let mut rest = whole.as_bytes();
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                markers.feed(now);
                rest = later;
            }
            markers.feed(rest);
            prop_assert_eq!((markers.bytes(), markers.blocks()), (10_724_505, 2));
            prop_assert_eq!(markers.end(), read(&whole).2);
        }

        #[test]
        fn nothing_upsets_it(data in prop::collection::vec(any::<u8>(), 0..2_000)) {
            let mut markers = Markers::default();
            markers.feed(&data);
            let _ = markers.end();
        }

        #[test]
        fn nonsense_between_blocks_is_no_outcome(noise in prop::collection::vec(
            prop::sample::select(vec!["Perf Marker\n", "End\n", "Stripe Index: 9\n", ": :\n", "Stripe Bytes \
                Transferred: -1\n", "x\n"]), 0..50)) {
            prop_assert_eq!(read(&noise.concat()).2, None);
        }
    }
}
