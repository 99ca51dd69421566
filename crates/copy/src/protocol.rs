//! Control protocol of ad-hoc copies: JSON messages, one reply to one request, over a channel between two
//! engines that have authenticated each other.
//!
//! Every field is bounded and checked when a message is read; a path is relative and cannot name anything
//! above the root. Data travels over the engines' streams. Start with [`Request`] and [`Reply`].

use crate::progress::{FileOutcome, Outcome};
use longhaul_model::hex;
use longhaul_model::json;
use longhaul_model::tree::ChunkValue;
use longhaul_model::units::printable;
use longhaul_model::{AgentId, DigestSet, Fault, FaultCode, Lfn, TrafficClass, Verification};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

/// Supported versions of this protocol.
pub const VERSION_MIN: u16 = 1;
pub const VERSION_MAX: u16 = 1;

/// Bytes of one message; the engines carry nothing larger.
pub const MESSAGE_BYTES_MAX: usize = (256 << 10) - 64;
/// Bytes of a page of a listing, so that the message around it fits.
pub const PAGE_BYTES_MAX: usize = 224 << 10;
/// Items of one message, whatever their size.
pub const ITEMS_PER_MESSAGE_MAX: usize = 4_096;
/// Bytes of texts that are only displayed.
const TEXT_BYTES_MAX: usize = 1_024;
/// Chunk values in one message: 64 characters each.
pub const VALUES_PER_MESSAGE_MAX: usize = 2_048;
/// Longest time that a server holds a poll back.
pub const WAIT_MS_MAX: u64 = 20_000;

/// A path beneath the exported root; empty is the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct RelativePath(String);

impl RelativePath {
    pub fn parse(text: &str) -> Result<Self, Fault> {
        if !text.is_empty() {
            Lfn::parse(text)?;
        }
        Ok(RelativePath(text.to_owned()))
    }

    pub fn root() -> Self {
        RelativePath(String::new())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for RelativePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RelativePath::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Always the first request.
    Hello {
        version_min: u16,
        version_max: u16,
        /// Name and version of the program, for logs.
        program: String,
        /// Paths to describe in the answer, one entry each.
        looks_at: Vec<RelativePath>,
        /// Starts listing 0 in the answer if this is a directory, which saves a round trip.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lists: Option<ListRequest>,
    },
    /// One page of a listing. Pages are requested in order from 0; the last one may be requested again.
    List {
        /// Chosen by the client; several may be open.
        listing: u32,
        of: ListRequest,
        page: u32,
    },
    /// Describes these paths, one entry each.
    Stat {
        paths: Vec<RelativePath>,
    },
    /// CRC32C of files.
    Digests {
        paths: Vec<RelativePath>,
    },
    /// Parts of the BLAKE3 trees of files, one answer each.
    Trees {
        parts: Vec<TreePart>,
    },
    MakeDirectories {
        paths: Vec<RelativePath>,
    },
    /// Starts receiving files from this client, over the streams that it offers.
    Receive {
        job: u32,
        verification: Verification,
        #[serde(default, skip_serializing_if = "crate::options::is_bulk")]
        class: TrafficClass,
    },
    /// Files of that job. `path` is the target path and the name in the client's export.
    ReceiveFiles {
        job: u32,
        files: Vec<PushedFile>,
    },
    /// News of the job; the reply is held back until there is some or the time is over.
    ReceivePoll {
        job: u32,
        wait_ms: u64,
    },
    /// Ends the job: unfinished files are cancelled and can be resumed by a later job.
    ReceiveEnd {
        job: u32,
    },
    /// Third-party copy: fetch from another server into this one.
    Fetch {
        order: Box<FetchOrder>,
    },
    FetchPoll {
        order: u64,
        /// The version the client has; the reply waits for a newer one.
        seen: u64,
        /// How many file outcomes the client has.
        told: u64,
        wait_ms: u64,
    },
    FetchCancel {
        order: u64,
    },
    Space {
        path: RelativePath,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reply {
    Hello(Welcome),
    Page(Page),
    Stats { found: Vec<Option<Entry>> },
    Digests { found: Vec<DigestAnswer> },
    Trees { found: Vec<TreeAnswer> },
    Received(ReceiveProgress),
    Fetched(OrderState),
    Space { total_bytes: u64, free_bytes: u64 },
    Done,
    Fault { fault: Fault },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    pub version: u16,
    pub program: String,
    /// The agent that permits and fetches name.
    pub agent: AgentId,
    pub writable: bool,
    pub found: Vec<Option<Entry>>,
    /// The first page of the requested listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<Page>,
}

/// A request to list a path and what is beneath it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    pub path: RelativePath,
    pub recursive: bool,
    /// Whether to include, and the pattern; `prefix` is put before each path when filters see it.
    pub filters: Vec<(bool, String)>,
    pub prefix: RelativePath,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    pub entries: Vec<Entry>,
    pub last: bool,
    /// Entries excluded by filters so far.
    pub excluded: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    File,
    Directory,
    /// Neither; the entry's `note` says why it is left out.
    LeftOut,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    #[serde(rename = "p")]
    pub path: RelativePath,
    #[serde(rename = "k")]
    pub kind: Kind,
    #[serde(rename = "s", default)]
    pub size: u64,
    #[serde(rename = "t", default)]
    pub mtime_ns: i64,
    /// Permission bits.
    #[serde(rename = "m", default)]
    pub mode: u32,
    #[serde(rename = "n", default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushedFile {
    #[serde(rename = "p")]
    pub path: RelativePath,
    #[serde(rename = "s")]
    pub size: u64,
    #[serde(rename = "t")]
    pub mtime_ns: i64,
    #[serde(rename = "m")]
    pub mode: u32,
    /// Replace the file that has the name already.
    #[serde(rename = "r", default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

/// The digest of one file, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DigestAnswer {
    Digests(DigestSet),
    Fault(Fault),
}

/// Requests `count` chunk values of a file of this size, starting with chunk `first`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreePart {
    #[serde(rename = "p")]
    pub path: RelativePath,
    #[serde(rename = "s")]
    pub size: u64,
    #[serde(rename = "f")]
    pub first: u64,
    #[serde(rename = "n")]
    pub count: u32,
}

/// Chunk values, or why there are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TreeAnswer {
    Values {
        /// Modification time of the file that was read: parts of two versions make no tree.
        #[serde(rename = "t")]
        mtime_ns: i64,
        #[serde(rename = "v")]
        values: ChunkValues,
    },
    Fault(Fault),
}

