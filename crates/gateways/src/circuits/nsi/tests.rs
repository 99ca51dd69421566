//! Whole conversations, as they are on the wire: `conversations/` has them to the letter. And what comes in
//! no order.

use proptest::prelude::*;

use super::messages::Header;
use super::*;
use crate::circuits::remote::{Call, Dialogue, HttpAnswer, Step};
use longhaul_circuits::{Answer, CircuitRequest, Event, RequestKey};
use longhaul_model::Timestamp;

const KEY: RequestKey = RequestKey(0xaa2d_6f5e_2b1b_4d0c_8a57_3f8f_1c9d_7e02);
/// 2026-12-01T10:00:00Z
const NOW: Timestamp = Timestamp(1_796_119_200_000_000);
const ID: &str = "EX-4f2a9c11d0";

fn config() -> NsiConfig {
    NsiConfig {
        url: Some("https://nsa.example.net:9443/NSI/services/CS2".to_owned()),
        provider_nsa: Some("urn:ogf:network:example.net:2026:nsa".to_owned()),
        discovery: None,
        requester_nsa: "urn:ogf:network:placement.example:2026:nsa:requester".to_owned(),
        source_stp: "urn:ogf:network:example.net:2026:topology:alpha?vlan=1781-1785".to_owned(),
        target_stp: "urn:ogf:network:example.net:2026:topology:beta?vlan=1781-1785".to_owned(),
        listen: None,
        reply_to: None,
        hold: Duration::from_secs(60),
        access: Access::default(),
        ends: CircuitEndpoints { source: "192.0.2.7".to_owned(), target: "192.0.2.5".to_owned() },
    }
}

fn nsi(reply_to: Option<&str>) -> Nsi {
    let mut count = 0x5f0c_3a52_6c1e_4f0a_9d7e_0b6f_2a4c_1d11;
    let ids = move || {
        count += 1;
        count - 1
    };
    Nsi::new(config(), "ALPHA→BETA", reply_to.map(str::to_owned), Default::default(), Box::new(ids))
}

/// What the provider says, in the envelopes of the reference.
fn envelope(header: &Header, body: &str) -> String {
    format!(
        "<soap:Envelope xmlns:soap=\"http://schemas.xmlsoap.org/soap/envelope/\" \
         xmlns:h=\"http://schemas.ogf.org/nsi/2013/12/framework/headers\" \
         xmlns:c=\"http://schemas.ogf.org/nsi/2013/12/connection/types\" \
         xmlns:p2p=\"http://schemas.ogf.org/nsi/2013/12/services/point2point\"><soap:Header><h:nsiHeader>\
         <correlationId>{}</correlationId><requesterNSA>{}</requesterNSA>\
         <providerNSA>{}</providerNSA></h:nsiHeader>\
         </soap:Header><soap:Body>{body}</soap:Body></soap:Envelope>",
        header.correlation, header.requester, header.provider
    )
}

const CRITERIA: &str = "<criteria version=\"0\"><schedule><endTime>2026-12-01T16:00:00Z</endTime></schedule>\
    <children/><p2p:p2ps><capacity>10000</capacity></p2p:p2ps></criteria>";
const EXCEPTION: &str = "<nsaId>urn:ogf:network:example.net:2026:nsa</nsaId>\
    <connectionId>EX-4f2a9c11d0</connectionId>\
    <errorId>00705</errorId><text>capacity unavailable</text><variables/>";

fn states(reservation: &str, provision: &str, is_active: bool) -> String {
    format!(
        "<connectionStates><reservationState>{reservation}</reservationState>\
         <provisionState>{provision}</provisionState>\
         <lifecycleState>Created</lifecycleState><dataPlaneStatus><active>{is_active}</active>\
         <version>0</version><versionConsistent>true</versionConsistent></dataPlaneStatus></connectionStates>"
    )
}

fn summary(reservation: &str, provision: &str, is_active: bool) -> String {
    let states = states(reservation, provision, is_active);
    format!(
        "<c:querySummarySyncConfirmed><reservation><connectionId>{ID}</connectionId>{CRITERIA}{states}\
         </reservation></c:querySummarySyncConfirmed>"
    )
}

fn heard(status: u16, body: String) -> HttpAnswer {
    HttpAnswer { status, date: None, body }
}

/// The header of a call of ours, and its operation.
fn sent(call: &Call) -> (Header, String) {
    let root = xml::read(&call.body).unwrap();
    let header = root.child("Header").and_then(|header| header.child("nsiHeader")).unwrap();
    let text = |name: &str| header.text_of(name).unwrap().to_owned();
    let operation = root.child("Body").unwrap().children[0].name.clone();
    let (correlation, requester, provider) =
        (text("correlationId"), text("requesterNSA"), text("providerNSA"));
    (Header { correlation, requester, provider, reply_to: None }, operation)
}

