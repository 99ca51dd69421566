//! Fireflies (SciTags flow marking): a UDP datagram that tells a collector whose flow this is and its
//! progress.
//!
//! The format is that of the SciTags initiative: a syslog header (RFC 5424), then a JSON object. `src` is the
//! sender of the data, whichever end reports; `usage` counts from there, so that both ends report alike.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use longhaul_model::{SciTag, Timestamp};
use serde_json::{Value, json};

/// UDP port of firefly collectors.
pub const PORT: u16 = 10_514;
/// Fits an Ethernet MTU of 1500 bytes with the headers of IPv6 and UDP, so that no path fragments it.
pub const BYTES_MAX: usize = 1_400;
/// Longer host names are truncated (RFC 5424 allows 255 bytes).
const HOST_BYTES_MAX: usize = 255;
/// Syslog priority: facility local0, severity informational.
const PRIORITY: u8 = 134;
const APPLICATION: &str = concat!("longhaul/", env!("CARGO_PKG_VERSION"));

/// Phase of the flow; words of the `state` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The first report of a flow.
    Start,
    /// A periodic report.
    Ongoing,
    /// The last report of a flow.
    End,
}

/// Counters from the kernel of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes sent by the sender of the data.
    pub sent: u64,
    /// Bytes sent by the other end.
    pub received: u64,
    /// Smoothed round trip, as the kernel measured it; zero if unknown.
    pub round_trip: Duration,
    /// Congestion window, in segments.
    pub window_segments: u32,
    /// Segments retransmitted since the flow began.
    pub retransmits: u32,
    /// Bytes per second; 0 if unknown.
    pub delivery_rate: u64,
}

/// One report about one flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firefly {
    /// Phase that the report is about.
    pub state: State,
    /// When the flow began.
    pub started: Timestamp,
    /// Time of the report.
    pub now: Timestamp,
    /// The end that sends the data.
    pub source: SocketAddr,
    /// The end that receives the data.
    pub target: SocketAddr,
    /// Experiment and activity of the flow.
    pub scitag: SciTag,
    /// Counters since the flow began.
    pub usage: Usage,
}

impl Firefly {
    /// The datagram as sent by the host of this name; at most [`BYTES_MAX`].
    pub fn datagram(&self, host: &str) -> Vec<u8> {
        let mut text = format!("<{PRIORITY}>1 {} ", rfc3339(self.now));
        // RFC 5424: printable ASCII, and a dash for an empty name.
        let before = text.len();
        text.extend(host.chars().filter(char::is_ascii_graphic).take(HOST_BYTES_MAX));
        if text.len() == before {
            text.push('-');
        }
        // Writing to a `String` does not fail.
        let _ = write!(text, " longhaul - firefly-json - {}", self.json());
        debug_assert!(text.len() <= BYTES_MAX, "a firefly of {} bytes", text.len());
        text.into_bytes()
    }

    fn json(&self) -> Value {
        let mut lifecycle = json!({
            "state": self.state.word(),
            "start-time": rfc3339(self.started),
            "current-time": rfc3339(self.now),
        });
        if self.state == State::End {
            lifecycle["end-time"] = rfc3339(self.now).into();
        }
        let (source, target) = (self.source.ip().to_canonical(), self.target.ip().to_canonical());
        json!({
            "version": 1,
            "flow-lifecycle": lifecycle,
            "flow-id": {
                "afi": if matches!(source, IpAddr::V6(_)) { "ipv6" } else { "ipv4" },
                "src-ip": source,
                "dst-ip": target,
                "protocol": "tcp",
                "src-port": self.source.port(),
                "dst-port": self.target.port(),
            },
            "usage": { "received": self.usage.received, "sent": self.usage.sent },
            "netlink": {
                "rtt": self.usage.round_trip.as_secs_f64() * 1e3,
                "cwnd": self.usage.window_segments,
                "retrans": self.usage.retransmits,
                "delivery_rate": self.usage.delivery_rate,
            },
            "context": {
                "experiment-id": self.scitag.experiment(),
                "activity-id": self.scitag.activity(),
                "application": APPLICATION,
            },
        })
    }
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Start => "start",
            State::Ongoing => "ongoing",
            State::End => "end",
        }
    }
}