/// Chunk values, serialised as one string of hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkValues(pub Vec<ChunkValue>);

impl Serialize for ChunkValues {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(self.0.as_flattened()))
    }
}

impl<'de> Deserialize<'de> for ChunkValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let mut values = vec![ChunkValue::default(); text.len() / 64];
        match hex::decode_into(&text, values.as_flattened_mut()) {
            Some(()) if values.len() <= VALUES_PER_MESSAGE_MAX => Ok(ChunkValues(values)),
            _ => Err(D::Error::custom("a chunk value is 64 hexadecimal digits")),
        }
    }
}

/// News of a job's files since the last poll.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveProgress {
    pub finished: Vec<ReceivedFile>,
    /// Bytes written of running files.
    pub bytes_running: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceivedFile {
    #[serde(rename = "p")]
    pub path: RelativePath,
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    #[serde(rename = "r", default)]
    pub retries: u32,
    /// Payload bytes of all tries; `resent` is the part sent more than once. None if an attempt of an earlier
    /// connection brought the file, partly over streams of this one.
    #[serde(rename = "m", default)]
    pub moved: Option<u64>,
    #[serde(rename = "x", default)]
    pub resent: u64,
}

/// A third-party copy, as ordered from the target's server.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchOrder {
    /// The source's URL, secret included.
    pub source: String,
    /// Target path in this server's tree.
    pub target: RelativePath,
    /// The target was written with a trailing slash.
    pub target_contents: bool,
    pub options: crate::options::Options,
    /// Continue when the client has disconnected.
    pub detach: bool,
}

impl std::fmt::Debug for FetchOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Order(to {:?}, source hidden)", self.target.0)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderState {
    pub order: u64,
    /// Incremented with every change.
    pub version: u64,
    pub totals: crate::progress::Totals,
    pub over: bool,
    /// Why the copy as a whole failed.
    pub fault: Option<Fault>,
    /// The first files that failed.
    pub failed: Vec<(String, Fault)>,
    /// Number of the first outcome in `told`: higher than the client expects if outcomes were dropped because
    /// nobody polled for too long.
    pub told_from: u64,
    pub told: Vec<FileOutcome>,
}

