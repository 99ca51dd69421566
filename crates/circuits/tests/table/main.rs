//! The transition table of the ANSE paper, row by row, and what was added to it: what comes out, in which
//! order.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use longhaul_circuits::{
    Action, CooldownReason, Event, Note, ProviderReservation, ReleaseRule, RequestKey, Reservation,
    ReservationLedger, ReservationStage, Settings, State,
};

mod link;
mod replacement;

use link::{
    HOUR, Link, MINUTE, START, WORKLOAD_BYTES_LARGE, WORKLOAD_BYTES_SMALL, ends, granted, has_note, in_order,
    refused, wish,
};

#[test]
fn row_1_a_circuit_is_asked_for_when_work_waits_and_its_record_is_written_before() {
    let mut link = Link::new(Settings::default());
    link.work(WORKLOAD_BYTES_LARGE);
    let actions = link.after(MINUTE);
    let wish = wish(&actions).unwrap();
    assert_eq!((wish.mbit, wish.lifetime), (1000, None));
    let keeps =
        |action: &Action| matches!(action, Action::Persist(book) if book.reservations[0].key == wish.key);
    assert!(in_order(&actions, keeps, |action| matches!(action, Action::Request(_))), "{actions:?}");
    assert!(matches!(link.machine.state(), State::Requested { .. }));
    assert_eq!(link.book.reservations[0].stage, ReservationStage::Requested);
}

#[test]
fn row_2_nothing_is_asked_for_when_little_waits_or_no_rate_is_known() {
    let rates = [Some(1e8), None, Some(0.0), Some(f64::NAN), Some(f64::INFINITY), Some(-1.0)];
    for (pending_bytes, bytes_per_s) in
        rates.map(|rate| (if rate == Some(1e8) { WORKLOAD_BYTES_SMALL } else { WORKLOAD_BYTES_LARGE }, rate))
    {
        let mut link = Link::new(Settings::default());
        link.handle(Event::Work { pending_bytes, bytes_per_s });
        for _ in 0..10 {
            assert_eq!(wish(&link.after(MINUTE)), None, "{bytes_per_s:?}");
        }
    }
    // Several checks in a row are wanted: one in between that finds little begins anew.
    let mut link = Link::new(Settings { checks_in_a_row: 2, ..Settings::default() });
    for pending in [WORKLOAD_BYTES_LARGE, WORKLOAD_BYTES_SMALL, WORKLOAD_BYTES_LARGE] {
        link.work(pending);
        assert_eq!(wish(&link.after(MINUTE)), None);
    }
    assert!(wish(&link.after(MINUTE)).is_some());
}

#[test]
fn rows_3_and_6_what_is_granted_is_used_once_its_ends_answer() {
    let mut link = Link::new(Settings::default());
    let (wish, actions) = link.granted(None);
    assert_eq!(link.book.reservations[0].ends, Some(ends()));
    assert!(actions.iter().any(|action| matches!(action, Action::Probe { key, .. } if *key == wish.key)));
    assert!(!actions.iter().any(|action| matches!(action, Action::Use { .. })), "before it was probed");
    let actions = link.handle(Event::Probed { key: wish.key, good: false });
    assert_eq!(actions, [], "it may still come");
    let actions = link.handle(Event::Probed { key: wish.key, good: true });
    assert!(actions.contains(&Action::Use { key: wish.key, mbit: 1000, ends: ends() }), "{actions:?}");
    assert_eq!(link.handle(Event::Probed { key: wish.key, good: true }), [], "used once");
    // The timer of the request is off.
    let later = link.after(2 * HOUR);
    assert!(matches!(link.machine.state(), State::Established { used: true, .. }), "{later:?}");
}

