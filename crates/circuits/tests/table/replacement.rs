//! One circuit after another: the second is used before the first is given back, and where it cannot be had
//! the first stays.

use longhaul_circuits::{
    Action, Answer, CircuitEndpoints, CircuitHistory, CircuitRequest, CooldownReason, Event, Grant, Note,
    Order, OrderKind, OrderState, RenewalRule, RequestKey, Reservation, ReservationLedger, ReservationStage,
    Settings, State,
};
use longhaul_model::{CircuitOrderId, Timestamp};

use crate::link::{
    HOUR, Link, MINUTE, START, WORKLOAD_BYTES_LARGE, ends, granted, has_note, in_order, refused, wish,
};

fn others() -> CircuitEndpoints {
    CircuitEndpoints { source: "10.2.0.1".into(), target: "10.2.0.2".into() }
}

fn order(id: u64, mbit: u64, replaces: Option<RequestKey>) -> Order {
    let what = OrderKind::Circuit { mbit, until: START.plus(24 * HOUR), replaces };
    Order { id: CircuitOrderId(id), by: "ada".into(), kind: what }
}

fn is_used(link: &Link, key: RequestKey) -> bool {
    let established = |one: &&Reservation| one.stage == ReservationStage::Established;
    let held: Vec<_> = link.book.reservations.iter().filter(established).map(|one| one.key).collect();
    matches!(link.machine.state(), State::Established { used: true, .. }) && held == [key]
}

/// A circuit that ada wants is used, and she wants another in its place.
fn wanted() -> (Link, CircuitRequest, CircuitRequest) {
    let mut link = Link::new(Settings::default());
    let first = wish(&link.handle(Event::Orders(vec![order(1, 400, None)]))).unwrap();
    link.answer(first.key, granted(400, None));
    link.handle(Event::Probed { key: first.key, good: true });
    let orders = vec![order(1, 400, None), order(2, 800, Some(first.key))];
    let actions = link.handle(Event::Orders(orders));
    let second = wish(&actions).expect("another is asked for");
    assert_eq!((second.mbit, is_used(&link, first.key)), (800, true));
    assert!(link.book.reservations.iter().any(|one| one.key == second.key), "written down before");
    (link, first, second)
}

fn grant_elsewhere(link: &mut Link, wish: CircuitRequest, expires: Option<Timestamp>) -> Vec<Action> {
    let grant = Grant { mbit: wish.mbit, ends: others(), expires };
    link.answer(wish.key, Answer::Granted(grant))
}

#[test]
fn a_replacement_is_used_before_its_predecessor_is_released() {
    let (mut link, first, second) = wanted();
    link.handle(Event::Users(3));
    let actions = grant_elsewhere(&mut link, second, None);
    assert!(actions.contains(&Action::Probe { key: second.key, ends: others() }), "{actions:?}");
    let actions = link.handle(Event::Probed { key: second.key, good: true });
    assert!(actions.contains(&Action::Use { key: second.key, mbit: 800, ends: others() }), "{actions:?}");
    let broken = |action: &Action| matches!(action, Action::StopUsing(_) | Action::TearDown(_));
    assert!(!actions.iter().any(broken), "nothing stops for it: {actions:?}");
    assert!(is_used(&link, second.key) && link.machine.is_draining());
    assert_eq!(
        link.handle(Event::PredecessorDrained),
        [Action::Persist(link.book.clone()), Action::TearDown(first.key)]
    );
    link.handle(Event::TornDown(first.key));
    assert_eq!((link.book.reservations.len(), link.machine.is_draining()), (1, false));
}

#[test]
fn draining_a_predecessor_is_bounded_and_skipped_for_equal_endpoints() {
    let (mut link, first, second) = wanted();
    grant_elsewhere(&mut link, second, None);
    link.handle(Event::Probed { key: second.key, good: true });
    let drain = Settings::default().drain_timeout;
    assert!(!link.after(drain - MINUTE).contains(&Action::TearDown(first.key)));
    assert!(link.after(MINUTE).contains(&Action::TearDown(first.key)));

    let (mut link, first, second) = wanted();
    link.answer(second.key, granted(800, None));
    let actions = link.handle(Event::Probed { key: second.key, good: true });
    let used = |action: &Action| *action == Action::Use { key: second.key, mbit: 800, ends: ends() };
    assert!(in_order(&actions, used, |action| *action == Action::TearDown(first.key)), "{actions:?}");
}