impl Request {
    fn check(&self) -> Result<(), String> {
        let count = |items: usize| {
            if items > ITEMS_PER_MESSAGE_MAX {
                Err(format!("{items} items; the limit is {ITEMS_PER_MESSAGE_MAX}"))
            } else {
                Ok(())
            }
        };
        match self {
            Request::Hello { program, looks_at, lists, .. } => {
                text(program)?;
                count(looks_at.len())?;
                count(lists.as_ref().map_or(0, |of| of.filters.len()))
            }
            Request::List { of, .. } => count(of.filters.len()),
            Request::Stat { paths } | Request::Digests { paths } | Request::MakeDirectories { paths } => {
                count(paths.len())
            }
            Request::ReceiveFiles { files, .. } => count(files.len()),
            Request::Trees { parts } => {
                let values: u64 = parts.iter().map(|part| u64::from(part.count)).sum();
                if values > VALUES_PER_MESSAGE_MAX as u64 {
                    return Err(format!("{values} values; the limit is {VALUES_PER_MESSAGE_MAX}"));
                }
                count(parts.len())
            }
            Request::ReceivePoll { wait_ms, .. } | Request::FetchPoll { wait_ms, .. } => {
                if *wait_ms > WAIT_MS_MAX {
                    Err(format!("a wait of {wait_ms} ms is too long"))
                } else {
                    Ok(())
                }
            }
            Request::Fetch { order } => {
                if order.source.len() > crate::url::URL_BYTES_MAX {
                    return Err("the URL is too long".into());
                }
                order.options.check()
            }
            Request::Receive { .. }
            | Request::ReceiveEnd { .. }
            | Request::FetchCancel { .. }
            | Request::Space { .. } => Ok(()),
        }
    }
}

impl Reply {
    fn check(&self) -> Result<(), String> {
        match self {
            Reply::Hello(welcome) => {
                text(&welcome.program)?;
                welcome.page.iter().flat_map(|page| &page.entries).try_for_each(|entry| text(&entry.note))
            }
            Reply::Page(page) => page.entries.iter().try_for_each(|entry| text(&entry.note)),
            Reply::Fault { fault } => text(&fault.detail),
            Reply::Fetched(state) => {
                state.failed.iter().try_for_each(|(path, fault)| {
                    text(path)?;
                    text(&fault.detail)
                })?;
                state.told.iter().try_for_each(|told| {
                    text(&told.source)?;
                    text(&told.target)?;
                    match &told.outcome {
                        Outcome::Failed(fault) => text(&fault.detail),
                        Outcome::LeftOut(why) => text(why),
                        _ => Ok(()),
                    }
                })
            }
            _ => Ok(()),
        }
    }
}

fn text(text: &str) -> Result<(), String> {
    let most = TEXT_BYTES_MAX + longhaul_model::limits::LFN_BYTES_MAX;
    if text.len() > most { Err(format!("a text of {} bytes is too long", text.len())) } else { Ok(()) }
}

/// Parses and checks a request.
pub fn read_request(bytes: &[u8]) -> Result<Request, Fault> {
    read(bytes, Request::check)
}

/// Parses and checks a reply; a fault in it becomes the error.
pub fn read_reply(bytes: &[u8]) -> Result<Reply, Fault> {
    match read(bytes, Reply::check)? {
        // The text comes from the peer and is shown on terminals.
        Reply::Fault { mut fault } => {
            fault.detail = printable(&fault.detail);
            Err(fault)
        }
        reply => Ok(reply),
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8], check: impl FnOnce(&T) -> Result<(), String>) -> Result<T, Fault> {
    let refuse =
        |why: String| Err(Fault::new(FaultCode::ProtocolError, format!("bad message: {}", printable(&why))));
    if bytes.len() > MESSAGE_BYTES_MAX {
        return refuse(format!("{} bytes; the limit is {MESSAGE_BYTES_MAX}", bytes.len()));
    }
    match json::from_slice::<T>(bytes) {
        Ok(message) => match check(&message) {
            Ok(()) => Ok(message),
            Err(why) => refuse(why),
        },
        Err(error) => refuse(error.to_string()),
    }
}

