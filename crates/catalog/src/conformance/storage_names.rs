//! Storage names: what a site has by its own name, what an administrator allows it, and what it does not get.

use longhaul_model::{Fault, FaultCode, SiteName, StorageName};

use super::{ALPHA, BETA, GAMMA, NOW, World, agent, offer, terms};
use crate::{
    ALLOWED_NAMES_MAX, Catalog, CatalogError, HelloResult, Incarnation, NameBasis, SITE_STORAGES_MAX,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    a_site_has_the_names_that_follow_from_its_own,
    what_an_administrator_allows_is_nobody_elses,
    a_name_of_another_site_is_left_out_and_the_rest_is_served,
    the_longest_site_name_has_the_name,
    a_storage_of_an_earlier_release_keeps_its_name,
    an_allowance_is_taken_back_before_the_storage_is_there,
    a_removed_site_loses_its_allowed_names,
    a_site_is_added_with_all_its_names_or_not_at_all,
    allowed_names_are_bounded,
    storages_of_a_site_are_bounded,
];

fn hello(world: &World, place: usize, names: &[&str]) -> HelloResult {
    let offers: Vec<_> = names.iter().map(|name| offer(name)).collect();
    let start = Incarnation { number: 2, nonce: 7 };
    world.catalog.agent_hello(agent(place), start, "host", "0.1.0", &[], &offers, NOW).unwrap()
}

/// The names that a hello registered, and those that it left out.
fn split(world: &World, place: usize, names: &[&str]) -> (Vec<String>, Vec<String>) {
    let hello = hello(world, place, names);
    let registered = hello.storages.iter().map(|row| row.name.to_string()).collect();
    (registered, hello.unconfirmed.iter().map(StorageName::to_string).collect())
}

fn allow(catalog: &Catalog, name: &str, site: &str) -> Result<bool, Fault> {
    let (name, site): (StorageName, SiteName) = (name.parse().unwrap(), site.parse().unwrap());
    catalog.allow_storage_name(&name, &site, "root", NOW).map_err(refusal)
}

fn disallow(catalog: &Catalog, name: &str) -> Result<SiteName, Fault> {
    catalog.disallow_storage_name(&name.parse().unwrap(), "root", NOW).map_err(refusal)
}

fn refusal(error: CatalogError) -> Fault {
    match error {
        CatalogError::Refused(fault) => fault,
        error => panic!("{error}"),
    }
}

fn owner(catalog: &Catalog, name: &str) -> Option<(String, NameBasis)> {
    let owner = catalog.name_owners().unwrap().find_owner(&name.parse().unwrap())?;
    Some((owner.site_name.to_string(), owner.basis))
}

fn last_change(catalog: &Catalog) -> String {
    catalog.audit(None, None, 1).unwrap()[0].what.clone()
}

fn a_site_has_the_names_that_follow_from_its_own(world: &mut World) {
    let (registered, left_out) = split(world, BETA, &["beta", "beta-disk", "beta_2", "beta.tape"]);
    assert_eq!(registered, ["beta", "beta-disk", "beta_2", "beta.tape"]);
    assert!(left_out.is_empty());
    assert_eq!(owner(&world.catalog, "beta-disk"), Some(("beta".into(), NameBasis::Storage)));
    assert_eq!(owner(&world.catalog, "beta-other"), Some(("beta".into(), NameBasis::SiteName)));
    assert_eq!(owner(&world.catalog, "betamax"), None);
}

