use proptest::prelude::*;

use super::super::packet::OFFLOAD;
use super::super::packet::tests::super_packet;
use super::*;

const MS: u64 = 1_000_000;

/// A packet of one segment, with so many bytes of IP.
fn plain(bytes: usize, mark: u8) -> Vec<u8> {
    [vec![0; OFFLOAD], vec![mark; bytes]].concat()
}

fn arrive(line: &mut Line, now_ns: u64, packet: &[u8]) {
    line.space()[..packet.len()].copy_from_slice(packet);
    line.arrive(now_ns, packet.len());
}

/// What goes out until `end_ns`, each with its time, when the clock jumps from event to event.
fn outputs(line: &mut Line, end_ns: u64) -> Vec<(u64, Vec<u8>)> {
    let mut outputs = Vec::new();
    while let Some(now_ns) = line.next_ns().filter(|next| *next <= end_ns) {
        line.deliver(now_ns, |headers, payload| {
            outputs.push((now_ns, [headers, payload].concat()));
            true
        });
    }
    outputs
}

#[test]
fn the_delay_is_half_the_round_trip() {
    let mut line = Line::new(&PathConfig::new(20.0), 0);
    arrive(&mut line, 1000, &plain(1500, 1));
    assert_eq!(line.next_ns(), Some(1000 + 10 * MS));
    line.deliver(1000 + 10 * MS - 1, |_, _| panic!("it came too early"));
    assert_eq!(outputs(&mut line, u64::MAX), [(1000 + 10 * MS, plain(1500, 1))]);
    assert_eq!(line.next_ns(), None);
}

#[test]
fn the_rate_spaces_packets_and_idle_time_is_not_saved_up() {
    // 1500 bytes at 12 Mbit/s take 1 ms.
    let mut line = Line::new(&PathConfig::new(0.0).rate_mbit(12.0), 0);
    arrive(&mut line, 100 * MS, &plain(1500, 1));
    arrive(&mut line, 100 * MS, &plain(1500, 2));
    arrive(&mut line, 110 * MS, &plain(750, 3));
    arrive(&mut line, 110 * MS, &plain(750, 4));
    let times: Vec<u64> = outputs(&mut line, u64::MAX).into_iter().map(|(at_ns, _)| at_ns).collect();
    assert_eq!(times, [101 * MS, 102 * MS, 110 * MS + MS / 2, 111 * MS]);
}

#[test]
fn a_late_thread_does_not_slow_the_link_down() {
    let mut line = Line::new(&PathConfig::new(10.0).rate_mbit(12.0), 0);
    for mark in 0..10 {
        arrive(&mut line, 0, &plain(1500, mark));
    }
    // Ten packets take 10 ms, the last is due after 15; nobody looked in between.
    let mut count = 0;
    line.deliver(15 * MS, |_, _| {
        count += 1;
        true
    });
    assert_eq!(count, 10);
}

#[test]
fn what_does_not_fit_the_queue_is_dropped_segment_by_segment() {
    let config = PathConfig::new(10.0).rate_mbit(8.0).queue_bytes(5000);
    let mut line = Line::new(&config, 0);
    // It begins to pass at once and leaves the queue empty.
    arrive(&mut line, 0, &plain(1000, 0));
    // 10 segments of 1052 bytes: four fit.
    let packet = super_packet(false, 12, 1000, &[7; 10_000]);
    arrive(&mut line, 0, &packet);
    let counters = line.counters();
    assert_eq!((counters.packets_overflowed, counters.bytes_overflowed), (6, 6 * 1052));
    let sizes: Vec<usize> = outputs(&mut line, u64::MAX).iter().map(|(_, packet)| packet.len()).collect();
    assert_eq!(sizes, [OFFLOAD + 1000, OFFLOAD + 52 + 4000]);
    // 1 byte per microsecond.
    assert_eq!(line.counters().last_out_ns, 5 * MS + (1000 + 4 * 1052) * 1000);
}