/// RFC 3339 with microseconds and a numeric offset, as collectors parse it.
fn rfc3339(at: Timestamp) -> String {
    at.to_micros_text()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn firefly(state: State) -> Firefly {
        let started: Timestamp = "2026-12-01T10:00:00Z".parse().unwrap();
        Firefly {
            state,
            started,
            now: started + Duration::from_micros(200_000_001),
            source: "[2001:db8:1::10]:41122".parse().unwrap(),
            target: "[2001:db8:2::20]:1094".parse().unwrap(),
            scitag: SciTag::new(2, 26).unwrap(),
            usage: Usage {
                sent: 10_737_418_240,
                received: 12,
                round_trip: Duration::from_micros(80_250),
                ..Usage::default()
            },
        }
    }

    fn split(datagram: &[u8]) -> (String, Value) {
        let text = std::str::from_utf8(datagram).unwrap();
        let (head, document) = text.split_once(" firefly-json - ").unwrap();
        (head.to_owned(), serde_json::from_str(document).unwrap())
    }

    #[test]
    fn the_document_matches_the_specification() {
        let (head, document) = split(&firefly(State::End).datagram("dtn1.example.org"));
        let at = "2026-12-01T10:03:20.000001+00:00";
        assert_eq!(head, format!("<134>1 {at} dtn1.example.org longhaul -"));
        let mut expected: Value = serde_json::from_str(
            r#"{"version":1,
             "flow-lifecycle":{"state":"end","start-time":"2026-12-01T10:00:00.000000+00:00"},
             "flow-id":{"afi":"ipv6","src-ip":"2001:db8:1::10","dst-ip":"2001:db8:2::20",
                         "protocol":"tcp","src-port":41122,"dst-port":1094},
             "usage":{"received":12,"sent":10737418240},
             "netlink":{"rtt":80.25,"cwnd":0,"retrans":0,"delivery_rate":0},
             "context":{"experiment-id":2,"activity-id":26}}"#,
        )
        .unwrap();
        expected["flow-lifecycle"]["current-time"] = at.into();
        expected["flow-lifecycle"]["end-time"] = at.into();
        expected["context"]["application"] = APPLICATION.into();
        assert_eq!(document, expected);
    }

    #[test]
    fn only_the_last_firefly_has_an_end_time() {
        for (state, word) in [(State::Start, "start"), (State::Ongoing, "ongoing")] {
            let (_, document) = split(&firefly(state).datagram(""));
            assert_eq!(document["flow-lifecycle"]["state"], word);
            assert_eq!(document["flow-lifecycle"].get("end-time"), None);
        }
    }

    #[test]
    fn an_ipv4_mapped_address_is_reported_as_ipv4() {
        let firefly = Firefly {
            source: "[::ffff:192.0.2.1]:1".parse().unwrap(),
            target: "[::ffff:192.0.2.2]:2".parse().unwrap(),
            ..firefly(State::Start)
        };
        let (_, document) = split(&firefly.datagram("h"));
        assert_eq!(document["flow-id"]["afi"], "ipv4");
        assert_eq!(document["flow-id"]["src-ip"], "192.0.2.1");
    }

    proptest! {
        #[test]
        fn any_firefly_fits_a_datagram_and_is_json(
            host in ".{0,400}", times in any::<(i64, i64)>(), counts in any::<(u64, u64, u64, u32, u32)>(),
                wide in any::<[u16; 8]>(),
        ) {
            let firefly = Firefly {
                state: State::End,
                started: Timestamp(times.0),
                now: Timestamp(times.1),
                source: SocketAddr::new(wide.into(), u16::MAX),
                target: SocketAddr::new(wide.into(), u16::MAX),
                scitag: SciTag::new(1023, 63).unwrap(),
                usage: Usage {
                    sent: counts.0,
                    received: counts.1,
                    round_trip: Duration::from_micros(counts.2 >> 20),
                    window_segments: counts.3,
                    retransmits: counts.4,
                    delivery_rate: counts.2,
                },
            };
            let datagram = firefly.datagram(&host);
            prop_assert!(datagram.len() <= BYTES_MAX);
            let (head, document) = split(&datagram);
            prop_assert!(head.is_ascii() && head.split(' ').all(|word| !word.is_empty()));
            prop_assert_eq!(&document["usage"]["sent"], counts.0);
        }
    }
}
