//! Sites, tokens, datasets and files.

use longhaul_model::limits::BLOCK_FILES;
use longhaul_model::{CommunityName, DigestOrigin, FaultCode, NameRules, SiteName, TaskId, Timestamp};

use super::{ALPHA, BETA, NOW, World, agent, digests, lfn, new_file, offer, scan, terms};
use crate::{
    AddError, CatalogError, FileScope, Incarnation, JoinRefusal, LeftOutRow, NewApiToken, NewTask,
    ReportedFact, ReportedFile, SitePatch, SiteState, StorageOfferRow, VerificationState,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    sites_are_created_once,
    join_tokens_work_once,
    a_copied_agent_is_fenced,
    name_rules_change_with_their_version,
    a_manifest_is_all_or_nothing,
    known_files_are_not_added_again,
    blocks_are_cut_and_continued,
    manifests_may_name_blocks,
    lists_are_pages,
    scans_register_what_they_can,
    a_dataset_without_replicas_can_be_deleted,
    settings_keys_and_totals,
];

fn refused(error: CatalogError) -> FaultCode {
    match error {
        CatalogError::Refused(fault) => fault.code,
        other => panic!("{other}"),
    }
}

fn sites_are_created_once(world: &mut World) {
    let catalog = &world.catalog;
    let delta: SiteName = "delta".parse().unwrap();
    let (site, made) = catalog.add_site(&delta, NOW).unwrap();
    assert!(made && site.state == SiteState::Open);
    assert_eq!(catalog.add_site(&delta, NOW).unwrap(), (site.clone(), false));
    let patch = SitePatch {
        state: Some(SiteState::Paused),
        reason: Some(Some("power".into())),
        region: Some(Some("asia".parse().unwrap())),
        ..SitePatch::default()
    };
    let paused = catalog.change_site(&delta, &patch).unwrap();
    assert_eq!((paused.state, paused.reason.as_deref()), (SiteState::Paused, Some("power")));
    assert_eq!(paused.region, Some("asia".parse().unwrap()));
    assert_eq!(catalog.site(&delta).unwrap(), Some(paused));
    let stays = catalog.change_site(&delta, &SitePatch::default()).unwrap();
    assert!(stays.region.is_some(), "what is absent stays");
    let nowhere = SitePatch { region: Some(None), ..SitePatch::default() };
    assert_eq!(catalog.change_site(&delta, &nowhere).unwrap().region, None);
    let unknown = catalog.change_site(&"nowhere".parse().unwrap(), &SitePatch::default()).unwrap_err();
    assert_eq!(refused(unknown), FaultCode::NotFound);
    assert_eq!(catalog.sites().unwrap().len(), 4);
}

fn join_tokens_work_once(world: &mut World) {
    let catalog = &world.catalog;
    let site = catalog.site(&"alpha".parse().unwrap()).unwrap().unwrap();
    let later = Timestamp(NOW.0 + 1_000);
    catalog.add_join_token([1; 32], site.id, later, NOW).unwrap();
    catalog.add_join_token([2; 32], site.id, later, NOW).unwrap();
    assert_eq!(catalog.redeem_join_token([1; 32], NOW).unwrap(), Ok(site));
    assert_eq!(catalog.redeem_join_token([1; 32], NOW).unwrap(), Err(JoinRefusal::Used(NOW)));
    assert_eq!(catalog.redeem_join_token([2; 32], later).unwrap(), Err(JoinRefusal::Expired(later)));
    assert_eq!(catalog.redeem_join_token([3; 32], NOW).unwrap(), Err(JoinRefusal::Unknown));
}

fn name_rules_change_with_their_version(world: &mut World) {
    let hello = |rules: NameRules| {
        let start = Incarnation { number: 1, nonce: 7 };
        let offer = StorageOfferRow { rules, ..offer("alpha") };
        world.catalog.agent_hello(agent(ALPHA), start, "host", "2", &[], &[offer], NOW)
    };
    let rules = |version, prefix: &str| NameRules { version, ..NameRules::prefix("", prefix) };
    let refusal = hello(rules(1, "data")).unwrap_err();
    assert!(refusal.to_string().contains("set rules_version to 2"), "{refusal}");
    assert_eq!(refused(refusal), FaultCode::Conflict);
    assert_eq!(hello(rules(2, "data")).unwrap().storages[0].rules, rules(2, "data"));
    assert_eq!(hello(rules(2, "data")).unwrap().storages[0].rules.version, 2, "said again, nothing changes");
    assert_eq!(refused(hello(rules(1, "data")).unwrap_err()), FaultCode::Conflict, "an older version");
}