#[test]
fn row_4_a_refusal_is_followed_by_smaller_wishes_and_then_by_a_rest() {
    let mut link = Link::new(Settings::default());
    let mut wishes = vec![link.asked()];
    for _ in 0..2 {
        let actions = link.answer(wishes.last().unwrap().key, refused(true));
        wishes.push(wish(&actions).unwrap());
    }
    assert_eq!(wishes.iter().map(|wish| wish.mbit).collect::<Vec<_>>(), [1000, 500, 250]);
    let actions = link.answer(wishes[2].key, refused(true));
    assert!(has_note(&actions, |note| matches!(note, Note::Refused { mbit: 250, .. })));
    let State::Cooldown(rest) = link.machine.state() else { panic!("{:?}", link.machine.state()) };
    assert_eq!((rest.reason, rest.until), (CooldownReason::Request, link.now.plus(HOUR)));
    assert_eq!(link.book.cooldown, Some(rest));
    assert_eq!(link.book.reservations, []);

    // What cannot be had smaller is not asked for again.
    let mut link = Link::new(Settings::default());
    let wish = link.asked();
    link.answer(wish.key, refused(false));
    assert!(matches!(link.machine.state(), State::Cooldown(_)));
}

#[test]
fn row_5_a_request_without_an_answer_is_cancelled_after_ten_minutes_smaller_wishes_included() {
    let mut link = Link::new(Settings::default());
    let first = link.asked();
    link.after(9 * MINUTE);
    let second = wish(&link.answer(first.key, refused(true))).unwrap();
    let actions = link.after(MINUTE);
    assert!(actions.contains(&Action::TearDown(second.key)), "{actions:?}");
    assert!(matches!(link.machine.state(), State::Cooldown(rest) if rest.reason == CooldownReason::Request));
    assert_eq!(
        link.book.reservations[0].stage,
        ReservationStage::Releasing,
        "until the provider says that it is gone"
    );
    // It is said again until it is.
    assert!(link.after(MINUTE).contains(&Action::TearDown(second.key)));
    link.handle(Event::TornDown(second.key));
    assert_eq!(link.book.reservations, []);
    assert!(!link.after(MINUTE).contains(&Action::TearDown(second.key)));
}

#[test]
fn row_7_use_stops_before_a_circuit_expires_and_it_is_given_back_when_nobody_is_on_it() {
    let mut link = Link::new(Settings::default());
    let expires = START.plus(HOUR);
    let (wish, _) = link.granted(Some(expires));
    link.handle(Event::Probed { key: wish.key, good: true });
    link.handle(Event::Users(2));
    link.work(0);
    let actions = link.after(HOUR - 2 * MINUTE);
    assert!(actions.contains(&Action::StopUsing(wish.key)), "{actions:?}");
    assert!(!actions.contains(&Action::TearDown(wish.key)), "two use it still");
    assert_eq!(link.machine.state(), State::Draining);
    assert_eq!(link.book.reservations[0].stage, ReservationStage::Releasing);
    let actions = link.handle(Event::Users(0));
    assert!(actions.contains(&Action::TearDown(wish.key)));
    assert_eq!(link.machine.state(), State::Off);

    // Those that do not leave are not waited for longer than the settings say.
    let mut link = Link::new(Settings::default());
    let wish = link.used();
    link.handle(Event::SetWanted(true));
    link.handle(Event::Users(2));
    assert!(link.handle(Event::SetWanted(false)).contains(&Action::StopUsing(wish.key)));
    assert!(!link.after(5 * MINUTE - Duration::from_secs(1)).contains(&Action::TearDown(wish.key)));
    assert!(link.after(Duration::from_secs(1)).contains(&Action::TearDown(wish.key)));
}