#[test]
fn a_default_queue_is_one_product_of_rate_and_round_trip() {
    let queue = |config: PathConfig| Line::new(&config, 0).queue_bytes;
    assert_eq!(queue(PathConfig::new(100.0).rate_mbit(1000.0)), 12_500_000);
    assert_eq!(queue(PathConfig::new(1.0).rate_mbit(10.0)), QUEUE_BYTES_MIN);
    let mut line = Line::new(&PathConfig::new(100.0).rate_mbit(1000.0), 0);
    line.change(Change::RateMbit(Some(2000.0)));
    assert_eq!(line.queue_bytes, 25_000_000);
}

#[test]
fn without_a_rate_memory_is_the_limit() {
    let mut line = Line::new(&PathConfig::new(1000.0), 0);
    let packet = super_packet(true, 12, 8928, &[7; 62_496]);
    for _ in 0..5000 {
        arrive(&mut line, 0, &packet);
    }
    let counters = line.counters();
    assert!(counters.bytes_overflowed > 0 && counters.bytes_held_max <= HELD_BYTES_MAX, "{counters:?}");
    assert!(line.slabs.used.len() as u64 * SLAB_BYTES as u64 <= HELD_BYTES_MAX * 11 / 10);
}

#[test]
fn losses_are_as_many_as_configured_single_and_repeated_by_the_seed() {
    let run = |seed: u64, number: u64| {
        let mut line = Line::new(&PathConfig::new(0.0).loss(0.01).seed(seed), number);
        let packet = super_packet(false, 12, 1448, &[7; 44 * 1448]);
        let mut sizes = Vec::new();
        for at_ns in 0..5000 {
            arrive(&mut line, at_ns, &packet);
            sizes.extend(outputs(&mut line, at_ns).into_iter().map(|(_, packet)| packet.len()));
        }
        (line.counters(), sizes)
    };
    let (counters, sizes) = run(8241, 0);
    let packets = 5000 * 44;
    assert_eq!(counters.packets_carried + counters.packets_lost, packets);
    // 2,200 expected, standard deviation 47.
    assert!((1965..2435).contains(&counters.packets_lost), "{counters:?}");
    assert_eq!(counters.bytes_lost, counters.packets_lost * 1500, "segments are lost, not super-packets");
    assert_eq!(run(8241, 0), (counters, sizes.clone()));
    assert_ne!(run(8242, 0).1, sizes);
    assert_ne!(run(8241, 1).1, sizes, "the other direction loses other packets");
}

#[test]
fn all_or_nothing_is_lost_at_the_ends_of_the_scale() {
    for (loss, carried) in [(0.0, 100), (1.0, 0)] {
        let mut line = Line::new(&PathConfig::new(0.0).loss(loss), 0);
        for at_ns in 0..100 {
            arrive(&mut line, at_ns, &plain(100, 0));
            outputs(&mut line, at_ns);
        }
        assert_eq!(line.counters().packets_carried, carried);
        assert_eq!(line.counters().packets_lost, 100 - carried);
    }
}

#[test]
fn a_shorter_delay_lets_nothing_overtake() {
    let mut line = Line::new(&PathConfig::new(100.0), 0);
    arrive(&mut line, 0, &plain(100, 1));
    line.change(Change::RttMs(10.0));
    arrive(&mut line, MS, &plain(100, 2));
    arrive(&mut line, 49 * MS, &plain(100, 3));
    let expected = [(50 * MS, plain(100, 1)), (50 * MS, plain(100, 2)), (54 * MS, plain(100, 3))];
    assert_eq!(outputs(&mut line, u64::MAX), expected);
}

#[test]
fn a_new_rate_holds_for_what_waits() {
    let mut line = Line::new(&PathConfig::new(0.0).rate_mbit(12.0), 0);
    for mark in 0..3 {
        arrive(&mut line, 0, &plain(1500, mark));
    }
    line.change(Change::RateMbit(Some(1.2)));
    let times: Vec<u64> = outputs(&mut line, u64::MAX).into_iter().map(|(at_ns, _)| at_ns).collect();
    assert_eq!(times, [MS, 11 * MS, 21 * MS]);
}

