//! A provider of ours and, where it is somewhere else, the simulated one behind it. Time is the test's: it
//! passes on both sides when nothing else happens.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use longhaul_circuits::{Answer, CircuitRequest, Event, Grant, ProviderReservation, RequestKey};
use longhaul_gateways::circuits::{CircuitConfig, Provider, Wake, open};
use longhaul_model::{Fault, Timestamp};
use serde_json::{Value, json};

/// Something that takes longer hangs.
const WITHIN: Duration = Duration::from_secs(120);
/// What is under way has this long to come, before time passes.
const MOMENT: Duration = Duration::from_millis(15);
pub const LINK: &str = "alpha→beta";

/// The simulated provider. Ends with us, for its standard input does.
pub struct Simulator {
    child: Child,
    arguments: Vec<String>,
    pub service: SocketAddr,
    control: SocketAddr,
}

impl Simulator {
    pub fn start(arguments: &[&str]) -> Simulator {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let (child, service, control) = Simulator::spawn(&arguments);
        Simulator { child, arguments, service, control }
    }

    fn spawn(arguments: &[String]) -> (Child, SocketAddr, SocketAddr) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_longhaul-provider"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
        let address =
            |name: &str| told[name].as_str().and_then(|text| text.parse().ok()).expect("an address");
        (child, address("service"), address("control"))
    }

    /// Killed, and started again at the same place.
    pub fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut arguments = self.arguments.clone();
        arguments.extend(["--listen".to_owned(), self.service.to_string()]);
        let (child, service, control) = Simulator::spawn(&arguments);
        (self.child, self.service, self.control) = (child, service, control);
    }

    fn request(&self, method: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.control).expect("the control answers");
        let head = format!("{method} /control HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        assert!(head.contains(" 200 "), "{answer}");
        body.to_owned()
    }

    pub fn order(&self, order: Value) {
        self.request("POST", &order.to_string());
    }

    pub fn state(&self) -> Value {
        serde_json::from_str(&self.request("GET", "")).unwrap()
    }

    /// How often it was asked for this.
    pub fn count(&self, what: &str) -> usize {
        let state = self.state();
        state["seen"].as_array().unwrap().iter().filter(|seen| seen["what"] == what).count()
    }

    /// The same, whatever the protocol.
    pub fn count_of(&self, operation: &str) -> usize {
        let state = self.state();
        let named = |seen: &&Value| {
            seen["what"].as_str().and_then(|what| what.split(' ').next_back()) == Some(operation)
        };
        state["seen"].as_array().unwrap().iter().filter(named).count()
    }

    /// Owners of reservations.
    pub fn booked(&self) -> Vec<String> {
        let state = self.state();
        state["booked"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Bench {
    pub provider: Box<dyn Provider>,
    /// Others may ask it as well.
    pub simulator: Option<Rc<Simulator>>,
    pub config: CircuitConfig,
    link: String,
    woken: Receiver<()>,
    wake: Sender<()>,
    began: (Instant, Timestamp),
    jumped: Duration,
    /// What was told and not yet looked at.
    news: Vec<Event>,
    keys: u128,
    place: tempfile::TempDir,
}

impl Bench {
    pub fn new(config: &str, simulator: Option<Simulator>) -> Bench {
        Bench::with_link(LINK, 1, config, simulator.map(Rc::new))
    }

    /// The owner of another link, who asks the same provider and knows nothing of the first one.
    pub fn beside(other: &Bench, config: &str) -> Bench {
        let mut this = Bench::with_link("gamma→beta", 1 << 32, config, other.simulator.clone());
        this.jumped = other.now().since(this.now());
        this
    }

    fn with_link(link: &str, keys: u128, config: &str, simulator: Option<Rc<Simulator>>) -> Bench {
        let config = CircuitConfig::parse(config, "circuit.toml").unwrap();
        let place = tempfile::tempdir().unwrap();
        let (wake, woken) = channel();
        let provider = opened(&config, link, place.path().join("circuit.json"), &wake).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let began = (Instant::now(), Timestamp(now.as_micros() as i64));
        let (jumped, news, link) = (Duration::ZERO, Vec::new(), link.to_owned());
        Bench { provider, simulator, config, link, woken, wake, began, jumped, news, keys, place }
    }

    pub fn now(&self) -> Timestamp {
        self.began.1.plus(self.began.0.elapsed()).plus(self.jumped)
    }

    pub fn simulator(&self) -> &Simulator {
        self.simulator.as_ref().expect("this provider is somewhere else")
    }

    /// The provider is killed, and started again at the same place.
    pub fn restart_provider(&mut self) {
        let simulator = self.simulator.as_mut().and_then(Rc::get_mut);
        simulator.expect("nobody else asks it").restart();
    }

    /// As if we had been killed: nothing is known but what was written down.
    pub fn restart(&mut self) {
        self.news.clear();
        // The old one first: its port is wanted again.
        self.provider = Box::new(Nobody);
        let book = self.place.path().join("circuit.json");
        self.provider = opened(&self.config, &self.link, book, &self.wake).unwrap();
    }

    /// Time passes on both sides.
    pub fn pass(&mut self, time: Duration) {
        self.jumped += time;
        if let Some(simulator) = &self.simulator {
            simulator.order(json!({ "advance_s": time.as_secs_f64() }));
        }
    }

    pub fn request(&mut self, mbit: u64) -> RequestKey {
        self.keys += 1;
        // As it is in life, unlike that of any other run.
        let key = RequestKey(0x1234_5678_9abc_8def_8123_0000_0000_0000 + self.keys);
        let lifetime = self.config.settings.lifetime;
        self.provider.request(&CircuitRequest { key, mbit, lifetime }, self.now());
        key
    }

    /// The first news that fit; time passes until there are some.
    #[track_caller]
    pub fn until<T>(&mut self, what: &str, fits: impl Fn(&Event) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            let now = self.now();
            self.news.extend(self.provider.news(now));
            if let Some((at, found)) =
                self.news.iter().enumerate().find_map(|(at, event)| Some((at, fits(event)?)))
            {
                self.news.remove(at);
                return found;
            }
            assert!(begun.elapsed() < WITHIN, "{what} does not happen; instead {:?}", self.news);
            self.step();
        }
    }

    /// What has come is taken in.
    pub fn poll_news(&mut self) {
        let news = self.provider.news(self.now());
        self.news.extend(news);
    }

    /// Something comes, or time passes until something is due.
    pub fn step(&mut self) {
        if self.woken.recv_timeout(MOMENT).is_err()
            && let Some(due) = self.provider.next_news()
        {
            self.pass(due.since(self.now()));
        }
    }

    /// So much time passes, and whatever comes of it.
    pub fn live(&mut self, time: Duration) {
        let until = self.now().plus(time);
        while self.now() < until {
            let news = self.provider.news(self.now());
            self.news.extend(news);
            if self.woken.recv_timeout(MOMENT).is_err() {
                let left = until.since(self.now());
                let due = self.provider.next_news().map_or(left, |due| due.since(self.now()));
                self.pass(due.min(left));
            }
        }
    }

    #[track_caller]
    pub fn answer(&mut self, key: RequestKey) -> Answer {
        self.until("an answer", |event| match event {
            Event::Answer { key: of, answer } if *of == key => Some(answer.clone()),
            _ => None,
        })
    }

    #[track_caller]
    pub fn granted(&mut self, key: RequestKey) -> Grant {
        match self.answer(key) {
            Answer::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    /// Whether less may do, and why.
    #[track_caller]
    pub fn refused(&mut self, key: RequestKey) -> (bool, String) {
        match self.answer(key) {
            Answer::Refused { less, detail } => (less, detail),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn lost(&mut self, key: RequestKey) -> String {
        match self.answer(key) {
            Answer::Lost { detail } => detail,
            other => panic!("{other:?}"),
        }
    }

    /// Given back: it is said to be gone, and the provider has nothing booked.
    #[track_caller]
    pub fn tear_down(&mut self, key: RequestKey) {
        let now = self.now();
        self.provider.tear_down(key, now);
        self.until("its end", |event| (*event == Event::TornDown(key)).then_some(()));
    }

    /// What is held now: an older list may still be under way.
    #[track_caller]
    pub fn list(&mut self) -> Vec<ProviderReservation> {
        let begun = self.now();
        loop {
            self.provider.list(self.now());
            let (asked, held) = self.until("a list", |event| match event {
                Event::Listed { asked, held } => Some((*asked, held.clone())),
                _ => None,
            });
            if asked >= begun {
                return held;
            }
        }
    }

    /// Whatever is still under way ends, and then nothing is booked.
    #[track_caller]
    pub fn assert_nothing_is_left(&mut self) {
        if self.simulator.is_none() {
            return;
        }
        self.go_on_until("the end of all reservations", |simulator| simulator.booked().is_empty());
    }

    /// Goes on until the simulated provider's state fits: a call under way is seen neither in what is due nor
    /// in what has come, so that a stretch of [`Bench::live`] may be over before it has arrived.
    #[track_caller]
    pub fn go_on_until(&mut self, what: &str, fits: impl Fn(&Simulator) -> bool) {
        let begun = Instant::now();
        while !fits(self.simulator()) {
            self.poll_news();
            assert!(begun.elapsed() < WITHIN, "{what} does not happen: {}", self.simulator().state());
            self.step();
        }
    }

    /// News of one kind that have come so far.
    pub fn has_news(&self, fits: impl Fn(&Event) -> bool) -> bool {
        self.news.iter().any(fits)
    }
}

fn opened(
    config: &CircuitConfig,
    link: &str,
    book: PathBuf,
    wake: &Sender<()>,
) -> Result<Box<dyn Provider>, Fault> {
    let wake = wake.clone();
    let wake: Wake = Arc::new(move || {
        let _ = wake.send(());
    });
    open(config, link, &book, wake)
}

/// Stands where a provider was.
struct Nobody;

impl Provider for Nobody {
    fn request(&mut self, _wish: &CircuitRequest, _now: Timestamp) {}
    fn tear_down(&mut self, _key: RequestKey, _now: Timestamp) {}
    fn list(&mut self, _now: Timestamp) {}
    fn news(&mut self, _now: Timestamp) -> Vec<Event> {
        Vec::new()
    }
    fn next_news(&self) -> Option<Timestamp> {
        None
    }
}
