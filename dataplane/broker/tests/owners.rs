//! Several nodes make one broker: what is accepted anywhere is in its owner's log once, whatever the network or a process does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use veena_broker::errors::ProduceError;
use veena_broker::message::{Committed, NewMessage};
use veena_broker::owners::wire::{self, Tenure};
use veena_broker::partition::PartitionId;
use veena_broker::ports::BrokerConfig;
use veena_contract::{
    CallerGone, Effect, Entropy, Key, Offset, OwnershipEpoch, PartitionIndex, PeerClass, PeerOp, PeerRefusal, PeerRequest, Reroute,
    TopicRecord, limits,
};

use veena_storage::disk::{Disk, OpenMode, read_full_at};

use crate::net::{Cluster, Fault, NODES, node_id, owned_by};
use crate::support::{FakeCatalog, Node, Seeded, link, name, replay_all, small_config, tenant, topic};

fn message(partition: Option<u32>, key: Option<&str>, payload: &str) -> NewMessage {
    let key = key.and_then(|key| Key::parse(Bytes::copy_from_slice(key.as_bytes())).expect("short key"));
    NewMessage {
        key,
        partition: partition.map(PartitionIndex),
        headers: Vec::new(),
        idempotency_key: None,
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    }
}

async fn produce(node: &Node, topic: &str, partition: u32, payload: &str) -> Result<(), ProduceError> {
    node.broker.produce(&tenant(), &name(topic), message(Some(partition), None, payload)).await
}

/// Owner-synchronous.
async fn commit(node: &Node, topic: &str, partition: u32, payload: &str) -> Result<Committed, ProduceError> {
    let messages = vec![message(Some(partition), None, payload)];
    let mut results = node.broker.produce_committed(&tenant(), &name(topic), messages).await.map_err(|failed| failed.error)?;
    results.pop().expect("one result per message")
}

/// A topic with one partition on each node. What it is sent goes nowhere else; see `reroute` for one that may.
fn spread(name: &str, id: u64) -> TopicRecord {
    waiting(owned_by(topic(name, id, 3), &NODES))
}

fn waiting(record: TopicRecord) -> TopicRecord {
    TopicRecord { reroute: Reroute::Never, ..record }
}

/// Every payload of a topic, with its partition, as it lies at its owner.
async fn at_owners(cluster: &Cluster, record: &TopicRecord) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for (index, owner) in (0..).zip(&record.owners) {
        let stored = replay_all(cluster.node(&owner.node.0), record.name.as_str(), index).await;
        all.push(stored.into_iter().map(|(_, payload)| payload).collect());
    }
    all
}

fn counted(stored: &[Vec<String>]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    stored.iter().flatten().for_each(|payload| *counts.entry(payload.clone()).or_default() += 1);
    counts
}

/// Produces through all nodes while the network fails at random, and one node dies again and again; then everything works, and each accepted
/// message must be there once.
async fn storm(seed: u64, victim: Option<&str>) {
    let mut cluster = Cluster::start(seed * 100).await;
    let record = spread("orders", 1);
    cluster.catalog.put(record.clone());
    let entropy = Seeded::new(seed);
    cluster.net.fail_all(&Fault::Flaky(Arc::clone(&entropy)));
    let mut accepted = Vec::new();
    for round in 0..24 {
        for n in 0..4 {
            let through = NODES[usize::try_from(entropy.next_u64() % 3).expect("small")];
            let payload = format!("{round}-{n}");
            let to = u32::try_from(entropy.next_u64() % 3).expect("small");
            if produce(cluster.node(through), "orders", to, &payload).await.is_ok() {
                accepted.push((to, payload));
            }
        }
        // Long enough for a commit that came late to meet one with the same records and more.
        sleep(Duration::from_millis(entropy.next_u64() % 3_000)).await;
        if let Some(victim) = victim.filter(|_| round % 4 == 3) {
            if round % 8 == 3 {
                cluster.kill(victim);
            } else {
                cluster.cut_power(victim, &entropy);
            }
            sleep(Duration::from_millis(entropy.next_u64() % 2_000)).await;
            cluster.revive(victim).await;
        }
    }
    cluster.net.heal();
    cluster.settle_down().await;
    // A request that was delayed may still come.
    sleep(Duration::from_secs(30)).await;
    let stored = at_owners(&cluster, &record).await;
    let counts = counted(&stored);
    assert_eq!(counts.values().max(), Some(&1), "seed {seed}: stored twice: {counts:?}");
    for (to, payload) in &accepted {
        let place = usize::try_from(*to).expect("small");
        assert!(stored[place].contains(payload), "seed {seed}: {payload} was accepted for partition {to} and is not there: {stored:?}");
    }
    cluster.assert_only_own_logs(&record);
}