#[test]
fn row_8_a_circuit_on_which_transfers_fail_is_left_and_the_link_rests() {
    let mut link = Link::new(Settings::default());
    let wish = link.used();
    for good in [false, true, false] {
        assert_eq!(link.handle(Event::Transfer { on_circuit: true, good }), []);
    }
    let actions = link.handle(Event::Transfer { on_circuit: true, good: false });
    assert!(
        has_note(&actions, |note| matches!(note, Note::TransfersFailing { failed: 3, of: 4, .. })),
        "{actions:?}"
    );
    let stops = |action: &Action| *action == Action::StopUsing(wish.key);
    assert!(in_order(&actions, stops, |action| *action == Action::TearDown(wish.key)), "{actions:?}");
    assert!(matches!(link.machine.state(), State::Cooldown(rest) if rest.reason == CooldownReason::Transfer));

    // If as many fail beside it, it is not the circuit.
    let mut link = Link::new(Settings::default());
    link.used();
    for _ in 0..20 {
        link.handle(Event::Transfer { on_circuit: false, good: false });
        link.handle(Event::Transfer { on_circuit: true, good: false });
    }
    assert!(matches!(link.machine.state(), State::Established { used: true, .. }));

    // What failed long ago does not count.
    let mut link = Link::new(Settings::default());
    link.used();
    for _ in 0..6 {
        link.handle(Event::Transfer { on_circuit: true, good: false });
        link.after(6 * MINUTE);
    }
    assert!(matches!(link.machine.state(), State::Established { used: true, .. }));
}

#[test]
fn row_9_after_the_window_a_circuit_is_asked_for_again() {
    let mut link = Link::new(Settings::default());
    let wish_before = link.asked();
    link.answer(wish_before.key, refused(false));
    assert_eq!(wish(&link.after(HOUR - MINUTE)), None);
    let actions = [link.after(MINUTE), link.after(MINUTE)].concat();
    let again = wish(&actions).expect("work waits still");
    assert_ne!(again.key, wish_before.key);
}

#[test]
fn row_9_a_clock_that_goes_back_does_not_prolong_a_rest() {
    let mut link = Link::new(Settings::default());
    let wish_before = link.asked();
    link.answer(wish_before.key, refused(false));
    link.work(0);
    link.now = START - 1000 * HOUR;
    link.handle(Event::Tick);
    // Nor does a restart after it.
    let (mut restarted, _) = Link::restored(link.book.clone(), link.now.plus(HOUR / 2));
    for (link, left) in [(&mut link, HOUR), (&mut restarted, HOUR / 2)] {
        link.after(left - MINUTE);
        assert!(matches!(link.machine.state(), State::Cooldown(_)));
        link.after(MINUTE);
        assert_eq!(link.machine.state(), State::Off);
    }
}

#[test]
fn rows_10_to_12_after_a_restart_what_lasts_is_used_on_and_the_rest_given_back() {
    let key = |number: u128| RequestKey(number);
    let one = |number, stage, expires| Reservation {
        key: key(number),
        stage,
        since: START,
        mbit: 1000,
        expires,
        ends: (stage != ReservationStage::Requested).then(ends),
    };
    let now = START.plus(HOUR);
    let cases = [
        // Row 10: asked for, and nobody knows any more.
        (one(1, ReservationStage::Requested, None), false),
        // Row 11.
        (one(2, ReservationStage::Established, None), true),
        (one(3, ReservationStage::Established, Some(now.plus(HOUR))), true),
        // Row 12.
        (one(4, ReservationStage::Established, Some(now - MINUTE)), false),
        (one(5, ReservationStage::Releasing, None), false),
    ];
    for (reservation, lasts) in cases {
        let key = reservation.key;
        let book = ReservationLedger { reservations: vec![reservation], ..ReservationLedger::default() };
        let text = serde_json::to_string(&book).unwrap();
        let (mut link, actions) = Link::restored(serde_json::from_str(&text).unwrap(), now);
        assert_eq!(actions.contains(&Action::TearDown(key)), !lasts, "{text}: {actions:?}");
        assert_eq!(matches!(link.machine.state(), State::Established { .. }), lasts);
        if lasts {
            assert!(
                actions.iter().any(|action| matches!(action, Action::Probe { .. })),
                "it is probed again"
            );
            let actions = link.handle(Event::Probed { key, good: true });
            assert!(matches!(actions[..], [.., Action::Use { .. }]), "{actions:?}");
        } else {
            link.handle(Event::TornDown(key));
            assert_eq!(link.book, ReservationLedger::default());
        }
    }
}

