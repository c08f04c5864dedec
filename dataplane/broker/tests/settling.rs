//! Acks on their way to the settle journal.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use veena_storage::disk::mem::MemDisk;
use veena_storage::journal;

use crate::support::{FakeCatalog, Frozen, Node, small_config, topic};

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
    let (inner, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 1));
    let disk = Frozen::new(&inner, "/settle/");
    let freezer = disk.freezer();
    let node = Node::start_on_threads(Arc::new(disk), &catalog, 1, small_config()).await;
    assert!(node.produce("orders", None, "one").await && node.produce("orders", None, "two").await);
    let mut taken = Vec::new();
    while taken.len() < 2 {
        taken.extend(node.consume_many("orders", 2, 5_000).await);
    }
    freezer.freeze();
    assert!(node.ack("orders", &taken[0]));
    until("a sync", || freezer.waiting() == 1).await;
    let written = || journal::inspect(&inner, Path::new("/data/settle")).expect("readable").expect("there").bytes;
    let before = written();
    assert!(node.ack("orders", &taken[1]));
    until("a write beside the sync", || written() > before).await;
    assert_eq!(freezer.waiting(), 1, "the sync still stands");
    inner.crash_kill();
    node.tasks.token().cancel();
    freezer.thaw();
    let node = Node::start(Arc::new(inner.reopen()), &catalog, 2).await;
    assert!(node.consume("orders", 500).await.is_none(), "both acks outlive the process");
    assert!(node.broker.stop().await);
}
