//! Rules as sites write them, what is refused about them, and that nothing maps that does not come back.

use proptest::prelude::*;

use super::*;

fn lfn(text: &str) -> Lfn {
    text.parse().unwrap()
}

fn storage() -> StorageName {
    "beta".parse().unwrap()
}

fn prefix(lfn: &str, pfn: &str) -> NameRule {
    NameRule::Prefix(PrefixRule { lfn: lfn.into(), pfn: pfn.into() })
}

/// A rule by pattern from what a file would say of it.
fn pattern(
    direction: &str,
    protocol: &str,
    path_match: &str,
    result: &str,
    more: serde_json::Value,
) -> NameRule {
    let mut rule = serde_json::json!({
        "direction": direction, "protocol": protocol, "path_match": path_match, "result": result
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        rule[key] = value.clone();
    }
    serde_json::from_value(rule).unwrap()
}

/// The example of `docs/reference/names.md`: a disk with a place for custodial copies, and a door over it.
fn catalogue() -> NameRules {
    use serde_json::json;
    let rules = vec![
        pattern(
            "lfn-to-pfn",
            "disk",
            "/+(.*)",
            "/pool/keep/$1",
            json!({ "custodial": true, "space_token": "KEEP" }),
        ),
        pattern("lfn-to-pfn", "disk", "/+(.*)", "/pool/temp/$1", json!({})),
        pattern(
            "lfn-to-pfn",
            "https",
            "(.*)",
            "https://door1.example.org:1094$1",
            json!({ "chain": "disk", "target_match": "^T[12]_XX_" }),
        ),
        pattern("pfn-to-lfn", "disk", "^/pool/(?:keep|temp)/(.*)", "/$1", json!({})),
        pattern("pfn-to-lfn", "https", "https://[^/]+(/.*)", "$1", json!({ "chain": "disk" })),
    ];
    NameRules {
        version: 1,
        rules,
        own: OwnNames { protocol: "disk".into(), base: "/pool".into(), custodial: false },
    }
}

fn name(rules: &NameRules, protocol: &str, target: Option<&str>, custodial: bool) -> Option<String> {
    let asked = NameQuery { protocol, target, custodial };
    rules.lfn_to_pfn(&lfn("store/a"), &asked).unwrap().map(|mapped| mapped.name)
}

#[test]
fn maps_prefixes_on_component_boundaries() {
    let rules = NameRules::new(1, vec![prefix("store/raw", "tape/raw"), prefix("", "disk")]);
    rules.check().unwrap();
    assert_eq!(rules.to_pfn(&storage(), &lfn("store/raw/f")).unwrap().path(), "tape/raw/f");
    assert_eq!(rules.to_pfn(&storage(), &lfn("store/rawer/f")).unwrap().path(), "disk/store/rawer/f");
    let back = Pfn::new(storage(), "tape/raw/f").unwrap();
    assert_eq!(rules.to_lfn(&back).unwrap(), lfn("store/raw/f"));
    assert!(rules.to_lfn(&Pfn::new(storage(), "elsewhere/f").unwrap()).is_err());
    // Where nothing would be put, nothing is found.
    let rules = NameRules::new(1, vec![prefix("raw", "tape"), prefix("", "")]);
    let twin = Pfn::new(storage(), "raw/f").unwrap();
    assert_eq!(
        rules.to_lfn(&twin).unwrap_err().to_string(),
        "name rules of beta take beta:raw/f for raw/f, whose place is beta:tape/f"
    );
}

#[test]
fn refuses_rules_that_do_not_come_back() {
    let rules = NameRules::new(1, vec![prefix("a", "x"), prefix("b", "x")]);
    assert!(rules.to_pfn(&storage(), &lfn("a/f")).is_ok());
    assert!(matches!(rules.to_pfn(&storage(), &lfn("b/f")), Err(RuleError::NoRoundTrip { .. })));
    let names = [lfn("a/f"), lfn("b/f")];
    assert!(rules.try_names(&storage(), &names[..1]).is_ok());
    assert!(rules.try_names(&storage(), &names).unwrap_err().to_string().contains("maps back to a/f"));
    assert!(NameRules::prefix("", "../out").check().is_err());
}

#[test]
fn the_catalogue_means_what_it_means_in_phedex() {
    let rules = catalogue();
    rules.check().unwrap();
    let on_disk = "/pool/temp/store/a";
    assert_eq!(name(&rules, "disk", None, false).as_deref(), Some(on_disk));
    let custodial = NameQuery { protocol: "disk", target: None, custodial: true };
    let mapped = rules.lfn_to_pfn(&lfn("store/a"), &custodial).unwrap().unwrap();
    assert_eq!((mapped.name.as_str(), mapped.space_token.as_deref()), ("/pool/keep/store/a", Some("KEEP")));
    let door = format!("https://door1.example.org:1094{on_disk}");
    assert_eq!(name(&rules, "https", Some("T2_XX_A"), false), Some(door.clone()));
    // Whoever does not say where it goes meets every condition; who says it, has to meet it.
    assert_eq!(name(&rules, "https", None, false), Some(door.clone()));
    assert_eq!(name(&rules, "https", Some("T2_YY_A"), false), None);
    assert_eq!(name(&rules, "gsiftp", None, false), None);
    let asked = NameQuery { protocol: "https", target: None, custodial: false };
    assert_eq!(rules.pfn_to_lfn(&door, &asked).unwrap(), Some(lfn("store/a")));
    assert_eq!(rules.pfn_to_lfn("https://door1/elsewhere/a", &asked).unwrap(), None);
    // The storage's own files, beneath its root.
    let pfn = rules.to_pfn(&storage(), &lfn("store/a")).unwrap();
    assert_eq!((pfn.path(), rules.to_lfn(&pfn).unwrap()), ("temp/store/a", lfn("store/a")));
    let mut kept = rules.clone();
    kept.own.custodial = true;
    assert_eq!(kept.to_pfn(&storage(), &lfn("store/a")).unwrap().path(), "keep/store/a");
    // A file where the rules would not put it is none of the storage's.
    let elsewhere = Pfn::new(storage(), "keep/store/a").unwrap();
    assert!(matches!(rules.to_lfn(&elsewhere), Err(RuleError::Elsewhere { .. })));
}

#[test]
fn the_first_that_fits_wins_and_a_chain_without_answer_does_not_fit() {
    use serde_json::json;
    let there = |rules: Vec<NameRule>| name(&NameRules::new(1, rules), "p", None, false);
    let catch_all = pattern("lfn-to-pfn", "p", "^", "z", json!({}));
    let first = pattern("lfn-to-pfn", "p", "^/store/(.*)", "/1/$1", json!({}));
    assert_eq!(there(vec![first.clone(), catch_all.clone()]).as_deref(), Some("/1/a"));
    assert_eq!(there(vec![catch_all.clone(), first]).as_deref(), Some("z/store/a"));
    let chained = pattern("lfn-to-pfn", "p", "(.*)", "q$1", json!({ "chain": "q" }));
    let never = pattern("lfn-to-pfn", "q", "^/elsewhere/", "", json!({}));
    assert_eq!(there(vec![chained.clone(), never, catch_all]).as_deref(), Some("z/store/a"));
    // Chained to rules by prefix, which are those of the storage's own protocol.
    let direct = pattern("lfn-to-pfn", "p", "(.*)", "https://d$1", json!({ "chain": "direct" }));
    assert_eq!(there(vec![direct, prefix("", "disk")]).as_deref(), Some("https://d/disk/store/a"));
}

#[test]
fn both_kinds_stand_in_one_list() {
    use serde_json::json;
    let rules = NameRules::new(
        2,
        vec![
            pattern(
                "lfn-to-pfn",
                "direct",
                "^/mc/([^/]+)/(.*)$",
                "/simulated/$2/$1",
                json!({ "custodial": false }),
            ),
            pattern("pfn-to-lfn", "direct", "^/simulated/(.*)/([^/]+)$", "/mc/$2/$1", json!({})),
            prefix("", "data"),
        ],
    );
    rules.check().unwrap();
    assert_eq!(rules.to_pfn(&storage(), &lfn("mc/run1/x/f")).unwrap().path(), "simulated/x/f/run1");
    assert_eq!(rules.to_pfn(&storage(), &lfn("raw/f")).unwrap().path(), "data/raw/f");
    let text = serde_json::to_string(&rules).unwrap();
    assert_eq!(serde_json::from_str::<NameRules>(&text).unwrap(), rules);
}

#[test]
fn earlier_forms_are_read_and_written_as_they_were() {
    let stored = r#"{"version":3,"rules":[{"lfn":"a","pfn":"b"}]}"#;
    let rules: NameRules = serde_json::from_str(stored).unwrap();
    assert_eq!(rules, NameRules::new(3, vec![prefix("a", "b")]));
    assert_eq!(serde_json::to_string(&rules).unwrap(), stored);
    let why = |text: &str| serde_json::from_str::<NameRule>(text).map(drop).unwrap_err().to_string();
    assert!(why(r#"{"lfn":"a"}"#).contains("pfn is missing"));
    assert!(
        why(r#"{"direction":"lfn-to-pfn","protocol":"p","result":""}"#).contains("path_match is missing")
    );
    assert!(why(r#"{"lfn":"a","pfn":"b","protocol":"p"}"#).contains("not both"));
    assert!(why(r#"{"lfn":"a","pfn":"b","chian":"p"}"#).contains("unknown field `chian`"));
    assert!(why(r#"{"direction":"up","protocol":"p"}"#).contains("lfn-to-pfn"));
}

#[test]
fn what_is_wrong_with_rules_is_told_with_its_place() {
    use serde_json::json;
    let why = |rules: Vec<NameRule>| NameRules::new(1, rules).check().unwrap_err().to_string();
    let back = |protocol: &str| pattern("pfn-to-lfn", protocol, "(.*)", "$1", json!({}));
    let there = |path: &str, result: &str, more| pattern("lfn-to-pfn", "direct", path, result, more);
    let place = "rule 2 (lfn-to-pfn of direct): ";
    let second = |rule: NameRule| why(vec![back("direct"), rule]);
    assert!(second(there("(", "", json!({}))).starts_with(&format!("{place}path_match: ")));
    assert!(second(there("(a{999}){999}", "", json!({}))).starts_with(&format!("{place}path_match: ")));
    assert!(second(there("a", "$1", json!({}))).contains("result has $1, but path_match has 0 groups"));
    assert!(second(there("a", "$", json!({}))).starts_with(&format!("{place}result: ")));
    assert!(second(there("a", "", json!({ "target_match": "*" }))).contains("target_match: "));
    assert!(second(there("a", "", json!({ "chain": "q" }))).contains("chains to q, which has no rules"));
    assert!(second(there("a", "", json!({ "chain": "direct" }))).contains("in a circle"));
    assert!(second(there("a", "", json!({ "space_token": "" }))).contains("space_token is \"\""));
    assert!(second(there("a", &"x".repeat(2_000), json!({}))).contains("result has 2000 bytes"));
    // Not one way only.
    assert!(why(vec![there("a", "", json!({}))]).contains("direct has rules from LFN to PFN and none back"));
    assert!(why(vec![back("direct")]).contains("there are no rules of protocol direct"));
    assert!(why(Vec::new()).contains("known are none"));
    assert!(why(vec![prefix("", ""); RULES_MAX + 1]).contains("257 rules, the limit is 256"));
    let mut rules = NameRules::default();
    rules.own.base = "/pool/".into();
    assert!(rules.check().unwrap_err().to_string().contains("without a / at the end"));
}

#[test]
fn what_would_never_end_ends() {
    use serde_json::json;
    // Rules that were never checked: in a circle, and with a number of ways that doubles with each protocol.
    let circle =
        NameRules::new(1, vec![pattern("lfn-to-pfn", "direct", "a", "", json!({ "chain": "direct" }))]);
    assert!(matches!(circle.to_pfn(&storage(), &lfn("a")), Err(RuleError::TooMuch(_))));
    let mut rules = Vec::new();
    for level in 0..8 {
        let (protocol, chain) = (format!("p{level}"), json!({ "chain": format!("p{}", level + 1) }));
        rules.extend(vec![pattern("lfn-to-pfn", &protocol, "^nothing$", "", chain); 8]);
    }
    rules.push(pattern("lfn-to-pfn", "p8", "(.*)", "$1", json!({})));
    let rules = NameRules::new(1, rules);
    let asked = NameQuery { protocol: "p0", target: None, custodial: false };
    assert!(matches!(rules.lfn_to_pfn(&lfn("a"), &asked), Err(RuleError::TooMuch(_))));
    let longer = pattern("lfn-to-pfn", "direct", "(.*)", &"$1".repeat(100), json!({}));
    let long = lfn(&vec!["a"; 400].join("/"));
    let fault = NameRules::new(1, vec![longer]).to_pfn(&storage(), &long).unwrap_err();
    assert!(fault.to_string().contains("longer than 4096 bytes"), "{fault}");
}

#[test]
fn nothing_leads_out_of_the_root() {
    use serde_json::json;
    let mut rules = NameRules::new(
        1,
        vec![
            pattern("lfn-to-pfn", "direct", "(.*)", "/pool/../$1", json!({})),
            pattern("pfn-to-lfn", "direct", "(.*)", "$1", json!({})),
        ],
    );
    assert!(matches!(rules.to_pfn(&storage(), &lfn("a")), Err(RuleError::Name(_))));
    rules.own.base = "/data".into();
    let outside = rules.to_pfn(&storage(), &lfn("a")).unwrap_err().to_string();
    assert!(outside.contains("does not lie beneath /data"), "{outside}");
}

proptest! {
    #[test]
    fn what_maps_comes_back(path in "[ab]{1,2}(/[ab]{1,2}){0,3}", from in "(a|b|a/b)?", to in "(a|b|b/a)?") {
        let storage: StorageName = "s".parse().unwrap();
        let rules = NameRules::prefix(&from, &to);
        let lfn = lfn(&path);
        if let Ok(pfn) = rules.to_pfn(&storage, &lfn) {
            prop_assert_eq!(rules.to_lfn(&pfn).unwrap(), lfn);
        }
    }

    #[test]
    fn what_patterns_map_comes_back(
        path in "[ab]{1,2}(/[ab]{1,2}){0,3}",
        patterns in prop::collection::vec(("[ab/^$.*+()|]{0,8}", "[ab/$1]{0,4}", any::<bool>(),
            any::<bool>(), any::<bool>()), 1..6),
        base in "(/[ab])?",
    ) {
        let rules = patterns.iter().map(|(path_match, result, there, own, chained)| {
            let direction = if *there { Direction::LfnToPfn } else { Direction::PfnToLfn };
            NameRule::Pattern(PatternRule {
                direction,
                protocol: if *own { "direct" } else { "q" }.into(),
                target_match: None,
                custodial: None,
                chain: chained.then(|| "q".into()),
                path_match: Pattern::new(path_match.as_str()),
                result: result.clone(),
                space_token: None,
            })
        });
        let mut rules = NameRules::new(1, rules.collect());
        rules.own.base = base;
        let _ = rules.check();
        let lfn = lfn(&path);
        if let Ok(pfn) = rules.to_pfn(&storage(), &lfn) {
            prop_assert_eq!(rules.to_lfn(&pfn).unwrap(), lfn);
        }
        let text = serde_json::to_string(&rules).unwrap();
        prop_assert_eq!(serde_json::from_str::<NameRules>(&text).unwrap(), rules);
    }
}