fn what_an_administrator_allows_is_nobody_elses(world: &mut World) {
    assert_eq!(split(world, BETA, &["beta", "vault"]), (vec!["beta".into()], vec!["vault".into()]));
    assert!(allow(&world.catalog, "vault", "beta").unwrap());
    assert_eq!(last_change(&world.catalog), "storage name vault allowed to site beta");
    assert!(!allow(&world.catalog, "vault", "beta").unwrap(), "it is already");
    assert_eq!(allow(&world.catalog, "vault", "gamma").unwrap_err().code, FaultCode::Conflict);
    assert_eq!(allow(&world.catalog, "attic", "nowhere").unwrap_err().code, FaultCode::NotFound);
    assert_eq!(split(world, GAMMA, &["vault"]), (vec![], vec!["vault".into()]));
    assert_eq!(split(world, BETA, &["beta", "vault"]).0, ["beta", "vault"]);
    // Also one that would follow from the name of another site.
    assert!(allow(&world.catalog, "alpha-mirror", "gamma").unwrap());
    assert_eq!(split(world, ALPHA, &["alpha-mirror"]).1, ["alpha-mirror"]);
    assert_eq!(split(world, GAMMA, &["alpha-mirror"]).0, ["alpha-mirror"]);
    assert_eq!(allow(&world.catalog, "beta", "gamma").unwrap_err().code, FaultCode::Conflict);
}

fn a_name_of_another_site_is_left_out_and_the_rest_is_served(world: &mut World) {
    let names = ["gamma", "beta", "beta-new", "unheard-of", "gamma-2"];
    let (registered, left_out) = split(world, GAMMA, &names);
    assert_eq!(registered, ["gamma", "gamma-2"]);
    assert_eq!(left_out, ["beta", "beta-new", "unheard-of"]);
    let row = world.catalog.agent(agent(GAMMA)).unwrap().unwrap();
    assert_eq!(row.incarnation.number, 2, "the agent is let in");
    let beta = world.catalog.storage(&"beta".parse().unwrap()).unwrap().unwrap();
    assert_eq!((beta.id, beta.agent), (world.storages[BETA], agent(BETA)), "nothing was taken");
    assert_eq!(world.catalog.storages().unwrap().len(), 4);
}

fn the_longest_site_name_has_the_name(world: &mut World) {
    world.catalog.add_site(&"beta-north".parse().unwrap(), NOW).unwrap();
    let (registered, left_out) = split(world, BETA, &["beta", "beta-north-1", "beta-northern"]);
    assert_eq!(
        (registered, left_out),
        (vec!["beta".into(), "beta-northern".into()], vec!["beta-north-1".to_owned()])
    );
    // What beta has it keeps, whatever site comes.
    world.catalog.add_site(&"beta-northern".parse().unwrap(), NOW).unwrap();
    assert_eq!(split(world, BETA, &["beta", "beta-northern"]).0, ["beta", "beta-northern"]);
}

/// Earlier releases took any free name, and knew no allowances.
fn a_storage_of_an_earlier_release_keeps_its_name(world: &mut World) {
    allow(&world.catalog, "vault", "beta").unwrap();
    hello(world, BETA, &["beta", "vault"]);
    let forgotten: Result<usize, CatalogError> =
        world.catalog.write(|tx| Ok(tx.execute("DELETE FROM storage_names", ())?));
    assert_eq!(forgotten.unwrap(), 1);
    assert_eq!(split(world, BETA, &["beta", "vault"]).0, ["beta", "vault"]);
    assert_eq!(split(world, GAMMA, &["vault"]).1, ["vault"]);
    assert_eq!(owner(&world.catalog, "vault"), Some(("beta".into(), NameBasis::Storage)));
    assert!(allow(&world.catalog, "vault", "beta").unwrap(), "it may be written down");
    assert_eq!(allow(&world.catalog, "vault", "gamma").unwrap_err().code, FaultCode::Conflict);
}

fn an_allowance_is_taken_back_before_the_storage_is_there(world: &mut World) {
    let catalog = world.catalog.clone();
    assert_eq!(disallow(&catalog, "vault").unwrap_err().code, FaultCode::NotFound);
    allow(&catalog, "vault", "beta").unwrap();
    let number = hello(world, BETA, &["beta", "vault"]).storages[1].id;
    let fault = disallow(&catalog, "vault").unwrap_err();
    assert_eq!((fault.code, fault.detail.as_str()), (FaultCode::Conflict, "site beta has a storage vault"));
    let vault = "vault".parse().unwrap();
    catalog.remove_storage(&vault, false, "root", &terms()).unwrap();
    assert_eq!(owner(&catalog, "vault"), Some(("beta".into(), NameBasis::Allowance)), "it may come again");
    assert_eq!(disallow(&catalog, "vault").unwrap().as_str(), "beta");
    assert_eq!(last_change(&catalog), "storage name vault no longer allowed to site beta");
    assert_eq!(split(world, BETA, &["beta", "vault"]).1, ["vault"]);
    let former = format!("vault.removed-{number}");
    assert_eq!(allow(&catalog, &former, "beta").unwrap_err().code, FaultCode::Conflict, "history's");
    assert!(allow(&catalog, "vault", "gamma").unwrap());
}