fn a_copied_agent_is_fenced(world: &mut World) {
    let hello = |number, nonce, offer: StorageOfferRow| {
        let start = Incarnation { number, nonce };
        world.catalog.agent_hello(agent(ALPHA), start, "host", "2", &["h:1".into()], &[offer], NOW)
    };
    assert!(hello(1, 7, offer("alpha")).is_ok(), "a repetition");
    assert_eq!(refused(hello(1, 8, offer("alpha")).unwrap_err()), FaultCode::StaleIncarnation);
    assert!(hello(2, 8, offer("alpha")).is_ok());
    assert_eq!(refused(hello(1, 7, offer("alpha")).unwrap_err()), FaultCode::StaleIncarnation);
    let other_rules = StorageOfferRow { rules: NameRules::prefix("", "data"), ..offer("alpha") };
    assert_eq!(refused(hello(3, 1, other_rules).unwrap_err()), FaultCode::Conflict);
    let row = world.catalog.agent(agent(ALPHA)).unwrap().unwrap();
    assert_eq!(row.incarnation, Incarnation { number: 2, nonce: 8 }, "a refused hello leaves nothing");
    assert_eq!(row.addresses, ["h:1"]);
    assert_eq!(world.catalog.agents().unwrap().len(), 3);
}

fn a_manifest_is_all_or_nothing(world: &mut World) {
    let dataset = world.dataset("a");
    let other = world.dataset("b");
    world.register(other, 0..1, None, None);
    let mut wrong_size = new_file(dataset, 1, None, 3);
    wrong_size.size += 1;
    let mut wrong_digest = new_file(dataset, 1, None, 3);
    wrong_digest.digests = digests(99);
    let foreign = crate::NewFile { line: 3, ..new_file(other, 0, None, 3) };
    for (bad, word) in [(wrong_size, "bytes"), (wrong_digest, "adler32"), (foreign, "dataset b")] {
        let files = vec![Ok(new_file(dataset, 0, None, 1)), Ok(new_file(dataset, 1, None, 2)), Ok(bad)];
        let error = world.try_register(dataset, files).unwrap_err();
        let AddError::Manifest(error) = error else { panic!("{error}") };
        assert_eq!((error.line, error.fault.code), (3, FaultCode::AlreadyExists));
        assert!(error.fault.detail.contains(word), "{error}");
        assert_eq!(world.catalog.file(&lfn(dataset, 0)).unwrap(), None);
        world.assert_sound();
    }
    let row = world.catalog.dataset_by_id(dataset).unwrap().unwrap();
    assert_eq!((row.files, row.blocks), (0, 0));
    let mut huge = new_file(dataset, 5, None, 1);
    huge.size = 1 << 62;
    assert!(world.try_register(dataset, vec![Ok(huge)]).is_err());
}

