//! Chains of the grid against a directory of authorities: who is whom, and who is nobody.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod pki;

use longhaul_model::{FaultCode, Timestamp};
use longhaul_security::grid::{GridIdentity, GridTrust};
use pki::*;

/// The refusal's text, which must not be an acceptance.
fn refusal(trust: &GridTrust, holders: &[&Holder], now: Timestamp) -> String {
    let fault = trust.verify_chain(&chain(holders), now).expect_err("it was accepted");
    assert_eq!(fault.code, FaultCode::NotAuthenticated);
    fault.detail
}

fn accepted(trust: &GridTrust, holders: &[&Holder]) -> GridIdentity {
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
    let middle = grid.ca.issues("/DC=org/CN=middle").with(basic_constraints(true)).with(key_usage(0x06)).sign();
    let lower = middle.issues("/DC=org/CN=lower").with(basic_constraints(true)).with(key_usage(0x06)).until(NOW + DAY).sign();
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
    assert!(refusal(&trust, &[&authority("/CN=self").issues("/CN=x").sign()], NOW).contains("not trusted here"));
    assert!(refusal(&trust, &[&grid.ca], NOW).contains("nobody's identity"));
    assert!(refusal(&trust, &[&grid.alice], NOW + 301 * DAY).contains("expired"));
    assert!(refusal(&trust, &[&grid.alice], NOW - 2 * DAY).contains("not valid yet"));
    // A user is no authority.
    let mallory = grid.alice.issues("/DC=org/DC=example/OU=Users/CN=mallory").sign();
    assert!(!refusal(&trust, &[&mallory, &grid.alice], NOW).is_empty());
    let servers_only = extension(&[2, 5, 29, 37], false, sequence(&[oid(&[1, 3, 6, 1, 5, 5, 7, 3, 1])]));
    let server = grid.ca.issues("/DC=org/CN=server").with(servers_only).sign();
    assert!(refusal(&trust, &[&server], NOW).contains("not meant for clients"));
}
