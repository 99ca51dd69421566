//! Pairs: each source has its own name at the target, and a bad pair does not affect the others.

use longhaul_copy::{DataSecurity, Endpoint, Options, Outcome, Progress, Stop, copy_pairs};
use longhaul_model::FaultCode;
use longhaul_testkit::content;

use crate::common::{Ground, at, place};

fn outcomes(pairs: &[(Endpoint, Endpoint)]) -> Vec<Result<(), FaultCode>> {
    let progress = Progress::default();
    let mut told: Vec<Vec<Outcome>> = vec![Vec::new(); pairs.len()];
    copy_pairs(
        pairs,
        &Options::default(),
        DataSecurity::Tls,
        &progress,
        &Stop::default(),
        &mut |index, file| {
            told[index].push(file.outcome.clone());
        },
    )
    .unwrap();
    told.into_iter()
        .map(|told| match &told[..] {
            [Outcome::Done { .. }] => Ok(()),
            [Outcome::Failed(fault)] => Err(fault.code),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn a_hundred_pairs_three_of_them_bad() {
    let ground = Ground::new();
    for number in 0..100 {
        ground.write(&format!("far/d{}/f{number}", number % 3), &content(number, 1_000));
    }
    std::fs::remove_file(ground.path("far/d1/f40")).unwrap();
    ground.write("near/out1/n3", b"something else");
    ground.make("near/out1/n7/directory");
    let server = ground.serve("far", false);
    let pairs: Vec<(Endpoint, Endpoint)> = (0..100)
        .map(|number| {
            let target = ground.path(&format!("near/out{}/n{number}", number % 2));
            let source = at(&server, &format!("d{}/f{number}", number % 3));
            // With a directory as target, the file goes into it; here a directory of that name is in the
            // way.
            let target = if number == 7 { target.join("directory") } else { target };
            (source, place(target.to_str().unwrap()))
        })
        .collect();
    std::fs::create_dir_all(ground.path("near/out1/n7/directory/f7")).unwrap();
    let ends = outcomes(&pairs);
    for (number, end) in ends.iter().enumerate() {
        let expected = match number {
            3 | 7 => Err(FaultCode::NameClash),
            40 => Err(FaultCode::SourceMissing),
            _ => Ok(()),
        };
        assert_eq!(*end, expected, "pair {number}");
    }
    assert_eq!(std::fs::read(ground.path("near/out1/n99")).unwrap(), content(99, 1_000));
    assert_eq!(std::fs::read(ground.path("near/out1/n3")).unwrap(), b"something else");
}

#[test]
fn pairs_of_all_kinds() {
    let ground = Ground::new();
    for number in 0..4 {
        ground.write(&format!("near/f{number}"), &content(number, 2_000));
    }
    ground.make("far");
    let (reads, writes) = (ground.serve("near", false), ground.serve("far", true));
    let local = |name: &str| place(ground.path(name).to_str().unwrap());
    let pairs = [
        (local("near/f0"), at(&writes, "x/a")),
        (local("near/f1"), at(&writes, "y/b")),
        (at(&reads, "f2"), at(&writes, "c")),
        (local("near/f3"), local("near/copy")),
        (local("near/gone"), at(&writes, "z")),
    ];
    let ends = outcomes(&pairs);
    assert_eq!(ends[..4], [Ok(()), Ok(()), Ok(()), Ok(())]);
    assert!(ends[4].is_err());
    assert_eq!(std::fs::read(ground.path("far/y/b")).unwrap(), content(1, 2_000));
    assert_eq!(std::fs::read(ground.path("far/c")).unwrap(), content(2, 2_000));
}
