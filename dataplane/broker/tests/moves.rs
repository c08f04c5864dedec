//! Partitions move between nodes while they are used: nothing is lost, repeated or handed out twice, whatever fails on the way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use veena_broker::errors::SettleError;
use veena_broker::message::{ConsumeRequest, Delivery, NewMessage, Settle};
use veena_broker::owners::moves::mark;
use veena_contract::{
    Command, Copy, Effect, Entropy, MoveToken, Offset, Ownership, PartitionAt, PartitionIndex, PeerOp, Reroute, TopicId, TopicRecord,
    limits,
};
use veena_storage::disk::mem::{Fault as DiskFault, FaultKind, Op};
use veena_storage::disk::{DirEntry, Disk, OpenMode, read_full_at};

use crate::net::{Cluster, Fault, NODES, node_id, owned_by};
use crate::support::{FakeCatalog, Node, Proposal, Seeded, link, name, replay_all, tenant, text, topic};

pub const ID: TopicId = TopicId(1);
/// The partition that moves: it begins at node b.
pub const INDEX: PartitionIndex = PartitionIndex(1);

pub fn spread() -> TopicRecord {
    TopicRecord { visibility_timeout_ms: 600_000, reroute: Reroute::Never, ..owned_by(topic("orders", 1, 3), &NODES) }
}

/// Each node sees the catalog a little later than it changes, and another little later.
pub async fn cluster(seed: u64) -> Cluster {
    let cluster = Cluster::start_lagging(seed).await;
    cluster.catalog.put(spread());
    seen_by_all().await;
    cluster
}

/// Every node sees what the catalog is now.
pub async fn seen_by_all() {
    sleep(Duration::from_millis(400)).await;
}

pub fn owner(catalog: &FakeCatalog) -> Ownership {
    use veena_contract::Catalog;
    catalog.view().topic_by_id(ID).expect("it lives").owners[1].clone()
}

fn at(catalog: &FakeCatalog) -> PartitionAt {
    PartitionAt { tenant: tenant(), topic: ID, index: INDEX, epoch: owner(catalog).epoch }
}

pub fn begin(cluster: &Cluster, to: &str, token: u128) {
    let command = Command::BeginMove { at: at(&cluster.catalog), to: node_id(to), token: MoveToken(token) };
    cluster.catalog.apply(command).expect("begun");
}

pub fn abort(cluster: &Cluster, token: u128) -> bool {
    cluster.catalog.apply(Command::AbortMove { at: at(&cluster.catalog), token: MoveToken(token) }).is_ok()
}

/// Waits for what has to come.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(120), waiting).await.unwrap_or_else(|_| panic!("never so: {what}"));
}

