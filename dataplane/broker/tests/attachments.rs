//! Attachments that end leave nothing behind in their child's stream table, and one that lives never loses its mark there.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use veena_broker::ports::BrokerConfig;
use veena_contract::{Catalog, Offset, StreamId, TopicRecord};
use veena_storage::disk::mem::{MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode, read_full_at};
use veena_storage::journal::{Journal, JournalConfig};
use veena_storage::partition::{StreamKey, StreamsSnapshot};

use crate::support::{FakeCatalog, Node, link, name, replay_all, small_config, tenant, text, topic};

const CHILD: &str = "/data/topics/default/0000000000000002/p00000";

/// A parent and a child, not linked yet.
struct Family {
    catalog: Arc<FakeCatalog>,
    parent: TopicRecord,
    child: TopicRecord,
}

impl Family {
    fn new() -> Self {
        let family = Self { catalog: FakeCatalog::new(), parent: topic("parent", 1, 1), child: topic("child", 2, 1) };
        family.put();
        family
    }

    fn put(&self) {
        self.catalog.put(self.child.clone());
        self.catalog.put(self.parent.clone());
    }

    /// Answers the stream that was minted.
    fn attach(&mut self, from: u64) -> StreamId {
        link(&mut self.parent, &mut self.child, 0, vec![Offset(from)]);
        self.put();
        self.parent.children[0].stream
    }

    fn detach(&mut self) {
        self.parent.children.clear();
        self.parent.revision += 1;
        self.child.parent = None;
        self.child.revision += 1;
        self.put();
    }
}

/// The streams of attachments in the newest snapshot of the child's table, after a segment that follows everything so far was begun.
async fn streams_kept(node: &Node, disk: &MemDisk) -> Vec<StreamKey> {
    for n in 0..2 {
        assert!(node.produce("child", None, &format!("{n}{}", "x".repeat(70_000))).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let entries = disk.list(Path::new(CHILD)).expect("listed");
    let newest = entries.iter().rfind(|entry| entry.name.ends_with(".streams")).expect("a snapshot");
    let file = disk.open(&Path::new(CHILD).join(&newest.name), OpenMode::Read).expect("opens");
    let mut bytes = vec![0; usize::try_from(newest.len).expect("small")];
    assert_eq!(read_full_at(file.as_ref(), &mut bytes, 0).expect("read"), bytes.len());
    let marks = StreamsSnapshot::decode(&bytes).expect("intact").marks;
    assert!(marks.len() < 10, "{} marks", marks.len());
    marks.into_iter().filter(|(_, mark)| mark.origin.id == 0).map(|(key, _)| key).collect()
}

/// Opens the child's log.
async fn open_child(node: &Node) {
    assert!(node.broker.describe(&tenant(), &name("child"), None).await.expect("known")[0].is_some());
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let looking = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), looking).await.unwrap_or_else(|_| panic!("not within the deadline: {what}"));
}

/// Forgets where the cursors stood, as a power cut may.
fn lose_positions(disk: &MemDisk) {
    const KIND_CURSOR: u8 = 2;
    let (mut journal, entries) = Journal::open(Arc::new(disk.clone()), Path::new("/data/settle"), JournalConfig::default()).expect("opens");
    let cursors: Vec<Vec<u8>> = entries.keys().filter(|(kind, _)| *kind == KIND_CURSOR).map(|(_, key)| key.clone()).collect();
    assert!(!cursors.is_empty(), "there were positions");
    for key in cursors {
        journal.append(&[(KIND_CURSOR, &key, None)]).expect("appended");
    }
    journal.sync().expect("synced");
}

