//! What providers of circuits answer and call, and the books of a link's circuits: whatever it is, a circuit
//! that was given back never comes up, and what is told to people is bounded.

use std::sync::OnceLock;
use std::time::Duration;

use longhaul_gateways::circuits::CircuitConfig;
use longhaul_gateways::circuits::rehearsal::{
    Answer, Event, Lifecycle, Rehearsal, RequestKey, ReservationLedger, Settings,
};
use longhaul_model::Timestamp;

const COMMON: &str = "source = '10.1.0.1'\ntarget = '10.1.0.2'\nmbit = 1000\n";
const NSI: &str = "provider = 'nsi'\nurl = 'https://p.example/cs'\nprovider_nsa = 'urn:p'\nrequester_nsa = \
    'urn:r'\n\
    source_stp = 'urn:a?vlan=1'\ntarget_stp = 'urn:b?vlan=1'\nlisten = '127.0.0.1:0'\n";
const FOUND: &str = "provider = 'nsi'\ndiscovery = 'https://p.example/d.xml'\nrequester_nsa = 'urn:r'\n\
    source_stp = 'urn:a?vlan=1'\ntarget_stp = 'urn:b?vlan=1'\n";
const OSCARS: &str = "provider = 'oscars'\nurl = 'https://o.example'\nsource_port = 'a:1'\ntarget_port = \
    'b:1'\n\
    vlans = '7-9'\nusername = 'u'\npassword_file = '/nowhere'\n";
const SENSE: &str = "provider = 'sense'\nurl = 'https://s.example/StackV-web/restapi'\nclient_id = 'c'\n\
    client_secret_file = '/nowhere'\nusername = 'u'\npassword_file = '/nowhere'\nsource_uri = \
    'urn:a'\ntarget_uri = 'urn:b'\n";
const KEY: RequestKey = RequestKey(0xaa2d_6f5e_2b1b_4d0c_8a57_3f8f_1c9d_7e02);
/// The longest text for people, in bytes; an answer of a provider may be longer.
const DETAIL_MAX: usize = 4_096;
const CALLS_MAX: usize = 64;

/// The first byte says who speaks: NSI, NSI with a discovery, OSCARS, SENSE; or that it is a ledger. What
/// follows are answers with a zero after each, of which the first byte says what becomes of it.
pub fn circuit_answers(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let which = usize::from(which % 5);
    if which == 4 {
        return ledger(bytes);
    }
    let Some(config) = configs().get(which) else { return };
    let Some(mut rehearsal) = Rehearsal::new(&config.provider, "ALPHA→BETA") else { return };
    rehearsal.request(KEY, 400);
    let mut said = RequestOutcome::default();
    for piece in bytes.split(|byte| *byte == 0) {
        let Some((what, body)) = piece.split_first() else { continue };
        let body = String::from_utf8_lossy(body);
        match what % 16 {
            0 => said.tear_down(&mut rehearsal),
            1 => rehearsal.list(),
            2 | 3 => {
                rehearsal.call(&body);
            }
            4 => rehearsal.pass(Duration::from_secs(15)),
            5 => {
                rehearsal.answer(None, "");
            }
            other => {
                rehearsal.answer(
                    Some([200, 200, 200, 200, 201, 401, 403, 404, 409, 500][usize::from(other) - 6]),
                    &body,
                );
            }
        }
        said.hear(&mut rehearsal);
    }
    // Whatever was said before: what is not there is given up.
    said.tear_down(&mut rehearsal);
    for _ in 0..CALLS_MAX {
        rehearsal.answer(Some(404), "");
        rehearsal.pass(Duration::from_secs(15));
        said.hear(&mut rehearsal);
    }
}

fn configs() -> &'static [CircuitConfig] {
    static CONFIGS: OnceLock<Vec<CircuitConfig>> = OnceLock::new();
    let read = |own: &&str| {
        CircuitConfig::parse(&format!("{own}{COMMON}"), "circuit.toml").expect("it is one of ours")
    };
    CONFIGS.get_or_init(|| [NSI, FOUND, OSCARS, SENSE].iter().map(read).collect())
}

/// What became of the request.
#[derive(Default)]
struct RequestOutcome {
    is_torn_down: bool,
    answers: u32,
    granted: u32,
    lists: u32,
}

impl RequestOutcome {
    fn tear_down(&mut self, rehearsal: &mut Rehearsal) {
        if !std::mem::replace(&mut self.is_torn_down, true) {
            rehearsal.tear_down(KEY);
        }
    }

    fn hear(&mut self, rehearsal: &mut Rehearsal) {
        assert!(rehearsal.under_way() < CALLS_MAX, "calls pile up");
        assert!(rehearsal.names().all(|(_, name)| !name.is_empty() && name.len() <= 512));
        for event in rehearsal.news() {
            match event {
                Event::Answer { key, answer } => {
                    assert_eq!(key, KEY);
                    self.answer(answer);
                }
                Event::Listed { .. } => self.lists += 1,
                Event::TornDown(key) => assert!(key == KEY && self.is_torn_down, "nobody gave it back"),
                other => panic!("{other:?} is nothing that a provider says"),
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.answers += 1;
        match answer {
            Answer::Granted(grant) => {
                assert!(!self.is_torn_down, "granted after it was given back");
                assert!(grant.mbit > 0 && grant.ends.source == "10.1.0.1");
                self.granted += 1;
                assert_eq!(self.granted, 1, "granted twice");
            }
            Answer::Refused { detail, .. } => {
                assert_eq!(self.granted, 0, "refused after it was granted");
                assert!(detail.len() <= DETAIL_MAX, "{} bytes are told", detail.len());
            }
            Answer::Lost { detail } => {
                assert!(detail.len() <= DETAIL_MAX, "{} bytes are told", detail.len());
            }
        }
        assert!(self.answers <= 3, "it is answered again and again");
    }
}

/// A valid ledger round-trips through serde, and a lifecycle restored from it holds no reservation that it
/// does not list.
fn ledger(bytes: &[u8]) {
    let Ok(ledger) = serde_json::from_slice::<ReservationLedger>(bytes) else { return };
    let written = serde_json::to_vec(&ledger).expect("a ledger can be serialised");
    assert_eq!(serde_json::from_slice::<ReservationLedger>(&written).ok(), Some(ledger.clone()));
    let now = Timestamp(1_790_000_000_000_000);
    let mut machine = Lifecycle::restore("ALPHA→BETA", Settings::default(), 1, ledger.clone(), now);
    machine.handle(Event::Tick, now);
    let known = |key: RequestKey| ledger.reservations.iter().any(|one| one.key == key);
    assert!(machine.ledger().reservations.iter().all(|one| known(one.key)));
}