#[test]
fn a_failed_replacement_keeps_the_present_circuit() {
    let cases: [fn(&mut Link, CircuitRequest) -> Vec<Action>; 4] = [
        |link, wish| link.answer(wish.key, refused(false)),
        |link, _| link.after(Settings::default().request_timeout),
        |link, wish| {
            grant_elsewhere(link, wish, None);
            link.after(Settings::default().probe_timeout)
        },
        |link, wish| {
            grant_elsewhere(link, wish, None);
            link.answer(wish.key, Answer::Lost { detail: "maintenance".into() })
        },
    ];
    for (number, fails) in cases.into_iter().enumerate() {
        let (mut link, first, second) = wanted();
        let actions = fails(&mut link, second);
        let failed = |note: &Note| *note == Note::OrderFailed { order: CircuitOrderId(2) };
        assert!(has_note(&actions, failed), "{number}: {actions:?}");
        let stopped = |action: &Action| matches!(action, Action::StopUsing(_));
        assert!(!actions.iter().any(stopped) && is_used(&link, first.key), "{number}");
        assert_eq!(actions.contains(&Action::TearDown(second.key)), number > 0, "{number}: {actions:?}");
        link.handle(Event::TornDown(second.key));
        assert_eq!(link.book.reservations.len(), 1, "{number}");
        // And is not asked for again because of that wish.
        assert_eq!(wish(&link.after(HOUR)), None, "{number}");
    }
}

#[test]
fn a_replacement_retries_with_a_lower_rate() {
    let (mut link, _, second) = wanted();
    let third = wish(&link.answer(second.key, refused(true))).unwrap();
    assert_eq!(third.mbit, 400);
    grant_elsewhere(&mut link, third, None);
    link.handle(Event::Probed { key: third.key, good: true });
    assert!(is_used(&link, third.key));
}

#[test]
fn a_replacement_is_promoted_when_its_predecessor_is_lost() {
    for is_granted in [false, true] {
        let (mut link, first, second) = wanted();
        if is_granted {
            grant_elsewhere(&mut link, second, None);
        }
        let actions = link.answer(first.key, Answer::Lost { detail: "cut".into() });
        let stops = |action: &Action| *action == Action::StopUsing(first.key);
        assert!(in_order(&actions, stops, |action| *action == Action::TearDown(first.key)), "{actions:?}");
        if !is_granted {
            assert!(matches!(link.machine.state(), State::Requested { .. }));
            grant_elsewhere(&mut link, second, None);
        }
        link.handle(Event::Probed { key: second.key, good: true });
        assert!(is_used(&link, second.key), "it does not rest: {:?}", link.machine.state());
    }
}

#[test]
fn cancelling_a_replacement_keeps_the_present_circuit() {
    let (mut link, first, second) = wanted();
    let actions = link.handle(Event::Orders(vec![order(1, 400, None)]));
    assert!(actions.contains(&Action::TearDown(second.key)), "{actions:?}");
    assert!(is_used(&link, first.key));
    // A grant that comes too late is given back.
    link.handle(Event::TornDown(second.key));
    assert!(grant_elsewhere(&mut link, second, None).contains(&Action::TearDown(second.key)));
}

fn release(id: u64, key: RequestKey) -> Event {
    let what = OrderKind::Release(key);
    Event::Orders(vec![Order { id: CircuitOrderId(id), by: "ada".into(), kind: what }])
}

fn is_released(link: &Link, actions: &[Action], key: RequestKey) -> bool {
    let noted = has_note(actions, |note| matches!(note, Note::Released { key: of, .. } if *of == key));
    let rests =
        matches!(link.machine.state(), State::Cooldown(rest) if rest.reason == CooldownReason::Released);
    noted && rests && actions.contains(&Action::TearDown(key))
}

