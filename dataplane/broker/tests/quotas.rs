//! Limits that nodes share, and usage that is what is on the disks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use veena_broker::errors::ProduceError;
use veena_broker::message::NewMessage;
use veena_broker::quota::{Records, Use};
use veena_broker::usage::UsageNumbers;
use veena_contract::{Catalog as _, CatalogView, Entropy, KeyId, Limit, PartitionIndex, PeerOp, Quota, QuotaScope, TopicId, TopicRecord};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode, read_full_at};
use veena_storage::partition::SEGMENT_HEADER_BYTES;

use crate::moves;
use crate::net::{Cluster, Fault, NODES, owned_by};
use crate::support::{FakeCatalog, Node, Seeded, name, small_config, tenant, topic};

fn message(bytes: usize, partition: Option<u32>) -> NewMessage {
    let partition = partition.map(PartitionIndex);
    NewMessage { key: None, partition, headers: Vec::new(), idempotency_key: None, payload: Bytes::from(vec![b'x'; bytes]) }
}

/// Produces through a node of a cluster, to the partition of another.
async fn produce(cluster: &Cluster, through: &str, partition: u32, bytes: usize) -> Result<(), ProduceError> {
    cluster.node(through).broker.produce(&tenant(), &name("orders"), message(bytes, Some(partition))).await
}

fn stored(bytes: u64) -> Quota {
    Quota { stored_bytes: Some(bytes), ..Quota::default() }
}

