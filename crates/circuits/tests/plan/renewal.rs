//! Circuits that follow others.

use super::*;

#[test]
fn resizing_is_make_before_break() {
    let mut world = World::usual(vec![waits(0, 1, 2 * TB, 8)]);
    world.view.providers[0].mbit = vec![1_500, 4_000];
    world.view.storage_rate_max.insert(pair(0, 1), 1.4 * GBIT);
    let request = world.asked().remove(0);
    assert_eq!(request.mbit, 1_500);
    world.up(&request);
    world.view.storage_rate_max.clear();
    world.view.pending[0].bytes = 20 * TB;
    let decisions = world.plans(15);
    let larger = requests(&decisions);
    assert_eq!(larger.len(), 1, "{decisions:?}");
    assert_eq!((larger[0].mbit, larger[0].replaces), (4_000, Some(request.booking)));
    assert_eq!(larger[0].reason, Reason::Resized { from_mbit: 1_500, to_mbit: 4_000 });
    assert!(releases(&decisions).is_empty(), "both are there until the new one is up");
    world.up(&larger[0]);
    let by = larger[0].booking;
    assert_eq!(releases(&world.plan()), [(request.booking, Reason::Replaced { by })]);
}

#[test]
fn renewal_is_booked_before_expiry() {
    let mut world = World::usual(vec![waits(0, 1, 90 * TB, 8)]);
    world.view.providers[0].port_share = 1.0;
    let request = world.asked().remove(0);
    assert_eq!(request.lifetime, 6 * HOUR);
    world.up(&request);
    let decisions = world.plans(6 * 60 - 16);
    assert!(decisions.is_empty(), "{decisions:?}");
    let next = requests(&world.plans(3));
    assert_eq!(next.len(), 1);
    assert!(matches!(next[0].reason, Reason::Renewed { .. }));
    // The old one expires; it is no failure, and the link goes on with the new one.
    world.up(&next[0]);
    world.planner.apply_event(
        request.booking,
        BookingEvent::Ended { carried: 13 * TB },
        world.now.plus(15 * MINUTE),
    );
    assert_eq!(releases(&world.plans(20)), []);
}

#[test]
fn a_lost_replacement_keeps_the_old_circuit() {
    let mut world = World::usual(vec![waits(0, 1, 90 * TB, 8)]);
    world.view.providers[0].port_share = 1.0;
    let request = world.asked().remove(0);
    world.up(&request);
    let next = requests(&world.plans(6 * 60 - 13)).remove(0);
    world.planner.apply_event(next.booking, BookingEvent::Failed, world.now);
    // Its agent says again and again that the old one is used: that is no news of what was refused.
    world.up(&request);
    assert!(world.plans(3).is_empty(), "it is used until it expires, and nothing is asked for meanwhile");
    // What comes after that is another matter: the link does not rest for it.
    world.now = world.now.plus(11 * MINUTE);
    world.planner.apply_event(request.booking, BookingEvent::Ended { carried: TB }, world.now);
    assert_eq!(world.asked().len(), 1);
}

#[test]
fn a_replaced_circuit_is_no_failure() {
    let mut world = World::usual(vec![waits(0, 1, 2 * TB, 8)]);
    world.view.providers[0].mbit = vec![1_500, 4_000];
    world.view.storage_rate_max.insert(pair(0, 1), 1.4 * GBIT);
    let request = world.asked().remove(0);
    world.up(&request);
    world.view.storage_rate_max.clear();
    world.view.pending[0].bytes = 20 * TB;
    let larger = requests(&world.plans(15)).remove(0);
    // Its agent says that the old one is gone in the same breath as that the new one is used.
    world.planner.apply_event(request.booking, BookingEvent::Ended { carried: TB }, world.now);
    world.up(&larger);
    assert!(!matches!(world.why(pair(0, 1)), Reason::CoolingDown { .. }), "{}", world.why(pair(0, 1)));
    assert!(releases(&world.plans(3)).is_empty());
}

#[test]
fn with_one_circuit_per_pair_renewal_follows_the_end() {
    let mut world = World::usual(vec![waits(0, 1, 400 * TB, 8), waits(2, 3, 400 * TB, 8)]);
    let own = BTreeMap::from([(pair(0, 1), vec![2_000])]);
    world.view.providers = vec![Provider { pairs: Some(own), one_circuit_per_pair: true, ..provider(4) }];
    let asked = world.asked();
    assert_eq!((asked.len(), asked[0].pair, asked[0].mbit), (1, pair(0, 1), 2_000));
    assert_eq!(*world.why(pair(2, 3)), Reason::NoProvider);
    world.up(&asked[0]);
    world.now = world.now.plus(asked[0].lifetime - 5 * MINUTE);
    assert!(world.plans(5).is_empty(), "nothing is asked for beside it");
    world.planner.apply_event(asked[0].booking, BookingEvent::Ended { carried: TB }, world.now);
    assert_eq!(world.asked().len(), 1);
}

#[test]
fn a_short_booking_is_not_renewed_from_its_beginning() {
    let mut world = World::usual(vec![waits(0, 1, 90 * TB, 8)]);
    (world.view.providers[0].port_share, world.view.providers[0].lifetime) = (1.0, 20 * MINUTE);
    let request = world.asked().remove(0);
    assert_eq!(request.lifetime, 20 * MINUTE);
    world.up(&request);
    assert!(requests(&world.plans(9)).is_empty(), "half of it is still to come");
    assert_eq!(requests(&world.plans(2)).len(), 1);
}