#[test]
fn releasing_a_superseded_circuit_releases_its_successor() {
    // Somebody asked for the second.
    let (mut link, first, second) = wanted();
    grant_elsewhere(&mut link, second, None);
    link.handle(Event::Probed { key: second.key, good: true });
    link.handle(Event::PredecessorDrained);
    link.handle(Event::TornDown(first.key));
    let actions = link.handle(release(3, first.key));
    assert!(is_released(&link, &actions, second.key), "{actions:?}");

    // Because of the work, twice, and whoever gives it back knows of the first alone.
    let (mut link, first) = expiring(10 * HOUR);
    link.after(10 * HOUR - 16 * MINUTE);
    let second = wish(&link.after(MINUTE)).unwrap();
    link.answer(second.key, granted(1000, Some(link.now.plus(10 * HOUR))));
    link.handle(Event::Probed { key: second.key, good: true });
    link.after(10 * HOUR - 16 * MINUTE);
    let third = wish(&link.after(MINUTE)).unwrap();
    link.answer(third.key, granted(1000, None));
    link.handle(Event::Probed { key: third.key, good: true });
    // After a restart as well.
    let (now, book) = (link.now, link.book.clone());
    for mut link in [link, Link::restored(book, now).0] {
        let actions = link.handle(release(1, first.key));
        assert!(is_released(&link, &actions, third.key), "{actions:?}");
        // What is asked for afterwards is another matter.
        link.work(WORKLOAD_BYTES_LARGE);
        let fourth = wish(&link.after(2 * HOUR)).or_else(|| wish(&link.after(MINUTE)));
        let fourth = fourth.expect("the work counts again");
        let actions = link.handle(release(2, first.key));
        assert!(has_note(&actions, |note| matches!(note, Note::NothingToRelease { .. })), "{actions:?}");
        assert!(!actions.contains(&Action::TearDown(fourth.key)));
    }
}

#[test]
fn releasing_a_refused_request_releases_its_smaller_successor() {
    let mut link = Link::new(Settings::default());
    let first = wish(&link.handle(Event::Orders(vec![order(1, 400, None)]))).unwrap();
    let second = wish(&link.answer(first.key, refused(true))).unwrap();
    let actions = link.handle(release(2, first.key));
    assert!(is_released(&link, &actions, second.key), "{actions:?}");
}

#[test]
fn releasing_the_first_of_two_restored_circuits_releases_the_remaining_one() {
    let one = |number: u128, since: Timestamp| {
        let (key, stage) = (RequestKey(number), ReservationStage::Established);
        Reservation { key, stage, since, mbit: 1000, expires: None, ends: Some(ends()) }
    };
    let reservations = vec![one(1, START), one(2, START.plus(HOUR))];
    let (mut link, _) = Link::restored(
        ReservationLedger { reservations, ..ReservationLedger::default() },
        START.plus(2 * HOUR),
    );
    link.handle(Event::Probed { key: RequestKey(2), good: true });
    let actions = link.handle(release(1, RequestKey(1)));
    assert!(is_released(&link, &actions, RequestKey(2)), "{actions:?}");
}

#[test]
fn the_history_covers_both_circuits() {
    let (mut link, mut record) = (Link::new(Settings::default()), CircuitHistory::default());
    let mut tell = |link: &mut Link, event: Event| {
        let actions = link.handle(event);
        for action in &actions {
            if let Action::Note(note) = action {
                record.note(note, link.now);
            }
        }
        let said = link.machine.explain().to_string();
        let state = |id: u64| {
            let found = record.orders().find(|(order, _)| order.0 == id);
            found.map(|(_, state)| state.clone())
        };
        let (first, second) = (state(1), state(2));
        (wish(&actions), record.current().cloned(), record.next().cloned(), [first, second], said)
    };
    let (Some(first), ..) = tell(&mut link, Event::Orders(vec![order(1, 400, None)])) else { panic!() };
    let answer = granted(400, Some(START.plus(HOUR)));
    tell(&mut link, Event::Answer { key: first.key, answer });
    tell(&mut link, Event::Probed { key: first.key, good: true });
    let orders = vec![order(1, 400, None), order(2, 800, Some(first.key))];
    let (Some(second), current, next, states, said) = tell(&mut link, Event::Orders(orders)) else {
        panic!()
    };
    let next = next.unwrap();
    assert_eq!((current.unwrap().key, next.key, next.used_since), (first.key, second.key, None));
    assert!(next.reason.contains("ada requests a circuit of 800 Mbit/s"), "{}", next.reason);
    assert_eq!(states, [Some(OrderState::Satisfied), Some(OrderState::Accepted)]);
    assert!(said.contains("another of 800 Mbit/s is requested to replace it"), "{said}");
    let answer = Answer::Granted(Grant { mbit: 800, ends: others(), expires: None });
    tell(&mut link, Event::Answer { key: second.key, answer });
    let (_, current, next, states, _) = tell(&mut link, Event::Probed { key: second.key, good: true });
    let current = current.unwrap();
    assert_eq!((current.key, current.mbit, next), (second.key, Some(800), None));
    assert!(current.used_since.is_some());
    let replaced =
        |state: &Option<OrderState>| matches!(state, Some(OrderState::Done(why)) if why.contains("another"));
    assert!(replaced(&states[0]) && states[1] == Some(OrderState::Satisfied), "{states:?}");
}

