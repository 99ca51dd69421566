//! A site's own mover on a circuit: its source has another name there, and the circuit stays until the
//! command has ended.

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use longhaul_api::circuits::{CircuitOrder, CircuitState, CircuitWish};
use longhaul_model::{CircuitOrderId, CircuitUse};
use longhaul_testkit::until_met;

use super::lease;
use super::one_agent::{Running, TestSite};

/// Logs what it fetches from where, and waits for the test with one file.
const MOVER: &str = r##"
folder=$1; copyjob=$2; report=$3
while read -r source target; do
    name=$(basename "$source")
    echo "$source from ${LONGHAUL_CIRCUIT_ADDRESS:-anywhere}" >> "$folder/said"
    case $name in
    f3) read -r _ < "$folder/go" ;;
    esac
    printf 0123456 > "$target"
    echo "$source $target 0" >> "$report"
done < "$copyjob"
"##;

const SETTINGS: &str = "files = 10\n[[sources]]\nstorage = 'alpha'\nurl = \
    'fdt://me@dtn.example:8444/data'\non_circuit = '2001:db8::7'\n";

struct World {
    site: TestSite,
    folder: tempfile::TempDir,
    /// The circuit's other end, which answers.
    _end: TcpListener,
}

impl World {
    fn new() -> World {
        let (mut site, folder) = (TestSite::new(), tempfile::tempdir().unwrap());
        let here = folder.path().to_str().unwrap();
        let end = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, file) = (end.local_addr().unwrap(), folder.path().join("circuit.toml"));
        let circuit =
            format!("provider = 'static'\nsource = '{address}'\ntarget = '127.0.0.1'\nmbit = 100\n");
        fs::write(&file, circuit).unwrap();
        let link = format!("from = 'alpha'\nfile = {file:?}\n");
        site.config.circuits = vec![toml::from_str(&link).unwrap()];
        let command = ["/bin/sh", "-c", MOVER, "mover", here];
        let mover = toml::from_str(&format!("command = {command:?}\n{SETTINGS}")).unwrap();
        site.config.storages[0].mover = Some(mover);
        site.config.check().unwrap();
        World { site, folder, _end: end }
    }

    fn lease(&self, attempt: u64, circuits: CircuitUse) {
        let leases = vec![lease(attempt, &format!("f{attempt}"), b"0123456")];
        let batch = self.site.deployment.batch(vec!["127.0.0.1:9".into()], leases);
        self.site.service.lease(vec![longhaul_api::agent::LeaseBatch { circuits, ..batch }]);
    }

    fn said(&self) -> Vec<String> {
        let said = fs::read_to_string(self.folder.path().join("said")).unwrap_or_default();
        said.lines().map(str::to_owned).collect()
    }

    async fn until_said(&self, lines: usize) {
        until_met("the command", || self.said().len() >= lines).await;
    }

    fn set_order(&self, wanted: bool) {
        let what = CircuitWish::Request {
            mbit: 100,
            until: self.site.deployment.clock.now().plus(Duration::from_secs(86_400)),
            replaces: None,
        };
        let order =
            CircuitOrder { id: CircuitOrderId(1), source: "alpha".parse().unwrap(), by: "ada".into(), what };
        self.site.service.change(|state| state.orders = wanted.then_some(order).into_iter().collect());
    }

    async fn until_state(&self, wanted: CircuitState) {
        self.site.service.wait_until(|state| (state.circuits.first()?.state == wanted).then_some(())).await;
    }
}

async fn until_paths(agent: &Running, are_set: bool) {
    agent
        .engine
        .wait_until(|asked| asked.paths.last().is_some_and(|(_, paths)| paths.is_empty() != are_set))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_uses_the_circuit_that_is_up_when_it_begins() {
    let world = World::new();
    let agent = world.site.start();
    let plain = |file: u64| format!("fdt://me@dtn.example:8444/data/f{file} from anywhere");
    let by_circuit = |file: u64| format!("fdt://me@[2001:db8::7]:8444/data/f{file} from 127.0.0.1");
    world.lease(1, CircuitUse::Prefer);
    world.site.service.wait_for_outcomes(1).await;
    world.set_order(true);
    until_paths(&agent, true).await;
    // A lease that never uses circuits stays on the plain path.
    for (attempt, circuits) in [(2, CircuitUse::Prefer), (4, CircuitUse::Never), (5, CircuitUse::Only)] {
        let lines = world.said().len() + 1;
        world.lease(attempt, circuits);
        world.until_said(lines).await;
    }
    let outcomes = world.site.service.wait_for_outcomes(4).await;
    assert!(outcomes.iter().all(|outcome| outcome.fault.is_none()), "{outcomes:?}");
    // It is not given back under a command.
    let go = world.folder.path().join("go");
    rustix::fs::mknodat(rustix::fs::CWD, &go, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    world.lease(3, CircuitUse::Prefer);
    world.until_said(5).await;
    world.set_order(false);
    until_paths(&agent, false).await;
    world.until_state(CircuitState::Draining).await;
    fs::write(&go, "go\n").unwrap();
    world.site.service.wait_for_outcomes(5).await;
    world.until_state(CircuitState::Off).await;
    let carried = world.site.service.change(|state| state.circuits[0].ended[0].carried_bytes);
    assert_eq!(carried, 3 * 7, "what it brought is counted for the circuit");
    world.lease(6, CircuitUse::Prefer);
    world.site.service.wait_for_outcomes(6).await;
    assert_eq!(world.said(), [plain(1), by_circuit(2), plain(4), by_circuit(5), by_circuit(3), plain(6)]);
    agent.end().await;
}
