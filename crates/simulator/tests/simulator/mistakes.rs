//! Bad scenarios get one clear message: where, what, and what to do.

use longhaul_simulator::{Plan, Scenario};
use proptest::prelude::*;

const SOUND: &str = r#"
name = "sound"
until = "1 h"
[[site]]
name = "a"
port = "1 Gbit/s"
[[site]]
name = "b"
port = "1 Gbit/s"
[[dataset]]
name = "data"
files = 10
at = ["a"]
[[campaign]]
datasets = ["data"]
to = ["b"]
"#;

fn mistake(text: &str) -> String {
    let read = Scenario::parse(text).and_then(|scenario| Plan::new(&scenario, None));
    match read {
        Ok(_) => "none".to_owned(),
        Err(mistake) => {
            assert!(!mistake.place.is_empty() && !mistake.what.is_empty() && !mistake.next.is_empty());
            mistake.to_string()
        }
    }
}

#[test]
fn the_sound_one_is_sound() {
    assert_eq!(mistake(SOUND), "none");
}

#[test]
fn each_mistake_is_named() {
    let more = |text: &str| format!("{SOUND}{text}");
    let provider = |text: &str| format!("[[provider]]\nname = \"x\"\n{text}");
    let stream = |text: &str| {
        format!(
            "[[stream]]\nname = \"new\"\nfiles_per_day = 100\nfiles = 1\nfrom = [\"a\"]\nto = \
                [\"b\"]\n{text}\n"
        )
    };
    let cases = [
        (String::new(), "missing field `name`"),
        (SOUND.replace("port", "prot"), "line 6: unknown field `prot`"),
        (SOUND.replace("1 Gbit/s", "0 Gbit/s"), "moves nothing"),
        (SOUND.replace("1 Gbit/s", "-5 Gbit/s"), "moves nothing"),
        (SOUND.replace("1 Gbit/s", "1e30 Gbit/s"), "beyond"),
        (SOUND.replace("port = \"1 Gbit/s\"", ""), "no capacity"),
        (SOUND.replace("until = \"1 h\"", "until = 0"), "before it begins"),
        (SOUND.replace("to = [\"b\"]", "to = [\"c\"]"), "no site \"c\""),
        (SOUND.replace("datasets = [\"data\"]", "datasets = [\"other\"]"), "no dataset \"other\""),
        (SOUND.replace("name = \"b\"", "name = \"a\""), "two sites are called"),
        (SOUND.replace("files = 10", "files = 0"), "empty"),
        (SOUND.replace("to = [\"b\"]", "to = [\"a\"]"), "nobody wants"),
        (more("[circuits]\nlevel = \"both\"\n"), "unknown variant `both`"),
        (more("[circuits]\nforecast_error = 0.5\n"), "a factor from 1 to 100"),
        (more("[circuits]\nfloor = 10\n"), "give 1 to 9"),
        (more("[circuits]\nevery = \"1 s\"\n"), "[circuits] every"),
        (more("[circuits]\nage_step = 0\n"), "[circuits] age_step"),
        (more("[circuits]\nbudget = -1.0\n"), "[circuits] budget"),
        (more(&provider("rates = []\nat_once = 1\n")), "[[provider]] x: it has no rates"),
        (more(&provider("rates = [\"1 kbit/s\"]\nat_once = 1\n")), "a rate below 1 Mbit/s"),
        (more(&provider("rates = [\"1 Gbit/s\"]\nat_once = 0\n")), "give at_once"),
        (more(&provider("rates = [\"1 Gbit/s\"]\nat_once = 1\nport_share = 0\n")), "give port_share"),
        (more(&provider("rates = [\"1 Gbit/s\"]\nat_once = 1\nsetup = \"7 h\"\n")), "above setup"),
        (more(&provider("rates = [\"1 Gbit/s\"]\nat_once = 1\nsites = [\"z\"]\n")), "no site \"z\""),
        (more(&provider("rates = [\"1 Gbit/s\"]\nat_once = 1\n").repeat(2)), "two providers"),
        (more("[links]\ntopology = \"listed\"\n"), "is an island"),
        (
            SOUND
                .replace("name = \"a\"\n", "name = \"a\"\nparent = \"b\"\n")
                .replace("name = \"b\"\n", "name = \"b\"\nparent = \"a\"\n"),
            "its own ancestor",
        ),
        (
            more("[[community]]\nname = \"x\"\nshare = 0\n[[community]]\nname = \"y\"\nshare = 0\n"),
            "sum to zero",
        ),
        (more("[[community]]\nname = \"x\"\nshare = -1\n"), "a share of -1"),
        (more("[[link]]\nfrom = \"a\"\nto = \"a\"\n"), "to itself"),
        (more("[[failure]]\nkind = \"site-down\"\nat = [\"z\"]\n"), "no site \"z\""),
        (more("[[failure]]\nkind = \"slow-storage\"\nat = [\"a\"]\nfactor = 3\n"), "a factor of 3"),
        (more("[[failure]]\nkind = \"site-error\"\nat = [\"a\"]\ncode = \"E0\"\n"), "no error code"),
        (more("[[distance]]\nfrom = \"mars\"\nto = \"mars\"\nrtt = 1\n"), "region \"mars\""),
        (more("[[recorded]]\nrequests = \"1\\tx\"\n"), "2 fields in place of 8"),
        (
            more("[[campaign]]\ndatasets = [\"data\"]\nto = [\"b\"]\ncommunity = \"x\"\n"),
            "no community \"x\"",
        ),
        (SOUND.replace("[[campaign]]", "[[campaign]]\nnonsense = 1"), "nonsense"),
        (SOUND.replace("[[campaign]]", "[[campaign]]\npriority = 0"), "[[campaign]] 1: a priority of 0"),
        (SOUND.replace("[[campaign]]", "[[campaign]]\npriority = 10"), "give 1 (least) to 9"),
        (SOUND.replace("[[campaign]]", "[[campaign]]\npriority = -1"), "line 14"),
        (more(&stream("priority = 10")), "[[stream]] new: a priority of 10"),
        (more("[[recorded]]\nrequests = \"1\\tx\\t1\\t1\\ta\\tb\\t10\\t\"\n"), "priority are out of range"),
    ];
    for (text, expected) in cases {
        let found = mistake(&text);
        assert!(found.contains(expected), "{expected:?} is not in {found:?}");
    }
}

#[test]
fn recorded_requests_become_work() {
    let text = format!(
        "{SOUND}[[recorded]]\nrequests = '''\n# seconds dataset files bytes sources target priority \
            community\n10\told\t3\t100\ta\tb\t7\t\n'''\n"
    );
    let plan = Plan::new(&Scenario::parse(&text).unwrap(), None).unwrap();
    let request = plan.work.requests.last().unwrap();
    assert_eq!((request.at, request.priority), (10.0, 7));
    let old = &plan.work.datasets[request.dataset as usize];
    assert_eq!((old.name.as_str(), old.bytes), ("old", 100));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is cut out, put in or doubled: a message or a world, no panic.
    #[test]
    fn torn_scenarios_do_no_harm(at in 0usize..400, length in 0usize..60, with in "[ -~\n]{0,12}",
        twice: bool) {
        let start = at.min(SOUND.len());
        let end = (start + length).min(SOUND.len());
        let middle = if twice { &SOUND[start..end] } else { "" };
        let text = format!("{}{middle}{with}{middle}{}", &SOUND[..start], &SOUND[end..]);
        let _ = Scenario::parse(&text).and_then(|scenario| Plan::new(&scenario, None));
    }
}
