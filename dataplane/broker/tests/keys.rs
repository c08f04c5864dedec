//! Idempotency keys: what is sent again within the window is stored once, through whichever node, whatever fails meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use veena_broker::errors::ProduceError;
use veena_broker::message::{Committed, NewMessage};
use veena_broker::produce::partitioner::partition_of_key;
use veena_contract::{
    Catalog, Command, Effect, Entropy, IdempotencyKey, Key, MoveToken, Offset, PartitionAt, PartitionIndex, PeerOp, TopicId, TopicRecord,
};
use veena_storage::disk::mem::{Fault as DiskFault, FaultKind, MemDisk, Op};

use crate::net::{Cluster, Fault, NODES, node_id, owned_by};
use crate::support::{FakeCatalog, Node, Seeded, link, name, replay_all, small_config, tenant, topic};

const WINDOW_MS: u64 = 300_000;

fn message(idempotency_key: &str, payload: &str) -> NewMessage {
    NewMessage {
        key: None,
        partition: None,
        headers: Vec::new(),
        idempotency_key: Some(IdempotencyKey::parse(idempotency_key.as_bytes()).expect("valid")),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    }
}

async fn send(node: &Node, message: NewMessage) -> Result<Committed, ProduceError> {
    let results = node.broker.produce_committed(&tenant(), &name("orders"), vec![message]).await;
    results.map_err(|refused| refused.error)?.pop().expect("one result per message")
}

async fn once(node: &Node, key: &str) -> Result<Committed, ProduceError> {
    send(node, message(key, &format!("of {key}"))).await
}

fn orders(partitions: u32) -> TopicRecord {
    TopicRecord { dedup_window_ms: WINDOW_MS, ..topic("orders", 1, partitions) }
}

fn alone(record: TopicRecord) -> (MemDisk, Arc<FakeCatalog>) {
    let catalog = FakeCatalog::new();
    catalog.put(record);
    (MemDisk::new(), catalog)
}

async fn payloads(node: &Node, partition: u32) -> Vec<String> {
    replay_all(node, "orders", partition).await.into_iter().map(|(_, payload)| payload).collect()
}

fn place(committed: &Committed) -> (PartitionIndex, Offset, u64, veena_contract::MessageId) {
    (committed.partition, committed.offset, committed.commit_ms, committed.id)
}