#[tokio::test(start_paused = true)]
async fn a_child_is_attached_and_detached_for_as_long_as_it_lives() {
    let (disk, mut family) = (MemDisk::new(), Family::new());
    let config = BrokerConfig { idle_log_eviction_ms: 20_000, ..small_config() };
    let node = Node::start_with(Arc::new(disk.clone()), &family.catalog, 1, config).await;
    for round in 0..200 {
        family.attach(round);
        assert!(node.produce("parent", None, &format!("{round}")).await);
        let copy = node.consume("child", 5_000).await.expect("copied");
        assert_eq!(text(&copy), format!("{round}"));
        assert!(node.ack("child", &copy));
        family.detach();
        // Now and then the child's log is closed before its table was compared, and opened by the next round.
        tokio::time::sleep(Duration::from_secs(if round % 20 == 0 { 60 } else { 3 })).await;
    }
    let living = family.attach(200);
    assert!(node.produce("parent", None, "the last").await);
    assert_eq!(text(&node.consume("child", 5_000).await.expect("copied")), "the last");
    assert_eq!(streams_kept(&node, &disk).await, [StreamKey { stream: living, source: 0 }], "the mark of the one that lives, no other");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_mark_stays_until_the_leader_confirms_the_end_and_leaves_after_a_crash_too() {
    let (disk, mut family) = (MemDisk::new(), Family::new());
    let ended = StreamKey { stream: family.attach(0), source: 0 };
    let node = Node::start(Arc::new(disk.clone()), &family.catalog, 1).await;
    assert!(node.produce("parent", None, "one").await);
    assert_eq!(text(&node.consume("child", 5_000).await.expect("copied")), "one");
    family.catalog.set_leaderless(true);
    family.detach();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(streams_kept(&node, &disk).await, [ended], "nothing is forgotten on this node's own view");
    disk.crash_kill();
    node.tasks.token().cancel();

    // The next life knows of no cursor that ended; the table and the catalog are all it has.
    let disk = disk.reopen();
    let node = Node::start(Arc::new(disk.clone()), &family.catalog, 2).await;
    open_child(&node).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(streams_kept(&node, &disk).await, [ended]);
    family.catalog.set_leaderless(false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    // It is forgotten in memory, and a crash comes before the next snapshot.
    disk.crash_kill();
    node.tasks.token().cancel();
    let disk = disk.reopen();
    let node = Node::start(Arc::new(disk.clone()), &family.catalog, 3).await;
    open_child(&node).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(streams_kept(&node, &disk).await, []);
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_mark_leaves_when_the_parent_is_deleted() {
    let (disk, mut family) = (MemDisk::new(), Family::new());
    family.attach(0);
    let node = Node::start(Arc::new(disk.clone()), &family.catalog, 1).await;
    assert!(node.produce("parent", None, "one").await);
    assert_eq!(text(&node.consume("child", 5_000).await.expect("copied")), "one");
    family.catalog.remove(family.parent.id);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(streams_kept(&node, &disk).await, []);
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_catalog_that_is_behind_costs_a_living_attachment_no_mark() {
    let (disk, mut family) = (MemDisk::new(), Family::new());
    let before = family.catalog.view();
    let living = StreamKey { stream: family.attach(0), source: 0 };
    let node = Node::start(Arc::new(disk.clone()), &family.catalog, 1).await;
    for n in 0..5 {
        assert!(node.produce("parent", None, &format!("{n}")).await);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    node.broker.stop().await;
    let disk = disk.reopen();
    lose_positions(&disk);

    family.catalog.fall_behind(before);
    let node = Node::start(Arc::new(disk.clone()), &family.catalog, 2).await;
    open_child(&node).await;
    for n in 5..8 {
        assert!(node.produce("parent", None, &format!("{n}")).await, "this node knows no child yet");
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(streams_kept(&node, &disk).await, [living]);
    family.catalog.catch_up();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut copies: Vec<String> = replay_all(&node, "child", 0).await.into_iter().map(|(_, payload)| payload).collect();
    copies.retain(|payload| payload.len() < 10);
    assert_eq!(copies, ["0", "1", "2", "3", "4", "5", "6", "7"], "nothing was copied again, and nothing left out");
    node.broker.stop().await;
}

#[tokio::test]
async fn a_cursor_that_was_about_to_send_when_its_attachment_ended_brings_nothing_twice() {
    for (op, path) in [(Op::Read, "0000000000000001/p00000"), (Op::Open, "0000000000000002/p00000")] {
        let (disk, mut family) = (MemDisk::new(), Family::new());
        family.attach(0);
        let node = Node::start_on_threads(Arc::new(disk.clone()), &family.catalog, 1, small_config()).await;
        for n in 0..5 {
            assert!(node.produce("parent", None, &format!("{n}")).await);
            assert!(node.consume("child", 10_000).await.is_some());
        }
        node.broker.stop().await;
        let disk = disk.reopen();
        lose_positions(&disk);

        // The cursor has seen its attachment; it reads the parent, or opens the child's log, when the attachment ends.
        let hold = disk.hold(op, path);
        let node = Node::start_on_threads(Arc::new(disk.clone()), &family.catalog, 2, small_config()).await;
        until("the cursor stands still", || disk.standing() > 0).await;
        if op == Op::Read {
            open_child(&node).await;
        }
        let before = family.catalog.asked();
        family.detach();
        let are_confirmed = || family.catalog.asked() >= before + 2;
        if op == Op::Read {
            until("the end of the link and of its stream is confirmed", are_confirmed).await;
        }
        drop(hold);
        until("the end of the link and of its stream is confirmed", are_confirmed).await;
        // A stop waits for what a cursor has begun.
        node.broker.stop().await;
        let node = Node::start_on_threads(Arc::new(disk.reopen()), &family.catalog, 3, small_config()).await;
        assert_eq!(replay_all(&node, "child", 0).await.len(), 5, "{op:?}");
        node.broker.stop().await;
    }
}
