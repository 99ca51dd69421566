//! Chains of the grid against a directory of authorities: who is whom, and who is nobody.

use std::sync::Arc;

use crate::pki::*;
use longhaul_model::{FaultCode, Timestamp};
use longhaul_security::grid::{GridIdentity, GridTrust};

/// The refusal's text, which must not be an acceptance.
fn refusal(trust: &GridTrust, holders: &[&Holder], now: Timestamp) -> String {
    let fault = trust.verify_chain(&chain(holders), now).expect_err("it was accepted");
    assert_eq!(fault.code, FaultCode::NotAuthenticated);
    fault.detail
}

fn accepted(trust: &GridTrust, holders: &[&Holder]) -> Arc<GridIdentity> {
    trust.verify_chain(&chain(holders), NOW).unwrap()
}

#[test]
fn users_of_a_trusted_authority_are_known() {
    for (ca, alice) in [(ec_key(), ec_key()), (rsa_key(), rsa_key())] {
        let grid = Grid::with_keys(ca, alice);
        let trust = grid.trust();
        let identity = accepted(&trust, &[&grid.alice]);
        assert_eq!((identity.subject.as_str(), identity.issuer.as_str()), (ALICE, CA));
        assert_eq!((identity.proxies, identity.limited), (0, false));
        assert_eq!(identity.not_after, NOW + 300 * DAY);
        assert!(identity.rsa_bits.is_none_or(|bits| bits == 2048));
        assert_eq!(identity.chain_pem, grid.alice.pem());
        // With the root, and with things that have nothing to do with it.
        assert_eq!(accepted(&trust, &[&grid.alice, &authority("/CN=other"), &grid.ca]).subject, ALICE);
    }
}

#[test]
fn intermediate_authorities_come_from_the_chain_or_the_directory_in_any_order() {
    let grid = Grid::new();
    let middle =
        grid.ca.issues("/DC=org/CN=middle").with(basic_constraints(true)).with(key_usage(0x06)).sign();
    let lower = middle
        .issues("/DC=org/CN=lower")
        .with(basic_constraints(true))
        .with(key_usage(0x06))
        .until(NOW + DAY)
        .sign();
    let bob = lower.issues("/DC=org/CN=bob").sign();
    let trust = grid.trust();
    let identity = accepted(&trust, &[&bob, &middle, &lower]);
    assert_eq!(identity.issuer, "/DC=org/CN=lower");
    assert_eq!(identity.not_after, NOW + DAY, "the first to expire counts");
    assert!(refusal(&trust, &[&bob, &lower], NOW).contains("not trusted here"));
    grid.write("22222222.0", middle.pem());
    grid.write("lower.pem", lower.pem());
    assert_eq!(accepted(&grid.trust(), &[&bob]).subject, "/DC=org/CN=bob");
}

#[test]
fn strangers_are_nobody() {
    let grid = Grid::new();
    let trust = grid.trust();
    assert!(refusal(&trust, &[], NOW).contains("no certificate"));
    let twin = authority(CA);
    let mallory = twin.issues(ALICE).sign();
    assert!(refusal(&trust, &[&mallory], NOW).contains("not by the authority it names"));
    assert!(refusal(&trust, &[&mallory, &twin], NOW).contains("not by the authority it names"));
    assert!(
        refusal(&trust, &[&authority("/CN=self").issues("/CN=x").sign()], NOW).contains("not trusted here")
    );
    assert!(refusal(&trust, &[&grid.ca], NOW).contains("nobody's identity"));
    assert!(refusal(&trust, &[&grid.alice], NOW + 301 * DAY).contains("expired"));
    assert!(refusal(&trust, &[&grid.alice], NOW - 2 * DAY).contains("not valid yet"));
    let durable = grid.ca.issues("/CN=durable").until(NOW + 4000 * DAY).sign();
    assert_eq!(trust.verify_chain(&chain(&[&durable]), NOW + 2999 * DAY).unwrap().subject, "/CN=durable");
    assert!(refusal(&trust, &[&durable], NOW + 3001 * DAY).contains("the authority"));
    // A user is no authority.
    let mallory = grid.alice.issues("/DC=org/DC=example/OU=Users/CN=mallory").sign();
    assert!(!refusal(&trust, &[&mallory, &grid.alice], NOW).is_empty());
    let servers_only = extension(&[2, 5, 29, 37], false, sequence(&[oid(&[1, 3, 6, 1, 5, 5, 7, 3, 1])]));
    let server = grid.ca.issues("/DC=org/CN=server").with(servers_only).sign();
    assert!(refusal(&trust, &[&server], NOW).contains("not meant for clients"));
}

#[test]
fn proxies_speak_for_their_user() {
    for (ca, alice) in [(ec_key(), ec_key()), (rsa_key(), rsa_key())] {
        let grid = Grid::with_keys(ca, alice);
        let trust = grid.trust();
        let first = grid.alice.proxy().sign();
        let identity = accepted(&trust, &[&first, &grid.alice]);
        assert_eq!((identity.subject.as_str(), identity.issuer.as_str()), (ALICE, CA));
        assert_eq!((identity.proxies, identity.limited), (1, false));
        assert_eq!(identity.not_after, NOW + DAY / 2);
        let second = first.proxy_of(LIMITED, None).sign();
        let third = second.proxy().until(NOW + DAY / 4).sign();
        for order in [
            [&third, &second, &first, &grid.alice, &grid.ca],
            [&third, &grid.alice, &grid.ca, &first, &second],
        ] {
            let identity = accepted(&trust, &order);
            assert_eq!((identity.subject.as_str(), identity.proxies, identity.limited), (ALICE, 3, true));
            assert_eq!(identity.not_after, NOW + DAY / 4);
        }
    }
}