#[tokio::test(start_paused = true)]
async fn a_repeat_gets_the_first_answer_and_another_message_under_its_key_is_refused() {
    let (disk, catalog) = alone(orders(3));
    let node = Node::start(Arc::new(disk), &catalog, 1).await;
    let first = once(&node, "k").await.expect("stored");
    assert_eq!((first.is_replayed, first.partition), (false, partition_of_key(b"k", 3)));
    sleep(Duration::from_secs(2)).await;
    let again = once(&node, "k").await.expect("known");
    assert_eq!((place(&again), again.is_replayed), (place(&first), true));
    for other in [message("k", "another"), NewMessage { partition: Some(first.partition), ..message("k", "another") }] {
        let refused = send(&node, other).await.expect_err("another message");
        assert!(matches!(refused, ProduceError::KeyReused) && refused.effect() == Effect::None, "{refused}");
    }
    let keyed = |payload| {
        let key = Key::parse(Bytes::from_static(b"orders of one customer")).expect("short");
        NewMessage { key, ..message("by message key", payload) }
    };
    let first = send(&node, keyed("x")).await.expect("stored");
    assert_eq!(first.partition, partition_of_key(b"orders of one customer", 3), "the message's key decides");
    assert!(send(&node, keyed("x")).await.expect("known").is_replayed);
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_an_outcome_for_each_key() {
    let (disk, catalog) = alone(orders(1));
    let node = Node::start(Arc::new(disk), &catalog, 1).await;
    once(&node, "known").await.expect("stored");
    let bare = NewMessage { idempotency_key: None, ..message("none", "bare") };
    let batch =
        vec![message("known", "of known"), message("a", "1"), bare, message("a", "1"), message("a", "2"), message("known", "other")];
    let results = node.broker.produce_committed(&tenant(), &name("orders"), batch).await.expect("checked");
    let told: Vec<_> = results.iter().map(|result| result.as_ref().map(|done| (done.offset.0, done.is_replayed)).ok()).collect();
    assert_eq!(told, [Some((0, true)), Some((1, false)), Some((2, false)), Some((1, true)), None, None]);
    assert!(results[4..].iter().all(|result| matches!(result, Err(ProduceError::KeyReused))));
    assert_eq!(payloads(&node, 0).await, ["of known", "1", "bare"]);
}

#[tokio::test(start_paused = true)]
async fn of_those_that_come_at_once_one_is_stored_and_the_others_get_its_answer() {
    let (disk, catalog) = alone(orders(1));
    let node = Node::start_on_threads(Arc::new(disk), &catalog, 1, small_config()).await;
    for round in 0..20 {
        let key = format!("k{round}");
        let told = join_all((0..5).map(|_| once(&node, &key))).await;
        let told: Vec<Committed> = told.into_iter().map(|result| result.expect("stored or known")).collect();
        assert!(told.iter().all(|one| place(one) == place(&told[0])), "{told:?}");
        assert_eq!(told.iter().filter(|one| !one.is_replayed).count(), 1);
        let others = join_all((0..3).map(|n| send(&node, message(&format!("other {round}"), &format!("payload {n}"))))).await;
        assert_eq!(others.iter().filter(|result| result.is_ok()).count(), 1, "{others:?}");
    }
    assert_eq!(payloads(&node, 0).await.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_key_ends_a_window_after_its_commit() {
    let (disk, catalog) = alone(TopicRecord { dedup_window_ms: 10_000, ..orders(1) });
    let node = Node::start(Arc::new(disk), &catalog, 1).await;
    let first = once(&node, "k").await.expect("stored");
    sleep(Duration::from_millis(9_999)).await;
    assert!(once(&node, "k").await.expect("known").is_replayed);
    sleep(Duration::from_millis(1)).await;
    let anew = once(&node, "k").await.expect("stored");
    assert!(!anew.is_replayed && anew.offset > first.offset);
    sleep(Duration::from_millis(9_999)).await;
    assert_eq!(once(&node, "k").await.expect("known").offset, anew.offset, "from then on, its window is that of the second");
    // A topic without a window takes keys and remembers none.
    catalog.put(TopicRecord { dedup_window_ms: 0, revision: 2, ..orders(1) });
    assert!(!once(&node, "k").await.expect("stored").is_replayed);
    assert!(!once(&node, "k").await.expect("stored").is_replayed);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_remembers_all_it_may_says_when_its_oldest_key_ends() {
    let (disk, catalog) = alone(orders(1));
    let mut config = small_config();
    config.dedup_keys_max = 3;
    let node = Node::start_with(Arc::new(disk), &catalog, 1, config).await;
    for n in 0..3 {
        once(&node, &format!("k{n}")).await.expect("stored");
        sleep(Duration::from_secs(10)).await;
    }
    let refused = once(&node, "k3").await.expect_err("no room");
    assert!(matches!(refused, ProduceError::DedupWindowFull { wait_ms: 270_000 }), "{refused:?}");
    assert_eq!(refused.effect(), Effect::None);
    assert!(once(&node, "k0").await.expect("known").is_replayed, "what is known needs no room");
    let bare = NewMessage { idempotency_key: None, ..message("none", "bare") };
    send(&node, bare).await.expect("nor does what has no key");
    sleep(Duration::from_secs(270)).await;
    assert!(!once(&node, "k3").await.expect("stored").is_replayed);
    assert!(matches!(once(&node, "k4").await, Err(ProduceError::DedupWindowFull { wait_ms: 10_000 })));
}

#[tokio::test(start_paused = true)]
async fn a_key_outlives_its_record_but_not_its_topic() {
    let (disk, catalog) = alone(TopicRecord { retention_ms: 3_600_000, dedup_window_ms: 3_600_000, ..orders(1) });
    let mut config = small_config();
    config.retention_check_ms = 1_000;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config.clone()).await;
    let first = once(&node, "k").await.expect("stored");
    // As if the topic kept its records for a moment only.
    catalog.put(TopicRecord { retention_ms: 1, dedup_window_ms: 3_600_000, revision: 2, ..orders(1) });
    sleep(Duration::from_secs(60)).await;
    let stats = node.broker.describe(&tenant(), &name("orders"), None).await.expect("known").pop().flatten().expect("open");
    assert_eq!(stats.oldest, Offset(1), "the record is gone");
    assert_eq!(once(&node, "k").await.expect("known").offset, first.offset);
    disk.crash_power(&mut || 0);
    node.tasks.token().cancel();
    let node = Node::start_with(Arc::new(disk.reopen()), &catalog, 2, config).await;
    assert_eq!(once(&node, "k").await.expect("known").offset, first.offset, "after a power cut as well");
    catalog.remove(TopicId(1));
    catalog.put(TopicRecord { id: TopicId(2), dedup_window_ms: 3_600_000, ..orders(1) });
    assert!(!once(&node, "k").await.expect("stored").is_replayed, "another topic of the same name knows nothing");
}

#[tokio::test(start_paused = true)]
async fn a_produce_that_is_cut_anywhere_is_stored_once_by_its_repeat() {
    let mut replayed = 0;
    for (nth, kind) in (0..24).flat_map(|nth| (0..3).map(move |kind| (nth, kind))) {
        let (disk, catalog) = alone(orders(1));
        let dice = Seeded::new(nth * 7 + kind);
        let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
        once(&node, "before").await.expect("stored");
        disk.cut_power_at(nth);
        let answered = timeout(Duration::from_secs(20), once(&node, "k")).await.is_ok_and(|result| result.is_ok());
        node.tasks.token().cancel();
        match kind {
            0 => disk.crash_kill(),
            1 => disk.crash_power(&mut || dice.next_u64()),
            _ => disk.crash_power_in_write(&mut || dice.next_u64()),
        }
        drop(node);
        let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
        let again = once(&node, "k").await.expect("stored or known");
        assert!(again.is_replayed || !answered, "cut {nth}, crash {kind}: it was answered and is forgotten");
        replayed += u32::from(again.is_replayed && !answered);
        assert!(once(&node, "before").await.expect("known").is_replayed);
        assert_eq!(payloads(&node, 0).await, ["of before", "of k"], "cut {nth}, crash {kind}");
        node.tasks.token().cancel();
    }
    assert!(replayed > 0, "one was stored and not answered");
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_failed_does_not_stand_in_the_way_of_its_repeat() {
    for (op, kind) in
        [(Op::Write, FaultKind::Error(std::io::ErrorKind::StorageFull)), (Op::Write, FaultKind::Eio), (Op::Sync, FaultKind::Eio)]
    {
        let (disk, catalog) = alone(orders(1));
        let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
        once(&node, "before").await.expect("stored");
        disk.inject(DiskFault { op, path_contains: ".log".into(), after: 0, times: 1, kind });
        let failed = once(&node, "k").await.expect_err("the disk fails");
        if matches!(kind, FaultKind::Error(_)) {
            assert!(matches!(failed, ProduceError::DiskFull) && failed.effect() == Effect::None);
        } else {
            assert_eq!(failed.effect(), Effect::Possible);
        }
        // While the log is opened anew, nothing is said of the key.
        let again = loop {
            match once(&node, "k").await {
                Ok(again) => break again,
                Err(waits) => assert_eq!(waits.effect(), Effect::None, "{waits}"),
            }
            sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(again.offset, Offset(1));
        assert_eq!(payloads(&node, 0).await, ["of before", "of k"]);
        node.tasks.token().cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_gets_the_message_and_not_its_key() {
    let (mut parent, mut child) = (orders(1), TopicRecord { dedup_window_ms: WINDOW_MS, ..topic("copies", 2, 1) });
    link(&mut parent, &mut child, 0, vec![Offset(0)]);
    let catalog = FakeCatalog::new();
    catalog.put(child);
    catalog.put(parent);
    let node = Node::start(Arc::new(MemDisk::new()), &catalog, 1).await;
    for _ in 0..3 {
        once(&node, "k").await.expect("stored or known");
    }
    sleep(Duration::from_secs(5)).await;
    let copies = || async { replay_all(&node, "copies", 0).await.len() };
    assert_eq!(copies().await, 1);
    let direct = node.broker.produce_committed(&tenant(), &name("copies"), vec![message("k", "of k")]).await.expect("checked");
    assert!(!direct[0].as_ref().expect("stored").is_replayed);
    assert_eq!(copies().await, 2);
}

/// Every payload of the topic, as it lies at its owners, with how often.
async fn counts(cluster: &Cluster, record: &TopicRecord) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (index, owner) in (0..).zip(&record.owners) {
        for payload in payloads(cluster.node(&owner.node.0), index).await {
            *counts.entry(payload).or_default() += 1;
        }
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn a_repeat_through_any_node_finds_what_a_lost_answer_left_behind() {
    let cluster = Cluster::start(1).await;
    let record = owned_by(orders(1), &["b"]);
    cluster.catalog.put(record.clone());
    cluster.net.fail("a", "b", Fault::LoseAnswers);
    let unknown = once(cluster.node("a"), "k").await.expect_err("not answered");
    assert_eq!(unknown.effect(), Effect::Possible);
    for through in ["c", "b"] {
        let again = once(cluster.node(through), "k").await.expect("known");
        assert!(again.is_replayed);
    }
    cluster.net.fail("a", "b", Fault::Cut);
    let down = once(cluster.node("a"), "k2").await.expect_err("never sent");
    assert!(matches!(down, ProduceError::OwnerDown) && down.effect() == Effect::None);
    // The request is on its way when its client gives up and sends it again through another node.
    cluster.net.fail("a", "b", Fault::Delay(Duration::from_secs(15)));
    once(cluster.node("a"), "late").await.expect_err("not answered");
    assert!(!once(cluster.node("c"), "late").await.expect("stored").is_replayed);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(counts(&cluster, &record).await, BTreeMap::from([("of k".into(), 1), ("of late".into(), 1)]));
}

/// The topic as it is now.
fn now(cluster: &Cluster) -> TopicRecord {
    cluster.catalog.view().topic_by_id(TopicId(1)).expect("it lives").as_ref().clone()
}

/// What becomes of the topic meanwhile.
enum Meanwhile {
    Nothing,
    Grows(Box<(TopicRecord, TopicRecord)>),
    Moves,
}

/// Sends messages until each is answered, through nodes at random, while the network fails and one node dies again and again. In the end
/// each message is stored once.
async fn storm(seed: u64, victim: Option<&str>, meanwhile: Meanwhile) {
    let moves = matches!(meanwhile, Meanwhile::Moves);
    let mut cluster = if moves { Cluster::start_lagging(seed * 100).await } else { Cluster::start(seed * 100).await };
    // Longer than all of it takes.
    let lasting = |record: TopicRecord| TopicRecord { dedup_window_ms: 3_600_000, ..record };
    let (mut record, grown) = match meanwhile {
        Meanwhile::Grows(records) => (lasting(records.0), Some(lasting(records.1))),
        Meanwhile::Nothing | Meanwhile::Moves => (lasting(owned_by(orders(3), &NODES)), None),
    };
    cluster.catalog.put(record.clone());
    sleep(Duration::from_millis(400)).await;
    let entropy = Seeded::new(seed);
    cluster.net.fail_all(&Fault::Flaky(Arc::clone(&entropy)));
    let mut open: Vec<String> = Vec::new();
    let mut stored = Vec::new();
    for round in 0..30_u64 {
        open.extend((0..3).map(|n| format!("{round}-{n}")));
        if let Some(grown) = grown.as_ref().filter(|_| round == 12) {
            record = grown.clone();
            cluster.catalog.put(record.clone());
        }
        if moves {
            begin_moves(&cluster, round.into(), &entropy);
        }
        let through: Vec<&str> = open.iter().map(|_| NODES[usize::try_from(entropy.next_u64() % 3).expect("small")]).collect();
        let told = join_all(open.iter().zip(&through).map(|(key, through)| once(cluster.node(through), key))).await;
        let (done, left): (Vec<_>, Vec<_>) = open.drain(..).zip(told).partition(|(_, told)| told.is_ok());
        stored.extend(done.into_iter().map(|(key, _)| key));
        open = left.into_iter().map(|(key, _)| key).collect();
        sleep(Duration::from_millis(entropy.next_u64() % 3_000)).await;
        if let Some(victim) = victim.filter(|_| round % 5 == 4) {
            if round % 10 == 4 {
                cluster.kill(victim);
            } else {
                cluster.cut_power(victim, &entropy);
            }
            sleep(Duration::from_millis(entropy.next_u64() % 2_000)).await;
            cluster.revive(victim).await;
        }
    }
    cluster.net.heal();
    // What moves arrives. A request that was delayed may still come.
    sleep(Duration::from_secs(30)).await;
    for key in open {
        once(cluster.node("a"), &key).await.unwrap_or_else(|error| panic!("seed {seed}: {key}: {error}"));
        stored.push(key);
    }
    sleep(Duration::from_secs(30)).await;
    for key in &stored {
        let again = once(cluster.node("b"), key).await.unwrap_or_else(|error| panic!("seed {seed}: {key}: {error}"));
        assert!(again.is_replayed, "seed {seed}: {key} was stored and is not known");
    }
    let record = now(&cluster);
    let counts = counts(&cluster, &record).await;
    assert_eq!((counts.len(), counts.values().max()), (90, Some(&1)), "seed {seed}: {counts:?}");
    if moves {
        let moved: u64 = record.owners.iter().map(|owner| owner.epoch.get() - 1).sum();
        assert!(moved >= 3 && record.owners.iter().all(|owner| owner.moving.is_none()), "seed {seed}: {:?}", record.owners);
    } else {
        cluster.assert_only_own_logs(&record);
    }
}

/// Some partitions that do not move begin to.
fn begin_moves(cluster: &Cluster, round: u128, entropy: &Seeded) {
    let record = now(cluster);
    for (index, owner) in (0..).map(PartitionIndex).zip(&record.owners) {
        if owner.moving.is_none() && entropy.next_u64().is_multiple_of(2) {
            let at = PartitionAt { tenant: tenant(), topic: record.id, index, epoch: owner.epoch };
            let others: Vec<_> = NODES.map(node_id).into_iter().filter(|node| *node != owner.node).collect();
            let to = others[usize::try_from(entropy.next_u64() % 2).expect("small")].clone();
            let token = MoveToken(round * 10 + u128::from(index.get()) + 1);
            cluster.catalog.apply(Command::BeginMove { at, to, token }).expect("begun");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_until_it_is_answered_is_stored_once_whatever_the_network_loses() {
    for seed in 0..10 {
        storm(seed, None, Meanwhile::Nothing).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_until_it_is_answered_is_stored_once_though_nodes_die() {
    for seed in 100..110 {
        storm(seed, Some(NODES[usize::try_from(seed % 3).expect("small")]), Meanwhile::Nothing).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_until_it_is_answered_is_stored_once_though_its_partitions_move() {
    for seed in 300..312 {
        let victim = (seed % 2 == 0).then(|| NODES[usize::try_from(seed % 3).expect("small")]);
        storm(seed, victim, Meanwhile::Moves).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_goes_with_its_partition_though_its_record_is_gone() {
    let mut config = small_config();
    config.retention_check_ms = 1_000;
    let mut cluster = Cluster::start_with(1, config).await;
    cluster.catalog.put(owned_by(orders(1), &["b"]));
    let first = once(cluster.node("a"), "k").await.expect("stored");
    // As if the topic kept its records for a moment only.
    let short = TopicRecord { retention_ms: 1, revision: 2, ..owned_by(orders(1), &["b"]) };
    cluster.catalog.put(short);
    sleep(Duration::from_secs(10)).await;
    let replayed = cluster.node("b").broker.replay(&tenant(), &name("orders"), PartitionIndex(0), first.offset).await;
    assert!(replayed.is_err(), "the record is gone");
    let later = once(cluster.node("a"), "later").await.expect("stored");
    let begin = |to: &str, token| {
        let at = PartitionAt { tenant: tenant(), topic: TopicId(1), index: PartitionIndex(0), epoch: now(&cluster).owners[0].epoch };
        cluster.catalog.apply(Command::BeginMove { at, to: node_id(to), token: MoveToken(token) }).expect("begun");
    };
    // It stops, and its new owner is not told.
    cluster.net.fail_op("c", "b", PeerOp::OWNER_FREEZE, Fault::LoseAnswers);
    begin("c", 1);
    while !now(&cluster).owners[0].is_frozen() {
        sleep(Duration::from_millis(10)).await;
    }
    for key in ["k", "new"] {
        let refused = once(cluster.node("a"), key).await.expect_err("nobody can say");
        assert!(matches!(refused, ProduceError::OwnerDown) && refused.effect() == Effect::None, "{refused}");
    }
    cluster.net.heal();
    sleep(Duration::from_secs(10)).await;
    for (life, owner) in ["c", "a", "b"].into_iter().enumerate() {
        if life > 0 {
            begin(owner, life as u128 + 1);
            sleep(Duration::from_secs(10)).await;
        }
        assert_eq!(now(&cluster).owners[0].node, node_id(owner));
        for (key, stored) in [("k", &first), ("later", &later)] {
            let again = once(cluster.node("a"), key).await.expect("known");
            assert_eq!((place(&again), again.is_replayed), (place(stored), true), "{key} at {owner}");
        }
        assert!(matches!(send(cluster.node("b"), message("k", "another")).await, Err(ProduceError::KeyReused)));
        assert_eq!(once(cluster.node("c"), "new").await.expect("stored or known").is_replayed, life > 0);
    }
    cluster.kill("b");
    cluster.revive("b").await;
    assert!(once(cluster.node("c"), "k").await.expect("known").is_replayed, "in another life of its owner as well");
}

/// A topic of two partitions, and the same after it has grown to five.
fn growing() -> (TopicRecord, TopicRecord) {
    let record = owned_by(orders(2), &["a", "b"]);
    let grown = TopicRecord { earlier_partitions: vec![2], revision: 2, ..owned_by(orders(5), &["a", "b", "c", "a", "b"]) };
    (record, grown)
}

/// A key that leads to one partition before, and to another after.
fn moving(before: u32, after: u32) -> String {
    let leads = |key: &String| partition_of_key(key.as_bytes(), 2).get() == before && partition_of_key(key.as_bytes(), 5).get() == after;
    (0..).map(|n| format!("k{n}")).find(leads).expect("some key")
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_until_it_is_answered_is_stored_once_though_the_topic_grows() {
    for seed in 200..210 {
        let victim = (seed % 2 == 0).then(|| NODES[usize::try_from(seed % 3).expect("small")]);
        let (record, grown) = growing();
        storm(seed, victim, Meanwhile::Grows(Box::new((record, grown)))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_found_where_it_led_before_its_topic_grew() {
    let cluster = Cluster::start(1).await;
    let (record, grown) = growing();
    cluster.catalog.put(record);
    let (key, other) = (moving(1, 2), moving(0, 2));
    let first = once(cluster.node("a"), &key).await.expect("stored");
    assert_eq!(first.partition, PartitionIndex(1));
    cluster.catalog.put(grown.clone());
    let again = once(cluster.node("c"), &key).await.expect("known");
    assert_eq!((place(&again), again.is_replayed), (place(&first), true));
    let refused = send(cluster.node("c"), message(&key, "another")).await.expect_err("another message");
    assert!(matches!(refused, ProduceError::KeyReused));
    assert_eq!(once(cluster.node("c"), &other).await.expect("stored").partition, PartitionIndex(2), "a new one goes where it leads now");
    // Whoever might know cannot be asked: then nothing is stored.
    cluster.net.fail_op("c", "b", PeerOp::OWNER_LOOK_UP_KEYS, Fault::LoseAnswers);
    let unasked = once(cluster.node("c"), &key).await.expect_err("not known");
    assert!(matches!(unasked, ProduceError::OwnerDown) && unasked.effect() == Effect::None);
    cluster.net.heal();
    // Once all that came before has ended, the earlier partitions are asked once more, and never again.
    sleep(Duration::from_millis(WINDOW_MS)).await;
    let many: Vec<String> = (0..20).map(|n| format!("later {n}")).collect();
    for key in &many {
        once(cluster.node("c"), key).await.expect("stored");
    }
    let asked = cluster.net.calls(PeerOp::OWNER_LOOK_UP_KEYS);
    for key in &many {
        assert!(once(cluster.node("c"), key).await.expect("known").is_replayed);
    }
    assert_eq!(cluster.net.calls(PeerOp::OWNER_LOOK_UP_KEYS), asked);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_led_before_its_topic_grew_is_not_stored_after_its_repeat() {
    let cluster = Cluster::start(1).await;
    let (record, grown) = growing();
    cluster.catalog.put(record);
    let key = moving(1, 2);
    // On its way to the owner of the partition that the key leads to still.
    cluster.net.fail("a", "b", Fault::Delay(Duration::from_secs(5)));
    let (late, repeated) = tokio::join!(once(cluster.node("a"), &key), async {
        sleep(Duration::from_secs(1)).await;
        cluster.catalog.put(grown.clone());
        cluster.net.heal();
        once(cluster.node("c"), &key).await
    });
    let repeated = repeated.expect("stored");
    assert_eq!((repeated.partition, repeated.is_replayed), (PartitionIndex(2), false));
    let late = late.expect("led anew, it finds the repeat");
    assert_eq!((place(&late), late.is_replayed), (place(&repeated), true));
    assert_eq!(counts(&cluster, &grown).await, BTreeMap::from([(format!("of {key}"), 1)]));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_know_that_a_topic_grew_stores_no_key_by_what_it_knows() {
    let mut cluster = Cluster::start(1).await;
    let (record, grown) = growing();
    cluster.catalog.put(record.clone());
    let (key, new_key) = (moving(1, 2), moving(1, 3));
    let first = once(cluster.node("a"), &key).await.expect("stored");
    // The others know.
    let own = FakeCatalog::new();
    own.put(record);
    cluster.kill("a");
    cluster.revive_on("a", &own).await;
    cluster.catalog.put(grown.clone());
    once(cluster.node("c"), "any").await.expect("stored");
    let stale = once(cluster.node("a"), &new_key).await.expect_err("its owner knows better");
    assert!(matches!(stale, ProduceError::OwnerDown) && stale.effect() == Effect::None, "{stale}");
    // It catches up while it waits: then the message goes where it belongs.
    let (stored, ()) = tokio::join!(once(cluster.node("a"), &new_key), async {
        sleep(Duration::from_millis(200)).await;
        own.put(grown.clone());
    });
    assert_eq!(stored.expect("stored").partition, PartitionIndex(3));
    assert_eq!(once(cluster.node("a"), &key).await.expect("known").offset, first.offset);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_knows_of_one_growth_and_not_of_the_next_waits_for_it() {
    let mut cluster = Cluster::start(1).await;
    let (record, grown) = growing();
    let owners = ["a", "b", "c", "a", "b", "c"];
    let again = TopicRecord { earlier_partitions: vec![2, 5], revision: 3, ..owned_by(orders(6), &owners) };
    cluster.catalog.put(record);
    let key = moving(1, 2);
    let first = once(cluster.node("c"), &key).await.expect("stored");
    let own = FakeCatalog::new();
    own.put(grown);
    cluster.kill("a");
    cluster.revive_on("a", &own).await;
    cluster.catalog.put(again.clone());
    let behind = once(cluster.node("a"), &key).await.expect_err("whoever is asked knows better");
    assert!(matches!(behind, ProduceError::OwnerDown), "{behind}");
    let (told, ()) = tokio::join!(once(cluster.node("a"), &key), async {
        sleep(Duration::from_millis(200)).await;
        own.put(again);
    });
    assert_eq!(place(&told.expect("known")), place(&first));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_does_not_know_that_a_topic_grew_vouches_for_no_key() {
    let mut cluster = Cluster::start(1).await;
    let (record, grown) = growing();
    cluster.catalog.put(record.clone());
    let key = moving(1, 2);
    let own = FakeCatalog::new();
    own.put(record.clone());
    cluster.kill("b");
    cluster.revive_on("b", &own).await;
    let others = FakeCatalog::new();
    others.put(record);
    cluster.kill("a");
    cluster.revive_on("a", &others).await;
    cluster.catalog.put(grown.clone());
    // What it has not, it may still get from a node that is as far behind.
    let unsure = once(cluster.node("c"), &key).await.expect_err("not said");
    assert!(matches!(unsure, ProduceError::OwnerDown) && unsure.effect() == Effect::None, "{unsure}");
    let first = once(cluster.node("a"), &key).await.expect("stored");
    assert_eq!(first.partition, PartitionIndex(1));
    own.put(grown.clone());
    let again = once(cluster.node("c"), &key).await.expect("known");
    assert_eq!((place(&again), again.is_replayed), (place(&first), true));
}