#[test]
fn a_cooldown_survives_a_restart() {
    let mut link = Link::new(Settings::default());
    let wish_before = link.asked();
    link.answer(wish_before.key, refused(false));
    let (mut link, _) = Link::restored(link.book.clone(), link.now.plus(30 * MINUTE));
    link.work(WORKLOAD_BYTES_LARGE);
    assert_eq!(wish(&link.after(29 * MINUTE)), None);
    assert!(wish(&[link.after(2 * MINUTE), link.after(MINUTE)].concat()).is_some());
}

#[test]
fn row_13_a_grant_that_nobody_waits_for_is_given_back_at_once() {
    let mut link = Link::new(Settings::default());
    let wish = link.asked();
    link.after(10 * MINUTE);
    link.handle(Event::TornDown(wish.key));
    let state = link.machine.state();
    let actions = link.answer(wish.key, granted(1000, None));
    assert!(actions.contains(&Action::TearDown(wish.key)), "{actions:?}");
    assert_eq!(link.machine.state(), state);
    assert_eq!(link.book.reservations[0].stage, ReservationStage::Releasing);
}

#[test]
fn row_14_a_circuit_whose_ends_do_not_answer_is_never_used() {
    let mut link = Link::new(Settings::default());
    let (wish, mut actions) = link.granted(None);
    for _ in 0..10 {
        actions.extend(link.after(Duration::from_secs(6)));
        actions.extend(link.handle(Event::Probed { key: wish.key, good: false }));
    }
    let probes = actions.iter().filter(|action| matches!(action, Action::Probe { .. })).count();
    assert_eq!(probes, 10, "{actions:?}");
    assert!(actions.contains(&Action::TearDown(wish.key)));
    assert!(!actions.iter().any(|action| matches!(action, Action::Use { .. } | Action::StopUsing(_))));
    assert!(matches!(link.machine.state(), State::Cooldown(rest) if rest.reason == CooldownReason::Transfer));
}

#[test]
fn reconciliation_releases_orphans_and_drops_lost_circuits() {
    let mut link = Link::new(Settings::default());
    let wish = link.used();
    link.now = link.now.plus(MINUTE);
    let orphan = RequestKey(77);
    let held = |key| ProviderReservation { key, up: true };
    let actions = link.handle(Event::Listed { asked: link.now, held: vec![held(wish.key), held(orphan)] });
    assert!(actions.contains(&Action::TearDown(orphan)), "{actions:?}");
    assert!(!actions.contains(&Action::TearDown(wish.key)));
    // A list from before the grant proves nothing.
    link.handle(Event::Listed { asked: START, held: vec![] });
    assert!(matches!(link.machine.state(), State::Established { .. }));
    let actions = link.handle(Event::Listed { asked: link.now, held: vec![] });
    assert!(actions.contains(&Action::StopUsing(wish.key)), "{actions:?}");
    assert!(matches!(link.machine.state(), State::Cooldown(_)));
}

#[test]
fn invented_circuits_use_bounded_memory() {
    let mut link = Link::new(Settings::default());
    let held: Vec<_> =
        (0..100_000).map(|number| ProviderReservation { key: RequestKey(number), up: true }).collect();
    link.handle(Event::Listed { asked: link.now, held });
    assert!(link.machine.ledger().reservations.len() <= 256);
}

#[test]
fn a_circuit_is_released_early_when_little_work_is_left() {
    let leave = ReleaseRule { work_below: HOUR, during: 10 * MINUTE, age_min: 30 * MINUTE };
    let mut link = Link::new(Settings { release: Some(leave), ..Settings::default() });
    let wish = link.used();
    link.work(1);
    for minute in 0..29 {
        assert!(
            !link.after(MINUTE).contains(&Action::StopUsing(wish.key)),
            "{minute}: it is to be held for half an hour"
        );
    }
    let actions = [link.after(MINUTE), link.after(MINUTE)].concat();
    assert!(actions.contains(&Action::StopUsing(wish.key)), "{actions:?}");
    assert!(has_note(&actions, |note| matches!(note, Note::Idle { .. })));
    assert_eq!(link.machine.state(), State::Off);
}

