//! A broker that is away for an hour, in a time of the test's own: nobody waits for it really.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicUsize};

use longhaul_api::fts::Message;
use longhaul_gateways::brokers::stomp::{Decoder, Frame};
use longhaul_model::Timestamp;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::*;

const HOUR_S: i64 = 3_600;
const JOBS: usize = 25;
/// Spool of the tests, which some of them fill.
const SPOOL_BYTES_MAX: u64 = 4 << 20;

/// What the test and its parts share.
struct World {
    /// Microseconds.
    now: AtomicI64,
    spool: Arc<Spool>,
    /// Messages that were spooled.
    told: AtomicUsize,
    dialled: AtomicUsize,
    /// By the broker, in the order of their coming: its receipt's number and the body.
    taken: Mutex<Vec<(u64, String)>>,
    came: Notify,
}

impl World {
    fn new(directory: &Path) -> Arc<World> {
        let bounds = (SPOOL_BYTES_MAX, Duration::from_secs(24 * 3_600));
        let start = Timestamp::from_seconds(1_800_000_000);
        Arc::new(World {
            now: AtomicI64::new(start.0),
            spool: Arc::new(Spool::open(directory, bounds, &["stomp"], start).unwrap()),
            told: AtomicUsize::new(0),
            dialled: AtomicUsize::new(0),
            taken: Mutex::default(),
            came: Notify::new(),
        })
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn seconds(&self) -> i64 {
        self.now().as_micros() / 1_000_000 - 1_800_000_000
    }

    /// The next change of each job, in turn; two thirds of a kilobyte each, as FTS's are.
    fn happens(&self, changes: usize) {
        let one = |_| {
            let number = self.told.fetch_add(1, Ordering::SeqCst);
            let (job, step) = (number % JOBS, number / JOBS);
            let body = format!("{job} {step} {}", "x".repeat(650));
            Message { kind: MessageKind::State, vo: Some("atlas".into()), body }
        };
        self.spool.append((0..changes).map(one).collect(), self.now()).unwrap();
        assert!(self.spool.bytes() <= SPOOL_BYTES_MAX);
    }

    /// Lets a wait pass: within it jobs go on, one change a second.
    fn passes(&self, wait: Duration) {
        let before = self.seconds();
        self.now.fetch_add(wait.as_micros() as i64, Ordering::SeqCst);
        self.happens((self.seconds() - before) as usize);
    }

    /// Is away from the second minute for an hour: takes connections and closes them. `confirms` of the first
    /// it takes.
    async fn broker(self: Arc<World>, listener: TcpListener, mut confirms: usize) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            self.dialled.fetch_add(1, Ordering::SeqCst);
            if (60..60 + HOUR_S).contains(&self.seconds()) {
                continue;
            }
            let _ = self.serve(stream, &mut confirms).await;
            confirms = usize::MAX;
        }
    }

    /// Falls silent for ever, with the connection, when it has confirmed so many.
    async fn serve(&self, mut stream: TcpStream, confirms: &mut usize) -> std::io::Result<()> {
        let mut decoder = Decoder::default();
        loop {
            let mut bytes = [0; 64 << 10];
            let read = stream.read(&mut bytes).await?;
            if read == 0 {
                return Ok(());
            }
            decoder.push(&bytes[..read]);
            let mut answer = Vec::new();
            while let Some(frame) = decoder.poll().unwrap() {
                if frame.command == "CONNECT" {
                    Frame::new("CONNECTED").with("version", "1.2").encode(&mut answer);
                    continue;
                }
                if *confirms == 0 {
                    // Away in the midst of a batch; an hour begins.
                    self.now.fetch_max(Timestamp::from_seconds(1_800_000_060).0, Ordering::SeqCst);
                    return stream.write_all(&answer).await;
                }
                *confirms -= 1;
                let receipt = frame.header("receipt").unwrap().to_owned();
                let body = String::from_utf8(frame.body).unwrap();
                self.taken.lock().push((receipt.parse().unwrap(), body));
                Frame::new("RECEIPT").with("receipt-id", receipt).encode(&mut answer);
            }
            stream.write_all(&answer).await?;
            self.came.notify_one();
        }
    }

    fn has_all(&self) -> bool {
        let taken = self.taken.lock();
        let last = taken.iter().map(|(number, _)| number).collect::<std::collections::BTreeSet<_>>();
        last.len() == self.told.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn an_hour_without_a_broker_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new(directory.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("stomp://{}", listener.local_addr().unwrap());
    let mut config = MessagesConfig::default();
    config.stomp.brokers = vec![url];
    let way = config.ways().unwrap().remove(0);
    let state = Arc::new(WayState { name: "stomp", published: 0.into(), open: Mutex::default() });

    world.happens(30);
    let (clock, pause) = (world.clone(), world.clone());
    let publisher = Publisher {
        pause: Box::new(move |wait| {
            let world = pause.clone();
            Box::pin(async move {
                world.passes(wait);
                tokio::task::yield_now().await;
            })
        }),
        ..Publisher::new((config, Arc::new(move || clock.now())), world.spool.clone(), way, state.clone())
    };
    // Of the first batch it confirms a part, and is gone.
    let broker = tokio::spawn(world.clone().broker(listener, 10));
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(publisher.run(stopped));

    // Not a time of its own: what is waited for is the broker's word, and the outer limit is that of a hang.
    let all = async {
        while world.seconds() < 60 + HOUR_S || !world.has_all() {
            world.came.notified().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all).await.expect("all comes when the broker is back");
    // What happens now comes at once, by the same connection.
    let dialled = world.dialled.load(Ordering::SeqCst);
    world.happens(50);
    while !world.has_all() {
        tokio::time::timeout(Duration::from_secs(120), world.came.notified()).await.expect("it comes");
    }
    assert_eq!(world.dialled.load(Ordering::SeqCst), dialled);
    stop.send_replace(true);
    running.await.unwrap();
    broker.abort();

    // Waits double up to a minute: some 70 tries in an hour, not thousands.
    assert!((55..=95).contains(&dialled), "{dialled} times");
    assert!(world.told.load(Ordering::SeqCst) > HOUR_S as usize);
    assert_eq!(world.spool.dropped(), 0);
    let open = state.open.lock().clone();
    assert!(open.fault.is_none() && open.broker.is_some());

    // Only what was not confirmed before comes again, and with the same number.
    let taken = world.taken.lock().clone();
    let mut by_number: BTreeMap<u64, &str> = BTreeMap::new();
    for (number, body) in &taken {
        assert_eq!(by_number.entry(*number).or_insert(body), body);
    }
    assert!(
        taken.len() - by_number.len() <= 10,
        "{} of {} came twice",
        taken.len() - by_number.len(),
        taken.len()
    );
    // Of each job every step, in order, by the time of its last coming.
    let mut steps: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (_, body) in &taken[10..] {
        let mut words = body.split(' ');
        let (job, step) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        steps.entry(job).or_default().push(step);
    }
    assert_eq!(steps.len(), JOBS);
    for (job, steps) in steps {
        let expected: Vec<usize> = (0..steps.len()).collect();
        assert_eq!(steps, expected, "job {job}");
    }
}