#[test]
fn the_number_of_proxies_is_bounded_by_the_proxies_and_by_us() {
    let grid = Grid::new();
    let trust = grid.trust();
    let first = grid.alice.proxy_of(INHERIT_ALL, Some(1)).sign();
    let second = first.proxy_of(INHERIT_ALL, Some(5)).sign();
    let third = second.proxy().sign();
    assert_eq!(accepted(&trust, &[&second, &first, &grid.alice]).proxies, 2);
    assert!(refusal(&trust, &[&third, &second, &first, &grid.alice], NOW).contains("fewer proxies"));
    let none = grid.alice.proxy_of(INHERIT_ALL, Some(0)).sign();
    assert_eq!(accepted(&trust, &[&none, &grid.alice]).proxies, 1);
    assert!(refusal(&trust, &[&none.proxy().sign(), &none, &grid.alice], NOW).contains("fewer proxies"));
    let mut many = vec![grid.alice.clone()];
    for _ in 0..11 {
        many.insert(0, many[0].proxy().sign());
    }
    let most: Vec<&Holder> = many[1..].iter().collect();
    assert_eq!(accepted(&trust, &most).proxies, 10);
    assert!(refusal(&trust, &many.iter().collect::<Vec<_>>(), NOW).contains("more than 10"));
    let many: Vec<&Holder> = std::iter::repeat_n(&grid.alice, 17).collect();
    assert!(refusal(&trust, &many, NOW).contains("16 are accepted"));
    let big = extension(&[1, 2, 3], false, vec![0; 33 << 10]);
    assert!(refusal(&trust, &[&grid.ca.issues("/CN=big").with(big).sign()], NOW).contains("bytes"));
}

#[test]
fn proxies_that_break_a_rule_are_nobody() {
    let grid = Grid::new();
    let trust = grid.trust();
    let alice = &grid.alice;
    let says = |draft: Draft, text: &str| {
        let proxy = draft.sign();
        let detail = refusal(&trust, &[&proxy, alice], NOW);
        assert!(detail.contains(text), "{text}: {detail}");
    };
    says(alice.proxy_of(INDEPENDENT, None), "no right of its user");
    says(alice.proxy_of(&[1, 3, 6, 1, 5, 5, 7, 21, 0], None), "not understood: 1.3.6.1.5.5.7.21.0");
    says(alice.proxy().until(NOW - DAY / 24), "has expired");
    says(alice.proxy().with(extension(&[2, 5, 29, 17], false, sequence(&[]))), "alternative names");
    says(alice.proxy().with(extension(&[1, 2, 3, 4], true, vec![5, 0])), "not understood: 1.2.3.4");
    says(alice.proxy().with(basic_constraints(true)), "authority");
    let with_usage = |usage: u8| {
        let mut draft = alice.proxy();
        draft.extensions[0] = key_usage(usage);
        draft
    };
    says(with_usage(0x84), "may not have");
    says(with_usage(0xc0), "may not have");
    says(with_usage(0x20), "may not sign");
    let mut renamed = alice.proxy();
    renamed.subject = "/DC=org/DC=example/OU=Users/CN=bob/CN=1".into();
    says(renamed, "one common name more");
    let mut two_more = alice.proxy();
    two_more.subject = format!("{ALICE}/CN=1/CN=2");
    says(two_more, "one common name more");
    let mut not_common = alice.proxy();
    not_common.subject = format!("{ALICE}/OU=1");
    says(not_common, "one common name more");
    let mut not_critical = alice.proxy();
    not_critical.extensions[1] =
        extension(&[1, 3, 6, 1, 5, 5, 7, 1, 14], false, sequence(&[sequence(&[oid(INHERIT_ALL)])]));
    says(not_critical, "not critical");
    let mut with_policy = alice.proxy();
    with_policy.extensions[1] = extension(
        &[1, 3, 6, 1, 5, 5, 7, 1, 14],
        true,
        sequence(&[sequence(&[oid(INHERIT_ALL), tlv(0x04, b"x")])]),
    );
    says(with_policy, "cannot be both");
    let mut forged = alice.proxy();
    forged.signer = ec_key();
    says(forged, "not its issuer's");
    let mut draft = alice.proxy();
    draft.extensions[1] = extension(&[1, 3, 6, 1, 4, 1, 3536, 1, 222], true, sequence(&[]));
    says(draft, "legacy proxy");
    for legacy_name in ["proxy", "limited proxy"] {
        let mut legacy = alice.issues(&format!("{ALICE}/CN={legacy_name}"));
        legacy.not_after = NOW + DAY;
        says(legacy, "voms-proxy-init -rfc");
    }
    assert!(refusal(&trust, &[&alice.proxy().sign()], NOW).contains("send the whole chain"));
    // An authority lends its identity to nobody.
    assert!(refusal(&trust, &[&grid.ca.proxy().sign(), &grid.ca], NOW).contains("authority"));
    // One who may not sign cannot lend either.
    let mute = grid.ca.issues("/CN=mute").with(key_usage(0x20)).sign();
    assert!(refusal(&trust, &[&mute.proxy().sign(), &mute], NOW).contains("may not sign"));
    // The user has expired, the proxy has not.
    let brief = grid.ca.issues("/CN=brief").until(NOW - DAY / 2).sign();
    assert!(refusal(&trust, &[&brief.proxy().sign(), &brief], NOW).contains("expired"));
}
