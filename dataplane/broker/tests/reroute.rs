//! The owner of a partition is away: what was accepted for it and never sent goes to a sibling, durably, and is in one log once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use veena_broker::errors::ProduceError;
use veena_broker::message::NewMessage;
use veena_contract::{Entropy, MessageId, Offset, PartitionIndex, PeerOp, Reroute, TopicId, TopicRecord};
use veena_storage::disk::mem::{Fault as DiskFault, FaultKind, Op};
use veena_storage::disk::{Disk, OpenMode, read_full_at};

use crate::net::{Cluster, Fault, NODES, owned_by};
use crate::support::{Node, Seeded, link, name, replay_all, small_config, tenant, topic};

fn message(partition: u32, payload: &str) -> NewMessage {
    let payload = Bytes::copy_from_slice(payload.as_bytes());
    NewMessage { key: None, partition: Some(PartitionIndex(partition)), headers: Vec::new(), idempotency_key: None, payload }
}

async fn produce(node: &Node, partition: u32, payload: &str) -> Result<(), ProduceError> {
    node.broker.produce(&tenant(), &name("orders"), message(partition, payload)).await
}

async fn produce_all(cluster: &Cluster, partition: u32, payloads: &[&str]) {
    for payload in payloads {
        produce(cluster.node("a"), partition, payload).await.expect("accepted");
    }
}

/// `orders`, each partition with its owner.
fn orders(owners: &[&str]) -> TopicRecord {
    owned_by(topic("orders", 1, 0), owners)
}

fn never(owners: &[&str]) -> TopicRecord {
    TopicRecord { reroute: Reroute::Never, ..orders(owners) }
}

async fn cluster_of(record: &TopicRecord) -> Cluster {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(record.clone());
    cluster
}

async fn at(cluster: &Cluster, record: &TopicRecord, partition: u32) -> Vec<String> {
    let owner = &record.owner_of(PartitionIndex(partition)).expect("owned").node.0;
    replay_all(cluster.node(owner), "orders", partition).await.into_iter().map(|(_, payload)| payload).collect()
}

/// Every payload with how often it is in a log.
async fn counted(cluster: &Cluster, record: &TopicRecord) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for partition in 0..record.partitions {
        at(cluster, record, partition).await.into_iter().for_each(|payload| *counts.entry(payload).or_default() += 1);
    }
    counts
}

fn once(payloads: &[&str]) -> BTreeMap<String, usize> {
    payloads.iter().map(|payload| ((*payload).to_owned(), 1)).collect()
}

fn rerouted(cluster: &Cluster) -> u64 {
    cluster.node("a").broker.metrics().records_rerouted.get()
}

