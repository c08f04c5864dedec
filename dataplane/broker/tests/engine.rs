//! The engine end to end on an in-memory disk: what was accepted is delivered once, through kills, power cuts and failing syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use veena_broker::message::{ConsumeRequest, Settle};
use veena_contract::{Entropy, Offset};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::support::{FakeCatalog, Node, Seeded, link, name, replay_all, tenant, text, topic};

#[tokio::test(start_paused = true)]
async fn a_message_is_delivered_once_and_settled_for_ever() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 3));
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(node.produce("orders", Some("k"), "one").await);
    let delivery = node.consume("orders", 5_000).await.expect("the message");
    assert_eq!(text(&delivery), "one");
    assert_eq!(delivery.lease.expect("leased").delivery_count, 1);
    assert!(node.consume("orders", 0).await.is_none(), "leased to one consumer");
    assert!(node.ack("orders", &delivery));
    assert!(!node.ack("orders", &delivery), "a handle settles once");
    node.broker.stop().await;
    let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
    assert!(node.consume("orders", 1_000).await.is_none(), "a clean restart redelivers nothing");
}

#[tokio::test(start_paused = true)]
async fn a_parked_consumer_is_woken_by_a_message_an_expiry_a_nack_and_a_freed_slot() {
    let catalog = FakeCatalog::new();
    let mut record = topic("orders", 1, 1);
    record.max_in_flight_per_partition = 1;
    record.visibility_timeout_ms = 500;
    catalog.put(record);
    let node = Arc::new(Node::start(Arc::new(MemDisk::new()), &catalog, 1).await);
    let park = || {
        let node = Arc::clone(&node);
        tokio::spawn(async move { node.consume("orders", 10_000).await })
    };
    let parked = park();
    tokio::task::yield_now().await;
    assert!(node.produce("orders", None, "one").await);
    let first = parked.await.expect("no panic").expect("woken by the message");
    let parked = park();
    let again = parked.await.expect("no panic").expect("woken by the expiry");
    assert_eq!(again.offset, first.offset);
    assert_eq!(again.lease.expect("leased").delivery_count, 2);
    assert!(!node.ack("orders", &first), "the expired handle is stale");
    let parked = park();
    tokio::task::yield_now().await;
    assert!(node.settle("orders", &again, Settle::Nack));
    let third = parked.await.expect("no panic").expect("woken by the nack");
    assert!(node.produce("orders", None, "two").await);
    let parked = park();
    tokio::task::yield_now().await;
    assert!(node.ack("orders", &third));
    assert_eq!(text(&parked.await.expect("no panic").expect("woken by the freed slot")), "two");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_not_written_is_released_at_once_and_not_counted() {
    let catalog = FakeCatalog::new();
    catalog.put(topic("orders", 1, 1));
    let node = Node::start(Arc::new(MemDisk::new()), &catalog, 1).await;
    assert!(node.produce("orders", None, "one").await);
    let request = ConsumeRequest {
        tenant: tenant(),
        topic: name("orders"),
        partition: None,
        messages_max: 1,
        bytes_max: 1000,
        wait: Duration::from_secs(5),
    };
    let unwritten = node.broker.consume(request).await.expect("consume");
    assert_eq!(unwritten.messages().len(), 1);
    drop(unwritten);
    let delivery = node.consume("orders", 0).await.expect("free at once");
    assert_eq!(delivery.lease.expect("leased").delivery_count, 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_topic_wakes_its_consumers_and_its_records_never_reach_its_successor() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 1));
    let node = Arc::new(Node::start(Arc::new(disk.clone()), &catalog, 1).await);
    // Its log cannot be made: what is accepted waits in the WAL when the topic is deleted.
    let path_contains = "0000000000000001/p00000".to_owned();
    disk.inject(Fault { op: Op::Create, path_contains, after: 0, times: u64::MAX, kind: FaultKind::Eio });
    assert!(node.produce("orders", None, "old").await);
    let request = ConsumeRequest {
        tenant: tenant(),
        topic: name("orders"),
        partition: None,
        messages_max: 1,
        bytes_max: 1000,
        wait: Duration::from_secs(1000),
    };
    let broker = node.broker.clone();
    let parked = tokio::spawn(async move { broker.consume(request).await.map(|found| found.messages().len()) });
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(node.broker.undispatched(), 1);
    catalog.set_leaderless(true);
    catalog.remove(veena_contract::TopicId(1));
    assert!(parked.await.expect("no panic").is_err(), "told that the topic is gone");
    assert_eq!(node.broker.metrics().records_discarded.get(), 0, "the old record waits until the leader has confirmed");
    catalog.put(topic("orders", 2, 1));
    disk.clear_faults();
    catalog.set_leaderless(false);
    assert!(node.produce("orders", None, "new").await);
    let seen = node.drain("orders").await;
    assert_eq!(seen, BTreeMap::from([("new".to_owned(), 1)]));
    assert_eq!(node.broker.metrics().records_discarded.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn messages_without_key_begin_at_another_partition_in_each_topic() {
    let catalog = FakeCatalog::new();
    (1..=16).for_each(|id| catalog.put(topic(&format!("t{id}"), id, 8)));
    let node = Node::start(Arc::new(MemDisk::new()), &catalog, 1).await;
    let mut begun = BTreeSet::new();
    for id in 1..=16 {
        assert!(node.produce(&format!("t{id}"), None, "first").await);
        begun.insert(node.consume(&format!("t{id}"), 5_000).await.expect("the message").partition);
    }
    assert!(begun.len() > 4, "16 topics begin at {begun:?} of 8");
}

/// One life after another, each ended by a crash; at the end everything accepted is there, once per offset, and nothing else.
async fn crash_loop(seed: u64, crash: impl Fn(&MemDisk, &mut dyn FnMut() -> u64)) {
    let entropy = Seeded::new(seed);
    let mut random = || entropy.next_u64();
    let catalog = FakeCatalog::new();
    catalog.put(topic("orders", 1, 2));
    let mut disk = MemDisk::new();
    let mut accepted = BTreeSet::new();
    let mut unknown = BTreeSet::new();
    for life in 0..6_u64 {
        let node = Arc::new(Node::start(Arc::new(disk.clone()), &catalog, seed * 100 + life).await);
        let mut sends = tokio::task::JoinSet::new();
        for n in 0..(5 + random() % 20) {
            let payload = format!("{life}-{n}");
            unknown.insert(payload.clone());
            let node = Arc::clone(&node);
            sends.spawn(async move {
                let key = format!("k{}", n % 3);
                (node.produce("orders", Some(&key), &payload).await, payload)
            });
        }
        let answers = 1 + random() % 10;
        for _ in 0..answers {
            if let Some(done) = sends.join_next().await {
                let (is_accepted, payload) = done.expect("no panic");
                if is_accepted {
                    accepted.insert(payload);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(random() % 300)).await;
        crash(&disk, &mut random);
        sends.shutdown().await;
        node.tasks.token().cancel();
        disk = disk.reopen();
    }
    let node = Node::start(Arc::new(disk.clone()), &catalog, seed * 100 + 99).await;
    let seen = node.drain("orders").await;
    for payload in &accepted {
        assert_eq!(seen.get(payload), Some(&1), "seed {seed}: {payload} was accepted");
    }
    for payload in seen.keys() {
        assert!(unknown.contains(payload), "seed {seed}: {payload} was never sent");
    }
    let mut offsets = BTreeMap::new();
    for partition in 0..2 {
        for (_, payload) in replay_all(&node, "orders", partition).await {
            *offsets.entry(payload).or_insert(0) += 1;
        }
    }
    assert!(offsets.values().all(|count| *count == 1), "seed {seed}: a record was appended twice: {offsets:?}");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kill_loses_nothing_and_repeats_nothing() {
    for seed in 0..20 {
        crash_loop(seed, |disk, _| disk.crash_kill()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_loses_nothing_and_repeats_nothing() {
    for seed in 0..20 {
        crash_loop(seed, |disk, random| disk.crash_power(random)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_inside_a_write_loses_nothing_and_repeats_nothing() {
    for seed in 0..20 {
        crash_loop(seed, |disk, random| disk.crash_power_in_write(random)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn acks_survive_a_kill_but_for_the_last_tenth_of_a_second() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 1));
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    for n in 0..10 {
        assert!(node.produce("orders", None, &format!("{n}")).await);
    }
    let all = node.consume_many("orders", 10, 5_000).await;
    let mut got = all.len();
    while got < 10 {
        got += node.consume_many("orders", 10, 5_000).await.len();
    }
    for delivery in all.iter().filter(|delivery| delivery.offset != Offset(0)) {
        assert!(node.ack("orders", delivery));
    }
    tokio::time::sleep(Duration::from_millis(250)).await;
    disk.crash_kill();
    node.tasks.token().cancel();
    let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
    let again = node.drain("orders").await;
    assert!(again.contains_key("0"));
    assert_eq!(again.len(), 10 - (all.len() - 1), "what was acked beyond the gap stays acked");
}

/// The payloads that were sent with one key, as they lie in its partition.
async fn log_of_key(node: &Node, topic: &str, partitions: u32, key: u32) -> Vec<String> {
    let is_of_key = |payload: &String| payload.split('-').nth(1).and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n % 4 == key);
    let mut all = Vec::new();
    for partition in 0..partitions {
        all.extend(replay_all(node, topic, partition).await.into_iter().map(|(_, payload)| payload).filter(is_of_key));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn children_get_every_record_once_in_order_through_crashes() {
    for seed in 0..10 {
        let (mut parent, mut child) = (topic("parent", 1, 2), topic("child", 2, 3));
        link(&mut parent, &mut child, 0, vec![Offset(0), Offset(0)]);
        let catalog = FakeCatalog::new();
        catalog.put(parent);
        catalog.put(child);
        let mut disk = MemDisk::new();
        let mut accepted = BTreeSet::new();
        for life in 0..4_u64 {
            let node = Node::start(Arc::new(disk.clone()), &catalog, seed * 10 + life).await;
            for n in 0..20 {
                let payload = format!("{life}-{n:02}");
                if node.produce("parent", Some(&format!("k{}", n % 4)), &payload).await {
                    accepted.insert(payload);
                }
            }
            tokio::time::sleep(Duration::from_millis(seed * 7)).await;
            let entropy = Seeded::new(seed + life);
            disk.crash_power(&mut || entropy.next_u64());
            node.tasks.token().cancel();
            disk = disk.reopen();
        }
        let node = Node::start(Arc::new(disk.clone()), &catalog, seed * 10 + 9).await;
        let seen = node.drain("child").await;
        assert!(accepted.iter().all(|payload| seen.contains_key(payload)), "seed {seed}: {seen:?}");
        let mut copies = BTreeMap::new();
        for partition in 0..3 {
            for (_, payload) in replay_all(&node, "child", partition).await {
                *copies.entry(payload).or_insert(0) += 1;
            }
        }
        assert!(copies.values().all(|count| *count == 1), "seed {seed}: copied twice: {copies:?}");
        for key in 0..4 {
            let in_order = log_of_key(&node, "parent", 2, key).await;
            assert_eq!(log_of_key(&node, "child", 3, key).await, in_order, "seed {seed}: another order than the parent's");
            assert!(in_order.is_sorted(), "seed {seed}: another order than they were sent in");
        }
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_child_gets_a_message_when_it_is_due_and_not_before() {
    let (mut parent, mut child) = (topic("parent", 1, 1), topic("later", 2, 1));
    link(&mut parent, &mut child, 2_000, vec![Offset(0)]);
    let catalog = FakeCatalog::new();
    catalog.put(parent);
    catalog.put(child);
    let node = Node::start(Arc::new(MemDisk::new()), &catalog, 1).await;
    let sent = tokio::time::Instant::now();
    assert!(node.produce("parent", None, "one").await);
    assert!(!node.produce("later", None, "direct").await, "a delayed child takes no direct produce");
    let delivery = node.consume("later", 10_000).await.expect("delivered without further traffic");
    assert_eq!(text(&delivery), "one");
    let waited = sent.elapsed();
    assert!(waited >= Duration::from_secs(2), "never early: {waited:?}");
    assert!(waited < Duration::from_millis(2_500), "woken when due: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn acks_reach_the_disk_again_after_a_write_of_the_settle_journal_failed() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 1));
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    for n in 0..4 {
        assert!(node.produce("orders", None, &format!("{n}")).await);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = node.consume_many("orders", 4, 5_000).await;
    assert_eq!(all.len(), 4);
    disk.inject(Fault { op: Op::Write, path_contains: "settle".into(), after: 0, times: 1, kind: FaultKind::ErrorAfter(7) });
    assert!(node.ack("orders", &all[0]));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for delivery in &all[1..3] {
        assert!(node.ack("orders", delivery));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    disk.crash_kill();
    node.tasks.token().cancel();
    let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
    assert_eq!(node.drain("orders").await, BTreeMap::from([("3".to_owned(), 1)]), "only what was not acked comes again");
}
