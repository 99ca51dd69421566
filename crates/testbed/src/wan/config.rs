//! What a path is like, what can be changed while it carries data, and what is counted.

/// Share of payload in a packet of 1,500 bytes: the rest is headers of IPv4 and TCP, and timestamps.
pub const PACKET_PAYLOAD_FRACTION: f64 = 1_448.0 / 1_500.0;

/// One of the two namespaces of a laboratory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::Left, Side::Right];

    pub fn name(self) -> &'static str {
        match self {
            Side::Left => "left",
            Side::Right => "right",
        }
    }

    /// The last number of its addresses.
    pub(super) fn host(self) -> u8 {
        match self {
            Side::Left => 1,
            Side::Right => 2,
        }
    }
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    LeftToRight,
    RightToLeft,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::LeftToRight, Direction::RightToLeft];

    pub fn name(self) -> &'static str {
        match self {
            Direction::LeftToRight => "left-to-right",
            Direction::RightToLeft => "right-to-left",
        }
    }
}

/// One path between the two sides. Both directions are alike, and each has the rate, the loss and the queue
/// for itself.
#[derive(Clone, Debug, PartialEq)]
pub struct PathConfig {
    /// There and back; half of it each way.
    pub rtt_ms: f64,
    /// Rate of IP packets, headers included: the payload of TCP is `rate × MSS / MTU`. None: as fast as this
    /// machine can.
    pub rate_mbit: Option<f64>,
    /// Probability that one packet of the wire (a segment, not a super-packet) is lost.
    pub loss: f64,
    pub mtu: u32,
    /// What may wait before the rate; more is dropped. None is one BDP, at least 256 kB.
    pub queue_bytes: Option<u64>,
    /// The same losses for the same packets.
    pub seed: u64,
}

impl PathConfig {
    /// No rate, no loss, MTU 1500.
    pub fn new(rtt_ms: f64) -> Self {
        PathConfig { rtt_ms, rate_mbit: None, loss: 0.0, mtu: 1500, queue_bytes: None, seed: 1 }
    }

    #[must_use]
    pub fn rate_mbit(self, rate_mbit: f64) -> Self {
        PathConfig { rate_mbit: Some(rate_mbit), ..self }
    }

    #[must_use]
    pub fn loss(self, loss: f64) -> Self {
        PathConfig { loss, ..self }
    }

    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        PathConfig { mtu, ..self }
    }

    #[must_use]
    pub fn queue_bytes(self, queue_bytes: u64) -> Self {
        PathConfig { queue_bytes: Some(queue_bytes), ..self }
    }

    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        PathConfig { seed, ..self }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        Change::RttMs(self.rtt_ms).check()?;
        Change::RateMbit(self.rate_mbit).check()?;
        Change::Loss(self.loss).check()?;
        if !(1280..=65_535).contains(&self.mtu) {
            return Err(format!("an MTU of {}: must be 1280 (the least of IPv6) to 65535", self.mtu));
        }
        if self.queue_bytes.is_some_and(|bytes| bytes < u64::from(self.mtu)) {
            return Err("a queue smaller than one packet would let nothing pass".to_owned());
        }
        Ok(())
    }
}

/// What can change while data are on the way. What is on the way already keeps its time, and no packet
/// overtakes another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    RttMs(f64),
    /// None takes the limit away. The queue follows, unless its size was given.
    RateMbit(Option<f64>),
    Loss(f64),
    /// Larger IP packets vanish and nobody is told; none ends that.
    BlackHole(Option<u32>),
    /// Nothing arrives any more, not even what was on the way, and nobody is told.
    Cut,
    /// The same in one direction only: what goes the other way arrives.
    CutOneWay(Direction),
    /// Ends a cut, in both directions.
    Restore,
}

impl Change {
    /// Whether it concerns what goes that way.
    pub(super) fn is_for(self, direction: Direction) -> bool {
        !matches!(self, Change::CutOneWay(only) if only != direction)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Change::RttMs(ms) if !(0.0..=10_000.0).contains(ms) => {
                Err(format!("a round trip of {ms} ms: must be 0 to 10,000"))
            }
            Change::RateMbit(Some(rate)) if !(0.01..=1e6).contains(rate) => {
                Err(format!("a rate of {rate} Mbit/s: must be 0.01 to 1,000,000"))
            }
            Change::Loss(loss) if !(0.0..=1.0).contains(loss) => {
                Err(format!("a loss of {loss}: must be 0 to 1"))
            }
            Change::BlackHole(Some(0)) => {
                Err("a black hole for packets of more than 0 bytes is a cut".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The kernel's settings in both namespaces.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Upper end of `tcp_rmem` and `tcp_wmem`, to which the kernel may grow the buffers of a connection by
    /// itself. What `SO_RCVBUF` and `SO_SNDBUF` may ask for (`net.core.*mem_max`) is the machine's and stays.
    pub socket_buffer_bytes_max: u64,
    /// `cubic`, `bbr`, …
    pub congestion_control: String,
}

impl Default for Options {
    fn default() -> Self {
        Options { socket_buffer_bytes_max: 256 << 20, congestion_control: "cubic".to_owned() }
    }
}

/// What one direction of one path has done. Packets are those of the wire (segments), bytes those of IP
/// packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub packets_carried: u64,
    pub bytes_carried: u64,
    /// What the kernel handed over at once, up to 64 kB each.
    pub super_packets: u64,
    pub packets_lost: u64,
    pub bytes_lost: u64,
    /// Dropped because the queue (or the emulator's memory) was full.
    pub packets_overflowed: u64,
    pub bytes_overflowed: u64,
    /// Dropped by a cut.
    pub packets_cut: u64,
    pub bytes_cut: u64,
    /// What the receiving kernel would not take: its device was taken down.
    pub packets_refused: u64,
    pub bytes_refused: u64,
    /// When the first packet came in and the last went out, by the emulator's clock.
    pub first_in_ns: u64,
    pub last_out_ns: u64,
    /// How much later than due super-packets went out, because the emulator had no processor: of the latest,
    /// and of all.
    pub late_ns_max: u64,
    pub late_ns_sum: u64,
    /// Most bytes held at once: those waiting and those on the way.
    pub bytes_held_max: u64,
}

impl Counters {
    /// Every packet that came in and is no longer held.
    pub fn packets(&self) -> u64 {
        self.packets_carried
            + self.packets_lost
            + self.packets_overflowed
            + self.packets_cut
            + self.packets_refused
    }
}
