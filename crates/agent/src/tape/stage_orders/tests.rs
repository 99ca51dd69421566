use longhaul_testkit::until_met;

use super::*;
use crate::tape::driver::tests::TapeSite;

const ORDER: StageId = StageId(5);

fn storage() -> StorageName {
    "alpha".parse().unwrap()
}

fn lfns(names: &[&str]) -> Vec<Lfn> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn order(names: &[&str]) -> StageOrder {
    StageOrder { storage: storage(), order: ORDER, lfns: lfns(names), pin_s: 1_000 }
}

fn release(names: &[&str]) -> StageRelease {
    StageRelease { storage: storage(), order: ORDER, lfns: lfns(names) }
}

fn orders_of(driver: &Arc<TapeDriver>) -> StageOrders {
    StageOrders::new(Arc::new(Tapes(BTreeMap::from([(storage(), driver.clone())]))))
}

fn wanted(path: &str) -> RequestedFile {
    RequestedFile { path: path.into(), lifetime: None, metadata: None }
}

fn at(seconds: u64) -> AgentTime {
    Duration::from_secs(seconds)
}

/// What is reported, by name.
fn reported(orders: &StageOrders) -> BTreeMap<String, Option<String>> {
    orders.gather(at(1));
    let reports = orders.take_reports().into_iter();
    reports.map(|report| (report.lfn.to_string(), report.why_not)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_files_is_said_until_it_was_heard() {
    let site = TapeSite::new();
    ["a", "b"].into_iter().for_each(|name| site.put_on_tape(name));
    let driver = site.open();
    let orders = orders_of(&driver);
    let running = tokio::spawn(driver.clone().run());
    orders.take(vec![order(&["a", "b", "lost"])]);
    orders.take(vec![order(&["a", "b", "lost"])]);
    until_met("all is said", || reported(&orders).len() == 3).await;
    let said = reported(&orders);
    assert_eq!((&said["a"], &said["b"]), (&None, &None));
    assert!(said["lost"].as_ref().unwrap().contains("does not exist"), "{said:?}");
    assert_eq!(site.said("stage"), ["a", "b"], "the order that came twice is one");
    orders.abandon();
    assert_eq!(reported(&orders).len(), 3, "the report was lost");
    orders.confirm();
    assert_eq!(reported(&orders), BTreeMap::new());

    orders.release(&[release(&["a", "lost"])]);
    until_met("a file leaves the disk", || site.is_stub("a")).await;
    assert!(!site.is_stub("b"));
    orders.release(&[release(&["b"])]);
    until_met("the other one does", || site.is_stub("b")).await;
    assert!(driver.report(&request_id(ORDER)).is_none(), "the request has ended");
    running.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_ordered_is_said_at_once() {
    let site = TapeSite::new();
    let orders = orders_of(&site.open());
    orders.take(vec![StageOrder { storage: "omega".parse().unwrap(), ..order(&["a"]) }]);
    let said = reported(&orders);
    assert_eq!(said["a"].as_deref(), Some("this agent has no tape behind the storage"));
    orders.confirm();
    assert_eq!(reported(&orders), BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_the_service_repeats_no_more_end_after_a_while() {
    let site = TapeSite::new();
    ["a", "b"].into_iter().for_each(|name| site.put_on_tape(name));
    let driver = site.open();
    let orders = orders_of(&driver);
    let other = StageId(6);
    orders.take(vec![order(&["a"]), StageOrder { order: other, ..order(&["b"]) }]);
    let client = driver.stage(vec![wanted("a")]).unwrap();
    drop(orders);
    // The agent was started again, and the service repeats one of two.
    let orders = orders_of(&driver);
    orders.note_hello(at(100));
    orders.take(vec![order(&["a"])]);
    // What it orders anew is taken over.
    let later = StageId(7);
    driver.stage_order(&request_id(StageId(8)), ["d", "c"].map(wanted).to_vec()).unwrap();
    orders.take(vec![StageOrder { order: later, ..order(&["c"]) }]);
    let states = |id| driver.report(&request_id(id)).unwrap().files.into_iter().map(|file| file.state);
    assert!(states(StageId(8)).eq([StageState::Submitted, StageState::Cancelled]));
    assert!(states(later).eq([StageState::Submitted]));
    orders.gather(at(100) + REPEAT_TIME - at(1));
    assert!(driver.report(&request_id(other)).is_some());
    orders.gather(at(100) + REPEAT_TIME);
    assert!(driver.report(&request_id(other)).is_none());
    assert!(driver.report(&request_id(ORDER)).is_some() && driver.report(&client).is_some());
}
