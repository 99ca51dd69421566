//! Local accounts and logins.

use longhaul_model::{FaultCode, Timestamp};

use super::{NOW, World};
use crate::{AccountPatch, AuditKind, CatalogError, NewAccount};

pub(super) const SCENARIOS: &[fn(&mut World)] =
    &[accounts_are_stored, a_login_is_refused_if_the_account_changed_meanwhile, logins_displace_no_changes];

fn anna() -> NewAccount {
    NewAccount {
        name: "anna".into(),
        password: "$argon2id$one".into(),
        role: "viewer".into(),
        community: Some("higgs".parse().unwrap()),
        sites: Some("beta gamma".into()),
    }
}

fn accounts_are_stored(world: &mut World) {
    let catalog = &world.catalog;
    let later = Timestamp(NOW.0 + 5);
    let made = catalog.add_account(&anna(), "root", NOW).unwrap();
    assert_eq!((made.created, made.password_since, made.last_login), (NOW, NOW, None));
    assert_eq!(made.community.as_ref().map(|name| name.as_str()), Some("higgs"));
    assert_eq!(made.sites.as_deref(), Some("beta gamma"));
    let twice = catalog.add_account(&anna(), "root", NOW).unwrap_err();
    assert!(
        matches!(&twice, CatalogError::Refused(fault) if fault.code == FaultCode::AlreadyExists),
        "{twice}"
    );
    catalog.add_account(&NewAccount { name: "bert".into(), community: None, ..anna() }, "root", NOW).unwrap();
    let names = |after: Option<&str>, limit| -> Vec<String> {
        catalog.accounts(after, limit).unwrap().into_iter().map(|row| row.name).collect()
    };
    assert_eq!((names(None, 10), names(None, 1)), (vec!["anna".into(), "bert".into()], vec!["anna".into()]));
    assert_eq!(names(Some("anna"), 10), ["bert"]);
    let patch = AccountPatch { password: Some("$argon2id$two".into()), ..AccountPatch::default() };
    let changed = catalog.change_account("anna", &patch, "root", later).unwrap();
    assert_eq!((changed.password.as_str(), changed.password_since), ("$argon2id$two", later));
    assert_eq!((changed.role.as_str(), changed.disabled, changed.created), ("viewer", false, NOW));
    let patch = AccountPatch {
        role: Some("admin".into()),
        community: Some(None),
        sites: Some(None),
        disabled: Some(true),
        ..AccountPatch::default()
    };
    catalog.change_account("anna", &patch, "root", later).unwrap();
    let row = catalog.account("anna").unwrap().unwrap();
    assert_eq!((row.role.as_str(), row.community.as_ref(), row.disabled), ("admin", None, true));
    assert_eq!((row.password.as_str(), row.sites), ("$argon2id$two", None));
    let absent = catalog.change_account("carl", &patch, "root", later).unwrap_err();
    assert!(matches!(&absent, CatalogError::Refused(fault) if fault.code == FaultCode::NotFound), "{absent}");
    assert!(catalog.remove_account("anna", "root", later).unwrap());
    assert!(!catalog.remove_account("anna", "root", later).unwrap());
    assert_eq!(catalog.account("anna").unwrap(), None);
    let entries: Vec<String> =
        catalog.audit(None, None, 10).unwrap().into_iter().map(|row| row.what).collect();
    assert_eq!(
        entries,
        [
            "account anna removed",
            "account anna changed: admin, disabled",
            "account anna changed: viewer of beta, gamma of higgs, with a new password",
            "account bert made: viewer of beta, gamma",
            "account anna made: viewer of beta, gamma of higgs",
        ]
    );
}

fn a_login_is_refused_if_the_account_changed_meanwhile(world: &mut World) {
    let catalog = &world.catalog;
    let later = Timestamp(NOW.0 + 5);
    let read = catalog.add_account(&anna(), "root", NOW).unwrap();
    let login = |read, rehashed| catalog.account_login(read, rehashed, "logged in", later).unwrap();
    assert_eq!(login(&read, None).unwrap().name, "anna");
    assert_eq!(catalog.account("anna").unwrap().unwrap().last_login, Some(later));
    assert!(login(&read, Some("$argon2id$new")).is_some());
    let anew = catalog.account("anna").unwrap().unwrap();
    assert_eq!((anew.password.as_str(), anew.password_since), ("$argon2id$new", NOW), "the same password");
    assert!(login(&read, None).is_none(), "it was another hash");
    let disabled = AccountPatch { disabled: Some(true), ..AccountPatch::default() };
    catalog.change_account("anna", &disabled, "root", later).unwrap();
    assert!(login(&anew, None).is_none(), "it is disabled");
    catalog.remove_account("anna", "root", later).unwrap();
    assert!(login(&anew, None).is_none(), "it is gone");
    assert_eq!(catalog.audit(Some(AuditKind::Login), None, 10).unwrap().len(), 2);
}

fn logins_displace_no_changes(world: &mut World) {
    let catalog = &world.catalog;
    catalog.add_account(&anna(), "root", NOW).unwrap();
    for number in 0..7 {
        catalog.record_login("anna", &format!("refused {number}"), NOW).unwrap();
    }
    catalog.remove_account("anna", "root", NOW).unwrap();
    let of = |kind, before, limit| catalog.audit(kind, before, limit).unwrap();
    let logins = of(Some(AuditKind::Login), None, 3);
    assert_eq!(
        logins.iter().map(|row| row.what.as_str()).collect::<Vec<_>>(),
        ["refused 6", "refused 5", "refused 4"]
    );
    let further = of(Some(AuditKind::Login), Some(logins[2].id), 10);
    assert_eq!((further.len(), further[0].what.as_str()), (4, "refused 3"));
    assert_eq!(of(Some(AuditKind::Change), None, 10).len(), 2);
    assert_eq!(of(None, None, 10).len(), 9);
}