pub async fn until_at(cluster: &Cluster, to: &str) {
    let is_there = || owner(&cluster.catalog) == Ownership::new(node_id(to), owner(&cluster.catalog).epoch);
    let waiting = async {
        while !is_there() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let stuck = || panic!("{:?} is stuck: {:?}", owner(&cluster.catalog), cluster.node(to).broker.moves());
    timeout(Duration::from_secs(120), waiting).await.unwrap_or_else(|_| stuck());
}

pub async fn until_frozen(cluster: &Cluster) {
    until("the partition is frozen", || owner(&cluster.catalog).is_frozen()).await;
}

pub async fn put(node: &Node, payload: &str) {
    let message = NewMessage {
        key: None,
        partition: Some(INDEX),
        headers: Vec::new(),
        idempotency_key: None,
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    };
    node.broker.produce(&tenant(), &name("orders"), message).await.expect("accepted");
}

/// Takes messages of any partition.
pub async fn take(node: &Node, messages_max: usize, wait_ms: u64) -> Vec<Delivery> {
    take_of(node, None, messages_max, wait_ms).await
}

pub async fn take_of(node: &Node, partition: Option<PartitionIndex>, messages_max: usize, wait_ms: u64) -> Vec<Delivery> {
    let found = node.broker.consume(wanted(partition, messages_max, wait_ms)).await.expect("a consumer is never refused for a move");
    let messages = found.messages().to_vec();
    found.written();
    messages
}

pub fn wanted(partition: Option<PartitionIndex>, messages_max: usize, wait_ms: u64) -> ConsumeRequest {
    ConsumeRequest {
        tenant: tenant(),
        topic: name("orders"),
        partition,
        messages_max,
        bytes_max: limits::CONSUME_SCAN_BYTES_MAX,
        wait: Duration::from_millis(wait_ms),
    }
}

/// Owner-synchronous, until it is taken; while a partition moves it may be refused, and has not been stored then.
pub async fn commit(node: &Node, payload: &str) {
    loop {
        let payload = Bytes::copy_from_slice(payload.as_bytes());
        let message = NewMessage { key: None, partition: Some(INDEX), headers: Vec::new(), idempotency_key: None, payload };
        let results = node.broker.produce_committed(&tenant(), &name("orders"), vec![message]).await.expect("checked");
        match &results[0] {
            Ok(_) => return,
            Err(error) => assert_eq!(error.effect(), Effect::None, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

pub async fn ack(node: &Node, delivery: &Delivery) -> bool {
    try_ack(node, delivery).await.is_ok()
}

async fn try_ack(node: &Node, delivery: &Delivery) -> Result<(), SettleError> {
    let handle = delivery.lease.expect("a lease").handle;
    node.broker.settle(&tenant(), &name("orders"), handle, Settle::Ack).await
}

pub fn dirs(cluster: &Cluster, node: &str) -> Vec<String> {
    let member = cluster.members.iter().find(|member| member.name == node).expect("one of three");
    let entries = member.disk.list(format!("/data/topics/default/{ID}").as_ref()).unwrap_or_default();
    entries.into_iter().map(|entry| entry.name).filter(|name| name.starts_with("p00001")).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<(u64, String)> {
    range.map(|n| (n as u64, format!("{n:04}"))).collect()
}

/// So long that a few of them fill a segment.
pub fn long(n: usize) -> String {
    format!("{n:04}{}", "x".repeat(5_000))
}

pub async fn stored(cluster: &Cluster) -> Vec<String> {
    seen_by_all().await;
    let owner = owner(&cluster.catalog);
    let stored = replay_all(cluster.node(&owner.node.0), "orders", INDEX.0).await;
    stored.into_iter().map(|(_, payload)| payload[..4].to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_partition_moves_with_all_it_has() {
    let cluster = cluster(1).await;
    for n in 0..40 {
        put(cluster.node(NODES[n % 3]), &long(n)).await;
        sleep(Duration::from_millis(20)).await;
    }
    cluster.settle_down().await;
    // Two are settled, one of them ahead; two are leased; the others wait.
    let taken = take(cluster.node("a"), 4, 0).await;
    assert_eq!(taken.len(), 4);
    assert!(ack(cluster.node("c"), &taken[0]).await && ack(cluster.node("a"), &taken[2]).await);
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    assert_eq!(stored(&cluster).await, (0..40).map(|n| format!("{n:04}")).collect::<Vec<_>>());
    let stats = cluster.node("a").broker.describe(&tenant(), &name("orders"), Some(INDEX)).await.expect("described");
    let stats = stats[0].expect("its owner answers");
    assert_eq!((stats.frontier, stats.leased, stats.acked_ahead, stats.high_watermark), (Offset(1), 2, 1, Offset(40)));
    // The leases go on, and nobody else gets what they are for.
    let next = take(cluster.node("b"), 1, 0).await;
    assert_eq!(next[0].offset, Offset(4));
    for delivery in [&taken[1], &taken[3]] {
        assert!(ack(cluster.node("b"), delivery).await, "a handle outlives the move");
    }
    assert!(!ack(cluster.node("b"), &taken[0]).await, "it was acked before");
    put(cluster.node("b"), "0040").await;
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await.len(), 41);
    // What is left of it is set aside.
    until("the former owner has nothing of it", || dirs(&cluster, "b").is_empty()).await;
    assert_eq!(dirs(&cluster, "c"), ["p00001"]);
    let kept = cluster.members[1].disk.list("/data/quarantine".as_ref()).expect("listed");
    assert_eq!(kept.len(), 1, "{kept:?}");
}

/// Produces, consumes and acks through all nodes without end; in the end everything was delivered, in order, once if it was acked.
struct Traffic {
    sent: usize,
    acked: BTreeMap<String, usize>,
    held: Vec<Delivery>,
}

impl Traffic {
    fn new() -> Self {
        Self { sent: 0, acked: BTreeMap::new(), held: Vec::new() }
    }

    async fn round(&mut self, cluster: &Cluster, dead: &[&str], entropy: &Seeded) {
        let living: Vec<&str> = NODES.into_iter().filter(|node| !dead.contains(node)).collect();
        let any = || living[usize::try_from(entropy.next_u64()).unwrap_or(0) % living.len()];
        for _ in 0..3 {
            match entropy.next_u64() % 4 {
                0 => commit(cluster.node(any()), &long(self.sent)).await,
                _ => put(cluster.node(any()), &long(self.sent)).await,
            }
            self.sent += 1;
        }
        let partition = entropy.next_u64().is_multiple_of(2).then_some(INDEX);
        let found = take_of(cluster.node(any()), partition, 2, entropy.next_u64() % 40).await;
        for delivery in &found {
            let payload = &text(delivery)[..4];
            assert!(!self.acked.contains_key(payload), "{payload} was acked and comes again");
            assert!(self.held.iter().all(|held| held.offset != delivery.offset), "{payload} is leased twice");
        }
        self.held.extend(found);
        while self.held.len() > 3 {
            let delivery = self.held.remove(0);
            let payload = text(&delivery)[..4].to_owned();
            try_ack(cluster.node(any()), &delivery).await.unwrap_or_else(|error| panic!("{payload}, whose lease lives: {error:?}"));
            *self.acked.entry(payload).or_default() += 1;
        }
        sleep(Duration::from_millis(entropy.next_u64() % 60)).await;
    }

    /// Everything is there once, in the order of each sender, and all that was acked stays so.
    async fn check(mut self, cluster: &Cluster) {
        cluster.settle_down().await;
        let stored = stored(cluster).await;
        let mut sorted = stored.clone();
        sorted.sort();
        assert_eq!(sorted, (0..self.sent).map(|n| format!("{n:04}")).collect::<Vec<_>>(), "each once");
        for delivery in std::mem::take(&mut self.held) {
            assert!(ack(cluster.node("a"), &delivery).await, "a lease outlives every move");
            *self.acked.entry(text(&delivery)[..4].to_owned()).or_default() += 1;
        }
        loop {
            let found = take(cluster.node("a"), 50, 3_000).await;
            if found.is_empty() {
                break;
            }
            for delivery in found {
                assert!(ack(cluster.node("b"), &delivery).await);
                *self.acked.entry(text(&delivery)[..4].to_owned()).or_default() += 1;
            }
        }
        assert_eq!(self.acked.len(), self.sent, "each was delivered");
        assert!(self.acked.values().all(|times| *times == 1), "{:?}", self.acked);
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_goes_round_under_traffic_and_nothing_is_lost_repeated_or_leased_twice() {
    for seed in 0..6 {
        let cluster = cluster(seed * 100).await;
        let entropy = Seeded::new(seed);
        let mut traffic = Traffic::new();
        for step in 0..7 {
            for _ in 0..6 {
                traffic.round(&cluster, &[], &entropy).await;
            }
            let to = ["c", "a", "b"][step % 3];
            begin(&cluster, to, step as u128 + 1);
            let moving = until_at(&cluster, to);
            tokio::pin!(moving);
            while moving.as_mut().now_or_never().is_none() {
                traffic.round(&cluster, &[], &entropy).await;
            }
        }
        traffic.check(&cluster).await;
        until("copies are set aside", || NODES.iter().map(|node| dirs(&cluster, node).len()).sum::<usize>() == 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_aborted_move_leaves_the_partition_where_it_was_at_every_step() {
    for step in 0..4 {
        let cluster = cluster(step * 100).await;
        let entropy = Seeded::new(step);
        let mut traffic = Traffic::new();
        for _ in 0..8 {
            traffic.round(&cluster, &[], &entropy).await;
        }
        match step {
            // Nothing was copied.
            0 => cluster.net.fail_op("c", "b", PeerOp::OWNER_COPY, Fault::Cut),
            // Copied, not frozen.
            1 => cluster.net.fail_op("c", "b", PeerOp::OWNER_FREEZE, Fault::Cut),
            // Frozen, and the target has not heard of it.
            2 => cluster.net.fail_op("c", "b", PeerOp::OWNER_FREEZE, Fault::LoseAnswers),
            // Installed, and the flip does not get through.
            _ => cluster.catalog.next_proposals([Proposal::Made].into_iter().chain([Proposal::NeverSent; 1000])),
        }
        begin(&cluster, "c", 7);
        match step {
            0 | 1 => {
                for _ in 0..8 {
                    traffic.round(&cluster, &[], &entropy).await;
                }
            }
            2 => until_frozen(&cluster).await,
            _ => until("it is in its place", || dirs(&cluster, "c") == ["p00001"]).await,
        }
        assert!(abort(&cluster, 7));
        for _ in 0..8 {
            traffic.round(&cluster, &[], &entropy).await;
        }
        assert_eq!(owner(&cluster.catalog), Ownership::new(node_id("b"), spread().owners[1].epoch));
        until("the copy is set aside", || dirs(&cluster, "c").is_empty()).await;
        // Another move of it is not hindered by what the first one left.
        cluster.net.heal();
        cluster.catalog.forget_proposals();
        begin(&cluster, "c", 8);
        until_at(&cluster, "c").await;
        traffic.check(&cluster).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_may_have_been_recorded_is_undone_by_the_catalog_alone() {
    let cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    // The record of the stop is lost on its way, and so are those that are tried again.
    cluster.catalog.next_proposals([Proposal::Late; 1000]);
    begin(&cluster, "c", 7);
    sleep(Duration::from_secs(5)).await;
    assert!(!owner(&cluster.catalog).is_frozen());
    put(cluster.node("a"), "0001").await;
    // As long as it may come, nothing is taken, however long that is.
    sleep(Duration::from_secs(600)).await;
    assert_eq!(stored(&cluster).await, ["0000"]);
    assert!(abort(&cluster, 7));
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await, ["0000", "0001"]);
    // When it comes after all, it is against a move that is over.
    cluster.catalog.deliver_late();
    assert!(!owner(&cluster.catalog).is_frozen());
    cluster.catalog.forget_proposals();
    begin(&cluster, "c", 8);
    until_at(&cluster, "c").await;
    assert_eq!(stored(&cluster).await, ["0000", "0001"]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_has_stopped_tells_no_numbers_since_another_may_have_gone_on_from_there() {
    let cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    let told = async || {
        let mut all = Vec::new();
        for node in ["a", "b"] {
            let stats = cluster.node(node).broker.describe(&tenant(), &name("orders"), Some(INDEX)).await.expect("known").remove(0);
            all.push(stats.map(|stats| stats.high_watermark.get()));
        }
        all
    };
    assert_eq!(told().await, [Some(1); 2]);
    cluster.catalog.next_proposals([Proposal::Late; 1000]);
    begin(&cluster, "c", 7);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(told().await, [None; 2]);
    assert!(abort(&cluster, 7));
    seen_by_all().await;
    assert_eq!(told().await, [Some(1); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_was_certainly_not_recorded_is_undone_at_once() {
    let cluster = cluster(1).await;
    cluster.catalog.next_proposals([Proposal::NeverSent; 3]);
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    cluster.net.fail_op("c", "b", PeerOp::OWNER_COPY, Fault::Delay(Duration::from_millis(100)));
    begin(&cluster, "c", 7);
    sleep(Duration::from_millis(350)).await;
    put(cluster.node("a"), "0001").await;
    until_at(&cluster, "c").await;
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await, ["0000", "0001"]);
}

#[tokio::test(start_paused = true)]
async fn changes_of_owner_that_nobody_hears_of_stand() {
    for fates in [[Proposal::MadeUnheard, Proposal::Made], [Proposal::Made, Proposal::MadeUnheard], [Proposal::MadeUnheard; 2]] {
        let cluster = cluster(1).await;
        put(cluster.node("a"), "0000").await;
        cluster.settle_down().await;
        let taken = take(cluster.node("a"), 1, 0).await;
        cluster.catalog.next_proposals(fates);
        begin(&cluster, "c", 7);
        until_at(&cluster, "c").await;
        put(cluster.node("b"), "0001").await;
        cluster.settle_down().await;
        assert_eq!(stored(&cluster).await, ["0000", "0001"]);
        assert!(ack(cluster.node("b"), &taken[0]).await);
    }
}

/// Kills a node at a moment of a move that the seed gives, and brings it back; the move ends by itself, and nothing that was settled or
/// accepted is lost or stored twice.
async fn dies(victim: &str, seed: u64, has_power: bool) {
    let mut cluster = cluster(seed * 100).await;
    let entropy = Seeded::new(seed);
    for n in 0..30 {
        put(cluster.node(NODES[n % 3]), &long(n)).await;
        sleep(Duration::from_millis(5)).await;
    }
    cluster.settle_down().await;
    let taken = take(cluster.node("a"), 3, 0).await;
    for delivery in &taken {
        assert!(ack(cluster.node("a"), delivery).await);
    }
    // Long enough for acks to be durable.
    sleep(Duration::from_secs(2)).await;
    // Calls take their time, so that a moment can be met.
    cluster.net.fail_all(&Fault::Slow(Arc::clone(&entropy)));
    begin(&cluster, "c", 7);
    sleep(Duration::from_millis(entropy.next_u64() % 600)).await;
    let moment = owner(&cluster.catalog);
    if has_power {
        cluster.kill(victim);
    } else {
        cluster.cut_power(victim, &entropy);
    }
    put(cluster.node("a"), &long(30)).await;
    sleep(Duration::from_millis(entropy.next_u64() % 2_000)).await;
    cluster.revive(victim).await;
    until_at(&cluster, "c").await;
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await, (0..31).map(|n| format!("{n:04}")).collect::<Vec<_>>(), "seed {seed}, {victim} at {moment:?}");
    let next = take(cluster.node("a"), 50, 100).await;
    assert_eq!(next.first().map(|next| next.offset), Some(Offset(3)), "seed {seed}, {victim} at {moment:?}: what was acked comes again");
    assert_eq!(next.len(), 28);
}

#[tokio::test(start_paused = true)]
async fn the_owner_may_die_at_any_moment_of_a_move() {
    for seed in 0..25 {
        dies("b", seed, seed % 2 == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_target_may_die_at_any_moment_of_a_move() {
    for seed in 0..25 {
        dies("c", seed, seed % 2 == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_owner_that_comes_in_a_later_life_of_the_target_finds_the_copy_in_its_place() {
    let mut cluster = cluster(1).await;
    for n in 0..3 {
        put(cluster.node("a"), &long(n)).await;
    }
    cluster.settle_down().await;
    let taken = take(cluster.node("a"), 1, 0).await;
    assert!(ack(cluster.node("a"), &taken[0]).await);
    // The first life's proposal is on its way for long; nothing that the next life proposes gets through.
    cluster.catalog.next_proposals([Proposal::Made, Proposal::Late].into_iter().chain([Proposal::NeverSent; 1000]));
    begin(&cluster, "c", 7);
    until("it is in its place", || dirs(&cluster, "c") == ["p00001"]).await;
    sleep(Duration::from_secs(1)).await;
    cluster.kill("c");
    cluster.net.fail_op("c", "b", PeerOp::OWNER_FREEZE, Fault::Cut);
    cluster.revive("c").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(owner(&cluster.catalog).node, node_id("b"));
    cluster.catalog.deliver_late();
    until_at(&cluster, "c").await;
    assert_eq!(stored(&cluster).await, ["0000", "0001", "0002"]);
    assert_eq!(take(cluster.node("a"), 1, 0).await[0].offset, Offset(1), "what was acked stays so");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_in_its_place_is_taken_over_though_its_target_died_and_its_owner_is_gone() {
    let mut cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    cluster.catalog.next_proposals([Proposal::Made].into_iter().chain([Proposal::NeverSent; 1000]));
    begin(&cluster, "c", 7);
    until("it is in its place", || dirs(&cluster, "c") == ["p00001"]).await;
    cluster.kill("c");
    cluster.kill("b");
    cluster.catalog.forget_proposals();
    cluster.revive("c").await;
    until_at(&cluster, "c").await;
    assert_eq!(stored(&cluster).await, ["0000"]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_died_after_its_stop_was_recorded_serves_nothing_and_hands_over_what_is_on_its_disk() {
    let mut cluster = cluster(1).await;
    for n in 0..5 {
        put(cluster.node("a"), &long(n)).await;
    }
    cluster.settle_down().await;
    let taken = take(cluster.node("a"), 2, 0).await;
    assert!(ack(cluster.node("a"), &taken[0]).await);
    cluster.net.fail_op("c", "b", PeerOp::OWNER_FREEZE, Fault::LoseAnswers);
    begin(&cluster, "c", 7);
    until_frozen(&cluster).await;
    cluster.kill("b");
    cluster.revive("b").await;
    put(cluster.node("b"), &long(5)).await;
    assert!(take(cluster.node("b"), 5, 2_000).await.is_empty(), "nobody is served");
    assert_eq!(stored(&cluster).await.len(), 5, "nothing is taken");
    cluster.net.heal();
    until_at(&cluster, "c").await;
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await.len(), 6);
    assert!(!ack(cluster.node("a"), &taken[1]).await, "a lease ends with the life that granted it");
    assert_eq!(take(cluster.node("a"), 1, 0).await[0].offset, Offset(1), "what was acked stays so");
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_stop_that_comes_when_its_owner_has_gone_on_ends_the_move() {
    let mut cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    cluster.catalog.next_proposals([Proposal::Late; 1000]);
    begin(&cluster, "c", 7);
    sleep(Duration::from_secs(5)).await;
    cluster.kill("b");
    cluster.catalog.forget_proposals();
    cluster.net.fail_op("c", "b", PeerOp::OWNER_FREEZE, Fault::Cut);
    cluster.revive("b").await;
    put(cluster.node("a"), "0001").await;
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await, ["0000", "0001"]);
    cluster.catalog.deliver_late();
    until("the move is over", || owner(&cluster.catalog).moving.is_none()).await;
    cluster.net.heal();
    put(cluster.node("a"), "0002").await;
    cluster.settle_down().await;
    assert_eq!((stored(&cluster).await, owner(&cluster.catalog).node), (numbers(0..3).into_iter().map(|(_, n)| n).collect(), node_id("b")));
}

#[tokio::test(start_paused = true)]
async fn what_a_client_did_not_get_comes_at_once_though_its_partition_has_moved_meanwhile() {
    let cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    put(cluster.node("a"), "0001").await;
    cluster.settle_down().await;
    // One is on its way to a client of the owner, one to a client of another node.
    let here = cluster.node("b").broker.consume(wanted(None, 1, 0)).await.expect("found");
    let there = cluster.node("a").broker.consume(wanted(None, 1, 0)).await.expect("found");
    assert_eq!((here.messages().len(), there.messages().len()), (1, 1));
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    drop((here, there));
    sleep(Duration::from_secs(1)).await;
    let again = take(cluster.node("a"), 2, 1_000).await;
    assert_eq!(again.iter().map(|delivery| delivery.offset.0).collect::<Vec<_>>(), [0, 1]);
    assert!(again.iter().all(|delivery| delivery.lease.is_some_and(|lease| lease.delivery_count == 1)), "they were delivered to nobody");
}

#[tokio::test(start_paused = true)]
async fn a_parked_consumer_is_served_by_the_new_owner() {
    let cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    assert_eq!(take(cluster.node("a"), 1, 0).await.len(), 1);
    let parked: Vec<_> = NODES
        .map(|node| {
            let broker = cluster.node(node).broker.clone();
            tokio::spawn(async move {
                let found = broker.consume(wanted(Some(INDEX), 1, 60_000)).await.expect("no error");
                let count = found.messages().len();
                found.written();
                count
            })
        })
        .into();
    sleep(Duration::from_secs(1)).await;
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    for n in 1..4 {
        put(cluster.node("b"), &format!("{n:04}")).await;
    }
    for consumer in parked {
        assert_eq!(timeout(Duration::from_secs(5), consumer).await.expect("woken").expect("no panic"), 1);
    }
}

fn family() -> (TopicRecord, TopicRecord) {
    let (mut parent, mut child) = (owned_by(topic("orders", 1, 3), &NODES), owned_by(topic("child", 2, 2), &["a", "c"]));
    parent.reroute = Reroute::Never;
    link(&mut parent, &mut child, 0, vec![Offset(0); 3]);
    (parent, child)
}

async fn in_child(cluster: &Cluster, child: &TopicRecord) -> Vec<String> {
    let mut all = Vec::new();
    for (index, owner) in (0..).zip(&child.owners) {
        all.extend(replay_all(cluster.node(&owner.node.0), "child", index).await.into_iter().map(|(_, payload)| payload[..4].to_owned()));
    }
    all.sort();
    all
}

#[tokio::test(start_paused = true)]
async fn a_child_gets_everything_once_though_its_parent_goes_round_and_it_grows() {
    for seed in 0..10 {
        let cluster = Cluster::start_lagging(seed * 100).await;
        let entropy = Seeded::new(seed);
        let (parent, mut child) = family();
        cluster.catalog.put(child.clone());
        cluster.catalog.put(parent);
        seen_by_all().await;
        let mut sent = 0;
        for step in 0..6 {
            cluster.net.fail_all(&Fault::Flaky(Arc::clone(&entropy)));
            for _ in 0..10 {
                put(cluster.node(NODES[sent % 3]), &format!("{sent:04}")).await;
                sent += 1;
                sleep(Duration::from_millis(entropy.next_u64() % 400)).await;
            }
            if step == 2 || step == 4 {
                child.partitions += 1;
                child.owners.push(Ownership::new(node_id(NODES[step % 3]), child.owners[0].epoch));
                child.revision += 1;
                cluster.catalog.put(child.clone());
            }
            begin(&cluster, ["c", "a", "b"][step % 3], step as u128 + 1);
            sleep(Duration::from_millis(entropy.next_u64() % 3_000)).await;
            cluster.net.heal();
            until_at(&cluster, ["c", "a", "b"][step % 3]).await;
        }
        cluster.settle_down().await;
        sleep(Duration::from_secs(30)).await;
        let expected: Vec<String> = (0..sent).map(|n| format!("{n:04}")).collect();
        assert_eq!(in_child(&cluster, &child).await, expected, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_of_a_child_moves_while_its_parent_feeds_it() {
    for seed in 0..6 {
        let cluster = Cluster::start_lagging(seed * 100).await;
        let entropy = Seeded::new(seed);
        // The child is what moves.
        let (mut parent, mut child) = (owned_by(topic("parent", 2, 3), &NODES), owned_by(topic("orders", 1, 2), &["a", "b"]));
        parent.reroute = Reroute::Never;
        link(&mut parent, &mut child, 0, vec![Offset(0); 3]);
        cluster.catalog.put(child.clone());
        cluster.catalog.put(parent);
        seen_by_all().await;
        let mut sent = 0;
        for step in 0..6 {
            begin(&cluster, ["c", "a", "b"][step % 3], step as u128 + 1);
            let moving = until_at(&cluster, ["c", "a", "b"][step % 3]);
            tokio::pin!(moving);
            loop {
                let payload = Bytes::from(format!("{sent:04}"));
                let message = NewMessage { key: None, partition: None, headers: Vec::new(), idempotency_key: None, payload };
                cluster.node(NODES[sent % 3]).broker.produce(&tenant(), &name("parent"), message).await.expect("accepted");
                sent += 1;
                sleep(Duration::from_millis(entropy.next_u64() % 50)).await;
                if moving.as_mut().now_or_never().is_some() {
                    break;
                }
            }
        }
        cluster.settle_down().await;
        sleep(Duration::from_secs(30)).await;
        let mut all = stored(&cluster).await;
        all.extend(replay_all(cluster.node("a"), "orders", 0).await.into_iter().map(|(_, payload)| payload));
        all.sort();
        assert_eq!(all, (0..sent).map(|n| format!("{n:04}")).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_may_be_deleted_at_any_moment_of_a_move() {
    for seed in 0..12 {
        let cluster = cluster(seed * 100).await;
        let entropy = Seeded::new(seed);
        for n in 0..20 {
            put(cluster.node(NODES[n % 3]), &long(n)).await;
        }
        cluster.net.fail_all(&Fault::Slow(Arc::clone(&entropy)));
        begin(&cluster, "c", 7);
        sleep(Duration::from_millis(entropy.next_u64() % 500)).await;
        cluster.catalog.remove(ID);
        until("nothing is left of it", || NODES.iter().all(|node| dirs(&cluster, node).is_empty())).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_set_aside_that_the_leader_does_not_confirm() {
    let cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    cluster.catalog.set_leaderless(true);
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(dirs(&cluster, "b"), ["p00001"]);
    cluster.catalog.set_leaderless(false);
    until("it is set aside", || dirs(&cluster, "b").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_was_served_stays_though_the_catalog_is_put_back_to_before_its_move() {
    let mut cluster = cluster(1).await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    // At first it cannot be written that it is served.
    cluster.members[2].disk.inject(DiskFault {
        op: Op::Create,
        path_contains: "copy.cell".into(),
        after: 1,
        times: 1,
        kind: FaultKind::Eio,
    });
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    put(cluster.node("a"), "0001").await;
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await, ["0000", "0001"]);
    let dir = format!("/data/topics/default/{ID}/p00001");
    let said = mark::read(&cluster.members[2].disk, dir.as_ref()).expect("read");
    assert_eq!(said.map(|said| said.copy), Some(Copy::Served(owner(&cluster.catalog).epoch)));
    cluster.kill("c");
    cluster.catalog.put(spread());
    cluster.revive("c").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(dirs(&cluster, "c"), ["p00001"], "nothing else has what was committed to it");
}

#[tokio::test(start_paused = true)]
async fn what_was_written_last_is_sealed_before_its_partition_stops_so_that_little_is_left_to_be_copied_then() {
    let cluster = cluster(21).await;
    put(cluster.node("a"), &long(0)).await;
    cluster.settle_down().await;
    let segments = |node: &str| {
        let member = cluster.members.iter().find(|member| member.name == node).expect("one of three");
        let entries = member.disk.list(format!("/data/topics/default/{ID}/p00001").as_ref()).expect("listed");
        entries.into_iter().map(|entry| entry.name).filter(|name| name.ends_with(".log")).count()
    };
    assert_eq!(segments("b"), 1);
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    seen_by_all().await;
    assert_eq!(segments("c"), 2);
    assert_eq!(stored(&cluster).await, ["0000"]);
    // Of what is little anyway nothing more is sealed.
    put(cluster.node("a"), "0001").await;
    cluster.settle_down().await;
    begin(&cluster, "b", 8);
    until_at(&cluster, "b").await;
    assert_eq!(segments("b"), 2);
    assert_eq!(stored(&cluster).await, ["0000", "0001"]);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_nobody_has_used_moves_too() {
    let cluster = cluster(1).await;
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    put(cluster.node("a"), "0000").await;
    cluster.settle_down().await;
    assert_eq!(stored(&cluster).await, ["0000"]);
    assert_eq!(take(cluster.node("b"), 1, 0).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_written_as_fast_as_it_is_copied_moves_all_the_same() {
    const PAYLOAD_BYTES: u64 = 512 * 1024;
    const AHEAD_BYTES: u64 = 2 * limits::MOVE_REST_BYTES_MAX;
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(spread());
    let long = "x".repeat(usize::try_from(PAYLOAD_BYTES).expect("fits"));
    let write = async |number: u64| {
        let payload = Bytes::from(format!("{number:04}{long}"));
        let message = NewMessage { key: None, partition: Some(INDEX), headers: Vec::new(), idempotency_key: None, payload };
        let results = cluster.node("b").broker.produce_committed(&tenant(), &name("orders"), vec![message]).await.expect("checked");
        results[0].is_ok()
    };
    // Each piece takes its time, and meanwhile more is written than may be missing when the owner is asked to stop.
    cluster.net.fail_op("c", "b", PeerOp::OWNER_COPY, Fault::Delay(Duration::from_millis(20)));
    let copied = || cluster.node("c").broker.moves().first().map_or(0, |progress| progress.copied_bytes);
    let (mut written, mut bytes_at_end) = (0, 0);
    begin(&cluster, "c", 7);
    while owner(&cluster.catalog).moving.is_some() {
        bytes_at_end = copied().max(bytes_at_end);
        if written * PAYLOAD_BYTES < bytes_at_end + AHEAD_BYTES && write(written).await {
            written += 1;
        }
        assert!(written * PAYLOAD_BYTES < 4 * u64::from(limits::MOVE_ROUNDS_MAX) * AHEAD_BYTES, "it is copied for ever");
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(owner(&cluster.catalog).node, node_id("c"));
    let rounds = u64::from(limits::MOVE_ROUNDS_MAX) * limits::MOVE_REST_BYTES_MAX;
    assert!(bytes_at_end > rounds, "{bytes_at_end} bytes: it was never written that fast");
    assert_eq!(stored(&cluster).await, (0..written).map(|n| format!("{n:04}")).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_is_set_aside_is_all_that_the_former_owner_had() {
    let mut cluster = cluster(1).await;
    for n in 0..40 {
        put(cluster.node("a"), &long(n)).await;
        sleep(Duration::from_millis(20)).await;
    }
    cluster.settle_down().await;
    begin(&cluster, "c", 7);
    until_at(&cluster, "c").await;
    until("it is set aside", || dirs(&cluster, "b").is_empty()).await;
    // Whatever becomes of the new owner's disk, and however often it is looked for what is of no use.
    cluster.kill("c");
    for _ in 0..2 {
        cluster.kill("b");
        cluster.revive("b").await;
        sleep(Duration::from_secs(60)).await;
    }
    let segments = |node: usize, dir: &str| {
        let disk = cluster.members[node].disk.reopen();
        let entries = disk.list(dir.as_ref()).expect("listed").into_iter().filter(|entry| entry.name.ends_with(".log"));
        let read = |entry: DirEntry| {
            let file = disk.open(format!("{dir}/{}", entry.name).as_ref(), OpenMode::Read).expect("opened");
            let mut bytes = vec![0; usize::try_from(entry.len).expect("fits")];
            read_full_at(file.as_ref(), &mut bytes, 0).expect("read");
            // Room for what was to come is no record.
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            (entry.name, bytes)
        };
        entries.map(read).collect::<BTreeMap<_, _>>()
    };
    let aside = cluster.members[1].disk.list("/data/quarantine".as_ref()).expect("listed");
    let [aside] = aside.as_slice() else { panic!("{aside:?}") };
    let left = segments(1, &format!("/data/quarantine/{}", aside.name));
    let moved = segments(2, &format!("/data/topics/default/{ID}/p00001"));
    assert!(moved.len() > 2, "several segments");
    assert!(left == moved, "{:?} is set aside, {:?} was moved", left.keys(), moved.keys());
}

#[tokio::test(start_paused = true)]
async fn what_comes_is_not_taken_for_what_was_left() {
    let cluster = cluster(1).await;
    for n in 0..30 {
        put(cluster.node("a"), &long(n)).await;
    }
    cluster.settle_down().await;
    cluster.net.fail_op("c", "b", PeerOp::OWNER_COPY, Fault::Delay(Duration::from_millis(60)));
    cluster.catalog.next_proposals([Proposal::Made].into_iter().chain([Proposal::NeverSent; 8]));
    begin(&cluster, "c", 7);
    // Whatever changes in the catalog, what is left of moves is looked for.
    let others = async {
        for id in 100.. {
            cluster.catalog.put(topic(&format!("other-{id}"), id, 1));
            sleep(Duration::from_millis(70)).await;
        }
    };
    tokio::select! {
        () = until_at(&cluster, "c") => {}
        () = others => {}
    }
    assert_eq!(stored(&cluster).await.len(), 30);
    let aside = cluster.members[2].disk.list("/data/quarantine".as_ref()).expect("listed");
    assert!(aside.is_empty(), "{aside:?}");
}

#[tokio::test(start_paused = true)]
async fn files_that_fail_for_a_while_hold_a_move_up_and_break_nothing() {
    let failing = [
        ("b", Op::Sync, "/settle"),
        ("b", Op::Create, "copy.cell"),
        ("b", Op::Read, "/p00001/"),
        ("c", Op::Create, "/p00001."),
        ("c", Op::Write, "/p00001."),
        ("c", Op::Sync, "/p00001."),
        ("c", Op::SyncDir, "/0000000000000001"),
        ("c", Op::Rename, "/p00001."),
        ("c", Op::Sync, "/settle"),
    ];
    for (round, (node, op, path)) in failing.into_iter().enumerate() {
        for after in [0, 1, 3] {
            let cluster = cluster(round as u64 * 10 + after).await;
            for n in 0..20 {
                put(cluster.node("a"), &long(n)).await;
            }
            cluster.settle_down().await;
            let taken = take(cluster.node("a"), 2, 0).await;
            assert!(ack(cluster.node("a"), &taken[0]).await);
            let disk = &cluster.members.iter().find(|member| member.name == node).expect("one of three").disk;
            disk.inject(DiskFault { op, path_contains: path.into(), after, times: 2, kind: FaultKind::Eio });
            begin(&cluster, "c", 7);
            put(cluster.node("a"), &long(20)).await;
            until_at(&cluster, "c").await;
            cluster.settle_down().await;
            let what = format!("{op:?} of {path} at {node} after {after}");
            assert_eq!(stored(&cluster).await, (0..21).map(|n| format!("{n:04}")).collect::<Vec<_>>(), "{what}");
            assert!(ack(cluster.node("b"), &taken[1]).await, "{what}");
            assert_eq!(take(cluster.node("a"), 1, 0).await[0].offset, Offset(2), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_come_after_the_partition_has_moved_or_come_back_store_and_settle_nothing() {
    for returns in [false, true] {
        let cluster = cluster(1).await;
        put(cluster.node("b"), "0000").await;
        cluster.settle_down().await;
        let taken = take(cluster.node("b"), 1, 0).await;
        cluster.net.fail_op("a", "b", PeerOp::OWNER_COMMIT, Fault::Delay(Duration::from_secs(5)));
        cluster.net.fail_op("a", "b", PeerOp::OWNER_SETTLE, Fault::Delay(Duration::from_millis(1_500)));
        put(cluster.node("a"), "0001").await;
        let (broker, delivery) = (cluster.node("a").broker.clone(), taken[0].clone());
        let late = tokio::spawn(async move {
            let handle = delivery.lease.expect("a lease").handle;
            broker.settle(&tenant(), &name("orders"), handle, Settle::Ack).await
        });
        sleep(Duration::from_millis(100)).await;
        begin(&cluster, "c", 7);
        until_at(&cluster, "c").await;
        if returns {
            begin(&cluster, "b", 8);
            until_at(&cluster, "b").await;
        }
        put(cluster.node("c"), "0002").await;
        // The late commit has the epoch of the first tenure: whoever has the partition now is asked instead.
        sleep(Duration::from_secs(10)).await;
        cluster.net.heal();
        cluster.settle_down().await;
        assert_eq!(stored(&cluster).await, ["0000", "0002", "0001"]);
        let late = late.await.expect("no panic");
        assert!(late.is_ok() || late.as_ref().is_err_and(|error| error.effect() == Effect::None), "{late:?}");
        assert_eq!(try_ack(cluster.node("b"), &taken[0]).await.is_ok(), late.is_err(), "settled once");
    }
}