/// How a conversation goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plot {
    /// Granted, and given back.
    Good,
    /// There is not so much: `reserveFailed`.
    Refused,
    /// Nothing at all is held: `reserveAbort`.
    Nothing,
    /// The request is answered by a fault.
    Fault,
}

/// A reservation from its request to its grant and its end, with a provider that does everything at once.
struct Conversation {
    nsi: Nsi,
    plot: Plot,
    is_called: bool,
    now: Timestamp,
    written: String,
    told: Vec<Event>,
    reservation: &'static str,
    provision: &'static str,
    is_active: bool,
    is_gone: bool,
}

impl Conversation {
    fn new(plot: Plot, is_called: bool) -> Conversation {
        Conversation {
            nsi: nsi(is_called.then_some("http://192.0.2.5:8085/nsi/requester")),
            plot,
            is_called,
            now: NOW,
            written: String::new(),
            told: Vec::new(),
            reservation: "",
            provision: "Released",
            is_active: false,
            is_gone: false,
        }
    }

    fn run(mut self) -> Conversation {
        let lifetime = Some(Duration::from_secs(6 * 3600));
        self.nsi.request(&CircuitRequest { key: KEY, mbit: 10_000, lifetime }, self.now);
        if self.plot == Plot::Good {
            self.until(|this| this.told.iter().any(|event| matches!(event, Event::Answer { .. })));
            self.nsi.tear_down(KEY, self.now);
        }
        self.until(|this| this.nsi.next_wake().is_none());
        self
    }

    fn until(&mut self, is_it: impl Fn(&Conversation) -> bool) {
        for _ in 0..100 {
            while let Some(step) = self.nsi.poll() {
                match step {
                    Step::Call(id, call) => self.answer(id, &call),
                    Step::Emit(event) => self.told.push(event),
                    Step::PersistNames(names) => self.write_names(&names),
                }
            }
            if is_it(self) {
                return;
            }
            self.now = self.nsi.next_wake().expect("something is due").max(self.now);
            self.nsi.tick(self.now);
        }
        panic!("it does not happen: {}", self.written);
    }

    fn write_names(&mut self, names: &crate::circuits::remote::Names) {
        let shown: Vec<String> = names.iter().map(|(key, id)| format!("{key} is {id}")).collect();
        self.written.push_str(&format!(
            "written down: {}\n\n",
            if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") }
        ));
    }

    fn answer(&mut self, id: u64, call: &Call) {
        let seconds = self.now.since(NOW).as_secs();
        let action =
            call.headers.iter().find(|(name, _)| *name == "soapaction").map(|(_, value)| value.as_str());
        let action = action.unwrap_or_default();
        self.written.push_str(&format!(
            "after {seconds} s: POST {}\nSOAPAction: {action}\n\n{}\n",
            call.url, call.body
        ));
        let (header, operation) = sent(call);
        let acknowledged = "<c:acknowledgment/>".to_owned();
        let named = |name: &str| format!("<c:{name}><connectionId>{ID}</connectionId></c:{name}>");
        let (body, callback) = match operation.as_str() {
            "reserve" if self.plot == Plot::Fault => (
                format!(
                    "<soap:Fault><faultcode>soap:Server</faultcode><faultstring>capacity \
                        unavailable</faultstring>\
                     <detail><c:serviceException>{EXCEPTION}</c:serviceException></detail></soap:Fault>"
                ),
                None,
            ),
            "reserve" if self.plot == Plot::Refused => {
                self.reservation = "ReserveFailed";
                let failed = format!(
                    "<c:reserveFailed><connectionId>{ID}</connectionId>{}<serviceException>{EXCEPTION}\
                     </serviceException></c:reserveFailed>",
                    states(self.reservation, "Released", false)
                );
                (named("reserveResponse"), Some(failed))
            }
            "reserve" => {
                self.reservation = "ReserveHeld";
                let confirmed = format!(
                    "<c:reserveConfirmed><connectionId>{ID}</connectionId>{CRITERIA}</c:reserveConfirmed>"
                );
                (named("reserveResponse"), Some(confirmed))
            }
            "reserveAbort" => {
                self.reservation = "ReserveStart";
                (acknowledged, Some(named("reserveAbortConfirmed")))
            }
            "reserveCommit" => {
                self.reservation = "ReserveStart";
                (acknowledged, Some(named("reserveCommitConfirmed")))
            }
            "provision" => {
                (self.provision, self.is_active) = ("Provisioned", true);
                (acknowledged, Some(named("provisionConfirmed")))
            }
            "terminate" => {
                self.is_gone = true;
                (acknowledged, Some(named("terminateConfirmed")))
            }
            _ if self.is_gone => ("<c:querySummarySyncConfirmed/>".to_owned(), None),
            _ => (summary(self.reservation, self.provision, self.is_active), None),
        };
        let given = |text: String| match self.plot {
            Plot::Nothing => text.replace("<capacity>10000<", "<capacity>0<"),
            _ => text,
        };
        let (body, callback) = (given(body), callback.map(given));
        let status = if body.starts_with("<soap:Fault>") { 500 } else { 200 };
        if self.plot != Plot::Good {
            self.written.push_str(&format!("answered {status} with {body}\n\n"));
        }
        self.nsi.heard(id, Ok(heard(status, envelope(&header, &body))), self.now);
        if let Some(callback) = callback.filter(|_| self.is_called) {
            let call = envelope(&header, &callback);
            let reply = messages::acknowledge(&call).expect("it is a call");
            self.written.push_str(&format!("called with {callback}, answered\n\n{reply}\n"));
            self.nsi.called(&call, self.now);
        }
    }
}

