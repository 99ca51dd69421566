//! Jobs of the service, whose copies the storages do between themselves.

use serde_json::{Value, json};

use crate::third_party::cases::{
    Case, Direction, Ends, FILE_BYTES, TRIES_MAX, WITHIN, all, at_once, cancelled,
};
use crate::third_party::world::{CREDENTIALS, World, adler32, below, content, may_run};

/// A job of a case, which stands still at the gate before its passive side.
struct Running {
    case: Case,
    job: String,
    ends: Ends,
}

fn start(case: Case, world: &World, bytes: &[u8], number: usize) -> Running {
    // Which of them may do what is set by scheme: see `copies_only_as_told`.
    let scheme = match case.direction {
        Direction::Pull => "https",
        Direction::Push => "davs",
    };
    let ends = case.ends(world, bytes, &format!("job{number}"), scheme);
    let job = world.submit(case.by, &ends.source, &ends.target, &format!("ADLER32:{}", adler32(bytes)));
    Running { case, job, ends }
}

impl Running {
    /// What its file says in the midst of it: bytes by markers, and no way but the one that was told.
    fn until_in_its_midst(&self, world: &World) -> Result<u64, Value> {
        let found = world.deployment.until(&format!("{} is on its way", self.case), WITHIN, || {
            let file = world.file(&self.job);
            let bytes = file["bytes_done"].as_u64().unwrap();
            let ended = file["state"] == "FAILED" || file["state"] == "FINISHED";
            (ended || bytes > 0).then_some((bytes, file))
        });
        match found {
            (bytes, file) if file["state"] == "ACTIVE" && bytes < FILE_BYTES => Ok(bytes),
            (_, file) => Err(file),
        }
    }

    fn until_ended(&self, world: &World) -> Value {
        world.deployment.until(&format!("{} ends", self.case), WITHIN, || {
            let file = world.file(&self.job);
            let ended = ["FINISHED", "FAILED", "CANCELED"].iter().any(|state| file["state"] == *state);
            ended.then_some(file)
        })
    }

    /// Which marker was seen, and that all of it is there.
    fn completes(&self, world: &World, bytes: &[u8]) -> Result<u64, Value> {
        let seen = self.until_in_its_midst(world)?;
        self.ends.gate.open();
        let file = self.until_ended(world);
        if file["state"] != "FINISHED" {
            return Err(file);
        }
        assert_eq!(file["mode"], json!(self.case.direction.word()), "{}: {file}", self.case);
        assert_eq!(file["bytes_done"], json!(FILE_BYTES), "{}: {file}", self.case);
        self.ends.is_whole(bytes);
        Ok(seen)
    }

    fn leaves_nothing(&self, world: &World) -> Result<u64, Value> {
        let seen = self.until_in_its_midst(world)?;
        let ended = world.deployment.api().send("DELETE", &format!("/jobs/{}", self.job), &[], &[]);
        if ended.unwrap().expect(200).json()["job_state"] != "CANCELED" {
            // It had ended before.
            return Err(world.file(&self.job));
        }
        assert!(self.ends.gate.was_given_up(WITHIN), "{}: the active side ends its transfer", self.case);
        world.deployment.until(&format!("{} leaves nothing", self.case), WITHIN, || {
            below(&self.ends.folder).is_empty().then_some(())
        });
        let file = world.file(&self.job);
        assert_eq!(file["state"], "CANCELED", "{}: {file}", self.case);
        Ok(seen)
    }
}

/// The storages by `https` pull and no more, those by `davs` push; nothing goes through the service.
fn copies_only_as_told(world: &World) {
    world.configure("/config/se", &json!({ "https://localhost": { "se_info": { "tpc_support": "PULL" } } }));
    world.configure("/config/se", &json!({ "davs://localhost": { "se_info": { "tpc_support": "PUSH" } } }));
    world.configure("/config/global", &json!({ "vo_name": "*", "no_streaming": true }));
}

/// These cases at once, and again those where XRootD was the one to fail.
fn run(cases: Vec<Case>, bytes: &[u8], check: impl Fn(&Running, &World) -> Result<u64, Value> + Sync) {
    let mut world = World::new();
    copies_only_as_told(&world);
    world.delegate();
    let wanted = cases.len();
    let mut left = cases;
    let mut table = Vec::new();
    for number in 0..TRIES_MAX {
        let tried = at_once(std::mem::take(&mut left), |case| {
            (case, check(&start(case, &world, bytes, number), &world))
        });
        for (case, result) in tried {
            match result {
                Ok(seen) => table.push(format!("{case:<34} {seen:>10} bytes seen on its way")),
                Err(file) => {
                    println!("{case} failed: {file}\n{}", world.logs(case.by));
                    let may_pass = file["fault"]["passing"] == json!(true);
                    assert!(case.uses_xrootd() && may_pass, "{case}: {file}");
                    left.push(case);
                }
            }
        }
        if left.is_empty() {
            break;
        }
        CREDENTIALS.iter().for_each(|by| world.start_again(*by));
    }
    println!("{}", table.join("\n"));
    assert!(left.is_empty(), "{TRIES_MAX} times: {left:?}");
    assert_eq!(table.len(), wanted);
    world
        .deployment
        .until("the doors have nothing on its way", WITHIN, || world.temporary().is_empty().then_some(()));
    world.deployment.assert_alive();
}

#[test]
fn jobs_are_copied_by_the_storages_themselves() {
    if may_run("jobs copied by the storages", &[]) {
        let bytes = content(1, FILE_BYTES);
        run(all(), &bytes, |one, world| one.completes(world, &bytes));
    }
}

#[test]
fn jobs_that_are_cancelled_end_at_the_storages() {
    if may_run("jobs cancelled at the storages", &[]) {
        let bytes = content(2, FILE_BYTES);
        run(cancelled(all()), &bytes, |one, world| one.leaves_nothing(world));
    }
}