#[test]
fn a_cut_path_carries_nothing_not_even_what_was_on_the_way() {
    let mut line = Line::new(&PathConfig::new(20.0).rate_mbit(12.0), 0);
    for mark in 0..3 {
        arrive(&mut line, 0, &plain(1500, mark));
    }
    line.change(Change::Cut);
    arrive(&mut line, MS, &plain(1500, 3));
    assert_eq!(outputs(&mut line, u64::MAX), []);
    assert_eq!((line.counters().packets_cut, line.counters().bytes_cut), (4, 6000));
    line.change(Change::Restore);
    arrive(&mut line, 50 * MS, &plain(1500, 4));
    assert_eq!(outputs(&mut line, u64::MAX), [(61 * MS, plain(1500, 4))]);
    assert_eq!(line.held_bytes, 0);
}

#[test]
fn what_the_device_refuses_is_counted() {
    let mut line = Line::new(&PathConfig::new(0.0), 0);
    arrive(&mut line, 5, &plain(1500, 0));
    line.deliver(5, |_, _| false);
    assert_eq!((line.counters().packets_refused, line.counters().packets_carried), (1, 0));
}

proptest! {
    /// Whatever comes, whenever: it goes out unchanged, in order, within the rate, not before its delay; each
    /// packet is counted once; the queue and the memory stay within bounds.
    #[test]
    fn nothing_is_changed_reordered_early_or_uncounted(
        seed: u64,
        rtt_ms in 0.0_f64..40.0,
        rate in prop::option::of(1.0_f64..2000.0),
        loss in prop_oneof![Just(0.0), 0.0_f64..0.2],
        queue in 70_000_u64..400_000,
    ) {
        let config = PathConfig { rtt_ms, rate_mbit: rate, loss, mtu: 1500, queue_bytes: Some(queue), seed };
        let mut line = Line::new(&config, 0);
        let mut random = Random::new(seed);
        let (mut sent, mut got, mut now_ns, mut bytes_in) = (Vec::new(), Vec::new(), 1, 0);
        for number in 0..400_u32 {
            now_ns += random.below(300_000);
            let payload = number.to_be_bytes().repeat(1 + random.below(15_000) as usize);
            let packet = super_packet(random.below(2) == 0, 12, 1400, &payload);
            bytes_in += u64::from(Shape::from_packet(&packet).segments);
            sent.push((now_ns, payload));
            arrive(&mut line, now_ns, &packet);
            let queued: u64 = line.waiting.iter().map(|held| held.wire_bytes).sum();
            prop_assert_eq!(queued, line.waiting_bytes);
            prop_assert!(queued <= queue);
            got.extend(outputs(&mut line, now_ns));
        }
        got.extend(outputs(&mut line, u64::MAX));
        let counters = line.counters();
        prop_assert_eq!(counters.packets(), bytes_in);
        // Of few packets, or at a small loss, none may be lost by chance; but not by a chance of one in a
        // million million.
        let struck = counters.packets_lost + counters.packets_carried;
        prop_assert!(counters.packets_lost > 0 || (1.0 - loss).powf(struck as f64) > 1e-12);
        let mut last = (0, 0);
        let mut carried = 0;
        for (at_ns, packet) in &got {
            let shape = Shape::from_packet(packet);
            carried += shape.wire_bytes(0..shape.segments);
            let tcp_at = OFFLOAD + if packet[OFFLOAD] >> 4 == 6 { 40 } else { 20 };
            let payload = &packet[tcp_at + 32..];
            let sequence = u32::from_be_bytes(packet[tcp_at + 4..tcp_at + 8].try_into().unwrap());
            let offset = sequence.wrapping_sub(0xffff_f000) as usize;
            let number = u32::from_be_bytes([0, 1, 2, 3].map(|at| payload[(at + 4 - offset % 4) % 4]));
            let (sent_ns, whole) = &sent[number as usize];
            prop_assert_eq!(payload, &whole[offset..offset + payload.len()]);
            prop_assert!((number, offset) >= last, "{:?} after {:?}", (number, offset), last);
            prop_assert!(at_ns - sent_ns >= one_way_ns(rtt_ms));
            last = (number, offset + 1);
            if let Some(rate) = rate {
                let took_ns = at_ns - one_way_ns(rtt_ms) - sent[0].0;
                prop_assert!(carried as f64 <= bytes_per_s(rate) * took_ns as f64 / 1e9 + 1.0);
            }
        }
        prop_assert_eq!(carried, counters.bytes_carried);
        prop_assert_eq!((line.held_bytes, line.slabs.used.len()), (0, 1));
    }
}