#[test]
fn conversations_are_as_written_down() {
    for (is_called, style) in [(true, "callbacks"), (false, "polling")] {
        for (plot, end) in [
            (Plot::Good, ""),
            (Plot::Refused, "-refused"),
            (Plot::Nothing, "-nothing"),
            (Plot::Fault, "-fault"),
        ] {
            let path =
                format!("{}/src/circuits/nsi/conversations/{style}{end}.txt", env!("CARGO_MANIFEST_DIR"));
            let expected = std::fs::read_to_string(&path).unwrap_or_default();
            let conversation = Conversation::new(plot, is_called).run();
            let (written, told) = (conversation.written.trim(), &conversation.told);
            assert_eq!(written, expected.trim(), "\n{path} >>>\n{written}\n<<<");
            assert!(conversation.nsi.names.is_empty(), "nothing is left of it");
            let Some(Event::Answer { key: KEY, answer }) = told.first() else { panic!("{told:?}") };
            match (plot, answer) {
                (Plot::Good, Answer::Granted(grant)) => {
                    assert_eq!(grant.expires, Some(NOW.plus(Duration::from_secs(6 * 3600))));
                    assert_eq!(told.last(), Some(&Event::TornDown(KEY)));
                }
                (Plot::Refused | Plot::Nothing | Plot::Fault, Answer::Refused { less: true, .. }) => {
                    assert_eq!(told.len(), 1, "{told:?}");
                }
                _ => panic!("{plot:?}: {told:?}"),
            }
        }
    }
}

#[test]
fn a_confirmation_before_its_acknowledgement_counts() {
    let mut nsi = nsi(Some("http://192.0.2.5:8085/"));
    nsi.request(&CircuitRequest { key: KEY, mbit: 10_000, lifetime: None }, NOW);
    let Some(Step::Call(id, call)) = nsi.poll() else { panic!("it reserves") };
    let (header, _) = sent(&call);
    let confirmed =
        format!("<c:reserveConfirmed><connectionId>{ID}</connectionId>{CRITERIA}</c:reserveConfirmed>");
    // Nobody who does not know the correlation id confirms anything.
    let forged =
        Header { correlation: "urn:uuid:00000000-0000-4000-8000-000000000000".to_owned(), ..header.clone() };
    nsi.called(&envelope(&forged, &confirmed), NOW);
    assert!(nsi.names.is_empty());
    nsi.called(&envelope(&header, &confirmed), NOW);
    assert_eq!(nsi.names.get(&KEY).map(String::as_str), Some(ID));
    nsi.heard(id, Err(Fault::new(FaultCode::ConnectionLost, "the acknowledgement is lost")), NOW);
    let next = std::iter::from_fn(|| nsi.poll()).find_map(|step| match step {
        Step::Call(_, call) => Some(sent(&call).1),
        _ => None,
    });
    // A forged call made us look at the list; the commit is made all the same.
    assert!(next.is_some());
    let mut operations = next.into_iter().collect::<Vec<_>>();
    nsi.tick(NOW);
    operations.extend(std::iter::from_fn(|| nsi.poll()).filter_map(|step| match step {
        Step::Call(_, call) => Some(sent(&call).1),
        _ => None,
    }));
    assert!(operations.iter().any(|operation| operation == "reserveCommit"), "{operations:?}");
}

/// The query that is under way, if there is one.
fn query_under_way(nsi: &mut Nsi) -> Option<(u64, Call)> {
    std::iter::from_fn(|| nsi.poll()).find_map(|step| match step {
        Step::Call(id, call) if sent(&call).1 == "querySummarySync" => Some((id, call)),
        _ => None,
    })
}