/// With so much waiting that a circuit which lasts so long is used.
fn expiring(lasts: std::time::Duration) -> (Link, CircuitRequest) {
    let mut link = Link::new(Settings::default());
    let (first, _) = link.granted(Some(START.plus(MINUTE).plus(lasts)));
    link.handle(Event::Probed { key: first.key, good: true });
    (link, first)
}

#[test]
fn enough_work_renews_a_circuit_before_expiry() {
    let (mut link, first) = expiring(10 * HOUR);
    assert_eq!(wish(&link.after(10 * HOUR - 16 * MINUTE)), None);
    let second = wish(&link.after(MINUTE)).expect("a quarter of an hour before");
    assert!(is_used(&link, first.key));
    let expires = link.now.plus(10 * HOUR);
    link.answer(second.key, granted(1000, Some(expires)));
    link.handle(Event::Probed { key: second.key, good: true });
    assert!(is_used(&link, second.key));

    // With little to do it ends as it always did.
    let (mut link, _) = expiring(10 * HOUR);
    link.work(WORKLOAD_BYTES_LARGE / 10);
    assert_eq!(wish(&link.after(10 * HOUR - 15 * MINUTE)), None);

    // Refused, it is not asked for again and again.
    let (mut link, first) = expiring(10 * HOUR);
    link.after(10 * HOUR - 16 * MINUTE);
    let second = wish(&link.after(MINUTE)).unwrap();
    link.answer(second.key, refused(false));
    assert_eq!((wish(&link.after(5 * MINUTE)), is_used(&link, first.key)), (None, true));

    // One that lasts a moment is not followed before half of that is over.
    let (mut link, _) = expiring(10 * MINUTE);
    assert_eq!(wish(&link.after(4 * MINUTE)), None);
    assert!(wish(&link.after(MINUTE)).is_some());

    // And where it is switched off, none is.
    let mut link = Link::new(Settings { renewal: None, ..Settings::default() });
    let (first, _) = link.granted(Some(START.plus(10 * HOUR)));
    link.handle(Event::Probed { key: first.key, good: true });
    assert_eq!(wish(&link.after(10 * HOUR - 5 * MINUTE)), None);
    assert_ne!(Settings::default().renewal, None::<RenewalRule>);
}

#[test]
fn of_two_restored_circuits_the_later_one_is_kept() {
    let one = |number: u128, stage, since: Timestamp| Reservation {
        key: RequestKey(number),
        stage,
        since,
        mbit: 1000,
        expires: None,
        ends: (stage == ReservationStage::Established).then(ends),
    };
    let (earlier, later) = (START, START.plus(HOUR));
    for (second, used) in [(ReservationStage::Established, 2), (ReservationStage::Requested, 1)] {
        let reservations = vec![one(1, ReservationStage::Established, earlier), one(2, second, later)];
        let (mut link, actions) = Link::restored(
            ReservationLedger { reservations, ..ReservationLedger::default() },
            later.plus(HOUR),
        );
        assert!(actions.contains(&Action::TearDown(RequestKey(3 - used))), "{actions:?}");
        link.handle(Event::Probed { key: RequestKey(used), good: true });
        assert!(is_used(&link, RequestKey(used)));
    }
}