#[tokio::test(start_paused = true)]
async fn what_is_stored_is_limited_over_all_nodes_whoever_takes_it_and_wherever_it_lies() {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(owned_by(topic("orders", 1, 3), &NODES));
    cluster.catalog.limit(None, stored(100_000));
    // Each node takes messages for another one.
    for (through, partition) in [("a", 1), ("b", 2), ("c", 0)] {
        produce(&cluster, through, partition, 30_000).await.expect("room");
    }
    cluster.settle_down().await;
    sleep(Duration::from_secs(3)).await;
    for node in NODES {
        for partition in 0..3 {
            let error = produce(&cluster, node, partition, 20_000).await.expect_err("the others store something");
            let ProduceError::QuotaExceeded(exceeded) = error else { panic!("{error}") };
            assert_eq!((exceeded.limit, exceeded.scope, exceeded.quota), (Limit::StoredBytes, QuotaScope::Tenant, 100_000));
            assert!((90_000..100_000).contains(&exceeded.current), "{exceeded:?}");
        }
    }
    let told = cluster.node("b").broker.usage_everywhere(Some(&tenant())).await;
    let used = told.tenants[&tenant()];
    assert_eq!((told.nodes, told.silent, used.messages_in), (3, 0, 3));
    assert!((90_000..100_000).contains(&used.stored_bytes), "{used:?}");
    // A node that is away is counted with what it told last, and said to be silent.
    cluster.net.fail("a", "b", Fault::Cut);
    sleep(Duration::from_secs(5)).await;
    assert!(produce(&cluster, "a", 0, 20_000).await.is_err());
    let told = cluster.node("a").broker.usage_everywhere(None).await;
    assert_eq!((told.nodes, told.silent, told.tenants[&tenant()].messages_in), (3, 1, 2));
    cluster.net.heal();
    cluster.catalog.remove(TopicId(1));
    cluster.catalog.put(owned_by(topic("orders", 2, 3), &NODES));
    sleep(Duration::from_secs(5)).await;
    produce(&cluster, "a", 1, 90_000).await.expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn the_last_use_of_a_key_is_the_latest_of_all_nodes_and_a_node_that_is_away_is_told() {
    const HOUR_MS: u64 = 3_600_000;
    let cluster = Cluster::start(1).await;
    let id = |n: u32| KeyId::parse(&format!("{n:012}")).expect("an id");
    for (node, key, hour) in [("a", 1, 7), ("b", 1, 9), ("c", 1, 8), ("c", 2, 5), ("a", 3, 1)] {
        cluster.node(node).broker.key_uses().note(&CatalogView::default(), id(key), hour * HOUR_MS);
    }
    let told = cluster.node("a").broker.keys_used_everywhere(vec![id(1), id(2), id(4)]).await;
    assert_eq!((told.last_ms, told.silent), (BTreeMap::from([(id(1), 9 * HOUR_MS), (id(2), 5 * HOUR_MS)]), 0));
    cluster.net.fail("a", "b", Fault::Cut);
    let told = cluster.node("a").broker.keys_used_everywhere(vec![id(1)]).await;
    assert_eq!((told.last_ms, told.silent), (BTreeMap::from([(id(1), 8 * HOUR_MS)]), 1));
    assert_eq!(cluster.node("a").broker.keys_used_everywhere(Vec::new()).await.silent, 0, "nobody is asked for nothing");
}

#[tokio::test(start_paused = true)]
async fn two_nodes_at_once_store_no_more_than_what_each_has_not_heard_of_yet() {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(owned_by(topic("orders", 1, 3), &NODES));
    cluster.catalog.limit(None, stored(500_000));
    let mut taken = 0;
    for _ in 0..2_000 {
        for (partition, node) in (0..).zip(NODES) {
            taken += u64::from(produce(&cluster, node, partition, 1_000).await.is_ok()) * 1_000;
        }
        sleep(Duration::from_millis(10)).await;
    }
    // Each takes at most 100 kB in a second, and hears of the others within three.
    assert!((450_000..500_000 + 3 * 3 * 100_000).contains(&taken), "{taken}");
}

/// How many messages a node lets in within a second of a hundred tries, at a tenant's limit.
async fn a_second(cluster: &Cluster, node: &str) -> u64 {
    let view = cluster.catalog.view();
    let (broker, tenant) = (&cluster.node(node).broker, tenant());
    let records = Records::of(&view, &tenant, None);
    let mut taken = 0;
    for _ in 0..100 {
        for _ in 0..20 {
            taken += u64::from(broker.quota().take(&records, &Use::produced(1, 0), broker.now_us()).is_ok());
        }
        sleep(Duration::from_millis(10)).await;
    }
    taken
}

#[tokio::test(start_paused = true)]
async fn a_share_follows_demand_and_is_equal_again_without_the_leader() {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(owned_by(topic("orders", 1, 3), &NODES));
    cluster.catalog.limit(None, Quota { messages_in_per_s: Some(900), ..Quota::default() });
    sleep(Duration::from_millis(10)).await;
    // Nobody leads.
    a_second(&cluster, "b").await;
    assert_eq!(a_second(&cluster, "b").await, 300);
    cluster.net.set_leader(Some("a"));
    for _ in 0..3 {
        a_second(&cluster, "b").await;
    }
    let nearly_all = a_second(&cluster, "b").await;
    assert!((850..=900).contains(&nearly_all), "{nearly_all}");
    assert!(cluster.net.calls(PeerOp::QUOTA_SHARES) > 3);
    // It moves to another node, and to the leader itself.
    for node in ["c", "a"] {
        for _ in 0..4 {
            a_second(&cluster, node).await;
        }
        let nearly_all = a_second(&cluster, node).await;
        assert!((850..=900).contains(&nearly_all), "{node}: {nearly_all}");
    }
    cluster.net.fail("c", "a", Fault::Cut);
    for _ in 0..6 {
        a_second(&cluster, "c").await;
    }
    assert_eq!(a_second(&cluster, "c").await, 300);
    // Without limits nobody tells anything.
    cluster.catalog.unlimit(None);
    sleep(Duration::from_secs(2)).await;
    let calls = cluster.net.calls(PeerOp::QUOTA_SHARES);
    sleep(Duration::from_secs(100)).await;
    assert_eq!((cluster.net.calls(PeerOp::QUOTA_SHARES), cluster.net.calls(PeerOp::USAGE)), (calls, 0));
}

/// The bytes of all records of these topics, counted in the files.
fn recounted(disk: &MemDisk, topics: impl Iterator<Item = TopicId>) -> u64 {
    let list = |dir: &str| disk.list(Path::new(dir)).unwrap_or_default();
    let mut bytes = 0;
    for topic in topics {
        let dir = format!("/data/topics/default/{topic}");
        for partition in list(&dir) {
            let files = list(&format!("{dir}/{}", partition.name));
            for file in files.iter().filter(|file| file.name.ends_with(".log")) {
                let path = format!("{dir}/{}/{}", partition.name, file.name);
                let mut content = vec![0; usize::try_from(file.len).expect("small")];
                let opened = disk.open(Path::new(&path), OpenMode::Read).expect("opened");
                read_full_at(opened.as_ref(), &mut content, 0).expect("read");
                // A log that is written to is longer than what is in it.
                let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                bytes += end.max(SEGMENT_HEADER_BYTES) as u64;
            }
        }
    }
    bytes
}

struct Walk {
    disk: MemDisk,
    catalog: Arc<FakeCatalog>,
    node: Node,
    entropy: Arc<Seeded>,
    /// By number, the payload bytes and messages that were taken.
    topics: BTreeMap<u64, ()>,
    created: u64,
    accepted: u64,
    crashes: u64,
}

impl Walk {
    async fn start(seed: u64) -> Self {
        let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
        let node = open(&disk, &catalog, seed).await;
        Self { disk, catalog, node, entropy: Seeded::new(seed), topics: BTreeMap::new(), created: 0, accepted: 0, crashes: 0 }
    }

    fn below(&self, bound: u64) -> u64 {
        self.entropy.next_u64() % bound
    }

    fn any(&self) -> Option<u64> {
        let count = self.topics.len() as u64;
        (count > 0).then(|| *self.topics.keys().nth(usize::try_from(self.below(count)).expect("few")).expect("one of them"))
    }

    async fn step(&mut self) {
        match self.below(20) {
            0 | 1 => {
                self.created += 1;
                let id = self.created;
                let retention_bytes = if self.below(2) == 0 { 0 } else { 100_000 };
                self.catalog.put(TopicRecord { retention_bytes, ..topic(&format!("t{id}"), id, 2) });
                self.topics.insert(id, ());
            }
            2 => {
                if let Some(id) = self.any() {
                    self.topics.remove(&id);
                    self.catalog.remove(TopicId(id));
                }
            }
            3 => {
                self.node.broker.stop().await;
                self.reopen().await;
            }
            4 => {
                self.disk.crash_kill();
                self.node.tasks.token().cancel();
                self.crashes += 1;
                self.reopen().await;
            }
            5..9 => sleep(Duration::from_millis(self.below(30_000))).await,
            9..12 => {
                if let Some(id) = self.any() {
                    for delivery in self.node.consume_many(&format!("t{id}"), 10, 10).await {
                        self.node.ack(&format!("t{id}"), &delivery);
                    }
                }
            }
            _ => {
                let Some(id) = self.any() else { return };
                for _ in 0..self.below(20) {
                    let bytes = usize::try_from(1 + self.below(5_000)).expect("small");
                    let sent = self.node.broker.produce(&tenant(), &name(&format!("t{id}")), message(bytes, None)).await;
                    self.accepted += u64::from(sent.is_ok());
                }
            }
        }
        let used = self.used();
        assert!(used.stored_bytes <= used.stored_bytes_peak && used.stored_bytes_peak < 1 << 40, "{used:?}");
        assert!(used.messages_in <= self.accepted, "counted twice: {used:?}, {} accepted", self.accepted);
    }

    async fn reopen(&mut self) {
        self.disk = self.disk.reopen();
        self.node = open(&self.disk, &self.catalog, self.entropy.next_u64()).await;
    }

    fn used(&self) -> UsageNumbers {
        self.node.broker.usage().numbers(&tenant())
    }
}

async fn open(disk: &MemDisk, catalog: &Arc<FakeCatalog>, seed: u64) -> Node {
    let mut config = small_config();
    config.idle_log_eviction_ms = 20_000;
    config.retention_check_ms = 5_000;
    Node::start_with(Arc::new(disk.clone()), catalog, seed, config).await
}

#[tokio::test(start_paused = true)]
async fn what_is_counted_as_stored_is_what_the_files_take_after_whatever_has_happened() {
    let mut largest = 0;
    for seed in 0..3 {
        let mut walk = Walk::start(seed).await;
        for _ in 0..150 {
            walk.step().await;
        }
        // As after every start: most logs have not been opened by this process.
        for round in 0..2 {
            sleep(Duration::from_secs(60)).await;
            let used = walk.used();
            let living = walk.topics.keys().map(|id| TopicId(*id));
            assert_eq!(used.stored_bytes, recounted(&walk.disk, living), "seed {seed}, round {round}, {} crashes", walk.crashes);
            largest = largest.max(used.stored_bytes);
            walk.node.broker.stop().await;
            walk.reopen().await;
        }
    }
    assert!(largest > 100_000, "the walks store something: {largest}");
}

#[tokio::test(start_paused = true)]
async fn what_is_counted_is_what_is_there_though_partitions_move() {
    let cluster = moves::cluster(3).await;
    let mut accepted = 0;
    for (round, to) in ["c", "a", "b", "c"].into_iter().enumerate() {
        for n in 0..20 {
            moves::put(cluster.node(NODES[n % 3]), &"x".repeat(100 * (n + 1))).await;
            accepted += 1;
            if n == 10 {
                moves::begin(&cluster, to, round as u128 + 1);
            }
        }
        moves::until_at(&cluster, to).await;
        // What has moved away is set aside, and all is added up.
        let added_up = async {
            loop {
                let used: Vec<_> = cluster.members.iter().map(|member| member.node.broker.usage().numbers(&tenant())).collect();
                let there: Vec<_> = cluster.members.iter().map(|member| recounted(&member.disk, std::iter::once(moves::ID))).collect();
                if used.iter().map(|used| used.stored_bytes).eq(there) {
                    return used;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        let used =
            timeout(Duration::from_secs(120), added_up).await.unwrap_or_else(|_| panic!("round {round}: what is counted is not there"));
        let sum = used.iter().fold(UsageNumbers::default(), |sum, used| sum.and(*used));
        assert_eq!(sum.messages_in, accepted, "round {round}: {used:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn usage_lives_through_a_stop_and_a_crash_costs_at_most_what_was_not_written_down() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 1));
    let node = open(&disk, &catalog, 1).await;
    for _ in 0..10 {
        assert!(node.produce("orders", None, "twelve bytes").await);
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node.consume_many("orders", 4, 0).await.len(), 4);
    node.broker.stop().await;
    let disk = disk.reopen();
    let node = open(&disk, &catalog, 2).await;
    let used = node.broker.usage().numbers(&tenant());
    assert_eq!((used.messages_in, used.messages_out, used.bytes_out), (10, 4, 48));
    assert!(node.produce("orders", None, "written down").await);
    sleep(Duration::from_secs(21)).await;
    assert!(node.produce("orders", None, "not written down").await);
    disk.crash_kill();
    node.tasks.token().cancel();
    let node = open(&disk.reopen(), &catalog, 3).await;
    sleep(Duration::from_secs(1)).await;
    let used = node.broker.usage().numbers(&tenant());
    // What was dispatched before the crash is known to its log, and not counted again; what was not is counted now.
    assert!((11..=12).contains(&used.messages_in), "{used:?}");
}