/// The answer of a query tells of the time when it was made: an event that overtakes it is asked about again,
/// and what has failed is not forgotten for what follows from it.
#[test]
fn an_event_that_overtakes_a_querys_answer_is_asked_about_again() {
    let mut talk = Conversation::new(Plot::Good, true);
    talk.nsi.request(&CircuitRequest { key: KEY, mbit: 10_000, lifetime: None }, NOW);
    talk.until(|this| this.told.iter().any(|event| matches!(event, Event::Answer { .. })));
    let nsi = &mut talk.nsi;
    let event = |nsi: &mut Nsi, name: &str, body: &str| {
        let text = format!("<c:{name}><connectionId>{ID}</connectionId>{body}</c:{name}>");
        let header = Header { correlation: "urn:uuid:of-the-provider".to_owned(), ..Header::default() };
        nsi.called(&envelope(&header, &text), talk.now);
    };
    event(nsi, "dataPlaneStateChange", "");
    let (first, call) = query_under_way(nsi).expect("it is asked about");
    event(nsi, "errorEvent", "<event>dataplaneError</event>");
    event(nsi, "dataPlaneStateChange", "");
    let answer = |call: &Call, is_active| {
        heard(200, envelope(&sent(call).0, &summary("ReserveStart", "Provisioned", is_active)))
    };
    nsi.heard(first, Ok(answer(&call, true)), talk.now);
    let (second, call) = query_under_way(nsi).expect("what came meanwhile is asked about");
    nsi.heard(second, Ok(answer(&call, false)), talk.now);
    let told = std::iter::from_fn(|| nsi.poll()).find_map(|step| match step {
        Step::Emit(event) => Some(event),
        _ => None,
    });
    let detail = "dataplaneError".to_owned();
    assert_eq!(told, Some(Event::Answer { key: KEY, answer: Answer::Lost { detail } }));
    assert_eq!(nsi.next_wake(), None);
}

proptest! {
    /// Whatever is answered and called, in whatever order: it goes on, and a circuit that was given back
    /// never comes up.
    #[test]
    fn nothing_that_is_said_breaks_it(choices in prop::collection::vec((0_u8..12, 0_u64..400), 1..120)) {
        let mut nsi = nsi(Some("http://192.0.2.5:8085/"));
        let mut open: Vec<(u64, Call)> = Vec::new();
        let mut last = Header::default();
        let (mut now, mut torn_down) = (NOW, false);
        nsi.request(&CircuitRequest { key: KEY, mbit: 10_000, lifetime: None }, now);
        for (choice, seconds) in choices {
            let body = match choice {
                0 => format!("<c:reserveResponse><connectionId>{ID}</connectionId></c:reserveResponse>"),
                1 => "<c:acknowledgment/>".to_owned(),
                2 => summary("ReserveHeld", "Released", false),
                3 => summary("ReserveStart", "Provisioned", true),
                4 => summary("ReserveStart", "Released", false),
                5 => "<c:querySummarySyncConfirmed/>".to_owned(),
                6 => format!(
                    "<c:reserveConfirmed><connectionId>{ID}</connectionId>{CRITERIA}</c:reserveConfirmed>"
                ),
                7 => format!(
                    "<c:terminateConfirmed><connectionId>{ID}</connectionId></c:terminateConfirmed>"
                ),
                8 => "<soap:Fault><faultstring>no</faultstring></soap:Fault>".to_owned(),
                _ => String::new(),
            };
            match (choice, open.pop()) {
                (10, one) => {
                    nsi.tear_down(KEY, now);
                    torn_down = true;
                    open.extend(one);
                }
                (11, one) => {
                    now = now.plus(Duration::from_secs(seconds));
                    nsi.tick(now);
                    open.extend(one);
                }
                (6 | 7, one) => {
                    nsi.called(&envelope(&last, &body), now);
                    open.extend(one);
                }
                (9, Some((id, _))) => nsi.heard(id, Err(Fault::new(FaultCode::Stalled, "")), now),
                (8, Some((id, call))) => nsi.heard(id, Ok(heard(500, envelope(&sent(&call).0, &body))), now),
                (_, Some((id, call))) => nsi.heard(id, Ok(heard(200, envelope(&sent(&call).0, &body))), now),
                (_, None) => {}
            }
            while let Some(step) = nsi.poll() {
                match step {
                    Step::Call(id, call) => {
                        last = sent(&call).0;
                        open.push((id, call));
                    }
                    Step::Emit(Event::Answer { answer: Answer::Granted(_), .. }) => prop_assert!(!torn_down),
                    _ => {}
                }
            }
            prop_assert!(open.len() < 20, "calls do not pile up");
            prop_assert!(nsi.next_wake().is_none_or(|at| at >= NOW || open.is_empty()));
        }
    }
}