#[test]
fn a_wanted_circuit_needs_no_work_and_ends_when_unwanted() {
    let mut link = Link::new(Settings::default());
    let first = wish(&link.handle(Event::SetWanted(true))).unwrap();
    let actions = link.handle(Event::SetWanted(false));
    assert!(actions.contains(&Action::TearDown(first.key)), "{actions:?}");
    assert_eq!(link.machine.state(), State::Off);
    // A grant that expires at once would be asked for again and again.
    let second = wish(&link.handle(Event::SetWanted(true))).unwrap();
    let actions = link.answer(second.key, granted(1000, Some(link.now)));
    assert!(actions.contains(&Action::TearDown(second.key)));
    assert!(matches!(link.machine.state(), State::Cooldown(_)));
}

#[test]
fn next_wake_covers_all_deadlines() {
    let mut link = Link::new(Settings {
        check_interval: 24 * HOUR,
        reconciliation_interval: 24 * HOUR,
        ..Settings::default()
    });
    link.handle(Event::SetWanted(true));
    assert_eq!(link.machine.next_wake(), START.plus(10 * MINUTE));
    link.now = link.machine.next_wake();
    link.handle(Event::Tick);
    assert_eq!(link.machine.next_wake(), link.now.plus(HOUR), "the end of the rest");
}

#[test]
fn a_circuit_slower_than_best_effort_is_dropped() {
    for (megabytes, left) in [(75, true), (85, false)] {
        let mut link = Link::new(Settings::default());
        let seconds = Duration::from_secs;
        let moved = |on_circuit, bytes| Event::Moved { on_circuit, bytes, during: seconds(1) };
        (0..60).for_each(|_| drop(link.handle(moved(false, 99_000_000))));
        let wish = link.used();
        let mut actions = Vec::new();
        for second in 0..301 {
            assert!(!actions.contains(&Action::StopUsing(wish.key)), "after {second} s");
            link.now = link.now.plus(seconds(1));
            actions.extend(link.handle(moved(true, megabytes * 1_000_000)));
            if second == 299 {
                break;
            }
        }
        assert_eq!(actions.contains(&Action::StopUsing(wish.key)), left, "{megabytes}");
        assert_eq!(has_note(&actions, |note| matches!(note, Note::SlowerThanBestEffort { .. })), left);
        assert_eq!(
            matches!(link.machine.state(), State::Cooldown(rest) if rest.reason == CooldownReason::Transfer),
            left
        );
    }
}

#[test]
fn a_measured_rate_precedes_a_forecast_and_a_fast_link_needs_no_circuit() {
    let moved = |bytes| Event::Moved { on_circuit: false, bytes, during: Duration::from_secs(10) };
    let asks = |events: &[Event]| {
        let mut link = Link::new(Settings::default());
        events.iter().for_each(|event| drop(link.handle(event.clone())));
        wish(&link.after(MINUTE)).is_some()
    };
    let told = |bytes_per_s| Event::Work { pending_bytes: WORKLOAD_BYTES_LARGE, bytes_per_s };
    assert!(asks(&[told(Some(1e8))]));
    assert!(asks(&[told(None), moved(1_000_000_000)]), "100 MB/s were seen");
    assert!(!asks(&[told(Some(1e8)), moved(1_200_000_000)]), "120 MB/s were seen");
    // The circuit would have 1 Gbit/s.
    let much = Event::Work { pending_bytes: u64::MAX, bytes_per_s: None };
    assert!(asks(&[much.clone(), moved(1_240_000_000)]) && !asks(&[much, moved(1_260_000_000)]));
}

#[test]
fn an_ending_owner_releases_everything_and_requests_nothing() {
    let mut link = Link::new(Settings::default());
    let wish_of = link.used();
    let actions = link.handle(Event::OwnerEnded);
    assert!(actions.contains(&Action::TearDown(wish_of.key)), "{actions:?}");
    for event in [Event::SetWanted(true), Event::TornDown(wish_of.key)] {
        assert_eq!(wish(&link.handle(event)), None);
    }
    assert_eq!(wish(&link.after(10 * MINUTE)), None);
    assert_eq!((link.machine.state(), link.book.is_empty()), (State::Off, true));
}
