//! One node from start to stop and back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use veena_client::bodies::CreateTopic;
use veena_client::{Client, ProduceOptions, SettleMode};
use veena_metastore::MemLog;
use veena_node::serve::NodeError;
use veena_node::{AdminPassword, Config};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::real::RealDisk;

use crate::node::{DEADLINE, Node};

const WAIT: Duration = Duration::from_secs(5);

fn topic(name: &str) -> CreateTopic {
    CreateTopic { name: name.to_owned(), partitions: Some(1), ..CreateTopic::default() }
}

async fn send(node: &Node, topic: &str, text: &'static str) {
    node.client.produce(topic, Bytes::from_static(text.as_bytes()), &ProduceOptions::default()).await.expect("accepted");
}

#[tokio::test]
async fn a_message_goes_from_produce_to_ack() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = Node::start(dir.path(), &MemLog::default()).await;
    assert_eq!(node.client.ready().await.expect("ready").status, "ready");
    node.client.create_topic(&topic("orders")).await.expect("created");
    send(&node, "orders", "hello").await;
    let message = node.client.consume("orders", WAIT, None).await.expect("answered").expect("a message");
    assert_eq!(message.payload_bytes().expect("as encoded"), "hello");
    let handle = message.receipt_handle.expect("a lease");
    node.client.settle("orders", &handle, SettleMode::Extend).await.expect("extended");
    node.client.ack("orders", &handle).await.expect("acked");
    assert!(node.client.ack("orders", &handle).await.expect_err("settled already").is(410));
    assert!(node.client.consume("orders", Duration::ZERO, None).await.expect("answered").is_none());
    let again = node.client.replay("orders", 0, 0).await.expect("answered").expect("still there");
    assert_eq!(again.id, message.id);
    node.stop().await;
}

#[tokio::test]
async fn a_clean_stop_forgets_neither_messages_nor_acks() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = MemLog::default();
    let node = Node::start(dir.path(), &log).await;
    assert!(node.ready.is_new);
    node.client.create_topic(&topic("orders")).await.expect("created");
    for text in ["one", "two"] {
        send(&node, "orders", text).await;
    }
    let first = node.client.consume("orders", WAIT, None).await.expect("answered").expect("a message");
    node.client.ack("orders", &first.receipt_handle.expect("a lease")).await.expect("acked");
    node.stop().await;

    let node = Node::start(dir.path(), &log).await;
    assert!(!node.ready.is_new);
    let second = node.client.consume("orders", WAIT, None).await.expect("answered").expect("a message");
    assert_eq!((second.offset, second.payload_bytes().expect("as encoded")), (1, Bytes::from_static(b"two")));
    node.client.ack("orders", &second.receipt_handle.expect("a lease")).await.expect("acked");
    assert!(node.client.consume("orders", Duration::ZERO, None).await.expect("answered").is_none());
    node.stop().await;
}

#[tokio::test]
async fn a_stop_answers_parked_consumers_at_once() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let node = Node::start(dir.path(), &MemLog::default()).await;
    node.client.create_topic(&topic("orders")).await.expect("created");
    let client = node.client.clone();
    #[expect(clippy::disallowed_methods, reason = "the test waits for it below")]
    let parked = tokio::spawn(async move { client.consume("orders", Duration::from_secs(600), None).await });
    let asked = Instant::now();
    while !node.client.metrics().await.expect("served").lines().any(|line| line.starts_with("veena_http_requests_in_flight 2")) {
        assert!(asked.elapsed() < DEADLINE, "the consumer never parked");
        tokio::task::yield_now().await;
    }
    node.stop().await;
    let answer = timeout(DEADLINE, parked).await.expect("answered").expect("no panic");
    // Nothing to hand out, or told to go elsewhere: both are answers.
    match answer {
        Ok(message) => assert!(message.is_none()),
        Err(error) => assert_eq!(error.status, Some(503), "{error}"),
    }
}