async fn ids_at(cluster: &Cluster, node: &str, partition: u32) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for offset in 0.. {
        let found = cluster.node(node).broker.replay(&tenant(), &name("orders"), PartitionIndex(partition), Offset(offset)).await;
        let Some(found) = found.expect("replay") else { break };
        ids.push(found.id);
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn records_of_an_owner_that_is_away_go_to_a_sibling_under_their_name_and_later_ones_to_the_owner_when_it_is_back() {
    let record = orders(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    produce_all(&cluster, 1, &["0", "1", "2"]).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(at(&cluster, &record, 2).await, ["0", "1", "2"], "in their order");
    assert_eq!((rerouted(&cluster), cluster.node("a").broker.undispatched()), (3, 0));
    let ids = ids_at(&cluster, "c", 2).await;
    assert_eq!(ids.iter().map(|id| id.sequence).collect::<Vec<_>>(), [0, 1, 2], "those of the first acceptance");

    produce_all(&cluster, 1, &["3"]).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(at(&cluster, &record, 2).await, ["0", "1", "2", "3"]);

    cluster.revive("b").await;
    sleep(Duration::from_secs(2)).await;
    produce_all(&cluster, 1, &["4", "5"]).await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, ["4", "5"], "behind a hole that nobody has to fill");
    assert_eq!(counted(&cluster, &record).await, once(&["0", "1", "2", "3", "4", "5"]));
    let gaps = |name: &str| cluster.node(name).broker.metrics().stream_gaps.get();
    assert_eq!((rerouted(&cluster), NODES.map(gaps)), (4, [0, 0, 0]), "nothing is lost, so no gap is declared");
}

#[tokio::test(start_paused = true)]
async fn records_of_an_owner_that_was_found_dead_go_to_a_sibling_at_once_and_without_asking_it() {
    let record = orders(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    cluster.net.set_dead("b", true);
    produce_all(&cluster, 1, &["0"]).await;
    sleep(Duration::from_millis(20)).await;
    assert_eq!(at(&cluster, &record, 2).await, ["0"]);
    cluster.net.set_dead("c", true);
    produce_all(&cluster, 1, &["1"]).await;
    sleep(Duration::from_millis(20)).await;
    assert_eq!(at(&cluster, &record, 0).await, ["1"], "and not to one that is dead too");
    cluster.revive("b").await;
    cluster.net.set_dead("b", false);
    produce_all(&cluster, 1, &["2"]).await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, ["2"]);
}

#[tokio::test(start_paused = true)]
async fn records_of_an_owner_that_is_no_member_any_more_go_to_a_sibling_that_is_one() {
    let record = orders(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    cluster.net.set_forgotten("b", true);
    produce_all(&cluster, 1, &["0"]).await;
    sleep(Duration::from_millis(20)).await;
    assert_eq!(at(&cluster, &record, 2).await, ["0"]);
    cluster.net.set_forgotten("c", true);
    produce_all(&cluster, 1, &["1"]).await;
    sleep(Duration::from_millis(20)).await;
    assert_eq!(at(&cluster, &record, 0).await, ["1"], "and not to one that was forgotten too");
    cluster.revive("b").await;
    cluster.net.set_forgotten("b", false);
    produce_all(&cluster, 1, &["2"]).await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, ["2"], "it has come back");
    assert_eq!(counted(&cluster, &record).await, once(&["0", "1", "2"]));
}

#[tokio::test(start_paused = true)]
async fn of_an_owner_that_is_no_member_what_may_not_go_elsewhere_waits() {
    let record = never(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    cluster.net.set_forgotten("b", true);
    produce_all(&cluster, 1, &["0"]).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!((rerouted(&cluster), cluster.node("a").broker.undispatched()), (0, 1));
    cluster.net.set_forgotten("b", false);
    cluster.revive("b").await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, ["0"]);
}

#[tokio::test(start_paused = true)]
async fn of_what_comes_while_an_owner_is_away_neither_it_nor_the_sibling_is_asked_each_time() {
    let record = orders(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    produce_all(&cluster, 1, &["first"]).await;
    sleep(Duration::from_secs(2)).await;
    let asked = cluster.net.calls(PeerOp::OWNER_OPEN);
    for n in 0..400 {
        produce_all(&cluster, 1, &[&n.to_string()]).await;
        sleep(Duration::from_millis(10)).await;
    }
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 2).await.len(), 401);
    let asked = cluster.net.calls(PeerOp::OWNER_OPEN) - asked;
    assert!((3..=6).contains(&asked), "the owner once a second, in four: {asked} times");
    // And nobody once nothing comes.
    sleep(Duration::from_secs(600)).await;
    let idle = cluster.net.calls(PeerOp::OWNER_OPEN);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.net.calls(PeerOp::OWNER_OPEN), idle);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_committed_waits_for_its_owner_and_only_what_was_never_sent_goes_elsewhere() {
    let record = orders(&NODES);
    let cluster = cluster_of(&record).await;
    // Served after its caller has given up waiting, and not dropped.
    cluster.net.fail_op("a", "b", PeerOp::OWNER_COMMIT, Fault::Delay(Duration::from_secs(25)));
    produce_all(&cluster, 1, &["sent"]).await;
    sleep(Duration::from_secs(1)).await;
    produce_all(&cluster, 1, &["1", "2"]).await;
    cluster.net.fail_op("a", "b", PeerOp::OWNER_OPEN, Fault::Cut);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(at(&cluster, &record, 2).await, ["1", "2"]);
    assert_eq!((rerouted(&cluster), cluster.node("a").broker.undispatched()), (2, 1));
    sleep(Duration::from_secs(10)).await;
    produce_all(&cluster, 1, &["3"]).await;
    sleep(Duration::from_secs(10)).await;
    cluster.net.heal();
    cluster.settle_down().await;
    produce_all(&cluster, 1, &["4"]).await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, ["sent", "4"]);
    assert_eq!(counted(&cluster, &record).await, once(&["1", "2", "3", "4", "sent"]));
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_life_may_have_sent_waits_for_its_owner() {
    let record = orders(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.net.fail("a", "b", Fault::Cut);
    produce_all(&cluster, 1, &["old"]).await;
    cluster.kill("a");
    cluster.revive("a").await;
    produce_all(&cluster, 1, &["new"]).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(at(&cluster, &record, 2).await, ["new"]);
    cluster.net.heal();
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, ["old"]);
    assert_eq!(counted(&cluster, &record).await, once(&["new", "old"]));
}

