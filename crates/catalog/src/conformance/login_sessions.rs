//! Login sessions over restarts.

use std::time::Duration;

use super::{NOW, World};
use crate::LoginSessionRow;

pub(super) const SCENARIOS: &[fn(&mut World)] = &[sessions_are_stored_until_they_end];

fn session(number: u8, seconds: u64) -> LoginSessionRow {
    LoginSessionRow {
        hash: [number; 32],
        token: (number == 1).then_some([9; 32]),
        account: (number == 2).then(|| "anna".into()),
        holder: (number == 3).then(|| "{}".into()),
        created: NOW,
        expires: NOW + Duration::from_secs(seconds),
    }
}

fn sessions_are_stored_until_they_end(world: &mut World) {
    let catalog = &world.catalog;
    let all = [session(1, 30), session(2, 20), session(3, 10)];
    for one in &all {
        catalog.add_login_session(one).unwrap();
    }
    assert!(catalog.login_sessions(NOW).unwrap() == all, "as they were stored");
    let later = NOW + Duration::from_secs(10);
    assert!(catalog.login_sessions(later).unwrap() == all[..2], "one has ended");
    catalog.remove_login_sessions(&[all[0].hash], later).unwrap();
    assert!(catalog.login_sessions(NOW).unwrap() == all[1..2], "what has ended goes too");
    assert!(catalog.add_login_session(&all[1]).is_err(), "a hash is stored once");
}