#[tokio::test]
async fn a_task_that_panics_ends_the_node_which_says_so() {
    let (disk, log) = (MemDisk::new(), MemLog::default());
    let node = Node::start_on(Arc::new(disk.clone()), Path::new("/data"), &log).await.expect("the node starts");
    node.client.create_topic(&topic("orders")).await.expect("created");
    send(&node, "orders", "kept").await;
    // Who follows the catalog lists the topics' directories after every change.
    disk.inject(Fault { op: Op::List, path_contains: "/data/topics".to_owned(), after: 0, times: 1, kind: FaultKind::Panic });
    node.client.create_topic(&topic("invoices")).await.expect("created");
    assert!(matches!(node.ended().await, Err(NodeError::TaskDied)));

    let node = Node::start_on(Arc::new(disk), Path::new("/data"), &log).await.expect("the node starts again");
    let message = node.client.consume("orders", WAIT, None).await.expect("answered").expect("a message");
    assert_eq!(message.payload_bytes().expect("as encoded"), "kept");
    node.stop().await;
}

#[tokio::test]
async fn messages_whose_metadata_was_lost_or_replaced_are_not_touched() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = MemLog::default();
    let node = Node::start(dir.path(), &log).await;
    node.client.create_topic(&topic("orders")).await.expect("created");
    send(&node, "orders", "kept").await;
    node.stop().await;
    // Empty metadata knows no topic, and would have every one of them removed.
    let refused = Node::try_start(dir.path(), &MemLog::default()).await.err().expect("refused").to_string();
    assert!(refused.contains("the metadata log is of") && refused.contains(&dir.path().display().to_string()), "{refused}");
    let node = Node::start(dir.path(), &log).await;
    let message = node.client.consume("orders", WAIT, None).await.expect("answered").expect("a message");
    assert_eq!(message.payload_bytes().expect("as encoded"), "kept");
    node.stop().await;
}

#[tokio::test]
async fn two_nodes_do_not_share_a_data_directory() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let first = Node::start(dir.path(), &MemLog::default()).await;
    let second = Node::try_start(dir.path(), &MemLog::default()).await;
    let error = second.err().expect("the directory is taken").to_string();
    assert!(error.contains("in use by another process"), "{error}");
    first.stop().await;
}

#[tokio::test]
async fn the_root_admin_is_created_also_where_nobody_is_asked_who_they_are() {
    let (dir, log) = (tempfile::tempdir().expect("a temporary directory"), MemLog::default());
    for is_on in [false, true] {
        let set = |config: &mut Config| config.security.enabled = is_on;
        let node = Node::start_with(Arc::new(RealDisk), dir.path(), &log, set).await.expect("the node starts");
        let file = dir.path().join("admin-password");
        let signed_in = async {
            loop {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                let url = format!("http://{}", node.ready.addr);
                let root = Client::builder(&url).repeats(0).sign_in("admin", text.trim_end()).build().expect("an address");
                if root.users().await.is_ok_and(|users| users.iter().any(|user| user.root)) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, signed_in).await.expect("it is there soon");
        node.stop().await;
    }
}

#[tokio::test]
async fn the_root_admin_is_created_once_and_keeps_its_first_password() {
    let (dir, log) = (tempfile::tempdir().expect("a temporary directory"), MemLog::default());
    for password in ["first", "second"] {
        let disk = Arc::new(RealDisk);
        let set = |config: &mut Config| config.security.admin_password = Some(AdminPassword::parse(password).expect("a password"));
        let node = Node::start_with(disk, dir.path(), &log, set).await.expect("the node starts");
        assert!(node.client.topics().await.expect_err("nobody").is(401));
        assert_eq!(node.client.ready().await.expect("everybody may ask").status, "ready");
        let root =
            Client::builder(&format!("http://{}", node.ready.addr)).repeats(0).sign_in("admin", "first").build().expect("an address");
        let signed_in = async {
            while root.users().await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, signed_in).await.expect("it is there soon");
        assert_eq!(root.users().await.expect("listed").len(), 1);
        node.stop().await;
    }
}