fn known_files_are_not_added_again(world: &mut World) {
    let dataset = world.dataset("a");
    let first = world.register(dataset, 0..5, Some(ALPHA), None);
    assert_eq!((first.files_added, first.bytes_added, first.files_known), (5, 510, 0));
    let again = world.register(dataset, 3..7, Some(BETA), None);
    assert_eq!((again.files_added, again.files_known, again.found.len()), (2, 2, 2));
    let at = world.catalog.replicas_of_dataset(dataset).unwrap();
    assert_eq!((at[0].files, at[0].complete, at[1].files, at[1].complete), (5, false, 4, false));
    assert_eq!(at[1].verified.registered, 4);
    let rest = world.register(dataset, 0..7, Some(BETA), None);
    assert_eq!((rest.files_added, rest.complete.len()), (0, 1));
    let (_, replicas) = world.catalog.replicas_of_file(&lfn(dataset, 4)).unwrap().unwrap();
    assert_eq!(
        replicas.iter().map(|row| row.how).collect::<Vec<_>>(),
        [VerificationState::Registered, VerificationState::Registered]
    );
    world.catalog.close_dataset(dataset).unwrap();
    assert_eq!(world.register(dataset, 0..7, None, None).files_known, 7);
    let error = world.try_register(dataset, vec![Ok(new_file(dataset, 8, None, 1))]).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

fn blocks_are_cut_and_continued(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..10, Some(ALPHA), None);
    let added = world.register(dataset, 10..2 * BLOCK_FILES + 5, Some(ALPHA), None);
    assert_eq!(added.blocks.len(), 3);
    let blocks = world.catalog.blocks(dataset, None, 10).unwrap();
    assert_eq!(blocks.iter().map(|block| block.files).collect::<Vec<_>>(), [BLOCK_FILES, BLOCK_FILES, 5]);
    assert_eq!(blocks.iter().map(|block| block.open).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(blocks[2].name.as_str(), "a#0003");
    for block in blocks {
        let at = world.catalog.replicas_of_block(block.id).unwrap();
        assert!(at.len() == 1 && at[0].complete && at[0].files == block.files);
    }
}

fn manifests_may_name_blocks(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, None, Some("0001"));
    world.register(dataset, 2..4, None, Some("raw"));
    world.register(dataset, 4..6, None, Some("0001"));
    world.register(dataset, 6..7, None, None);
    let names: Vec<_> = world.catalog.blocks(dataset, None, 10).unwrap();
    let names: Vec<_> = names.iter().map(|block| (block.name.as_str(), block.files)).collect();
    assert_eq!(names, [("a#0001", 4), ("a#raw", 2), ("a#0002", 1)]);
    let bad = vec![Ok(new_file(dataset, 9, Some("a b\n"), 1))];
    let AddError::Manifest(error) = world.try_register(dataset, bad).unwrap_err() else { panic!() };
    assert_eq!(error.fault.code, FaultCode::BadName);
    let named = world.catalog.block(&"a#raw".parse().unwrap()).unwrap().unwrap();
    assert_eq!(world.catalog.files(FileScope::Block(named.id), None, 10).unwrap().len(), 2);
}

fn lists_are_pages(world: &mut World) {
    for name in ["c", "a", "b"] {
        world.dataset(name);
    }
    let first = world.catalog.datasets(None, 2).unwrap();
    let rest = world.catalog.datasets(Some(&first[1].name), 2).unwrap();
    let names: Vec<_> = first.iter().chain(&rest).map(|row| row.name.to_string()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, None, Some("x"));
    world.register(dataset, 3..5, None, Some("y"));
    world.register(dataset, 5..8, None, Some("x"));
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = world.catalog.files(FileScope::Dataset(dataset), after, 2).unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        seen.extend(page.into_iter().map(|file| file.lfn));
    }
    let expected = [0, 1, 2, 5, 6, 7, 3, 4].map(|number| lfn(dataset, number));
    assert_eq!(seen, expected);
}

fn a_dataset_without_replicas_can_be_deleted(world: &mut World) {
    let (held, loose) = (world.dataset("a"), world.dataset("b"));
    world.register(held, 0..3, Some(ALPHA), None);
    world.register(loose, 3..6, None, None);
    let error = world.catalog.delete_dataset(held).unwrap_err();
    assert!(error.to_string().contains("alpha"), "{error}");
    world.subscribe(loose, None, BETA);
    assert_eq!(refused(world.catalog.delete_dataset(loose).unwrap_err()), FaultCode::Conflict);
    let empty = world.dataset("c");
    world.catalog.delete_dataset(empty).unwrap();
    assert_eq!(refused(world.catalog.delete_dataset(empty).unwrap_err()), FaultCode::NotFound);
    let again = world.dataset("c");
    assert!(again > empty, "a number is not used again");
    world.register(again, 6..7, None, None);
    world.catalog.delete_dataset(again).unwrap();
    let other = world.dataset("d");
    assert!(world.catalog.file(&lfn(again, 6)).unwrap().is_none());
    assert!(world.catalog.dataset_by_id(other).unwrap().is_some());
}

