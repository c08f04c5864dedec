//! Whoever can use what a log shows after a failure hears of it, without further traffic.

use std::future::Future as _;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use veena_contract::Offset;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::support::{FakeCatalog, Node, link, replay_all, text, topic};

fn fault(op: Op, path: &str, times: u64) -> Fault {
    Fault { op, path_contains: path.into(), after: 0, times, kind: FaultKind::Eio }
}

#[tokio::test(start_paused = true)]
async fn a_child_gets_what_a_failed_commit_left_in_its_parent() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let (mut parent, mut child) = (topic("parent", 1, 1), topic("child", 2, 1));
    link(&mut parent, &mut child, 0, vec![Offset(0)]);
    catalog.put(parent);
    catalog.put(child);
    let began = Instant::now();
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(node.produce("parent", None, "one").await);
    let copy = node.consume("child", 5_000).await.expect("copied");
    assert!(text(&copy) == "one" && node.ack("child", &copy));
    // Just behind a sweep, so that the dispatcher is the one who opens the log anew.
    tokio::time::sleep_until(began + Duration::from_millis(3_100)).await;
    // The record is written and synced, and cannot be read back: the commit fails, and the record is there.
    disk.inject(fault(Op::Read, "0000000000000001/p00000", 1));
    assert!(node.produce("parent", None, "two").await);
    assert_eq!(text(&node.consume("child", 30_000).await.expect("copied too")), "two");
    assert_eq!(node.broker.metrics().commits_failed.get(), 1);
    assert_eq!(replay_all(&node, "parent", 0).await.len(), 2);
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_log_that_could_not_be_opened_is_told_by_whoever_opens_it() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 1));
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(node.produce("orders", None, "one").await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.broker.stop().await;
    let disk = disk.reopen();
    let began = Instant::now();
    let node = Arc::new(Node::start(Arc::new(disk.clone()), &catalog, 2).await);
    // All of this lies between two sweeps, which would open the log too.
    tokio::time::sleep_until(began + Duration::from_millis(100)).await;
    disk.inject(fault(Op::Open, "0000000000000001/p00000", u64::MAX));
    let first = Arc::clone(&node);
    let waiting = tokio::spawn(async move { first.consume("orders", 60_000).await });
    tokio::time::sleep_until(began + Duration::from_millis(600)).await;
    assert_eq!(node.broker.parked(), 1, "the log could not be opened");
    disk.clear_faults();
    assert!(node.consume("orders", 0).await.is_none(), "who was there first comes first");
    let served = tokio::time::timeout(Duration::from_millis(100), waiting).await.expect("told at once").expect("no panic");
    assert_eq!(text(&served.expect("the message")), "one");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_created_and_used_while_the_catalog_is_followed_is_not_ended() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let node = Arc::new(Node::start(Arc::new(disk.clone()), &catalog, 1).await);
    // Whoever follows the catalog has its list of topics already, and not yet that of this node.
    let waiting = Arc::new(Mutex::new(None));
    let (parked, user, changed) = (Arc::clone(&waiting), Arc::clone(&node), Arc::clone(&catalog));
    tokio::time::sleep(Duration::from_millis(10)).await;
    catalog.while_looking(move || {
        changed.put(topic("orders", 1, 1));
        let mut consuming = Box::pin(async move { user.consume("orders", 60_000).await });
        assert!(consuming.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        *parked.lock() = Some(consuming);
    });
    catalog.put(topic("another", 2, 1));
    tokio::time::sleep(Duration::from_millis(10)).await;
    let consuming = waiting.lock().take().expect("the catalog was looked at");
    assert!(node.produce("orders", None, "one").await);
    assert_eq!(text(&consuming.await.expect("a message")), "one");
    node.broker.stop().await;
}
