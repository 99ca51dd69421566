//! Resources: ports with VLANs and bandwidth, and their bookings over time.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) vlans: Vec<u16>,
    pub(crate) mbit: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Booking {
    owner: String,
    port: String,
    vlan: u16,
    mbit: u64,
    begin: f64,
    end: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Network {
    ports: Vec<Port>,
    bookings: Vec<Booking>,
}

/// A time span.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) begin: f64,
    pub(crate) end: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BookingError {
    Port,
    Vlan,
    Bandwidth,
}

/// One end of a request: a port, and the acceptable VLANs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PortRequest {
    pub(crate) port: String,
    pub(crate) vlans: Vec<u16>,
}

impl Network {
    pub(crate) fn new(ports: Vec<Port>) -> Network {
        Network { ports, bookings: Vec::new() }
    }

    pub(crate) fn ports(&self) -> &[Port] {
        &self.ports
    }

    fn overlapping(&self, port: &str, span: Span) -> impl Iterator<Item = &Booking> {
        let with = move |booking: &&Booking| booking.begin < span.end && span.begin < booking.end;
        self.bookings.iter().filter(move |booking| booking.port == port).filter(with)
    }

    /// VLANs and Mbit/s available at a port over the whole span.
    pub(crate) fn available(&self, port: &str, span: Span) -> Option<(Vec<u16>, u64)> {
        let known = self.ports.iter().find(|known| known.name == port)?;
        let booked: u64 = self.overlapping(port, span).map(|booking| booking.mbit).sum();
        let is_free = |vlan: &u16| !self.overlapping(port, span).any(|booking| booking.vlan == *vlan);
        let vlans = known.vlans.iter().copied().filter(is_free).collect();
        Some((vlans, known.mbit.saturating_sub(booked)))
    }

    /// Books both ends; returns the VLANs chosen.
    pub(crate) fn book(
        &mut self,
        owner: &str,
        ends: &[PortRequest],
        mbit: u64,
        span: Span,
    ) -> Result<Vec<u16>, BookingError> {
        let mut chosen = Vec::new();
        for end in ends {
            let (vlans, left) = self.available(&end.port, span).ok_or(BookingError::Port)?;
            chosen.push(*end.vlans.iter().find(|vlan| vlans.contains(vlan)).ok_or(BookingError::Vlan)?);
            if left < mbit {
                return Err(BookingError::Bandwidth);
            }
        }
        for (end, vlan) in ends.iter().zip(&chosen) {
            self.bookings.push(Booking {
                owner: owner.to_owned(),
                port: end.port.clone(),
                vlan: *vlan,
                mbit,
                begin: span.begin,
                end: span.end,
            });
        }
        Ok(chosen)
    }

    pub(crate) fn release_all(&mut self, owner: &str) {
        self.bookings.retain(|booking| booking.owner != owner);
    }

    /// Owners of bookings.
    pub(crate) fn owners(&self) -> Vec<&str> {
        let mut owners: Vec<_> = self.bookings.iter().map(|booking| booking.owner.as_str()).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }
}

/// Parses `1780-1787,1790`.
pub(crate) fn read_vlans(text: &str) -> Option<Vec<u16>> {
    let mut vlans = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        vlans.extend(from.trim().parse::<u16>().ok()?..=to.trim().parse::<u16>().ok()?);
    }
    Some(vlans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlans_and_bandwidth_are_booked_once_at_a_time() {
        let port = |name: &str| Port { name: name.to_owned(), vlans: vec![1, 2], mbit: 10 };
        let mut network = Network::new(vec![port("a"), port("b")]);
        let end = |port: &str, vlans: &[u16]| PortRequest { port: port.to_owned(), vlans: vlans.to_vec() };
        let span = Span { begin: 0.0, end: 10.0 };
        let ends = [end("a", &[1, 2]), end("b", &[2])];
        assert_eq!(network.book("x", &ends, 6, span), Ok(vec![1, 2]));
        assert_eq!(network.book("y", &ends, 1, span), Err(BookingError::Vlan));
        let others = [end("a", &[2]), end("b", &[1])];
        assert_eq!(network.book("y", &others, 6, span), Err(BookingError::Bandwidth));
        assert_eq!(network.book("y", &[end("c", &[1])], 6, span), Err(BookingError::Port));
        assert_eq!(network.book("y", &ends, 6, Span { begin: 10.0, end: 11.0 }), Ok(vec![1, 2]));
        network.release_all("x");
        assert_eq!(network.owners(), ["y"]);
        assert_eq!(read_vlans("1780-1782,1790"), Some(vec![1780, 1781, 1782, 1790]));
    }
}
