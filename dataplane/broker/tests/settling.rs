//! Acks on their way to the settle journal.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use veena_storage::disk::mem::{MemDisk, Op};
use veena_storage::journal;

use crate::support::{FakeCatalog, Node, small_config, topic};

/// Waits for what must happen; in real time, with a bound that only a broken node reaches.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not happen");
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_are_written_while_a_sync_of_the_journal_does_not_come_back() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 1));
    let node = Node::start_on_threads(Arc::new(disk.clone()), &catalog, 1, small_config()).await;
    assert!(node.produce("orders", None, "one").await && node.produce("orders", None, "two").await);
    let mut taken = Vec::new();
    while taken.len() < 2 {
        taken.extend(node.consume_many("orders", 2, 5_000).await);
    }
    let hold = disk.hold(Op::Sync, "/settle/");
    assert!(node.ack("orders", &taken[0]));
    until("a sync", || disk.standing() == 1).await;
    let written = || journal::inspect(&disk, Path::new("/data/settle")).expect("readable").expect("there").bytes;
    let before = written();
    assert!(node.ack("orders", &taken[1]));
    until("a write beside the sync", || written() > before).await;
    assert_eq!(disk.standing(), 1, "the sync still stands");
    disk.crash_kill();
    node.tasks.token().cancel();
    drop(hold);
    let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
    assert!(node.consume("orders", 500).await.is_none(), "both acks outlive the process");
    assert!(node.broker.stop().await);
}
