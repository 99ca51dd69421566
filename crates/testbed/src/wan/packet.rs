//! Super-packets: how many packets of the wire one is, and how to cut some of them out.
//!
//! A packet here is what a TUN device with `IFF_VNET_HDR` gives and takes: ten bytes that say what the
//! hardware would be asked to do (`struct virtio_net_hdr`), then the IP packet. With TCP segmentation offload
//! its payload is that of many segments, and its TCP checksum field holds the sum of the pseudo-header only.

use std::ops::Range;

/// `struct virtio_net_hdr`: flags u8, kind u8, header length u16, segment size u16, checksum start u16,
/// offset u16.
pub(super) const OFFLOAD: usize = 10;
/// The longest IP packet and its offload header.
pub(super) const PACKET_MAX: usize = OFFLOAD + 65_535;
/// Offload header and the longest IPv4 and TCP headers, or IPv6 with up to 40 bytes of extensions and TCP.
const HEADERS_MAX: usize = 160;

const NEEDS_CHECKSUM: u8 = 1;
const KIND_NONE: u8 = 0;
const KIND_TCP_V4: u8 = 1;
const KIND_TCP_V6: u8 = 4;

const FIN: u8 = 0x01;
const PUSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// A packet as the wire would see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// IP and TCP headers, which every segment repeats. 0 where the packet is one segment.
    headers: u32,
    /// All that follows the headers.
    payload: u32,
    /// Payload of every segment but the last.
    segment: u32,
    pub(super) segments: u32,
}

impl Shape {
    /// What cannot be read as a super-packet of TCP passes as one packet.
    pub(super) fn from_packet(packet: &[u8]) -> Shape {
        let length = packet.len().saturating_sub(OFFLOAD) as u32;
        Self::from_super_packet(packet, length).unwrap_or(Shape {
            headers: 0,
            payload: length,
            segment: length.max(1),
            segments: 1,
        })
    }

    fn from_super_packet(packet: &[u8], length: u32) -> Option<Shape> {
        if packet.len() < OFFLOAD || !matches!(packet[1], KIND_TCP_V4 | KIND_TCP_V6) {
            return None;
        }
        let tcp = usize::from(little(packet, 6));
        let data_offset = packet.get(OFFLOAD + tcp + 12)? >> 4;
        let headers = tcp as u32 + u32::from(data_offset) * 4;
        let segment = u32::from(little(packet, 4));
        let payload = length.checked_sub(headers)?;
        if segment == 0 || payload <= segment || OFFLOAD + headers as usize > HEADERS_MAX {
            return None;
        }
        Some(Shape { headers, payload, segment, segments: payload.div_ceil(segment) })
    }

    /// Bytes of these segments on the wire, as IP packets.
    pub(super) fn wire_bytes(&self, segments: Range<u32>) -> u64 {
        let count = u64::from(segments.end - segments.start);
        count * u64::from(self.headers) + self.payload_of(segments).len() as u64
    }

    /// How many segments from the beginning are within `bytes` on the wire.
    pub(super) fn segments_within(&self, bytes: u64) -> u32 {
        if self.wire_bytes(0..self.segments) <= bytes {
            return self.segments;
        }
        (bytes / u64::from(self.headers + self.segment)).min(u64::from(self.segments) - 1) as u32
    }

    fn payload_of(&self, segments: Range<u32>) -> Range<usize> {
        let start = segments.start * self.segment;
        let end = (segments.end * self.segment).min(self.payload);
        start as usize..end as usize
    }
}

/// Headers of a part of a super-packet.
pub(super) struct Headers {
    bytes: [u8; HEADERS_MAX],
    length: usize,
}

impl Headers {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The packet that holds only some of a super-packet's segments: its headers, and its payload as it lies in
/// the packet.
pub(super) fn part<'a>(packet: &'a [u8], shape: &Shape, segments: Range<u32>) -> (Headers, &'a [u8]) {
    assert!(shape.headers > 0, "one segment has no parts");
    assert!(segments.start < segments.end && segments.end <= shape.segments, "{segments:?} of {shape:?}");
    let length = OFFLOAD + shape.headers as usize;
    let mut headers = Headers { bytes: [0; HEADERS_MAX], length };
    headers.bytes[..length].copy_from_slice(&packet[..length]);
    let payload = shape.payload_of(segments.clone());
    let (offload, rest) = headers.bytes[..length].split_at_mut(OFFLOAD);
    let tcp_start = usize::from(little(offload, 6));
    set_offload(offload, shape, segments.end - segments.start == 1);
    let (ip, tcp) = rest.split_at_mut(tcp_start);
    set_ip(ip, shape, &segments, payload.len());
    set_tcp(tcp, shape, &segments, &payload);
    let payload_at = length + payload.start..length + payload.end;
    (headers, &packet[payload_at])
}

fn set_offload(offload: &mut [u8], shape: &Shape, alone: bool) {
    offload[0] |= NEEDS_CHECKSUM;
    // The receiving kernel keeps so many bytes beside its bookkeeping and the rest in pages.
    offload[2..4].copy_from_slice(&(shape.headers as u16).to_le_bytes());
    if alone {
        offload[1] = KIND_NONE;
        offload[4..6].fill(0);
    }
}

fn set_ip(ip: &mut [u8], shape: &Shape, segments: &Range<u32>, payload: usize) {
    let length = shape.headers as usize + payload;
    if ip[0] >> 4 == 6 {
        set_big(ip, 4, (length - 40) as u16);
        return;
    }
    set_big(ip, 2, length as u16);
    // Segments of a super-packet are numbered one after another, as the kernel's own segmentation does.
    let identification = big(ip, 4).wrapping_add(segments.start as u16);
    set_big(ip, 4, identification);
    set_big(ip, 10, 0);
    let header = usize::from(ip[0] & 15) * 4;
    let sum = !ones_sum(&ip[..header], 0);
    set_big(ip, 10, sum);
}

fn set_tcp(tcp: &mut [u8], shape: &Shape, segments: &Range<u32>, payload: &Range<usize>) {
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(payload.start as u32);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if segments.start > 0 {
        tcp[13] &= !CWR;
    }
    if segments.end < shape.segments {
        tcp[13] &= !(FIN | PUSH);
    }
    // The field holds the sum of addresses, protocol and length; only the length is another: subtract the
    // old, add the new.
    let header = tcp.len();
    let old = (header + shape.payload as usize) as u16;
    let new = (header + payload.len()) as u16;
    let sum = fold(u32::from(big(tcp, 16)) + u32::from(!old) + u32::from(new));
    set_big(tcp, 16, sum);
}

fn little(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn big(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set_big(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of RFC 1071, not yet inverted.
fn ones_sum(bytes: &[u8], start: u32) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| (*low).into()));
    fold(words.fold(start, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    }))
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
#[path = "packet_tests.rs"]
pub(super) mod tests;