/// # Panics
/// If one of our messages cannot be serialised: all of them can.
pub fn write<T: Serialize>(message: &T) -> Vec<u8> {
    let bytes = serde_json::to_vec(message);
    assert!(bytes.is_ok(), "a message cannot be serialised as JSON");
    bytes.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(path: String) -> Entry {
        let path = RelativePath::parse(&path).unwrap();
        Entry { path, kind: Kind::File, size: 7, mtime_ns: -3, mode: 0o644, note: String::new() }
    }

    fn listed() -> ListRequest {
        ListRequest {
            path: RelativePath::root(),
            recursive: true,
            filters: vec![(false, "*.tmp".into())],
            prefix: RelativePath::parse("run7").unwrap(),
        }
    }

    #[test]
    fn messages_round_trip() {
        let requests = [
            Request::Hello {
                version_min: 1,
                version_max: 1,
                program: "longhaul".into(),
                looks_at: vec![RelativePath::parse("a").unwrap()],
                lists: Some(listed()),
            },
            Request::List { listing: 1, of: listed(), page: 0 },
            Request::ReceiveFiles {
                job: 1,
                files: vec![PushedFile {
                    path: RelativePath::parse("a/b").unwrap(),
                    size: 1,
                    mtime_ns: 2,
                    mode: 3,
                    replace: true,
                }],
            },
            Request::ReceiveEnd { job: 1 },
        ];
        for request in requests {
            assert_eq!(read_request(&write(&request)).unwrap(), request);
        }
        let page = Page { entries: vec![entry("a\nb".into())], last: true, excluded: 3 };
        let page = Reply::Page(page);
        assert_eq!(read_reply(&write(&page)).unwrap(), page);
        let digests: DigestSet = "crc32c:01020304".parse().unwrap();
        let answers =
            [DigestAnswer::Digests(digests), DigestAnswer::Fault(Fault::new(FaultCode::SourceMissing, "x"))];
        let reply = Reply::Digests { found: answers.to_vec() };
        assert_eq!(read_reply(&write(&reply)).unwrap(), reply);
        let fault = Fault::new(FaultCode::NotAllowed, "no\u{1b}[2J");
        let read = read_reply(&write(&Reply::Fault { fault })).unwrap_err();
        assert_eq!((read.code, read.detail.as_str()), (FaultCode::NotAllowed, "no\\u{1b}[2J"));
    }

    /// Promise 9.
    #[test]
    fn no_message_names_anything_above_the_root() {
        for bad in ["/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".", "a\0"] {
            let text = serde_json::json!({"ask": "stat", "paths": [bad]}).to_string();
            assert!(read_request(text.as_bytes()).is_err(), "{bad}");
        }
        let long = vec!["x"; ITEMS_PER_MESSAGE_MAX + 1];
        let text = serde_json::json!({"ask": "stat", "paths": long}).to_string();
        assert!(read_request(text.as_bytes()).unwrap_err().detail.contains("limit"));
        assert!(read_request(&vec![b' '; MESSAGE_BYTES_MAX + 1]).unwrap_err().detail.contains("bytes"));
        assert!(read_request(br#"{"ask":"space","path":"","more":1}"#).is_err());
        assert!(read_request(br#"{"ask":"receive-poll","job":1,"wait_ms":99999999}"#).is_err());
    }

    #[test]
    fn values_are_whole_and_few() {
        let answer =
            |values: usize| TreeAnswer::Values { mtime_ns: 1, values: ChunkValues(vec![[0xa5; 32]; values]) };
        let reply = |values| Reply::Trees { found: vec![answer(values)] };
        for good in [0, 1, VALUES_PER_MESSAGE_MAX] {
            assert_eq!(read_reply(&write(&reply(good))).unwrap(), reply(good));
        }
        assert!(read_reply(&write(&reply(VALUES_PER_MESSAGE_MAX + 1))).is_err());
        let text = String::from_utf8(write(&reply(2))).unwrap();
        for (good, bad) in [
            ("a5a5\"", "a5\""),
            ("\"a5", "\"g5"),
            ("\"a5a5", "\"é5"),
            ("\"a5", "\"+5"),
            ("\"t\":1", "\"t\":null"),
        ] {
            assert!(text.contains(good), "{good}");
            assert!(read_reply(text.replacen(good, bad, 1).as_bytes()).is_err(), "{bad}");
        }
        let path = RelativePath::parse("f").unwrap();
        let part = |count| TreePart { path: path.clone(), size: 7, first: 0, count };
        let ask = |parts| read_request(&write(&Request::Trees { parts }));
        assert!(ask(vec![part(1_024), part(1_024)]).is_ok());
        assert!(ask(vec![part(1_024), part(1_025)]).is_err() && ask(vec![part(u32::MAX); 2]).is_err());
        assert!(ask(vec![part(0); ITEMS_PER_MESSAGE_MAX + 1]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_request(&bytes);
            let _ = read_reply(&bytes);
        }

        #[test]
        fn no_json_panics(ask in "(hello|list|stat|digests|receive|receive-files|fetch|space|x)",
                          field in "(paths|path|job|files|order|page)",
                          value in "(1|-1|\"a\"|\"..\"|\\[\\]|\\{\\}|null|1e99)") {
            let _ = read_request(format!("{{\"ask\":\"{ask}\",\"{field}\":{value}}}").as_bytes());
        }
    }
}