/// The sender dies: its machine loses power with the `nth` change of its disk after the first message, or its process later.
async fn sender_dies(nth: u64, is_sibling_slow: bool) -> u64 {
    let record = orders(&NODES);
    let mut cluster = Cluster::start(nth * 10).await;
    cluster.catalog.put(record.clone());
    let entropy = Seeded::new(nth);
    cluster.kill("b");
    if is_sibling_slow {
        cluster.net.fail_op("a", "c", PeerOp::OWNER_COMMIT, Fault::Cut);
    }
    cluster.members[0].disk.cut_power_at(nth);
    let mut accepted = Vec::new();
    for payload in ["0", "1", "2", "3"] {
        if produce(cluster.node("a"), 1, payload).await.is_ok() {
            accepted.push(payload);
        }
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_millis(100 * (nth % 4))).await;
    let moved = rerouted(&cluster);
    cluster.cut_power("a", &entropy);
    cluster.net.heal();
    cluster.revive("b").await;
    cluster.revive("a").await;
    cluster.settle_down().await;
    sleep(Duration::from_secs(30)).await;
    let counts = counted(&cluster, &record).await;
    assert!(counts.values().all(|count| *count == 1), "cut at {nth}: {counts:?}");
    assert!(accepted.iter().all(|payload| counts.contains_key(*payload)), "cut at {nth}: {accepted:?} were accepted, {counts:?} are there");
    assert_eq!(cluster.node("a").broker.metrics().damage_found.get(), 0);
    moved
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_dies_at_any_step_of_a_reroute_loses_nothing_and_repeats_nothing() {
    for is_sibling_slow in [false, true] {
        let (mut before, mut after) = (0, 0);
        for nth in 0..40 {
            if sender_dies(nth, is_sibling_slow).await == 0 { before += 1 } else { after += 1 }
        }
        assert!(before > 3 && after > 3, "cuts before and after a reroute: {before}, {after}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_dies_after_the_sibling_has_committed_sends_neither_again() {
    let record = orders(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    cluster.net.set_dead("b", true);
    produce_all(&cluster, 1, &["0", "1"]).await;
    sleep(Duration::from_millis(20)).await;
    assert_eq!(at(&cluster, &record, 2).await, ["0", "1"]);
    // Before the checkpoint has moved.
    cluster.kill("a");
    cluster.net.set_dead("b", false);
    cluster.revive("b").await;
    cluster.revive("a").await;
    produce_all(&cluster, 1, &["2"]).await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, ["2"]);
    assert_eq!(at(&cluster, &record, 2).await, ["0", "1"]);
}

#[tokio::test(start_paused = true)]
async fn when_the_wal_fails_within_a_reroute_the_partition_gets_nothing_until_a_restart_has_read_what_was_written() {
    for seed in 0..12 {
        let record = orders(&NODES);
        let mut cluster = Cluster::start(seed).await;
        cluster.catalog.put(record.clone());
        cluster.net.fail("a", "b", Fault::Cut);
        produce_all(&cluster, 1, &["0", "1"]).await;
        let fault = DiskFault { op: Op::Sync, path_contains: "ingress".into(), after: 0, times: u64::MAX, kind: FaultKind::Eio };
        cluster.members[0].disk.inject(fault);
        sleep(Duration::from_secs(5)).await;
        cluster.net.heal();
        sleep(Duration::from_secs(30)).await;
        assert_eq!(counted(&cluster, &record).await, BTreeMap::new(), "neither the owner nor a sibling gets it");
        assert!(cluster.node("a").broker.not_ready_reason().is_some());
        cluster.members[0].disk.clear_faults();
        cluster.cut_power("a", &Seeded::new(seed));
        cluster.revive("a").await;
        // Until the WAL is read, nothing counts as under way.
        sleep(Duration::from_secs(1)).await;
        cluster.settle_down().await;
        assert_eq!(counted(&cluster, &record).await, once(&["0", "1"]), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_no_sibling_lives_records_wait_and_the_first_that_is_back_gets_them() {
    let record = orders(&["b", "c", "b"]);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    cluster.kill("c");
    produce_all(&cluster, 0, &["0", "1"]).await;
    produce_all(&cluster, 1, &["2"]).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!((rerouted(&cluster), cluster.node("a").broker.undispatched()), (0, 3), "they do not go round among the dead");
    cluster.revive("c").await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await.len(), 3);
    cluster.revive("b").await;
    assert_eq!(counted(&cluster, &record).await, once(&["0", "1", "2"]));
}

#[tokio::test(start_paused = true)]
async fn a_sibling_that_dies_in_its_turn_passes_on_what_it_was_never_sent() {
    let record = orders(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    cluster.net.fail_op("a", "c", PeerOp::OWNER_COMMIT, Fault::Cut);
    produce_all(&cluster, 1, &["0", "1"]).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(at(&cluster, &record, 0).await, ["0", "1"], "by way of partition 2");
    assert_eq!(rerouted(&cluster), 4);
    let ids = ids_at(&cluster, "a", 0).await;
    assert_eq!(ids.iter().map(|id| id.sequence).collect::<Vec<_>>(), [0, 1], "still those of the first acceptance");
    cluster.kill("a");
    cluster.revive("b").await;
    cluster.net.heal();
    cluster.revive("a").await;
    cluster.settle_down().await;
    assert_eq!(counted(&cluster, &record).await, once(&["0", "1"]));
}

#[tokio::test(start_paused = true)]
async fn the_only_partition_of_a_topic_and_one_whose_siblings_have_the_same_owner_wait() {
    for owners in [vec!["b"], vec!["b", "b", "b"]] {
        let record = orders(&owners);
        let mut cluster = cluster_of(&record).await;
        cluster.kill("b");
        produce_all(&cluster, 0, &["0", "1"]).await;
        sleep(Duration::from_secs(30)).await;
        assert_eq!((rerouted(&cluster), cluster.node("a").broker.undispatched()), (0, 2));
        cluster.revive("b").await;
        cluster.settle_down().await;
        assert_eq!(at(&cluster, &record, 0).await, ["0", "1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_goes_elsewhere_follows_its_topic_when_that_is_deleted() {
    let record = orders(&NODES);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    cluster.net.fail_op("a", "c", PeerOp::OWNER_COMMIT, Fault::LoseRequests);
    produce_all(&cluster, 1, &["0", "1"]).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(rerouted(&cluster), 2);
    produce_all(&cluster, 1, &["2"]).await;
    cluster.catalog.set_leaderless(true);
    cluster.catalog.remove(TopicId(1));
    sleep(Duration::from_secs(60)).await;
    let discarded = |cluster: &Cluster| cluster.node("a").broker.metrics().records_discarded.get();
    assert_eq!(discarded(&cluster), 0, "nobody has confirmed it");
    cluster.catalog.set_leaderless(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!((discarded(&cluster), cluster.node("a").broker.undispatched()), (3, 0));
    // The next life finds originals and what stands for them, and a topic that is gone.
    cluster.kill("a");
    cluster.revive("a").await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(cluster.node("a").broker.undispatched(), 0);
}

#[tokio::test(start_paused = true)]
async fn with_reroute_never_records_wait_within_the_budget_of_their_partition() {
    let record = never(&NODES);
    let mut config = small_config();
    config.undispatched_partition_bytes_max = 4_000;
    let mut cluster = Cluster::start_with(1, config).await;
    cluster.catalog.put(record.clone());
    cluster.kill("b");
    cluster.net.set_dead("b", true);
    let large = "x".repeat(4_000);
    produce_all(&cluster, 1, &["0", &large]).await;
    sleep(Duration::from_secs(30)).await;
    let over = produce(cluster.node("a"), 1, "over").await.expect_err("over the bound of the partition");
    assert!(matches!(over, ProduceError::OwnerDown), "{over}");
    assert_eq!((rerouted(&cluster), cluster.node("a").broker.undispatched()), (0, 2));
    cluster.net.set_dead("b", false);
    cluster.revive("b").await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, ["0", &large]);
}

#[tokio::test(start_paused = true)]
async fn a_sibling_is_given_no_more_than_its_own_budget() {
    let record = orders(&["b", "c", "b"]);
    let mut config = small_config();
    config.undispatched_partition_bytes_max = 4_000;
    let mut cluster = Cluster::start_with(1, config).await;
    cluster.catalog.put(record.clone());
    cluster.kill("b");
    cluster.net.set_dead("b", true);
    cluster.net.fail_op("a", "c", PeerOp::OWNER_COMMIT, Fault::LoseRequests);
    let large = "x".repeat(4_000);
    produce_all(&cluster, 0, &[&large]).await;
    sleep(Duration::from_millis(100)).await;
    produce_all(&cluster, 0, &["1"]).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!((rerouted(&cluster), cluster.node("a").broker.undispatched()), (1, 2), "the second waits at home");
    cluster.net.heal();
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 1).await, [&large, "1"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_parked_waits_for_its_owner_and_what_comes_later_goes_elsewhere() {
    let record = orders(&["a", "b", "c"]);
    let mut config = small_config();
    config.undispatched_bytes_max = 64 * 1024;
    config.undispatched_partition_bytes_max = 1024 * 1024;
    let mut cluster = Cluster::start_with(1, config).await;
    let waiting = TopicRecord { reroute: Reroute::Never, ..record.clone() };
    cluster.catalog.put(waiting.clone());
    cluster.kill("b");
    let payload = |n: usize| format!("{n}{}", "x".repeat(1_000));
    for n in 0..60 {
        produce_all(&cluster, 1, &[&payload(n)]).await;
        sleep(Duration::from_millis(300)).await;
    }
    let parked = cluster.node("a").broker.metrics().records_parked.get();
    assert!(parked > 0, "nothing was parked");
    cluster.catalog.put(TopicRecord { revision: waiting.revision + 1, ..record.clone() });
    produce_all(&cluster, 1, &[&payload(60)]).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!((rerouted(&cluster), cluster.node("a").broker.undispatched() as u64), (61 - parked, parked));
    // What is in files comes with the next life too, and only that.
    cluster.kill("a");
    cluster.revive("a").await;
    cluster.revive("b").await;
    cluster.settle_down().await;
    let (home, away) = (at(&cluster, &record, 1).await, at(&cluster, &record, 2).await);
    let all: Vec<String> = (0..61).map(payload).collect();
    assert_eq!([home.clone(), away].concat(), all, "each once, and in order at each place");
    assert_eq!(home.len() as u64, parked);
}

#[tokio::test(start_paused = true)]
async fn what_was_moved_is_not_taken_from_the_wal_to_mend_a_file() {
    let record = orders(&NODES);
    let mut config = small_config();
    config.undispatched_bytes_max = 4 * 1024;
    let cluster = Cluster::start_with(1, config).await;
    cluster.catalog.put(record.clone());
    cluster.net.fail_op("a", "b", PeerOp::OWNER_COMMIT, Fault::LoseRequests);
    produce_all(&cluster, 1, &["doubted"]).await;
    sleep(Duration::from_secs(1)).await;
    cluster.net.fail_op("a", "b", PeerOp::OWNER_OPEN, Fault::Cut);
    produce_all(&cluster, 1, &["moved 1", "moved 2"]).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(at(&cluster, &record, 2).await, ["moved 1", "moved 2"]);
    cluster.catalog.put(TopicRecord { reroute: Reroute::Never, revision: record.revision + 1, ..record.clone() });
    let later: Vec<String> = (0..30).map(|n| format!("later {n:02}{}", "x".repeat(80))).collect();
    for payload in &later {
        produce_all(&cluster, 1, &[payload]).await;
        sleep(Duration::from_millis(300)).await;
    }
    let disk = cluster.members[0].disk.clone();
    let files = disk.list("/data/parked".as_ref()).expect("listed");
    let first = files.iter().find(|entry| entry.name.contains("00001.")).expect("a file of partition 1");
    let path = std::path::Path::new("/data/parked").join(&first.name);
    let mut bytes = vec![0; usize::try_from(first.len).expect("small")];
    read_full_at(disk.open(&path, OpenMode::Read).expect("opens").as_ref(), &mut bytes, 0).expect("read");
    let place = bytes.windows(8).position(|window| window == b"later 00").expect("behind what is in doubt");
    disk.flip_bit(&path, place as u64 * 8).expect("flipped");
    cluster.net.heal();
    cluster.settle_down().await;
    assert!(cluster.node("a").broker.metrics().damage_found.get() > 0, "the damage was met");
    let mut home = vec!["doubted".to_owned()];
    home.extend(later);
    assert_eq!(at(&cluster, &record, 1).await, home);
    assert_eq!(at(&cluster, &record, 2).await, ["moved 1", "moved 2"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_moved_and_then_parked_keeps_its_name_and_comes_once_in_the_next_life() {
    let record = orders(&["b", "c"]);
    let mut config = small_config();
    config.undispatched_bytes_max = 4 * 1024;
    let mut cluster = Cluster::start_with(1, config).await;
    cluster.catalog.put(record.clone());
    cluster.kill("b");
    cluster.net.fail_op("a", "c", PeerOp::OWNER_COMMIT, Fault::LoseRequests);
    produce_all(&cluster, 0, &["moved 0", "moved 1"]).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(rerouted(&cluster), 2);
    cluster.net.fail_op("a", "c", PeerOp::OWNER_OPEN, Fault::Cut);
    cluster.catalog.put(TopicRecord { reroute: Reroute::Never, revision: record.revision + 1, ..record.clone() });
    let later: Vec<String> = (0..30).map(|n| format!("later {n:02}{}", "x".repeat(80))).collect();
    for payload in &later {
        produce_all(&cluster, 1, &[payload]).await;
        sleep(Duration::from_millis(500)).await;
    }
    assert!(cluster.node("a").broker.metrics().records_parked.get() > 2, "those that were moved are the oldest");
    cluster.kill("a");
    cluster.net.heal();
    cluster.revive("b").await;
    cluster.revive("a").await;
    sleep(Duration::from_secs(1)).await;
    cluster.settle_down().await;
    let mut all = vec!["moved 0".to_owned(), "moved 1".to_owned()];
    all.extend(later);
    assert_eq!(at(&cluster, &record, 0).await, Vec::<String>::new());
    assert_eq!(at(&cluster, &record, 1).await, all);
    let ids = ids_at(&cluster, "c", 1).await;
    assert_eq!(ids.iter().take(3).map(|id| id.sequence).collect::<Vec<_>>(), [0, 1, 4], "two were accepted anew as 2 and 3");
}

#[tokio::test(start_paused = true)]
async fn of_a_moved_record_that_is_damaged_the_original_is_sent_as_long_as_it_is_there_and_the_sibling_is_told_of_a_gap() {
    let record = orders(&["b", "c"]);
    let mut cluster = cluster_of(&record).await;
    cluster.kill("b");
    cluster.net.fail_op("a", "c", PeerOp::OWNER_COMMIT, Fault::LoseRequests);
    cluster.net.set_dead("b", true);
    produce_all(&cluster, 0, &["the payload"]).await;
    sleep(Duration::from_millis(10)).await;
    // What is behind it shows that it is no torn end.
    produce_all(&cluster, 0, &["later"]).await;
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rerouted(&cluster), 2);
    cluster.kill("a");
    let (disk, dir) = (cluster.members[0].disk.reopen(), std::path::Path::new("/data/ingress"));
    let segment = disk.list(dir).expect("listed").into_iter().find(|entry| entry.name.ends_with(".wal")).expect("one segment");
    let (path, mut bytes) = (dir.join(&segment.name), vec![0; usize::try_from(segment.len).expect("small")]);
    read_full_at(disk.open(&path, OpenMode::Read).expect("opens").as_ref(), &mut bytes, 0).expect("read");
    let places: Vec<usize> = bytes.windows(11).enumerate().filter(|(_, found)| found == b"the payload").map(|(at, _)| at).collect();
    assert_eq!(places.len(), 2, "as accepted, and as accepted anew");
    disk.flip_bit(&path, places[1] as u64 * 8).expect("flipped");
    cluster.members[0].disk = disk;
    cluster.net.heal();
    cluster.net.set_dead("b", false);
    cluster.revive("b").await;
    cluster.revive("a").await;
    sleep(Duration::from_secs(1)).await;
    cluster.settle_down().await;
    assert_eq!(at(&cluster, &record, 0).await, ["the payload"]);
    assert_eq!(at(&cluster, &record, 1).await, ["later"]);
    assert_eq!(cluster.node("c").broker.metrics().stream_gaps.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn owner_synchronous_messages_and_copies_for_children_never_go_elsewhere() {
    let cluster = Cluster::start(1).await;
    let (mut parent, mut child) = (owned_by(topic("parent", 2, 0), &["a", "a"]), orders(&["b", "c"]));
    link(&mut parent, &mut child, 0, vec![Offset(0), Offset(0)]);
    cluster.catalog.put(child.clone());
    cluster.catalog.put(parent.clone());
    cluster.net.set_dead("b", true);
    cluster.net.fail("a", "b", Fault::Cut);
    let direct = cluster.node("a").broker.produce_committed(&tenant(), &name("orders"), vec![message(0, "direct")]).await;
    let direct = direct.expect("checked").pop().expect("one result").expect_err("its owner is dead");
    assert!(matches!(direct, ProduceError::OwnerDown), "{direct}");
    for n in 0..4 {
        let produced = cluster.node("a").broker.produce(&tenant(), &name("parent"), message(n % 2, &n.to_string())).await;
        produced.expect("accepted");
    }
    sleep(Duration::from_secs(30)).await;
    assert_eq!((rerouted(&cluster), at(&cluster, &child, 1).await.len() < 4), (0, true));
    cluster.net.heal();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(counted(&cluster, &child).await, once(&["0", "1", "2", "3"]));
}

/// As the storm of `owners`, with records that may go anywhere.
async fn storm(seed: u64) -> u64 {
    let mut cluster = Cluster::start(seed * 100).await;
    let record = orders(&["a", "b", "c", "b"]);
    cluster.catalog.put(record.clone());
    let entropy = Seeded::new(seed);
    cluster.net.fail_all(&Fault::Flaky(Arc::clone(&entropy)));
    let victim = NODES[usize::try_from(seed % 3).expect("small")];
    let mut moved = 0;
    let mut accepted = Vec::new();
    for round in 0..24 {
        for n in 0..4 {
            let through = NODES[usize::try_from(entropy.next_u64() % 3).expect("small")];
            let payload = format!("{round}-{n}");
            let to = u32::try_from(entropy.next_u64() % 4).expect("small");
            if produce(cluster.node(through), to, &payload).await.is_ok() {
                accepted.push(payload);
            }
        }
        sleep(Duration::from_millis(entropy.next_u64() % 3_000)).await;
        if round % 4 == 1 {
            let lives = NODES.map(|name| cluster.node(name).broker.metrics().records_rerouted.get());
            moved += lives.iter().sum::<u64>();
            if round % 8 == 1 {
                cluster.kill(victim);
            } else {
                cluster.cut_power(victim, &entropy);
            }
            cluster.net.set_dead(victim, seed.is_multiple_of(2));
            sleep(Duration::from_millis(entropy.next_u64() % 2_000)).await;
            cluster.revive(victim).await;
            // What was found may be out of date.
            sleep(Duration::from_millis(entropy.next_u64() % 500)).await;
            cluster.net.set_dead(victim, false);
        }
    }
    cluster.net.heal();
    cluster.settle_down().await;
    sleep(Duration::from_secs(30)).await;
    let counts = counted(&cluster, &record).await;
    assert!(counts.values().all(|count| *count == 1), "seed {seed}: stored twice: {counts:?}");
    let lost: Vec<_> = accepted.iter().filter(|payload| !counts.contains_key(*payload)).collect();
    assert!(lost.is_empty(), "seed {seed}: accepted and not there: {lost:?}");
    cluster.assert_only_own_logs(&record);
    moved
}

#[tokio::test(start_paused = true)]
async fn what_may_go_anywhere_is_somewhere_once_though_the_network_fails_and_nodes_die() {
    let mut moved = 0;
    for seed in 0..24 {
        moved += storm(seed).await;
    }
    assert!(moved > 100, "only {moved} records went elsewhere");
}
