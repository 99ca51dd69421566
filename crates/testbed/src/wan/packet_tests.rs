use proptest::prelude::*;

use super::*;
use crate::Random;

/// A super-packet as the kernel gives it: lengths of the whole, the checksum field holding the
/// pseudo-header's sum.
pub(in crate::wan) fn super_packet(v6: bool, options: usize, segment: u16, payload: &[u8]) -> Vec<u8> {
    let tcp_length = 20 + options + payload.len();
    let ip = if v6 {
        let mut ip = vec![0x60, 1, 2, 3, 0, 0, 6, 64];
        ip.extend((0..32_u8).map(|byte| byte ^ 0xa5));
        set_big(&mut ip, 4, tcp_length as u16);
        ip
    } else {
        let mut ip = vec![0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        set_big(&mut ip, 2, (20 + tcp_length) as u16);
        let sum = !ones_sum(&ip, 0);
        set_big(&mut ip, 10, sum);
        ip
    };
    let addresses = if v6 { &ip[8..40] } else { &ip[12..20] };
    let pseudo = fold(u32::from(ones_sum(addresses, 0)) + 6 + tcp_length as u32);
    let mut tcp = vec![0x13, 0x89, 0xc3, 0x50, 0xff, 0xff, 0xf0, 0, 1, 2, 3, 4];
    tcp.extend([(((20 + options) / 4) << 4) as u8, CWR | FIN | PUSH | 0x10, 1, 0, 0, 0, 0, 0]);
    tcp.extend((0..options).map(|byte| byte as u8));
    set_big(&mut tcp, 16, pseudo);
    let segmented = payload.len() > usize::from(segment);
    let kind = if v6 { KIND_TCP_V6 } else { KIND_TCP_V4 };
    let mut packet = vec![NEEDS_CHECKSUM, if segmented { kind } else { KIND_NONE }];
    let headers = (ip.len() + tcp.len()) as u16;
    let size = if segmented { segment } else { 0 };
    for number in [headers, size, ip.len() as u16, 16] {
        packet.extend(number.to_le_bytes());
    }
    for bytes in [&ip, &tcp, payload] {
        packet.extend(bytes);
    }
    packet
}

/// The packets of the wire with complete checksums, written apart from the code under test: field by field,
/// from the whole packet.
fn on_the_wire(packet: &[u8]) -> Vec<Vec<u8>> {
    let field = |at: usize| usize::from(u16::from_le_bytes([packet[at], packet[at + 1]]));
    let ip_bytes = &packet[OFFLOAD..];
    let tcp_at = field(6);
    let headers = tcp_at + usize::from(ip_bytes[tcp_at + 12] >> 4) * 4;
    let payload = &ip_bytes[headers..];
    let size = if packet[1] == KIND_NONE { payload.len().max(1) } else { field(4) };
    let mut chunks: Vec<&[u8]> = payload.chunks(size).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let count = chunks.len();
    let mut packets = Vec::new();
    for (index, chunk) in chunks.into_iter().enumerate() {
        let mut out = ip_bytes[..headers].to_vec();
        if out[0] >> 4 == 4 {
            let total = (headers + chunk.len()) as u16;
            out[2..4].copy_from_slice(&total.to_be_bytes());
            let number = u16::from_be_bytes([out[4], out[5]]).wrapping_add(index as u16);
            out[4..6].copy_from_slice(&number.to_be_bytes());
            out[10..12].fill(0);
            let sum = slow_checksum(&[&out[..tcp_at]]);
            out[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let length = (headers - 40 + chunk.len()) as u16;
            out[4..6].copy_from_slice(&length.to_be_bytes());
        }
        let sequence = u32::from_be_bytes(out[tcp_at + 4..tcp_at + 8].try_into().unwrap());
        let sequence = sequence.wrapping_add((index * size) as u32);
        out[tcp_at + 4..tcp_at + 8].copy_from_slice(&sequence.to_be_bytes());
        if index > 0 {
            out[tcp_at + 13] &= !CWR;
        }
        if index + 1 < count {
            out[tcp_at + 13] &= !(FIN | PUSH);
        }
        out[tcp_at + 16..tcp_at + 18].fill(0);
        let addresses = if out[0] >> 4 == 4 { out[12..20].to_vec() } else { out[8..40].to_vec() };
        let length = ((headers - tcp_at + chunk.len()) as u32).to_be_bytes();
        let sum = slow_checksum(&[&addresses, &length, &[0, 6], &out[tcp_at..], chunk]);
        out[tcp_at + 16..tcp_at + 18].copy_from_slice(&sum.to_be_bytes());
        out.extend(chunk);
        packets.push(out);
    }
    packets
}

/// RFC 1071 over texts of even length, but the last.
fn slow_checksum(texts: &[&[u8]]) -> u16 {
    let all = texts.concat();
    let sum: u64 =
        all.chunks(2).map(|pair| u64::from(pair[0]) * 256 + u64::from(*pair.get(1).unwrap_or(&0))).sum();
    let remainder = (sum % 0xffff) as u16;
    // In ones' complement zero has two forms; a sum of something is never the positive one.
    !(if remainder == 0 && sum > 0 { 0xffff } else { remainder })
}

/// A receiver of the kernel finishes the sum that begins in the field; it must be the checksum.
fn finished(packet: &[u8]) -> u16 {
    let tcp_at = usize::from(little(packet, 6));
    !ones_sum(&packet[OFFLOAD + tcp_at..], 0)
}

fn payload(length: usize) -> Vec<u8> {
    let mut payload = vec![0; length];
    Random::new(length as u64).fill(&mut payload);
    payload
}

fn joined(packet: &[u8], shape: &Shape, range: Range<u32>) -> Vec<u8> {
    let (headers, payload) = part(packet, shape, range);
    [headers.as_slice(), payload].concat()
}

#[test]
fn a_part_has_lengths_numbers_and_checksums_of_its_own() {
    for v6 in [false, true] {
        let packet = super_packet(v6, 12, 1000, &payload(3500));
        let shape = Shape::from_packet(&packet);
        assert_eq!(shape.segments, 4);
        let ip_headers = if v6 { 40 } else { 20 };
        assert_eq!(shape.wire_bytes(0..4), 3500 + 4 * (ip_headers + 32));
        assert_eq!(shape.wire_bytes(3..4), 500 + ip_headers + 32);

        let middle = joined(&packet, &shape, 1..3);
        let tcp = OFFLOAD + ip_headers as usize;
        assert_eq!(middle.len(), tcp + 32 + 2000);
        assert_eq!(middle[tcp + 4..tcp + 8], 0xffff_f3e8_u32.to_be_bytes(), "sequence number");
        assert_eq!(middle[tcp + 13], 0x10, "neither the first segment's flags nor the last one's");
        let length = if v6 { big(&middle, OFFLOAD + 4) } else { big(&middle, OFFLOAD + 2) - 20 };
        assert_eq!(length, 2032);
        if !v6 {
            assert_eq!(big(&middle, OFFLOAD + 4), 0xffff, "identification");
            assert_eq!(ones_sum(&middle[OFFLOAD..OFFLOAD + 20], 0), 0xffff, "checksum of the IP header");
        }

        let last = joined(&packet, &shape, 3..4);
        assert_eq!(last[1], KIND_NONE, "one segment is an ordinary packet");
        assert_eq!(last[tcp + 13], 0x10 | FIN | PUSH);
        assert_eq!(last[tcp + 4..tcp + 8], 0xffff_fbb8_u32.to_be_bytes());
    }
}

#[test]
fn whatever_is_no_super_packet_is_one_packet() {
    let plain = super_packet(false, 0, 1460, &payload(900));
    assert_eq!(Shape::from_packet(&plain).segments, 1);
    assert_eq!(Shape::from_packet(&plain).wire_bytes(0..1), 940);
    for length in 0..70 {
        let mut cut = super_packet(false, 12, 500, &payload(1400));
        cut.truncate(length);
        let shape = Shape::from_packet(&cut);
        assert_eq!(shape.segments, 1, "{length}");
        assert_eq!(shape.wire_bytes(0..1), length.saturating_sub(OFFLOAD) as u64);
    }
}

proptest! {
    /// Any division into parts gives the same packets on the wire as the whole, in order, with the same
    /// checksums: nothing is lost, doubled or changed by splitting.
    #[test]
    fn parts_are_the_same_packets_as_the_whole(
        v6: bool,
        options in (0_usize..=10).prop_map(|words| words * 4),
        segment in 1_u16..9000,
        length in 1_usize..60_000,
        cuts in prop::collection::vec(0_u32..70, 0..5),
    ) {
        let segment = segment.max((length / 300) as u16 + 1);
        let packet = super_packet(v6, options, segment, &payload(length));
        let shape = Shape::from_packet(&packet);
        prop_assume!(shape.segments > 1);
        let mut borders: Vec<u32> = cuts.into_iter().filter(|cut| *cut < shape.segments).collect();
        borders.extend([0, shape.segments]);
        borders.sort_unstable();
        borders.dedup();
        let mut seen = Vec::new();
        let mut bytes = 0;
        let mut data = Vec::new();
        for pair in borders.windows(2) {
            let joined = joined(&packet, &shape, pair[0]..pair[1]);
            if pair[1] - pair[0] == 1 {
                let wire = on_the_wire(&joined);
                let tcp_at = usize::from(little(&joined, 6));
                let expected = u16::from_be_bytes([wire[0][tcp_at + 16], wire[0][tcp_at + 17]]);
                prop_assert_eq!(finished(&joined), expected);
            }
            let again = Shape::from_packet(&joined);
            prop_assert_eq!(again.segments, pair[1] - pair[0]);
            prop_assert_eq!(again.wire_bytes(0..again.segments), shape.wire_bytes(pair[0]..pair[1]));
            bytes += again.wire_bytes(0..again.segments);
            data.extend_from_slice(part(&packet, &shape, pair[0]..pair[1]).1);
            seen.extend(on_the_wire(&joined));
        }
        let whole = on_the_wire(&packet);
        prop_assert_eq!(bytes, whole.iter().map(|packet| packet.len() as u64).sum::<u64>());
        prop_assert_eq!(data, payload(length));
        prop_assert_eq!(seen, whole);
    }

    #[test]
    fn as_many_segments_as_fit(segment in 1_u16..9000, length in 1_usize..60_000, room in 0_u64..80_000) {
        let packet = super_packet(false, 12, segment, &payload(length));
        let shape = Shape::from_packet(&packet);
        let fit = shape.segments_within(room);
        prop_assert!(fit == 0 || shape.wire_bytes(0..fit) <= room);
        prop_assert!(fit == shape.segments || shape.wire_bytes(0..fit + 1) > room);
    }
}