fn scans_register_what_they_can(world: &mut World) {
    let dataset = world.dataset("a");
    let other = world.dataset("b");
    world.register(other, 9..10, None, None);
    let kind = scan("raw");
    let new = NewTask { id: TaskId(1), kind, dataset, storage: world.storages[ALPHA] };
    assert!(world.catalog.add_task(&new, &terms()).unwrap().made);
    assert!(!world.catalog.add_task(&NewTask { id: TaskId(2), ..new.clone() }, &terms()).unwrap().made);
    let found = |dataset, number| ReportedFile {
        lfn: lfn(dataset, number),
        size: 100 + number,
        digests: digests(number),
        origin: DigestOrigin::Computed,
    };
    let left_out = LeftOutRow { path: "x".into(), reason: "fifo".into(), detail: String::new() };
    let facts = vec![
        ReportedFact::Scanned {
            task: TaskId(1),
            found: vec![found(dataset, 0), found(other, 9)],
            left_out: vec![left_out],
        },
        ReportedFact::Scanned {
            task: TaskId(1),
            found: vec![found(dataset, 1), found(dataset, 0)],
            left_out: vec![],
        },
        ReportedFact::Scanned { task: TaskId(77), found: vec![found(dataset, 5)], left_out: vec![] },
        ReportedFact::TaskDone { task: TaskId(1), fault: None },
        ReportedFact::Scanned { task: TaskId(1), found: vec![found(dataset, 6)], left_out: vec![] },
    ];
    let applied = world.report(ALPHA, facts);
    assert_eq!(applied.acknowledged, 5);
    let task = world.catalog.task(TaskId(1)).unwrap().unwrap();
    assert!(task.done && task.files_done == 3 && task.files_bad == 1);
    assert_eq!(task.problems[0].fault.code, FaultCode::AlreadyExists);
    assert_eq!(applied.tasks.last(), Some(&task));
    let at = world.catalog.replicas_of_dataset(dataset).unwrap();
    assert_eq!((at.len(), at[0].files, at[0].complete), (1, 2, true));
    let left_out = world.catalog.left_out(dataset).unwrap();
    assert_eq!((left_out.len(), left_out[0].count, left_out[0].reason.as_str()), (1, 1, "fifo"));
    assert!(world.catalog.tasks_for(world.storages[ALPHA]).unwrap().is_empty());
}

fn settings_keys_and_totals(world: &mut World) {
    let catalog = &world.catalog;
    catalog.remember_idempotent("k", "first", NOW).unwrap();
    catalog.remember_idempotent("k", "second", NOW).unwrap();
    assert_eq!(catalog.idempotent("k").unwrap().as_deref(), Some("first"));
    catalog.remember_idempotent("l", "x", Timestamp(NOW.0 + 90_000_000_000)).unwrap();
    assert_eq!(catalog.idempotent("k").unwrap(), None, "forgotten after a day");
    let community: CommunityName = "higgs".parse().unwrap();
    let token = NewApiToken {
        hash: [5; 32],
        name: "ci".into(),
        role: "viewer".into(),
        expires: None,
        scopes: Some("jobs:read".into()),
        community: Some(community.clone()),
        sites: Some("beta gamma".into()),
    };
    catalog.add_api_token(&token, NOW).unwrap();
    let kept = catalog.api_token([5; 32]).unwrap().unwrap();
    assert_eq!((kept.role.as_str(), kept.scopes.as_deref()), ("viewer", Some("jobs:read")));
    assert_eq!((kept.community, kept.expires), (Some(community), None));
    assert_eq!(kept.sites.as_deref(), Some("beta gamma"));
    assert_eq!(catalog.api_tokens().unwrap().len(), 1);
    assert!(catalog.remove_api_token("ci").unwrap() && !catalog.remove_api_token("ci").unwrap());
    assert_eq!(catalog.api_token([5; 32]).unwrap(), None, "it lets nobody in any more");
    let foreign: CommunityName = "other".parse().unwrap();
    world.dataset("a");
    let error = catalog.create_dataset(&"a".parse().unwrap(), &foreign, NOW).unwrap_err();
    assert_eq!(refused(error), FaultCode::AlreadyExists);
    assert!(catalog.last_id().unwrap() >= 3, "agents have stamped ids too");
}