#[tokio::test(start_paused = true)]
async fn what_is_accepted_anywhere_is_at_its_owner_once_whatever_the_network_loses() {
    for seed in 0..20 {
        storm(seed, None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_accepted_anywhere_is_at_its_owner_once_though_nodes_die() {
    for seed in 100..120 {
        // As an owner and as a sender: each node is both.
        storm(seed, Some(NODES[usize::try_from(seed % 3).expect("small")])).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_lose_nothing_and_repeat_nothing() {
    let cluster = Cluster::start(1).await;
    let record = spread("orders", 1);
    cluster.catalog.put(record.clone());
    cluster.net.fail("a", "b", Fault::LoseAnswers);
    cluster.net.fail("a", "c", Fault::LoseRequests);
    for n in 0..10 {
        produce(cluster.node("a"), "orders", 1, &format!("b{n}")).await.expect("accepted");
        produce(cluster.node("a"), "orders", 2, &format!("c{n}")).await.expect("accepted");
    }
    sleep(Duration::from_secs(30)).await;
    let expected = |node: &str| (0..10).map(|n| format!("{node}{n}")).collect::<Vec<_>>();
    // Where it stands is not answered either, so that nothing was ever sent.
    assert_eq!(at_owners(&cluster, &record).await, [Vec::<String>::new(), Vec::new(), Vec::new()]);
    cluster.net.heal();
    produce(cluster.node("a"), "orders", 1, "b10").await.expect("accepted");
    cluster.settle_down().await;
    let sent = cluster.net.calls(PeerOp::OWNER_COMMIT);
    cluster.net.fail_op("a", "b", PeerOp::OWNER_COMMIT, Fault::LoseAnswers);
    produce(cluster.node("a"), "orders", 1, "b11").await.expect("accepted");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(at_owners(&cluster, &record).await[1].last().map(String::as_str), Some("b11"), "it was carried out");
    cluster.settle_down().await;
    assert_eq!(cluster.net.calls(PeerOp::OWNER_COMMIT) - sent, 1, "where it stands was asked, and nothing was sent again");
    cluster.net.heal();
    let mut stored = at_owners(&cluster, &record).await;
    assert_eq!(stored[1].split_off(10), ["b10", "b11"]);
    assert_eq!(stored, [Vec::new(), expected("b"), expected("c")]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_cannot_be_reached_or_does_not_answer_stalls_only_itself() {
    for fault in [Fault::Cut, Fault::LoseRequests] {
        let mut config = small_config();
        config.undispatched_partition_bytes_max = 4_000;
        let cluster = Cluster::start_with(1, config).await;
        let record = spread("orders", 1);
        cluster.catalog.put(record.clone());
        cluster.net.fail("a", "b", fault);
        for n in 0..50 {
            produce(cluster.node("a"), "orders", 1, &format!("b{n}")).await.expect("accepted");
            produce(cluster.node("a"), "orders", 2, &format!("c{n}")).await.expect("accepted");
            produce(cluster.node("c"), "orders", 1, &format!("cb{n}")).await.expect("accepted");
        }
        sleep(Duration::from_secs(1)).await;
        let stored = at_owners(&cluster, &record).await;
        assert_eq!(stored[2].len(), 50, "another owner gets its own at once");
        assert_eq!(stored[1].len(), 50, "and the same owner gets those of another node");
        assert_eq!(cluster.node("a").broker.undispatched(), 50);
        let large = "x".repeat(4_000);
        produce(cluster.node("a"), "orders", 1, &large).await.expect("the last that fits");
        let over = produce(cluster.node("a"), "orders", 1, "over").await.expect_err("over the bound of the partition");
        assert!(matches!(over, ProduceError::OwnerDown), "{over}");
        produce(cluster.node("a"), "orders", 2, "c50").await.expect("others have their own");
        cluster.net.heal();
        cluster.settle_down().await;
        let stored = at_owners(&cluster, &record).await;
        assert_eq!((stored[1].len(), stored[2].len()), (101, 51));
        assert_eq!(counted(&stored).values().max(), Some(&1));
        cluster.assert_only_own_logs(&record);
    }
}

#[tokio::test(start_paused = true)]
async fn records_for_an_owner_that_is_away_are_parked_and_come_once_when_it_is_back() {
    let mut config = small_config();
    config.undispatched_bytes_max = 64 * 1024;
    config.undispatched_partition_bytes_max = 1024 * 1024;
    let mut cluster = Cluster::start_with(1, config).await;
    let record = spread("orders", 1);
    cluster.catalog.put(record.clone());
    cluster.kill("b");
    for n in 0..100 {
        produce(cluster.node("a"), "orders", 1, &format!("{n}{}", "x".repeat(1_000))).await.expect("accepted");
        sleep(Duration::from_millis(300)).await;
    }
    let parked = cluster.node("a").broker.metrics().records_parked.get();
    assert!(parked > 0, "nothing was parked");
    cluster.revive("b").await;
    cluster.settle_down().await;
    let stored = at_owners(&cluster, &record).await;
    let numbers: Vec<String> = stored[1].iter().map(|payload| payload.trim_end_matches('x').to_owned()).collect();
    assert_eq!(numbers, (0..100).map(|n| n.to_string()).collect::<Vec<_>>(), "once and in order");
}

#[tokio::test(start_paused = true)]
async fn a_child_on_other_nodes_gets_everything_once_and_in_order() {
    for seed in 0..10 {
        let mut cluster = Cluster::start(seed * 100).await;
        let (mut parent, mut child) =
            (waiting(owned_by(topic("parent", 1, 2), &["a", "b"])), owned_by(topic("child", 2, 3), &["b", "c", "c"]));
        link(&mut parent, &mut child, 0, vec![Offset(0), Offset(0)]);
        cluster.catalog.put(child.clone());
        cluster.catalog.put(parent.clone());
        let entropy = Seeded::new(seed);
        cluster.net.fail_all(&Fault::Flaky(Arc::clone(&entropy)));
        for n in 0..60 {
            let message = message(None, Some(["k0", "k1", "k2", "k3"][n % 4]), &format!("{}-{n:03}", n % 4));
            cluster.node("a").broker.produce(&tenant(), &name("parent"), message).await.expect("accepted");
            sleep(Duration::from_millis(entropy.next_u64() % 500)).await;
            if n == 30 {
                // The owner of a cursor and of a partition of the child.
                cluster.kill("b");
                sleep(Duration::from_secs(1)).await;
                cluster.revive("b").await;
            }
        }
        cluster.net.heal();
        cluster.settle_down().await;
        sleep(Duration::from_secs(30)).await;
        let stored = at_owners(&cluster, &child).await;
        let counts = counted(&stored);
        assert_eq!((counts.len(), counts.values().max()), (60, Some(&1)), "seed {seed}: {counts:?}");
        for partition in &stored {
            for key in ["0-", "1-", "2-", "3-"] {
                let of_key: Vec<_> = partition.iter().filter(|payload| payload.starts_with(key)).collect();
                assert!(of_key.is_sorted(), "seed {seed}: {of_key:?}");
            }
        }
        cluster.assert_only_own_logs(&child);
        cluster.assert_only_own_logs(&parent);
        let cursors = |name: &str| cluster.node(name).broker.cursor_numbers().len();
        assert_eq!(NODES.map(cursors), [1, 1, 0], "a cursor runs where its parent partition is");
    }
}

#[tokio::test(start_paused = true)]
async fn children_whose_node_is_away_hold_up_none_of_the_others_and_their_lag_is_told() {
    const AWAY: [usize; 2] = [3, 7];
    let mut cluster = Cluster::start(1).await;
    let mut parent = waiting(owned_by(topic("parent", 1, 1), &["a"]));
    let mut children = Vec::new();
    for n in 0..10 {
        let owner = if AWAY.contains(&n) { "c" } else { ["a", "b"][n % 2] };
        let mut child = owned_by(topic(&format!("child-{n}"), n as u64 + 2, 1), &[owner]);
        link(&mut parent, &mut child, 0, vec![Offset(0)]);
        cluster.catalog.put(child.clone());
        children.push(child);
    }
    cluster.catalog.put(parent.clone());
    let sent: Vec<String> = (0..20).map(|n| format!("{n:02}")).collect();
    cluster.kill("c");
    for upto in 1..=sent.len() {
        produce(cluster.node("b"), "parent", 0, &sent[upto - 1]).await.expect("accepted");
        sleep(Duration::from_secs(1)).await;
        let lags = cluster.node("b").broker.child_lags(&tenant(), &name("parent"), &parent.children).await;
        for (n, child) in children.iter().enumerate() {
            let lag = if AWAY.contains(&n) { upto } else { 0 };
            assert_eq!((lags[n].lag_messages, lags[n].is_complete), (lag as u64, true), "{} after {upto}", child.name);
            if lag == 0 {
                assert_eq!(at_owners(&cluster, child).await, [sent[..upto].to_vec()], "{}", child.name);
            }
        }
    }
    cluster.revive("c").await;
    sleep(Duration::from_secs(30)).await;
    for child in &children {
        assert_eq!(at_owners(&cluster, child).await, std::slice::from_ref(&sent), "{}", child.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_backlog_of_large_messages_goes_in_calls_that_a_node_takes() {
    // Far more than one call takes.
    const COUNT: usize = 2 * limits::PEER_DATA_BYTES_MAX / limits::MESSAGE_BYTES_MAX;
    let mut config = BrokerConfig::new("/data".into());
    config.disk_reserve_bytes = 0;
    let mut cluster = Cluster::start_with(1, config).await;
    let (mut parent, mut child) = (spread("parent", 1), owned_by(topic("child", 2, 1), &["c"]));
    link(&mut parent, &mut child, 0, vec![Offset(0); 3]);
    cluster.catalog.put(child.clone());
    cluster.catalog.put(parent.clone());
    // First the owner is away, then that of the copies.
    cluster.kill("b");
    for n in 0..COUNT {
        let payload = format!("{n:02}{}", "x".repeat(limits::MESSAGE_BYTES_MAX - 2));
        produce(cluster.node("a"), "parent", 1, &payload).await.expect("accepted");
    }
    cluster.net.fail("b", "c", Fault::Cut);
    cluster.revive("b").await;
    cluster.settle_down().await;
    cluster.net.heal();
    sleep(Duration::from_secs(30)).await;
    let numbers: Vec<String> = (0..COUNT).map(|n| format!("{n:02}")).collect();
    let shown = |stored: &[String]| stored.iter().map(|payload| payload[..2].to_owned()).collect::<Vec<_>>();
    assert_eq!(shown(&at_owners(&cluster, &parent).await[1]), numbers);
    assert_eq!(shown(&at_owners(&cluster, &child).await[0]), numbers);
}

#[tokio::test(start_paused = true)]
async fn an_owner_synchronous_message_says_what_is_known_of_it() {
    let cluster = Cluster::start(1).await;
    let record = spread("orders", 1);
    cluster.catalog.put(record.clone());
    let node = cluster.node("a");
    let placed = commit(node, "orders", 1, "one").await.expect("committed at its owner");
    assert_eq!((placed.partition, placed.offset), (PartitionIndex(1), Offset(0)));
    assert_eq!(commit(node, "orders", 0, "mine").await.expect("committed here").offset, Offset(0));

    cluster.net.fail("a", "b", Fault::Cut);
    let cut = commit(node, "orders", 1, "cut").await.expect_err("never sent");
    assert!(matches!(cut, ProduceError::OwnerDown), "{cut}");
    assert_eq!(cut.effect(), Effect::None);

    cluster.net.fail("a", "b", Fault::LoseRequests);
    let began = Instant::now();
    let silent = commit(node, "orders", 1, "lost").await.expect_err("sent, and not answered");
    assert!(matches!(silent, ProduceError::OutcomeUnknown), "{silent}");
    assert_eq!(began.elapsed().as_secs(), 10);

    cluster.net.fail("a", "b", Fault::LoseAnswers);
    let unknown = commit(node, "orders", 1, "stored").await.expect_err("not answered");
    assert_eq!(unknown.effect(), Effect::Possible);

    cluster.net.heal();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(at_owners(&cluster, &record).await[1], ["one", "stored"], "nobody sends it again");
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_committed_at_each_owner_by_itself() {
    let cluster = Cluster::start(1).await;
    let record = spread("orders", 1);
    cluster.catalog.put(record.clone());
    cluster.net.fail("a", "c", Fault::Cut);
    let messages = (0..6).map(|n| message(Some(n % 3), None, &n.to_string())).collect();
    let results = cluster.node("a").broker.produce_committed(&tenant(), &name("orders"), messages).await.expect("checked");
    let offsets: Vec<Option<u64>> = results.into_iter().map(|result| result.ok().map(|placed| placed.offset.0)).collect();
    assert_eq!(offsets, [Some(0), Some(0), None, Some(1), Some(1), None]);
    assert_eq!(at_owners(&cluster, &record).await, [vec!["0", "3"], vec!["1", "4"], vec![]]);
}

#[tokio::test(start_paused = true)]
async fn what_lies_in_the_directory_of_a_partition_that_another_node_owns_is_left_alone() {
    let mut config = small_config();
    config.retention_check_ms = 1_000;
    config.idle_log_eviction_ms = 1_000;
    let cluster = Cluster::start_with(1, config).await;
    let mut record = spread("orders", 1);
    record.retention_ms = 1;
    cluster.catalog.put(record.clone());
    for n in 0..30 {
        produce(cluster.node("b"), "orders", 1, &format!("{n}{}", "x".repeat(5_000))).await.expect("accepted");
        sleep(Duration::from_millis(100)).await;
    }
    cluster.settle_down().await;
    // A copy of it at another node, as a move that was given up would leave it.
    let dir = std::path::Path::new("/data/topics/default/0000000000000001/p00001");
    let (from, to) = (&cluster.members[1].disk, &cluster.members[0].disk);
    to.create_dir_all(dir).expect("made");
    for entry in from.list(dir).expect("listed") {
        let (path, mut bytes) = (dir.join(&entry.name), vec![0; usize::try_from(entry.len).expect("small")]);
        read_full_at(from.open(&path, OpenMode::Read).expect("opens").as_ref(), &mut bytes, 0).expect("read");
        to.open(&path, OpenMode::CreateNew).expect("made").write_at(&bytes, 0).expect("written");
    }
    let before = to.list(dir).expect("listed");
    assert!(before.len() > 2, "{before:?}");
    sleep(Duration::from_secs(7_200)).await;
    assert_eq!(format!("{:?}", to.list(dir).expect("listed")), format!("{before:?}"));
    assert!(from.list(dir).expect("listed").len() < before.len(), "at its owner retention applies");
}

/// As `spread`, with partition 1 owned by this node since this epoch.
fn owned_since(owner: &str, epoch: u64) -> TopicRecord {
    let mut record = spread("orders", 1);
    record.owners[1].node = node_id(owner);
    record.owners[1].epoch = OwnershipEpoch(epoch);
    record.revision = epoch;
    record
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_an_old_epoch_is_refused() {
    let mut cluster = Cluster::start(1).await;
    cluster.catalog.put(owned_since("b", 2));
    let old = FakeCatalog::new();
    old.put(owned_since("b", 1));
    cluster.kill("a");
    cluster.revive_on("a", &old).await;
    let refused = commit(cluster.node("a"), "orders", 1, "old").await.expect_err("refused");
    assert!(matches!(refused, ProduceError::OwnerDown), "{refused}");
    produce(cluster.node("a"), "orders", 1, "waits").await.expect("accepted");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(replay_all(cluster.node("b"), "orders", 1).await, []);
    old.put(owned_since("b", 2));
    cluster.settle_down().await;
    assert_eq!(replay_all(cluster.node("b"), "orders", 1).await, [(0, "waits".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_does_not_know_yet_that_it_is_one_catches_up_or_refuses() {
    let mut cluster = Cluster::start(1).await;
    cluster.catalog.put(owned_since("b", 2));
    let old = FakeCatalog::new();
    cluster.kill("b");
    cluster.revive_on("b", &old).await;
    let began = Instant::now();
    let refused = commit(cluster.node("a"), "orders", 1, "early").await.expect_err("unknown there");
    assert!(matches!(refused, ProduceError::OwnerDown), "{refused}");
    assert_eq!(began.elapsed().as_secs(), 1);
    let catching_up = async {
        sleep(Duration::from_millis(300)).await;
        old.put(owned_since("b", 1));
        sleep(Duration::from_millis(300)).await;
        old.put(owned_since("b", 2));
    };
    let (committed, ()) = tokio::join!(commit(cluster.node("a"), "orders", 1, "late"), catching_up);
    assert_eq!(committed.expect("it caught up").offset, Offset(0));
}

#[tokio::test(start_paused = true)]
async fn a_new_owner_is_asked_where_streams_stand_before_anything_is_sent() {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(owned_since("b", 1));
    for n in 0..3 {
        produce(cluster.node("a"), "orders", 1, &n.to_string()).await.expect("accepted");
        sleep(Duration::from_millis(100)).await;
    }
    cluster.catalog.put(owned_since("c", 2));
    let sent = cluster.net.calls(PeerOp::OWNER_COMMIT);
    produce(cluster.node("a"), "orders", 1, "3").await.expect("accepted");
    cluster.settle_down().await;
    assert_eq!(cluster.net.calls(PeerOp::OWNER_COMMIT) - sent, 2, "what is missing there, and the record; nothing that was refused");
    // Its log is another one, without what the former owner has: that is a gap of the stream, told once, and not a standstill.
    assert_eq!(replay_all(cluster.node("c"), "orders", 1).await, [(0, "3".to_owned())]);
    assert_eq!(cluster.node("c").broker.metrics().stream_gaps.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn records_for_a_topic_that_only_its_owner_knows_to_be_deleted_are_kept_until_the_leader_confirms() {
    let mut cluster = Cluster::start(1).await;
    let behind = FakeCatalog::new();
    for catalog in [&cluster.catalog, &behind] {
        catalog.put(spread("orders", 1));
    }
    cluster.kill("a");
    cluster.revive_on("a", &behind).await;
    produce(cluster.node("a"), "orders", 1, "one").await.expect("accepted");
    cluster.settle_down().await;
    cluster.catalog.remove(veena_contract::TopicId(1));
    let broker = &cluster.node("a").broker;
    produce(cluster.node("a"), "orders", 1, "two").await.expect("accepted");
    let asked = cluster.net.calls(PeerOp::OWNER_COMMIT) + cluster.net.calls(PeerOp::OWNER_OPEN);
    sleep(Duration::from_secs(60)).await;
    assert_eq!((broker.undispatched(), broker.metrics().records_discarded.get()), (1, 0));
    let asked = cluster.net.calls(PeerOp::OWNER_COMMIT) + cluster.net.calls(PeerOp::OWNER_OPEN) - asked;
    assert!(asked < 100, "asked {asked} times in a minute");
    behind.remove(veena_contract::TopicId(1));
    sleep(Duration::from_secs(5)).await;
    assert_eq!((broker.undispatched(), broker.metrics().records_discarded.get()), (0, 1));
}

fn request(tenure: &Tenure, remaining: Duration, caller: CallerGone) -> PeerRequest {
    let body = wire::produce(tenure, &[Bytes::from_static(b"body")]);
    PeerRequest { from: node_id("a"), class: PeerClass::Data, op: PeerOp::OWNER_PRODUCE, remaining, caller, body }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_has_given_up_is_not_begun() {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(spread("orders", 1));
    let broker = cluster.node("b").broker.clone();
    let partition = PartitionId { topic: veena_contract::TopicId(1), index: PartitionIndex(1) };
    let tenure = Tenure { partition, epoch: OwnershipEpoch(1) };
    let gone = CallerGone::default();
    gone.set();
    for (remaining, caller) in [(Duration::ZERO, CallerGone::default()), (Duration::from_secs(10), gone)] {
        let served = broker.serve_peer(request(&tenure, remaining, caller)).expect("one of the engine's").await;
        assert_eq!(served, Err(PeerRefusal::TooLate));
    }
    assert_eq!(replay_all(cluster.node("b"), "orders", 1).await, []);
    let other = Tenure { epoch: OwnershipEpoch(0), ..tenure };
    let refused = broker.serve_peer(request(&other, Duration::from_secs(10), CallerGone::default())).expect("the engine's").await;
    assert_eq!(refused, Ok(wire::not_owner()));
    assert!(broker.stop().await);
    let stopped = broker.serve_peer(request(&tenure, Duration::from_secs(10), CallerGone::default())).expect("the engine's").await;
    assert_eq!(stopped, Err(PeerRefusal::NotServing));
}

#[tokio::test(start_paused = true)]
async fn a_cursor_of_another_node_that_does_not_know_that_it_has_ended_copies_nothing_more() {
    let mut cluster = Cluster::start(1).await;
    let (mut parent, mut child) = (owned_by(topic("parent", 1, 1), &["a"]), owned_by(topic("child", 2, 1), &["b"]));
    link(&mut parent, &mut child, 0, vec![Offset(0)]);
    // The cursor's node has its own view.
    let behind = FakeCatalog::new();
    for catalog in [&cluster.catalog, &behind] {
        catalog.put(child.clone());
        catalog.put(parent.clone());
    }
    cluster.kill("a");
    cluster.revive_on("a", &behind).await;
    produce(cluster.node("a"), "parent", 0, "one").await.expect("accepted");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(at_owners(&cluster, &child).await, [["one"]]);
    parent.children.clear();
    parent.revision += 1;
    child.parent = None;
    child.revision += 1;
    cluster.catalog.put(child.clone());
    cluster.catalog.put(parent.clone());
    // The child's log is opened anew: its mark is looked at, and forgotten.
    cluster.kill("b");
    cluster.revive("b").await;
    assert_eq!(at_owners(&cluster, &child).await, [["one"]]);
    sleep(Duration::from_secs(10)).await;
    produce(cluster.node("a"), "parent", 0, "two").await.expect("accepted");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(at_owners(&cluster, &child).await, [["one"]]);
}