fn a_removed_site_loses_its_allowed_names(world: &mut World) {
    allow(&world.catalog, "vault", "beta").unwrap();
    let beta = world.catalog.site(&"beta".parse().unwrap()).unwrap().unwrap();
    world.catalog.remove_site(&beta.name, false, "root", &terms()).unwrap();
    assert!(world.catalog.name_owners().unwrap().allowed_names(beta.id).next().is_none());
    assert_eq!((owner(&world.catalog, "vault"), owner(&world.catalog, "beta-1")), (None, None));
    assert!(allow(&world.catalog, "vault", "gamma").unwrap());
}

fn a_site_is_added_with_all_its_names_or_not_at_all(world: &mut World) {
    let catalog = &world.catalog;
    let delta: SiteName = "delta".parse().unwrap();
    let names = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<StorageName>>();
    let taken = catalog.add_site_with_storages(&delta, &names(&["vault", "alpha"]), "root", NOW);
    assert_eq!(refusal(taken.unwrap_err()).code, FaultCode::Conflict);
    assert_eq!((catalog.site(&delta).unwrap(), owner(catalog, "vault")), (None, None));
    let added = catalog.add_site_with_storages(&delta, &names(&["vault", "attic"]), "root", NOW);
    let (site, is_new) = added.unwrap();
    assert!(is_new && site.name == delta);
    let (_, is_new) = catalog.add_site_with_storages(&delta, &names(&["loft"]), "root", NOW).unwrap();
    assert!(!is_new, "names can be added to a site that is there");
    let owners = catalog.name_owners().unwrap();
    let allowed: Vec<&str> = owners.allowed_names(site.id).map(StorageName::as_str).collect();
    assert_eq!(allowed, ["attic", "loft", "vault"]);
}

fn allowed_names_are_bounded(world: &mut World) {
    let beta = "beta".parse().unwrap();
    let name = |number: u64| format!("vault{number}").parse::<StorageName>().unwrap();
    let all: Vec<StorageName> = (0..ALLOWED_NAMES_MAX).map(name).collect();
    world.catalog.add_site_with_storages(&beta, &all, "root", NOW).unwrap();
    let fault = allow(&world.catalog, "one-more", "beta").unwrap_err();
    assert_eq!(fault.code, FaultCode::Conflict);
    assert!(allow(&world.catalog, "one-more", "gamma").unwrap());
    disallow(&world.catalog, "vault0").unwrap();
    assert!(allow(&world.catalog, "another", "beta").unwrap());
}

/// One key is enough to offer storages without end.
fn storages_of_a_site_are_bounded(world: &mut World) {
    let many: Vec<String> = (1..SITE_STORAGES_MAX).map(|number| format!("beta-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(split(world, BETA, &many).1.is_empty(), "with beta itself these are all");
    allow(&world.catalog, "vault", "beta").unwrap();
    let (registered, left_out) = split(world, BETA, &["beta-new", "beta", "vault", "beta-1"]);
    assert_eq!(registered, ["beta", "beta-1"], "what is there is served");
    assert_eq!(left_out, ["beta-new", "vault"]);
    assert_eq!(split(world, GAMMA, &["gamma", "gamma-1"]).0, ["gamma", "gamma-1"], "others have room");
    world.catalog.remove_storage(&"beta-1".parse().unwrap(), false, "root", &terms()).unwrap();
    assert_eq!(split(world, BETA, &["beta", "beta-new"]).0, ["beta", "beta-new"]);
}
